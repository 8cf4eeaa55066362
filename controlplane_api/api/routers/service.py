"""The service itself: is it well, and its gauges for Prometheus."""

from collections.abc import Iterable

from fastapi import APIRouter
from starlette.responses import PlainTextResponse, Response

from controlplane_api.api import queries
from controlplane_api.api.paths import ControlDatabase
from controlplane_api.api.views import SourceView
from controlplane_api.states import State

router = APIRouter()

Sample = tuple[dict[str, str], float | int | None]


@router.get("/healthz")
def get_health(database: ControlDatabase) -> dict[str, str]:
    """Whether the API reaches its database; a problem document with 503 when not."""
    with database.read() as connection:
        connection.exec_driver_sql("SELECT 1 FROM tenant LIMIT 1")
    return {"status": "ok"}


@router.get("/metrics", response_class=PlainTextResponse)
def get_metrics(database: ControlDatabase) -> Response:
    agents: list[Sample] = []
    sources: list[tuple[dict[str, str], SourceView]] = []
    with database.read() as connection:
        for view in queries.tenants(connection):
            tenant = {"tenant": view.tenant}
            agents.append((tenant, sum(agent.connected for agent in queries.agents(connection, view.tenant))))
            sources += [({**tenant, "source": s.source}, s) for s in queries.sources(connection, view.tenant)]
    lines = [
        *_metric("menura_controlplane_connected_agents", "gauge", "Agents with a live session.", agents),
        *_metric(
            "menura_controlplane_tables", "gauge", "Tables of the cartography by state of their sync.",
            [({**labels, "state": state}, s.tables.get(state, 0)) for labels, s in sources for state in State],
        ),
        *_metric("menura_controlplane_dumps", "gauge", "Dumps that run.", [(lb, s.dumps) for lb, s in sources]),
        *_metric(
            "menura_agent_lag_seconds", "gauge", "Behind the end of the source's log; absent while unknown.",
            [(labels, None if s.lag_us is None else s.lag_us / 1e6) for labels, s in sources],
        ),
        *_metric(
            "menura_landing_last_commit_timestamp_seconds", "gauge", "Commit time of the last change that landed.",
            [
                (labels, None if s.last_commit_timestamp_us is None else s.last_commit_timestamp_us / 1e6)
                for labels, s in sources
            ],
        ),
        *_metric("menura_landing_rows_total", "counter", "Change events landed.", [(lb, s.rows) for lb, s in sources]),
        *_metric("menura_landing_bytes_total", "counter", "Bytes landed.", [(lb, s.bytes) for lb, s in sources]),
    ]  # fmt: skip
    return PlainTextResponse("\n".join([*lines, ""]), media_type="text/plain; version=0.0.4; charset=utf-8")


def _metric(name: str, kind: str, text: str, samples: Iterable[Sample]) -> list[str]:
    """Labels hold identities and states only, which need no escaping; an unknown value is absent."""
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        if value is not None:
            inner = ",".join(f'{label}="{word}"' for label, word in labels.items())
            lines.append(f"{name}{{{inner}}} {value}")
    return lines
