"""What the API shows, read from the database: one or two statements per answer, always within one tenant."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from menura.instants import now_us
from menura.naming import TableName
from sqlalchemy import ColumnElement, Connection, Row, and_, case, func, or_, select

from controlplane_api import continuity_ledger
from controlplane_api.api import configuration_queries
from controlplane_api.api.pages import ALL, page_of, read_cursor
from controlplane_api.api.presence import is_present, is_recent, presence
from controlplane_api.api.source_queries import SHOWN, STATE, Situation, situation_of
from controlplane_api.api.table_rows import fields_of, table_select, table_views
from controlplane_api.api.views import (
    Agents,
    AgentView,
    Definitions,
    DefinitionView,
    Ledger,
    LedgerEntryView,
    ProblemView,
    TableDetail,
    TableEventView,
    TableView,
    Tenants,
    TenantView,
)
from controlplane_api.errors import SourceUnknown, TableUnknown
from controlplane_api.lookups import among
from controlplane_api.models import (
    Agent,
    Source,
    SourceTable,
    Sync,
    TableDefinition,
    TableEvent,
    Tenant,
)
from controlplane_api.states import Desired, Presence, State

#: how long a refusal is shown at an agent
REFUSED_SECONDS = 120


@dataclass(frozen=True, slots=True)
class TablePage:
    tables: list[TableView]
    total: int
    next_cursor: str | None


def tenants(
    connection: Connection,
    *,
    among: Collection[str] | None = None,
    text: str = "",
    counts_tables: bool = False,
    cursor: str = "",
    limit: int,
) -> Tenants:
    """One page of tenants in order of name. `among`: those that may be seen; None: all. `text`: part of a name."""
    agents = select(func.count()).where(Agent.tenant_id == Tenant.id).correlate(Tenant).scalar_subquery()
    sources = select(func.count()).where(Source.tenant_id == Tenant.id).correlate(Tenant).scalar_subquery()
    statement = select(
        Tenant.id, Tenant.name, Tenant.created_at_us, agents.label("agents"), sources.label("sources")
    ).order_by(Tenant.name)
    if among is not None:
        statement = statement.where(Tenant.name.in_(among))
    if text:
        statement = statement.where(Tenant.name.icontains(text, autoescape=True))
    after = read_cursor(cursor, str)
    if after is not None:
        statement = statement.where(Tenant.name > after[0])
    shown, following = page_of(connection.execute(statement.limit(limit + 1)).all(), limit, lambda row: (row.name,))
    synced = _synced_tables(connection, [row.id for row in shown]) if counts_tables else None
    found = [
        TenantView(
            tenant=row.name,
            agents=row.agents,
            sources=row.sources,
            synced_tables=None if synced is None else synced.get(row.id, 0),
            created_at_us=row.created_at_us,
        )
        for row in shown
    ]
    return Tenants(tenants=found, next_cursor=following)


def _synced_tables(connection: Connection, tenant_ids: Collection[int]) -> dict[int, int]:
    """How many tables shall be synced, by tenant; one that has none is not there."""
    statement = (
        select(Source.tenant_id, func.count().label("tables"))
        .join(Sync, Sync.source_id == Source.id)
        .where(Source.tenant_id.in_(tenant_ids), Sync.desired == Desired.SYNCING)
        .group_by(Source.tenant_id)
    )
    return {row.tenant_id: row.tables for row in connection.execute(statement)}


def agents(
    connection: Connection,
    tenant: str,
    *,
    text: str = "",
    states: Collection[Presence] = (),
    cursor: str = "",
    limit: int = ALL,
) -> Agents:
    """One page of a tenant's agents in order of name, or all. `text`: part of an agent's name or its host's."""
    now = now_us()
    statement = select(Agent).join(Tenant).where(Tenant.name == tenant).order_by(Agent.name)
    if text:
        statement = statement.where(or_(*(of.icontains(text, autoescape=True) for of in (Agent.name, Agent.hostname))))
    if states:
        statement = statement.where(_agent_state(now).in_(states))
    after = read_cursor(cursor, str)
    if after is not None:
        statement = statement.where(Agent.name > after[0])
    rows, following = page_of(connection.execute(statement.limit(limit + 1)).all(), limit, lambda row: (row.name,))
    names: dict[int, list[str]] = defaultdict(list)
    of_tenant = select(Source.agent_id, Source.name).join(Tenant).where(Tenant.name == tenant).order_by(Source.name)
    for row in connection.execute(of_tenant):
        names[row.agent_id].append(row.name)
    configured = configuration_queries.of_agents(connection, [row.id for row in rows], now)
    found = [
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
            enrolled_at_us=row.enrolled_at_us,
            revoked_at_us=row.revoked_at_us,
            certificate_expires_at_us=row.certificate_expires_at_us,
            configurations=configured.get(row.id, ([], 0))[0],
            configured_sources=configured.get(row.id, ([], 0))[1],
            problem=_lately(row.problem, now),
        )
        for row in rows
    ]
    total, connected = (None, None) if limit == ALL else _numbers_of_agents(connection, tenant, now)
    return Agents(agents=found, total=total, connected=connected, next_cursor=following)


def _numbers_of_agents(connection: Connection, tenant: str, now: int) -> tuple[int, int]:
    """All of the tenant's, and those that are connected."""
    is_connected = case((_agent_state(now) == Presence.CONNECTED, 1), else_=0)
    statement = select(func.count(), func.sum(is_connected)).select_from(Agent).join(Tenant)
    total, connected = connection.execute(statement.where(Tenant.name == tenant)).one()
    return total, int(connected or 0)


