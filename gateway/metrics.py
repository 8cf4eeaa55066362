"""The figures of one gateway process, and how Prometheus reads them.

Comes in: what streams, landing and commits count. Goes out: counters since the process's start, without labels. What is
of one source is at the API's /metrics, in names of its own.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields

from menura.metrics_port import serving
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.errors import ListenRefused


def _counter(meaning: str) -> int:
    counter: int = field(default=0, metadata={"meaning": meaning})
    return counter


@dataclass(slots=True)
class GatewayMetrics:
    """Only ever grow; each is changed by one thread alone, read from any thread."""

    menura_session_streams_total: int = _counter("Streams that agents have opened.")
    menura_session_errors_total: int = _counter("Streams that have ended with an error.")
    menura_landing_batches_total: int = _counter("Change batches received.")
    menura_landing_received_bytes_total: int = _counter("Bytes of change batches, as they came.")
    menura_landing_committed_rows_total: int = _counter("Change events in committed cuts.")
    menura_landing_resent_rows_total: int = _counter("Change events that were committed already, and left out.")
    menura_landing_fenced_batches_total: int = _counter("Change batches of streams that a newer one has replaced.")
    menura_landing_cuts_total: int = _counter("Cuts committed.")
    menura_landing_files_total: int = _counter("Data files in committed cuts.")
    menura_landing_file_bytes_total: int = _counter("Bytes of data files in committed cuts.")
    menura_landing_failures_total: int = _counter("Failures to write data files or to commit.")
    menura_dump_batches_total: int = _counter("Batches of dumped rows received.")
    menura_dump_received_bytes_total: int = _counter("Bytes of dumped rows, as they came.")
    menura_dump_rows_total: int = _counter("Rows of chunks that cuts have committed.")
    menura_dump_chunks_total: int = _counter("Chunks that cuts have committed.")
    menura_dump_discarded_chunks_total: int = _counter(
        "Chunks that landed and were deleted: read anew, given up, or of a dump that is over."
    )
    menura_dump_unknown_chunks_total: int = _counter("Chunks that a cut named and that were not there.")
    menura_log_entries_total: int = _counter("Entries of the cut log written.")
    menura_log_conflicts_total: int = _counter("Times that another gateway had written the log's next entry.")
    menura_log_commit_us_total: int = _counter("Microseconds spent committing entries of the cut log.")
    menura_retention_entries_total: int = _counter("Entries of the cut log that were removed, with their files.")
    menura_retention_files_total: int = _counter("Landed files that were removed.")
    menura_retention_bytes_total: int = _counter("Bytes of landed files that were removed.")
    menura_retention_held_turns_total: int = _counter(
        "Looks, one a minute, at which landed files were an hour over their time and something needed them."
    )
    menura_retention_silent_lake_turns_total: int = _counter(
        "Those of them at which it was a lake that had said nothing for 7 days."
    )
    menura_registry_failures_total: int = _counter("Times that the database was away.")


class GatewayCollector(Collector):
    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        for each in fields(self._metrics):
            yield CounterMetricFamily(
                each.name.removesuffix("_total"), each.metadata["meaning"], value=getattr(self._metrics, each.name)
            )


def serving_metrics(listen: str, metrics: GatewayMetrics) -> AbstractContextManager[str]:
    """Serve while the context lasts; gives the address with the port that it got. Raises `ListenRefused`."""
    return serving(GatewayCollector(metrics), listen, ListenRefused)
