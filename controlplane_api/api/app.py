"""The API as an ASGI application: REST under /api/v1, the dashboard at /, all behind the guard and the gate."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI
from menura.addresses import is_loopback
from menura.instants import now_us
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp

from controlplane_api.api import dashboard, openapi, problems
from controlplane_api.api.authentication import Authentication
from controlplane_api.api.event_stream import EventStreams
from controlplane_api.api.gate import Gate, routes_of, rules_of
from controlplane_api.api.guard import Guard, only_json
from controlplane_api.api.histories import Histories
from controlplane_api.api.history_keeping import Keeping
from controlplane_api.api.live import Live
from controlplane_api.api.roles import NEEDS
from controlplane_api.api.route_rules import Rule
from controlplane_api.api.routers import (
    api_tokens,
    configurations,
    dumps,
    events,
    fleet,
    identities,
    joined_views,
    lakes,
    live,
    login,
    offsets,
    rules,
    searches,
    service,
    tables,
    upgrades,
    verification_schedules,
    verifications,
)
from controlplane_api.api.search_service import SearchService
from controlplane_api.database import Database
from controlplane_api.errors import ListenRefused
from controlplane_api.identity.callers import Need
from controlplane_api.identity.oidc import Provider

OPENAPI = "/api/v1/openapi.json"
ROUTERS = tuple(
    module.router
    for module in (
        fleet, configurations, identities, api_tokens, tables, offsets, events, rules, dumps, verifications, upgrades,
        verification_schedules, joined_views, searches, lakes, live, login, service,
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Access:
    """How callers come, and who may."""

    #: as browsers know it, without a path
    public_url: str = "http://127.0.0.1:7080"
    #: whoever shows neither token nor session may do everything
    anonymous: bool = False
    #: other machines reach it, by HTTPS
    beyond_loopback: bool = False
    provider: Provider | None = None
    #: of rows
    search: SearchService | None = None
    #: what the process knows of its host, for /metrics
    host_figures: Sequence[Collector] = ()

    @property
    def secure(self) -> bool:
        return self.public_url.startswith("https:")


def create_app(database: Database, access: Access) -> ASGIApp:
    """The application over an open database, which the caller closes."""
    authentication = Authentication(database, anonymous=access.anonymous, secure=access.secure)
    app, rules = _routes(authentication.cookie)
    state: dict[str, object] = {
        "login": login.Login(authentication, access.provider, f"{access.public_url}{login.CALLBACK}"),
        "streams": EventStreams(),
        "searching": searches.Searching(access.search),
        "host_figures": access.host_figures,
        "histories": (histories := Histories(now_us())),
    }
    state["live"] = Live(app, rules, state, database)
    public_host = None if access.beyond_loopback else urlsplit(access.public_url).netloc
    # The guard is outside of everything, so that an answer to a defect has its headers too.
    return Keeping(Guard(Gate(app, authentication, rules, state), public_host), database, histories)


@cache
def _routes(cookie: str) -> tuple[FastAPI, list[Rule]]:
    """What is the same over each database, made once: it takes half a second. The document names the cookie."""
    # FastAPI's own documentation pages load scripts from elsewhere.
    app = FastAPI(
        title="Menura",
        version="1",
        openapi_url=OPENAPI,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(only_json)],
        responses=openapi.EVERYWHERE,
        generate_unique_id_function=openapi.operation_name,
    )
    problems.install(app)
    rules = rules_of(ROUTERS)
    needs = [(route, NEEDS[route.endpoint]) for route in routes_of(ROUTERS)]
    openapi.describe(app, needs, cookie)
    for router in ROUTERS:
        app.include_router(router)
    for path, content, media_type in dashboard.served_files():
        _serve(app, path, content, media_type)
        rules.append(_rule(path, Need.NOBODY))
    rules.append(_rule(OPENAPI, Need.ANYBODY_KNOWN))
    return app, rules


def _rule(path: str, need: Need) -> Rule:
    return Rule(re.compile(f"^{re.escape(path)}$"), frozenset({"GET"}), need)


def _serve(app: FastAPI, path: str, content: bytes, media_type: str) -> None:
    def get_file() -> Response:
        return Response(content, media_type=media_type)

    app.add_api_route(path, get_file, include_in_schema=False)


def parse_listen(listen: str) -> tuple[str, int]:
    """HOST and PORT; raises `ListenRefused`."""
    host, separator, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ListenRefused(
            "opening the API's port", f"{listen!r} is not an address", remedy="Set --listen to HOST:PORT."
        )
    return host, int(port)


TLS_REMEDY = "Give --tls-certificate and --tls-key, or listen on 127.0.0.1 and reach it through an SSH tunnel."


def check_listen(listen: str, *, has_tls: bool, anonymous: bool, remedy: str = TLS_REMEDY) -> None:
    """Raises `ListenRefused` for an address at which others could read along, or come as nobody."""
    host, _ = parse_listen(listen)
    doing, found = "opening the API's port", f"{listen} can be reached from other machines"
    if is_loopback(host):
        return
    if anonymous:
        raise ListenRefused(doing, f"{found}, which --anonymous is not for", remedy="Leave --anonymous out.")
    if not has_tls:
        raise ListenRefused(doing, f"{found}, and tokens would travel in clear", remedy=remedy)
