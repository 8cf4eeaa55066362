"""What agents say of their software: one row for each that has said a version."""

from menura.bounds import clean_int64, clean_text
from sqlalchemy import Connection, select

from controlplane_api.documents import insert_into, problem_document
from controlplane_api.models import Agent, AgentVersion, Tenant
from gateway.registry import AgentName, VersionSeen


def record(connection: Connection, name: AgentName, seen: VersionSeen, at_us: int) -> None:
    """Of an agent that there is; what another one's name says is nobody's."""
    agent = connection.execute(
        select(Agent.id).join_from(Agent, Tenant).where(Tenant.name == name[0], Agent.name == name[1])
    ).scalar()
    if agent is None:
        return
    values = {
        "generation": clean_int64(seen.generation),
        "version": clean_text(seen.version),
        "format": clean_text(seen.format),
        "machine": clean_text(seen.machine),
        "state": seen.state,
        "downloaded_bytes": clean_int64(seen.downloaded_bytes),
        "problem": problem_document(seen.problem),
        "told_at_us": at_us,
    }
    connection.execute(
        insert_into(connection, AgentVersion)
        .values(agent_id=agent, **values)
        .on_conflict_do_update(index_elements=[AgentVersion.agent_id], set_=values)
    )
