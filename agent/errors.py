"""What can go wrong in the agent: one class per failure that an operator can see.

::

    MenuraError
    └── AgentError
        ├── Defect                 1   terminal: an exception that nothing here expects
        ├── ConfigError                10  the file: unknown key, wrong type, missing value
        │   ├── ConfigUnreadable       11
        │   ├── ConfigMalformed        12  not YAML
        │   ├── FilterTableUnknown     13
        │   ├── FilterColumnUnknown    14
        │   └── FilterColumnIsKey      15
        ├── SourceError                    one source; the others go on
        │   ├── SourceUnreachable      20  transient, but terminal at start
        │   ├── SourceAccessDenied     21
        │   ├── SourceGrantMissing     22
        │   ├── SourceTlsFailed        23
        │   ├── SourceVersionUnsupported 24
        │   ├── BinlogDisabled         25
        │   ├── BinlogFormatNotRow     26
        │   ├── BinlogRowValuePartial  28
        │   ├── PositionPurged         29
        │   ├── PositionInvalid        30
        │   ├── SourceRebuilt          31
        │   ├── ServerIdDuplicate      32
        │   ├── EventUnknown           33
        │   ├── EventUnreadable        34
        │   ├── SourceConnectionLost   35  transient
        │   ├── SourceFailed           36  transient: any other answer of the server
        │   ├── StateFolderUnusable    37  transient: the agent can't keep its own files
        │   ├── StateFolderInUse       38  transient: another agent has them
        │   └── LogIncomplete          39  the server says that its log lacks changes
        ├── TableError                     one table stops, its source goes on
        │   ├── TableDenied            40
        │   ├── TableSchemaUnknown     41
        │   ├── TableSchemaMismatch    42
        │   ├── TableColumnUnsupported 43
        │   ├── TableColumnReserved    44
        │   ├── TableStatementLogged   45
        │   ├── TableRowsRemoved       46
        │   ├── TableRowUnreadable     47
        │   ├── TableIgnoredRenamed    48
        │   ├── TableRowsUncertain     49
        │   └── DumpError                      a dump ends or waits, its table's stream goes on
        │       ├── DumpSnapshotImpossible 60
        │       ├── DumpSnapshotFailed     61  transient
        │       ├── DumpServerUnrelated    62
        │       ├── DumpRunwayShort        63
        │       ├── ResultInvalid          64
        │       ├── DefinitionMoved        65  transient
        │       ├── DumpTableGone          66
        │       └── DumpKeyChanged         67
        └── GatewayError
            ├── GatewayUnreachable     50  transient
            ├── GatewayRefused         51
            ├── StreamOutOfSequence    52  transient
            └── GatewayInsecure        53

The number is the process's exit code; 1 is a defect of Menura, 2 a wrong command line.
"""

import time
from typing import ClassVar

from menura.errors import MenuraError
from menura.v1 import error_pb2


class AgentError(MenuraError):
    """Base of the agent's errors."""


class Defect(AgentError):
    """An exception that nothing here expects; the log has its traceback."""

    code: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 1


class ConfigError(AgentError):
    code: ClassVar[str] = "CONFIG_INVALID"
    exit_code: ClassVar[int] = 10


class ConfigUnreadable(ConfigError):
    code = "CONFIG_UNREADABLE"
    exit_code = 11


class ConfigMalformed(ConfigError):
    code = "CONFIG_MALFORMED"
    exit_code = 12


class FilterTableUnknown(ConfigError):
    code = "FILTER_TABLE_UNKNOWN"
    exit_code = 13


class FilterColumnUnknown(ConfigError):
    code = "FILTER_COLUMN_UNKNOWN"
    exit_code = 14


class FilterColumnIsKey(ConfigError):
    code = "FILTER_COLUMN_IS_KEY"
    exit_code = 15


class SourceError(AgentError):
    """A source can't work; the others go on."""


class SourceUnreachable(SourceError):
    code = "SOURCE_UNREACHABLE"
    exit_code = 20
    terminal = False


class SourceAccessDenied(SourceError):
    code = "SOURCE_ACCESS_DENIED"
    exit_code = 21


class SourceGrantMissing(SourceError):
    code = "SOURCE_GRANT_MISSING"
    exit_code = 22


class SourceTlsFailed(SourceError):
    code = "SOURCE_TLS_FAILED"
    exit_code = 23


class SourceVersionUnsupported(SourceError):
    code = "SOURCE_VERSION_UNSUPPORTED"
    exit_code = 24


class BinlogDisabled(SourceError):
    code = "BINLOG_DISABLED"
    exit_code = 25


class BinlogFormatNotRow(SourceError):
    code = "BINLOG_FORMAT_NOT_ROW"
    exit_code = 26


class BinlogRowValuePartial(SourceError):
    code = "BINLOG_ROW_VALUE_PARTIAL"
    exit_code = 28


class PositionPurged(SourceError):
    code = "POSITION_PURGED"
    exit_code = 29


