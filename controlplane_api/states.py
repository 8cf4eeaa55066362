"""The closed sets of a sync's life, for the database, the API and the commands alike."""

from enum import StrEnum

#: code of the problem of a table that was read again as often as its agent's policy allows
REREAD_LIMIT = "REREAD_LIMIT"


class Desired(StrEnum):
    """What the user asked for."""

    SYNCING = "syncing"
    STOPPED = "stopped"


class StartKind(StrEnum):
    """Where a sync that has not begun yet shall begin."""

    OLDEST = "oldest"
    NOW = "now"
    POSITION = "position"
    #: where it stopped; the log's oldest transaction when it never began
    RESUME = "resume"
    #: a dump brings its earlier rows
    DUMP = "dump"


class StoppedBy(StrEnum):
    """Whose word has stopped a sync that nothing was wrong with; stored."""

    #: a command
    USER = "user"
    #: a fleet file that was applied with --prune
    FLEET_FILE = "fleet_file"
    #: its source's configuration was removed
    CONFIGURATION = "configuration"


class State(StrEnum):
    """What a table's sync is doing: menura.v1.TableState.State, and what only the control plane knows.

    What is stored is the agent's and the cut log's word. What is shown is the worst of all stages: see `api.stages`.
    """

    PENDING = "pending"
    CATCHING_UP = "catching_up"
    STREAMING = "streaming"
    DENIED = "denied"
    FAILED = "failed"
    DUMPING = "dumping"
    #: its source can't be read; or another stage does not answer or can't go on for now, which is never stored
    WAITING = "waiting"
    STOPPED = "stopped"
    #: no sync was ever asked for; never stored
    NOT_SYNCED = "not_synced"


class Stage(StrEnum):
    """Where on its way from the source to the lake a table is held up."""

    #: reading: the server, or the agent
    SOURCE = "source"
    #: landing
    GATEWAY = "gateway"
    LAKE = "lake"


class AuditOutcome(StrEnum):
    """What became of what an entry of the audit log tells."""

    DONE = "done"
    #: who wanted it may not, or it can't be done as it was wanted
    REFUSED = "refused"
    #: by a defect of Menura's, or since something that it needs does not answer
    FAILED = "failed"


class Presence(StrEnum):
    """Whether an agent streams to a gateway."""

    CONNECTED = "connected"
    NOT_CONNECTED = "not_connected"
    #: it may not, until it is enrolled again
    REVOKED = "revoked"


class ConfigurationState(StrEnum):
    """What is known of a source's configuration at its agent."""

    #: it is what runs
    APPLIED = "applied"
    #: the agent is connected and has not said yet
    PENDING = "pending"
    #: the agent says why it does not run it; a former one may run
    REFUSED = "refused"
    #: the agent is away
    UNKNOWN = "unknown"


class Action(StrEnum):
    """What applying a fleet does to an agent, a source or a table."""

    CREATE = "create"
    CHANGE = "change"
    #: to another agent
    MOVE = "move"
    REMOVE = "remove"
    START = "start"
    #: where it stopped
    RESUME = "resume"
    STOP = "stop"
    #: not in the file, and not pruned
    KEEP = "keep"


class LakeState(StrEnum):
    """What is known of a source or a table in a lake."""

    FOLLOWING = "following"
    #: its sink gives it what it has missed, in parts, while others go on
    BEHIND = "behind"
    #: its sink has stopped it, or has ended
    FAILED = "failed"
    #: its sink says nothing
    UNKNOWN = "unknown"


class Proof(StrEnum):
    """What verifications have found of a table."""

    #: to the source, at a position
    EQUAL = "equal"
    #: and nothing has shown since that it is equal
    DIFFERS = "differs"
    #: the last verification could not tell
    UNKNOWN = "unknown"
    NEVER = "never"


class Coverage(StrEnum):
    """Whether a table counts as proven within a period."""

    #: a verification has shown within it that the lake is equal to the source
    PROVEN = "proven"
    #: the last proof is older, or the last verification could not tell
    UNPROVEN = "unproven"
    DIFFERS = "differs"
    #: it can't be verified now
    UNPROVABLE = "unprovable"
    NEVER = "never"


class LedgerKind(StrEnum):
    """What an entry of a table's continuity ledger tells."""

    #: the table's changes are complete from here on
    STARTED = "STARTED"
    #: an error has ended that here
    STOPPED = "STOPPED"
    #: changes between two positions can't be read any more
    GAP = "GAP"
    #: rows changed that the log does not hold
    ROWS_UNLOGGED = "ROWS_UNLOGGED"
    DUMP_STARTED = "DUMP_STARTED"
    #: the table equals its source here
    DUMPED = "DUMPED"
    #: ranges of the table are read again, which differed
    REPAIR_STARTED = "REPAIR_STARTED"
    #: those ranges equal the source here: the detail says which
    REPAIRED = "REPAIRED"
    #: a verification has compared the lake with the table here: the detail says what it has found
    VERIFIED = "VERIFIED"
    CREATED = "CREATED"
    RENAMED = "RENAMED"
    DROPPED = "DROPPED"
    #: somebody has ordered something
    COMMAND = "COMMAND"
    #: the database had lost what commands said before
    HISTORY_LOST = "HISTORY_LOST"


class DumpEnd(StrEnum):
    """What became of a dump, as the database keeps it."""

    RUNNING = "running"
    #: with the cut of its DUMPED event the table was what it was at the source
    DONE = "done"
    FAILED = "failed"
    #: by its plan the server does not keep its log for as long as the dump needs it
    REFUSED = "refused"
    CANCELLED = "cancelled"
    #: only the cut log knows it, after the database was built anew from it: its plan is gone
    LOST = "lost"


class DumpState(StrEnum):
    """What a dump is doing: how it ended, or menura.v1.DumpStatus.State as its agent says it now."""

    #: its agent has not said anything of it yet, or is not connected
    PENDING = "pending"
    PLANNING = "planning"
    READING = "reading"
    WAITING = "waiting"
    PAUSED = "paused"
    ENDING = "ending"
    DONE = DumpEnd.DONE.value
    FAILED = DumpEnd.FAILED.value
    REFUSED = DumpEnd.REFUSED.value
    CANCELLED = DumpEnd.CANCELLED.value
    LOST = DumpEnd.LOST.value


class DumpHeld(StrEnum):
    """What holds a dump, or slows it down: menura.v1.DumpStatus.Held."""

    TURN = "turn"
    #: the policy's windows are closed
    WINDOW = "window"
    SERVER_BUSY = "server_busy"
    RATE = "rate"
    GATEWAY = "gateway"
    #: of its table
    STREAM = "stream"
    #: it is tried again
    ERROR = "error"
    TABLE_MISSING = "table_missing"


class Progress(StrEnum):
    """How far a table is with what an operation has asked for."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    #: a later command has the table
    SUPERSEDED = "superseded"
