"""What moves rollouts on: a turn each few seconds, and what agents report.

Comes in: the time, and agents' words, within the caller's transaction. Goes out: rows. Whoever changes a rollout or its
agents locks the rollout's row first, before any other, so that gateways and APIs do it one after the other, and each
looks at what is there when it has the lock: no step is done twice. A kill leaves a transaction done or not begun.

Time is the rollout's own, `clock_us`: each turn adds what went by since the last look, at most `MOST_STEP_US` and never
less than nothing. So hours in which no gateway was there, and a clock that goes back, end no wait and no agent's time.
"""

from collections.abc import Sequence
from typing import Any

from menura.instants import now_us
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from controlplane_api.documents import problem_document
from controlplane_api.models import Agent, AgentVersion, AnyRow, Rollout, RolloutAgent
from controlplane_api.rollout_rows import (
    IS_BUSY,
    IS_UNANSWERED,
    Form,
    can_be_ordered,
    forms,
    holds,
    runs_it,
    with_agents,
)
from controlplane_api.rollout_states import IN_WORK, OPEN, AgentState, Reason, RolloutState
from gateway.registry import Problem, VersionSeen

TURN_US = 2_000_000
MOST_STEP_US = 10_000_000
#: between two looks at a rollout that is paused or halted, with nothing in work
REST_US = 60_000_000
#: that one turn settles, and rollouts that one call looks at
AT_ONCE = 1_000
#: a rollout that is cancelled hears so long of hosts that have an order which was withdrawn
GRACE_US = 60_000_000
ROLLOUTS_AT_ONCE = 100
#: of a group's agents that are done, one of so many may be away for a moment
AWAY_ONE_OF = 100
AWAY_US = 60_000_000
#: failed agents that a halt names
NAMED = 3
#: the group of a rollout that goes back
EVERYBODY = "everybody"
#: more than there are agents: none halts it
MOST_FAILURES = 1_000_000_000
#: of a rollout: a host has something of it in work
HAS_WORK = exists(1).where(RolloutAgent.rollout_id == Rollout.id, RolloutAgent.state.in_(IN_WORK)).correlate(Rollout)


def due(connection: Connection, at_us: int) -> Sequence[int]:
    """Rollouts that were not looked at for `TURN_US`, or for `REST_US` where nothing can come of it.

    One that seems to have been looked at later is of a clock that went back.
    """
    looked = Rollout.looked_at_us
    rests = and_(Rollout.state.in_((RolloutState.PAUSED, RolloutState.HALTED)), ~HAS_WORK)
    is_due = or_(and_(looked <= at_us - TURN_US, ~rests), looked <= at_us - REST_US, looked > at_us + TURN_US)
    statement = select(Rollout.id).where(Rollout.state.in_(OPEN), is_due)
    return connection.execute(statement.order_by(looked).limit(ROLLOUTS_AT_ONCE)).scalars().all()


def now_of(connection: Connection, at_us: int | None = None) -> int:
    """The database's own time where it has one, so that gateways' clocks do not differ; else this machine's."""
    if connection.dialect.name == "postgresql":
        seconds = func.extract("epoch", func.clock_timestamp())
        return int(connection.execute(select(cast(seconds * 1_000_000, BigInteger))).scalar_one())
    return now_us() if at_us is None else at_us


def lock(connection: Connection, rollout_id: int) -> AnyRow:
    return connection.execute(select(Rollout).where(Rollout.id == rollout_id).with_for_update()).one()


def turn(connection: Connection, rollout_id: int, at_us: int) -> bool:
    """Look after a rollout, which gets locked; false: another one has just done so, or it is over."""
    row = lock(connection, rollout_id)
    if row.state not in OPEN or at_us - TURN_US < row.looked_at_us <= at_us + TURN_US:
        return False
    clock_us = row.clock_us + max(0, min(at_us - row.looked_at_us, MOST_STEP_US))
    _put(connection, rollout_id, clock_us=clock_us, looked_at_us=at_us)
    _end_late_ones(connection, rollout_id, clock_us - row.return_us)
    halt_if_failed(connection, rollout_id)
    row = lock(connection, rollout_id)
    have = forms(connection, row.tenant_id)
    _settle(connection, row)
    in_work = count(connection, rollout_id, IN_WORK)
    if row.state == RolloutState.CANCELLING and in_work == 0 and row.clock_us - (row.whole_us or 0) >= GRACE_US:
        _put(connection, rollout_id, state=RolloutState.CANCELLED, ended_at_us=at_us)
    if row.state == RolloutState.RUNNING:
        offered = _offer(connection, row, have, row.at_once - in_work)
        if offered + in_work == 0:
            _move_on(connection, row, have, at_us)
        elif row.whole_us is not None:
            _put(connection, rollout_id, whole_us=None)
    return True


