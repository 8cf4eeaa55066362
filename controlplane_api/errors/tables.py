"""Sources and their tables: syncs, rules, positions, quarantines."""

from controlplane_api.errors.base import RequestError


class SourceUnknown(RequestError):
    """The tenant has no source of this name."""

    status = 404
    fix = "Check the spelling, and that its agent runs and has reached the gateway."


class TableUnknown(RequestError):
    """The source's cartography does not have the table."""

    status = 404
    fix = "Check the spelling: names are case-sensitive. A connected agent sees new tables within half a minute."


class RuleUnknown(RequestError):
    """The source has no standing rule of this name."""

    status = 404
    fix = "The list of the source's rules has all names."


class RulesTooMany(RequestError):
    """The source has as many standing rules as it may."""

    status = 409
    fix = "Remove one, or take a wider pattern."


class SyncRunning(RequestError):
    """A sync that runs can't begin at another place."""

    status = 409
    fix = "Let it go on, or stop the table first."


class SyncNotRunning(RequestError):
    """The table is not synced, and this needs its stream."""

    status = 409
    fix = "Start the table's sync."


class OffsetUnknown(RequestError):
    """The table has no position that could be altered: its sync has never begun."""

    status = 409
    fix = "Start its sync at that position."


class TableDenied(RequestError):
    """The agent's local policy refuses the table, and the control plane can't widen it."""

    status = 409
    fix = "Change the filter in the agent's configuration."


class TablesTooMany(RequestError):
    """The source has as many synced tables as an agent takes of one."""

    status = 409
    fix = "Stop some, or give the server's other databases to a source of their own."


class SourceNotQuarantined(RequestError):
    """Every committed cut of the source is applied."""

    status = 404
    fix = "Nothing needs to be done."


class OtherServerMissing(RequestError):
    """The source waits for no acceptance."""

    status = 404
    fix = "Nothing needs to be done."


class OtherServerChanged(RequestError):
    """Another server is there than the one that was shown."""

    status = 409
    fix = "Read which server is there, and decide again."
