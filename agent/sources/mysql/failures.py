"""The words of what can go wrong while the log is read. Pure: values in, errors out."""

from collections.abc import Sequence
from dataclasses import dataclass

from menura.naming import sync_anew

from agent.errors import (
    EventUnknown,
    EventUnreadable,
    SourceConnectionLost,
    TableIgnoredRenamed,
    TableRowsUncertain,
    TableRowsUnlogged,
    TableRowUnreadable,
    TableStatementLogged,
)
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.server.transaction_precise import PreciseTable

DOING = "reading the binary log"
SOURCE_STANDS = (
    "The log is read no further than the transaction before it; nothing is lost while the server keeps its log"
)
#: METADATA_WHOLE_ROWS
WHOLE_ROWS = "Run on the server: SET GLOBAL binlog_row_image = 'FULL', change my.cnf likewise and reconnect its clients"
TABLE_COMPLETE = "The table is complete up to the transaction before it"

Table = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the stream is."""

    source: str
    file: str
    #: after the last finished transaction
    position: BinlogPosition

    def where(self, end_offset: int) -> str:
        """An event's place. Inside a transaction MariaDB from 11.7 on logs no offset: 0."""
        if end_offset:
            return f"that ends at {self.file}:{end_offset}"
        return f"in the transaction after {self.file}:{self.position.offset}"

    def look(self, end_offset: int) -> str:
        limit = f"--stop-position={end_offset}" if end_offset else f"--start-position={self.position.offset}"
        return f"mysqlbinlog --verbose {limit} {self.file}"


def connection_lost(place: Place, found: str) -> SourceConnectionLost:
    return SourceConnectionLost(
        DOING,
        found,
        data="Nothing is lost: the log is read again from the last committed cut",
        remedy="See the server's log if it repeats",
        source=place.source,
        position=str(place.position),
    )


def event_unknown(place: Place, event_type: int, end_offset: int) -> EventUnknown:
    return EventUnknown(
        DOING,
        f"event type {event_type} {place.where(end_offset)} is not known to this version",
        data=SOURCE_STANDS,
        remedy=f"Upgrade Menura; look at the event: {place.look(end_offset)}",
        source=place.source,
        position=str(place.position),
    )


def event_unreadable(place: Place, event_type: int, end_offset: int, why: str) -> EventUnreadable:
    return EventUnreadable(
        DOING,
        f"the event of type {event_type} {place.where(end_offset)} can't be read: {why}",
        data=SOURCE_STANDS,
        remedy=f"Report it if this reads it: {place.look(end_offset)}",
        source=place.source,
        position=str(place.position),
    )


def row_unreadable(place: Place, table: Table, end_offset: int, why: str) -> TableRowUnreadable:
    return TableRowUnreadable(
        "reading a row",
        f"the event {place.where(end_offset)} can't be read: {why}",
        data=TABLE_COMPLETE,
        remedy=f"Look at it: {place.look(end_offset)}; then run: {sync_anew(place.source, *table)}",
        source=place.source,
        database=table[0],
        table=table[1],
    )


def rows_missing(place: Place, table: Table, found: str) -> TableRowsUncertain:
    """The table would stop again at the next such statement."""
    first = (
        "Take the table out of MERGE tables; where a foreign key's action changes it, set"
        f" sources.{place.source}.unlogged_changes to reread and restart the agent, or take the action from the key;"
        " then run: "
    )
    return rows_uncertain(place, table, found, first)


def rows_uncertain(place: Place, table: Table, found: str, first: str = "Run: ") -> TableRowsUncertain:
    """`first`: what is to be done before the table's sync begins anew."""
    return TableRowsUncertain(
        "reading a transaction",
        found,
        data=TABLE_COMPLETE,
        remedy=first + sync_anew(place.source, *table),
        source=place.source,
        database=table[0],
        table=table[1],
    )


def statement_logged(
    place: Place, table: Table, word: str, precise: Sequence[PreciseTable], *, is_named: bool
) -> TableStatementLogged:
    """`precise`: tables that the statement names and whose changes are always logged so."""
    reach = "" if is_named else ", and it may have changed this table through a trigger, a foreign key or a routine"
    return TableStatementLogged(
        DOING,
        f"{word} was logged as a statement, so its rows are not in the log{reach}{_always_so(precise)}",
        data=TABLE_COMPLETE,
        remedy=f"{_rows_in_the_log(precise)}; then run: {sync_anew(place.source, *table)}",
        source=place.source,
        database=table[0],
        table=table[1],
    )


def _always_so(precise: Sequence[PreciseTable]) -> str:
    if not precise:
        return ""
    names = " and ".join(".".join(each.table) for each in precise)
    return (
        f". MariaDB logs changes of {names} so whatever binlog_format is, since the system versioning counts"
        " transactions (ROW START and ROW END are BIGINT UNSIGNED)"
    )


def _rows_in_the_log(precise: Sequence[PreciseTable]) -> str:
    """What has the server log rows from then on."""
    if not precise:
        return (
            "Run on the server: SET GLOBAL binlog_format = 'ROW'; reconnect its clients and keep them from changing it"
        )
    statements = "; ".join(statement for each in precise for statement in each.statements())
    return (
        "Have the versions count time. That removes the former versions: copy those that you need. Run on the server,"
        f" in one session: {statements}"
    )


def rows_unlogged(place: Place, table: Table, why: str) -> TableRowsUnlogged:
    return TableRowsUnlogged(
        DOING,
        f"the server changed rows of the table without logging them: {why}",
        data="The lake holds the table as it was before that",
        remedy=f"The agent's policy for it is unlogged_changes: stop. Bring its rows again:"
        f" {sync_anew(place.source, *table)}",
        source=place.source,
        database=table[0],
        table=table[1],
    )


def ignored_renamed(place: Place, table: Table, words: str) -> TableIgnoredRenamed:
    return TableIgnoredRenamed(
        DOING,
        f"{words} gave a column that the filter ignores a name that it does not ignore, or made a plain column of"
        " one that was computed from it, or may have done so",
        data=TABLE_COMPLETE,
        remedy=f"Add the column to sources.{place.source}.filter.{'.'.join(table)}.ignored_columns, restart the agent"
        f" and run: {sync_anew(place.source, *table)}",
        source=place.source,
        database=table[0],
        table=table[1],
    )
