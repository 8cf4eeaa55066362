"""The API as an ASGI application: REST under /api/v1, the dashboard at /, all behind the guard."""

from importlib.resources import files

from fastapi import Depends, FastAPI
from menura.addresses import is_loopback
from starlette.responses import Response
from starlette.types import ASGIApp

from controlplane_api.api import openapi, problems
from controlplane_api.api.event_stream import EventStreams
from controlplane_api.api.guard import Guard, only_json
from controlplane_api.api.routers import configurations, dumps, events, fleet, identities, lakes, rules, service, tables
from controlplane_api.database import Database
from controlplane_api.errors import ListenRefused

#: path, file in `dashboard`, media type
DASHBOARD = (
    ("/", "index.html", "text/html"),
    ("/dashboard.css", "dashboard.css", "text/css"),
    ("/dashboard.js", "dashboard.js", "text/javascript"),
    ("/mark.svg", "mark.svg", "image/svg+xml"),
)


def create_app(database: Database) -> ASGIApp:
    """The application over an open database, which the caller closes."""
    # FastAPI's own documentation pages load scripts from elsewhere.
    app = FastAPI(
        title="Menura",
        version="1",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(only_json)],
        responses=openapi.EVERYWHERE,
        generate_unique_id_function=openapi.operation_name,
    )
    app.state.database = database
    app.state.streams = EventStreams()
    problems.install(app)
    openapi.describe(app)
    for module in (fleet, configurations, identities, tables, events, rules, dumps, lakes, service):
        app.include_router(module.router)
    for path, name, media_type in DASHBOARD:
        _serve(app, path, (files("controlplane_api.api") / "dashboard" / name).read_bytes(), media_type)
    return Guard(app)  # outside of everything, so that an answer to a defect has its headers too


def _serve(app: FastAPI, path: str, content: bytes, media_type: str) -> None:
    def get_file() -> Response:
        return Response(content, media_type=media_type)

    app.add_api_route(path, get_file, include_in_schema=False)


def parse_listen(listen: str) -> tuple[str, int]:
    """HOST and PORT of a loopback address; raises `ListenRefused` for any other."""
    host, separator, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    doing = "opening the API's port"
    if not separator or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ListenRefused(doing, f"{listen!r} is not an address", remedy="Set --listen to HOST:PORT.")
    if not is_loopback(host):
        raise ListenRefused(
            doing,
            f"{listen} can be reached from other machines, and the API does not know its callers yet",
            remedy="Listen on 127.0.0.1 and reach it through an SSH tunnel.",
        )
    return host, int(port)
