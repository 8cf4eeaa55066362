"""The words of what can go wrong while the log is read. Pure: values in, errors out."""

from dataclasses import dataclass

from menura.naming import sync_anew

from agent.errors import (
    EventUnknown,
    EventUnreadable,
    SourceConnectionLost,
    TableColumnUnsupported,
    TableIgnoredRenamed,
    TableRowsUnlogged,
    TableRowUnreadable,
)
from agent.sources.postgresql.positions import WalPosition, lsn_text
from agent.table_positions import Table

DOING = "reading changes from a replication slot"
SOURCE_STANDS = "The log is read no further than the transaction before it; nothing is lost while the slot is kept"
TABLE_COMPLETE = "The table is complete up to the transaction before it"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the stream is."""

    source: str
    #: after the last finished transaction
    position: WalPosition
    #: where the commit record of the current transaction begins; 0: none is open
    transaction_lsn: int = 0

    @property
    def where(self) -> str:
        return (
            f"of the transaction that commits at {lsn_text(self.transaction_lsn)}" if self.transaction_lsn else "here"
        )


def connection_lost(place: Place, found: str) -> SourceConnectionLost:
    return SourceConnectionLost(
        DOING,
        found,
        data="Nothing is lost: the log is read again from the last committed cut",
        remedy="See the server's log if it repeats",
        source=place.source,
        position=str(place.position),
    )


def message_unknown(place: Place, kind: str) -> EventUnknown:
    return EventUnknown(
        DOING,
        f"a message {kind!r} {place.where} is not known to this version",
        data=SOURCE_STANDS,
        remedy="Upgrade Menura",
        source=place.source,
        position=str(place.position),
    )


def message_unreadable(place: Place, kind: str, why: str) -> EventUnreadable:
    return EventUnreadable(
        DOING,
        f"a message {kind!r} {place.where} can't be read: {why}",
        data=SOURCE_STANDS,
        remedy="Report it with the server's version",
        source=place.source,
        position=str(place.position),
    )


def row_unreadable(place: Place, table: Table, why: str) -> TableRowUnreadable:
    return TableRowUnreadable(
        "reading a row",
        f"a row {place.where} can't be read: {why}",
        data=TABLE_COMPLETE,
        remedy=f"Report it with the server's version; then run: {sync_anew(place.source, *table)}",
        source=place.source,
        database=table[0],
        table=table[1],
    )


def columns_unsupported(place: Place, table: Table, why: str) -> TableColumnUnsupported:
    return TableColumnUnsupported(
        "reading a table's definition",
        why,
        data=TABLE_COMPLETE,
        remedy=f"Change the table; then run: {sync_anew(place.source, *table)}",
        source=place.source,
        database=table[0],
        table=table[1],
    )


def rows_unlogged(place: Place, table: Table, why: str) -> TableRowsUnlogged:
    return TableRowsUnlogged(
        DOING,
        f"rows of the table are others than its logged changes make them: {why}",
        data="The lake holds the table as it was before that",
        remedy=f"The agent's policy for it is unlogged_changes: stop. Bring its rows again:"
        f" {sync_anew(place.source, *table)}",
        source=place.source,
        database=table[0],
        table=table[1],
    )


def ignored_renamed(place: Place, table: Table, columns: str) -> TableIgnoredRenamed:
    return TableIgnoredRenamed(
        DOING,
        f"a column that the filter ignores, or a computed one, has a name that it does not ignore now: {columns}",
        data=TABLE_COMPLETE,
        remedy=f"Put the column's present name into sources.{place.source}.filter.{'.'.join(table)}.ignored_columns, in"
        f" place of the former one, restart the agent and run: {sync_anew(place.source, *table)}",
        source=place.source,
        database=table[0],
        table=table[1],
    )