def _end_late_ones(connection: Connection, rollout_id: int, since_us: int) -> None:
    agent = RolloutAgent
    late = (agent.rollout_id == rollout_id, agent.state.in_(IN_WORK), agent.since_us <= since_us)
    problem = {"reason": Reason.NOT_RETURNED, "code": "", "message": ""}
    _update_if_any(connection, late, state=AgentState.FAILED, problem=problem)


def _update_if_any(connection: Connection, which: tuple[ColumnElement[bool], ...], **values: object) -> None:
    """A database that tells gateways of changes tells of an UPDATE of no row too."""
    if connection.execute(select(RolloutAgent.agent_id).where(*which).limit(1)).first() is not None:
        connection.execute(update(RolloutAgent).where(*which).values(**values))


def halt_if_failed(connection: Connection, rollout_id: int) -> None:
    """Nothing more is offered once more agents have failed than may; the rollout is locked."""
    row = lock(connection, rollout_id)
    if row.state not in (RolloutState.RUNNING, RolloutState.PAUSED):
        return
    failed = (RolloutAgent.state == AgentState.FAILED, RolloutAgent.skipped.is_(False))
    found = with_agents(rollout_id, Agent.name, RolloutAgent.problem).where(*failed).order_by(Agent.name)
    rows = connection.execute(found.limit(row.most_failures + 1 + NAMED)).all()
    if len(rows) <= row.most_failures:
        return
    named = ", ".join(f"{each.name} ({(each.problem or {}).get('reason', '')})" for each in rows[:NAMED])
    problem = Problem(
        "ROLLOUT_HALTED",
        f"more than {row.most_failures} agents failed: {named}. Nothing more is offered.",
        terminal=False,
        at_us=row.looked_at_us,
    )
    _put(connection, rollout_id, state=RolloutState.HALTED, problem=problem_document(problem), whole_us=None)
    withdraw(connection, rollout_id)
    if row.roll_back:
        begin_back(connection, row, row.created_by, row.looked_at_us)


def withdraw(connection: Connection, rollout_id: int) -> None:
    """Offers that no host has answered; one that has it nevertheless says so, and is in work again."""
    is_offered = (RolloutAgent.rollout_id == rollout_id, RolloutAgent.state == AgentState.OFFERED)
    _update_if_any(connection, is_offered, state=AgentState.WAITING)


def begin_back(connection: Connection, row: AnyRow, actor: str, at_us: int) -> int | None:
    """A rollout in place of a locked one, by which its agents go back to what they ran; None: none had an order.

    They are one group, without a wait, and failures do not halt it: what can go back goes back.
    """
    if row.state in OPEN:
        _put(connection, row.id, state=RolloutState.CANCELLING, whole_us=row.clock_us)
        withdraw(connection, row.id)
    agent = RolloutAgent
    changed = (agent.rollout_id == row.id, agent.former_version != "")
    if connection.execute(select(agent.agent_id).where(*changed).limit(1)).first() is None:
        return None
    values = {name: getattr(row, name) for name in ("tenant_id", "at_once", "return_us")}
    back_id: int = connection.execute(
        insert(Rollout)
        .values(
            **values, groups=[EVERYBODY], wait_us=0, version="", back_of=row.id, state=RolloutState.RUNNING,
            most_failures=MOST_FAILURES, looked_at_us=at_us, created_by=actor, created_at_us=at_us,
        )
        .returning(Rollout.id)
    ).scalar_one()  # fmt: skip
    constants = (literal(back_id).label("rollout_id"), literal(0).label("group_number"))
    state = literal(str(AgentState.WAITING)).label("state")
    former = select(*constants, state, agent.agent_id, agent.former_version).where(*changed)
    columns = ["rollout_id", "group_number", "state", "agent_id", "version"]
    connection.execute(insert(agent).from_select(columns, former))
    return back_id


