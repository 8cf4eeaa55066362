"""What agents run, the packages that there are, and rollouts."""

from controlplane_api.api.views.base import View
from controlplane_api.api.views.problems import ProblemView
from controlplane_api.rollout_states import AgentState, Reason, RolloutState


class PackageView(View):
    name: str
    #: "deb", "rpm" or "tar"
    format: str
    machine: str
    sha256: str
    size_bytes: int
    #: that have come; an upload goes on there
    received_bytes: int


class ReleaseView(View):
    """A version of the agent."""

    version: str
    #: all of it has come and has its sums: it can be ordered
    complete: bool
    size_bytes: int
    created_at_us: int
    packages: list[PackageView]
    #: agents that say that they run it
    agents: int


class Releases(View):
    releases: list[ReleaseView]


class ReleaseRemoved(View):
    version: str


class PieceStored(View):
    received_bytes: int


class RolloutGroupView(View):
    name: str
    #: how many of its agents are in each state
    agents: dict[AgentState, int]


class RolloutView(View):
    rollout: int
    #: empty: each agent's own, from before the rollout `back_of`
    version: str
    back_of: int | None
    state: RolloutState
    #: why it has halted
    problem: ProblemView | None
    groups: list[RolloutGroupView]
    #: the one that has its turn, from 0
    group: int
    wait_seconds: int
    #: of it, since the group was whole; null: it is not
    waited_seconds: int | None
    at_once: int
    most_failures: int
    within_seconds: int
    roll_back: bool
    created_by: str
    created_at_us: int
    ended_at_us: int | None


class RolloutShown(View):
    #: the newest one; null: there was none
    rollout: RolloutView | None


class RolloutAgentView(View):
    agent: str
    group: str
    state: AgentState
    reason: Reason
    #: what the agent says itself
    code: str
    message: str
    remedy: str
    #: that it shall run, and that it has said; null: none
    version: str
    runs: str | None
    format: str | None
    machine: str | None
    downloaded_bytes: int | None
    size_bytes: int | None
    connected: bool
    seen_at_us: int
    #: nobody waits for it
    skipped: bool


class RolloutReport(RolloutShown):
    """As a command prints it: with the agents that were asked for."""

    agents: list[RolloutAgentView]


class RolloutAgents(View):
    agents: list[RolloutAgentView]
    next_cursor: str | None


class PlannedAgentView(View):
    agent: str
    group: str
    runs: str | None
    #: why it could have no order now; null: it can
    reason: Reason | None
    remedy: str


class RolloutPlan(View):
    version: str
    #: of all agents of the groups: how many can have the order, and how many not, by why
    able: int
    reasons: dict[Reason, int]
    #: the first of them
    agents: list[PlannedAgentView]
    #: that no group has
    without_group: int
