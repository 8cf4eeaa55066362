"""The service itself: is it well, and its figures for Prometheus."""

from collections.abc import Iterator

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import PlainTextResponse, Response

from controlplane_api.api import queries, source_queries
from controlplane_api.api.paths import ControlDatabase
from controlplane_api.database import Database
from controlplane_api.states import State

router = APIRouter()

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
        with self._database.read() as connection:
            for view in queries.tenants(connection):
                connected = sum(agent.connected for agent in queries.agents(connection, view.tenant))
                agents.add_metric((view.tenant,), connected)
                for source in source_queries.sources(connection, view.tenant):
                    of_source = (view.tenant, source.source)
                    for state in State:
                        tables.add_metric((*of_source, state), source.tables.get(state, 0))
                    dumps.add_metric(of_source, source.dumps)
                    if source.lag_us is not None:
                        lag.add_metric(of_source, source.lag_us / 1e6)
                    if source.last_commit_timestamp_us is not None:
                        landed.add_metric(of_source, source.last_commit_timestamp_us / 1e6)
                    rows.add_metric(of_source, source.rows)
                    size.add_metric(of_source, source.bytes)
        yield from (agents, tables, dumps, lag, landed, rows, size)


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=labels)
