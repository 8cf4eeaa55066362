"""The sink's figures, and how Prometheus reads them.

Comes in: the `SinkStatus`, read when somebody asks, so that an age is of that moment. Goes out: counters since the
sink's start, and gauges; what is not known is absent. Labels are tenants and sources, of at most `MAX_SOURCES`; no
label names a table.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from menura.health import Health
from menura.instants import now_us
from menura.metric_families import Families, Figure, VolumesCollector
from menura.metrics_port import serving
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from spark_sink.errors import SinkError, SinkSettingInvalid, TableBehind
from spark_sink.ingest.status import SinkStatus
from spark_sink.landed.landing_log import LandingLog

MAX_SOURCES = 1_000
_OF_SOURCE = ("tenant", "source")
FIGURES = (
    Figure("menura_sink_batches_total", "Batches applied."),
    Figure("menura_sink_rows_total", "Change events and dumped rows applied."),
    Figure("menura_sink_batch_seconds_total", "Time spent in batches."),
    Figure("menura_sink_tables_stopped", "Tables that the sink has stopped."),
    Figure("menura_sink_tables_behind", "Tables that catch up in parts, since others do not wait for them."),
    Figure("menura_sink_waiting", "1: the sink waits for its landing or its lake, which do not answer; else 0."),
    Figure("menura_sink_source_tables_stopped", "Tables of a source that the sink has stopped.", _OF_SOURCE),
    Figure("menura_sink_freshness_seconds", "Age of the newest transaction in the lake.", _OF_SOURCE),
    Figure(
        "menura_sink_landing_lag_seconds",
        "Behind what has landed; 0: the lake has all of it; absent while unknown.",
    ),
)


class SinkCollector(Collector):
    def __init__(self, status: SinkStatus, log: LandingLog, clock: Callable[[], int] = now_us) -> None:
        self._status = status
        self._log = log
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        now, at_us = self._status.now(), self._clock()
        found = Families(FIGURES)
        found.add("menura_sink_batches_total", now.batches)
        found.add("menura_sink_rows_total", now.rows)
        found.add("menura_sink_batch_seconds_total", now.batch_seconds)
        stops = [stop for stop in now.stopped.values() if stop.code != TableBehind.code]
        found.add("menura_sink_tables_stopped", len(stops))
        found.add("menura_sink_tables_behind", len(now.stopped) - len(stops))
        found.add("menura_sink_waiting", now.problem is not None)
        shown = sorted(now.sources)[:MAX_SOURCES]
        stopped = Counter((stop.table.tenant, stop.table.source) for stop in stops)
        for name in sorted({*shown, *stopped})[:MAX_SOURCES]:
            found.add("menura_sink_source_tables_stopped", stopped[name], *name)
        for name in shown:
            commit_us = now.sources[name].last_commit_timestamp_us
            if commit_us:
                found.add("menura_sink_freshness_seconds", max(0, at_us - commit_us) / 1e6, *name)
        found.add("menura_sink_landing_lag_seconds", self._landing_lag_seconds(now.entry, at_us))
        yield from found

    def _landing_lag_seconds(self, entry: int, at_us: int) -> float | None:
        try:
            waiting_since_us = self._log.written_us(entry + 1)
        except (OSError, SinkError):  # the sink itself meets the same, and says it
            return None
        return 0.0 if waiting_since_us is None else max(1, at_us - waiting_since_us) / 1e6


def serving_metrics(
    listen: str,
    status: SinkStatus,
    landing: str,
    folders: Mapping[str, Path],
    health: Health | None = None,
    token_file: Path | None = None,
) -> AbstractContextManager[str]:
    """Serve while the context lasts; gives the address with the port that it got. Raises `SinkSettingInvalid`.

    `folders`: of this host, which the sink fills. `token_file`: see `menura.metrics_port.serving`.
    """
    collectors = [SinkCollector(status, LandingLog(landing)), VolumesCollector(folders)]
    return serving(collectors, listen, SinkSettingInvalid, health, token_file)
