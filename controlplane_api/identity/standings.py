"""Who agents are, as gateways ask it: read in one statement for all that have a stream."""

from collections.abc import Sequence

from sqlalchemy import Connection, select

from controlplane_api.lookups import among
from controlplane_api.models import Agent, Source, Tenant
from gateway.registry import AgentName, Standing


def standing_of(connection: Connection, tenant: str, agent: str) -> Standing | None:
    """None: there is no such agent."""
    return standings(connection, [(tenant, agent)]).get((tenant, agent))


def standings(connection: Connection, names: Sequence[AgentName]) -> dict[AgentName, Standing]:
    """Of those that there are."""
    found: dict[AgentName, Standing] = {}
    rows = connection.execute(
        select(
            Tenant.name.label("tenant"), Agent.name, Agent.key_sha256, Agent.enrolled_at_us, Agent.revoked_at_us,
            Source.name.label("source"),
        )
        .join_from(Agent, Tenant)
        .outerjoin(Source, Source.agent_id == Agent.id)
        .where(among((Tenant.name, Agent.name), names))
    )  # fmt: skip
    sources: dict[AgentName, set[str]] = {}
    for row in rows:
        name = row.tenant, row.name
        sources.setdefault(name, set()).update(() if row.source is None else (row.source,))
        found[name] = Standing(row.key_sha256, row.enrolled_at_us is not None, row.revoked_at_us is not None)
    return {name: found[name].with_sources(frozenset(of_agent)) for name, of_agent in sources.items()}


def enrolled_elsewhere(connection: Connection, tenant: str, agent: str, sources: Sequence[str]) -> frozenset[str]:
    """Those of the sources that are another agent's, which has enrolled."""
    rows = connection.execute(
        select(Source.name)
        .join_from(Source, Agent, Agent.id == Source.agent_id)
        .join(Tenant, Tenant.id == Source.tenant_id)
        .where(
            Tenant.name == tenant,
            Source.name.in_(sources),
            Agent.name != agent,
            Agent.enrolled_at_us.is_not(None),
        )
    )
    return frozenset(row.name for row in rows)
