"""Agents, and the sources that are configured for them."""

from controlplane_api.errors.base import RequestError


class AgentUnknown(RequestError):
    """The tenant has no agent of this name."""

    status = 404
    fix = "Check the spelling, or enrol it."


class AgentExists(RequestError):
    """The tenant has an agent of this name."""

    status = 409
    fix = "Use it, or another name."


class ConfigurationRefused(RequestError):
    """A source's configuration holds a secret, or what no agent could read."""

    status = 422
    fix = (
        'Correct the setting that the problem names; a secret is {"file": NAME} or {"env": NAME} on the agent\'s host.'
    )


class FleetInvalid(RequestError):
    """A file of a command can't be read."""

    exit_code = 2
    fix = "Correct the line that the message names."


class ConfigurationTooLarge(RequestError):
    """All configurations of one agent travel together, and are too large or too many for that."""

    status = 409
    fix = "Give some sources to another agent, or list fewer tables in their filters."


class SourceConfigured(RequestError):
    """The source is configured already."""

    status = 409
    fix = "Change the source's configuration in place of adding it."


class SourceNotConfigured(RequestError):
    """The control plane has no configuration of the source: its agent's own file may have one."""

    status = 404
    fix = "Check the spelling, or add the source."


class SourceSyncing(RequestError):
    """Tables of the source are synced."""

    status = 409
    fix = "Stop them first, or let the request stop them."
