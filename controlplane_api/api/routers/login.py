"""Sessions of browsers: by a token, by a link that is good once, or by the identity provider.

The cookie is the session; no script can read it. What the session's page sends beside it (`get_session`) no other
site's page can know. A login with the provider leaves nothing here until it is finished: its attempt is a cookie too.
"""

import hmac
import logging
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from menura.errors import MenuraError
from menura.instants import now_us
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, RedirectResponse, Response

from controlplane_api.api.authentication import Authentication, Known
from controlplane_api.api.openapi import refusals
from controlplane_api.api.paths import CurrentCaller
from controlplane_api.api.proxies import client_address
from controlplane_api.api.requests import SessionCommand, SessionOpen
from controlplane_api.api.views import GrantView, LoginLinkCreated, LoginView, Nothing, SessionView
from controlplane_api.errors import (
    AttemptsTooMany,
    CallerUnknown,
    LoginProviderAway,
    LoginRefused,
    PathUnknown,
    RequestInvalid,
)
from controlplane_api.identity import audit, sessions
from controlplane_api.identity.callers import Caller
from controlplane_api.identity.oidc import Attempt, Provider
from controlplane_api.identity.sessions import Opened, SessionOf

router = APIRouter(prefix="/api/v1", tags=["identities"])
logger = logging.getLogger(__name__)

BEGIN, CALLBACK = "/api/v1/login/provider", "/api/v1/login/provider/callback"
ATTEMPT_COOKIE, SECURE_ATTEMPT_COOKIE = "menura-login", "__Host-menura-login"
ATTEMPT_SECONDS = 600
MAX_CODE_CHARS = 4_096


@dataclass(frozen=True, slots=True)
class Login:
    """How the application lets browsers in."""

    authentication: Authentication
    provider: Provider | None
    #: where the provider sends the browser back to
    redirect_uri: str

    @property
    def attempt_cookie(self) -> str:
        return SECURE_ATTEMPT_COOKIE if self.authentication.secure else ATTEMPT_COOKIE


def current_login(request: Request) -> Login:
    login = request.state.login
    if not isinstance(login, Login):
        raise TypeError("create_app sets state.login")
    return login


def current_known(request: Request) -> Known:
    known = request.state.known
    if not isinstance(known, Known):
        raise TypeError("the gate sets state.known")
    return known


CurrentLogin = Annotated[Login, Depends(current_login)]
CurrentKnown = Annotated[Known, Depends(current_known)]


@router.get("/login")
def get_login(login: CurrentLogin) -> LoginView:
    """By what a person may log in beside a token."""
    return LoginView(provider="" if login.provider is None else login.provider.settings.name)


@router.post("/session", response_model=Nothing, responses=refusals(CallerUnknown, AttemptsTooMany))
async def open_session(body: SessionOpen, login: CurrentLogin, request: Request) -> Response:
    """A browser's session of a token, or of a login link, which is spent."""
    if bool(body.token) == bool(body.link):
        raise RequestInvalid("logging in", "it takes either a token or a link", remedy="Send one of them.")
    address = client_address(request.scope)
    by = login.authentication
    whose = await (by.of_token(body.token, address) if body.token else by.of_link(body.link, address))
    opened = await run_in_threadpool(_open, login, whose, address)
    return _with_session(JSONResponse({}), login, opened)


@router.get("/session")
def get_session(caller: CurrentCaller, known: CurrentKnown) -> SessionView:
    """Who asks, with a token or a session."""
    grants = [GrantView(role=grant.role, tenant=grant.tenant) for grant in caller.grants]
    page_token = sessions.page_token(known.session) if known.session else ""
    return SessionView(actor=caller.actor, grants=grants, page_token=page_token)


@router.post("/session/end", response_model=Nothing)
def end_session(_body: SessionCommand, login: CurrentLogin, request: Request) -> Response:
    """Log the browser out. The guard lets nobody else's page do that."""
    secret = login.authentication.session_secret(request.headers)
    database = login.authentication.database
    with database.read() as connection:
        whose = sessions.session_of(connection, secret, now_us()) if secret else None
    if whose is not None:
        with database.write() as connection:
            _record(connection, whose.caller, "log out", "")
            sessions.end_session(connection, secret)
    response = JSONResponse({})
    _forget(response, login, login.authentication.cookie)
    return response


