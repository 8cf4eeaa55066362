"""Tenants, agents and sources: who is there and how far each source is."""

from fastapi import APIRouter
from menura.instants import now_us
from sqlalchemy import Connection

from controlplane_api import acceptance, quarantines
from controlplane_api.api import queries, source_queries
from controlplane_api.api.paths import ControlDatabase, CurrentCaller, SourceName, TenantName
from controlplane_api.api.requests import AcceptRequest, QuarantineCommand
from controlplane_api.api.routers.outcomes import outcomes_view
from controlplane_api.api.views import (
    Accepted,
    Agents,
    Fleet,
    OtherServerView,
    Outcomes,
    ProblemView,
    QuarantineView,
    Sources,
    SourceView,
    Tenants,
)

router = APIRouter(prefix="/v1")


@router.get("/fleet")
def get_tenants(database: ControlDatabase, caller: CurrentCaller) -> Tenants:
    """The tenants that the caller may see."""
    with database.read() as connection:
        return Tenants(tenants=[view for view in queries.tenants(connection) if caller.sees(view.tenant)])


@router.get("/tenants/{tenant}/fleet")
def get_fleet(tenant: TenantName, database: ControlDatabase) -> Fleet:
    """All that the dashboard's first screen shows."""
    with database.read() as connection:
        return Fleet(
            tenant=tenant,
            at_us=now_us(),
            agents=queries.agents(connection, tenant),
            sources=source_queries.sources(connection, tenant),
        )


@router.get("/tenants/{tenant}/agents")
def get_agents(tenant: TenantName, database: ControlDatabase) -> Agents:
    with database.read() as connection:
        return Agents(agents=queries.agents(connection, tenant))


@router.get("/tenants/{tenant}/sources")
def get_sources(tenant: TenantName, database: ControlDatabase) -> Sources:
    with database.read() as connection:
        return Sources(sources=source_queries.sources(connection, tenant))


@router.get("/tenants/{tenant}/sources/{source}")
def get_source(tenant: TenantName, source: SourceName, database: ControlDatabase) -> SourceView:
    """A source's status: lag, positions, rows, freshness, problem."""
    with database.read() as connection:
        queries.source_row(connection, tenant, source)
        return source_queries.sources(connection, tenant, source)[0]


@router.get("/tenants/{tenant}/sources/{source}/other-server")
def get_other_server(tenant: TenantName, source: SourceName, database: ControlDatabase) -> OtherServerView:
    """The server that is there in place of the one that was read, and what following it would change."""
    with database.read() as connection:
        row = queries.source_row(connection, tenant, source)
        offered = acceptance.offered(connection, row.id, source)
        tables = acceptance.tables_to_read_again(connection, row.id)
        return OtherServerView(**offered, tables_to_read_again=tables)


@router.post("/tenants/{tenant}/sources/{source}/other-server/accept")
def accept_other_server(
    tenant: TenantName, source: SourceName, request: AcceptRequest, database: ControlDatabase
) -> Accepted:
    """Follow the server with the identity that was shown; no other one."""
    with database.write() as connection:
        row = queries.source_row(connection, tenant, source)
        return Accepted(changed=acceptance.accept(connection, row.id, source, request.identity))


@router.get("/tenants/{tenant}/sources/{source}/quarantine")
def get_quarantine(tenant: TenantName, source: SourceName, database: ControlDatabase) -> QuarantineView:
    """What of the source is committed and can't be applied."""
    with database.read() as connection:
        return _quarantine(connection, queries.source_row(connection, tenant, source).id, source)


@router.post("/tenants/{tenant}/sources/{source}/quarantine/retry")
def retry_quarantine(
    tenant: TenantName, source: SourceName, _request: QuarantineCommand, database: ControlDatabase
) -> QuarantineView:
    """Let the gateway apply it again."""
    with database.write() as connection:
        row = queries.source_row(connection, tenant, source)
        quarantines.retry(connection, row.id, source)
        return _quarantine(connection, row.id, source)


@router.post("/tenants/{tenant}/sources/{source}/quarantine/skip")
def skip_quarantine(
    tenant: TenantName, source: SourceName, _request: QuarantineCommand, database: ControlDatabase
) -> Outcomes:
    """Go on behind it; the tables that it names begin anew, each with a dump."""
    with database.write() as connection:
        row = queries.source_row(connection, tenant, source)
        outcomes = quarantines.skip(connection, row.id, source)
        return outcomes_view(connection, tenant, source, outcomes)


def _quarantine(connection: Connection, source_id: int, source: str) -> QuarantineView:
    row = quarantines.held_row(connection, source_id, source)
    names = ("landing", "entry", "last_entry", "cut", "last_cut")
    return QuarantineView(
        **{name: getattr(row, name) for name in names},
        problem=ProblemView(**row.problem),
        tables=quarantines.held_tables(row),
        retries=row.retry,
    )
