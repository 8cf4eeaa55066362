"""Rollouts as users order them: what would be done, the beginning, and what is decided while one runs.

Comes in: commands, within the caller's transaction. Goes out: rows, at which turns and reports look (`rollout_turns`).
A tenant has one rollout that is not over, but for those that end what hosts have in work. A plan is a beginning that
is rolled back. An agent that is new after the beginning is no part of it. The newest `KEPT` that are over are kept.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from controlplane_api.agent_packages import release_row
from controlplane_api.errors import RequestInvalid, RolloutRuns, RolloutUnknown
from controlplane_api.models import Agent, AgentVersion, AnyRow, Rollout, RolloutAgent
from controlplane_api.rollout_rows import AGENT_IS_BUSY, FACTS, Form, cannot, forms, with_agents
from controlplane_api.rollout_states import OPEN, AgentState, Reason, RolloutState
from controlplane_api.rollout_turns import begin_back, lock, withdraw
from controlplane_api.tenants import lock_tenant

KEPT = 20
CANARY, REST = "canary", "rest"
#: rows of one INSERT
AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    #: globs of agents' names
    patterns: tuple[str, ...]

    def matcher(self) -> re.Pattern[str]:
        """Of names that it has.

        >>> [bool(Group("eu", ("eu-*", "shop-1")).matcher().match(name)) for name in ("eu-2", "shop-1", "shop-10")]
        [True, True, False]
        """
        return re.compile("|".join(map(translate, self.patterns)))


@dataclass(frozen=True, slots=True)
class Order:
    version: str
    #: none: a canary of one agent, then the rest
    groups: tuple[Group, ...]
    wait_us: int
    at_once: int
    most_failures: int
    return_us: int
    roll_back: bool


def start(connection: Connection, tenant_id: int, order: Order, actor: str, at_us: int) -> int:
    """The rollout's number. Raises `RolloutRuns`, `ReleaseUnknown`, and `RequestInvalid` where no agent can have it."""
    lock_tenant(connection, tenant_id)
    running = connection.execute(select(Rollout.id).where(*_of(tenant_id), Rollout.state.in_(_STANDING))).scalar()
    if running is not None:
        raise RolloutRuns(
            "starting a rollout",
            f"rollout {running} is not over",
            data="Nothing was changed.",
            remedy="Wait for its end, or end it: menura upgrade cancel, menura upgrade back.",
        )
    if not release_row(connection, tenant_id, order.version).complete:
        raise _refused(f"version {order.version} has not come whole; run its menura upgrade add again")
    _forget_old(connection, tenant_id)
    agents = _agents(connection, tenant_id)
    have = forms(connection, tenant_id)
    groups = order.groups or _canary(agents, order.version, have)
    members = _members(agents, groups)
    if not any(cannot(row, order.version, have) is None for row, _ in members):
        raise _refused("no agent of its groups can be given the version now; menura upgrade start --plan says why")
    rollout_id: int = connection.execute(
        insert(Rollout)
        .values(
            tenant_id=tenant_id, version=order.version, state=RolloutState.RUNNING,
            groups=[group.name for group in groups], wait_us=order.wait_us, at_once=order.at_once,
            most_failures=order.most_failures, return_us=order.return_us, roll_back=order.roll_back,
            looked_at_us=at_us, created_by=actor, created_at_us=at_us,
        )
        .returning(Rollout.id)
    ).scalar_one()  # fmt: skip
    rows = [
        {"rollout_id": rollout_id, "agent_id": row.id, "group_number": number, "version": order.version,
         "state": AgentState.WAITING}
        for row, number in members
    ]  # fmt: skip
    for begin in range(0, len(rows), AT_ONCE):
        connection.execute(insert(RolloutAgent), rows[begin : begin + AT_ONCE])
    return rollout_id


#: of rollouts beside which no other one begins
_STANDING = tuple(state for state in OPEN if state is not RolloutState.CANCELLING)


def planned(connection: Connection, tenant_id: int, order: Order) -> list[tuple[AnyRow, str, Reason | None]]:
    """Each agent of the groups, with its group, and why it could have no order now."""
    agents, have = _agents(connection, tenant_id), forms(connection, tenant_id)
    groups = order.groups or _canary(agents, order.version, have)
    return [(row, groups[number].name, cannot(row, order.version, have)) for row, number in _members(agents, groups)]


def _agents(connection: Connection, tenant_id: int) -> Sequence[AnyRow]:
    """By name, with the columns that `cannot` reads."""
    statement = (
        select(
            Agent.id, Agent.name, Agent.connected, Agent.revoked_at_us, Agent.seen_at_us,
            AgentVersion.version.label("runs"), AgentVersion.format, AgentVersion.machine,
            AGENT_IS_BUSY.label("is_busy"),
        )
        .outerjoin(AgentVersion, AgentVersion.agent_id == Agent.id)
        .where(Agent.tenant_id == tenant_id)
        .order_by(Agent.name)
    )  # fmt: skip
    return connection.execute(statement).all()


def _canary(agents: Sequence[AnyRow], version: str, have: frozenset[Form]) -> tuple[Group, ...]:
    """The first agent that can be given the version, then the others."""
    name = next((row.name for row in agents if cannot(row, version, have) is None), None)
    rest = Group(REST, ("*",))
    return (rest,) if name is None else (Group(CANARY, (name,)), rest)


