"""The service itself: is it well, and its figures for Prometheus."""

from collections.abc import Iterator
from html import escape
from typing import Annotated

from fastapi import APIRouter, Header
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from controlplane_api.api import coverage_queries, proof_queries, queries, source_queries
from controlplane_api.api.openapi import refusals
from controlplane_api.api.pages import ALL
from controlplane_api.api.paths import ControlDatabase, ProblemName
from controlplane_api.api.problem_types import PATH, problem_type, problem_types
from controlplane_api.api.views import ProblemType, ProblemTypes
from controlplane_api.database import Database
from controlplane_api.errors import ProblemUnknown
from controlplane_api.states import State

router = APIRouter(tags=["service"])

_OF_SOURCE = ("tenant", "source")


@router.get("/healthz")
def get_health(database: ControlDatabase) -> dict[str, str]:
    """Whether the API reaches its database; a problem document with 503 when not."""
    with database.read() as connection:
        connection.exec_driver_sql("SELECT 1 FROM tenant LIMIT 1")
    return {"status": "ok"}


@router.get("/metrics", response_class=PlainTextResponse)
def get_metrics(database: ControlDatabase) -> Response:
    """Labels hold identities and states only; what is not known is absent."""
    return Response(generate_latest(_Shown(database)), media_type=CONTENT_TYPE_LATEST)


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


class _Shown(Collector):
    def __init__(self, database: Database) -> None:
        self._database = database

    def collect(self) -> Iterator[Metric]:
        agents = _gauge("menura_controlplane_connected_agents", "Agents with a live session.", "tenant")
        tables = _gauge(
            "menura_controlplane_tables", "Tables of the cartography by state of their sync.", *_OF_SOURCE, "state"
        )
        dumps = _gauge("menura_controlplane_dumps", "Dumps that run.", *_OF_SOURCE)
        lag = _gauge(
            "menura_agent_lag_seconds", "Behind the end of the source's log; absent while unknown.", *_OF_SOURCE
        )
        landed = _gauge(
            "menura_landing_last_commit_timestamp_seconds", "Commit time of the last change that landed.", *_OF_SOURCE
        )
        rows = CounterMetricFamily("menura_landing_rows", "Change events landed.", labels=_OF_SOURCE)
        size = CounterMetricFamily("menura_landing_bytes", "Bytes landed.", labels=_OF_SOURCE)
        proofs = _gauge(
            "menura_verification_tables",
            "Tables that are synced, by what verifications have found.",
            *_OF_SOURCE,
            "state",
        )
        oldest = _gauge(
            "menura_verification_oldest_proof_age_seconds",
            "Age of the oldest proof that a table is equal; of tables that have none see menura_verification_tables.",
            *_OF_SOURCE,
        )
        coverage = _gauge(
            "menura_verification_coverage_tables",
            "Tables that are synced, by whether they are proven within the schedule's period, or a week.",
            *_OF_SOURCE,
            "state",
        )
        covered = _gauge(
            "menura_verification_coverage_rows",
            "Rows of these tables, as the server estimates.",
            *_OF_SOURCE,
            "state",
        )
        with self._database.read() as connection:
            for view in queries.tenants(connection, limit=ALL).tenants:
                connected = sum(agent.connected for agent in queries.agents(connection, view.tenant).agents)
                agents.add_metric((view.tenant,), connected)
                for source in source_queries.sources(connection, view.tenant).sources:
                    of_source = (view.tenant, source.source)
                    for state in State:
                        tables.add_metric((*of_source, state), source.tables.get(state, 0))
                    dumps.add_metric(of_source, source.dumps)
                    if source.lag_us is not None:
                        lag.add_metric(of_source, source.lag_us / 1e6)
                    if source.last_commit_timestamp_us is not None:
                        landed.add_metric(of_source, source.last_commit_timestamp_us / 1e6)
                    known = proof_queries.standing(connection, *of_source)
                    for proof, number in known.tables.items():
                        proofs.add_metric((*of_source, proof), number)
                    if known.oldest_proof_age_us is not None:
                        oldest.add_metric(of_source, known.oldest_proof_age_us / 1e6)
                    for each, number in (found := coverage_queries.coverage(connection, *of_source)).tables.items():
                        coverage.add_metric((*of_source, each), number)
                        covered.add_metric((*of_source, each), found.rows[each])
                    rows.add_metric(of_source, source.rows)
                    size.add_metric(of_source, source.bytes)
        yield from (agents, tables, dumps, lag, landed, rows, size, proofs, oldest, coverage, covered)


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=labels)
