"""What the API shows, read from the database: one or two statements per answer, always within one tenant."""

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from menura.instants import now_us
from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, or_, select

from controlplane_api.api import dump_queries
from controlplane_api.api.presence import is_present
from controlplane_api.api.views import (
    AgentView,
    DumpView,
    SourceView,
    TableDetail,
    TableEventView,
    TableView,
    TenantView,
)
from controlplane_api.documents import position_text
from controlplane_api.errors import RequestInvalid, SourceUnknown, TableUnknown
from controlplane_api.models import (
    Agent,
    CommittedPosition,
    Dump,
    Lease,
    Source,
    SourceHealth,
    SourceTable,
    Sync,
    TableEvent,
    Tenant,
)
from controlplane_api.states import Desired, DumpEnd, State

#: figures of a heartbeat that is older say nothing about now
HEALTH_SECONDS = 3

AnyRow = Row[*tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class TablePage:
    tables: list[TableView]
    total: int
    next_cursor: str | None


def tenants(connection: Connection) -> list[TenantView]:
    agents = select(func.count()).where(Agent.tenant_id == Tenant.id).correlate(Tenant).scalar_subquery()
    sources = select(func.count()).where(Source.tenant_id == Tenant.id).correlate(Tenant).scalar_subquery()
    rows = connection.execute(
        select(Tenant.name, agents.label("agents"), sources.label("sources")).order_by(Tenant.name)
    )
    return [TenantView(tenant=row.name, agents=row.agents, sources=row.sources) for row in rows]


def agents(connection: Connection, tenant: str) -> list[AgentView]:
    names: dict[int, list[str]] = defaultdict(list)
    of_tenant = select(Source.agent_id, Source.name).join(Tenant).where(Tenant.name == tenant).order_by(Source.name)
    for row in connection.execute(of_tenant):
        names[row.agent_id].append(row.name)
    rows = connection.execute(select(Agent).join(Tenant).where(Tenant.name == tenant).order_by(Agent.name))
    now = now_us()
    return [
        AgentView(
            agent=row.name,
            connected=is_present(row.connected, row.seen_at_us, now),
            version=row.version,
            hostname=row.hostname,
            connected_at_us=row.connected_at_us,
            seen_at_us=row.seen_at_us,
            resident_memory_bytes=row.resident_memory_bytes,
            cpu_us=row.cpu_us,
            sources=names[row.id],
        )
        for row in rows
    ]


def sources(connection: Connection, tenant: str, source: str | None = None) -> list[SourceView]:
    """All sources of a tenant, or the one of that name."""
    health_problem = SourceHealth.problem.label("health_problem")
    statement = (
        select(
            Source, Agent.name.label("agent"), Agent.connected, Agent.connected_at_us, Agent.seen_at_us,
            Lease.gateway, Lease.expires_at_us,
            SourceHealth.at_us.label("health_at_us"), SourceHealth.lag_us, SourceHealth.read_position,
            SourceHealth.source_position, SourceHealth.rows_per_second, SourceHealth.read_bytes_per_second,
            health_problem,
            CommittedPosition.cut, CommittedPosition.position, CommittedPosition.last_commit_timestamp_us,
            CommittedPosition.committed_at_us, CommittedPosition.rows, CommittedPosition.bytes,
            CommittedPosition.transactions, _DUMPS.label("dumps"),
        )
        .join_from(Source, Tenant)
        .outerjoin(Agent, Agent.id == Source.agent_id)
        .outerjoin(Lease, and_(Lease.tenant == Tenant.name, Lease.source == Source.name))
        .outerjoin(SourceHealth, SourceHealth.source_id == Source.id)
        .outerjoin(CommittedPosition, CommittedPosition.source_id == Source.id)
        .where(Tenant.name == tenant)
        .order_by(Source.name)
    )  # fmt: skip
    counts = (
        select(SourceTable.source_id, _STATE.label("state"), func.count().label("tables"))
        .select_from(SourceTable)
        .join(Source, Source.id == SourceTable.source_id)
        .join(Tenant)
        .outerjoin(Sync, Sync.table_id == SourceTable.id)
        .where(Tenant.name == tenant, _SHOWN)
        .group_by(SourceTable.source_id, _STATE)
    )
    if source is not None:
        statement, counts = statement.where(Source.name == source), counts.where(Source.name == source)
    tables: dict[int, Counter[State]] = defaultdict(Counter)
    for row in connection.execute(counts):
        tables[row.source_id][State(row.state)] = row.tables
    now = now_us()
    return [_source_view(row, tables[row.id], now) for row in connection.execute(statement)]


def source_row(connection: Connection, tenant: str, source: str) -> Row[int, str, int]:
    """Id, flavor and generation; raises `SourceUnknown`, also for another tenant's."""
    row = connection.execute(
        select(Source.id, Source.flavor, Source.generation)
        .join_from(Source, Tenant)
        .where(Tenant.name == tenant, Source.name == source)
    ).first()
    if row is None:
        raise SourceUnknown(
            "looking for a source",
            "no agent of this tenant has announced it",
            remedy="Check the spelling, and that the agent runs and has reached the gateway.",
            source=source,
        )
    return row


def tables(
    connection: Connection,
    source_id: int,
    *,
    text: str = "",
    states: Sequence[State] = (),
    synced: bool = False,
    cursor: str = "",
    limit: int = 100,
) -> TablePage:
    """One page of a source's tables in order of name; `synced` leaves out those that no sync was asked for."""
    matching = [SourceTable.source_id == source_id, _SHOWN]
    if text:
        matching.append((SourceTable.database + "." + SourceTable.name).icontains(text, autoescape=True))
    if states:
        matching.append(_STATE.in_(states))
    if synced:
        matching.append(Sync.table_id.is_not(None))
    page = list(matching)
    if cursor:
        database, name = _read_cursor(cursor)
        page.append(
            or_(
                SourceTable.database > database,
                and_(SourceTable.database == database, SourceTable.name > name),
            )
        )
    found = connection.execute(_table_select().where(*page).limit(limit + 1)).all()
    shown = found[:limit]
    total = connection.execute(
        select(func.count()).select_from(SourceTable).outerjoin(Sync, Sync.table_id == SourceTable.id).where(*matching)
    ).scalar_one()
    now = now_us()
    dumps = dump_queries.running_of_tables(connection, [row.id for row in shown])
    return TablePage(
        tables=[TableView(**_table_fields(row, dumps.get(row.id), now)) for row in shown],
        total=total,
        next_cursor=_write_cursor(shown[-1].database, shown[-1].name) if len(found) > limit else None,
    )


def table(connection: Connection, source_id: int, database: str, name: str) -> TableDetail:
    """Raises `TableUnknown`."""
    statement = _table_select().add_columns(SourceTable.columns, SourceTable.keys, SourceTable.table_collation)
    row = connection.execute(
        statement.where(SourceTable.source_id == source_id, SourceTable.database == database, SourceTable.name == name)
    ).first()
    if row is None:
        raise _table_unknown(database, name)
    dumps = dump_queries.running_of_tables(connection, [row.id])
    return TableDetail(
        **_table_fields(row, dumps.get(row.id), now_us()),
        columns=row.columns,
        keys=row.keys,
        collation=row.table_collation,
    )


def table_id(connection: Connection, source_id: int, database: str, name: str) -> int:
    """Raises `TableUnknown`."""
    found = connection.execute(
        select(SourceTable.id).where(
            SourceTable.source_id == source_id, SourceTable.database == database, SourceTable.name == name
        )
    ).scalar()
    if found is None:
        raise _table_unknown(database, name)
    return found


def table_events(connection: Connection, table_id: int) -> list[TableEventView]:
    """A table's last events, the newest first."""
    columns = [getattr(TableEvent, name) for name in TableEventView.model_fields]
    rows = connection.execute(select(*columns).where(TableEvent.table_id == table_id).order_by(TableEvent.gsn.desc()))
    return [TableEventView(**row._mapping) for row in rows]


def _table_unknown(database: str, name: str) -> TableUnknown:
    return TableUnknown(
        "looking for a table",
        "the source's cartography does not have it",
        remedy="Check the spelling: names are case-sensitive.",
        database=database,
        table=name,
    )


_DUMPS = (
    select(func.count())
    .where(Dump.source_id == Source.id, Dump.state == DumpEnd.RUNNING)
    .correlate(Source)
    .scalar_subquery()
)
_STATE: ColumnElement[str] = func.coalesce(Sync.state, State.NOT_SYNCED.value)
#: a table that is gone interests nobody unless something of it has been synced
_SHOWN = or_(SourceTable.gone.is_(False), Sync.table_id.is_not(None))


def _table_select() -> Select[*tuple[Any, ...]]:
    return (
        select(
            SourceTable.id, SourceTable.database, SourceTable.name, SourceTable.engine, SourceTable.estimated_rows,
            SourceTable.size_bytes, SourceTable.denied, SourceTable.gone, _STATE.label("state"),
            Sync.desired, Sync.start, Sync.failed, Sync.position, Sync.problem, Sync.earlier_rows_missing,
            Sync.ignored_columns, Sync.rows, Sync.bytes, Sync.last_commit_timestamp_us, Sync.landed_at_us,
            CommittedPosition.position.label("committed"), CommittedPosition.ahead,
        )
        .outerjoin(Sync, Sync.table_id == SourceTable.id)
        .outerjoin(CommittedPosition, CommittedPosition.source_id == SourceTable.source_id)
        .order_by(SourceTable.database, SourceTable.name)
    )  # fmt: skip


def _table_fields(row: AnyRow, dump: DumpView | None, now: int) -> dict[str, Any]:
    return {
        "database": row.database,
        "table": row.name,
        "state": row.state,
        "desired": row.desired,
        "start": row.start,
        "position": position_text(_table_position(row)),
        "problem": row.problem,
        "earlier_rows_missing": row.earlier_rows_missing or "",
        "ignored_columns": row.ignored_columns or [],
        "rows": row.rows or 0,
        "bytes": row.bytes or 0,
        "freshness_us": _age(row.last_commit_timestamp_us, now),
        "last_commit_timestamp_us": row.last_commit_timestamp_us,
        "landed_at_us": row.landed_at_us,
        "engine": row.engine,
        "estimated_rows": row.estimated_rows,
        "size_bytes": row.size_bytes,
        "denied": row.denied,
        "gone": row.gone,
        "dump": dump,
    }


def _table_position(row: AnyRow) -> dict[str, Any] | None:
    """A table that flows is where its source is, unless it is ahead of it; any other is where it stopped."""
    if row.desired != Desired.SYNCING or row.failed or row.start is not None:
        position: dict[str, Any] | None = row.position
        return position
    for part in row.ahead or []:
        if [row.database, row.name] in part["tables"]:
            ahead: dict[str, Any] = part["position"]
            return ahead
    committed: dict[str, Any] | None = row.committed
    return committed


def _source_view(row: AnyRow, tables_by_state: Counter[State], now: int) -> SourceView:
    connected = is_present(bool(row.connected), row.seen_at_us or 0, now)
    is_current = connected and _is_current(row.health_at_us or 0, row.connected_at_us, now)
    return SourceView(
        source=row.name,
        agent=row.agent,
        connected=connected,
        gateway=row.gateway if row.gateway and row.expires_at_us > now else None,
        flavor=row.flavor,
        server_version=row.server_version,
        address=row.address,
        generation=row.generation,
        problem=row.problem or row.health_problem,
        cartography_at_us=row.cartography_at_us,
        tables=dict(tables_by_state),
        dumps=row.dumps,
        lag_us=row.lag_us if is_current else None,
        freshness_us=_age(row.last_commit_timestamp_us, now),
        read_position=row.read_position or "",
        source_position=row.source_position or "",
        committed_position=position_text(row.position),
        committed_cut=row.cut or 0,
        last_commit_timestamp_us=row.last_commit_timestamp_us,
        committed_at_us=row.committed_at_us,
        rows=row.rows or 0,
        bytes=row.bytes or 0,
        transactions=row.transactions or 0,
        rows_per_second=row.rows_per_second if is_current else None,
        read_bytes_per_second=row.read_bytes_per_second if is_current else None,
    )


def _is_current(health_at_us: int, connected_at_us: int, now: int) -> bool:
    return health_at_us >= connected_at_us and now - health_at_us < HEALTH_SECONDS * 1_000_000


def _age(timestamp_us: int | None, now: int) -> int | None:
    return None if timestamp_us is None else max(0, now - timestamp_us)


def _write_cursor(database: str, name: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([database, name]).encode()).decode()


def _read_cursor(cursor: str) -> tuple[str, str]:
    try:
        database, name = json.loads(base64.urlsafe_b64decode(cursor))
        if isinstance(database, str) and isinstance(name, str) and "\x00" not in database + name:
            return database, name
    except (ValueError, TypeError):
        pass
    raise RequestInvalid("reading a page of tables", "the cursor is not one of ours", remedy="Begin without a cursor.")
