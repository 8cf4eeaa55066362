"""Why a table is in its state: one code of a closed set. Pure.

Comes in: what the database knows of a table, and of its source, which is the same for all tables of an answer. Goes
out: a `TableReason`; `table_reason_words` says it to people. What the database does not know has the code `UNKNOWN`: no
reason is guessed. Codes are stable, scripts go by them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from controlplane_api import lost_state
from controlplane_api.errors import AgentAway, ConfigurationPending, LakeSilent, LakeUntold
from controlplane_api.states import REREAD_LIMIT, DumpHeld, DumpState, Stage, StartKind, State, StoppedBy


class TableReason(StrEnum):
    """Why a table is in its state."""

    # nobody reads it
    NEVER_STARTED = "NEVER_STARTED"
    DENIED_BY_POLICY = "DENIED_BY_POLICY"
    GONE_FROM_SERVER = "GONE_FROM_SERVER"
    STOPPED_BY_USER = "STOPPED_BY_USER"
    STOPPED_BY_FLEET_FILE = "STOPPED_BY_FLEET_FILE"
    STOPPED_WITH_CONFIGURATION = "STOPPED_WITH_CONFIGURATION"
    DESIRED_STATE_LOST = "DESIRED_STATE_LOST"
    # an error, or a limit, has ended it
    STOPPED_BY_AGENT = "STOPPED_BY_AGENT"
    STOPPED_BY_POLICY = "STOPPED_BY_POLICY"
    STOPPED_BY_UNLOGGED_POLICY = "STOPPED_BY_UNLOGGED_POLICY"
    STOPPED_AT_GAP = "STOPPED_AT_GAP"
    STOPPED_AT_OTHER_SERVER = "STOPPED_AT_OTHER_SERVER"
    STOPPED_AT_POSITION = "STOPPED_AT_POSITION"
    STOPPED_BY_FILTER = "STOPPED_BY_FILTER"
    STOPPED_AT_DEFINITION = "STOPPED_AT_DEFINITION"
    STOPPED_AT_COLUMN_TYPE = "STOPPED_AT_COLUMN_TYPE"
    STOPPED_AT_ROW = "STOPPED_AT_ROW"
    STOPPED_AT_STATEMENT = "STOPPED_AT_STATEMENT"
    STOPPED_AT_UNCERTAIN_ROWS = "STOPPED_AT_UNCERTAIN_ROWS"
    STOPPED_NOT_LOGGED = "STOPPED_NOT_LOGGED"
    STOPPED_BY_GATEWAY = "STOPPED_BY_GATEWAY"
    STOPPED_BY_SINK = "STOPPED_BY_SINK"
    SINK_STOPPED = "SINK_STOPPED"
    # a stage does not answer, or can't go on for now
    SOURCE_WITHOUT_AGENT = "SOURCE_WITHOUT_AGENT"
    AGENT_REVOKED = "AGENT_REVOKED"
    AGENT_UPGRADING = "AGENT_UPGRADING"
    AGENT_AWAY = "AGENT_AWAY"
    CONFIGURATION_PENDING = "CONFIGURATION_PENDING"
    CONFIGURATION_REFUSED = "CONFIGURATION_REFUSED"
    OTHER_SERVER = "OTHER_SERVER"
    SOURCE_UNREADABLE = "SOURCE_UNREADABLE"
    GATEWAY_REFUSES = "GATEWAY_REFUSES"
    LAKE_SILENT = "LAKE_SILENT"
    LAKE_UNTOLD = "LAKE_UNTOLD"
    LAKE_WAITS = "LAKE_WAITS"
    # it begins
    CARTOGRAPHY_NOT_TOLD = "CARTOGRAPHY_NOT_TOLD"
    AGENT_HAS_NOT_ANSWERED = "AGENT_HAS_NOT_ANSWERED"
    STREAM_BEGINS = "STREAM_BEGINS"
    # its earlier rows are read
    DUMP_NOT_TAKEN = "DUMP_NOT_TAKEN"
    DUMP_PLANNING = "DUMP_PLANNING"
    DUMP_READING = "DUMP_READING"
    DUMP_ENDING = "DUMP_ENDING"
    DUMP_PAUSED = "DUMP_PAUSED"
    DUMP_WAITS_FOR_TURN = "DUMP_WAITS_FOR_TURN"
    DUMP_OUTSIDE_WINDOWS = "DUMP_OUTSIDE_WINDOWS"
    DUMP_SERVER_BUSY = "DUMP_SERVER_BUSY"
    DUMP_THROTTLED = "DUMP_THROTTLED"
    DUMP_WAITS_FOR_GATEWAY = "DUMP_WAITS_FOR_GATEWAY"
    DUMP_WAITS_FOR_STREAM = "DUMP_WAITS_FOR_STREAM"
    DUMP_TABLE_MISSING = "DUMP_TABLE_MISSING"
    DUMP_FAILED_FOR_NOW = "DUMP_FAILED_FOR_NOW"
    # it is read
    READS_OLDER_LOG = "READS_OLDER_LOG"
    LAKE_BEHIND = "LAKE_BEHIND"
    TABLE_BEHIND_IN_LAKE = "TABLE_BEHIND_IN_LAKE"
    FOLLOWS = "FOLLOWS"
    # nothing says why
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Of a source, once for all tables of an answer."""

    #: what holds its tables up, as `stages.Standing` has it; None: nothing does
    state: State | None = None
    stage: Stage | None = None
    #: code of that problem
    code: str = ""
    has_agent: bool = True
    is_revoked: bool = False
    #: its agent installs another version
    upgrades: bool = False
    #: the agent has refused the desired configuration, and runs none
    configuration_refused: bool = False
    #: the desired configuration is not the one that runs
    configuration_pending: bool = False
    #: another server is there in place of the one that was read
    other_server: bool = False
    has_cartography: bool = True
    #: of the tables that the agent has spoken of last; None: not known
    told_generation: int | None = None


