"""What is configured for agents, as their gateways ask for it, and what agents say of it."""

from collections import defaultdict
from collections.abc import Sequence

from menura.source_configuration import digest_of
from sqlalchemy import Connection, bindparam, select, update

from controlplane_api.documents import problem_document
from controlplane_api.lookups import among
from controlplane_api.models import Agent, Source, SourceConfiguration, Tenant
from gateway.registry import AgentName, ConfigurationDigests, ConfigurationSeen, SourceConfigured


def digests(connection: Connection, names: Sequence[AgentName]) -> dict[AgentName, ConfigurationDigests]:
    """Of those agents that there are; computed anew, so that whatever changed a row is seen."""
    found: dict[AgentName, list[tuple[str, str]]] = defaultdict(list)
    reported: dict[AgentName, str] = {}
    rows = connection.execute(
        select(
            Tenant.name.label("tenant"), Agent.name, Agent.reported, Source.name.label("source"),
            SourceConfiguration.sha256,
        )
        .join_from(Agent, Tenant)
        .outerjoin(Source, Source.agent_id == Agent.id)
        .outerjoin(SourceConfiguration, SourceConfiguration.source_id == Source.id)
        .where(among((Tenant.name, Agent.name), names))
    )  # fmt: skip
    for row in rows:
        reported[row.tenant, row.name] = row.reported
        if row.sha256 is not None:
            found[row.tenant, row.name].append((row.source, row.sha256))
    return {name: ConfigurationDigests(digest_of(found[name]), last) for name, last in reported.items()}


def of_agent(connection: Connection, name: AgentName) -> tuple[SourceConfigured, ...]:
    rows = connection.execute(
        select(Source.name, SourceConfiguration)
        .join_from(SourceConfiguration, Source, Source.id == SourceConfiguration.source_id)
        .join(Agent, Agent.id == Source.agent_id)
        .join(Tenant, Tenant.id == Agent.tenant_id)
        .where(Tenant.name == name[0], Agent.name == name[1])
        .order_by(Source.name)
    )
    return tuple(SourceConfigured(row.name, row.generation, row.sha256, row.document) for row in rows)


def record(
    connection: Connection, name: AgentName, seen: Sequence[ConfigurationSeen], reported: str, at_us: int
) -> None:
    """Of sources that are the agent's own; what it says of others is nobody's."""
    agent = connection.execute(
        select(Agent.id).join_from(Agent, Tenant).where(Tenant.name == name[0], Agent.name == name[1])
    ).scalar()
    if agent is None:
        return
    connection.execute(update(Agent).where(Agent.id == agent).values(reported=reported))
    own = {
        row.name: row.id for row in connection.execute(select(Source.name, Source.id).where(Source.agent_id == agent))
    }
    values = [
        {"of_source": own[one.source], "to_generation": one.generation, "to_sha256": one.sha256,
         "to_problem": problem_document(one.problem), "at": at_us}
        for one in seen
        if one.source in own
    ]  # fmt: skip
    if values:
        connection.execute(_UPDATE, values)


_UPDATE = (
    update(SourceConfiguration)
    .where(SourceConfiguration.source_id == bindparam("of_source"))
    .values(
        effective_generation=bindparam("to_generation"),
        effective_sha256=bindparam("to_sha256"),
        problem=bindparam("to_problem"),
        told_at_us=bindparam("at"),
    )
)
