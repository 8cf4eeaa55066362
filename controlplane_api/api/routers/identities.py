"""Who agents are: tokens that enrol them, their end, whose a source is, and what was done and refused."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from menura.instants import now_us
from sqlalchemy import Connection

from controlplane_api.api.paths import AgentName, ControlDatabase, CurrentCaller, SourceName, TenantName, TokenName
from controlplane_api.api.requests import AgentCommand, AgentCreate, SourceAssign, TokenCommand, TokenCreate
from controlplane_api.api.views import AgentChanged, Audit, AuditView, SourceAssigned, TokenCreated, Tokens, TokenView
from controlplane_api.identity import agents, audit, tokens
from controlplane_api.models import AnyRow

router = APIRouter(prefix="/v1/tenants/{tenant}")


@router.post("/tokens")
def create_token(
    tenant: TenantName, request: TokenCreate, database: ControlDatabase, caller: CurrentCaller
) -> TokenCreated:
    """A token that enrols one agent, once. Its secret is in this answer and nowhere else."""
    now = now_us()
    with database.write() as connection:
        token = tokens.create(connection, tenant, request.agent or "", request.ttl_seconds, now)
        found = f"{token.id} for {f'agent {request.agent}' if request.agent else 'a new agent'}"
        audit.record(connection, tenant, caller.actor, "create token", found=found)
    return TokenCreated(
        token=token.reveal(), id=token.id, agent=request.agent, expires_at_us=now + request.ttl_seconds * 1_000_000
    )


@router.get("/tokens")
def get_tokens(tenant: TenantName, database: ControlDatabase) -> Tokens:
    """The newest first, without their secrets; those that are over are kept for 30 days."""
    with database.read() as connection:
        return Tokens(tokens=_token_views(connection, tenant))


@router.post("/tokens/{token}/revoke")
def revoke_token(
    tenant: TenantName, token: TokenName, _request: TokenCommand, database: ControlDatabase, caller: CurrentCaller
) -> Tokens:
    """It enrols nobody from now on; an agent that it has enrolled stays."""
    with database.write() as connection:
        tokens.revoke(connection, tenant, token, now_us())
        audit.record(connection, tenant, caller.actor, "revoke token", found=token)
        return Tokens(tokens=_token_views(connection, tenant))


@router.post("/agents")
def add_agent(
    tenant: TenantName, request: AgentCreate, database: ControlDatabase, caller: CurrentCaller
) -> AgentChanged:
    """One whose certificates your own CA makes; others come by enrolment."""
    with database.write() as connection:
        agents.add(connection, tenant, request.agent)
        audit.record(connection, tenant, caller.actor, "add agent", found=request.agent)
    return AgentChanged(agent=request.agent, changed=True)


@router.post("/agents/{agent}/revoke")
def revoke_agent(
    tenant: TenantName, agent: AgentName, _request: AgentCommand, database: ControlDatabase, caller: CurrentCaller
) -> AgentChanged:
    """Its streams end, and it is refused, until a token that names it enrols another key."""
    with database.write() as connection:
        changed = agents.revoke(connection, tenant, agent, now_us())
        audit.record(connection, tenant, caller.actor, "revoke agent", found=agent)
    return AgentChanged(agent=agent, changed=changed)


@router.post("/sources/{source}/assign")
def assign_source(
    tenant: TenantName, source: SourceName, request: SourceAssign, database: ControlDatabase, caller: CurrentCaller
) -> SourceAssigned:
    """The source is this agent's from now on, and no other one's; it is made where it is new."""
    with database.write() as connection:
        agents.assign(connection, tenant, source, request.agent)
        audit.record(connection, tenant, caller.actor, "assign source", found=f"{source} to agent {request.agent}")
    return SourceAssigned(source=source, agent=request.agent)


@router.get("/audit")
def get_audit(
    tenant: TenantName, database: ControlDatabase, limit: Annotated[int, Query(ge=1, le=1_000)] = 100
) -> Audit:
    """What was done, by whom, and what was refused, the newest first."""
    with database.read() as connection:
        return audit_view(audit.newest(connection, tenant, limit))


def audit_view(rows: Sequence[AnyRow]) -> Audit:
    fields = ("at_us", "actor", "action", "refused", "found")
    return Audit(entries=[AuditView(**{name: getattr(row, name) for name in fields}) for row in rows])


def _token_views(connection: Connection, tenant: str) -> list[TokenView]:
    fields = ("agent", "created_at_us", "expires_at_us", "used_at_us", "used_by", "revoked_at_us")
    return [
        TokenView(id=row.token, **{name: getattr(row, name) for name in fields})
        for row in tokens.listed(connection, tenant)
    ]