@dataclass(frozen=True, slots=True)
class TableFacts:
    #: as it is shown
    state: State
    #: as its agent and the cut log say it; None: no sync was asked for
    own: State | None
    denied: bool = False
    gone: bool = False
    #: the cut log or a limit has ended its sync
    failed: bool = False
    #: code of its own problem
    code: str = ""
    stopped_by: str = ""
    start: str | None = None
    changed_generation: int = 0
    dump: DumpState | None = None
    held: DumpHeld | None = None


def reason_of(table: TableFacts, source: SourceFacts) -> TableReason:
    match table.state:
        case State.STOPPED:
            return _stopped(table)
        case State.FAILED:
            return _failed(table, source)
        case State.WAITING:
            return _waiting(table, source)
        case State.DENIED:
            return TableReason.DENIED_BY_POLICY
        case _ if table.gone:
            return TableReason.GONE_FROM_SERVER
        case State.NOT_SYNCED:
            return TableReason.DENIED_BY_POLICY if table.denied else TableReason.NEVER_STARTED
        case State.PENDING:
            return _pending(table, source)
        case State.DUMPING:
            return _dumping(table)
        case State.CATCHING_UP:
            return _catching_up(table, source)
        case State.STREAMING:
            return TableReason.FOLLOWS


_STOPPED: Mapping[str, TableReason] = {
    StoppedBy.USER: TableReason.STOPPED_BY_USER,
    StoppedBy.FLEET_FILE: TableReason.STOPPED_BY_FLEET_FILE,
    StoppedBy.CONFIGURATION: TableReason.STOPPED_WITH_CONFIGURATION,
}


def _stopped(table: TableFacts) -> TableReason:
    if table.code == lost_state.CODE:
        return TableReason.DESIRED_STATE_LOST
    return _STOPPED.get(table.stopped_by, TableReason.UNKNOWN)


#: by the code of the error that stopped the table; of a code that is not here the problem's message alone says why
_STOPPED_AT: Mapping[str, TableReason] = {
    "TABLE_ROWS_UNLOGGED": TableReason.STOPPED_BY_UNLOGGED_POLICY,  # given only by `unlogged_changes: stop`
    "POSITION_PURGED": TableReason.STOPPED_AT_GAP,
    "LOG_RESET": TableReason.STOPPED_AT_GAP,
    "SLOT_MISSING": TableReason.STOPPED_AT_GAP,
    "SLOT_INVALIDATED": TableReason.STOPPED_AT_GAP,
    "PUBLICATION_GONE": TableReason.STOPPED_AT_GAP,
    "SOURCE_REBUILT": TableReason.STOPPED_AT_OTHER_SERVER,
    "SOURCE_DIVERGED": TableReason.STOPPED_AT_OTHER_SERVER,
    "POSITION_INVALID": TableReason.STOPPED_AT_POSITION,
    "TABLE_DENIED": TableReason.STOPPED_BY_FILTER,
    "POLICY_DENIED": TableReason.STOPPED_BY_FILTER,
    "FILTER_COLUMN_UNKNOWN": TableReason.STOPPED_BY_FILTER,
    "FILTER_COLUMN_IS_KEY": TableReason.STOPPED_BY_FILTER,
    "TABLE_IGNORED_RENAMED": TableReason.STOPPED_BY_FILTER,
    "TABLE_SCHEMA_UNKNOWN": TableReason.STOPPED_AT_DEFINITION,
    "TABLE_SCHEMA_MISMATCH": TableReason.STOPPED_AT_DEFINITION,
    "TABLE_COLUMN_UNSUPPORTED": TableReason.STOPPED_AT_COLUMN_TYPE,
    "TABLE_ROW_UNREADABLE": TableReason.STOPPED_AT_ROW,
    "TABLE_STATEMENT_LOGGED": TableReason.STOPPED_AT_STATEMENT,
    "TABLE_ROWS_UNCERTAIN": TableReason.STOPPED_AT_UNCERTAIN_ROWS,
    "TABLE_UNPUBLISHED": TableReason.STOPPED_NOT_LOGGED,
    "TABLE_IDENTITY_MISSING": TableReason.STOPPED_NOT_LOGGED,
}


