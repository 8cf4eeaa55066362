"""Horizons of the landing: what the database has by the cut log, written out, and taken back by one that lacks it.

Comes in: the landing, within a transaction. Goes out: up to where lakes need the log no more; the state of all sources
and tables (`menura.horizon`), as of one moment; or rows made of it. Taken back it goes the way of an entry,
with a cut for each source that starts every table where it is (`as_entry`), so it says of the desired state what a
replay of the whole log would; what cuts can't say is set behind it (`restore`). A kill leaves all of it or nothing.

Dumps are not in it: those that run when the database is lost are lost with it, as in a replay of the log. Of a table's
last events those are there that say what its foreign keys are.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from menura.horizon import Horizon, HorizonSource, HorizonTable
from menura.landing import (
    LandedCut,
    LandedEvent,
    LandedFence,
    LandedPosition,
    LandedStart,
    LandedStop,
    LogEntry,
    decode_event,
)
from menura.naming import quarantine_of
from sqlalchemy import Connection, and_, func, select, update

from controlplane_api import comparisons
from controlplane_api.database import read_one_moment
from controlplane_api.documents import ahead_from, position_from
from controlplane_api.errors import EntryOutOfOrder
from controlplane_api.models import (
    POSITION_OF_SYNC,
    AnyRow,
    CommittedPosition,
    Lake,
    LakeStop,
    Landing,
    Lease,
    Quarantine,
    Source,
    SourceTable,
    Sync,
    TableEvent,
    Tenant,
)
from controlplane_api.registry import blocked, table_events
from gateway.registry import RegistryUnavailable, Removable

_FOREIGN_KEYS = "FOREIGN_KEYS"
#: from these on a table is another one, or none
_CREATED, _GONE = "CREATED", ("DROPPED", "RENAMED")
#: stops of tables that go on with a dump alone: no earlier entry helps them
_GOES_ON_WITH_DUMP = ("ENTRIES_GONE",)


def removable(connection: Connection, landing: str) -> Removable:
    """Up to where the database and every lake have the log."""
    applied = connection.execute(select(Landing.applied_entry).where(Landing.url == landing)).scalar() or 0
    held = _held(connection, landing)
    if held:
        return Removable(0, held)
    unknown = _unknown_keys(connection)
    if unknown is not None:
        return Removable(
            0, f"the foreign keys of {unknown} were told to a former version, and stand in the log alone: begin it anew"
        )
    lakes = connection.execute(select(Lake).order_by(Lake.name)).all()
    if not lakes:
        return Removable(0)
    of_lakes = [_of_lake(connection, lake) for lake in lakes]
    least = min(of_lakes, key=lambda found: found.entry)
    return least if least.entry < applied else Removable(applied)


def _held(connection: Connection, landing: str) -> str:
    """Why the database lacks cuts of entries that it has applied; '': it lacks none."""
    held = connection.execute(select(Source.name).join_from(Quarantine, Source).order_by(Source.id).limit(1)).scalar()
    if held is not None:
        return f"source {held} is in quarantine ({quarantine_of(held)}), and its cuts stand in the log alone"
    waiting = blocked.held(connection, landing)
    return f"source {waiting[0].key} waits for a lock, and its cuts stand in the log alone" if waiting else ""


def _of_lake(connection: Connection, lake: AnyRow) -> Removable:
    forget = f"forget a lake that is no more: menura lakes --forget {lake.name}"
    if not lake.complete or not lake.durable_entry:
        words = f"lake {lake.name} has not said yet how far it is; {forget}"
        return Removable(0, words, lake.received_at_us)
    stop = connection.execute(
        select(LakeStop)
        .where(LakeStop.lake_id == lake.id, LakeStop.code.not_in(_GOES_ON_WITH_DUMP))
        .order_by(LakeStop.entry)
        .limit(1)
    ).first()
    if stop is not None and stop.entry <= lake.durable_entry:
        words = (
            f"table {stop.source}/{stop.database}.{stop.name} has stopped in lake {lake.name} and needs what it missed"
        )
        return Removable(max(0, stop.entry - 1), f"{words}; {forget}", lake.received_at_us)
    return Removable(lake.durable_entry, f"lake {lake.name} needs them; {forget}", lake.received_at_us)


def _unknown_keys(connection: Connection) -> str | None:
    """A table of which the database has an event FOREIGN_KEYS of before revision 0024."""
    row = connection.execute(
        select(Source.name.label("source"), SourceTable.database, SourceTable.name)
        .join_from(TableEvent, SourceTable, SourceTable.id == TableEvent.table_id)
        .join(Source, Source.id == SourceTable.source_id)
        .join(Sync, Sync.table_id == SourceTable.id)
        .where(TableEvent.kind == _FOREIGN_KEYS, Sync.foreign_keys.is_(None))
        .limit(1)
    ).first()
    return None if row is None else f"{row.source}/{row.database}.{row.name}"


def horizon(connection: Connection, landing: str, identity: str, first_entry: int, at_us: int) -> Horizon:
    """What the database has by the log at one moment, while entries are applied; first in its transaction.

    Raises `RegistryUnavailable` while cuts of it are held back.
    """
    read_one_moment(connection)
    entry = connection.execute(select(Landing.applied_entry).where(Landing.url == landing)).scalar_one()
    if held := _held(connection, landing):
        raise RegistryUnavailable(held)
    if not first_entry <= entry:
        raise EntryOutOfOrder(
            "making a horizon of the cut log",
            f"entries from {first_entry} on shall stay, and the database holds entry {entry}",
            data="Nothing was removed.",
            remedy="Apply the entries between first.",
        )
    tables = _tables(connection)
    sources = connection.execute(
        select(CommittedPosition, Source.id, Source.name, Source.flavor, Source.generation, Lease.logged_epoch,
               Tenant.name.label("tenant"))
        .join_from(Source, Tenant)
        .join(CommittedPosition, CommittedPosition.source_id == Source.id)
        .outerjoin(Lease, and_(Lease.tenant == Tenant.name, Lease.source == Source.name))
        .order_by(Source.id)
    ).all()  # fmt: skip
    return Horizon(identity, entry, first_entry, at_us, tuple(_source(row, tables[row.id]) for row in sources))


def _tables(connection: Connection) -> Mapping[int, list[AnyRow]]:
    """By source, with the last event of each after which it is another table."""
    last = (
        select(TableEvent.table_id, func.max(TableEvent.gsn).label("gsn"))
        .where(TableEvent.kind.in_((_CREATED, *_GONE)))
        .group_by(TableEvent.table_id)
        .subquery()
    )
    rows = connection.execute(
        select(Sync, POSITION_OF_SYNC, SourceTable.database, SourceTable.name, TableEvent.kind, TableEvent.gsn,
               TableEvent.commit_timestamp_us, TableEvent.position.label("at"), TableEvent.new_name)
        .join_from(Sync, SourceTable, SourceTable.id == Sync.table_id)
        .outerjoin(last, last.c.table_id == Sync.table_id)
        .outerjoin(TableEvent, and_(TableEvent.table_id == Sync.table_id, TableEvent.gsn == last.c.gsn))
        .where(Sync.position_id.is_not(None))
        .order_by(Sync.table_id)
    )  # fmt: skip
    found: defaultdict[int, list[AnyRow]] = defaultdict(list)
    for row in rows:
        found[row.source_id].append(row)
    return found


def _source(row: AnyRow, tables: Iterable[AnyRow]) -> HorizonSource:
    here = position_from(row.position)
    assert here is not None
    positions: dict[LandedPosition, int] = {here: 0}
    return HorizonSource(
        tenant=row.tenant,
        source=row.name,
        flavor=row.flavor,
        generation=row.generation,
        epoch=row.epoch,
        cut=row.cut,
        last_gsn=row.last_gsn,
        last_transaction_id=row.last_transaction_id,
        logged_epoch=max(row.epoch, row.logged_epoch or 0),
        rows=row.rows,
        bytes=row.bytes,
        transactions=row.transactions,
        last_commit_timestamp_us=row.last_commit_timestamp_us,
        tables=tuple(_table(table, positions) for table in tables),
        positions=tuple(positions),
        ahead=ahead_from(row.ahead),
    )


def _table(row: AnyRow, positions: dict[LandedPosition, int]) -> HorizonTable:
    position = position_from(row.position)
    assert position is not None
    problem = row.problem if row.failed else None
    return HorizonTable(
        database=row.database,
        table=row.name,
        position=positions.setdefault(position, len(positions)),
        last_cut=row.last_cut,
        earlier_rows_missing=row.earlier_rows_missing,
        rows=row.rows,
        bytes=row.bytes,
        last_commit_timestamp_us=row.last_commit_timestamp_us,
        lake_rereads_per_hour=row.lake_rereads_per_hour,
        unlogged=row.unlogged,
        stop_code=problem["code"] if problem else "",
        stop_message=problem["message"] if problem else "",
        # Rows behind it are those of a table that was made again while its sync was stopped: no event says that.
        is_dropped=row.kind in _GONE and (row.last_commit_timestamp_us or 0) <= row.commit_timestamp_us,
        key_events=tuple(sorted(_key_events(row), key=lambda event: event.gsn)),
    )


def _key_events(row: AnyRow) -> Iterable[LandedEvent]:
    if row.foreign_keys is not None:
        yield decode_event(row.foreign_keys)
    if row.kind is not None:
        yield LandedEvent(
            row.database, row.name, row.kind, row.gsn, 0, row.commit_timestamp_us, row.at, "", removes_rows=False,
            new_name=tuple(row.new_name),
        )  # fmt: skip


def as_entry(horizon: Horizon) -> LogEntry:
    """The entry that brings sources and tables to where the horizon has them."""
    cuts = tuple(_cut(source) for source in horizon.sources)
    fences = tuple(LandedFence(source.tenant, source.source, source.logged_epoch) for source in horizon.sources)
    return LogEntry(horizon.entry, "", horizon.committed_at_us, cuts, fences, horizon.landing)


def _cut(source: HorizonSource) -> LandedCut:
    stopped = [table for table in source.tables if table.stop_code]
    return LandedCut(
        source.tenant,
        source.source,
        source.epoch,
        source.cut,
        source.generation,
        source.flavor,
        source.positions[0],
        source.last_gsn,
        source.last_transaction_id,
        last_commit_timestamp_us=source.last_commit_timestamp_us or 0,
        ahead=source.ahead,
        started=tuple(
            LandedStart(table.database, table.table, source.positions[table.position], table.earlier_rows_missing)
            for table in source.tables
        ),
        stopped=tuple(
            LandedStop(
                table.database, table.table, source.positions[table.position], table.stop_code, table.stop_message
            )
            for table in stopped
        ),
    )


def restore(connection: Connection, horizon: Horizon) -> None:
    """What cuts do not say of sources and tables, of those sources that the horizon has moved."""
    for source in horizon.sources:
        source_id = connection.execute(
            select(CommittedPosition.source_id)
            .join_from(CommittedPosition, Source, Source.id == CommittedPosition.source_id)
            .join(Tenant)
            .where(Tenant.name == source.tenant, Source.name == source.source)
            .where(CommittedPosition.entry == horizon.entry)
        ).scalar()
        if source_id is not None:
            counts = {"rows": source.rows, "bytes": source.bytes, "transactions": source.transactions}
            of_source = CommittedPosition.source_id == source_id
            connection.execute(update(CommittedPosition).where(of_source).values(counts))
            _restore_tables(connection, source_id, source.tables)


def _restore_tables(connection: Connection, source_id: int, tables: Iterable[HorizonTable]) -> None:
    named = select(SourceTable.database, SourceTable.name, SourceTable.id).where(SourceTable.source_id == source_id)
    ids = {(database, name): id_ for database, name, id_ in connection.execute(named)}
    known = select(TableEvent.table_id, TableEvent.gsn).join(SourceTable, SourceTable.id == TableEvent.table_id)
    there = {(row.table_id, row.gsn) for row in connection.execute(known.where(SourceTable.source_id == source_id))}
    for table in tables:
        table_id = ids[table.database, table.table]
        keys = [event for event in table.key_events if event.kind == _FOREIGN_KEYS]
        values = {
            "rows": table.rows,
            "bytes": table.bytes,
            "last_cut": table.last_cut,
            "last_commit_timestamp_us": table.last_commit_timestamp_us,
            "lake_rereads_per_hour": table.lake_rereads_per_hour,
            # of a comparison nothing is left: its steps are lost with the dumps
            "unlogged": None if table.unlogged is None else comparisons.without_marks(table.unlogged),
            "foreign_keys": asdict(keys[-1]) if keys else None,
        }
        connection.execute(update(Sync).where(Sync.table_id == table_id).values(values))
        new = [event for event in table.key_events if (table_id, event.gsn) not in there]
        table_events.record(connection, [(table_id, event) for event in new])
