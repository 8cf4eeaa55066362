"""Which agents there are, with which keys, and whose each source is.

Comes in: enrolments and commands, within the caller's transaction. Goes out: rows of `agent` and `source`, at which
gateways look twice a second. A revoked agent stays revoked until a token that names it enrols another key.
"""

from collections.abc import Sequence

from menura.instants import now_us
from sqlalchemy import Connection, insert, or_, select, update

from controlplane_api.documents import insert_into
from controlplane_api.errors import AgentExists, AgentUnknown
from controlplane_api.models import Agent, AnyRow, Source, SourceConfiguration, Tenant
from controlplane_api.source_configurations import check_size
from controlplane_api.tenants import ensure_tenants, lock_tenant
from gateway.errors import AgentNameTaken

#: of one that no gateway has seen
UNSEEN = {"session": "", "version": "", "hostname": "", "connected": False, "connected_at_us": 0, "seen_at_us": 0}


def enrol(connection: Connection, tenant_id: int, agent: str, key_sha256: str, *, anew: bool, now: int) -> int:
    """The agent's id, with this key from now on. `anew`: it may be there already. Raises `AgentNameTaken`."""
    lock_tenant(connection, tenant_id)
    is_agent = (Agent.tenant_id == tenant_id, Agent.name == agent)
    enrolled = {"key_sha256": key_sha256, "enrolled_at_us": now, "revoked_at_us": None, "problem": None}
    made = (
        insert_into(connection, Agent)
        .values(tenant_id=tenant_id, name=agent, **UNSEEN, **enrolled)
        .on_conflict_do_nothing()
        .returning(Agent.id)
    )
    agent_id: int | None = connection.execute(made).scalar()
    if agent_id is None and not anew:
        raise AgentNameTaken(
            "enrolling an agent",
            f"there is an agent {agent} already, and the token enrols new ones only",
            data="Nothing was certified, and the token is still good",
            remedy=f"Enrol with another name, or with a token of menura token create --agent {agent}",
        )
    if agent_id is None:
        agent_id = connection.execute(
            update(Agent).where(*is_agent).values(**enrolled).returning(Agent.id)
        ).scalar_one()
    return agent_id


def add(connection: Connection, tenant: str, agent: str) -> None:
    """One whose certificates are of the operator's own CA, whatever its key; one that was revoked comes back.

    Raises `AgentExists` for one that has enrolled a key.
    """
    now = now_us()
    tenant_id = ensure_tenants(connection, {tenant}, now)[tenant]
    lock_tenant(connection, tenant_id)
    row = connection.execute(select(Agent).where(Agent.tenant_id == tenant_id, Agent.name == agent)).first()
    if row is None:
        connection.execute(insert(Agent).values(tenant_id=tenant_id, name=agent, enrolled_at_us=now, **UNSEEN))
    elif row.key_sha256 is None:
        connection.execute(update(Agent).where(Agent.id == row.id).values(enrolled_at_us=now, revoked_at_us=None))
    else:
        raise AgentExists(
            "adding an agent",
            f"agent {agent} has enrolled a key",
            data="Nothing was changed.",
            remedy=f"For another key: menura token create --agent {agent}.",
        )


def certified(connection: Connection, tenant: str, agent: str, expires_at_us: int) -> None:
    """The agent has got another certificate."""
    tenant_id = select(Tenant.id).where(Tenant.name == tenant).scalar_subquery()
    is_agent = (Agent.tenant_id == tenant_id, Agent.name == agent)
    connection.execute(update(Agent).where(*is_agent).values(certificate_expires_at_us=expires_at_us))


def take_new_sources(connection: Connection, tenant_id: int, agent_id: int, names: Sequence[str]) -> tuple[str, ...]:
    """The agent gets those whose names are new; returns those of the others that are not its own."""
    if not names:
        return ()
    rows = [{"tenant_id": tenant_id, "agent_id": agent_id, "name": name} for name in sorted(set(names))]
    connection.execute(insert_into(connection, Source).on_conflict_do_nothing(), rows)
    of_others = or_(Source.agent_id != agent_id, Source.agent_id.is_(None))
    found = connection.execute(
        select(Source.name).where(Source.tenant_id == tenant_id, Source.name.in_(names), of_others)
    )
    return tuple(sorted(row.name for row in found))


def assign(connection: Connection, tenant: str, source: str, agent: str) -> None:
    """The source is the agent's from now on, made where it is new. Raises `AgentUnknown`, `ConfigurationTooLarge`."""
    row = agent_row(connection, tenant, agent)
    lock_tenant(connection, row.tenant_id)
    connection.execute(
        select(Source.id).where(Source.tenant_id == row.tenant_id, Source.name == source).with_for_update()
    )
    # What of a configuration runs is not known until this agent says so.
    others = select(Source.id).where(
        Source.tenant_id == row.tenant_id, Source.name == source, Source.agent_id.is_distinct_from(row.id)
    )
    connection.execute(
        update(SourceConfiguration)
        .where(SourceConfiguration.source_id.in_(others))
        .values(effective_generation=0, effective_sha256="", problem=None, told_at_us=None)
    )
    connection.execute(update(Source).where(Source.id.in_(others)).values(told_generation=None))
    moved = update(Source).where(Source.tenant_id == row.tenant_id, Source.name == source).values(agent_id=row.id)
    if connection.execute(moved).rowcount == 0:
        connection.execute(insert(Source).values(tenant_id=row.tenant_id, agent_id=row.id, name=source))
    check_size(connection, row.id, source)


def revoke(connection: Connection, tenant: str, agent: str, now: int) -> bool:
    """False where it was revoked before. Raises `AgentUnknown`."""
    row = agent_row(connection, tenant, agent)
    changed = update(Agent).where(Agent.id == row.id, Agent.revoked_at_us.is_(None)).values(revoked_at_us=now)
    return connection.execute(changed).rowcount == 1


def agent_row(connection: Connection, tenant: str, agent: str) -> AnyRow:
    """Raises `AgentUnknown`, also for another tenant's."""
    row = connection.execute(
        select(Agent).join_from(Agent, Tenant).where(Tenant.name == tenant, Agent.name == agent)
    ).first()
    if row is None:
        raise AgentUnknown(
            "looking for an agent", f"this tenant has no agent {agent}", remedy="Check the spelling: menura agents."
        )
    return row