def _agent_state(now: int) -> ColumnElement[str]:
    known = case((presence(now), Presence.CONNECTED), else_=Presence.NOT_CONNECTED)
    return case((Agent.revoked_at_us.is_not(None), Presence.REVOKED), else_=known)


def _lately(problem: dict[str, Any] | None, now: int) -> ProblemView | None:
    """One that still comes up: whoever is refused tries again within half a minute."""
    if problem is None or not is_recent(problem["at_us"], now, REFUSED_SECONDS):
        return None
    return ProblemView(**problem)


def source_row(connection: Connection, tenant: str, source: str) -> Row[int, int]:
    """Id and generation; raises `SourceUnknown`, also for another tenant's."""
    row = connection.execute(
        select(Source.id, Source.generation)
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


def has_in_name(text: str) -> ColumnElement[bool]:
    """Of a table whose DATABASE.TABLE has the text, in small letters or capitals."""
    return (SourceTable.database + "." + SourceTable.name).icontains(text, autoescape=True)


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
    now = now_us()
    held = situation_of(connection, source_id, now)
    matching = [SourceTable.source_id == source_id, SHOWN]
    if text:
        matching.append(has_in_name(text))
    if states:
        matching.append(STATE.in_([state for state in State if held.standing.of(state) in states]))
    if synced:
        matching.append(Sync.table_id.is_not(None))
    page = list(matching)
    after = read_cursor(cursor, str, str)
    if after is not None:
        database, name = after
        page.append(
            or_(
                SourceTable.database > database,
                and_(SourceTable.database == database, SourceTable.name > name),
            )
        )
    found = connection.execute(table_select().where(*page).limit(limit + 1)).all()
    shown, following = page_of(found, limit, lambda row: (row.database, row.name))
    total = connection.execute(
        select(func.count()).select_from(SourceTable).outerjoin(Sync, Sync.table_id == SourceTable.id).where(*matching)
    ).scalar_one()
    return TablePage(tables=table_views(connection, held, shown, now), total=total, next_cursor=following)


def named_tables(connection: Connection, held: Situation, names: Sequence[TableName]) -> list[TableView]:
    """Of a source those of these names that there are."""
    some = among((SourceTable.database, SourceTable.name), names)
    found = connection.execute(table_select().where(SourceTable.source_id == held.row.id, some)).all()
    return table_views(connection, held, found, now_us())


def table(connection: Connection, source_id: int, database: str, name: str) -> TableDetail:
    """Raises `TableUnknown`."""
    statement = table_select().add_columns(
        SourceTable.columns, SourceTable.keys, SourceTable.table_collation, SourceTable.foreign_keys,
        SourceTable.more_foreign_keys,
    )  # fmt: skip
    row = connection.execute(
        statement.where(SourceTable.source_id == source_id, SourceTable.database == database, SourceTable.name == name)
    ).first()
    if row is None:
        raise _table_unknown(database, name)
    now = now_us()
    held = situation_of(connection, source_id, now)
    (fields,) = fields_of(connection, held, [row], now, most_chars=0)
    return TableDetail(
        **fields,
        columns=row.columns,
        keys=row.keys,
        foreign_keys=row.foreign_keys,
        more_foreign_keys=row.more_foreign_keys,
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


def definitions(connection: Connection, source_id: int, table: TableName, cursor: str, limit: int) -> Definitions:
    """One page of what a table's definition was. Raises `TableUnknown`."""
    of_table = TableDefinition.table_id == table_id(connection, source_id, *table)
    counted = select(SourceTable.definitions, func.count(TableDefinition.id).label("kept")).outerjoin(
        TableDefinition, TableDefinition.table_id == SourceTable.id
    )
    this = (SourceTable.source_id == source_id, SourceTable.database == table[0], SourceTable.name == table[1])
    counts = connection.execute(counted.where(*this).group_by(SourceTable.id)).one()
    columns = [getattr(TableDefinition, name) for name in DefinitionView.model_fields]
    statement = select(*columns).where(of_table).order_by(TableDefinition.number.desc())
    after = read_cursor(cursor, int)
    if after is not None:
        statement = statement.where(TableDefinition.number < after[0])
    found = connection.execute(statement.limit(limit + 1)).all()
    rows, following = page_of(found, limit, lambda row: (row.number,))
    return Definitions(
        definitions=[DefinitionView(**row._mapping) for row in rows],
        dropped=counts.definitions - counts.kept,
        next_cursor=following,
    )


def ledger(connection: Connection, table_id: int, cursor: str, limit: int) -> Ledger:
    """One page of a table's continuity ledger."""
    before = read_cursor(cursor, int)
    found = continuity_ledger.newest(connection, table_id, limit + 1, None if before is None else int(before[0]))
    rows, following = page_of(found, limit, lambda row: (row.number,))
    names = LedgerEntryView.model_fields
    entries = [LedgerEntryView(**{name: getattr(row, name) for name in names}) for row in rows]
    return Ledger(entries=entries, next_cursor=following)


def _table_unknown(database: str, name: str) -> TableUnknown:
    return TableUnknown(
        "looking for a table",
        "the source's cartography does not have it",
        remedy="Check the spelling: names are case-sensitive.",
        database=database,
        table=name,
    )
