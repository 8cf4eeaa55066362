"""What callers of the API send, as JSON: one class per body. A field that a body does not have is refused."""

from typing import Annotated, Any, Literal, Self

from menura.bounds import MAX_INT64, MAX_NAME_CHARS
from menura.views.definition import EVERY, KEY_COLUMN, MOST_SQL_BYTES, MOST_VIEWS
from menura.views.scheduled import MOST_KEY_COLUMNS, scheduled
from pydantic import BaseModel, ConfigDict, Field, model_validator

from controlplane_api.api.views import MAX_API_TOKEN_SECONDS, MAX_PER_SECOND, MAX_TOKEN_SECONDS, DumpLimits
from controlplane_api.identity.callers import Role

MAX_NAMED_TABLES = 100_000
MAX_FLEET_AGENTS = 10_000
#: of a text; see `syncs.check_start`
MAX_POSITION_CHARS = 65_536
#: see menura.v1.TableSync
MAX_REASON_CHARS = 1_000
#: of a schedule of verifications
LEAST_EVERY_SECONDS, WEEK_SECONDS, MOST_EVERY_SECONDS = 3_600, 7 * 86_400, 366 * 86_400
MAX_WINDOW_CHARS = 80
#: of a dump, above and below 0
MAX_PRIORITY = 1_000
#: see spark_sink/search/asking.py; of rows an answer has fewer than a command
MAX_SEARCH_CHARS, MAX_SEARCH_FILTERS, MAX_SEARCH_FACETS, MAX_SEARCH_ROWS = 1_000, 32, 8, 100
#: see `menura.naming.is_identity`
IDENTITY_PATTERN = r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$"
#: see `menura.views.definition.is_view_name`
VIEW_NAME_PATTERN = r"^[a-z][a-z0-9_]{0,62}$"
#: of a database, a table: all that a server permits
NAME_PATTERN = r"^[^\x00]+$"

#: see `agent_packages`, in base64
MAX_SUMS_CHARS, MAX_SIGNATURE_CHARS, MAX_PART_CHARS = 88_000, 5_600, 1_400_000
MAX_PACKAGES, MAX_GROUPS, MAX_GROUP_GLOBS = 32, 32, 16
MAX_AT_ONCE, MAX_WAIT_SECONDS = 1_000, 30 * 86_400

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN)]


PackageName = Annotated[str, Field(min_length=1, max_length=255, pattern=NAME_PATTERN)]
PackageSize = Annotated[int, Field(ge=1, le=MAX_INT64)]
AgentGlob = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN)]


class Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ReleaseAdd(Request):
    #: SHA256SUMS and SHA256SUMS.sig, in base64
    sums: str = Field(max_length=MAX_SUMS_CHARS)
    signature: str = Field(max_length=MAX_SIGNATURE_CHARS)
    #: bytes of each file, by its name
    sizes: dict[PackageName, PackageSize] = Field(min_length=1, max_length=MAX_PACKAGES)


class PackagePart(Request):
    offset: int = Field(ge=0, le=MAX_INT64)
    #: bytes of the file from there, in base64
    data: str = Field(max_length=MAX_PART_CHARS)


class ReleaseCommand(Request):
    """An empty object."""


class RolloutGroup(Request):
    name: str = Field(pattern=IDENTITY_PATTERN)
    #: globs of agents' names; an agent belongs to the first group that has it
    agents: list[AgentGlob] = Field(min_length=1, max_length=MAX_GROUP_GLOBS)


class RolloutOrder(Request):
    version: str = Field(min_length=1, max_length=64, pattern=NAME_PATTERN)
    #: in their order; none: one agent as a canary, then the others
    groups: list[RolloutGroup] = Field(default=[], max_length=MAX_GROUPS)
    #: how long a group must have run the version well before the next one begins
    wait_seconds: int = Field(default=600, ge=0, le=MAX_WAIT_SECONDS)
    #: orders at a time
    at_once: int = Field(default=10, ge=1, le=MAX_AT_ONCE)
    #: with one more the rollout halts
    most_failures: int = Field(default=0, ge=0, le=MAX_FLEET_AGENTS)
    #: how long an agent may take for each step of its order
    within_seconds: int = Field(default=3_600, ge=60, le=MAX_WAIT_SECONDS)
    #: when it halts, agents that run the version are given the former one
    roll_back: bool = False


