"""Sessions of browsers, and links that make one.

Comes in: logins, within the caller's transaction. Goes out: rows that hold a digest of the cookie's secret, which has
256 random bits. A session is one of two: a token's, which has its role and ends with it, or a person's, whom an
identity provider has named, with the roles of that moment. A link is a row too; whoever shows its secret first gets the
session, and the row is gone with that transaction. A kill before leaves the link as it was.
"""

import hashlib
import hmac
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, delete, insert, select

from controlplane_api.identity import api_tokens
from controlplane_api.identity.callers import Caller, Grant, Role
from controlplane_api.models import ApiToken, WebSession

SESSION_SECONDS = 8 * 3_600
LINK_SECONDS = 600
#: of one actor, sessions and links; the oldest go
MAX_OF_ACTOR = 100


@dataclass(frozen=True, slots=True)
class SessionOf:
    """Whose session it is; `token_id`: of the row of the token that has opened it."""

    caller: Caller
    token_id: int | None


@dataclass(frozen=True, slots=True)
class Opened:
    secret: str = field(repr=False)
    expires_at_us: int


def open_session(connection: Connection, whose: SessionOf, now: int) -> Opened:
    return _insert(connection, whose, now, SESSION_SECONDS, link=False)


def create_link(connection: Connection, whose: SessionOf, now: int) -> Opened:
    return _insert(connection, whose, now, LINK_SECONDS, link=True)


def spend_link(connection: Connection, secret: str, now: int) -> SessionOf | None:
    """Whose session it makes; None where it is no link, or was used, or its time is over."""
    whose = _find(connection, secret, now, link=True)
    spent = delete(WebSession).where(WebSession.secret_sha256 == _digest(secret), WebSession.link)
    return whose if connection.execute(spent).rowcount == 1 else None


def session_of(connection: Connection, secret: str, now: int) -> SessionOf | None:
    """None where there is none, or its time or its token's is over."""
    return _find(connection, secret, now, link=False)


def sessions_of(connection: Connection, shown: Collection[str], now: int) -> dict[str, SessionOf]:
    """Of many secrets those that have a session."""
    secrets = {_digest(secret): secret for secret in shown}
    rows = connection.execute(
        select(WebSession)
        .where(WebSession.secret_sha256.in_(secrets), WebSession.link.is_(False))
        .where(WebSession.created_at_us <= now + api_tokens.SKEW_US, WebSession.expires_at_us > now)
    ).all()
    callers = api_tokens.live_callers(connection, {row.token_id for row in rows if row.token_id is not None}, now)
    found = [
        (row, Caller(row.actor, _grants(row.grants)) if row.token_id is None else callers.get(row.token_id))
        for row in rows
    ]
    return {secrets[row.secret_sha256]: SessionOf(caller, row.token_id) for row, caller in found if caller is not None}


def end_session(connection: Connection, secret: str) -> None:
    connection.execute(delete(WebSession).where(WebSession.secret_sha256 == _digest(secret)))


def page_token(secret: str) -> str:
    """What the page of a session sends with each command: another site's page can't read it."""
    return hmac.new(secret.encode(), b"menura page token", "sha256").hexdigest()


def is_page_token(secret: str, shown: str) -> bool:
    return hmac.compare_digest(page_token(secret).encode(), shown.encode())


def _insert(connection: Connection, whose: SessionOf, now: int, seconds: int, *, link: bool) -> Opened:
    connection.execute(delete(WebSession).where(WebSession.expires_at_us < now))
    of_actor = select(WebSession.id).where(WebSession.actor == whose.caller.actor)
    oldest = connection.execute(of_actor.order_by(WebSession.id.desc()).offset(MAX_OF_ACTOR - 1)).scalars().all()
    connection.execute(delete(WebSession).where(WebSession.id.in_(oldest)))
    opened = Opened(secrets.token_urlsafe(32), now + seconds * 1_000_000)
    of_token = whose.token_id is not None
    connection.execute(
        insert(WebSession).values(
            secret_sha256=_digest(opened.secret),
            link=link,
            actor=whose.caller.actor,
            grants=[] if of_token else [[grant.role, grant.tenant] for grant in whose.caller.grants],
            token_id=whose.token_id,
            created_at_us=now,
            expires_at_us=opened.expires_at_us,
        )
    )
    return opened


def _find(connection: Connection, secret: str, now: int, *, link: bool) -> SessionOf | None:
    row = connection.execute(
        select(WebSession, ApiToken.token)
        .outerjoin(ApiToken, ApiToken.id == WebSession.token_id)
        .where(WebSession.secret_sha256 == _digest(secret), WebSession.link == link)
        .where(WebSession.created_at_us <= now + api_tokens.SKEW_US, WebSession.expires_at_us > now)
    ).first()
    if row is None:
        return None
    if row.token_id is None:
        return SessionOf(Caller(row.actor, _grants(row.grants)), None)
    token = api_tokens.row_of(connection, row.token)
    if token is None or not api_tokens.is_live(token, now):
        return None
    return SessionOf(api_tokens.caller_of(token), row.token_id)


def _grants(stored: Sequence[Sequence[str]]) -> tuple[Grant, ...]:
    return tuple(Grant(Role(role), tenant) for role, tenant in stored)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
