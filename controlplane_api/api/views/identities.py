"""Who there is: agents, tokens, sessions; and what was done by whom."""

from pydantic import model_validator

from controlplane_api.api.views.base import View
from controlplane_api.api.views.problems import ProblemView
from controlplane_api.identity.callers import Role
from controlplane_api.states import AuditOutcome, ConfigurationState

#: of an enrolment token
MAX_TOKEN_SECONDS = 7 * 86_400
MAX_API_TOKEN_SECONDS = 366 * 86_400


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
    #: of the certificate that it has shown or got last; null: it has shown none
    certificate_expires_at_us: int | None = None
    #: the first of the sources that are configured here, those before whose configuration is not met, and how many
    #: there are
    configurations: "list[AgentConfigurationView]" = []  # noqa: RUF012
    configured_sources: int = 0


class AgentConfigurationView(View):
    """What is desired of one of its sources, and what of it runs."""

    source: str
    state: ConfigurationState
    generation: int
    #: of what runs, as the agent said last; 0: nothing does
    effective_generation: int
    changed_at_us: int
    told_at_us: int | None
    #: CONFIGURATION_APPLIED, or the code of why it is not
    reason: str
    #: what there is to know; empty when it is applied
    message: str


class AgentChanged(View):
    agent: str
    #: false: it was so before
    changed: bool


class SourceAssigned(View):
    source: str
    agent: str


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
    outcome: AuditOutcome
    #: code of the error; empty: it was done
    refused: str
    found: str

    @model_validator(mode="before")
    @classmethod
    def _with_outcome(cls, told: object) -> object:
        """An API of an earlier version tells none."""
        if isinstance(told, dict) and "outcome" not in told:
            return {**told, "outcome": AuditOutcome.REFUSED if told.get("refused") else AuditOutcome.DONE}
        return told


class Audit(View):
    entries: list[AuditView]
    #: entries that were looked at for these, those that do not match included; 0: an earlier version does not tell it
    looked_at: int = 0
    #: for the next page, which may have fewer than `limit` although older ones match; null: there is no older entry
    next_cursor: str | None = None


class Agents(View):
    agents: list[AgentView]
    #: how many the tenant has, on whichever page; of a list that is not in pages it says nothing
    total: int | None = None
    connected: int | None = None
    #: for the next page; null on the last
    next_cursor: str | None = None


class TenantView(View):
    tenant: str
    agents: int
    sources: int
    #: that somebody wants to be synced, whatever their state; null unless `count_tables` asks for it
    synced_tables: int | None = None
    #: null in answers of an earlier version
    created_at_us: int | None = None


class Tenants(View):
    tenants: list[TenantView]
    #: for the next page; null on the last
    next_cursor: str | None = None