class RolloutCommand(Request):
    """An empty object."""


class RolloutBack(Request):
    """An empty object."""


class RolloutSkip(Request):
    #: a glob of their names
    agents: AgentGlob


class LakeForget(Request):
    """An empty object."""


class TokenCreate(Request):
    #: the only one that it enrols, which may be there already; null: any that is new
    agent: str | None = Field(default=None, pattern=IDENTITY_PATTERN)
    ttl_seconds: int = Field(default=3_600, ge=1, le=MAX_TOKEN_SECONDS)


class TokenCommand(Request):
    """An empty object."""


class FleetApiTokenCreate(Request):
    #: what a person knows it by
    name: str = Field(pattern=IDENTITY_PATTERN)
    #: strict, a text would be no role
    role: Annotated[Role, Field(strict=False)]
    ttl_seconds: int = Field(default=90 * 86_400, ge=1, le=MAX_API_TOKEN_SECONDS)


class ApiTokenCreate(FleetApiTokenCreate):
    role: Literal[Role.VIEWER, Role.READER, Role.OPERATOR, Role.ADMIN]


class ApiTokenCommand(Request):
    """An empty object."""


class SessionOpen(Request):
    """A token of the API, or the secret of a login link."""

    token: str = Field(default="", max_length=256, repr=False)
    link: str = Field(default="", max_length=64, repr=False)


class SessionCommand(Request):
    """An empty object."""


class JoinedViewChange(Request):
    sql: str = Field(min_length=1, max_length=MOST_SQL_BYTES)
    #: recompute it so often, e.g. 10m, 2h or 1d; null: it is followed change by change, or its text has a schedule
    every: str | None = Field(default=None, pattern=EVERY)
    #: of a view with `every`, its columns that tell rows apart; empty: its groups, or all
    key: list[Annotated[str, Field(pattern=KEY_COLUMN)]] = Field(default_factory=list, max_length=MOST_KEY_COLUMNS)

    @model_validator(mode="after")
    def _key_with_every(self) -> Self:
        if self.key and self.every is None:
            raise ValueError("key is given without every: a view that is followed has the key of its first table")
        return self

    @property
    def text(self) -> str:
        """The view's whole text."""
        return self.sql if self.every is None else scheduled(self.sql, self.every, tuple(self.key))


class JoinedViewCreate(JoinedViewChange):
    name: str = Field(pattern=VIEW_NAME_PATTERN)


class JoinedViewPlan(JoinedViewChange):
    #: a view that reads the one of this name reads itself
    name: str = Field(default="new", pattern=VIEW_NAME_PATTERN)


class JoinedViewDrop(Request):
    """An empty object."""


class AgentCreate(Request):
    agent: str = Field(pattern=IDENTITY_PATTERN)


class AgentCommand(Request):
    """An empty object."""


class SourceAssign(Request):
    agent: str = Field(pattern=IDENTITY_PATTERN)


class SourceConfigure(Request):
    agent: str = Field(pattern=IDENTITY_PATTERN)
    #: as the agent's file has it at sources.NAME; a secret is {"file": NAME} or {"env": NAME} on the agent's host
    configuration: dict[str, Any]
    #: what has to be there before: no configuration of it, one, or either
    before: Literal["none", "some", "any"] = "any"


class ConfigurationRemove(Request):
    #: false: refused while tables of the source are synced
    stop_tables: bool = False


class AcceptRequest(Request):
    identity: Name


class QuarantineCommand(Request):
    """An empty object."""


class NamedTable(Request):
    database: Name
    table: Name


class TablePattern(Request):
    """Tables by globs of both names, which match as a whole; case counts."""

    database: Name = "*"
    table: Name = "*"


class FuturePattern(TablePattern):
    #: also those that come later: a standing rule
    future: bool = False


NamedTables = Annotated[list[NamedTable], Field(max_length=MAX_NAMED_TABLES)]


class PositionStart(Request):
    #: a place in the source's log, as its server writes it
    # `syncs.check_start` checks it, and says more.
    position: str = Field(json_schema_extra={"minLength": 1, "maxLength": MAX_POSITION_CHARS})


class Pace(Request):
    priority: int = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    limits: DumpLimits = DumpLimits()


class DumpRequest(Pace):
    """How a dump shall run."""

    #: also when the server may not keep its log long enough
    force: bool = False


