"""Failures of the control plane that an operator or a caller of the API can see.

`status` is what the API answers with, `exit_code` what a command ends with.
"""

from typing import ClassVar

from menura.errors import MenuraError


class ControlPlaneError(MenuraError):
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1


class DatabaseError(ControlPlaneError):
    pass


class DatabaseUnavailable(DatabaseError):
    """It can't be reached, or refused."""

    status = 503
    exit_code = 20
    terminal = False


class DatabaseRefused(DatabaseError):
    """It refuses these values, and will whenever they come."""

    status = 422
    exit_code = 27


class DatabaseUnsupported(DatabaseError):
    """No SQLite or PostgreSQL URL, or its driver is missing."""

    exit_code = 21


class DatabaseTooNew(DatabaseError):
    """It was written by a newer Menura."""

    exit_code = 22


class EntryOutOfOrder(ControlPlaneError):
    """Cut log entries were applied with a gap."""


class RequestError(ControlPlaneError):
    """What a caller of the API did wrong."""


class RequestInvalid(RequestError):
    status = 422
    exit_code = 2


class SourceUnknown(RequestError):
    status = 404


class TableUnknown(RequestError):
    status = 404


class PathUnknown(RequestError):
    status = 404


class SyncRunning(RequestError):
    """A sync that runs can't begin at another place."""

    status = 409


class SyncNotRunning(RequestError):
    """A dump needs the table's stream beside it."""

    status = 409


class DumpUnknown(RequestError):
    status = 404


class DumpRunning(RequestError):
    """A table has one dump at a time."""

    status = 409


class DumpOver(RequestError):
    status = 409


class DumpNotResumable(RequestError):
    """It is read in one snapshot, or its sync began anew."""

    status = 409


class TableDenied(RequestError):
    """The agent's local policy refuses it."""

    status = 409


class SourceNotQuarantined(RequestError):
    """Every committed cut of the source is applied."""

    status = 404


class OtherServerMissing(RequestError):
    """The source waits for no acceptance."""

    status = 404


class OtherServerChanged(RequestError):
    """Another server is there than the one that was shown."""

    status = 409


class LakeUnknown(RequestError):
    status = 404


class AgentUnknown(RequestError):
    status = 404


class AgentExists(RequestError):
    status = 409


class TokenUnknown(RequestError):
    status = 404


class TokensTooMany(RequestError):
    status = 409


class CallerMissing(RequestError):
    """Nothing says who asks."""

    status = 401


class CallerUnknown(RequestError):
    """A token or a session that is not good, or not good any more."""

    status = 401


class RoleMissing(RequestError):
    """The caller is known and may not do this."""

    status = 403


class TenantUnknown(RequestError):
    """There is none of this name, or the caller has no role in it: nobody is told which."""

    status = 404


class AttemptsTooMany(RequestError):
    """Of showing tokens or links that are not good."""

    status = 429
    terminal = False


class ApiTokenUnknown(RequestError):
    status = 404


class ApiTokensTooMany(RequestError):
    status = 409


class LoginRefused(RequestError):
    """The identity provider does not say that this person may come in."""

    status = 403


class LoginProviderAway(ControlPlaneError):
    """The identity provider can't be reached, or says what can't be understood."""

    status = 503
    terminal = False


class CaMissing(RequestError):
    """No gateway has a CA, so nobody could enrol."""

    status = 409


class StageSilent(ControlPlaneError):
    """Why tables wait: shown, never raised."""

    terminal = False


class AgentAway(StageSilent):
    """The source's agent is not connected."""


class LakeSilent(StageSilent):
    """A sink says nothing."""


class LakeUntold(StageSilent):
    """A sink has not told yet which tables it has stopped."""


class CrossSiteRefused(RequestError):
    """Not this dashboard's page, not JSON, or without the session's own token."""

    status = 403


class ListenRefused(ControlPlaneError):
    """An address that is taken, or that others could reach without TLS."""

    exit_code = 23


class LoginUnusable(ControlPlaneError):
    """The settings of the identity provider."""

    exit_code = 29


class TokenFileUnusable(ControlPlaneError):
    """A file that should have a token of the API."""

    exit_code = 30


class ApiUnreachable(ControlPlaneError):
    exit_code = 24
    terminal = False


class ApiFailed(ControlPlaneError):
    """The API answered with a problem."""

    exit_code = 25


class CaUnusable(ControlPlaneError):
    """The CA's files can't be used, or are not those of the CA that agents know."""

    exit_code = 28


class ComponentFailed(ControlPlaneError):
    """A component of `menura up` doesn't come up."""

    exit_code = 26
