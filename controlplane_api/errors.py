"""Failures of the control plane that an operator or a caller of the API can see.

`status` is what the API answers with, `exit_code` what a command ends with. A class's docstring and `fix` are the page
that the API has of its problem type (`api.problem_types`): the cause, and what mends it, for any case of it.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from menura.errors import MenuraError


class ControlPlaneError(MenuraError):
    status: ClassVar[int] = 500
    #: 0: nobody knows when it would be answered
    retry_after_seconds: ClassVar[int] = 0
    fix: ClassVar[str] = ""
    exit_code: ClassVar[int] = 1


class DatabaseError(ControlPlaneError):
    pass


class DatabaseUnavailable(DatabaseError):
    """The control plane's database can't be reached, or refused."""

    status = 503
    exit_code = 20
    terminal = False
    fix = "Repeat the request later; the operator finds the reason in the API's log."


class DatabaseRefused(DatabaseError):
    """The control plane's database refuses these values, and will whenever they come."""

    status = 422
    exit_code = 27
    fix = "Check the names and numbers of the request; if they are right, report it."


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

    @property
    def complaints(self) -> Sequence[Mapping[str, object]]:
        """What is wrong, and where: fields of `api.views.InvalidView`."""
        return ()


class RequestInvalid(RequestError):
    """The request is not one that the document describes."""

    status = 422
    exit_code = 2
    fix = "`errors` says what is wrong, and where: a pointer into the body, or a parameter."


class SourceUnknown(RequestError):
    """The tenant has no source of this name."""

    status = 404
    fix = "Check the spelling, and that its agent runs and has reached the gateway."


class TableUnknown(RequestError):
    """The source's cartography does not have the table."""

    status = 404
    fix = "Check the spelling: names are case-sensitive. A connected agent sees new tables within half a minute."


class PathUnknown(RequestError):
    """No resource has this path."""

    status = 404
    fix = "The OpenAPI document has all paths."


class MethodUnknown(RequestError):
    """The resource does not have this method."""

    status = 405
    fix = "The header Allow has those that it has."


class ProblemUnknown(RequestError):
    """No type of problem has this name."""

    status = 404
    fix = "The list of problems has all types."


class PreconditionFailed(RequestError):
    """What is there is no longer what the caller has seen: its ETag is another one than If-Match says."""

    status = 412
    fix = "Read it again, and decide anew."


class PreconditionMissing(RequestError):
    """What the request changes is dangerous, and the request does not say which state of it its caller has seen."""

    status = 428
    fix = "Read it, and send its ETag as If-Match; or plan with dry_run=true."


class IdempotencyKeyReused(RequestError):
    """Another request came with this Idempotency-Key before."""

    status = 422
    fix = "Make a new key for each request, and send it again only with the same one."


class AnswerNotKept(RequestError):
    """The request with this Idempotency-Key was carried out before, and its answer was too large to be kept."""

    status = 409
    fix = "Read what it has changed; nothing was done a second time."


class PackageInvalid(RequestError):
    """What shall be stored is no version of the agent as `make packages` writes it, or its bytes have another sum."""

    status = 422
    fix = "Send the folder that make packages has written, unchanged, with SHA256SUMS and its signature."


class UploadOutOfOrder(RequestError):
    """Bytes of a package came before those that stand in front of them."""

    status = 409
    fix = "Announce the version again: the answer says how many bytes of each file are here."


class ReleaseUnknown(RequestError):
    """The tenant has no such version of the agent."""

    status = 404
    fix = "The list of packages has all versions."


class ReleasesTooMany(RequestError):
    """The tenant has as many versions of the agent, or as many bytes of them, as it may."""

    status = 409
    fix = "Remove a version that no agent needs."


class ReleaseInUse(RequestError):
    """A rollout that is not over needs the version, or may need it as the way back."""

    status = 409
    fix = "Wait for the rollout's end, or cancel it."


class RolloutRuns(RequestError):
    """The tenant has a rollout that is not over."""

    status = 409
    fix = "Wait for its end, or cancel it."


