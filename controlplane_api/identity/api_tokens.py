"""Tokens of the API: made by an administrator, shown with each request by a person's command or by a script.

Comes in: commands, within the caller's transaction. Goes out: rows that hold an argon2id hash of the secret; the secret
is in the answer to whoever made the token, and nowhere else. A token ends when its time is over or when it is revoked;
its row stays for `KEPT_SECONDS` after that. One whose time is bounded is good from `SKEW_US` before it was made: where
the clock was ahead then, and has gone back, it would be good for longer than it was made for.

``menura-api1.ID.SECRET``: 16 hexadecimal digits by which the row is found, and 256 random bits in base64url.
"""

import re
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError
from menura.identity import SKEW_SECONDS
from sqlalchemy import ColumnElement, Connection, Select, and_, delete, func, insert, or_, select, update

from controlplane_api.errors import ApiTokensTooMany, ApiTokenUnknown
from controlplane_api.identity.callers import Caller, Grant, Role
from controlplane_api.models import AnyRow, Tenant
from controlplane_api.models import ApiToken as Row
from controlplane_api.tenants import ensure_tenants

#: of a tenant, and of the fleet
MAX_LIVE_TOKENS = 1_000
KEPT_SECONDS = 30 * 86_400
#: how far clocks of several hosts may differ
SKEW_US = SKEW_SECONDS * 1_000_000
_FORM = re.compile(r"menura-api1\.([0-9a-f]{16})\.([0-9A-Za-z_-]{43})")
_SHOWN = [column for column in Row.__table__.columns if column.name != "secret_argon2"]
#: OWASP's first choice for argon2id: 19 MiB, some 25 ms
_HASHER = PasswordHasher(time_cost=2, memory_cost=19 << 10, parallelism=1)
#: verified where there is no such token, so that it takes as long
_NO_SECRET = _HASHER.hash(secrets.token_urlsafe(32))


@dataclass(frozen=True, slots=True)
class ApiToken:
    """
    >>> token = ApiToken("00112233aabbccdd", "s" * 43)
    >>> ApiToken.parse(token.reveal()) == token, token, ApiToken.parse("menura-api1.x")
    (True, ApiToken(id='00112233aabbccdd'), None)
    """

    id: str
    secret: str = field(repr=False)

    def reveal(self) -> str:
        return f"menura-api1.{self.id}.{self.secret}"

    @classmethod
    def parse(cls, text: str) -> "ApiToken | None":
        match = _FORM.fullmatch(text)
        return None if match is None else cls(match[1], match[2])


def create(
    connection: Connection, grant: Grant, name: str, created_by: str, now: int, ttl_seconds: int | None,
    token: ApiToken | None = None,
) -> ApiToken:  # fmt: skip
    """A new one, and its tenant where that is new. `token`: what it shall be. Raises `ApiTokensTooMany`."""
    over = or_(Row.expires_at_us < now - KEPT_SECONDS * 1_000_000, Row.revoked_at_us < now - KEPT_SECONDS * 1_000_000)
    connection.execute(delete(Row).where(over))
    tenant_id = None if grant.tenant is None else ensure_tenants(connection, {grant.tenant}, now)[grant.tenant]
    live = select(func.count()).where(Row.tenant_id.is_not_distinct_from(tenant_id), *_live(now))
    if connection.execute(live).scalar_one() >= MAX_LIVE_TOKENS:
        raise ApiTokensTooMany(
            "making a token of the API",
            f"there are {MAX_LIVE_TOKENS} that are good",
            data="Nothing was changed.",
            remedy="Revoke those that nobody needs.",
        )
    made = token or ApiToken(secrets.token_hex(8), secrets.token_urlsafe(32))
    connection.execute(
        insert(Row).values(
            token=made.id,
            secret_argon2=_HASHER.hash(made.secret),
            name=name,
            role=grant.role,
            tenant_id=tenant_id,
            created_by=created_by,
            created_at_us=now,
            expires_at_us=None if ttl_seconds is None else now + ttl_seconds * 1_000_000,
        )
    )
    return made


def listed(connection: Connection, tenant: str | None, limit: int, before: int | None = None) -> Sequence[AnyRow]:
    """The newest first, without hashes, of those before this row where one is named. No tenant: the fleet's."""
    statement = _of_tenant(tenant)
    if before is not None:
        statement = statement.where(Row.id < before)
    return connection.execute(statement.order_by(Row.id.desc()).limit(limit)).all()


def shown_row(connection: Connection, token: str) -> AnyRow:
    """One that is there, without its hash."""
    return connection.execute(select(*_SHOWN).where(Row.token == token)).one()


def _of_tenant(tenant: str | None) -> Select[*tuple[Any, ...]]:
    rows = select(*_SHOWN).outerjoin(Tenant, Tenant.id == Row.tenant_id)
    return rows.where(Tenant.name.is_not_distinct_from(tenant))


def revoke(connection: Connection, tenant: str | None, token: str, now: int) -> None:
    """Raises `ApiTokenUnknown`, also for another tenant's."""
    of_tenant = select(Tenant.id).where(Tenant.name == tenant).scalar_subquery()
    is_own = Row.tenant_id.is_(None) if tenant is None else Row.tenant_id == of_tenant
    revoked = update(Row).where(Row.token == token, is_own).values(revoked_at_us=func.coalesce(Row.revoked_at_us, now))
    if connection.execute(revoked).rowcount == 0:
        raise ApiTokenUnknown(
            "revoking a token of the API",
            "there is none of that name here",
            data="Nothing was changed.",
            remedy="List them first.",
        )


def row_of(connection: Connection, token: str) -> AnyRow | None:
    """With its tenant's name, whether it is good or not."""
    named = select(Row, Tenant.name.label("tenant")).outerjoin(Tenant, Tenant.id == Row.tenant_id)
    return connection.execute(named.where(Row.token == token)).first()


def live_callers(connection: Connection, row_ids: Collection[int], now: int) -> dict[int, Caller]:
    """Of these rows those that are good."""
    named = select(Row, Tenant.name.label("tenant")).outerjoin(Tenant, Tenant.id == Row.tenant_id)
    rows = connection.execute(named.where(Row.id.in_(row_ids))).all()
    return {row.id: caller_of(row) for row in rows if is_live(row, now)}


def is_live(row: AnyRow, now: int) -> bool:
    is_of_now = row.expires_at_us is None or row.created_at_us - SKEW_US <= now < row.expires_at_us
    return row.revoked_at_us is None and is_of_now


def verify(row: AnyRow | None, token: ApiToken) -> bool:
    """Whether the secret is that of the row: some 25 ms, also without a row."""
    known = _NO_SECRET if row is None else row.secret_argon2
    try:
        return _HASHER.verify(known, token.secret) and row is not None
    except (Argon2Error, InvalidHashError):
        return False


def caller_of(row: AnyRow) -> Caller:
    return Caller(f"token {row.token} ({row.name})", (Grant(Role(row.role), row.tenant),))


def _live(now: int) -> tuple[ColumnElement[bool], ...]:
    is_of_now = and_(Row.created_at_us <= now + SKEW_US, Row.expires_at_us > now)
    return Row.revoked_at_us.is_(None), or_(Row.expires_at_us.is_(None), is_of_now)
