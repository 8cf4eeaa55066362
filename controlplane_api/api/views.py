"""What the API answers, as JSON: one class per thing a caller sees. Times in microseconds since the epoch, UTC."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from controlplane_api.identity.callers import Role
from controlplane_api.states import (
    Action,
    ConfigurationState,
    Desired,
    DumpState,
    LakeState,
    Progress,
    Proof,
    Stage,
    StartKind,
    State,
)

#: of a dump: what the columns take, menura.v1.DumpLimits, and an SQL integer
MAX_WORKERS = 64
MAX_PER_SECOND = 2**53 - 1
#: of an enrolment token
MAX_TOKEN_SECONDS = 7 * 86_400
MAX_API_TOKEN_SECONDS = 366 * 86_400


class View(BaseModel):
    model_config = ConfigDict(frozen=True)


class ProblemView(View):
    """A failure that an agent, the gateway or the cut log reported."""

    code: str
    message: str
    terminal: bool
    at_us: int


class ProblemType(View):
    """What a problem's `type` is the address of."""

    type: str
    code: str
    title: str
    status: int
    cause: str
    fix: str


class ProblemTypes(View):
    problems: list[ProblemType]


class InvalidView(View):
    """What is wrong with a request: in its body, or in a parameter."""

    detail: str
    #: a JSON pointer into the body, as a fragment
    pointer: str | None = None
    parameter: str | None = None
    #: path, query or header
    within: str | None = Field(default=None, alias="in")


class ProblemDocument(View):
    """An answer that is no success: RFC 9457."""

    #: an address of this API, with a page that says cause and fix
    type: str
    title: str
    status: int
    #: all of the below in one sentence
    detail: str
    code: str
    doing: str
    found: str
    #: what became of the data
    data: str | None = None
    #: what to do next, in this case
    remedy: str | None = None
    source: str | None = None
    database: str | None = None
    table: str | None = None
    position: str | None = None
    errors: list[InvalidView] | None = None


class AgentView(View):
    agent: str
    connected: bool
    version: str
    hostname: str
    connected_at_us: int
    seen_at_us: int
    resident_memory_bytes: int | None
    cpu_us: int | None
    sources: list[str]
    #: when its key was enrolled, or it was added; null: it comes without a certificate
    enrolled_at_us: int | None
    revoked_at_us: int | None
    #: why somebody in its name was refused lately
    problem: ProblemView | None


class AgentChanged(View):
    agent: str
    #: false: it was so before
    changed: bool


class SourceAssigned(View):
    source: str
    agent: str


class RefusedTableView(View):
    database: str
    table: str
    problem: ProblemView


class ConfigurationView(View):
    """How a source shall be configured, and beside it what its agent runs."""

    source: str
    agent: str | None
    #: whether its agent is connected
    connected: bool
    #: as the agent's file would have it; without secrets
    desired: dict[str, Any]
    generation: int
    sha256: str
    changed_at_us: int
    #: of what runs, as the agent said last; 0 and empty: nothing does
    effective_generation: int
    effective_sha256: str
    told_at_us: int | None
    state: ConfigurationState
    #: CONFIGURATION_APPLIED, or the code of why it is not
    reason: str
    #: what there is to know; empty when it is applied
    message: str
    #: tables that wait until the source shows them
    wanted_tables: int
    #: the first of those that it shows, and that can't be synced
    refused_tables: list[RefusedTableView]


class ConfigurationChanged(View):
    source: str
    #: false: it was so before
    changed: bool
    generation: int


class FleetChange(View):
    #: create, change, move, remove, start, resume, stop; keep: the file lacks it, and it stays
    action: Action
    #: of an agent, a source or a table: the last that is not empty
    agent: str
    source: str
    database: str
    table: str
    #: what it means or costs
    detail: str
    #: of the server's statistics, of a table that is dumped; null: not known, or not dumped
    estimated_rows: int | None
    estimated_bytes: int | None
    refused: "RefusalView | None"


class FleetPlan(View):
    tenant: str
    #: false: a plan alone
    applied: bool
    changes: list[FleetChange]
    #: what the file lacks and stays: --prune would remove or stop it
    kept: list[FleetChange]


class TokenCreated(View):
    #: for `menura agent enrol`; no other answer has it
    token: str
    id: str
    agent: str | None
    expires_at_us: int


