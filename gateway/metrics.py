"""The figures of one gateway process, and how Prometheus reads them.

Comes in: what streams, landing and commits count. Goes out: counters since the process's start (`_total`) and gauges.
The only label is the code of an error that ends streams, one of this gateway's own classes: what agents say makes no
series. What is of one source is at the API's /metrics, in names of its own.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from pathlib import Path

from menura.errors import MenuraError
from menura.health import Health
from menura.metric_families import Families, Figure
from menura.metrics_port import serving
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.errors import GatewayError, ListenRefused


def _counter(meaning: str) -> int:
    counter: int = field(default=0, metadata={"meaning": meaning})
    return counter


_gauge = _counter


@dataclass(slots=True)
class GatewayMetrics:
    """Each is changed by one thread alone, read from any thread."""

    menura_session_open_streams: int = _gauge("Streams of agents that are open.")
    menura_lease_sources: int = _gauge("Sources that this gateway owns.")
    menura_lease_expiry_timestamp_seconds: float = _gauge(
        "Until when its lease holds, renewed three times in its life; 0: it has none yet."
    )
    menura_log_last_entry_timestamp_seconds: float = _gauge("When it committed last; 0: not since its start.")
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
    menura_log_blocked_sources: int = _gauge(
        "Sources whose committed cuts wait for a lock that another transaction of the database holds."
    )
    menura_log_waits_for_database: int = _gauge(
        "1 while commits of all sources wait for the database: it is away, or locked; the log says who holds it."
    )
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
    menura_upgrade_sent_bytes_total: int = _counter("Bytes of packages sent to agents.")
    menura_upgrade_refused_requests_total: int = _counter("Requests for bytes of packages that no order allows.")
    menura_upgrade_turns_total: int = _counter("Times that this gateway has looked after a rollout.")
    menura_registry_failures_total: int = _counter("Times that the database was away.")
    #: when the certificates expire of agents with open streams, by the streams
    certificates_us: dict[object, int] = field(default_factory=dict)
    #: streams that an error has ended, by its code
    ended: Counter[str] = field(default_factory=Counter)


REFUSALS = Figure("menura_session_refusals_total", "Streams that an error has ended, by its code.", ("code",))
CERTIFICATES = Figure(
    "menura_session_certificate_expiry_timestamp_seconds",
    "When the first certificate expires of agents with open streams, which renew them; absent: there is none.",
)
_COUNTED = [each for each in fields(GatewayMetrics) if "meaning" in each.metadata]
FIGURES = (*(Figure(each.name, each.metadata["meaning"]) for each in _COUNTED), CERTIFICATES, REFUSALS)


def _codes(kind: type[MenuraError]) -> set[str]:
    return set[str]().union(*({each.code} | _codes(each) for each in kind.__subclasses__()))


class GatewayCollector(Collector):
    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        found = Families(FIGURES)
        for each in _COUNTED:
            found.add(each.name, getattr(self._metrics, each.name))
        expire_us = list(self._metrics.certificates_us.values())
        found.add(CERTIFICATES.name, min(expire_us) / 1e6 if expire_us else None)
        for code in sorted(_codes(GatewayError)):  # also those that never came: a rate begins at 0
            found.add(REFUSALS.name, self._metrics.ended[code], code)
        yield from found


def serving_metrics(
    listen: str,
    metrics: GatewayMetrics,
    health: Health | None = None,
    further: Iterable[Collector] = (),
    token_file: Path | None = None,
) -> AbstractContextManager[str]:
    """Serve while the context lasts; gives the address with the port that it got. Raises `ListenRefused`.

    `further`: what whoever starts the gateway knows of its host. `token_file`: see `menura.metrics_port.serving`.
    """
    return serving([GatewayCollector(metrics), *further], listen, ListenRefused, health, token_file)
