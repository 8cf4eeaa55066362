"""What agents say of their software, and which one they shall run.

Comes in: words of agents, within the caller's transaction. Goes out: one row for each that has said a version, the
steps of rollouts that its word makes, and orders with the packages that they name.
"""

from collections.abc import Collection

from menura.bounds import clean_int64, clean_text
from sqlalchemy import Connection, Select, and_, func, literal, or_, select

from controlplane_api import rollout_turns
from controlplane_api.documents import insert_into, problem_document
from controlplane_api.models import (
    Agent,
    AgentPackage,
    AgentRelease,
    AgentVersion,
    AnyRow,
    Rollout,
    RolloutAgent,
    Tenant,
)
from controlplane_api.rollout_rows import IS_UNANSWERED
from controlplane_api.rollout_states import IN_WORK, OPEN
from gateway.registry import AgentName, PackageDesired, VersionDesired, VersionSeen


def record(connection: Connection, name: AgentName, seen: VersionSeen, at_us: int) -> bool:
    """Of an agent that there is; what another one's name says is nobody's, for False.

    A report that was told before the one that is here changes nothing: a gateway may write what its stream brought
    after another gateway has written what came later. Clocks of two gateways differ, so a report of the agent's newest
    session counts too, where it answers no earlier order.
    """
    agent = connection.execute(
        select(Agent.id).join_from(Agent, Tenant).where(Tenant.name == name[0], Agent.name == name[1])
    ).scalar()
    if agent is None:
        return False
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
    rollouts = rollout_turns.concerned(connection, agent, seen)
    session = select(Agent.session).where(Agent.id == agent).scalar_subquery()
    is_newest = and_(literal(clean_text(seen.session)) == session, AgentVersion.generation <= values["generation"])
    is_later = or_(AgentVersion.told_at_us <= at_us, is_newest)
    written = connection.execute(
        insert_into(connection, AgentVersion)
        .values(agent_id=agent, **values)
        .on_conflict_do_update(index_elements=[AgentVersion.agent_id], set_=values, where=is_later)
    )
    if written.rowcount == 0:
        return True
    for rollout_id in rollouts:
        rollout_turns.apply_word(connection, rollout_id, agent, seen)
    return True


def orders(connection: Connection, names: Collection[AgentName]) -> dict[AgentName, int]:
    """Generation of each agent's order that is in work, or of the withdrawal of one that is over and not answered.

    0: its host has none. There are few, whatever there is of agents.
    """
    found = (
        select(Tenant.name.label("tenant"), Agent.name, func.max(RolloutAgent.generation).label("generation"))
        .select_from(RolloutAgent)
        .join(Agent, Agent.id == RolloutAgent.agent_id)
        .join(Tenant, Tenant.id == Agent.tenant_id)
        .where(
            RolloutAgent.state.in_(IN_WORK),
            RolloutAgent.rollout_id.in_(select(Rollout.id).where(Rollout.state.in_(OPEN))),
        )
        .group_by(Tenant.name, Agent.name)
    )
    ordered = {(row.tenant, row.name): row.generation for row in connection.execute(_withdrawn())}
    ordered.update({(row.tenant, row.name): row.generation for row in connection.execute(found)})
    return {name: ordered.get(name, 0) for name in names}


def _withdrawn() -> Select[str, str, int]:
    """Agents whose last order is not answered, with the generation that withdraws it, which no order has."""
    return (
        select(Tenant.name.label("tenant"), Agent.name, (AgentVersion.ordered + 1).label("generation"))
        .select_from(AgentVersion)
        .join(Agent, Agent.id == AgentVersion.agent_id)
        .join(Tenant, Tenant.id == Agent.tenant_id)
        .where(IS_UNANSWERED)
    )


def _withdrawal(connection: Connection, name: AgentName) -> VersionDesired | None:
    found = _withdrawn().where(Tenant.name == name[0], Agent.name == name[1])
    row = connection.execute(found).first()
    return None if row is None else VersionDesired(row.generation, None, None)


def desired(connection: Connection, name: AgentName) -> VersionDesired | None:
    """What the agent shall run, with the way back, or that its order is withdrawn.

    None: nothing is ordered, and its host has answered the last order; or a package of the two is gone.
    """
    order = connection.execute(
        select(
            RolloutAgent.generation, RolloutAgent.version, RolloutAgent.former_version, Agent.tenant_id,
            AgentVersion.format, AgentVersion.machine,
        )
        .select_from(RolloutAgent)
        .join(Rollout, Rollout.id == RolloutAgent.rollout_id)
        .join(Agent, Agent.id == RolloutAgent.agent_id)
        .join(Tenant, Tenant.id == Agent.tenant_id)
        .join(AgentVersion, AgentVersion.agent_id == Agent.id)
        .where(Tenant.name == name[0], Agent.name == name[1], RolloutAgent.state.in_(IN_WORK), Rollout.state.in_(OPEN))
        .order_by(RolloutAgent.generation.desc())
        .limit(1)
    ).first()  # fmt: skip
    if order is None:
        return _withdrawal(connection, name)
    statement = select(AgentPackage, AgentRelease.version, AgentRelease.sums, AgentRelease.signature).join(
        AgentRelease, AgentRelease.id == AgentPackage.release_id
    )
    of_host = (
        AgentRelease.tenant_id == order.tenant_id,
        AgentRelease.complete,
        AgentPackage.format == order.format,
        AgentPackage.machine == order.machine,
        AgentRelease.version.in_((order.version, order.former_version)),
    )
    found = {row.version: row for row in connection.execute(statement.where(*of_host))}
    if found.keys() != {order.version, order.former_version}:
        return None
    return VersionDesired(order.generation, _package(found[order.version]), _package(found[order.former_version]))


def _package(row: AnyRow) -> PackageDesired:
    return PackageDesired(row.id, row.version, row.name, row.sha256, row.size_bytes, row.sums, row.signature)
