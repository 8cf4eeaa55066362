"""The words of what can go wrong while the log is read. Pure: values in, errors out."""

from dataclasses import dataclass

from agent.errors import (
    EventUnknown,
    EventUnreadable,
    LogIncomplete,
    SourceConnectionLost,
    TableIgnoredRenamed,
    TableRowsRemoved,
    TableRowsUncertain,
    TableRowUnreadable,
    TableStatementLogged,
)
from agent.mysql.positions import Position

DOING = "reading the binary log"
SOURCE_STANDS = (
    "The log is read no further than the transaction before it; nothing is lost while the server keeps its log"
)
TABLE_COMPLETE = "The table is complete up to the transaction before it"

Table = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where the stream is."""

    source: str
    file: str
    #: after the last finished transaction
    position: Position

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


def log_incomplete(place: Place, incident: str, end_offset: int) -> LogIncomplete:
    return LogIncomplete(
        DOING,
        f"the server noted at {place.file}:{end_offset} that changes are missing from its log ({incident})",
        data="The lake is complete up to the transaction before it; which changes are missing is not known",
        remedy="Start the sync of all of the source's tables anew, at the log's end and with a dump",
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
        remedy=f"Look at it: {place.look(end_offset)}; then start the table's sync anew",
        source=place.source,
        database=table[0],
        table=table[1],
    )


SYNC_ANEW = "Start the table's sync anew"
#: else it stops again at the next such statement
WITHOUT_CASCADES = (
    "Take ON DELETE and ON UPDATE actions from the table's foreign keys, and the table out of MERGE tables, or leave it"
    " out; " + SYNC_ANEW.lower()
)


def rows_uncertain(place: Place, table: Table, found: str, remedy: str = SYNC_ANEW) -> TableRowsUncertain:
    return TableRowsUncertain(
        "reading a transaction",
        found,
        data=TABLE_COMPLETE,
        remedy=remedy,
        source=place.source,
        database=table[0],
        table=table[1],
    )


def transaction_lost(place: Place, table: Table, xid: str) -> TableRowsUncertain:
    return TableRowsUncertain(
        "reading the commit of an XA transaction",
        f"the server's log does not hold any more where {xid} was prepared, so what it changed is not known",
        data=TABLE_COMPLETE,
        remedy="Start the sync of the tables that it may have changed anew; keep logs longer with: SET GLOBAL"
        " binlog_expire_logs_seconds = 604800, and look for transactions that wait for their end with XA RECOVER",
        source=place.source,
        database=table[0],
        table=table[1],
    )


def statement_logged(place: Place, table: Table, word: str, *, is_named: bool) -> TableStatementLogged:
    reach = "" if is_named else ", and it may have changed this table through a trigger, a foreign key or a routine"
    return TableStatementLogged(
        DOING,
        f"{word} was logged as a statement, so its rows are not in the log{reach}",
        data=TABLE_COMPLETE,
        remedy="Run on the server: SET GLOBAL binlog_format = 'ROW', keep its clients from changing it, and start the"
        " table's sync anew",
        source=place.source,
        database=table[0],
        table=table[1],
    )


def rows_removed(place: Place, table: Table, words: str) -> TableRowsRemoved:
    return TableRowsRemoved(
        DOING,
        f"{words} changed the table's rows without row events",
        data="The lake holds the table as it was before that",
        remedy="Start the table's sync anew, by a dump: menura sync start --from dump",
        source=place.source,
        database=table[0],
        table=table[1],
    )


def ignored_renamed(place: Place, table: Table, words: str) -> TableIgnoredRenamed:
    return TableIgnoredRenamed(
        DOING,
        f"{words} gave a column that the filter ignores a name that it does not ignore, or may have done so",
        data=TABLE_COMPLETE,
        remedy=f"Add the new name to sources.{place.source}.filter.{'.'.join(table)}.ignored_columns, restart the agent"
        " and start the table's sync anew",
        source=place.source,
        database=table[0],
        table=table[1],
    )