def _members(agents: Sequence[AnyRow], groups: Sequence[Group]) -> list[tuple[AnyRow, int]]:
    found, matchers = [], [group.matcher() for group in groups]
    for row in agents:
        number = next((number for number, matcher in enumerate(matchers) if matcher.match(row.name)), None)
        if number is not None:
            found.append((row, number))
    return sorted(found, key=lambda each: each[1])


def pause(connection: Connection, tenant_id: int) -> AnyRow:
    """Nothing is offered from now on, and what no host has answered is withdrawn."""
    row = _standing(connection, tenant_id)
    if row.state == RolloutState.RUNNING:
        _put(connection, row.id, state=RolloutState.PAUSED, whole_us=None)
        withdraw(connection, row.id)
    return row


def resume(connection: Connection, tenant_id: int) -> AnyRow:
    """It goes on; agents that have failed are tried again."""
    row = _standing(connection, tenant_id)
    if row.state in (RolloutState.PAUSED, RolloutState.HALTED):
        _put(connection, row.id, state=RolloutState.RUNNING, problem=None, whole_us=None)
        failed = (RolloutAgent.rollout_id == row.id, RolloutAgent.state == AgentState.FAILED)
        again = {"state": AgentState.WAITING, "problem": None}
        connection.execute(update(RolloutAgent).where(*failed, RolloutAgent.skipped.is_(False)).values(again))
    return row


def cancel(connection: Connection, tenant_id: int) -> AnyRow:
    """Nothing is offered any more. Agents stay at what they run; what is in work on a host ends as it ends."""
    row = _standing(connection, tenant_id)
    _put(connection, row.id, state=RolloutState.CANCELLING, whole_us=row.clock_us)
    withdraw(connection, row.id)
    return row


def back(connection: Connection, tenant_id: int, actor: str, at_us: int) -> int:
    """A rollout by which all agents that the newest one has changed go back to what they ran; its number."""
    lock_tenant(connection, tenant_id)
    row = lock(connection, newest(connection, tenant_id).id)
    number = begin_back(connection, row, actor, at_us)
    if number is None:
        raise _refused("the newest rollout has changed no agent")
    return number


def skip(connection: Connection, tenant_id: int, pattern: str) -> tuple[AnyRow, int]:
    """Nobody waits for these agents, and their failure counts for nothing; the rollout, and how many of it they are."""
    row = _standing(connection, tenant_id)
    names = with_agents(row.id, Agent.id, Agent.name)
    ids = [each.id for each in connection.execute(names) if fnmatchcase(each.name, pattern)]
    for begin in range(0, len(ids), AT_ONCE):
        named = RolloutAgent.agent_id.in_(ids[begin : begin + AT_ONCE])
        connection.execute(update(RolloutAgent).where(RolloutAgent.rollout_id == row.id, named).values(skipped=True))
    return row, len(ids)


def newest(connection: Connection, tenant_id: int) -> AnyRow:
    """Raises `RolloutUnknown` where there was none."""
    row = connection.execute(select(Rollout).where(*_of(tenant_id)).order_by(Rollout.id.desc()).limit(1)).first()
    if row is None:
        raise _unknown("the tenant has none")
    return row


def _standing(connection: Connection, tenant_id: int) -> AnyRow:
    """The one that is not over, locked. Raises `RolloutUnknown`."""
    found = select(Rollout.id).where(*_of(tenant_id), Rollout.state.in_(_STANDING))
    rollout_id = connection.execute(found).scalar()
    row = None if rollout_id is None else lock(connection, rollout_id)
    if row is None or row.state not in _STANDING:
        raise _unknown("none of the tenant's is under way")
    return row


def counts(connection: Connection, rollout_id: int) -> list[AnyRow]:
    """How many agents of each group are in each state."""
    agent = RolloutAgent
    statement = (
        select(agent.group_number, agent.state, func.count().label("agents"))
        .where(agent.rollout_id == rollout_id)
        .group_by(agent.group_number, agent.state)
    )
    return list(connection.execute(statement).all())


def page(connection: Connection, rollout_id: int, after: str, limit: int, *, states: Sequence[str]) -> list[AnyRow]:
    """Agents of a rollout by name, behind `after`, with what `reason` reads; `states`: none is all."""
    statement = with_agents(rollout_id, *FACTS).where(Agent.name > after).order_by(Agent.name).limit(limit)
    return list(connection.execute(statement.where(RolloutAgent.state.in_(states)) if states else statement).all())


def _forget_old(connection: Connection, tenant_id: int) -> None:
    over = select(Rollout.id).where(*_of(tenant_id), Rollout.state.not_in(OPEN))
    old = list(connection.execute(over.order_by(Rollout.id.desc()).offset(KEPT - 1)).scalars())
    connection.execute(delete(RolloutAgent).where(RolloutAgent.rollout_id.in_(old)))
    connection.execute(delete(Rollout).where(Rollout.id.in_(old)))


def _of(tenant_id: int) -> tuple[Any, ...]:
    return (Rollout.tenant_id == tenant_id,)


def _put(connection: Connection, rollout_id: int, **values: object) -> None:
    connection.execute(update(Rollout).where(Rollout.id == rollout_id).values(**values))


def _unknown(found: str) -> RolloutUnknown:
    return RolloutUnknown(
        "looking for a rollout",
        found,
        data="Nothing was changed.",
        remedy="menura upgrade show says how the last one ended; menura upgrade start VERSION begins one.",
    )


def _refused(found: str) -> RequestInvalid:
    return RequestInvalid("ordering a rollout", found, data="Nothing was changed.")
