"""The sink's figures, and how Prometheus reads them.

Comes in: the `SinkStatus`, read when somebody asks, so that an age is of that moment. Goes out: counters since the
sink's start, and gauges; what is not known is absent. Labels are tenants and sources, of at most `MAX_SOURCES`; no
label names a table.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from menura.instants import now_us
from menura.metrics_port import serving
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spark_sink.errors import SinkSettingInvalid
from spark_sink.ingest.status import SinkStatus
from spark_sink.landed.landing_log import LandingLog

MAX_SOURCES = 1_000
_OF_SOURCE = ("tenant", "source")


class SinkCollector(Collector):
    def __init__(self, status: SinkStatus, log: LandingLog, clock: Callable[[], int] = now_us) -> None:
        self._status = status
        self._log = log
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        now, at_us = self._status.now(), self._clock()
        yield CounterMetricFamily("menura_sink_batches", "Batches applied.", value=now.batches)
        yield CounterMetricFamily("menura_sink_rows", "Change events and dumped rows applied.", value=now.rows)
        yield CounterMetricFamily("menura_sink_batch_seconds", "Time spent in batches.", value=now.batch_seconds)
        yield GaugeMetricFamily(
            "menura_sink_tables_stopped", "Tables that the sink has stopped.", value=len(now.stopped)
        )
        shown = sorted(now.sources)[:MAX_SOURCES]
        stopped = Counter((table.tenant, table.source) for table in now.stopped)
        by_source = GaugeMetricFamily(
            "menura_sink_source_tables_stopped", "Tables of a source that the sink has stopped.", labels=_OF_SOURCE
        )
        for name in sorted({*shown, *stopped})[:MAX_SOURCES]:
            by_source.add_metric(name, stopped[name])
        yield by_source
        freshness = GaugeMetricFamily(
            "menura_sink_freshness_seconds", "Age of the newest transaction in the lake.", labels=_OF_SOURCE
        )
        for name in shown:
            commit_us = now.sources[name].last_commit_timestamp_us
            if commit_us:
                freshness.add_metric(name, max(0, at_us - commit_us) / 1e6)
        yield freshness
        lag = GaugeMetricFamily(
            "menura_sink_landing_lag_seconds",
            "Behind what has landed; 0: the lake has all of it; absent while unknown.",
        )
        lag_seconds = self._landing_lag_seconds(now.entry, at_us)
        if lag_seconds is not None:
            lag.add_metric((), lag_seconds)
        yield lag

    def _landing_lag_seconds(self, entry: int, at_us: int) -> float | None:
        try:
            waiting_since_us = self._log.written_us(entry + 1)
        except OSError:
            return None
        return 0.0 if waiting_since_us is None else max(1, at_us - waiting_since_us) / 1e6


def serving_metrics(listen: str, status: SinkStatus, landing: str) -> AbstractContextManager[str]:
    """Serve while the context lasts; gives the address with the port that it got. Raises `SinkSettingInvalid`."""
    return serving(SinkCollector(status, LandingLog(landing)), listen, SinkSettingInvalid)
