"""A stopped table's new beginning: the dump in the log with which its lake table begins anew. Pure.

Comes in: a stop that waits for somebody, and rows of the cut log that the table missed. A dump makes all that came
before it needless: with its event DUMPED the table is what it is at its source. So a table that can't go on from where
it stopped goes on from the event DUMP_STARTED (or, where a dump is the whole table in one snapshot, from its DUMPED),
which then counts as one that removes all rows: the current state is emptied, takes other columns if it must, and the
changelog gets a row `truncate`; older values keep their columns there. What stands between is left out, once, and
`records` says so before. Goes out: the stop with the entry, the cut and the row number of that event, and the rows to
follow from there. Files are applied by row number and Delta's `txn` as ever, so a kill repeats and loses nothing.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from menura.landing import LandedEvent, decode_event

from spark_sink.errors import ParentBegunAnew, ParentStopped
from spark_sink.ingest.cut_log_source import Row
from spark_sink.ingest.families import parents_of
from spark_sink.lake.merge import DUMP_STARTED, DUMPED
from spark_sink.lake.records import StoppedTable
from spark_sink.work import TableId, row_table, split_rows


def begins_anew(event: LandedEvent) -> bool:
    """Whether a table can begin with this event."""
    return event.kind == DUMP_STARTED or (event.kind == DUMPED and event.removes_rows)


def new_beginning(stop: StoppedTable, missed: Sequence[Row], stopped: Collection[TableId] = ()) -> StoppedTable | None:
    """The stop, moved to the newest beginning after it; None where there is none, or it goes on by itself.

    One that waits for a table above it does so, unless it follows no table of `stopped` from its beginning on: what it
    waits for may never come back.
    """
    if not stop.terminal and stop.code != ParentStopped.code:
        return None
    found = None
    for row in missed:
        if row.get("event") is None or row_table(row) != stop.table or row["first_gsn"] <= stop.begins_at_gsn:
            continue
        if begins_anew(decode_event(json.loads(row["event"]))):
            found = row
    if found is None:
        return None
    if not stop.terminal and _follows(stop.table, missed, found["first_gsn"]) & set(stopped):
        return None
    code = ParentStopped.code if stop.is_bereft else stop.code
    return replace(stop, code=code, entry=found["entry"], cut=found["cut"], begins_at_gsn=found["first_gsn"])


def _follows(table: TableId, missed: Iterable[Row], begins_at_gsn: int) -> set[TableId]:
    """The tables that this one's keys follow from there on."""
    own = [kept for row in missed if row_table(row) == table and (kept := row_from(row, begins_at_gsn)) is not None]
    return parents_of(table, split_rows(own)[1].get(table, ()))


def bereft(
    stopped: Mapping[TableId, StoppedTable],
    begins: Sequence[StoppedTable],
    above: Callable[[TableId], set[TableId]],
    at_us: int,
) -> list[StoppedTable]:
    """New stops of tables whose foreign keys follow one that begins anew, unless they begin later than it.

    What the keys did to them from where it stopped is not known: they have to begin anew too, after it. A dump that
    does so may stand in the log before the place where they stopped.
    """
    found = []
    for table, stop in stopped.items():
        parents = [each for each in begins if each.table != table and each.table in above(table)]
        if not parents:
            continue
        last = max(parents, key=lambda parent: parent.begins_at_gsn)
        if stop.begins_at_gsn < last.begins_at_gsn:
            lost = _parent_begun_anew(stop, last.table)
            found.append(
                replace(
                    stop,
                    entry=min(stop.entry, last.entry),
                    cut=min(stop.cut, last.cut),
                    code=lost.code,
                    message=str(lost),
                    terminal=lost.terminal,
                    at_us=at_us,
                    begins_at_gsn=last.begins_at_gsn,
                )
            )
    return found


def _parent_begun_anew(stop: StoppedTable, parent: TableId) -> ParentBegunAnew:
    return ParentBegunAnew(
        "carrying out a foreign key's actions",
        f"{parent.database}.{parent.table}, to which the table refers, has begun anew in the lake: what the key did to"
        " the table meanwhile is not known",
        data="The table stays at its last version; other tables go on",
        remedy=f"Begin it anew too: {stop.table.resync}",
        **stop.table.where(stop.cut),
    )


def rows_to_follow(rows: Iterable[Row], stops: Mapping[TableId, StoppedTable]) -> list[Row]:
    """What of the missed rows stopped tables follow, and the tables above them."""
    found = []
    for row in rows:
        stop = stops.get(row_table(row))
        if stop is None:
            found.append(row)
        elif not stop.is_bereft and (kept := row_from(row, stop.begins_at_gsn)) is not None:
            found.append(kept)
    return found


def row_from(row: Row, begins_at_gsn: int) -> Row | None:
    """A row of a table that begins at this number (0: it does not begin anew); None where it stands before."""
    if row["last_gsn"] < begins_at_gsn:
        return None
    if row.get("event") is None or row["first_gsn"] != begins_at_gsn:
        return row
    return {**row, "event": json.dumps({**json.loads(row["event"]), "removes_rows": True}, ensure_ascii=False)}


def lacking(stop: StoppedTable) -> str:
    """What the changelog of a table that goes on lacks."""
    if not stop.begins_at_gsn:
        return ""
    return (
        "The lake table has begun anew with a dump: its changelog lacks changes from where it had stopped to row number"
        f" {stop.begins_at_gsn}. It had stopped with: {stop.message}"
    )
