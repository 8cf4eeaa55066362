"""METRICS.md, from the tables of figures: `python -m tests.metrics_page` writes it anew."""

from collections.abc import Iterable

from menura.metric_families import VOLUMES, Figure

from controlplane_api import certificate_metrics
from controlplane_api.api import metrics as api_metrics
from gateway import metrics as gateway_metrics
from spark_sink import metrics as sink_metrics
from spark_sink import search_server
from tests.servers import ROOT

PAGE = ROOT / "METRICS.md"
#: by where Prometheus reads them
PORTS: dict[str, Iterable[Figure]] = {
    "The API's `/metrics`: the fleet, with a token of the role `fleet-viewer`": api_metrics.FIGURES,
    "`menura gateway run --metrics HOST:PORT`": gateway_metrics.FIGURES,
    "`menura sink run --metrics HOST:PORT`": sink_metrics.FIGURES,
    "`menura search serve --metrics HOST:PORT`": search_server.FIGURES,
    "Each of these, where it is known": (*VOLUMES, *certificate_metrics.FIGURES),
}
UNITS = {"seconds": "seconds", "bytes": "bytes", "us": "microseconds", "rows": "rows"}
HEAD = """# Metrics

Written from the code by `python -m tests.metrics_page`. What is not known is absent, never 0. A lag is 0 only at the
end of the source's log. No label names a table, and none has what an agent says but names that are enrolled. An agent
opens no port: its figures (`menura_agent_...`) travel with its heartbeats, and the API has them. Its counters begin
anew with its process. Beside these, each process has those of Prometheus's client: `process_resident_memory_bytes`,
`process_cpu_seconds_total`, `process_open_fds`, `process_start_time_seconds`. Rules for alerts and a dashboard over
them are in `deployment/prometheus`.
"""


def page() -> str:
    return "\n".join([HEAD, *(f"## {port}\n\n{_table(figures)}" for port, figures in PORTS.items())])


def _table(figures: Iterable[Figure]) -> str:
    rows = [
        f"| `{each.name}` | {'counter' if each.is_counter else 'gauge'} | {_unit(each.name)} |"
        f" {', '.join(f'`{label}`' for label in each.labels)} | {each.meaning} |"
        for each in figures
    ]
    return "\n".join(["| name | type | unit | labels | meaning |", "|---|---|---|---|---|", *rows, ""])


def _unit(name: str) -> str:
    return UNITS.get(name.removesuffix("_total").rpartition("_")[2], "")


if __name__ == "__main__":
    PAGE.write_text(page())
