"""What the API shows of sources, read from the database: how far each is in each stage, and what holds its tables up.

Comes in: a tenant, and a source or none for all. Goes out: `Situation`s, which a table's state is shown under, and
`SourceView`s: a few statements whatever the number of tables.
"""

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass

from menura.instants import now_us
from menura.lake_report import TABLE_BEHIND
from sqlalchemy import ColumnElement, Connection, and_, case, func, literal, or_, select

from controlplane_api import lost_state
from controlplane_api.api import lake_queries
from controlplane_api.api.configuration_queries import CONFIGURATION, unmet
from controlplane_api.api.lake_queries import Landed
from controlplane_api.api.pages import ALL, Key, page_of, read_cursor
from controlplane_api.api.presence import is_of_connection, is_present, is_recent
from controlplane_api.api.stages import MOVING, UNHINDERED, SourceSeen, Standing, standing
from controlplane_api.api.views import LakeView, ProblemView, Sources, SourceView
from controlplane_api.documents import Document, position_text
from controlplane_api.models import (
    Agent,
    AnyRow,
    CommittedPosition,
    Dump,
    Gateway,
    LakeStop,
    Lease,
    Quarantine,
    RolloutAgent,
    Source,
    SourceConfiguration,
    SourceHealth,
    SourceTable,
    Sync,
    Tenant,
    gateway_lives,
)
from controlplane_api.rollout_states import AgentState
from controlplane_api.states import DumpEnd, State

#: figures of a heartbeat that is older say nothing about now; so many times its interval where that is above a second
HEALTH_SECONDS = 3


@dataclass(frozen=True, slots=True)
class Situation:
    """A source with its lakes, and what holds its tables up."""

    row: AnyRow
    connected: bool
    #: the agent's figures are of now
    is_current: bool
    lakes: list[LakeView]
    standing: Standing


def sources(
    connection: Connection,
    tenant: str,
    source: str | None = None,
    *,
    cursor: str = "",
    limit: int = ALL,
    now: int | None = None,
) -> Sources:
    """One page of a tenant's sources in order of name, or all, or the one of that name; as of `now`."""
    now = now_us() if now is None else now
    found = _situations(connection, tenant, now, source, read_cursor(cursor, str), limit)
    situations, following = page_of(found, limit, lambda each: (each.row.name,))
    counts = (
        select(SourceTable.source_id, STATE.label("state"), func.count().label("tables"))
        .select_from(SourceTable)
        .join(Source, Source.id == SourceTable.source_id)
        .join(Tenant)
        .outerjoin(Sync, Sync.table_id == SourceTable.id)
        .where(Tenant.name == tenant, SHOWN)
        .group_by(SourceTable.source_id, STATE)
    )
    if source is not None or cursor or following:
        counts = counts.where(Source.id.in_([each.row.id for each in situations]))
    standings = {each.row.id: each.standing for each in situations}
    tables: dict[int, Counter[State]] = defaultdict(Counter)
    for row in connection.execute(counts):
        tables[row.source_id][standings.get(row.source_id, UNHINDERED).of(State(row.state))] += row.tables
    return Sources(sources=[_source_view(each, tables[each.row.id], now) for each in situations], next_cursor=following)


