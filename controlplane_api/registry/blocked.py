"""Sources that wait for a lock: another transaction of the database holds a row that their committed cuts change.

Comes in: an entry of the cut log, in the transaction that applies it to everybody else. Goes out: one row a source,
with the first entry that is not applied to it and the last. Durable with the entry: the next ones don't wait, and a
gateway that starts reads past it. What is left comes in the order of the log, as soon as the lock is free; with the
last entry the row goes. Only who holds the landing's row adds entries, so a row that is gone stays gone meanwhile.

SQLite has one writer, and no locks of rows.
"""

import logging

from menura.landing import LogEntry
from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from controlplane_api.lookups import among
from controlplane_api.models import BlockedSource
from gateway.registry import Held, SourceKey

logger = logging.getLogger(__name__)


def add(connection: Connection, landing: str, key: SourceKey, entry: int) -> None:
    """From this entry on."""
    logger.warning(
        "source waits for a lock that another transaction of the database holds, others go on: source=%s entry=%d",
        key,
        entry,
    )
    row = {"tenant": key.tenant, "source": key.source, "landing": landing, "entry": entry, "last_entry": entry}
    connection.execute(insert(BlockedSource), [row])


def extend(connection: Connection, landing: str, entry: LogEntry, keys: set[SourceKey]) -> frozenset[SourceKey]:
    """Those of the sources that wait already: this entry waits with the others."""
    waiting = keys.intersection(each.key for each in held(connection, landing))
    if not waiting:
        return frozenset()
    named = among((BlockedSource.tenant, BlockedSource.source), ((key.tenant, key.source) for key in waiting))
    extended = update(BlockedSource).where(BlockedSource.landing == landing, named).values(last_entry=entry.entry)
    rows = connection.execute(extended.returning(BlockedSource.tenant, BlockedSource.source))
    return frozenset(SourceKey(row.tenant, row.source) for row in rows)


def held(connection: Connection, landing: str) -> list[Held]:
    """All that wait."""
    rows = connection.execute(select(BlockedSource).where(BlockedSource.landing == landing)).all()
    return [Held(SourceKey(row.tenant, row.source), row.entry, row.last_entry) for row in rows]


def is_blocked(connection: Connection, key: SourceKey) -> bool:
    waiting = select(BlockedSource.entry).where(BlockedSource.tenant == key.tenant, BlockedSource.source == key.source)
    return connection.execute(waiting).first() is not None


def lock(connection: Connection, landing: str, key: SourceKey) -> int | None:
    """The first entry that waits, and nobody else applies it meanwhile; None: nothing waits any more."""
    entry: int | None = connection.execute(
        select(BlockedSource.entry).where(*_is(landing, key)).with_for_update()
    ).scalar()
    return entry


def applied(connection: Connection, landing: str, key: SourceKey, entry: int) -> None:
    """Up to this one."""
    this = _is(landing, key)
    connection.execute(update(BlockedSource).where(*this).values(entry=entry + 1))
    connection.execute(delete(BlockedSource).where(*this, BlockedSource.last_entry <= entry))


def forget(connection: Connection, landing: str) -> None:
    """A horizon stands in for all entries."""
    connection.execute(delete(BlockedSource).where(BlockedSource.landing == landing))


def _is(landing: str, key: SourceKey) -> tuple[ColumnElement[bool], ...]:
    is_source = BlockedSource.tenant == key.tenant, BlockedSource.source == key.source
    return BlockedSource.landing == landing, *is_source
