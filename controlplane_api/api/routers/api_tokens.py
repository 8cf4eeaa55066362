"""Tokens of the API, of a tenant and of the whole fleet."""

from fastapi import APIRouter
from menura.instants import now_us
from sqlalchemy import Connection

from controlplane_api.api.openapi import refusals
from controlplane_api.api.pages import Cursor, Limit, page_of, read_cursor
from controlplane_api.api.paths import ApiTokenName, ControlDatabase, TenantName
from controlplane_api.api.requests import ApiTokenCommand, ApiTokenCreate, FleetApiTokenCreate
from controlplane_api.api.routers.identities import AuditSearch, audit_page
from controlplane_api.api.views import ApiTokenCreated, ApiTokens, ApiTokenView, Audit
from controlplane_api.api.writing import KEYED, Write, WriteSecret, Writing
from controlplane_api.errors import ApiTokensTooMany, ApiTokenUnknown
from controlplane_api.identity import api_tokens, audit
from controlplane_api.identity.callers import Grant
from controlplane_api.models import AnyRow

router = APIRouter(prefix="/api/v1", tags=["identities"])

CREATES = refusals(ApiTokensTooMany)
REVOKES = refusals(ApiTokenUnknown, *KEYED)


@router.post("/tenants/{tenant}/api-tokens", responses=CREATES)
def create_api_token(tenant: TenantName, request: ApiTokenCreate, write: WriteSecret) -> ApiTokenCreated:
    """A token of a role in this tenant. Its secret is in this answer and nowhere else."""
    return _create(write, Grant(request.role, tenant), request)


@router.get("/tenants/{tenant}/api-tokens")
def get_api_tokens(tenant: TenantName, database: ControlDatabase, cursor: Cursor = "", limit: Limit = 100) -> ApiTokens:
    """The newest first, without their secrets; those that are over are kept for 30 days."""
    with database.read() as connection:
        return _listed(connection, tenant, cursor, limit)


@router.post("/tenants/{tenant}/api-tokens/{api_token}/revoke", responses=REVOKES)
def revoke_api_token(
    tenant: TenantName, api_token: ApiTokenName, _request: ApiTokenCommand, write: Write
) -> ApiTokenView:
    """It is good for nothing from now on; sessions that it has opened end."""
    return _revoke(write, tenant, api_token)


@router.post("/api-tokens", responses=CREATES)
def create_fleet_api_token(request: FleetApiTokenCreate, write: WriteSecret) -> ApiTokenCreated:
    """A token of a role in the whole fleet: that of a tenant in each of them, or one of the fleet's own."""
    return _create(write, Grant(request.role, None), request)


@router.get("/api-tokens")
def get_fleet_api_tokens(database: ControlDatabase, cursor: Cursor = "", limit: Limit = 100) -> ApiTokens:
    """Those of the whole fleet, the newest first."""
    with database.read() as connection:
        return _listed(connection, None, cursor, limit)


@router.post("/api-tokens/{api_token}/revoke", responses=REVOKES)
def revoke_fleet_api_token(api_token: ApiTokenName, _request: ApiTokenCommand, write: Write) -> ApiTokenView:
    """One of the whole fleet."""
    return _revoke(write, None, api_token)


@router.get("/audit")
def get_fleet_audit(database: ControlDatabase, search: AuditSearch) -> Audit:
    """What was done and refused that is no tenant's, the newest first."""
    with database.read() as connection:
        return audit_page(connection, "", search)


def _create(write: Writing, grant: Grant, request: ApiTokenCreate | FleetApiTokenCreate) -> ApiTokenCreated:
    now = now_us()

    def act(connection: Connection) -> ApiTokenCreated:
        token = api_tokens.create(connection, grant, request.name, write.actor, now, request.ttl_seconds)
        found = f"{token.id} ({request.name}), {grant.role} of {grant.tenant or 'the whole fleet'}"
        audit.record(connection, grant.tenant or "", write.actor, "create api token", found=found)
        shown = "" if write.dry_run else token.reveal()
        return ApiTokenCreated(token=shown, id=token.id, expires_at_us=now + request.ttl_seconds * 1_000_000)

    return write.run(ApiTokenCreated, act)


def _revoke(write: Writing, tenant: str | None, token: str) -> ApiTokenView:
    def act(connection: Connection) -> ApiTokenView:
        api_tokens.revoke(connection, tenant, token, now_us())
        audit.record(connection, tenant or "", write.actor, "revoke api token", found=token)
        return _view(api_tokens.shown_row(connection, token))

    return write.run(ApiTokenView, act)


def _listed(connection: Connection, tenant: str | None, cursor: str, limit: int) -> ApiTokens:
    after = read_cursor(cursor, int)
    found = api_tokens.listed(connection, tenant, limit + 1, None if after is None else int(after[0]))
    rows, following = page_of(found, limit, lambda row: (row.id,))
    return ApiTokens(api_tokens=[_view(row) for row in rows], next_cursor=following)


def _view(row: AnyRow) -> ApiTokenView:
    fields = ("name", "role", "created_by", "created_at_us", "expires_at_us", "revoked_at_us")
    return ApiTokenView(id=row.token, **{name: getattr(row, name) for name in fields})