class PositionInvalid(SourceError):
    code = "POSITION_INVALID"
    exit_code = 30


class SourceRebuilt(SourceError):
    code = "SOURCE_REBUILT"
    exit_code = 31


class ServerIdDuplicate(SourceError):
    code = "SERVER_ID_DUPLICATE"
    exit_code = 32


class EventUnknown(SourceError):
    code = "EVENT_UNKNOWN"
    exit_code = 33


class EventUnreadable(SourceError):
    code = "EVENT_UNREADABLE"
    exit_code = 34


class SourceConnectionLost(SourceError):
    code = "SOURCE_CONNECTION_LOST"
    exit_code = 35
    terminal = False


class SourceFailed(SourceError):
    code = "SOURCE_FAILED"
    exit_code = 36
    terminal = False


class StateFolderUnusable(SourceError):
    code = "STATE_FOLDER_UNUSABLE"
    exit_code = 37
    terminal = False


class StateFolderInUse(SourceError):
    code = "STATE_FOLDER_IN_USE"
    exit_code = 38
    terminal = False


class LogIncomplete(SourceError):
    code = "LOG_INCOMPLETE"
    exit_code = 39


class TableError(AgentError):
    """A table stops; its source and the other tables go on."""


class TableDenied(TableError):
    code = "TABLE_DENIED"
    exit_code = 40


class TableSchemaUnknown(TableError):
    code = "TABLE_SCHEMA_UNKNOWN"
    exit_code = 41


class TableSchemaMismatch(TableError):
    code = "TABLE_SCHEMA_MISMATCH"
    exit_code = 42


class TableColumnUnsupported(TableError):
    code = "TABLE_COLUMN_UNSUPPORTED"
    exit_code = 43


class TableColumnReserved(TableError):
    code = "TABLE_COLUMN_RESERVED"
    exit_code = 44


class TableStatementLogged(TableError):
    code = "TABLE_STATEMENT_LOGGED"
    exit_code = 45


class TableRowsRemoved(TableError):
    code = "TABLE_ROWS_REMOVED"
    exit_code = 46


class TableRowUnreadable(TableError):
    code = "TABLE_ROW_UNREADABLE"
    exit_code = 47


class TableIgnoredRenamed(TableError):
    code = "TABLE_IGNORED_RENAMED"
    exit_code = 48


class TableRowsUncertain(TableError):
    code = "TABLE_ROWS_UNCERTAIN"
    exit_code = 49


class DumpError(TableError):
    """The rows from before a table's stream; the stream goes on."""


class DumpSnapshotImpossible(DumpError):
    code = "DUMP_SNAPSHOT_IMPOSSIBLE"
    exit_code = 60


class DumpSnapshotFailed(DumpError):
    code = "DUMP_SNAPSHOT_FAILED"
    exit_code = 61
    terminal = False


class DumpServerUnrelated(DumpError):
    code = "DUMP_SERVER_UNRELATED"
    exit_code = 62


class DumpRunwayShort(DumpError):
    code = "DUMP_RUNWAY_SHORT"
    exit_code = 63


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
    code = "DUMP_TABLE_GONE"
    exit_code = 66


class DumpKeyChanged(DumpError):
    code = "DUMP_KEY_CHANGED"
    exit_code = 67


class GatewayError(AgentError):
    """The way to the gateway."""


class GatewayUnreachable(GatewayError):
    code = "GATEWAY_UNREACHABLE"
    exit_code = 50
    terminal = False


class GatewayRefused(GatewayError):
    code = "GATEWAY_REFUSED"
    exit_code = 51


class StreamOutOfSequence(GatewayError):
    code = "STREAM_OUT_OF_SEQUENCE"
    exit_code = 52
    terminal = False


class GatewayInsecure(GatewayError):
    code = "GATEWAY_INSECURE"
    exit_code = 53


def defect(doing: str, found: Exception, source: str) -> Defect:
    return Defect(
        doing,
        f"a {type(found).__name__} that Menura did not expect",
        data="Nothing is lost: what was not committed is read again",
        remedy="Report it with the traceback in the agent's log",
        source=source,
    )


def as_message(error: MenuraError) -> error_pb2.Error:
    """The error as it travels; `at_us` is now. A byte of the server's that is no text becomes '?'.

    >>> as_message(SourceError("reading the log", "a statement of \\udcf8", data="", remedy="")).found
    'a statement of ?'
    """
    return error_pb2.Error(
        code=error.code,
        doing=_encodable(error.doing),
        found=_encodable(error.found),
        data=_encodable(error.data),
        remedy=_encodable(error.remedy),
        source=error.source,
        database=_encodable(error.database),
        table=_encodable(error.table),
        position=_encodable(error.position),
        terminal=error.terminal,
        at_us=time.time_ns() // 1000,
    )


def _encodable(text: str) -> str:
    """What was not decoded is kept as lone surrogates, which UTF-8 does not have."""
    return text.encode("utf-8", "replace").decode()
