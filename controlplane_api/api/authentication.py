"""Who asks: by the token of a request, or by the cookie of a browser.

Comes in: headers and the address of a request. Goes out: a `Known` caller, or an error that says nothing of what was
shown. The token's row is read with each request, so a revocation holds from its commit on, at every API process. Only
that a secret is that of a hash is kept, by a digest and for `KEPT_SECONDS`: verifying it takes 25 ms and 19 MiB.
Attempts with what is not good are bounded by `attempts`, and those of a token that is there stand in the audit log.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TypeVar

from menura.instants import now_us
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers

from controlplane_api.api.attempts import Attempts
from controlplane_api.database import Database
from controlplane_api.errors import CallerMissing, CallerUnknown
from controlplane_api.identity import api_tokens, audit, sessions
from controlplane_api.identity.api_tokens import ApiToken
from controlplane_api.identity.callers import ANONYMOUS, Caller
from controlplane_api.identity.sessions import SessionOf
from controlplane_api.models import AnyRow

logger = logging.getLogger(__name__)

COOKIE = "menura-session"
#: browsers take it from HTTPS alone, and from no other name's page
SECURE_COOKIE = f"__Host-{COOKIE}"
KEPT_SECONDS = 300
MAX_KEPT = 1_000
MOST_AT_ONCE = 2
#: of a cookie's secret or a link's, base64url
MAX_SECRET_CHARS = 64
_DOING = "finding out who asks"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Known:
    whose: SessionOf
    #: of the session whose cookie came; empty: no cookie
    session: str = field(repr=False, default="")

    @property
    def caller(self) -> Caller:
        return self.whose.caller


@dataclass(slots=True)
class _Verified:
    """Of which hash a token was found to be, by the token's digest."""

    clock: Callable[[], float] = time.monotonic
    _hashes: "OrderedDict[bytes, tuple[str, float]]" = field(default_factory=OrderedDict)

    def has(self, digest: bytes, row: AnyRow | None) -> bool:
        known, until = self._hashes.get(digest, ("", 0.0))
        return row is not None and until > self.clock() and row.secret_argon2 == known

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._hashes

    def add(self, digest: bytes, row: AnyRow) -> None:
        self._hashes[digest] = row.secret_argon2, self.clock() + KEPT_SECONDS
        self._hashes.move_to_end(digest)
        if len(self._hashes) > MAX_KEPT:
            self._hashes.popitem(last=False)


class Authentication:
    """Of one API process; used from its event loop alone."""

    def __init__(self, database: Database, *, anonymous: bool, secure: bool) -> None:
        """`anonymous`: who shows nothing may do everything. `secure`: browsers come by HTTPS."""
        self.database = database
        self.attempts = Attempts()
        self.cookie = SECURE_COOKIE if secure else COOKIE
        self.secure = secure
        self._anonymous = anonymous
        self._verified = _Verified()
        self._verifying = asyncio.Semaphore(MOST_AT_ONCE)

    async def identify(self, headers: Headers, address: str) -> Known:
        """Raises `CallerMissing`, `CallerUnknown`, `AttemptsTooMany`, `DatabaseError`."""
        authorization = headers.get("authorization")
        if authorization is not None:
            return await self._of_header(authorization, address)
        secret = self.session_secret(headers)
        if secret:
            return Known(await self._of_session(secret), secret)
        if self._anonymous:
            return Known(SessionOf(ANONYMOUS, None))
        raise CallerMissing(
            _DOING,
            "the request has neither a token nor a session",
            data="Nothing was changed.",
            remedy="Give --token-file or MENURA_API_TOKEN_FILE, send Authorization: Bearer, or log in at /login.",
        )

    async def of_token(self, text: str, address: str) -> SessionOf:
        """Whose a token is. Raises `CallerUnknown`, `AttemptsTooMany`, `DatabaseError`."""
        token = ApiToken.parse(text)
        if token is None:
            self.attempts.pay(address)
            raise _unknown()
        digest = hashlib.sha256(text.encode()).digest()
        paid = None if digest in self._verified else self.attempts.pay(address, token.id)
        row = await self._read(lambda: self._row_of(token))
        if not self._verified.has(digest, row):
            paid = paid or self.attempts.pay(address, token.id)
            async with self._verifying:
                is_good = await run_in_threadpool(api_tokens.verify, row, token)
            if row is None or not is_good:
                await self._refused(row, token, address, "another secret")
                raise _unknown()
            self._verified.add(digest, row)
        assert row is not None  # see `_Verified.has`
        if not api_tokens.is_live(row, now_us()):
            if paid is not None:
                await self._refused(row, token, address, "it was revoked, or its time is over")
            raise _unknown()
        if paid is not None:
            paid.give_back()
        return SessionOf(api_tokens.caller_of(row), row.id)

    async def of_link(self, secret: str, address: str) -> SessionOf:
        """Whose session a link makes; it is spent. Raises `CallerUnknown`, `AttemptsTooMany`, `DatabaseError`."""
        paid = self.attempts.pay(address)
        whose = await self._read(lambda: self._spent(secret))
        if whose is None:
            raise _unknown()
        paid.give_back()
        return whose

    def session_secret(self, headers: Headers) -> str:
        """Of the browser's cookie; empty where there is none."""
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value[:MAX_SECRET_CHARS]

    async def _of_header(self, authorization: str, address: str) -> Known:
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise _unknown()
        return Known(await self.of_token(text.strip(), address))

    async def _of_session(self, secret: str) -> SessionOf:
        def find() -> SessionOf | None:
            with self.database.read() as connection:
                return sessions.session_of(connection, secret, now_us())

        whose = await self._read(find)
        if whose is None:
            raise _unknown()
        return whose

    async def _refused(self, row: AnyRow | None, token: ApiToken, address: str, found: str) -> None:
        logger.warning("token refused: token=%s address=%s", token.id, address)
        if row is None:
            return

        def record() -> None:
            with self.database.write() as connection:
                actor = f"token {token.id} from {address}"
                audit.record(connection, row.tenant or "", actor, "ask", refused=CallerUnknown.code, found=found)

        await self._read(record)

    def _row_of(self, token: ApiToken) -> AnyRow | None:
        with self.database.read() as connection:
            return api_tokens.row_of(connection, token.id)

    def _spent(self, secret: str) -> SessionOf | None:
        with self.database.write() as connection:
            return sessions.spend_link(connection, secret, now_us())

    async def _read(self, work: Callable[[], T]) -> T:
        return await run_in_threadpool(work)


def is_good_still(connection: Connection, known: Known) -> bool:
    """Whether what a caller has shown is good still: an answer that goes on asks again and again."""
    now = now_us()
    if known.session:
        return sessions.session_of(connection, known.session, now) is not None
    row_id = known.whose.token_id
    return row_id is None or api_tokens.is_good(connection, row_id, now)


def _unknown() -> CallerUnknown:
    return CallerUnknown(
        _DOING,
        "what it shows is not good, or not good any more",
        data="Nothing was changed.",
        remedy="Use a token that is neither revoked nor over, or log in again.",
    )
