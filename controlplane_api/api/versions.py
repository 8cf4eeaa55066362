"""ETags of what commands change: another one after each change by a command, an error or the cut log's word of it.

They say nothing about figures that move by themselves. `of_...` locks the source first, so that within a transaction
that writes the tag holds until its end.
"""

import hashlib
import json
from collections.abc import Callable, Iterable

from menura.naming import TableName
from sqlalchemy import Connection, func, select

from controlplane_api import joined_views
from controlplane_api.api import queries
from controlplane_api.models import (
    Dump,
    JoinedView,
    Quarantine,
    Source,
    SourceTable,
    Sync,
    SyncRule,
    Tenant,
    VerificationSchedule,
)
from controlplane_api.states import DumpEnd
from controlplane_api.syncs import lock_source

Tag = Callable[[Connection], str]


def of_source(tenant: str, source: str) -> Tag:
    return lambda connection: source_tag(connection, _locked(connection, tenant, source))


def of_table(tenant: str, source: str, name: TableName) -> Tag:
    return lambda connection: table_tag(connection, _locked(connection, tenant, source), name)


def of_dump(tenant: str, source: str, uuid: str) -> Tag:
    return lambda connection: dump_tag(connection, _locked(connection, tenant, source), uuid)


def of_schedule(tenant: str, source: str) -> Tag:
    return lambda connection: schedule_tag(connection, _locked(connection, tenant, source))


def of_view(tenant: str, view: str) -> Tag:
    def tag(connection: Connection) -> str:
        joined_views.locked(connection, tenant)
        return view_tag(connection, tenant, view)

    return tag


def source_tag(connection: Connection, source_id: int) -> str:
    rules = select(func.count(), func.max(SyncRule.id)).where(SyncRule.source_id == source_id)
    row = connection.execute(
        select(Source.generation, Source.dump_generation, Quarantine.entry, Quarantine.retry)
        .outerjoin(Quarantine, Quarantine.source_id == Source.id)
        .where(Source.id == source_id)
    ).one()
    return _digest((*row, *connection.execute(rules).one()))


def table_tag(connection: Connection, source_id: int, name: TableName) -> str:
    """Of a table that is not there too."""
    dump = select(Dump.uuid).where(Dump.table_id == SourceTable.id, Dump.state == DumpEnd.RUNNING)
    row = connection.execute(
        select(
            Sync.desired, Sync.start, Sync.start_text, Sync.failed, Sync.changed_generation, Sync.altered,
            dump.correlate(SourceTable).limit(1).scalar_subquery(),
        )
        .join_from(SourceTable, Sync, Sync.table_id == SourceTable.id, isouter=True)
        .where(SourceTable.source_id == source_id, SourceTable.database == name[0], SourceTable.name == name[1])
    ).first()  # fmt: skip
    return _digest(row or ())


def dump_tag(connection: Connection, source_id: int, uuid: str) -> str:
    """Of a dump that is not there too."""
    shown = ("state", "ended_at_us", "priority", "paused", "forced", "workers", "rows_per_second", "bytes_per_second")
    columns = [getattr(Dump, name) for name in shown]
    row = connection.execute(select(*columns).where(Dump.source_id == source_id, Dump.uuid == uuid)).first()
    return _digest(row or ())


def schedule_tag(connection: Connection, source_id: int) -> str:
    """Of one that is not there too."""
    shown = ("every_seconds", "database", "name", "rows_per_second", "window", "changed_at_us")
    columns = [getattr(VerificationSchedule, name) for name in shown]
    row = connection.execute(select(*columns).where(VerificationSchedule.source_id == source_id)).first()
    return _digest(row or ())


def view_tag(connection: Connection, tenant: str, view: str) -> str:
    """Of one that is not there too."""
    columns = (JoinedView.version, JoinedView.digest, JoinedView.changed_at_us)
    row = connection.execute(
        select(*columns).join(Tenant).where(Tenant.name == tenant, JoinedView.name == view)
    ).first()
    return _digest(row or ())


def _locked(connection: Connection, tenant: str, source: str) -> int:
    """Its id; raises `SourceUnknown`."""
    source_id: int = queries.source_row(connection, tenant, source).id
    lock_source(connection, source_id)
    return source_id


def _digest(values: Iterable[object]) -> str:
    return f'"{hashlib.sha256(json.dumps(list(values)).encode()).hexdigest()[:20]}"'