class RolloutUnknown(RequestError):
    """The tenant has no rollout, or none that is under way."""

    status = 404
    fix = "Show the last one, or start one."


class RuleUnknown(RequestError):
    """The source has no standing rule of this name."""

    status = 404
    fix = "The list of the source's rules has all names."


class RulesTooMany(RequestError):
    """The source has as many standing rules as it may."""

    status = 409
    fix = "Remove one, or take a wider pattern."


class OperationUnknown(RequestError):
    """The source has no operation of this name; the oldest ones are forgotten."""

    status = 404
    fix = "The list of the source's operations has all names."


class StreamsTooMany(RequestError):
    """As many streams of events are open at this API as it holds."""

    status = 429
    terminal = False
    fix = "Close one, or open it later; the table's own page has its last events too."


class BodiesTooMany(RequestError):
    """Of the caller, its tenant or all, as many bodies of requests are on their way or in work as this API holds."""

    status = 429
    terminal = False
    retry_after_seconds = 1
    fix = "Repeat it after the time that Retry-After says; send requests one after the other, and each without a pause."


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


class DumpUnknown(RequestError):
    """The source has no dump of this name."""

    status = 404
    fix = "The list of dumps has all names."


class DumpRunning(RequestError):
    """A table has one dump at a time."""

    status = 409
    fix = "Wait for the end of the one that runs, or cancel it."


class VerificationImpossible(RequestError):
    """The table can't be compared with its lake now, or at all."""

    status = 409
    fix = "Do what the answer says, or compare the table by a query."


class RepairImpossible(RequestError):
    """Ranges of the table can't be read again by themselves now, or at all."""

    status = 409
    fix = "Verify the table anew, or have all of it read again."


class DumpOver(RequestError):
    """The dump is over."""

    status = 409
    fix = "Begin a new one if the table needs it."


class DumpNotResumable(RequestError):
    """The dump is read in one snapshot, or its sync began anew."""

    status = 409
    fix = "Let it run, or begin a new one."


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


class LakeUnknown(RequestError):
    """No sink of this name has reported."""

    status = 404
    fix = "The list of lakes has all names."


class ViewUnknown(RequestError):
    """The tenant has no joined view of this name."""

    status = 404
    fix = "The list of views has all names."


class ViewExists(RequestError):
    """The tenant has a joined view of this name."""

    status = 409
    fix = "Change it, or take another name."


class ViewInUse(RequestError):
    """Another joined view reads this one, and could not go on."""

    status = 409
    fix = "Change or drop that one first."


class ViewsTooMany(RequestError):
    """There are as many joined views as there may be, or their texts are too long together."""

    status = 409
    fix = "Drop one that nobody reads."


class ViewRefused(RequestError):
    """The text of a joined view can't be read, names what is not there, or can't be followed change by change."""

    status = 422
    fix = "Correct the text where `errors` says: by line and column, from 1."
    line = 0
    column = 0

    @classmethod
    def at(cls, doing: str, found: str, line: int = 0, column: int = 0, remedy: str = "") -> "ViewRefused":
        """`line` and `column` from 1, which `found` says too; 0: it is of the whole text."""
        refused = cls(doing, found, data="Nothing was changed.", remedy=remedy)
        refused.line, refused.column = line, column
        return refused

    @property
    def complaints(self) -> Sequence[Mapping[str, object]]:
        return [{"detail": self.found, "pointer": "#/sql", "line": self.line, "column": self.column}]


class SearchMissing(RequestError):
    """The API was started without a search service."""

    status = 409
    fix = "Run `menura search serve`, and start the API with --search."


class SearchIndexUnknown(RequestError):
    """The table or view has no search index, or none that was completed."""

    status = 404
    fix = "Index it by `menura search index`; the list of search indexes has all that there are."


class RecentChangesUnknown(RequestError):
    """The search service has no lake in which the table has changes."""

    status = 404
    fix = "Start its sync and wait until a lake has rows of it; `menura search serve` names that lake with --lake."


