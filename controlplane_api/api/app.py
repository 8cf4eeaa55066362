"""The API as an ASGI application: REST under /api/v1, the dashboard at /, all behind the guard and the gate."""

import re
from dataclasses import dataclass
from importlib.resources import files
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI
from menura.addresses import is_loopback
from starlette.responses import Response
from starlette.types import ASGIApp

from controlplane_api.api import openapi, problems
from controlplane_api.api.authentication import Authentication
from controlplane_api.api.event_stream import EventStreams
from controlplane_api.api.gate import Gate, Rule, routes_of, rules_of
from controlplane_api.api.guard import Guard, only_json
from controlplane_api.api.roles import NEEDS
from controlplane_api.api.routers import (
    api_tokens,
    configurations,
    dumps,
    events,
    fleet,
    identities,
    lakes,
    login,
    offsets,
    rules,
    service,
    tables,
    verification_schedules,
    verifications,
)
from controlplane_api.database import Database
from controlplane_api.errors import ListenRefused
from controlplane_api.identity.callers import Need
from controlplane_api.identity.oidc import Provider

#: path, file in `dashboard`, media type
DASHBOARD = (
    ("/", "index.html", "text/html"),
    ("/dashboard.css", "dashboard.css", "text/css"),
    ("/dashboard.js", "dashboard.js", "text/javascript"),
    ("/shared.js", "shared.js", "text/javascript"),
    ("/proof", "proof.html", "text/html"),
    ("/proof.js", "proof.js", "text/javascript"),
    ("/mark.svg", "mark.svg", "image/svg+xml"),
    ("/login", "login.html", "text/html"),
    ("/login.js", "login.js", "text/javascript"),
)
OPENAPI = "/api/v1/openapi.json"
ROUTERS = tuple(
    module.router
    for module in (
        fleet, configurations, identities, api_tokens, tables, offsets, events, rules, dumps, verifications,
        verification_schedules, lakes, login, service,
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

    @property
    def secure(self) -> bool:
        return self.public_url.startswith("https:")


def create_app(database: Database, access: Access) -> ASGIApp:
    """The application over an open database, which the caller closes."""
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
    authentication = Authentication(database, anonymous=access.anonymous, secure=access.secure)
    app.state.login = login.Login(authentication, access.provider, f"{access.public_url}{login.CALLBACK}")
    app.state.streams = EventStreams()
    problems.install(app)
    gate_rules = rules_of(ROUTERS)
    needs = [(route, NEEDS[route.endpoint]) for route in routes_of(ROUTERS)]
    openapi.describe(app, needs, authentication.cookie)
    for router in ROUTERS:
        app.include_router(router)
    for path, name, media_type in DASHBOARD:
        _serve(app, path, (files("controlplane_api.api") / "dashboard" / name).read_bytes(), media_type)
        gate_rules.append(_rule(path, Need.NOBODY))
    gate_rules.append(_rule(OPENAPI, Need.ANYBODY_KNOWN))
    public_host = None if access.beyond_loopback else urlsplit(access.public_url).netloc
    # The guard is outside of everything, so that an answer to a defect has its headers too.
    return Guard(Gate(app, authentication, gate_rules), public_host)


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