def _situations(
    connection: Connection,
    tenant: str,
    now: int,
    source: str | None = None,
    after: tuple[Key, ...] | None = None,
    limit: int = ALL,
) -> list[Situation]:
    """`limit` and one more."""
    health_problem = SourceHealth.problem.label("health_problem")
    statement = (
        select(
            Source, Tenant.name.label("tenant"), Agent.name.label("agent"), Agent.connected, Agent.connected_at_us,
            Agent.seen_at_us, Agent.revoked_at_us, _UPGRADES.label("upgrades"), Lease.gateway,
            gateway_lives(literal(now)).label("gateway_lives"),
            SourceHealth.at_us.label("health_at_us"), SourceHealth.heartbeat_ms,
            SourceHealth.lag_us, SourceHealth.read_position,
            SourceHealth.source_position, SourceHealth.rows_per_second, SourceHealth.read_bytes_per_second,
            SourceHealth.credit_wait_us, SourceHealth.log_retention_seconds, SourceHealth.log_room_bytes,
            SourceHealth.log_is_unlimited,
            health_problem,
            CommittedPosition.cut, CommittedPosition.position, CommittedPosition.last_commit_timestamp_us,
            CommittedPosition.committed_at_us, CommittedPosition.rows, CommittedPosition.bytes,
            CommittedPosition.transactions, CommittedPosition.landing, CommittedPosition.entry,
            Quarantine.problem.label("quarantine"), *CONFIGURATION, _DUMPS.label("dumps"), _LOST.label("lost_tables"),
        )
        .join_from(Source, Tenant)
        .outerjoin(Agent, Agent.id == Source.agent_id)
        .outerjoin(
            Lease, and_(Lease.tenant == Tenant.name, Lease.source == Source.name, Lease.released.is_(False))
        )
        .outerjoin(Gateway, and_(Gateway.name == Lease.gateway, Gateway.run == Lease.run))
        .outerjoin(SourceHealth, SourceHealth.source_id == Source.id)
        .outerjoin(CommittedPosition, CommittedPosition.source_id == Source.id)
        .outerjoin(Quarantine, Quarantine.source_id == Source.id)
        .outerjoin(SourceConfiguration, SourceConfiguration.source_id == Source.id)
        .where(Tenant.name == tenant)
        .order_by(Source.name)
        .limit(limit + 1)
    )  # fmt: skip
    if after is not None:
        statement = statement.where(Source.name > after[0])
    if source is not None:
        statement = statement.where(Source.name == source)
    rows = connection.execute(statement).all()
    lakes = lake_queries.of_sources(connection, tenant, [_landed(row, now) for row in rows], now)
    return [_situation(row, lakes[row.name], now) for row in rows]


def _landed(row: AnyRow, now: int) -> Landed:
    lag_us = row.lag_us if is_current(row, now) else None
    return Landed(row.name, row.cut or 0, row.landing or "", row.entry or 0, row.last_commit_timestamp_us, lag_us)


def _situation(row: AnyRow, lakes: list[LakeView], now: int) -> Situation:
    connected = is_present(bool(row.connected), row.seen_at_us or 0, now)
    problem = unmet(row, row.name, connected) or row.problem or row.health_problem
    seen = SourceSeen(row.name, row.agent, connected, row.seen_at_us or 0, problem, row.quarantine)
    return Situation(row, connected, is_current(row, now), lakes, standing(seen, lakes))


def situation_of(connection: Connection, source_id: int, now: int) -> Situation:
    names = connection.execute(
        select(Tenant.name.label("tenant"), Source.name).join_from(Source, Tenant).where(Source.id == source_id)
    ).one()
    return _situations(connection, names.tenant, now, names.name)[0]


def _source_view(held: Situation, tables_by_state: Counter[State], now: int) -> SourceView:
    row = held.row
    problem = unmet(row, row.name, held.connected) or row.problem or row.health_problem
    return SourceView(
        source=row.name,
        agent=row.agent,
        connected=held.connected,
        gateway=row.gateway if row.gateway_lives else None,
        flavor=row.flavor,
        server_version=row.server_version,
        address=row.address,
        generation=row.generation,
        problem=_lost(row, now) if problem is None else ProblemView(**problem),
        warnings=[ProblemView(**warning) for warning in [*row.warnings, *_kept_back(row)]],
        stage=held.standing.stage,
        stage_problem=None if held.standing.problem is None else ProblemView(**held.standing.problem),
        lakes=held.lakes,
        cartography_at_us=row.cartography_at_us,
        tables=dict(tables_by_state),
        dumps=row.dumps,
        lag_us=row.lag_us if held.is_current else None,
        freshness_us=age(row.last_commit_timestamp_us, now),
        read_position=row.read_position or "",
        source_position=row.source_position or "",
        committed_position=position_text(row.position),
        committed_cut=row.cut or 0,
        last_commit_timestamp_us=row.last_commit_timestamp_us,
        committed_at_us=row.committed_at_us,
        rows=row.rows or 0,
        bytes=row.bytes or 0,
        transactions=row.transactions or 0,
        rows_per_second=row.rows_per_second if held.is_current else None,
        read_bytes_per_second=row.read_bytes_per_second if held.is_current else None,
        told_at_us=row.health_at_us if held.is_current else None,
        configured=row.sha256 is not None,
        log_retention_seconds=row.log_retention_seconds,
        log_room_bytes=row.log_room_bytes,
        log_is_unlimited=row.log_is_unlimited,
        health_at_us=row.health_at_us,
        credit_wait_us=row.credit_wait_us if held.is_current else None,
    )


