"""Stages of which nothing is heard: of them the control plane can say no more than since when."""

from controlplane_api.errors.base import StageSilent


class AgentAway(StageSilent):
    """The source's agent is not connected."""


class ConfigurationPending(StageSilent):
    """The agent is connected and has not said yet what it does about a configuration."""


class LakeSilent(StageSilent):
    """A sink says nothing."""


class LakeUntold(StageSilent):
    """A sink has not told yet which tables it has stopped."""


class ViewHeldUp(StageSilent):
    """What a joined view reads stands still, or no lake has said anything of the view yet."""
