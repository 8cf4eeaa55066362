"""Who agents are: tokens that enrol them, their end, whose a source is, and what was done and refused."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from menura.instants import now_us
from sqlalchemy import Connection

from controlplane_api.api.openapi import refusals
from controlplane_api.api.pages import Cursor, Limit, page_of, read_cursor, write_cursor
from controlplane_api.api.paths import AgentName, ControlDatabase, SourceName, TenantName, TokenName
from controlplane_api.api.requests import AgentCommand, AgentCreate, SourceAssign, TokenCommand, TokenCreate
from controlplane_api.api.views import AgentChanged, Audit, AuditView, SourceAssigned, TokenCreated, Tokens, TokenView
from controlplane_api.api.writing import KEYED, Write, WriteSecret
from controlplane_api.database import read_one_moment
from controlplane_api.errors import AgentExists, AgentUnknown, CaMissing, TokensTooMany, TokenUnknown
from controlplane_api.identity import agents, audit, tokens
from controlplane_api.models import AnyRow
from controlplane_api.states import AuditOutcome

router = APIRouter(prefix="/api/v1/tenants/{tenant}", tags=["identities"])

AuditText = Annotated[
    str,
    Query(
        max_length=512,
        pattern="^[^\\x00]*$",
        description="Part of who, what, the error's code or what was found; empty: all.",
    ),
]


@dataclass(frozen=True, slots=True)
class AuditQuery:
    text: AuditText = ""
    outcome: Annotated[AuditOutcome | None, Query(description="What became of it.")] = None
    cursor: Cursor = ""
    limit: Limit = 100


AuditSearch = Annotated[AuditQuery, Depends()]


@router.post("/tokens", responses=refusals(CaMissing, TokensTooMany))
def create_token(tenant: TenantName, request: TokenCreate, write: WriteSecret) -> TokenCreated:
    """A token that enrols one agent, once. Its secret is in this answer and nowhere else."""
    now = now_us()

    def act(connection: Connection) -> TokenCreated:
        token = tokens.create(connection, tenant, request.agent or "", request.ttl_seconds, now)
        found = f"{token.id} for {f'agent {request.agent}' if request.agent else 'a new agent'}"
        audit.record(connection, tenant, write.actor, "create token", found=found)
        shown = "" if write.dry_run else token.reveal()
        ends = now + request.ttl_seconds * 1_000_000
        return TokenCreated(token=shown, id=token.id, agent=request.agent, expires_at_us=ends)

    return write.run(TokenCreated, act)


@router.get("/tokens")
def get_tokens(tenant: TenantName, database: ControlDatabase, cursor: Cursor = "", limit: Limit = 100) -> Tokens:
    """The newest first, without their secrets; those that are over are kept for 30 days."""
    with database.read() as connection:
        return _tokens(connection, tenant, cursor, limit)


@router.post("/tokens/{token}/revoke", responses=refusals(TokenUnknown, *KEYED))
def revoke_token(tenant: TenantName, token: TokenName, _request: TokenCommand, write: Write) -> TokenView:
    """It enrols nobody from now on; an agent that it has enrolled stays."""

    def act(connection: Connection) -> TokenView:
        tokens.revoke(connection, tenant, token, now_us())
        audit.record(connection, tenant, write.actor, "revoke token", found=token)
        return _token_view(tokens.row(connection, tenant, token))

    return write.run(TokenView, act)


@router.post("/agents", responses=refusals(AgentExists, *KEYED))
def add_agent(tenant: TenantName, request: AgentCreate, write: Write) -> AgentChanged:
    """One whose certificates your own CA makes; others come by enrolment."""

    def act(connection: Connection) -> AgentChanged:
        agents.add(connection, tenant, request.agent)
        audit.record(connection, tenant, write.actor, "add agent", found=request.agent)
        return AgentChanged(agent=request.agent, changed=True)

    return write.run(AgentChanged, act)


@router.post("/agents/{agent}/revoke", responses=refusals(AgentUnknown, *KEYED))
def revoke_agent(tenant: TenantName, agent: AgentName, _request: AgentCommand, write: Write) -> AgentChanged:
    """Its streams end, and it is refused, until a token that names it enrols another key."""

    def act(connection: Connection) -> AgentChanged:
        changed = agents.revoke(connection, tenant, agent, now_us())
        audit.record(connection, tenant, write.actor, "revoke agent", found=agent)
        return AgentChanged(agent=agent, changed=changed)

    return write.run(AgentChanged, act)


@router.post("/sources/{source}/assign", responses=refusals(AgentUnknown, *KEYED))
def assign_source(tenant: TenantName, source: SourceName, request: SourceAssign, write: Write) -> SourceAssigned:
    """The source is this agent's from now on, and no other one's; it is made where it is new."""

    def act(connection: Connection) -> SourceAssigned:
        agents.assign(connection, tenant, source, request.agent)
        audit.record(connection, tenant, write.actor, "assign source", found=f"{source} to agent {request.agent}")
        return SourceAssigned(source=source, agent=request.agent)

    return write.run(SourceAssigned, act)


@router.get("/audit")
def get_audit(tenant: TenantName, database: ControlDatabase, search: AuditSearch) -> Audit:
    """What was done, by whom, what was refused and what has failed, the newest first.

    One request looks at no more than 5,000 entries: a page may have fewer than `limit`, and a cursor that goes on.
    """
    with database.read() as connection:
        return audit_page(connection, tenant, search)


def audit_page(connection: Connection, tenant: str, search: AuditQuery) -> Audit:
    """`tenant`: empty for what is no tenant's. First in its transaction."""
    after = read_cursor(search.cursor, int)
    read_one_moment(connection)
    before = None if after is None else int(after[0])
    found = audit.search(connection, tenant, search.limit, text=search.text, outcome=search.outcome, before=before)
    fields = ("at_us", "actor", "action", "refused", "found")
    entries = [
        AuditView(outcome=audit.outcome_of(row), **{name: getattr(row, name) for name in fields}) for row in found.rows
    ]
    following = None if found.before is None else write_cursor(found.before)
    return Audit(entries=entries, looked_at=found.looked_at, next_cursor=following)


def _tokens(connection: Connection, tenant: str, cursor: str, limit: int) -> Tokens:
    after = read_cursor(cursor, int)
    found = tokens.listed(connection, tenant, limit + 1, None if after is None else int(after[0]))
    rows, following = page_of(found, limit, lambda row: (row.id,))
    return Tokens(tokens=[_token_view(row) for row in rows], next_cursor=following)


def _token_view(row: AnyRow) -> TokenView:
    fields = ("agent", "created_at_us", "expires_at_us", "used_at_us", "used_by", "revoked_at_us")
    return TokenView(id=row.token, **{name: getattr(row, name) for name in fields})
