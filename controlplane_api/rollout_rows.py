"""Rows of rollouts as conditions and columns: which agents can have an order, which hold their group, and why.

The same facts serve a turn, a plan and what is shown: `reason` in Python, `can_be_ordered` and `holds` in SQL; a test
holds them together.
"""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, false, not_, or_, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, aliased

from controlplane_api.models import Agent, AgentPackage, AgentRelease, AgentVersion, AnyRow, Rollout, RolloutAgent
from controlplane_api.rollout_states import ANSWERS, IN_WORK, OPEN, AgentState, Reason, RolloutState

#: version, form and machine of a package
Form = tuple[str, str, str]
_OTHER, _OTHERS = aliased(RolloutAgent), aliased(Rollout)

#: of an agent of a rollout that is not over: its host has an order, or may have one that was withdrawn
HAS_ORDER = or_(_OTHER.state.in_(IN_WORK), and_(_OTHER.state == AgentState.WAITING, _OTHER.generation > 0))
#: the same of another rollout than the row's
IS_BUSY = (
    exists(1)
    .where(
        _OTHER.agent_id == RolloutAgent.agent_id,
        _OTHER.rollout_id != RolloutAgent.rollout_id,
        _OTHERS.id == _OTHER.rollout_id,
        _OTHERS.state.in_(OPEN),
        HAS_ORDER,
    )
    .correlate(RolloutAgent)
)
#: the same of any, by `Agent.id`
AGENT_IS_BUSY = (
    exists(1)
    .where(_OTHER.agent_id == Agent.id, _OTHERS.id == _OTHER.rollout_id, _OTHERS.state.in_(OPEN), HAS_ORDER)
    .correlate(Agent)
)
#: of an agent, by `AgentVersion`: its last order is not answered to its end, so that its host may have it still
IS_UNANSWERED = and_(
    AgentVersion.ordered > 0,
    or_(AgentVersion.generation < AgentVersion.ordered, AgentVersion.state.not_in(ANSWERS)),
)


def forms(connection: Connection, tenant_id: int) -> frozenset[Form]:
    """Of all packages of complete releases."""
    statement = (
        select(AgentRelease.version, AgentPackage.format, AgentPackage.machine)
        .join(AgentPackage, AgentPackage.release_id == AgentRelease.id)
        .where(AgentRelease.tenant_id == tenant_id, AgentRelease.complete)
    )
    return frozenset((row.version, row.format, row.machine) for row in connection.execute(statement))


def _there(version: ColumnElement[str], have: frozenset[Form]) -> ColumnElement[bool]:
    """Whether a package of this version is there, in the agent's form and for its machine."""
    return tuple_(version, AgentVersion.format, AgentVersion.machine).in_(sorted(have)) if have else false()


def runs_it() -> ColumnElement[bool]:
    return AgentVersion.version == RolloutAgent.version


def _can_have_packages(have: frozenset[Form]) -> ColumnElement[bool]:
    """Of one that has said a version."""
    version = (_there(RolloutAgent.version.expression, have), _there(AgentVersion.version.expression, have))
    return and_(AgentVersion.format != "", *version)


def can_be_ordered(have: frozenset[Form]) -> ColumnElement[bool]:
    """Of waiting agents, joined by `with_agents`."""
    return and_(
        Agent.connected,
        Agent.revoked_at_us.is_(None),
        AgentVersion.agent_id.is_not(None),
        not_(runs_it()),
        _can_have_packages(have),
        ~IS_BUSY,
    )


def holds(have: frozenset[Form]) -> ColumnElement[bool]:
    """Of waiting agents: their group waits for them."""
    never_said = AgentVersion.agent_id.is_(None)
    return and_(
        RolloutAgent.skipped.is_(False),
        Agent.revoked_at_us.is_(None),
        or_(
            and_(never_said, Agent.connected.is_(False)),
            and_(not_(never_said), or_(IS_BUSY, runs_it(), _can_have_packages(have))),
        ),
    )


def with_agents(rollout_id: int, *columns: ColumnElement[Any] | InstrumentedAttribute[Any]) -> Select[Any]:
    return (
        select(*columns)
        .select_from(RolloutAgent)
        .join(Agent, Agent.id == RolloutAgent.agent_id)
        .outerjoin(AgentVersion, AgentVersion.agent_id == RolloutAgent.agent_id)
        .where(RolloutAgent.rollout_id == rollout_id)
    )


#: what `reason` reads of a row
FACTS = (
    RolloutAgent.group_number,
    RolloutAgent.version.label("target"),
    RolloutAgent.state,
    RolloutAgent.problem,
    RolloutAgent.skipped,
    RolloutAgent.former_version,
    RolloutAgent.generation,
    Agent.name,
    Agent.connected,
    Agent.revoked_at_us,
    Agent.seen_at_us,
    AgentVersion.version.label("runs"),
    AgentVersion.format,
    AgentVersion.machine,
    AgentVersion.generation.label("said_generation"),
    AgentVersion.downloaded_bytes,
    or_(IS_BUSY, and_(runs_it(), IS_UNANSWERED)).label("is_busy"),
)


def cannot(row: AnyRow, target: str, have: frozenset[Form]) -> Reason | None:
    """Why an agent can have no order for this version now; None: it can. Columns as in `FACTS`."""
    if row.revoked_at_us is not None:
        return Reason.REVOKED
    if row.runs is None:
        return Reason.VERSION_NOT_SAID if row.connected else Reason.NOT_CONNECTED
    if row.is_busy:
        return Reason.OTHER_ORDER
    if row.runs == target:
        return Reason.RUNS_VERSION
    if not row.format:
        return Reason.NOT_A_PACKAGE
    if (target, row.format, row.machine) not in have:
        return Reason.NO_PACKAGE
    if (row.runs, row.format, row.machine) not in have:
        return Reason.NO_WAY_BACK
    return None if row.connected else Reason.NOT_CONNECTED


def reason(row: AnyRow, rollout: AnyRow, have: frozenset[Form]) -> Reason:
    """Why an agent of a rollout is where it is."""
    match AgentState(row.state):
        case AgentState.WAITING:
            why = cannot(row, row.target, have)
            if why is not None:
                return why
            if rollout.state != RolloutState.RUNNING:
                return Reason.NOT_OFFERED
            return Reason.GROUP_WAITS if row.group_number > rollout.group_number else Reason.TURN_WAITS
        case AgentState.FAILED:
            return Reason((row.problem or {}).get("reason", Reason.NOT_RETURNED))
        case AgentState.DONE:
            if row.runs != row.target:
                return Reason.OTHER_VERSION
            return Reason.RUNS_VERSION if row.connected else Reason.NOT_CONNECTED
        case AgentState.OFFERED | AgentState.DOWNLOADING | AgentState.INSTALLING as state:
            return Reason(state.upper())
