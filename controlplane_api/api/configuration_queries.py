"""A source's configuration as the API shows it: what is desired beside what runs, and one state with its reason."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import Connection, and_, func, not_, select

from controlplane_api.api.presence import is_present
from controlplane_api.api.stages import SourceSeen, agent_away, problem_of
from controlplane_api.api.views import AgentConfigurationView, ConfigurationView, ProblemView, RefusedTableView
from controlplane_api.database import LOOKUP_ROWS
from controlplane_api.documents import Document
from controlplane_api.errors import ConfigurationPending
from controlplane_api.models import Agent, AnyRow, Source, SourceConfiguration, Tenant, WantedTable
from controlplane_api.source_configurations import not_configured
from controlplane_api.states import ConfigurationState
from gateway.registry import Problem

APPLIED = "CONFIGURATION_APPLIED"
MOST_REFUSED = 100
#: configurations of an agent that are shown with it
MOST_OF_AGENT = 20
#: what says whether a configuration is met, for a SELECT of sources
CONFIGURATION = (
    SourceConfiguration.sha256,
    SourceConfiguration.effective_sha256,
    SourceConfiguration.problem.label("configuration_problem"),
    SourceConfiguration.changed_at_us,
)


def tenant_id(connection: Connection, tenant: str, source: str) -> int:
    """Raises `SourceNotConfigured` where there is none."""
    found = connection.execute(select(Tenant.id).where(Tenant.name == tenant)).scalar()
    if found is None:
        raise not_configured(source)
    return int(found)


def configuration(connection: Connection, tenant: str, source: str, now: int) -> ConfigurationView:
    """Raises `SourceNotConfigured`."""
    row = connection.execute(
        select(
            *CONFIGURATION, SourceConfiguration.document, SourceConfiguration.source_id,
            SourceConfiguration.generation, SourceConfiguration.effective_generation, SourceConfiguration.told_at_us,
            Agent.name.label("agent"), Agent.connected, Agent.seen_at_us,
        )
        .join_from(SourceConfiguration, Source, Source.id == SourceConfiguration.source_id)
        .join(Tenant, Tenant.id == Source.tenant_id)
        .outerjoin(Agent, Agent.id == Source.agent_id)
        .where(Tenant.name == tenant, Source.name == source)
    ).first()  # fmt: skip
    if row is None:
        raise not_configured(source)
    waiting = select(func.count()).select_from(WantedTable).where(WantedTable.source_id == row.source_id)
    connected = is_present(bool(row.connected), row.seen_at_us or 0, now)
    state, reason, message = _condition(row, source, connected)
    names = ("agent", "generation", "sha256", "changed_at_us", "effective_generation", "effective_sha256", "told_at_us")
    return ConfigurationView(
        source=source,
        connected=connected,
        desired=json.loads(row.document),
        state=state,
        reason=reason,
        message=message,
        wanted_tables=connection.execute(waiting).scalar_one(),
        refused_tables=_refused(connection, row.source_id),
        **{name: getattr(row, name) for name in names},
    )


def of_agents(
    connection: Connection, agent_ids: Sequence[int], now: int
) -> dict[int, tuple[list[AgentConfigurationView], int]]:
    """By agent, the first of its sources' configurations, those before that are not met, and how many it has."""
    found: dict[int, tuple[list[AgentConfigurationView], int]] = {}
    for begin in range(0, len(agent_ids), LOOKUP_ROWS):
        found |= _of_some_agents(connection, agent_ids[begin : begin + LOOKUP_ROWS], now)
    return found


def _of_some_agents(
    connection: Connection, agent_ids: Sequence[int], now: int
) -> dict[int, tuple[list[AgentConfigurationView], int]]:
    is_refused = SourceConfiguration.problem["code"].as_string().is_not(None)
    met = and_(SourceConfiguration.effective_sha256 == SourceConfiguration.sha256, not_(is_refused))
    place = func.row_number().over(partition_by=Source.agent_id, order_by=(met, Source.name)).label("place")
    ranked = (
        select(
            *CONFIGURATION, SourceConfiguration.generation, SourceConfiguration.effective_generation,
            SourceConfiguration.told_at_us, Source.name, Source.agent_id, Agent.name.label("agent"), Agent.connected,
            Agent.seen_at_us, place, func.count().over(partition_by=Source.agent_id).label("number"),
        )
        .join_from(SourceConfiguration, Source, Source.id == SourceConfiguration.source_id)
        .join(Agent, Agent.id == Source.agent_id)
        .where(Source.agent_id.in_(agent_ids))
        .subquery()
    )  # fmt: skip
    rows = connection.execute(
        select(ranked).where(ranked.c.place <= MOST_OF_AGENT).order_by(ranked.c.agent_id, ranked.c.place)
    )
    found: dict[int, tuple[list[AgentConfigurationView], int]] = {}
    for row in rows:
        views, _ = found.setdefault(row.agent_id, ([], row.number))
        state, reason, message = _condition(row, row.name, is_present(bool(row.connected), row.seen_at_us or 0, now))
        names = ("generation", "effective_generation", "changed_at_us", "told_at_us")
        said = {name: getattr(row, name) for name in names}
        views.append(AgentConfigurationView(source=row.name, state=state, reason=reason, message=message, **said))
    return found


def _refused(connection: Connection, source_id: int) -> list[RefusedTableView]:
    rows = connection.execute(
        select(WantedTable)
        .where(WantedTable.source_id == source_id, WantedTable.problem["code"].as_string().is_not(None))
        .order_by(WantedTable.database, WantedTable.name)
        .limit(MOST_REFUSED)
    )
    return [RefusedTableView(database=row.database, table=row.name, problem=ProblemView(**row.problem)) for row in rows]


def unmet(row: AnyRow, source: str, connected: bool) -> Document | None:
    """Why a source of a connected agent is not read: no configuration of it runs. None: one does, or there is none.

    The row has the columns of `SourceConfiguration`, or null for each.
    """
    if row.sha256 is None or row.effective_sha256 or not connected:
        return None
    _, reason, message = _condition(row, source, connected)
    terminal = row.configuration_problem is not None and row.configuration_problem["terminal"]
    return asdict(Problem(reason, message, terminal, row.changed_at_us))


def _condition(row: AnyRow, source: str, connected: bool) -> tuple[ConfigurationState, str, str]:
    """What is not of now is not said to be so: of an agent that is away nothing is known."""
    if not connected:
        away = agent_away(SourceSeen(source, row.agent, connected, row.seen_at_us or 0, None))
        return ConfigurationState.UNKNOWN, away["code"], away["message"]
    if row.configuration_problem is not None:
        problem = row.configuration_problem
        return ConfigurationState.REFUSED, problem["code"], problem["message"]
    if row.effective_sha256 == row.sha256:
        return ConfigurationState.APPLIED, APPLIED, ""
    pending = ConfigurationPending(
        "configuring a source",
        "its agent is connected and has not said yet what it does",
        data="What ran before goes on, if something did",
        remedy="Wait a few seconds; if this stays, the agent's log says why",
        source=source,
    )
    problem = problem_of(pending, row.changed_at_us)
    return ConfigurationState.PENDING, problem["code"], problem["message"]
