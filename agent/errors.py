"""What can go wrong in the agent: one class per failure that an operator can see.

A class's `exit_code` is the process's; 1 is a defect of Menura, 2 a wrong command line. A kind of source has errors of
its own beside these, with codes that nobody else has.
"""

from typing import ClassVar

from menura.errors import MenuraError


class AgentError(MenuraError):
    """Base of the agent's errors."""


class Defect(AgentError):
    """An exception that nothing here expects; the log has its traceback."""

    code: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 1


class ConfigError(AgentError):
    """The file: an unknown key, a wrong type, a missing value."""

    code: ClassVar[str] = "CONFIG_INVALID"
    exit_code: ClassVar[int] = 10


class ConfigUnreadable(ConfigError):
    exit_code = 11


class ConfigMalformed(ConfigError):
    """It is not YAML."""

    exit_code = 12


class FilterTableUnknown(ConfigError):
    """A warning: nothing stops."""

    exit_code = 13


class ConfigAccessRefused(ConfigError):
    """What the control plane sends names a file, a variable or a host that the agent's own file does not allow."""

    exit_code = 16


class ConfigNotRemote(ConfigError):
    """The agent's own file lets the control plane configure nothing."""

    exit_code = 17


class ConfigSourceLocal(ConfigError):
    """The agent's own file has the source, and wins."""

    exit_code = 18


class PolicyUnusable(ConfigError):
    """The policy of the database's host can't be read, or others may write it."""

    exit_code = 19


class SourceError(AgentError):
    """A source can't work; the others go on."""


class SourceUnreachable(SourceError):
    """Transient, but terminal at start."""

    exit_code = 20
    terminal = False


class SourceAccessDenied(SourceError):
    exit_code = 21


class SourceGrantMissing(SourceError):
    exit_code = 22


class SourceTlsFailed(SourceError):
    exit_code = 23


class SourceLoginUnsafe(SourceError):
    """What answers asks for the password in a form that shows it; it was not sent."""

    exit_code = 27


class SourceVersionUnsupported(SourceError):
    exit_code = 24


class PositionPurged(SourceError):
    """The server is the one that was read, and its log begins after the position."""

    exit_code: ClassVar[int] = 29


class LogReset(PositionPurged):
    """The server has begun its log anew."""

    exit_code = 71


class PositionInvalid(SourceError):
    exit_code = 30


class SourceRebuilt(SourceError):
    """The server's log is not the one that was read."""

    exit_code: ClassVar[int] = 31


class SourceDiverged(SourceRebuilt):
    """The lake has transactions that the server lacks."""

    exit_code = 70


class EventUnknown(SourceError):
    exit_code = 33


class EventUnreadable(SourceError):
    exit_code = 34


class SourceConnectionLost(SourceError):
    exit_code = 35
    terminal = False


class SourceFailed(SourceError):
    """Any other answer of the server."""

    exit_code = 36
    terminal = False


class StateFolderUnusable(SourceError):
    """The agent can't keep its own files."""

    exit_code = 37
    terminal = False


class StateFolderInUse(SourceError):
    """Another agent has them."""

    exit_code = 38
    terminal = False


class TableError(AgentError):
    """A table stops; its source and the other tables go on."""


class FilterColumnUnknown(TableError):
    exit_code = 14


class FilterColumnIsKey(TableError):
    exit_code = 15


class TableDenied(TableError):
    exit_code = 40


class PolicyDenied(TableError):
    """The policy of the database's host keeps it back. It says no name that a gateway has not said itself."""

    exit_code = 39


class TableSchemaUnknown(TableError):
    exit_code = 41


class TableSchemaMismatch(TableError):
    exit_code = 42


class TableColumnUnsupported(TableError):
    exit_code = 43


class TableStatementLogged(TableError):
    exit_code = 45


class TableRowsUnlogged(TableError):
    exit_code = 46


class TableRowUnreadable(TableError):
    exit_code = 47


class TableIgnoredRenamed(TableError):
    exit_code = 48


class TableRowsUncertain(TableError):
    exit_code = 49


class DumpError(TableError):
    """A dump of the rows from before a table's stream ends or waits; the stream goes on."""


class DumpSnapshotImpossible(DumpError):
    exit_code = 60


class DumpSnapshotFailed(DumpError):
    exit_code = 61
    terminal = False


class DumpServerUnrelated(DumpError):
    exit_code = 62


class ResultInvalid(DumpError):
    """What the server sent as a table's rows can't be read."""

    code = "DUMP_RESULT_INVALID"
    exit_code = 64


class DefinitionMoved(DumpError):
    """The table was altered between the reading of its definition and of its rows."""

    code = "DUMP_DEFINITION_MOVED"
    exit_code = 65
    terminal = False


class DumpTableGone(DumpError):
    exit_code = 66


class DumpKeyChanged(DumpError):
    exit_code = 67


class VerificationImpossible(DumpError):
    """The table can't be compared with its lake by ranges of its key."""

    exit_code = 68


class RepairImpossible(DumpError):
    """Ranges of the table can't be read by themselves."""

    exit_code = 86


class UpgradeError(AgentError):
    """Another version of the agent is ordered, and does not run; the former one goes on."""


class UpgradeRefused(UpgradeError):
    """The host, or the agent on it, does not do it."""

    exit_code = 87


class UpgradeRolledBack(UpgradeError):
    """It was installed, was not well, and the former version was installed again."""

    exit_code = 88


class UpgradeDelayed(UpgradeError):
    """It can't go on now."""

    exit_code = 89
    terminal = False


class GatewayError(AgentError):
    """The way to the gateway."""


class GatewayUnreachable(GatewayError):
    exit_code = 50
    terminal = False


class GatewayRefused(GatewayError):
    """It ends the stream, and will again until somebody does something about it."""

    exit_code = 51


class GatewayRefusedForNow(GatewayRefused):
    """It ends the stream, and may take the next one."""

    exit_code = 57
    terminal = False


class StreamOutOfSequence(GatewayError):
    exit_code = 52
    terminal = False


class GatewayInsecure(GatewayError):
    exit_code = 53


class IdentityRefused(GatewayRefused):
    """Whom the gateway does not take for this agent, or not now: another process is it already, or it was revoked."""

    exit_code = 56


class EnrolmentFailed(GatewayError):
    """The agent has no certificate from it."""

    exit_code = 54


class IdentityUnusable(GatewayError):
    """The files with the agent's key and certificate."""

    exit_code = 55


def defect(doing: str, found: Exception, source: str) -> Defect:
    return Defect(
        doing,
        f"a {type(found).__name__} that Menura did not expect",
        data="Nothing is lost: what was not committed is read again",
        remedy="Report it with the traceback in the agent's log",
        source=source,
    )
