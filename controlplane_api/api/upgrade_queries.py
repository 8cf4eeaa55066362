"""Releases and rollouts as the API shows them."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from controlplane_api import rollouts
from controlplane_api.api.pages import page_of, read_cursor
from controlplane_api.api.views import (
    PackageView,
    PlannedAgentView,
    ProblemView,
    ReleaseView,
    RolloutAgents,
    RolloutAgentView,
    RolloutGroupView,
    RolloutPlan,
    RolloutView,
)
from controlplane_api.models import Agent, AgentPackage, AgentRelease, AgentVersion, AnyRow, Rollout, Tenant
from controlplane_api.rollout_rows import forms, reason
from controlplane_api.rollout_states import REMEDIES, AgentState, RolloutState

#: agents that a plan lists
MOST_PLANNED = 1_000


def tenant_id(connection: Connection, tenant: str) -> int:
    """0: there is none, and nothing is its."""
    return connection.execute(select(Tenant.id).where(Tenant.name == tenant)).scalar() or 0


def releases(connection: Connection, owner: int, version: str | None = None) -> list[ReleaseView]:
    """The newest first; of one version, or all."""
    statement = select(AgentRelease).where(AgentRelease.tenant_id == owner).order_by(AgentRelease.id.desc())
    rows = connection.execute(statement if version is None else statement.where(AgentRelease.version == version)).all()
    files: dict[int, list[AnyRow]] = defaultdict(list)
    of_these = AgentPackage.release_id.in_([row.id for row in rows])
    for file in connection.execute(select(AgentPackage).where(of_these).order_by(AgentPackage.name)):
        files[file.release_id].append(file)
    running = (
        select(AgentVersion.version, func.count())
        .join(Agent, Agent.id == AgentVersion.agent_id)
        .where(Agent.tenant_id == owner, AgentVersion.version.in_([row.version for row in rows]))
        .group_by(AgentVersion.version)
    )
    agents = {row[0]: row[1] for row in connection.execute(running)}
    return [_release(row, files[row.id], agents.get(row.version, 0)) for row in rows]


def _release(row: AnyRow, files: Sequence[AnyRow], agents: int) -> ReleaseView:
    fields = ("name", "format", "machine", "sha256", "size_bytes", "received_bytes")
    packages = [PackageView(**{name: getattr(file, name) for name in fields}) for file in files]
    return ReleaseView(
        version=row.version,
        complete=row.complete,
        size_bytes=row.size_bytes,
        created_at_us=row.created_at_us,
        packages=packages,
        agents=agents,
    )


def shown(connection: Connection, owner: int) -> RolloutView | None:
    """The newest rollout of a tenant."""
    found = select(Rollout).where(Rollout.tenant_id == owner).order_by(Rollout.id.desc()).limit(1)
    row = connection.execute(found).first()
    return None if row is None else rollout(connection, row.id)


def rollout(connection: Connection, rollout_id: int) -> RolloutView:
    row = connection.execute(select(Rollout).where(Rollout.id == rollout_id)).one()
    agents: dict[int, dict[AgentState, int]] = defaultdict(dict)
    for each in rollouts.counts(connection, rollout_id):
        agents[each.group_number][AgentState(each.state)] = each.agents
    waited_us = row.clock_us - (row.whole_us or 0)
    return RolloutView(
        rollout=row.id,
        version=row.version,
        back_of=row.back_of,
        state=row.state,
        problem=None if row.problem is None else ProblemView(**row.problem),
        groups=[RolloutGroupView(name=name, agents=agents[number]) for number, name in enumerate(row.groups)],
        group=row.group_number,
        wait_seconds=row.wait_us // 1_000_000,
        waited_seconds=waited_us // 1_000_000
        if row.state == RolloutState.RUNNING and row.whole_us is not None
        else None,
        at_once=row.at_once,
        most_failures=row.most_failures,
        within_seconds=row.return_us // 1_000_000,
        roll_back=row.roll_back,
        created_by=row.created_by,
        created_at_us=row.created_at_us,
        ended_at_us=row.ended_at_us,
    )


def agents(connection: Connection, owner: int, states: Sequence[AgentState], cursor: str, limit: int) -> RolloutAgents:
    """Of the newest rollout, by name. Raises `RolloutUnknown`."""
    row = rollouts.newest(connection, owner)
    after = read_cursor(cursor, str)
    found = rollouts.page(connection, row.id, "" if after is None else str(after[0]), limit + 1, states=states)
    rows, following = page_of(found, limit, lambda each: (each.name,))
    have, sizes = forms(connection, owner), _sizes(connection, owner)
    return RolloutAgents(agents=[_agent(each, row, have, sizes) for each in rows], next_cursor=following)


def _sizes(connection: Connection, owner: int) -> dict[tuple[str, str, str], int]:
    statement = (
        select(AgentRelease.version, AgentPackage.format, AgentPackage.machine, AgentPackage.size_bytes)
        .join(AgentPackage, AgentPackage.release_id == AgentRelease.id)
        .where(AgentRelease.tenant_id == owner, AgentRelease.complete)
    )
    return {(row[0], row[1], row[2]): row[3] for row in connection.execute(statement)}


def _agent(
    each: AnyRow,
    row: AnyRow,
    have: frozenset[tuple[str, str, str]],
    sizes: dict[tuple[str, str, str], int],
) -> RolloutAgentView:
    why = reason(each, row, have)
    problem = each.problem or {}
    return RolloutAgentView(
        agent=each.name,
        group=row.groups[each.group_number],
        state=each.state,
        reason=why,
        code=problem.get("code", ""),
        message=problem.get("message", ""),
        remedy=REMEDIES.get(why, ""),
        version=each.target,
        runs=each.runs,
        format=each.format,
        machine=each.machine,
        downloaded_bytes=each.downloaded_bytes,
        size_bytes=sizes.get((each.target, each.format, each.machine)),
        connected=each.connected,
        seen_at_us=each.seen_at_us,
        skipped=each.skipped,
    )


def plan(connection: Connection, owner: int, order: rollouts.Order) -> RolloutPlan:
    found = rollouts.planned(connection, owner, order)
    whole = connection.execute(select(func.count()).where(Agent.tenant_id == owner)).scalar_one()
    listed = [
        PlannedAgentView(
            agent=row.name, group=group, runs=row.runs, reason=why, remedy="" if why is None else REMEDIES.get(why, "")
        )
        for row, group, why in found[:MOST_PLANNED]
    ]
    return RolloutPlan(
        version=order.version,
        able=sum(why is None for _, _, why in found),
        reasons=dict(Counter(why for _, _, why in found if why is not None)),
        agents=listed,
        without_group=whole - len(found),
    )