@router.post("/login-links", responses=refusals(LoginRefused))
def create_login_link(_body: SessionCommand, login: CurrentLogin, known: CurrentKnown) -> LoginLinkCreated:
    """A link to the dashboard that logs one browser in within ten minutes, as long as the caller's token is good."""
    if known.whose.token_id is None:  # a person's session would go on and on, whatever the provider says by then
        raise LoginRefused(
            "making a login link", "the caller has no token", data="Nothing was changed.", remedy="Show a token."
        )
    with login.authentication.database.write() as connection:
        _record(connection, known.caller, "make a login link", "")
        made = sessions.create_link(connection, known.whose, now_us())
    # In the fragment, which no server and no proxy ever gets.
    return LoginLinkCreated(path=f"/login#{made.secret}", expires_at_us=made.expires_at_us)


@router.get(
    "/login/provider",
    status_code=303,
    response_class=RedirectResponse,
    responses=refusals(PathUnknown, AttemptsTooMany, LoginProviderAway),
)
async def begin_login(login: CurrentLogin, request: Request) -> Response:
    """To the identity provider's page."""
    provider = _provider(login)
    paid = login.authentication.attempts.pay(client_address(request.scope))
    page, attempt = await provider.begin(login.redirect_uri)
    paid.give_back()
    response = RedirectResponse(page, status_code=303)
    _set(response, login, login.attempt_cookie, attempt.reveal(), ATTEMPT_SECONDS)
    return response


@router.get(
    "/login/provider/callback",
    status_code=303,
    response_class=RedirectResponse,
    responses=refusals(PathUnknown, AttemptsTooMany),
)
async def finish_login(
    login: CurrentLogin,
    request: Request,
    state: Annotated[str, Query(max_length=256)] = "",
    code: Annotated[str, Query(max_length=MAX_CODE_CHARS)] = "",
    error: Annotated[str, Query(max_length=256)] = "",
    iss: Annotated[str, Query(max_length=2_048)] = "",
) -> Response:
    """Back from the identity provider's page: a session, or the login page with the reason."""
    provider, address = _provider(login), client_address(request.scope)
    paid = login.authentication.attempts.pay(address)
    try:
        attempt = Attempt.parse(request.cookies.get(login.attempt_cookie, ""))
        if attempt is None or not hmac.compare_digest(attempt.state.encode(), state.encode()):
            raise _refused("it was not begun by this browser, or too long ago")
        if iss and iss != provider.settings.issuer:
            raise _refused("another provider than ours sent this browser back")
        if error or not code:
            raise _refused("the provider did not let this person in")
        caller = await provider.finish(code, attempt, login.redirect_uri)
        opened = await run_in_threadpool(_open, login, SessionOf(caller, None), address)
    except MenuraError as refused:
        logger.warning("login refused: address=%s error=%s", address, refused)
        response: Response = RedirectResponse(f"/login?refused={quote(refused.found)}", status_code=303)
    else:
        paid.give_back()
        response = _with_session(RedirectResponse("/", status_code=303), login, opened)
    _forget(response, login, login.attempt_cookie)
    return response


def _open(login: Login, whose: SessionOf, address: str) -> Opened:
    with login.authentication.database.write() as connection:
        _record(connection, whose.caller, "log in", f"from {address}")
        return sessions.open_session(connection, whose, now_us())


def _record(connection: Connection, caller: Caller, action: str, found: str) -> None:
    """In the audit log of each tenant that it is about."""
    for tenant in sorted({grant.tenant or "" for grant in caller.grants}):
        audit.record(connection, tenant, caller.actor, action, found=found)


def _with_session(response: Response, login: Login, opened: Opened) -> Response:
    _set(response, login, login.authentication.cookie, opened.secret, sessions.SESSION_SECONDS)
    return response


def _set(response: Response, login: Login, name: str, value: str, seconds: int) -> None:
    secure = login.authentication.secure
    response.set_cookie(name, value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="lax")


def _forget(response: Response, login: Login, name: str) -> None:
    response.delete_cookie(name, path="/", secure=login.authentication.secure, httponly=True, samesite="lax")


def _provider(login: Login) -> Provider:
    if login.provider is None:
        raise PathUnknown("logging in", "there is no identity provider", remedy="Log in with a token.")
    return login.provider


def _refused(found: str) -> LoginRefused:
    return LoginRefused("logging in", found, data="Nobody was logged in.", remedy="Log in again.")
