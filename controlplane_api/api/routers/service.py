"""The service itself: does it live, is it ready, and its figures for Prometheus."""

from html import escape
from typing import Annotated

from fastapi import APIRouter, Header, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from controlplane_api.api.metrics import FleetCollector
from controlplane_api.api.openapi import refusals
from controlplane_api.api.paths import ControlDatabase, ProblemName
from controlplane_api.api.problem_types import PATH, problem_type, problem_types
from controlplane_api.api.views import ProblemType, ProblemTypes
from controlplane_api.errors import ProblemUnknown

router = APIRouter(tags=["service"])


@router.get("/healthz")
def get_health(database: ControlDatabase) -> dict[str, str]:
    """Whether the API reaches its database; a problem document with 503 when not."""
    with database.read() as connection:
        connection.exec_driver_sql("SELECT 1 FROM tenant LIMIT 1")
    return {"status": "ok"}


@router.get("/livez")
async def get_liveness() -> dict[str, str]:
    """Answered by the event loop itself, which asks nobody: no answer within some seconds says that it hangs."""
    return {"status": "ok"}


@router.get("/readyz")
def get_readiness(database: ControlDatabase) -> dict[str, str]:
    """Whether the API can answer now; else a problem document with 503 that says what it waits for."""
    return get_health(database)


@router.get("/metrics", response_class=PlainTextResponse)
def get_metrics(database: ControlDatabase, request: Request) -> Response:
    """Labels hold identities and states only; what is not known is absent."""
    registry = CollectorRegistry()
    for collector in (FleetCollector(database), *request.state.host_figures):
        registry.register(collector)
    ProcessCollector(registry=registry)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


@router.get(PATH)
def get_problem_types() -> ProblemTypes:
    """What the `type` of a problem is the address of."""
    return ProblemTypes(problems=problem_types())


@router.get(
    PATH + "/{name}",
    response_model=ProblemType,
    responses=refusals(ProblemUnknown) | {200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
)
def get_problem_type(name: ProblemName, accept: Annotated[str, Header()] = "") -> ProblemType | Response:
    """A page for a browser, JSON for others."""
    found = problem_type(name)
    if not accept.startswith("text/html"):
        return found
    words = (found.title, f"{found.status} {found.code}", found.cause, found.fix)
    title, code, cause, fix = map(escape, words)
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><h1>{title}</h1><p><code>{code}</code>"
    )
    return HTMLResponse(f"{page}<h2>Cause</h2><p>{cause}</p><h2>Fix</h2><p>{fix}</p></html>")
