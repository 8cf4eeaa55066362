"""What each `TableReason` means, and what to do, in plain words. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from menura.naming import command_table

from controlplane_api.api.table_reasons import TableReason


@dataclass(frozen=True, slots=True)
class Words:
    meaning: str
    #: with places for the names of the source, the table and its dump, as commands take them
    remedy: str


def words_of(reason: TableReason, source: str, database: str, table: str, dump: str) -> Words:
    """For people; the remedy's commands name the table, and its dump where it has one."""
    words = WORDS[reason]
    named = {"source": source, "table": command_table(database, table), "dump": dump}
    return Words(words.meaning, words.remedy.format(**named))


_START = "Start it: menura sync start {source} {table}"
_RETRY = "Do what the problem's message says, then: menura sync retry {source} {table}"
_ANEW = "Do what the problem's message says, then bring its rows as they are: menura sync resync {source} {table}"
_WHO = (
    "To see who did it: menura ledger {source} {table}. To go on where it stopped: menura sync start {source} {table}"
)
_NOTHING = "Nothing."
_WAIT = "Wait. If this stays for minutes, read the agent's log."
_READ_DUMP = "Nothing. To see how far it is: menura dump show {dump}"
WORDS: Mapping[TableReason, Words] = MappingProxyType({
    TableReason.NEVER_STARTED: Words(
        "No sync of the table was ever asked for.", f"{_START} --from dump"
    ),
    TableReason.DENIED_BY_POLICY: Words(
        "The policy of the database's host does not let the table leave.",
        "Only the host's owner can change that: filter and filter_policy in the agent's configuration.",
    ),
    TableReason.GONE_FROM_SERVER: Words(
        "The server has no table of this name any more. The lake keeps what it has.",
        "If it shall not come again, stop it: menura sync stop {source} {table}",
    ),
    TableReason.STOPPED_BY_USER: Words("Somebody has stopped it by a command.", _WHO),
    TableReason.STOPPED_BY_FLEET_FILE: Words(
        "A fleet file that does not list the table was applied with --prune.",
        "List the table in the file and apply it again: menura apply --file FILE",
    ),
    TableReason.STOPPED_WITH_CONFIGURATION: Words(
        "The configuration of its source was removed with its tables.",
        "Configure the source again, then: menura sync start {source} {table}",
    ),
    TableReason.DESIRED_STATE_LOST: Words(
        "The control plane's database was lost or is an older copy. It does not say whether the table shall be synced.",
        "To go on where it stopped: menura sync start {source} {table}. To leave it: menura sync stop {source} {table}",
    ),
    TableReason.STOPPED_BY_AGENT: Words(
        "The agent has stopped it at an error of which its message alone tells. The lake has the table up to there.",
        _RETRY,
    ),
    TableReason.STOPPED_BY_POLICY: Words(
        "It was read again as often as the policy of its host allows in an hour, and needs it once more.",
        "Find out what changes its rows without logging them, or raise dump.max_rereads_per_hour; then: menura sync"
        " resync {source} {table}",
    ),
    TableReason.STOPPED_BY_UNLOGGED_POLICY: Words(
        "The server changed its rows without logging them, and the policy of its host is unlogged_changes: stop.",
        "Bring its rows again: menura sync resync {source} {table}; to have that done by itself, set unlogged_changes"
        " to reread on the agent's host.",
    ),
    TableReason.STOPPED_AT_GAP: Words(
        "The source's log is gone from the table's place on, and it does not go on behind that gap by itself.",
        "Bring its rows as they are: menura sync resync {source} {table}. To have that done by itself, set"
        " unlogged_changes to reread on the agent's host.",
    ),
    TableReason.STOPPED_AT_OTHER_SERVER: Words(
        "The source's log is another one than the table's place is in.",
        "Look at the problem's message, then bring its rows as they are: menura sync resync {source} {table}",
    ),
    TableReason.STOPPED_AT_POSITION: Words(
        "The place where it was to begin or to go on is none of the source's log.",
        "Give the command again with another place, or bring its rows as they are: menura sync resync {source} {table}",
    ),
    TableReason.STOPPED_BY_FILTER: Words(
        "The filter or the policy of its host keeps back the table, or columns in a way in which it can't be read on.",
        "Change filter, filter_policy or the policy's file on the agent's host as the problem's message says, then"
        " bring its rows as they are: menura sync resync {source} {table}",
    ),
    TableReason.STOPPED_AT_DEFINITION: Words(
        "The source's log has changes of the table by a definition of it that is not known.", _ANEW
    ),
    TableReason.STOPPED_AT_COLUMN_TYPE: Words(
        "A column of the table has a type that this version of the agent does not read.", _ANEW
    ),
    TableReason.STOPPED_AT_ROW: Words("A row in the source's log can't be read.", _ANEW),
    TableReason.STOPPED_AT_STATEMENT: Words(
        "The source's log has a statement in place of the rows that it changed, or may have changed.", _ANEW
    ),
    TableReason.STOPPED_AT_UNCERTAIN_ROWS: Words(
        "The source's log does not say for certain how the table's rows were changed.", _ANEW
    ),
    TableReason.STOPPED_NOT_LOGGED: Words(
        "The server does not log the table's changes, or logs them without what tells whose they are.", _RETRY
    ),
    TableReason.STOPPED_BY_GATEWAY: Words(
        "The gateway holds back what the source has sent, since the control plane can't apply it.",
        "Do what the problem's message says. To see it, try it again or skip it: menura sources quarantine {source}",
    ),
    TableReason.STOPPED_BY_SINK: Words(
        "The sink of a lake has stopped the table there. Its changes land and are kept.", _RETRY
    ),
    TableReason.SINK_STOPPED: Words(
        "The sink of a lake has ended with an error, for all tables.",
        "Do what the problem's message says, then start the sink: menura sink run",
    ),
    TableReason.SOURCE_WITHOUT_AGENT: Words(
        "No agent has the source.", "Start the agent that has it in its configuration: menura agent run"
    ),
    TableReason.AGENT_REVOKED: Words(
        "The agent's identity was revoked, and no gateway lets it in.", "Enrol the agent anew: menura token create"
    ),
    TableReason.AGENT_UPGRADING: Words(
        "The agent is not connected while its host installs another version.",
        "Wait. To see how far that is: menura upgrade show",
    ),
    TableReason.AGENT_AWAY: Words(
        "The agent is not connected. Nothing is lost as long as the server keeps its log.",
        "Start the agent: menura agent run. Where it runs, its log says why it does not reach the gateway.",
    ),
    TableReason.CONFIGURATION_PENDING: Words(
        "The agent does not run the source's newest configuration yet.",
        "Wait a few seconds. If this stays, the agent's log says why.",
    ),
    TableReason.CONFIGURATION_REFUSED: Words(
        "The agent has refused the source's configuration, and runs none.",
        "Do what the problem's message says, then: menura sources change {source} --file FILE",
    ),
    TableReason.OTHER_SERVER: Words(
        "Another server is there in place of the one that was read. Nothing of it is read.",
        "Look at it, and decide: menura sources accept {source}",
    ),
    TableReason.SOURCE_UNREADABLE: Words(
        "The source can't be read.", "Do what the problem's message says. It goes on by itself then."
    ),
    TableReason.GATEWAY_REFUSES: Words(
        "What the agent reads does not land.", "Do what the problem's message says. It goes on by itself then."
    ),
    TableReason.LAKE_SILENT: Words(
        "The sink of a lake says nothing. What lands is kept for it.",
        "Start the sink: menura sink run. Forget a lake that is no more: menura lakes --forget LAKE",
    ),
    TableReason.LAKE_UNTOLD: Words(
        "The sink of a lake has not told yet which tables it has stopped.", "Wait: it does so with its next reports."
    ),
    TableReason.LAKE_WAITS: Words(
        "The sink of a lake can't go on for now, and tries again.", "Do what the problem's message says."
    ),
    TableReason.CARTOGRAPHY_NOT_TOLD: Words(
        "The agent has not told yet which tables its server has.", _WAIT
    ),
    TableReason.AGENT_HAS_NOT_ANSWERED: Words(
        "The agent was told of the order, or will be, and has said nothing of the table since.", _WAIT
    ),
    TableReason.STREAM_BEGINS: Words(
        "The agent has taken the table, and looks for the place in the log where it begins.", _WAIT
    ),
    TableReason.DUMP_NOT_TAKEN: Words("The agent has said nothing of its dump yet.", _WAIT),
    TableReason.DUMP_PLANNING: Words("Its dump is planned.", _READ_DUMP),
    TableReason.DUMP_READING: Words("Its earlier rows are read.", _READ_DUMP),
    TableReason.DUMP_ENDING: Words(
        "All of its earlier rows are read. The changes that were made meanwhile are on their way.", _READ_DUMP
    ),
    TableReason.DUMP_PAUSED: Words(
        "Somebody has paused its dump.", "To go on: menura dump resume {dump}"
    ),
    TableReason.DUMP_WAITS_FOR_TURN: Words(
        "Its dump waits for its turn: other dumps are read first.",
        "Wait, or give it a higher priority: menura dump priority {dump} 10",
    ),
    TableReason.DUMP_OUTSIDE_WINDOWS: Words(
        "Its dump waits for the next time window of the host's policy.", "Wait, or change dump.windows on the host."
    ),
    TableReason.DUMP_SERVER_BUSY: Words(
        "Its dump waits, since the server is busier than the host's policy lets a dump make it.",
        "Wait, or change dump.max_threads_running or dump.max_replica_lag_seconds on the host.",
    ),
    TableReason.DUMP_THROTTLED: Words(
        "Its dump reads as fast as a limit of its own or of the host's policy allows.",
        "Wait, or raise the limit: menura dump limit {dump}, or dump.max_rows_per_second and its like on the host.",
    ),
    TableReason.DUMP_WAITS_FOR_GATEWAY: Words(
        "Its dump waits for the gateway, which takes no more rows before others have landed.",
        "Wait. If this stays, look at the gateway's load: menura top",
    ),
    TableReason.DUMP_WAITS_FOR_STREAM: Words(
        "Its dump waits for the table's own stream, which has to land changes first.",
        "Wait. To see how far the stream is: menura why {source} {table}",
    ),
    TableReason.DUMP_TABLE_MISSING: Words(
        "Its dump does not find the table on the server. If it stays away, the dump fails.",
        "If it was renamed or dropped, stop it: menura sync stop {source} {table}",
    ),
    TableReason.DUMP_FAILED_FOR_NOW: Words(
        "Its dump has met an error, and is tried again.", "Do what the dump's reason says: menura dump show {dump}"
    ),
    TableReason.READS_OLDER_LOG: Words(
        "It began behind other tables of its source, and reads older log first.",
        "Wait. To see how far it is: menura why {source} {table}",
    ),
    TableReason.LAKE_BEHIND: Words(
        "A lake is more than a minute behind what has landed.",
        "Wait. If it stays behind, the sink needs more: menura why {source} {table}",
    ),
    TableReason.TABLE_BEHIND_IN_LAKE: Words(
        "More of the table landed at once than other tables wait for. Its lake takes it in parts.", _NOTHING
    ),
    TableReason.FOLLOWS: Words("It is read, its changes land, and the lakes follow.", _NOTHING),
    TableReason.UNKNOWN: Words(
        "The control plane's database does not say why.",
        "Look at the table's ledger and at the agent's log: menura ledger {source} {table}",
    ),
})  # fmt: skip
