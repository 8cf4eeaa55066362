"""The words of what ends a dump. Pure: values in, errors out."""

import json

from menura.errors import MenuraError
from menura.naming import command_table, dump_anew, sync_resync, sync_stop

from agent.errors import (
    DumpKeyChanged,
    DumpSnapshotImpossible,
    DumpTableGone,
    RepairImpossible,
    ResultInvalid,
    TableColumnUnsupported,
    VerificationImpossible,
)
from agent.snapshot.progress import Losses, RangeProgress
from agent.table_positions import Table

STREAM_GOES_ON = (
    "What was dumped is in the lake, and the table's changes go on; rows from before its stream are missing"
)
#: of a bound, which holds values of the key
MOST_BOUND_CHARACTERS = 100


def table_gone(source: str, table: Table, found: str) -> DumpTableGone:
    return DumpTableGone(
        "dumping a table",
        f"the table is no longer there: {found}",
        data="What was dumped is in the lake; the stream says what became of the table",
        remedy="Start the sync of its present name, if it has one; where the table is there again under this name, run:"
        f" {dump_anew(source, *table)}",
        source=source,
        database=table[0],
        table=table[1],
    )


def no_snapshots(source: str, table: Table) -> DumpSnapshotImpossible:
    return DumpSnapshotImpossible(
        "dumping a table",
        "its source only has a stream of changes, from which no former rows can be read",
        data="Nothing of it was dumped; its stream goes on",
        remedy=f"Begin its sync where the source's log begins: {sync_stop(source, *table)} and then menura sync start"
        f" {source} {command_table(*table)} --from oldest",
        source=source,
        database=table[0],
        table=table[1],
    )


def sync_goes_on(source: str, table: Table) -> DumpSnapshotImpossible:
    return DumpSnapshotImpossible(
        "dumping a table",
        "it has no key in whose order it could be read, and its sync goes on: only a sync that begins with the dump"
        " fits together with a snapshot of the whole table",
        data="Nothing of it was dumped; its stream goes on",
        remedy=f"Begin its sync anew: {sync_resync(source, *table)}",
        source=source,
        database=table[0],
        table=table[1],
    )


def ranges_unverifiable(source: str, table: Table, found: str) -> VerificationImpossible:
    return VerificationImpossible(
        "verifying ranges of a table",
        found,
        data="Nothing is known of whether the lake is equal to it there; its changes go on",
        remedy=f"Verify the whole table: menura verify run {source} {command_table(*table)}",
        source=source,
        database=table[0],
        table=table[1],
    )


def unverifiable(source: str, table: Table, found: str) -> VerificationImpossible:
    return VerificationImpossible(
        "verifying a table",
        f"its rows can't be found in the lake by ranges of its key: {found}",
        data="Nothing is known of whether the lake is equal to it; its changes go on",
        remedy=f"Repeat it, which reads the table in one snapshot: menura verify run {source} {command_table(*table)}",
        source=source,
        database=table[0],
        table=table[1],
    )


def unrepairable(source: str, table: Table, found: str) -> RepairImpossible:
    return RepairImpossible(
        "reading ranges of a table again",
        found,
        data="Nothing of it was read or changed; its changes go on",
        remedy=f"Have the whole table read again: {sync_resync(source, *table)}",
        source=source,
        database=table[0],
        table=table[1],
    )


def key_changed(source: str, table: Table, key: tuple[str, ...], found: str) -> DumpKeyChanged:
    return DumpKeyChanged(
        "dumping a table",
        f"it was being read in the order of its key ({', '.join(key)}), which the table has no more: {found}",
        data=STREAM_GOES_ON,
        remedy=f"Run: {dump_anew(source, *table)}",
        source=source,
        database=table[0],
        table=table[1],
    )


def column_unsupported(source: str, table: Table, found: str) -> TableColumnUnsupported:
    return TableColumnUnsupported(
        "dumping a table",
        found,
        data="Nothing of it was dumped; its stream goes on",
        remedy=f"Add the column to sources.{source}.filter.{'.'.join(table)}.ignored_columns and restart the agent, or"
        f" upgrade Menura; then run: {dump_anew(source, *table)}",
        source=source,
        database=table[0],
        table=table[1],
    )


def row_unreadable(
    source: str, table: Table, key: tuple[str, ...], part: RangeProgress, error: MenuraError
) -> ResultInvalid:
    """Names where the row is; the bound is of values of the key, which the table's owner has to look for."""
    where = f"above {_shown(part.cursor)}" if part.cursor else "of the range"
    found = f"range {part.number}, the first row {where} by ({', '.join(key)}): {error.found}"
    return _unreadable(source, table, found, error.remedy)


def rows_unreadable(source: str, table: Table, error: MenuraError) -> ResultInvalid:
    """Of a table that has no key by which a row could be named."""
    return _unreadable(source, table, f"the whole table: {error.found}", error.remedy)


def server_ends(
    source: str, table: Table, key: tuple[str, ...], part: RangeProgress | None, planning: Losses
) -> ResultInvalid:
    """`part` None: its plan was being made."""
    losses = planning if part is None else part.losses
    if part is None:
        rows = "its definition and indexes, for a plan"
    elif not key:
        rows = "the whole table"
    else:
        where = f"above {_shown(part.cursor)}" if part.cursor else "from the first on"
        rows = f"range {part.number}, rows {where} by ({', '.join(key)})"
    found = f"{rows}: the server ended while they were read, {losses.restarts} times, and was started anew"
    remedy = (
        "See the server's log for a damaged page, and restore the table from a backup or a replica (to have the server"
        f" check the table may end it too); then run: {dump_anew(source, *table)}"
    )
    return _unreadable(source, table, found, remedy)


def _unreadable(source: str, table: Table, found: str, remedy: str) -> ResultInvalid:
    return ResultInvalid(
        "reading rows for a dump",
        found,
        data=STREAM_GOES_ON,
        remedy=remedy,
        source=source,
        database=table[0],
        table=table[1],
    )


def _shown(bound: str) -> str:
    """Of a bound as it travels, without its digest."""
    texts = ", ".join(json.loads(bound)[:-1])
    return f"({texts if len(texts) <= MOST_BOUND_CHARACTERS else f'{texts[:MOST_BOUND_CHARACTERS]}…'})"
