"""One truth about a table: the worst of what its source, the gateway and the lakes say. Pure.

A table's changes go through three stages: the source is read (server and agent), what was read lands (gateway), what
has landed goes into lakes (sinks). Comes in: what the database knows of each stage of a source. Goes out: a
`Standing`, which holds for all tables of the source whose syncs run. A source in quarantine, or a sink that has ended
with an error, fails them; a stage that says nothing or is in error lets them wait, and `problem` says why; of several
the first one counts. So no table streams while a stage of it stands still.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from menura.errors import MenuraError
from menura.instants import instant_text

from controlplane_api.api.views import LakeView
from controlplane_api.documents import Document
from controlplane_api.errors import AgentAway, LakeSilent, LakeUntold
from controlplane_api.states import LakeState, Stage, State
from gateway.errors import LandingFailed
from gateway.registry import Problem

#: a lake that is further behind what has landed is catching up
BEHIND_SECONDS = 60
#: problems of a source that is read and does not land; the agent's words for what a gateway says
_OF_GATEWAY = (LandingFailed.code, "GATEWAY_REFUSED", "GATEWAY_REFUSED_FOR_NOW")
#: of tables whose syncs run
MOVING = (State.PENDING, State.WAITING, State.CATCHING_UP, State.STREAMING, State.DUMPING)


@dataclass(frozen=True, slots=True)
class Standing:
    """What holds up the tables of a source; `state` None: nothing does."""

    state: State | None = None
    stage: Stage | None = None
    problem: Document | None = None

    def of(self, state: State) -> State:
        """What a table's own state is under it."""
        if self.state is None or state not in MOVING:
            return state
        if self.state is State.CATCHING_UP and state is not State.STREAMING:
            return state
        return self.state


UNHINDERED = Standing()


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """What is known of a source but for its lakes."""

    source: str
    #: its agent's name; None where none has announced it
    agent: str | None
    connected: bool
    seen_at_us: int
    problem: Document | None
    #: why committed cuts are held back
    quarantine: Document | None = None


def standing(source: SourceSeen, lakes: Sequence[LakeView]) -> Standing:
    """The worst of a source's stages."""
    if source.quarantine is not None:
        return Standing(State.FAILED, Stage.GATEWAY, source.quarantine)
    for lake in lakes:
        if lake.state is LakeState.FAILED:
            return Standing(State.FAILED, Stage.LAKE, None if lake.problem is None else lake.problem.model_dump())
    problem = source.problem
    if problem is not None and (problem["terminal"] or source.connected):
        return Standing(State.WAITING, _stage_of(problem), problem)
    if not source.connected:
        return Standing(State.WAITING, Stage.SOURCE, agent_away(source))
    for lake in lakes:
        if lake.state is LakeState.UNKNOWN:
            return Standing(State.WAITING, Stage.LAKE, None if lake.problem is None else lake.problem.model_dump())
    if any((lake.landing_lag_us or 0) > BEHIND_SECONDS * 1_000_000 for lake in lakes):
        return Standing(State.CATCHING_UP, Stage.LAKE)
    return UNHINDERED


def _stage_of(problem: Document) -> Stage:
    return Stage.GATEWAY if problem["code"] in _OF_GATEWAY else Stage.SOURCE


def agent_away(source: SourceSeen) -> Document:
    if source.agent is None:
        found, at_us = "no agent has announced it", 0
    else:
        found, at_us = f"its agent {source.agent} is not connected", source.seen_at_us
        found += f" and was last heard of {instant_text(at_us)}"
    away = AgentAway(
        "reading the source",
        found,
        data="Nothing is lost as long as the server keeps its log",
        remedy="Start the agent (menura agent run); where it runs, its log says why it does not reach the gateway",
        source=source.source,
    )
    return problem_of(away, at_us)


def lake_silent(lake: str, received_at_us: int) -> Document:
    """Why nothing is known of a lake."""
    since = f"its sink has said nothing since {instant_text(received_at_us)}"
    silent = LakeSilent(
        f"following lake {lake}",
        since if received_at_us else "its sink has not said anything yet",
        data="What has landed is kept for it, also beyond the gateways' --keep-landing-hours; how much of it is in the"
        " lake is not known",
        remedy="See whether the sink runs (menura sink run --api ...) and what its log says; forget a lake that is no"
        f" more: menura lakes --forget {lake}",
    )
    return problem_of(silent, received_at_us)


def lake_untold(lake: str, received_at_us: int) -> Document:
    """Why it is not known which tables of a lake stand."""
    untold = LakeUntold(
        f"following lake {lake}",
        "its sink has not told yet which tables it has stopped",
        remedy="Wait: it does so with its next reports",
    )
    return problem_of(untold, received_at_us)


def problem_of(error: MenuraError, at_us: int) -> Document:
    return asdict(Problem(error.code, str(error), error.terminal, at_us))