def _kept_back(row: AnyRow) -> list[Document]:
    """Why a former configuration runs in place of the desired one."""
    return [row.configuration_problem] if row.effective_sha256 and row.configuration_problem else []


def _lost(row: AnyRow, now: int) -> ProblemView | None:
    """Where the database does not know what is wanted of the source's tables."""
    if not row.lost_tables:
        return None
    return ProblemView(**asdict(lost_state.source_problem(row.name, row.lost_tables, now)))


def is_current(row: AnyRow, now: int) -> bool:
    """Whether what the agent's last heartbeat says is of now."""
    if not is_present(bool(row.connected), row.seen_at_us or 0, now):
        return False
    health_at_us: int = row.health_at_us or 0
    of_connection = is_of_connection(health_at_us, row.connected_at_us, now)
    intervals: float = max(1.0, (row.heartbeat_ms or 0) / 1000)
    return of_connection and is_recent(health_at_us, now, HEALTH_SECONDS * intervals)


def age(timestamp_us: int | None, now: int) -> int | None:
    return None if timestamp_us is None else max(0, now - timestamp_us)


_DUMPS = (
    select(func.count())
    .where(Dump.source_id == Source.id, Dump.state == DumpEnd.RUNNING)
    .correlate(Source)
    .scalar_subquery()
)
#: its agent's host stops it to install another version
_UPGRADES = (
    select(RolloutAgent.agent_id)
    .where(RolloutAgent.agent_id == Source.agent_id, RolloutAgent.state == AgentState.INSTALLING)
    .correlate(Source)
    .exists()
)
_LOST = (
    select(func.count())
    .where(Sync.source_id == Source.id, Sync.problem["code"].as_string() == lost_state.CODE)
    .correlate(Source)
    .scalar_subquery()
)
_STOPS_IN_LAKES = (
    select(LakeStop.lake_id)
    .join(Tenant, Tenant.name == LakeStop.tenant)
    .join(Source, and_(Source.tenant_id == Tenant.id, Source.name == LakeStop.source))
    .where(
        Source.id == SourceTable.source_id,
        LakeStop.database == SourceTable.database,
        LakeStop.name == SourceTable.name,
    )
    .correlate(SourceTable)
)
_STOPPED_IN_A_LAKE = _STOPS_IN_LAKES.where(LakeStop.code != TABLE_BEHIND).exists()
_BEHIND_IN_A_LAKE = _STOPS_IN_LAKES.where(LakeStop.code == TABLE_BEHIND).exists()
#: a table's own: what its agent and the cut log say, unless a sink has stopped it, or it is behind in a lake
STATE: ColumnElement[str] = case(
    (and_(Sync.state.in_(MOVING), _STOPPED_IN_A_LAKE), State.FAILED.value),
    (and_(Sync.state == State.STREAMING.value, _BEHIND_IN_A_LAKE), State.CATCHING_UP.value),
    else_=func.coalesce(Sync.state, State.NOT_SYNCED.value),
)
#: a table that is gone interests nobody unless something of it has been synced
SHOWN = or_(SourceTable.gone.is_(False), Sync.table_id.is_not(None))
