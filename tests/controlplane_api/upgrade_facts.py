"""Agents of a tenant with versions, and packages of the agent as `make packages` names them."""

import hashlib
from collections.abc import Sequence

from menura.instants import now_us
from sqlalchemy import Connection, select

from controlplane_api import agent_packages, rollout_turns, rollouts
from controlplane_api.database import Database
from controlplane_api.models import Agent, AgentPackage, AgentRelease, RolloutAgent, Tenant
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.rollouts import Group, Order
from controlplane_api.tenants import ensure_tenants
from gateway.registry import AgentSeen, Problem, VersionSeen

OLD, NEW = "0.1.0", "0.2.0"
FORMS = ("deb", "tar.gz")


def package_bytes(version: str, end: str, size_bytes: int = 300_000) -> bytes:
    """Not the same for any two."""
    return (f"{version} {end} ".encode() * size_bytes)[:size_bytes]


def release_files(version: str, ends: Sequence[str] = FORMS) -> tuple[dict[str, bytes], bytes]:
    files = {f"menura-agent-{version}-linux-x86_64.{end}": package_bytes(version, end) for end in ends}
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()
    return files, sums


def tenant_id(connection: Connection, tenant: str) -> int:
    return ensure_tenants(connection, {tenant}, 1)[tenant]


def add_release(database: Database, tenant: str, version: str, ends: Sequence[str] = FORMS) -> None:
    files, sums = release_files(version, ends)
    with database.write() as connection:
        owner = tenant_id(connection, tenant)
        sizes = {name: len(data) for name, data in files.items()}
        assert agent_packages.begin(connection, owner, sums, b"signature", sizes, 1) == version
        for name, data in files.items():
            agent_packages.append(connection, owner, version, name, 0, data, 1)
        compared = agent_packages.compare(connection, owner, version)
        assert compared.wrong is None
        assert agent_packages.settle(connection, compared, 1)


def seen(
    version: str,
    state: str = "RUNNING",
    generation: int = 0,
    form: str = "deb",
    problem: Problem | None = None,
    session: str = "",
) -> VersionSeen:
    return VersionSeen(generation, version, form, "x86_64", state, 0, problem, session)


def connect(registry: SqlRegistry, tenant: str, *agents: str, version: str | None = OLD, form: str = "deb") -> None:
    for agent in agents:
        registry.record_agent(AgentSeen(tenant, agent, f"session-{agent}", version or "", "db", (), 1))
        if version is not None:
            registry.record_version((tenant, agent), seen(version, form=form), 1)


def order(
    *groups: Group,
    wait_us: int = 0,
    at_once: int = 10,
    most_failures: int = 0,
    return_us: int = 3_600_000_000,
    roll_back: bool = False,
) -> Order:
    return Order(NEW, groups, wait_us, at_once, most_failures, return_us, roll_back)


def states(database: Database, rollout: int) -> dict[str, str]:
    """Of the rollout's agents, by name."""
    with database.read() as connection:
        found = select(Agent.name, RolloutAgent.state).join(Agent, Agent.id == RolloutAgent.agent_id)
        return {row.name: row.state for row in connection.execute(found.where(RolloutAgent.rollout_id == rollout))}


def generations(database: Database, rollout: int) -> dict[str, int]:
    with database.read() as connection:
        found = select(Agent.name, RolloutAgent.generation).join(Agent, Agent.id == RolloutAgent.agent_id)
        return {row.name: row.generation for row in connection.execute(found.where(RolloutAgent.rollout_id == rollout))}


def package_rows(connection: Connection, tenant: str) -> list[tuple[str, str, bool]]:
    found = (
        select(AgentRelease.version, AgentPackage.name, AgentRelease.complete)
        .join(AgentPackage, AgentPackage.release_id == AgentRelease.id)
        .join(Tenant, Tenant.id == AgentRelease.tenant_id)
        .where(Tenant.name == tenant)
    )
    return [(row.version, row.name, row.complete) for row in connection.execute(found)]


def halted_rollout(database: Database, registry: SqlRegistry, tenant: str = "acme") -> int:
    """Of three agents, the first of which has refused; the rollout's number."""
    for version in (OLD, NEW):
        add_release(database, tenant, version)
    connect(registry, tenant, "db-1", "db-2")
    connect(registry, tenant, "db-old", version=None)
    at_us = now_us()
    with database.write() as connection:
        wanted = order(Group("canary", ("db-1",)), Group("rest", ("db-*",)))
        rollout = rollouts.start(connection, tenant_id(connection, tenant), wanted, "admin", at_us)
        assert rollout_turns.turn(connection, rollout, at_us + rollout_turns.TURN_US)
    refused = Problem("UPGRADES_OFF", "installing: the host has no key of the packages", terminal=True, at_us=at_us)
    registry.record_version((tenant, "db-1"), seen(OLD, "REFUSED", 1, problem=refused), at_us)
    return rollout