def _settle(connection: Connection, row: AnyRow) -> None:
    """Waiting agents of groups that have their turn which run the version already."""
    agent = RolloutAgent
    waiting = [agent.state == AgentState.WAITING, agent.group_number <= row.group_number, runs_it(), ~IS_BUSY]
    if row.back_of is not None:  # the host may have the order yet, which it is told to forget
        waiting.append(~IS_UNANSWERED)
    found = with_agents(row.id, agent.agent_id).where(*waiting).order_by(agent.agent_id).limit(AT_ONCE)
    ids = connection.execute(found).scalars().all()
    if ids:
        connection.execute(
            update(agent)
            .where(agent.rollout_id == row.id, agent.agent_id.in_(ids))
            .values(state=AgentState.DONE, since_us=row.clock_us)
        )


def _offer(connection: Connection, row: AnyRow, have: frozenset[Form], room: int) -> int:
    """How many agents have an order now that had none."""
    if room <= 0:
        return 0
    agent = RolloutAgent
    waiting = (agent.state == AgentState.WAITING, agent.group_number <= row.group_number, can_be_ordered(have))
    # the number behind an order that is not answered is that of its withdrawal
    unanswered = case((IS_UNANSWERED, 1), else_=0).label("withdrawn")
    columns = (agent.agent_id, AgentVersion.version, AgentVersion.ordered, AgentVersion.generation, unanswered)
    found = with_agents(row.id, *columns).where(*waiting).order_by(agent.group_number, agent.agent_id)
    rows = connection.execute(found.limit(min(room, AT_ONCE))).all()
    if rows:
        orders = [
            {
                "of_agent": each.agent_id,
                "to": max(each.ordered + each.withdrawn, each.generation) + 1,
                "runs": each.version,
            }
            for each in rows
        ]
        connection.execute(_ORDER, [order | {"of_rollout": row.id, "at": row.clock_us} for order in orders])
        connection.execute(_ORDERED, [{"of_agent": each["of_agent"], "to": each["to"]} for each in orders])
    return len(rows)


_ORDER = (
    update(RolloutAgent)
    .where(RolloutAgent.rollout_id == bindparam("of_rollout"), RolloutAgent.agent_id == bindparam("of_agent"))
    .values(
        state=AgentState.OFFERED,
        generation=bindparam("to"),
        since_us=bindparam("at"),
        former_version=bindparam("runs"),
        problem=None,
    )
)
_ORDERED = update(AgentVersion).where(AgentVersion.agent_id == bindparam("of_agent")).values(ordered=bindparam("to"))


def _move_on(connection: Connection, row: AnyRow, have: frozenset[Form], at_us: int) -> None:
    """To the next group, when this one is whole and has stayed well for the wait; nothing is in work."""
    agent, number = RolloutAgent, row.group_number
    of_group = (agent.group_number == number, agent.skipped.is_(False))
    is_last = number == len(row.groups) - 1
    held = with_agents(row.id, agent.agent_id).where(*of_group, agent.state == AgentState.WAITING, holds(have))
    has_any = connection.execute(with_agents(row.id, agent.agent_id).where(*of_group).limit(1)).first() is not None
    is_held = connection.execute(held.limit(1)).first() is not None
    if not is_held and is_last:
        _put(connection, row.id, state=RolloutState.DONE, ended_at_us=at_us)
        return
    done = connection.execute(_done(row.id, of_group, at_us)).one()
    is_whole = not is_held and (done.agents > 0 or not has_any)
    if not is_whole or done.unwell > 0 or done.away * AWAY_ONE_OF > done.agents:
        _put(connection, row.id, whole_us=None)
    elif row.whole_us is None and row.wait_us > 0 and has_any:
        _put(connection, row.id, whole_us=row.clock_us)
    elif not has_any or row.clock_us - (row.whole_us or 0) >= row.wait_us:
        _put(connection, row.id, group_number=number + 1, whole_us=None)


