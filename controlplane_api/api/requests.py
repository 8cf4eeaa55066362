"""What callers of the API send, as JSON: one class per body. A field that a body does not have is refused."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from controlplane_api.api.views import MAX_API_TOKEN_SECONDS, MAX_TOKEN_SECONDS, DumpLimits
from controlplane_api.identity.callers import Role

MAX_NAMED_TABLES = 100_000
#: of a dump, above and below 0
MAX_PRIORITY = 1_000
#: see `menura.naming.is_identity`
IDENTITY_PATTERN = r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$"


class Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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
    role: Role
    ttl_seconds: int = Field(default=90 * 86_400, ge=1, le=MAX_API_TOKEN_SECONDS)


class ApiTokenCreate(FleetApiTokenCreate):
    role: Literal[Role.VIEWER, Role.OPERATOR, Role.ADMIN]


class ApiTokenCommand(Request):
    """An empty object."""


class SessionOpen(Request):
    """A token of the API, or the secret of a login link."""

    token: str = Field(default="", max_length=256, repr=False)
    link: str = Field(default="", max_length=64, repr=False)


class SessionCommand(Request):
    """An empty object."""


class AgentCreate(Request):
    agent: str = Field(pattern=IDENTITY_PATTERN)


class AgentCommand(Request):
    """An empty object."""


class SourceAssign(Request):
    agent: str = Field(pattern=IDENTITY_PATTERN)


class AcceptRequest(Request):
    identity: str = Field(min_length=1, max_length=256)


class QuarantineCommand(Request):
    """An empty object."""


class NamedTable(Request):
    database: str = Field(min_length=1, max_length=256)
    table: str = Field(min_length=1, max_length=256)


class PositionStart(Request):
    #: a place in the source's log, as its server writes it
    position: str


class DumpRequest(Request):
    """How a dump shall run."""

    priority: int = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    limits: DumpLimits = DumpLimits()
    #: also when the server may not keep its log long enough
    force: bool = False


class StartRequest(Request):
    """Where to begin: "oldest", "now", {"position": ...}, "resume", which is where it stopped, or "dump".

    "dump": at the log's end, and `dump` says how its earlier rows come.
    """

    start: Literal["oldest", "now", "resume", "dump"] | PositionStart = "resume"
    dump: DumpRequest = DumpRequest()


class StopRequest(Request):
    """An empty object."""


class StartManyRequest(StartRequest):
    #: "lost": those whose desired state is gone with the control plane's database
    tables: list[NamedTable] | Literal["all", "lost"] = Field(max_length=MAX_NAMED_TABLES)


class StopManyRequest(StopRequest):
    tables: list[NamedTable] | Literal["all"] = Field(max_length=MAX_NAMED_TABLES)


class RetryRequest(Request):
    """An empty object."""


class RetryManyRequest(RetryRequest):
    tables: list[NamedTable] | Literal["all"] = Field(max_length=MAX_NAMED_TABLES)


class ResyncRequest(Request):
    """`dump` says how its rows come."""

    dump: DumpRequest = DumpRequest()


class ResyncManyRequest(ResyncRequest):
    tables: list[NamedTable] | Literal["all"] = Field(max_length=MAX_NAMED_TABLES)


class DumpManyRequest(DumpRequest):
    tables: list[NamedTable] | Literal["all"] = Field(max_length=MAX_NAMED_TABLES)


class DumpCommand(Request):
    """An empty object."""


class DumpPriority(DumpCommand):
    priority: int = Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)