def _failed(table: TableFacts, source: SourceFacts) -> TableReason:
    if table.failed and table.code == REREAD_LIMIT:
        return TableReason.STOPPED_BY_POLICY
    if table.failed or table.own is State.FAILED:
        return _STOPPED_AT.get(table.code, TableReason.STOPPED_BY_AGENT)
    if source.state is not State.FAILED:
        return TableReason.STOPPED_BY_SINK
    return TableReason.STOPPED_BY_GATEWAY if source.stage is Stage.GATEWAY else TableReason.SINK_STOPPED


def _waiting(table: TableFacts, source: SourceFacts) -> TableReason:
    if source.state is not State.WAITING:
        return TableReason.SOURCE_UNREADABLE if table.code else TableReason.UNKNOWN
    if source.code == AgentAway.code:
        return _away(source)
    if source.stage is Stage.LAKE:
        told = {LakeSilent.code: TableReason.LAKE_SILENT, LakeUntold.code: TableReason.LAKE_UNTOLD}
        return told.get(source.code, TableReason.LAKE_WAITS)
    if source.stage is Stage.GATEWAY:
        return TableReason.GATEWAY_REFUSES
    if source.configuration_refused:
        return TableReason.CONFIGURATION_REFUSED
    if source.code == ConfigurationPending.code:
        return TableReason.CONFIGURATION_PENDING
    return TableReason.OTHER_SERVER if source.other_server else TableReason.SOURCE_UNREADABLE


def _away(source: SourceFacts) -> TableReason:
    if not source.has_agent:
        return TableReason.SOURCE_WITHOUT_AGENT
    if source.is_revoked:
        return TableReason.AGENT_REVOKED
    return TableReason.AGENT_UPGRADING if source.upgrades else TableReason.AGENT_AWAY


def _pending(table: TableFacts, source: SourceFacts) -> TableReason:
    if table.denied:
        return TableReason.DENIED_BY_POLICY
    if not source.has_cartography:
        return TableReason.CARTOGRAPHY_NOT_TOLD
    if source.told_generation is None:
        return TableReason.UNKNOWN
    if table.changed_generation > source.told_generation:
        return TableReason.CONFIGURATION_PENDING if source.configuration_pending else TableReason.AGENT_HAS_NOT_ANSWERED
    if table.start == StartKind.DUMP and table.dump is not None:
        return _dumping(table)
    return TableReason.STREAM_BEGINS


_HELD = {
    DumpHeld.TURN: TableReason.DUMP_WAITS_FOR_TURN,
    DumpHeld.WINDOW: TableReason.DUMP_OUTSIDE_WINDOWS,
    DumpHeld.SERVER_BUSY: TableReason.DUMP_SERVER_BUSY,
    DumpHeld.RATE: TableReason.DUMP_THROTTLED,
    DumpHeld.GATEWAY: TableReason.DUMP_WAITS_FOR_GATEWAY,
    DumpHeld.STREAM: TableReason.DUMP_WAITS_FOR_STREAM,
    DumpHeld.ERROR: TableReason.DUMP_FAILED_FOR_NOW,
    DumpHeld.TABLE_MISSING: TableReason.DUMP_TABLE_MISSING,
}
_DUMPS = {
    DumpState.PENDING: TableReason.DUMP_NOT_TAKEN,
    DumpState.PLANNING: TableReason.DUMP_PLANNING,
    DumpState.READING: TableReason.DUMP_READING,
    DumpState.PAUSED: TableReason.DUMP_PAUSED,
    DumpState.ENDING: TableReason.DUMP_ENDING,
}


def _dumping(table: TableFacts) -> TableReason:
    """An agent of an earlier version does not tell what holds a dump that waits."""
    if table.held is not None:
        return _HELD[table.held]
    return TableReason.UNKNOWN if table.dump is None else _DUMPS.get(table.dump, TableReason.UNKNOWN)


def _catching_up(table: TableFacts, source: SourceFacts) -> TableReason:
    if table.own is not State.STREAMING:
        return TableReason.READS_OLDER_LOG
    return TableReason.LAKE_BEHIND if source.state is State.CATCHING_UP else TableReason.TABLE_BEHIND_IN_LAKE
