"""Who asks: by the token of a request, or by the cookie of a browser.

Comes in: headers and the address of a request. Goes out: a `Known` caller, or an error that says nothing of what was
shown. The token's row is read with each request, so a revocation holds from its commit on, at every API process. Only
that a secret is that of a hash is kept, by a digest: verifying it takes 25 ms and 19 MiB. Attempts with what is not
verified are bounded by `attempts`; those with what is not good, of a token that is there, stand in the audit log.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection
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

    _hashes: "OrderedDict[bytes, str]" = field(default_factory=OrderedDict)

    def has(self, digest: bytes, row: AnyRow | None) -> bool:
        return row is not None and self._hashes.get(digest) == row.secret_argon2

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._hashes

    def add(self, digest: bytes, row: AnyRow) -> None:
        self._hashes[digest] = row.secret_argon2
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
        self._turn = asyncio.Semaphore(MOST_AT_ONCE)
        #: by the token's digest: requests that come together with one token are one attempt
        self._verifying: dict[bytes, asyncio.Task[SessionOf]] = {}

    async def identify(self, headers: Headers, address: str) -> Known:
        """Raises `CallerMissing`, `CallerUnknown`, `AttemptsTooMany`, `DatabaseError`."""
        authorization = headers.get("authorization")
        if authorization is not None:
            return await self._of_header(authorization, address)
        secret = self.session_secret(headers)
        whose = await self._of_session(secret) if secret else None
        if whose is not None:
            return Known(whose, secret)
        if self._anonymous:
            return Known(SessionOf(ANONYMOUS, None))
        if secret:
            raise _unknown()
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
        if digest in self._verified:
            row = await self._read(lambda: self._row_of(token))
            if self._verified.has(digest, row):
                return _live(row)
        running = self._verifying.get(digest)
        if running is None:
            running = self._verifying[digest] = asyncio.create_task(self._verify(token, digest, address))
            running.add_done_callback(lambda _: self._verifying.pop(digest, None))
        return await asyncio.shield(running)

    async def _verify(self, token: ApiToken, digest: bytes, address: str) -> SessionOf:
        paid = self.attempts.pay(address, token.id)
        row = await self._read(lambda: self._row_of(token))
        async with self._turn:
            is_good = await run_in_threadpool(api_tokens.verify, row, token)
        if row is None or not is_good:
            await self._refused(row, token, address, "another secret")
            raise _unknown()
        self._verified.add(digest, row)
        try:
            whose = _live(row)
        except CallerUnknown:
            await self._refused(row, token, address, "it was revoked, or its time is over")
            raise
        paid.give_back()
        return whose

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

    async def _of_session(self, secret: str) -> SessionOf | None:
        def find() -> SessionOf | None:
            with self.database.read() as connection:
                return sessions.session_of(connection, secret, now_us())

        return await self._read(find)

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


def _live(row: AnyRow | None) -> SessionOf:
    """Of a row whose secret was shown; raises `CallerUnknown`."""
    if row is None or not api_tokens.is_live(row, now_us()):
        raise _unknown()
    return SessionOf(api_tokens.caller_of(row), row.id)


def is_good_still(connection: Connection, known: Known) -> bool:
    """Whether what a caller has shown is good still: an answer that goes on asks again and again."""
    return known in good_still(connection, [known])


def good_still(connection: Connection, shown: Collection[Known]) -> set[Known]:
    """Of many that were known: who is, with the same roles. Two statements, however many there are."""
    now = now_us()
    secrets = {known.session for known in shown if known.session}
    tokens = {known.whose.token_id for known in shown if not known.session and known.whose.token_id is not None}
    by_session = sessions.sessions_of(connection, secrets, now)
    by_token = api_tokens.live_callers(connection, tokens, now)

    def is_good(known: Known) -> bool:
        if known.session:
            return by_session.get(known.session) == known.whose
        row_id = known.whose.token_id
        return row_id is None or by_token.get(row_id) == known.caller

    return set(filter(is_good, shown))


def _unknown() -> CallerUnknown:
    return CallerUnknown(
        _DOING,
        "what it shows is not good, or not good any more",
        data="Nothing was changed.",
        remedy="Use a token that is neither revoked nor over, or log in again.",
    )