def _done(rollout_id: int, of_group: tuple[ColumnElement[bool], ...], at_us: int) -> Select[Any]:
    """Agents of a group that are done; of them those that are away, and those that are not well.

    Of a large group somebody is always away for a moment: the few that are do not begin the wait anew, before they have
    been away for `AWAY_US`.
    """
    is_away = Agent.connected.is_(False)
    unwell = or_(~runs_it(), and_(is_away, Agent.seen_at_us < at_us - AWAY_US))
    counted = (
        func.count().label("agents"),
        func.coalesce(func.sum(case((is_away, 1), else_=0)), 0).label("away"),
        func.coalesce(func.sum(case((unwell, 1), else_=0)), 0).label("unwell"),
    )
    return with_agents(rollout_id, *counted).where(*of_group, RolloutAgent.state == AgentState.DONE)


def count(connection: Connection, rollout_id: int, states: Sequence[AgentState]) -> int:
    agent = RolloutAgent
    statement = select(func.count()).where(agent.rollout_id == rollout_id, agent.state.in_(states))
    return int(connection.execute(statement).scalar_one())


def _put(connection: Connection, rollout_id: int, **values: object) -> None:
    connection.execute(update(Rollout).where(Rollout.id == rollout_id).values(**values))


def heard(state: str, generation: int, target: str, seen: VersionSeen) -> AgentState | None:
    """What an agent of a rollout becomes by its own word; None: it stays. See `rollout_states` for all that there is.

    The generation behind the order's own is that of its withdrawal: a host that had it in work already ends it so.

    >>> seen = VersionSeen(3, "0.2.0", "deb", "x86_64", "RUNNING", 0, None)
    >>> heard("installing", 3, "0.2.0", seen), heard("installing", 3, "0.3.0", seen)
    (<AgentState.DONE: 'done'>, None)
    """
    if state == AgentState.DONE or (state == AgentState.WAITING and not generation):
        return None
    if seen.state == "RUNNING":
        return AgentState.DONE if seen.version == target else None
    if not generation or seen.generation not in (generation, generation + 1):
        return None
    if seen.generation > generation and state == AgentState.FAILED:
        return None
    if seen.state in ("ROLLED_BACK", "REFUSED"):
        return AgentState.FAILED
    to = {"DOWNLOADING": AgentState.DOWNLOADING, "INSTALLING": AgentState.INSTALLING}.get(seen.state)
    order = [AgentState.WAITING, *IN_WORK]
    return to if to is not None and state in order and order.index(AgentState(state)) < order.index(to) else None


def concerned(connection: Connection, agent_id: int, seen: VersionSeen) -> list[int]:
    """Rollouts of an agent that its word changes, each of which gets locked, in order."""
    agent = RolloutAgent
    found = (
        select(agent.rollout_id, agent.state, agent.generation, agent.version)
        .join(Rollout, Rollout.id == agent.rollout_id)
        .where(agent.agent_id == agent_id, agent.state != AgentState.DONE, Rollout.state.in_(OPEN))
        .order_by(agent.rollout_id)
    )
    ids = [row.rollout_id for row in connection.execute(found) if heard(*row[1:], seen) is not None]
    for rollout_id in ids:
        lock(connection, rollout_id)
    return ids


def apply_word(connection: Connection, rollout_id: int, agent_id: int, seen: VersionSeen) -> None:
    """Of an agent of a locked rollout."""
    agent = RolloutAgent
    is_it = (agent.rollout_id == rollout_id, agent.agent_id == agent_id)
    row = connection.execute(select(agent, Rollout.clock_us).join(Rollout).where(*is_it)).one()
    to = heard(row.state, row.generation, row.version, seen)
    if to is None:
        return
    values: dict[str, Any] = {"state": to, "since_us": row.clock_us, "problem": None}
    if to == AgentState.FAILED:
        said = seen.problem
        problem = {"reason": seen.state, "code": said.code if said else "", "message": said.message if said else ""}
        values["problem"] = problem
    connection.execute(update(agent).where(*is_it).values(values))
    if to == AgentState.FAILED:
        halt_if_failed(connection, rollout_id)
