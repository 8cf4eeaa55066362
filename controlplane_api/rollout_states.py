"""The closed sets of a rollout's life, and why an agent of one is where it is.

A rollout: running <-> paused; running, paused -> halted -> running; any of them -> cancelling -> cancelled; running ->
done. An agent: waiting -> offered -> downloading -> installing -> done or failed; a report may leave steps out. An
offer that no host has answered is withdrawn, to waiting, when its rollout halts, pauses or is cancelled. Failed becomes
waiting when the rollout goes on, and done when the agent says that it runs the version after all.
"""

from enum import StrEnum


class RolloutState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    HALTED = "halted"
    #: what is in work on hosts ends; nothing else does
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    DONE = "done"


class AgentState(StrEnum):
    WAITING = "waiting"
    OFFERED = "offered"
    DOWNLOADING = "downloading"
    INSTALLING = "installing"
    DONE = "done"
    FAILED = "failed"


#: of rollouts that are looked after
OPEN = (RolloutState.RUNNING, RolloutState.PAUSED, RolloutState.HALTED, RolloutState.CANCELLING)
#: of agents that have an order
IN_WORK = (AgentState.OFFERED, AgentState.DOWNLOADING, AgentState.INSTALLING)
#: what an agent says where its host has no order of that generation any more
ANSWERS = ("RUNNING", "ROLLED_BACK", "REFUSED")


class Reason(StrEnum):
    """Why an agent is where it is, with a remedy in `REMEDIES`. Stable: operators and scripts go by them."""

    RUNS_VERSION = "RUNS_VERSION"
    NOT_CONNECTED = "NOT_CONNECTED"
    REVOKED = "REVOKED"
    #: connected, and never said a version: older software, which can't be upgraded from afar
    VERSION_NOT_SAID = "VERSION_NOT_SAID"
    NOT_A_PACKAGE = "NOT_A_PACKAGE"
    NO_PACKAGE = "NO_PACKAGE"
    NO_WAY_BACK = "NO_WAY_BACK"
    #: an order of a rollout before is still in work there
    OTHER_ORDER = "OTHER_ORDER"
    GROUP_WAITS = "GROUP_WAITS"
    #: others of its group are in work, as many as may be
    TURN_WAITS = "TURN_WAITS"
    #: its rollout is paused, halted or over
    NOT_OFFERED = "NOT_OFFERED"
    OFFERED = "OFFERED"
    DOWNLOADING = "DOWNLOADING"
    INSTALLING = "INSTALLING"
    #: the host or the agent does not do it
    REFUSED = "REFUSED"
    ROLLED_BACK = "ROLLED_BACK"
    #: it ran the version, and runs another one now
    OTHER_VERSION = "OTHER_VERSION"
    #: did not say within its time what became of the order
    NOT_RETURNED = "NOT_RETURNED"


REMEDIES = {
    Reason.NOT_CONNECTED: "Start the agent on its host, or let nobody wait for it: menura upgrade skip AGENT",
    Reason.REVOKED: "Enrol the agent anew if it shall run again",
    Reason.VERSION_NOT_SAID: "Install the package on its host once, by hand; from then on it is upgraded from here",
    Reason.NOT_A_PACKAGE: "Install the agent on its host from a package: deb, rpm or archive",
    Reason.NO_PACKAGE: "Add packages that have one for its form and machine: menura upgrade add DIR",
    Reason.NO_WAY_BACK: "Add the packages of the version that it runs: menura upgrade add DIR",
    Reason.OTHER_ORDER: "Wait until its host is done with the order before",
    Reason.OTHER_VERSION: "Ask who has changed it on its host; or let nobody wait for it: menura upgrade skip AGENT",
    Reason.REFUSED: "Do what the agent's own words say, then go on: menura upgrade resume",
    Reason.ROLLED_BACK: "The former version runs. Read the agent's own words, then go on or go back: menura upgrade"
    " resume, menura upgrade back",
    Reason.NOT_RETURNED: "Look on its host: systemctl status menura-agent; then menura upgrade resume",
}
#: of one that can't have an order before somebody does something; its group goes on without it
LEFT_OUT = frozenset(
    {Reason.REVOKED, Reason.VERSION_NOT_SAID, Reason.NOT_A_PACKAGE, Reason.NO_PACKAGE, Reason.NO_WAY_BACK}
)
