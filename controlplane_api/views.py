"""What the API answers, as JSON: one class per thing a caller sees. Times in microseconds since the epoch, UTC."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from controlplane_api.states import Desired, StartKind, State

MAX_NAMED_TABLES = 100_000


class View(BaseModel):
    model_config = ConfigDict(frozen=True)


class ProblemView(View):
    """A failure that an agent, the gateway or the cut log reported."""

    code: str
    message: str
    terminal: bool
    at_us: int


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
    problem: ProblemView | None
    cartography_at_us: int | None
    #: tables of the cartography by state of their sync
    tables: dict[State, int]
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


class TableView(View):
    database: str
    table: str
    state: State
    desired: Desired | None
    #: where it shall begin; null once it has begun
    start: StartKind | None
    #: up to here the lake has all of it, in the server's own words
    position: str
    problem: ProblemView | None
    #: why the lake lacks the table's older rows; empty when it lacks none
    earlier_rows_missing: str
    ignored_columns: list[str]
    #: change events landed
    rows: int
    bytes: int
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


class TableDetail(TableView):
    collation: str
    columns: list[ColumnView]
    keys: list[KeyView]


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


class TableEvents(View):
    #: the last one first
    events: list[TableEventView]


class Agents(View):
    agents: list[AgentView]


class Sources(View):
    sources: list[SourceView]


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


class NamedTable(View):
    model_config = ConfigDict(extra="forbid")

    database: str = Field(min_length=1, max_length=256)
    table: str = Field(min_length=1, max_length=256)


class PositionStart(View):
    model_config = ConfigDict(extra="forbid")

    #: a GTID set, or FILE:OFFSET
    position: str


class StartRequest(View):
    """Where to begin: "oldest", "now", {"position": ...}, or "resume", which is where it stopped."""

    model_config = ConfigDict(extra="forbid")

    start: Literal["oldest", "now", "resume"] | PositionStart = "resume"


class StopRequest(View):
    model_config = ConfigDict(extra="forbid")


class StartManyRequest(StartRequest):
    tables: list[NamedTable] | Literal["all"] = Field(max_length=MAX_NAMED_TABLES)


class StopManyRequest(StopRequest):
    tables: list[NamedTable] | Literal["all"] = Field(max_length=MAX_NAMED_TABLES)


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


class Outcomes(View):
    source: str
    generation: int
    tables: list[OutcomeView]


class StartedTable(TableView):
    changed: bool
    notice: str
