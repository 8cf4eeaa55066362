"""Sources and what their states are; the fleet."""

from controlplane_api.api.views.base import View
from controlplane_api.api.views.identities import AgentView
from controlplane_api.api.views.lakes import LakeView
from controlplane_api.api.views.problems import ProblemView
from controlplane_api.states import Stage, State


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
    #: when the agent said so; null: it has said nothing of now
    told_at_us: int | None
    #: that its stream has waited for the gateway to take more, since the agent's process began; null while unknown
    credit_wait_us: int | None
    #: it is configured here, and no longer by its agent's file
    configured: bool = False
    #: what the agent said last of how long its server keeps the log, and when; of how much may still be written to it
    #: before the server gives up what is needed; null: not known, or its server has no such limit
    log_retention_seconds: int | None = None
    log_room_bytes: int | None = None
    #: true: the server keeps its log until somebody removes it; false: it has a limit; null: not known
    log_is_unlimited: bool | None = None
    health_at_us: int | None = None


class HistoryView(View):
    """How a source was of late. Each list has one value for each of `at_us`; null: it was not known then."""

    source: str
    #: false: there is no look at it yet, or there are too many sources
    is_kept: bool
    #: when the process that answers began to look; what was before is not known to it
    since_us: int
    step_seconds: int
    at_us: list[int]
    #: of what was read, behind the end of the log
    source_lag_seconds: list[float | None]
    #: of what has landed, at most
    landed_lag_seconds: list[float | None]
    #: of the lake that is the furthest behind
    lake_lag_seconds: list[float | None]
    read_rows_per_second: list[float | None]
    landed_rows_per_second: list[float | None]
    lake_rows_per_second: list[float | None]


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


class Sources(View):
    sources: list[SourceView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class Fleet(View):
    tenant: str
    at_us: int
    agents: list[AgentView]
    sources: list[SourceView]
