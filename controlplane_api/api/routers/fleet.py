"""Tenants, agents and sources: who is there and how far each source is."""

from fastapi import APIRouter
from menura.instants import now_us

from controlplane_api.api import queries
from controlplane_api.api.paths import ControlDatabase, SourceName, TenantName
from controlplane_api.api.views import Agents, Fleet, Sources, SourceView, Tenants

router = APIRouter(prefix="/v1")


@router.get("/fleet")
def get_tenants(database: ControlDatabase) -> Tenants:
    """The tenants that the caller may see: all, until identities come."""
    with database.read() as connection:
        return Tenants(tenants=queries.tenants(connection))


@router.get("/tenants/{tenant}/fleet")
def get_fleet(tenant: TenantName, database: ControlDatabase) -> Fleet:
    """All that the dashboard's first screen shows."""
    with database.read() as connection:
        return Fleet(
            tenant=tenant,
            at_us=now_us(),
            agents=queries.agents(connection, tenant),
            sources=queries.sources(connection, tenant),
        )


@router.get("/tenants/{tenant}/agents")
def get_agents(tenant: TenantName, database: ControlDatabase) -> Agents:
    with database.read() as connection:
        return Agents(agents=queries.agents(connection, tenant))


@router.get("/tenants/{tenant}/sources")
def get_sources(tenant: TenantName, database: ControlDatabase) -> Sources:
    with database.read() as connection:
        return Sources(sources=queries.sources(connection, tenant))


@router.get("/tenants/{tenant}/sources/{source}")
def get_source(tenant: TenantName, source: SourceName, database: ControlDatabase) -> SourceView:
    """A source's status: lag, positions, rows, freshness, problem."""
    with database.read() as connection:
        queries.source_row(connection, tenant, source)
        return queries.sources(connection, tenant, source)[0]
