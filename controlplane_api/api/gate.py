"""The one place where a request is let through, before anything of its body is read, and then comes to its route.

Comes in: requests. Goes out: those whose caller has what the route needs (`api.roles`), with the caller, and with what
the audit log shall say of a command: `writing` puts it there in the transaction that carries the command out, and the
gate where the command has failed, by a defect or since something does not answer.
What no rule names goes nowhere. Whoever has no role in a tenant gets 404 whether there is one of that name or not.
Of one tenant `MAX_OF_TENANT` requests are in work at a time, of one caller half of these, from the end of their body to
the beginning of the answer, in turns of a tenant's callers: a tenant's slow ones take neither the threads nor the
database's connections of others, and a caller's not those of its tenant. Bodies come before that (`api.bodies`).
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from anyio.to_thread import current_default_thread_limiter
from fastapi import APIRouter
from fastapi.routing import APIRoute
from menura.errors import MenuraError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane_api.api.authentication import Authentication, Known
from controlplane_api.api.bodies import Bodies, length_of, read_whole
from controlplane_api.api.dashboard import missing_page
from controlplane_api.api.guard import READS
from controlplane_api.api.paths import Command
from controlplane_api.api.problems import FAILURE, problem_response, unrouted_response
from controlplane_api.api.proxies import client_address
from controlplane_api.api.roles import ASK_SEARCH_SERVICE, AUDITED, LIVE, NEEDS
from controlplane_api.api.route_rules import Rule, matching
from controlplane_api.errors import (
    ControlPlaneError,
    CrossSiteRefused,
    DatabaseError,
    RequestInvalid,
    RoleMissing,
    TenantUnknown,
)
from controlplane_api.identity import audit, sessions
from controlplane_api.identity.callers import Caller, Need
from gateway.loop_turns import Owner
from gateway.rate import Rate, Rates
from gateway.shares import Turns

logger = logging.getLogger(__name__)

PAGE_TOKEN_HEADER = "x-menura-page-token"  # noqa: S105
MAX_BODY_BYTES_OF_NOBODY = 4_096
#: requests in work; threads, of which some are left to the callers who are not known yet
MAX_IN_WORK, MAX_OF_TENANT, MAX_OF_CALLER, THREADS = 96, 8, 4, 128
#: of routes whose failures stand in the audit log
COMMANDS = frozenset({Need.OPERATE, Need.ADMINISTER, Need.ADMINISTER_FLEET})
#: refusals of one caller that the audit log keeps; of what he reads and of his commands each
REFUSALS_PER_SECOND, REFUSALS_BURST, MAX_REFUSED = 0.1, 20, 1_000
#: failures of one caller's commands that it keeps, and lines about those that it does not
FAILURES_PER_SECOND, FAILURES_BURST, LEFT_OUT_LINES_PER_SECOND = 0.1, 20, 1 / 60


def rules_of(routers: Iterable[APIRouter]) -> list[Rule]:
    """In the order in which the application looks for a route. Raises LookupError for a route without a need."""
    return [_rule(route) for route in routes_of(routers)]


def routes_of(routers: Iterable[APIRouter]) -> list[APIRoute]:
    return [route for router in routers for route in router.routes if isinstance(route, APIRoute)]


def _rule(route: APIRoute) -> Rule:
    need = NEEDS.get(route.endpoint)
    if need is None:
        raise LookupError(f"api.roles says nothing of {route.path}")
    methods = frozenset(route.methods or ())
    asks, is_live = route.endpoint in ASK_SEARCH_SERVICE, route.endpoint in LIVE
    return Rule(route.path_regex, methods, need, action_of(route.endpoint), route.endpoint in AUDITED, asks, is_live)


def action_of(endpoint: Callable[..., Any]) -> str:
    return endpoint.__name__.replace("_", " ")


class Gate:
    """ASGI middleware around all routes; paths come undecoded (see `guard`)."""

    def __init__(
        self, app: ASGIApp, authentication: Authentication, rules: Iterable[Rule], state: Mapping[str, object]
    ) -> None:
        """`state`: what each route gets beside the caller, as `request.state`."""
        self._app = app
        self._state = state
        self._authentication = authentication
        self._rules = list(rules)
        #: apart, so that nobody hides a command behind what he reads
        self._refused_reads = Rates[str](REFUSALS_PER_SECOND, REFUSALS_BURST, MAX_REFUSED)
        self._refused_commands = Rates[str](REFUSALS_PER_SECOND, REFUSALS_BURST, MAX_REFUSED)
        #: apart, so that whoever is refused hides no defect
        self._failures = Rates[str](FAILURES_PER_SECOND, FAILURES_BURST, MAX_REFUSED)
        self._left_out = 0
        self._left_out_lines = Rate(LEFT_OUT_LINES_PER_SECOND, 1)
        self._in_work = Turns(MAX_IN_WORK, MAX_OF_TENANT, MAX_OF_CALLER)
        self._bodies = Bodies()
        self._missing = missing_page()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            current_default_thread_limiter().total_tokens = THREADS
            await self._app(scope, receive, send)
            return
        there = matching(self._rules, scope["path"])
        found = next((found for found in there if scope["method"] in found[0].methods), None)
        if found is None:
            await self._unrouted(scope, {method for rule, _ in there for method in rule.methods})(scope, receive, send)
            return
        rule, match = found
        try:
            state = await self._admit(rule, match.groupdict(), scope)
            command = state.get("command")
            owner = (command.tenant, command.caller.actor) if isinstance(command, Command) else None
            if owner is not None:
                self._bodies.check(owner, length_of(scope))
        except ControlPlaneError as refused:
            await _refusal(refused)(scope, receive, send)
            return
        admitted = {**scope, "state": {**scope.get("state", {}), **self._state, **state}}
        if owner is None:
            await self._app(admitted, receive, send)
        else:
            await self._with_body(owner, rule, admitted, receive, send)

    def _unrouted(self, scope: Scope, methods: Collection[str]) -> Response:
        """Of a path that no route has: a page for a browser that has asked for one, else a problem."""
        asks = scope["method"] == "GET" and not scope["path"].startswith("/api/")
        if asks and not methods and "text/html" in Headers(scope=scope).get("accept", ""):
            return Response(self._missing, 404, media_type="text/html")
        return unrouted_response(scope["method"], methods)

    async def _with_body(self, owner: Owner, rule: Rule, scope: Scope, receive: Receive, send: Send) -> None:
        """A body that does not come takes no turn."""
        length = length_of(scope)
        with self._bodies.held(owner, length):
            received = await read_whole(receive) if length else receive
            if received is None:
                return
            if rule.asks_search_service:
                await self._app(scope, received, send)
            else:
                await self._in_turn(owner, rule, scope, received, send)

    async def _in_turn(self, owner: Owner, rule: Rule, scope: Scope, receive: Receive, send: Send) -> None:
        """The turn ends when the answer begins, which may go on for an hour."""
        await self._in_work.take(owner)
        is_over = False
        status = 0

        async def send_answer(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            end()
            await send(message)

        def end() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._in_work.give(owner)

        try:
            await self._app(scope, receive, send_answer)
        finally:
            end()
            if status >= 500 and _is_command(rule, scope):
                await self._record_failure(rule, scope["state"])

    async def _admit(self, rule: Rule, named: Mapping[str, str], scope: Scope) -> dict[str, object]:
        """What the route gets. Raises whatever refuses it."""
        database, headers = self._authentication.database, Headers(scope=scope)
        if rule.need is Need.NOBODY:
            _check_body(headers)
            return {"database": database}
        known = await self._authentication.identify(headers, client_address(scope))
        _check_page(known, scope["method"], headers)
        tenant = unquote(named["tenant"]) if "tenant" in named else None
        _, _, below = scope["path"].partition(f"/{named['tenant']}/" if tenant is not None else "/api/v1/")
        command = Command(known.caller, tenant or "", rule.name if rule.audited else "", unquote(below))
        if not known.caller.may(rule.need, tenant):
            await self._record_refusal(rule, command, is_read=scope["method"] in READS)
            raise _not_allowed(known.caller, rule.need, tenant)
        return {"database": database, "caller": known.caller, "known": known, "command": command}

    async def _record_refusal(self, rule: Rule, command: Command, *, is_read: bool) -> None:
        """A stranger leaves nothing in a tenant; what he would have done there stands in the fleet's log."""
        caller, tenant, found, code = command.caller, command.tenant, command.found, RoleMissing.code
        if tenant and not caller.sees(tenant):
            tenant, found, code = "", f"tenants/{tenant}/{found}", TenantUnknown.code
            if is_read:
                return
        rates = self._refused_reads if is_read else self._refused_commands
        if not rates.of_name(caller.actor).try_take():
            return

        def record() -> None:
            with self._authentication.database.write() as connection:
                audit.record(connection, tenant, caller.actor, rule.name, refused=code, found=found)

        await run_in_threadpool(record)

    async def _record_failure(self, rule: Rule, state: Mapping[str, object]) -> None:
        """Of a command that was not carried out, by no fault of who gave it. A database that is away takes none."""
        command, code = state["command"], str(state.get(FAILURE, MenuraError.code))
        if not isinstance(command, Command):
            return
        if not self._failures.of_name(command.caller.actor).try_take():
            self._left_out += 1
            if self._left_out_lines.try_take():
                logger.warning(
                    "the audit log lacks %d commands that have failed, since one caller had too many in a while; none"
                    " was carried out, and each stands in this log with its reason",
                    self._left_out,
                )
                self._left_out = 0
            return

        def record() -> None:
            caller, tenant = command.caller, command.tenant
            with self._authentication.database.write() as connection:
                audit.record(
                    connection, tenant, caller.actor, rule.name, refused=code, failed=True, found=command.found
                )

        try:
            await run_in_threadpool(record)
        except DatabaseError as away:
            logger.warning("the audit log lacks a command that has failed (%s: %s): %s", rule.name, code, away)