class StartRequest(Request):
    """Where to begin: "oldest", "now", {"position": ...}, "resume", which is where it stopped, or "dump".

    "dump": at the log's end, and `dump` says how its earlier rows come.
    """

    start: Literal["oldest", "now", "resume", "dump"] | PositionStart = "resume"
    dump: DumpRequest = DumpRequest()


class TableOfFleet(NamedTable):
    #: of a table that was never synced; one that has stopped goes on where it stopped
    start: Literal["dump", "oldest", "now"] = "dump"
    dump: DumpRequest = DumpRequest()


class SourceOfFleet(Request):
    configuration: dict[str, Any]
    #: null: the fleet says nothing of its tables
    tables: list[TableOfFleet] | None = Field(default=None, max_length=MAX_NAMED_TABLES)


class AgentOfFleet(Request):
    sources: dict[Annotated[str, Field(pattern=IDENTITY_PATTERN)], SourceOfFleet]


class FleetRequest(Request):
    agents: dict[Annotated[str, Field(pattern=IDENTITY_PATTERN)], AgentOfFleet] = Field(max_length=MAX_FLEET_AGENTS)
    #: null: the fleet says nothing of joined views
    views: dict[Annotated[str, Field(pattern=VIEW_NAME_PATTERN)], JoinedViewChange] | None = Field(
        default=None, max_length=MOST_VIEWS
    )
    #: remove sources and stop tables that it lacks, of its agents and sources, and drop views
    prune: bool = False


class StopRequest(Request):
    """An empty object."""


class OffsetAlter(PositionStart):
    """The table's present position takes an earlier alteration back."""

    #: for the audit log, and for the event in the lake that tells of what is skipped
    reason: str = Field(min_length=1, max_length=MAX_REASON_CHARS, pattern=r"\S")


class StartManyRequest(StartRequest):
    #: "lost": those whose desired state is gone with the control plane's database
    tables: NamedTables | FuturePattern | Literal["all", "lost"]


class RuleCommand(Request):
    """An empty object."""


class StopManyRequest(StopRequest):
    tables: NamedTables | TablePattern | Literal["all"]


class RetryRequest(Request):
    """An empty object."""


class RetryManyRequest(RetryRequest):
    tables: NamedTables | TablePattern | Literal["all"]


class ResyncRequest(Request):
    """`dump` says how its rows come."""

    dump: DumpRequest = DumpRequest()


class ResyncManyRequest(ResyncRequest):
    tables: NamedTables | TablePattern | Literal["all"]


class DumpManyRequest(DumpRequest):
    tables: NamedTables | TablePattern | Literal["all"]


class VerificationRequest(Pace):
    tables: NamedTables | TablePattern | Literal["all"]


class VerificationScheduleSet(Request):
    #: in which each table has its turn
    every_seconds: int = Field(default=WEEK_SECONDS, ge=LEAST_EVERY_SECONDS, le=MOST_EVERY_SECONDS)
    tables: TablePattern = TablePattern()
    #: of each verification; 0: the agent's own limit alone
    rows_per_second: int = Field(default=0, ge=0, le=MAX_PER_SECOND)
    #: in which verifications are begun: HH:MM-HH:MM, and a time zone, without one in UTC; empty: at any time
    window: str = Field(default="", max_length=MAX_WINDOW_CHARS)


class VerificationScheduleRemove(Request):
    """An empty object."""


class RepairRequest(Pace):
    """How the ranges that differ shall be read again."""


class DumpCommand(Request):
    """An empty object."""


class DumpPriority(DumpCommand):
    priority: int = Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)


class SearchRequest(Request):
    """All of it must be so of each row that is found."""

    #: words, begin*, "a phrase", -without, COLUMN:word; empty: all rows
    text: str = Field(default="", max_length=MAX_SEARCH_CHARS, repr=False)
    #: COLUMN=VALUE, or != < <= > >=, or COLUMN IS [NOT] NULL
    filters: list[Annotated[str, Field(max_length=MAX_SEARCH_CHARS)]] = Field(
        default_factory=list, max_length=MAX_SEARCH_FILTERS, repr=False
    )
    #: columns of which it is counted how many rows have each value
    facets: list[Annotated[str, Field(max_length=MAX_NAME_CHARS)]] = Field(
        default_factory=list, max_length=MAX_SEARCH_FACETS
    )
    limit: int = Field(default=10, ge=1, le=MAX_SEARCH_ROWS)