class SearchRefused(RequestError):
    """The text, a filter or a facet of a search can't be answered as it is written, or not within its time."""

    status = 422
    fix = "Change what the problem names, or ask for less."


class SearchBusy(RequestError):
    """As many searches run as may at once: of the tenant, of this API, or at the search service."""

    status = 503
    terminal = False
    retry_after_seconds = 1
    fix = "Repeat it after the time that Retry-After says."


class SearchAway(RequestError):
    """The search service can't be reached, refuses the API's token, or says what can't be understood."""

    status = 503
    terminal = False
    retry_after_seconds = 5
    fix = "Repeat the request later; the operator finds the reason in the API's log."


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


class TokenUnknown(RequestError):
    """The tenant has no enrolment token of this name."""

    status = 404
    fix = "The list of tokens has all names."


class TokensTooMany(RequestError):
    """The tenant has as many unused enrolment tokens as it may."""

    status = 409
    fix = "Revoke those that nobody needs."


class CallerMissing(RequestError):
    """The request has neither a token nor a session."""

    status = 401
    fix = "Send Authorization: Bearer with a token of the API, or log in at /login."


class CallerUnknown(RequestError):
    """The token or the session is not good, or not good any more."""

    status = 401
    fix = "Use a token that is neither revoked nor over, or log in again."


class RoleMissing(RequestError):
    """The caller is known, and may not do this."""

    status = 403
    fix = "Use a token with another role; an administrator makes one."


class TenantUnknown(RequestError):
    """There is no tenant of this name, or the caller has no role in it: nobody is told which."""

    status = 404
    fix = "Check the spelling, or use a token of that tenant."


class AttemptsTooMany(RequestError):
    """From this address, or with this token's name, too many attempts came with a secret that is not good."""

    status = 429
    terminal = False
    fix = "Try again in a minute."


class ApiTokenUnknown(RequestError):
    """There is no API token of this name in the tenant, or in the fleet."""

    status = 404
    fix = "The list of API tokens has all names."


class ApiTokensTooMany(RequestError):
    """The tenant, or the fleet, has as many good API tokens as it may."""

    status = 409
    fix = "Revoke those that nobody needs."


class LoginRefused(RequestError):
    """The identity provider does not say that this person may come in."""

    status = 403
    fix = "Log in again, with an account that the provider's administrator has given a role."


class LoginProviderAway(RequestError):
    """The identity provider can't be reached, or says what can't be understood."""

    status = 503
    terminal = False
    fix = "Log in later, or with a token; the operator finds the reason in the API's log."


class CaMissing(RequestError):
    """No gateway has a CA, so nobody could enrol."""

    status = 409
    fix = "Start a gateway with a CA."


class StageSilent(ControlPlaneError):
    """Why tables wait: shown, never raised."""

    terminal = False


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


class CrossSiteRefused(RequestError):
    """The request may come from another site's page: its Host, Origin or Content-Type says so, or a session comes
    without what its page knows."""

    status = 403
    fix = "Use the API's own address, send JSON with Content-Type: application/json, and a token in place of a session."


class ListenRefused(ControlPlaneError):
    """An address that is taken, or that others could reach without TLS."""

    exit_code = 23


class SearchUnusable(ControlPlaneError):
    """The address of the search service, or the files with which the API comes to it."""

    exit_code = 45


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
    """The API answered with a problem, of which `answered` is the code, if it has one."""

    exit_code = 25
    answered = ""


class CaUnusable(ControlPlaneError):
    """The CA's files can't be used, or are not those of the CA that agents know."""

    exit_code = 28


class ComponentFailed(ControlPlaneError):
    """A component of `menura up` doesn't come up."""

    exit_code = 26


class LakeDiffers(ControlPlaneError):
    """Verifications have found tables of the lake that differ from their source."""

    exit_code = 31


class LakeUnproven(ControlPlaneError):
    """Of some tables no verification has shown that the lake is equal to the source."""

    exit_code = 32


class LedgerBroken(ControlPlaneError):
    """An entry of a table's continuity ledger is missing, or is not as it was written."""

    exit_code = 44
