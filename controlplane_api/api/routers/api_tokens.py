"""Tokens of the API, of a tenant and of the whole fleet."""

from typing import Annotated

from fastapi import APIRouter, Query
from menura.instants import now_us
from sqlalchemy import Connection

from controlplane_api.api.paths import ApiTokenName, ControlDatabase, CurrentCaller, TenantName
from controlplane_api.api.requests import ApiTokenCommand, ApiTokenCreate, FleetApiTokenCreate
from controlplane_api.api.routers.identities import audit_view
from controlplane_api.api.views import ApiTokenCreated, ApiTokens, ApiTokenView, Audit
from controlplane_api.database import Database
from controlplane_api.identity import api_tokens, audit
from controlplane_api.identity.callers import Caller, Grant

router = APIRouter(prefix="/v1")


@router.post("/tenants/{tenant}/api-tokens")
def create_api_token(
    tenant: TenantName, request: ApiTokenCreate, database: ControlDatabase, caller: CurrentCaller
) -> ApiTokenCreated:
    """A token of a role in this tenant. Its secret is in this answer and nowhere else."""
    return _create(database, caller, Grant(request.role, tenant), request)


@router.get("/tenants/{tenant}/api-tokens")
def get_api_tokens(tenant: TenantName, database: ControlDatabase) -> ApiTokens:
    """The newest first, without their secrets; those that are over are kept for 30 days."""
    with database.read() as connection:
        return _listed(connection, tenant)


@router.post("/tenants/{tenant}/api-tokens/{api_token}/revoke")
def revoke_api_token(
    tenant: TenantName, api_token: ApiTokenName, _request: ApiTokenCommand, database: ControlDatabase,
    caller: CurrentCaller,
) -> ApiTokens:  # fmt: skip
    """It is good for nothing from now on; sessions that it has opened end."""
    return _revoke(database, caller, tenant, api_token)


@router.post("/api-tokens")
def create_fleet_api_token(
    request: FleetApiTokenCreate, database: ControlDatabase, caller: CurrentCaller
) -> ApiTokenCreated:
    """A token of a role in the whole fleet: that of a tenant in each of them, or one of the fleet's own."""
    return _create(database, caller, Grant(request.role, None), request)


@router.get("/api-tokens")
def get_fleet_api_tokens(database: ControlDatabase) -> ApiTokens:
    """Those of the whole fleet, the newest first."""
    with database.read() as connection:
        return _listed(connection, None)


@router.post("/api-tokens/{api_token}/revoke")
def revoke_fleet_api_token(
    api_token: ApiTokenName, _request: ApiTokenCommand, database: ControlDatabase, caller: CurrentCaller
) -> ApiTokens:
    """One of the whole fleet."""
    return _revoke(database, caller, None, api_token)


@router.get("/audit")
def get_fleet_audit(database: ControlDatabase, limit: Annotated[int, Query(ge=1, le=1_000)] = 100) -> Audit:
    """What was done and refused that is no tenant's, the newest first."""
    with database.read() as connection:
        return audit_view(audit.newest(connection, "", limit))


def _create(
    database: Database, caller: Caller, grant: Grant, request: ApiTokenCreate | FleetApiTokenCreate
) -> ApiTokenCreated:
    now = now_us()
    with database.write() as connection:
        token = api_tokens.create(connection, grant, request.name, caller.actor, now, request.ttl_seconds)
        found = f"{token.id} ({request.name}), {grant.role} of {grant.tenant or 'the whole fleet'}"
        audit.record(connection, grant.tenant or "", caller.actor, "create api token", found=found)
    expires_at_us = now + request.ttl_seconds * 1_000_000
    return ApiTokenCreated(token=token.reveal(), id=token.id, expires_at_us=expires_at_us)


def _revoke(database: Database, caller: Caller, tenant: str | None, token: str) -> ApiTokens:
    with database.write() as connection:
        api_tokens.revoke(connection, tenant, token, now_us())
        audit.record(connection, tenant or "", caller.actor, "revoke api token", found=token)
        return _listed(connection, tenant)


def _listed(connection: Connection, tenant: str | None) -> ApiTokens:
    fields = ("name", "role", "created_by", "created_at_us", "expires_at_us", "revoked_at_us")
    rows = api_tokens.listed(connection, tenant)
    views = [ApiTokenView(id=row.token, **{name: getattr(row, name) for name in fields}) for row in rows]
    return ApiTokens(api_tokens=views)