class TokenView(View):
    id: str
    #: the only one that it enrols; empty: any that is new
    agent: str
    created_at_us: int
    expires_at_us: int
    used_at_us: int | None
    #: the agent that it has enrolled
    used_by: str
    revoked_at_us: int | None


class Tokens(View):
    tokens: list[TokenView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class ApiTokenCreated(View):
    #: for Authorization: Bearer; no other answer has it
    token: str
    id: str
    expires_at_us: int


class ApiTokenView(View):
    id: str
    name: str
    role: Role
    created_by: str
    created_at_us: int
    #: null: never
    expires_at_us: int | None
    revoked_at_us: int | None


class ApiTokens(View):
    api_tokens: list[ApiTokenView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class GrantView(View):
    role: Role
    #: null: in the whole fleet
    tenant: str | None


class SessionView(View):
    """Who asks, and what he may."""

    actor: str
    grants: list[GrantView]
    #: to be sent with each command of a browser's session, as X-Menura-Page-Token; empty where there is none
    page_token: str


class LoginLinkCreated(View):
    #: of the dashboard; good once, and in no other answer
    path: str
    expires_at_us: int


class Nothing(View):
    """An empty object."""


class LoginView(View):
    #: by what an identity provider is called; empty: there is none
    provider: str


class AuditView(View):
    at_us: int
    actor: str
    action: str
    #: code of the error; empty: it was done
    refused: str
    found: str


class Audit(View):
    entries: list[AuditView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class SinkView(View):
    """A lake and its sink."""

    lake: str
    url: str
    #: the landing that the sink follows
    landing: str
    state: LakeState
    problem: ProblemView | None
    #: of all tenants
    stopped_tables: int
    #: when the sink reported last; null before its first report
    received_at_us: int | None


class Lakes(View):
    lakes: list[SinkView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class LakeForgotten(View):
    lake: str


class LakeView(View):
    """How far a source is in a lake."""

    lake: str
    url: str
    state: LakeState
    problem: ProblemView | None
    #: all of it and of those before is in the lake, but for stopped tables; null while unknown
    cut: int | None
    #: cuts that have landed and are not in the lake
    cuts_behind: int | None
    #: behind what has landed, and behind the end of the source's log; null while unknown
    landing_lag_us: int | None
    lag_us: int | None
    #: now minus the commit time of the newest transaction in the lake; null while unknown
    freshness_us: int | None
    stopped_tables: int
    received_at_us: int | None


class LakeTableView(View):
    """A table in the lake where it stands worst."""

    lake: str
    state: LakeState
    problem: ProblemView | None
    cut: int | None
    freshness_us: int | None
    #: stopped, and its sink was asked to try it again
    retries: bool


class SourceView(View):
    source: str
    agent: str | None
    #: whether its agent is connected to a gateway
    connected: bool
    #: holder of its lease
    gateway: str | None
    flavor: str
    server_version: str
    address: str
    generation: int
    #: of reading it, or of landing what was read
    problem: ProblemView | None
    #: what somebody should know while it is read on
    warnings: list[ProblemView]
    #: which stage holds its tables up, and why; null when nothing does
    stage: Stage | None
    stage_problem: ProblemView | None
    lakes: list[LakeView]
    cartography_at_us: int | None
    #: tables of the cartography by state
    tables: dict[State, int]
    #: dumps that are not over
    dumps: int
    #: how far the agent is behind the end of the log; null while unknown
    lag_us: int | None
    #: now minus the commit time of the last change that landed
    freshness_us: int | None
    #: the agent's, and the end of the server's log, in the server's own words
    read_position: str
    source_position: str
    #: up to here everything has landed
    committed_position: str
    committed_cut: int
    last_commit_timestamp_us: int | None
    committed_at_us: int | None
    #: landed since the first cut
    rows: int
    bytes: int
    transactions: int
    #: read by the agent, over its last heartbeat
    rows_per_second: float | None
    read_bytes_per_second: float | None


class OtherServerView(View):
    """A server whose log does not go on where the source's was read. Positions are in the server's own words."""

    #: to be sent with the acceptance
    identity: str
    #: UUID where it has one, host, port, server id
    server: str
    #: of the server that was read last; empty: not known any more
    former_server: str
    lake_position: str
    oldest_position: str
    end_position: str
    #: where the stream goes on once the server is accepted
    goes_on_at: str
    #: transactions that the lake has and the server lacks; empty or null: not known
    lacking: str
    lacking_transactions: int | None
    #: these go on behind the gap, and are dumped
    tables_to_read_again: int


class Accepted(View):
    #: false: it had been accepted before
    changed: bool


class QuarantineView(View):
    """Cuts of a source that are committed, and that the database refuses: nothing of it lands meanwhile."""

    #: of the cut log: where the first and the last of them stand
    landing: str
    entry: int
    last_entry: int
    cut: int
    last_cut: int
    problem: ProblemView
    #: of which they say something; null: of very many
    tables: int | None
    #: the gateway was asked to apply them again
    retries: bool


class DumpLimits(View):
    """0: no limit of the user's."""

    model_config = ConfigDict(extra="forbid", strict=True)

    workers: int = Field(default=0, ge=0, le=MAX_WORKERS)
    rows_per_second: int = Field(default=0, ge=0, le=MAX_PER_SECOND)
    bytes_per_second: int = Field(default=0, ge=0, le=MAX_PER_SECOND)


class DumpView(View):
    """A first copy of a table and how far it is."""

    dump: str
    source: str
    database: str
    table: str
    state: DumpState
    #: why it waits, or why it ended; empty when there is nothing to say
    reason: str
    problem: ProblemView | None
    #: "reread": ordered for rows that the server changed without logging them; empty: a user has asked for it
    cause: str
    priority: int
    limits: DumpLimits
    #: runs although the server may not keep its log long enough
    forced: bool
    created_at_us: int
    planned_at_us: int | None
    ended_at_us: int | None
    #: columns of the key in whose order it is read; empty: the whole table in one snapshot, or not planned yet
    key: list[str]
    #: in the lake, as the server sent them
    rows: int
    bytes: int
    chunks: int
    #: read, and not in the lake yet, as the agent said last
    uncommitted_rows: int
    #: of the key, by the plan
    ranges: int
    ranges_done: int
    #: of the server's statistics
    estimated_rows: int | None
    estimated_bytes: int | None
    #: about what it will have been; null while nothing tells: then it is at least `rows`
    expected_rows: int | None
    #: of those, in the lake; null while unknown
    percent: float | None
    #: over the agent's last seconds; null while it says nothing
    rows_per_second: int | None
    bytes_per_second: int | None
    #: about; by its speed of the last seconds; null while unknown
    estimated_end_us: int | None
    #: what the plan found that an operator should know
    warning: str
    #: that the server keeps its log from the plan on, and that the dump needs it; null: not known, or not needed
    runway_seconds: int | None
    needed_seconds: int | None


class DumpRangeView(View):
    number: int
    done: bool
    #: in the lake
    rows: int
    bytes: int
    chunks: int


class DumpDetail(DumpView):
    of_ranges: list[DumpRangeView]


class Dumps(View):
    #: the newest first
    dumps: list[DumpView]
    #: for the next page; null on the last
    next_cursor: str | None


class DumpChanged(DumpView):
    #: whether the command changed anything
    changed: bool


class UnloggedCauseView(View):
    #: number of the event that told of it
    gsn: int
    #: of the transaction, in the server's own words
    position: str
    why: str
    at_us: int
    #: a lake has stopped the table, which only a dump ends
    of_lake: bool = False


class UnloggedView(View):
    """Rows that the server changed without logging them: those from before the causes may be stale."""

    #: a dump is ordered for it; false: the policy, or who has cancelled the dump, leaves it at this note
    reread: bool
    most_per_hour: int
    #: the oldest first
    causes: list[UnloggedCauseView]
    #: causes between these that are not listed
    more: int


class LeafView(View):
    """Rows that differ: of keys above `lower` up to and with `upper`; empty: without bound."""

    lower: str
    upper: str
    source_rows: int
    lake_rows: int
    #: of one row, as a JSON array of texts; or which part of the rows it is, where their keys have no order
    key: str
    #: of that row, which differ; empty: not known
    columns: str


class VerdictView(View):
    """What a verification has found of a table in a lake."""

    lake: str
    #: the dump that read the source
    verification: str
    verdict: Literal["equal", "differs", "void", "unknown"]
    #: why it is not equal; empty: it is
    reason: str
    #: of the source, behind the last row that was read, in the server's own words; empty: it did not end
    position: str
    #: of the lake, at whose end the last rows were compared
    cut: int
    source_rows: int
    lake_rows: int
    leaves_equal: int
    leaves_differ: int
    leaves_unknown: int
    #: the first ones of those that differ
    leaves: list[LeafView]
    #: when the source's last rows were read, or when it was found that none can be
    proven_at_us: int
    #: now minus that
    age_us: int


class TableProof(View):
    """What verifications have found of a table, in the lake of which the least is known."""

    state: Proof
    #: the newest; null: there is none
    verdict: VerdictView | None
    #: the newest that is equal; null: there is none
    proof: VerdictView | None


class TableView(View):
    database: str
    table: str
    #: the worst of all stages
    state: State
    #: where it is held up; null when nothing holds it up
    stage: Stage | None
    desired: Desired | None
    #: asked of its agent: started, and not failed on its way to the landing
    runs: bool
    #: where it shall begin; null once it has begun
    start: StartKind | None
    #: up to here all of it has landed, in the server's own words; in a list a long one ends in "..."
    position: str
    #: of `stage`
    problem: ProblemView | None
    #: null where no sink reports
    lake: LakeTableView | None
    #: why the lake lacks the table's older rows; empty when it lacks none
    earlier_rows_missing: str
    #: since when and why rows may be stale; null: the table is what its source is, as far as it is read
    unlogged: UnloggedView | None
    ignored_columns: list[str]
    #: change events landed
    rows: int
    bytes: int
    #: now minus the commit time of its last change that landed
    freshness_us: int | None
    last_commit_timestamp_us: int | None
    landed_at_us: int | None
    engine: str
    estimated_rows: int | None
    size_bytes: int | None
    #: refused by the agent's local policy
    denied: bool
    #: no longer on the server
    gone: bool
    #: the one that runs
    dump: DumpView | None
    #: null where no sync was asked for
    proof: TableProof | None


class ColumnView(View):
    name: str
    column_type: str
    nullable: bool
    charset: str
    ignored: bool
    generated: bool


class KeyView(View):
    name: str
    unique: bool
    columns: list[str]


class ForeignKeyView(View):
    name: str
    columns: list[str]
    #: [database, table]
    parent: list[str]
    #: in the order of `columns`
    parent_columns: list[str]


class TableDetail(TableView):
    collation: str
    columns: list[ColumnView]
    keys: list[KeyView]
    #: of which the table is the child
    foreign_keys: list[ForeignKeyView]
    #: that there are beside these
    more_foreign_keys: int


class AlteredOffset(View):
    """From where a table shall go on, in place of its position, once it is started again."""

    position: str
    reason: str
    #: who has altered it
    actor: str
    at_us: int


class OffsetView(View):
    """Places in a source's log, each in its server's words; empty: there is none yet."""

    #: of the source: up to where its agent has read, as it said last
    read: str
    #: of the source: up to where all of it has landed, but for tables that are elsewhere
    committed: str
    #: of the table: up to where all of it has landed
    position: str
    altered: AlteredOffset | None
    #: what an alteration leads to
    notice: str


class TableEventView(View):
    """What happened to a table other than changes of rows."""

    #: its number among the source's row changes
    gsn: int
    kind: str
    commit_timestamp_us: int
    position: str
    #: as the server logged it
    statement: str
    removes_rows: bool
    #: [database, table], of a renamed one
    new_name: list[str]
    #: of DUMP_STARTED and DUMPED
    dump: str
    #: why rows from before may be stale since then; empty: none is
    unlogged_changes: str


class SourceEventView(TableEventView):
    database: str
    table: str


class DefinitionColumnView(View):
    name: str
    #: a very long one ends in "..."
    column_type: str
    #: null: the log does not say it
    nullable: bool | None = None
    ignored: bool | None = None
    generated: bool | None = None


class DefinitionView(View):
    """What a table's definition became."""

    #: of the table's, from 1
    number: int
    #: "log": an event of the log, with the columns that leave the host. "server": a look at the server, which shows all
    teller: Literal["log", "server"]
    #: when it became so, as the log says, or when it was seen; null: before anybody looked
    at_us: int | None
    #: number of the event among the source's row changes; null: no event told it
    gsn: int | None
    #: of the change, in the server's own words; empty: no event told it
    position: str
    columns: list[DefinitionColumnView]
    #: of the log: the key by which it names rows, without a name of its own
    keys: list[KeyView]


class Definitions(View):
    #: the newest first; none: the definition of now is the only one that was seen
    definitions: list[DefinitionView]
    #: versions that are not kept any more, of the oldest ones
    dropped: int
    #: for the next page; null on the last
    next_cursor: str | None = None


class LedgerEntryView(View):
    """What became of a table's continuity. Positions are in the server's own words."""

    #: of the table's, from 1
    number: int
    at_us: int
    #: a name of `continuity_ledger.LedgerKind`
    kind: str
    #: number of the event among the source's row changes; 0: no event told it
    gsn: int
    #: of a GAP: up to where the table was read
    from_position: str
    #: where the table was then
    to_position: str
    #: of DUMP_STARTED and DUMPED
    dump: str
    #: the reason; of a COMMAND what was ordered
    detail: str
    #: who has ordered it; empty: it follows the log
    actor: str
    #: SHA-256 over the entry and the hash of the one before it
    hash: str


class Ledger(View):
    #: the newest first
    entries: list[LedgerEntryView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class LedgerChecked(View):
    #: that are as they were written
    entries: int
    #: the hash of the last of them
    head: str
    #: number of the first entry that is missing or not as it was written; null: all are there
    broken_at: int | None
    #: number of the entry whose hash is the `head` of the request; null: of none
    has_head_at: int | None


class LedgerShown(View):
    """As `menura ledger --json` has it."""

    entries: list[LedgerEntryView]
    checked: LedgerChecked


class TableShown(View):
    """As `menura table show --json` has it."""

    table: TableDetail
    history: Definitions


class TableEvents(View):
    #: the last one first
    events: list[TableEventView]


class Agents(View):
    agents: list[AgentView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class Sources(View):
    sources: list[SourceView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class Tables(View):
    tables: list[TableView]
    #: how many match in all
    total: int
    #: for the next page; null on the last
    next_cursor: str | None


class Fleet(View):
    tenant: str
    at_us: int
    agents: list[AgentView]
    sources: list[SourceView]


class TenantView(View):
    tenant: str
    agents: int
    sources: int


class Tenants(View):
    tenants: list[TenantView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class RefusalView(View):
    code: str
    doing: str
    found: str
    data: str
    remedy: str


class OutcomeView(View):
    database: str
    table: str
    #: whether the command changed the table's desired state
    changed: bool
    #: what to know about this start, e.g. which rows will be missing; empty when there is nothing
    notice: str
    refused: RefusalView | None
    #: that the command began; empty for none
    dump: str


class Outcomes(View):
    source: str
    generation: int
    #: says how far each table is; empty: there is none
    operation: str = ""
    tables: list[OutcomeView]


class StartedTable(TableView):
    changed: bool
    notice: str


class RuleView(View):
    """Tables whose names match both globs are started as soon as they are there."""

    rule: str
    database: str
    table: str
    start: StartKind
    created_at_us: int


class Rules(View):
    rules: list[RuleView]


class OperationView(View):
    operation: str
    #: start, stop, retry, resync or dump
    kind: str
    at_us: int
    #: no table waits or runs
    done: bool
    tables: dict[Progress, int]


class Operations(View):
    operations: list[OperationView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class OperationTableView(View):
    database: str
    table: str
    progress: Progress
    #: the code of the error; empty: it was not
    refused: str
    #: that it began; empty for none
    dump: str


class OperationDetail(OperationView):
    of_tables: list[OperationTableView]
    #: for the next page of tables; null on the last
    next_cursor: str | None = None


class SourceVerdictView(VerdictView):
    database: str
    table: str


class Verdicts(View):
    #: the newest first
    verdicts: list[VerdictView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class ProofView(TableProof):
    database: str
    table: str
    #: that runs now; empty: none does
    verification: str


class Proofs(View):
    proofs: list[ProofView]
    #: for the next page; null on the last
    next_cursor: str | None = None