def _is_command(rule: Rule, scope: Scope) -> bool:
    """A plan is none, nor is a sink's report, which comes again and again."""
    planned = QueryParams(scope["query_string"]).get("dry_run", "").lower() in ("1", "true", "t", "yes", "y", "on")
    return scope["method"] not in READS and not planned and rule.need in COMMANDS


def _check_body(headers: Headers) -> None:
    """Of a request of which nothing is known; the guard has seen that its length is a number."""
    if int(headers.get("content-length", "0")) > MAX_BODY_BYTES_OF_NOBODY:
        raise RequestInvalid(
            "reading a request",
            f"it has more than {MAX_BODY_BYTES_OF_NOBODY} bytes, which who is not known may not send",
            data="Nothing was changed.",
        )


def _check_page(known: Known, method: str, headers: Headers) -> None:
    if not known.session or method in READS:
        return
    if not sessions.is_page_token(known.session, headers.get(PAGE_TOKEN_HEADER, "")):
        raise CrossSiteRefused(
            "answering a request",
            "it comes with a session and without what the session's page knows",
            data="Nothing was changed.",
            remedy="Load the dashboard again. Scripts send a token in place of a session.",
        )


def _not_allowed(caller: Caller, need: Need, tenant: str | None) -> ControlPlaneError:
    if tenant is not None and not caller.sees(tenant):
        return TenantUnknown(
            "answering a request",
            "there is no such tenant, or none that the caller sees",
            data="Nothing was changed.",
            remedy="Check the tenant's name, or use a token of that tenant.",
        )
    return RoleMissing(
        "answering a request",
        f"{caller.actor} has no role for this: {need}",
        data="Nothing was changed.",
        remedy="Use a token with another role.",
    )


def _refusal(refused: ControlPlaneError) -> ASGIApp:
    if refused.status >= 500:
        logger.error("request failed: %s", refused)
    return problem_response(refused)
