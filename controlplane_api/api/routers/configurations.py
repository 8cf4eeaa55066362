"""How sources are configured: one by one, and as a fleet that a file describes."""

from collections import Counter

from fastapi import APIRouter
from menura.errors import MenuraError
from menura.instants import now_us
from sqlalchemy import Connection

from controlplane_api import fleet_views, fleets, source_configurations
from controlplane_api.api import configuration_queries
from controlplane_api.api.openapi import refusals
from controlplane_api.api.paths import ControlDatabase, SourceName, TenantName
from controlplane_api.api.requests import ConfigurationRemove, FleetRequest, SourceConfigure, SourceOfFleet
from controlplane_api.api.routers.outcomes import dump_options
from controlplane_api.api.views import ConfigurationChanged, ConfigurationView, FleetChange, FleetPlan, RefusalView
from controlplane_api.api.writing import KEYED, Write
from controlplane_api.errors import (
    AgentUnknown,
    ConfigurationRefused,
    ConfigurationTooLarge,
    SourceConfigured,
    SourceNotConfigured,
    SourceSyncing,
)
from controlplane_api.fleets import Change, Fleet, FleetSource, FleetTable
from controlplane_api.identity import agents, audit
from controlplane_api.states import Action, StartKind
from controlplane_api.wanted_tables import Wanted

router = APIRouter(prefix="/api/v1/tenants/{tenant}", tags=["fleet"])

OF_FLEET = refusals(ConfigurationRefused, ConfigurationTooLarge, SourceSyncing)


@router.get("/sources/{source}/configuration", responses=refusals(SourceNotConfigured))
def get_configuration(tenant: TenantName, source: SourceName, database: ControlDatabase) -> ConfigurationView:
    """What is desired, and beside it what its agent runs."""
    with database.read() as connection:
        return configuration_queries.configuration(connection, tenant, source, now_us())


@router.post(
    "/sources/{source}/configuration",
    responses=refusals(
        AgentUnknown, ConfigurationRefused, ConfigurationTooLarge, SourceConfigured, SourceNotConfigured, *KEYED
    ),
)
def configure_source(
    tenant: TenantName, source: SourceName, request: SourceConfigure, write: Write
) -> ConfigurationChanged:
    """The source is this agent's from now on, configured so; it is made where it is new."""
    text = source_configurations.checked_text(source, request.configuration)

    def act(connection: Connection) -> ConfigurationChanged:
        agent = agents.agent_row(connection, tenant, request.agent)
        done = source_configurations.configure(connection, agent.tenant_id, source, agent.id, text, request.before)
        if done.change:
            what = f"{source} of agent {request.agent}"
            audit.record(connection, tenant, write.actor, "configure source", found=what)
        return ConfigurationChanged(source=source, changed=bool(done.change), generation=done.generation)

    return write.run(ConfigurationChanged, act)


@router.post("/sources/{source}/configuration/remove", responses=refusals(SourceNotConfigured, SourceSyncing, *KEYED))
def remove_configuration(
    tenant: TenantName, source: SourceName, request: ConfigurationRemove, write: Write
) -> ConfigurationChanged:
    """Its agent stops it; what has landed, and what lakes have, stays."""

    def act(connection: Connection) -> ConfigurationChanged:
        tenant_id = configuration_queries.tenant_id(connection, tenant, source)
        source_configurations.remove(connection, tenant_id, source, stops_tables=request.stop_tables)
        audit.record(connection, tenant, write.actor, "remove source", found=source)
        return ConfigurationChanged(source=source, changed=True, generation=0)

    return write.run(ConfigurationChanged, act)


@router.post("/fleet/plan", responses=OF_FLEET)
def plan_fleet(tenant: TenantName, request: FleetRequest, database: ControlDatabase) -> FleetPlan:
    """What an apply of the same would do now; nothing is changed."""
    fleet = _fleet(request)
    with database.write() as connection, connection.begin_nested() as undone:
        plan = _applied(connection, tenant, fleet, request)
        undone.rollback()
    return plan.model_copy(update={"applied": False})


@router.post("/fleet/apply", responses=OF_FLEET | refusals(*KEYED))
def apply_fleet(tenant: TenantName, request: FleetRequest, write: Write) -> FleetPlan:
    """All of it in one transaction, or, where something of it is refused as a whole, nothing."""
    fleet = _fleet(request)

    def act(connection: Connection) -> FleetPlan:
        plan = _applied(connection, tenant, fleet, request)
        of_tables = Counter((change.action, change.source) for change in plan.changes if change.table)
        for (action, source), number in of_tables.items():
            what = f"{number} of source {source}"
            audit.record(connection, tenant, write.actor, f"{action} tables by a fleet", found=what)
        for change in plan.changes:
            if not change.table and not (
                change.view and change.refused
            ):  # whose a source is and how it is configured, as the commands have it
                what = change.view or (f"{change.source} of agent {change.agent}" if change.source else change.agent)
                kind = "view" if change.view else "source" if change.source else "agent"
                audit.record(connection, tenant, write.actor, f"{change.action} {kind} by a fleet", found=what)
        return plan.model_copy(update={"applied": not write.dry_run})

    return write.run(FleetPlan, act)


def _fleet(request: FleetRequest) -> Fleet:
    """Raises `ConfigurationRefused`."""
    sources: dict[str, FleetSource] = {}
    for agent, of_agent in request.agents.items():
        for source, one in of_agent.sources.items():
            if source in sources:
                raise ConfigurationRefused(
                    "reading a fleet",
                    f"agents {sources[source].agent} and {agent} both have it",
                    data="Nothing was changed.",
                    remedy="Leave it with one of them: a source belongs to one agent.",
                    source=source,
                )
            text = source_configurations.checked_text(source, one.configuration)
            sources[source] = FleetSource(source, agent, text, _tables(one))
    return Fleet(tuple(sorted(request.agents)), tuple(sources.values()))


def _tables(source: SourceOfFleet) -> tuple[FleetTable, ...] | None:
    if source.tables is None:
        return None
    return tuple(
        FleetTable((table.database, table.table), Wanted(StartKind(table.start), dump_options(table.dump)))
        for table in source.tables
    )


def _applied(connection: Connection, tenant: str, fleet: Fleet, request: FleetRequest) -> FleetPlan:
    done = fleets.apply(connection, tenant, fleet, prune=request.prune)
    if request.views is not None:
        texts = {name: view.text for name, view in request.views.items()}
        done += fleet_views.apply(connection, tenant, texts, prune=request.prune)
    views = [(change.action, _change(change)) for change in done]
    return FleetPlan(
        tenant=tenant,
        applied=True,
        changes=[view for action, view in views if action is not Action.KEEP],
        kept=[view for action, view in views if action is Action.KEEP],
    )


def _change(change: Change) -> FleetChange:
    database, table = change.table or ("", "")
    return FleetChange(
        action=change.action,
        agent=change.agent,
        source=change.source,
        database=database,
        table=table,
        view=change.view,
        detail=change.detail,
        estimated_rows=change.rows,
        estimated_bytes=change.bytes,
        refused=None if change.refused is None else _refusal(change.refused),
    )


def _refusal(error: MenuraError) -> RefusalView:
    names = ("code", "doing", "found", "data", "remedy")
    return RefusalView(**{name: getattr(error, name) for name in names})
