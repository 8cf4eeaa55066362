"""OpenTelemetry traces of changes: from the commit at the source until the lake has it.

Comes in: the cuts of a batch that is in the lake and recorded, and how long the batch took. Goes out, by OTLP over
HTTP: for the newest cut of each source a span `change`, which begins with the cut's first commit, and below it `land`
(until the cut stood in the landing's log), `wait` (until the batch began) and `apply` (the batch). Nothing is durable:
what the collector does not take is lost, the SDK's log says so, and no batch waits for it.

The sink knows all these times, so no other part sends any; an agent reaches nothing but its gateway. A trace's number
follows from the landing, the source and the cut: a batch that is done again, and another lake of the landing, have the
same. Commits have the source's clock: one that is ahead makes a span of no length, never one that ends before it
begins.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from urllib.parse import urlsplit

from menura.landing import landing_name
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import set_span_in_context
from opentelemetry.util.types import AnyValue

from spark_sink.errors import SinkSettingInvalid
from spark_sink.lake.records import last_cuts
from spark_sink.work import CutSeen

#: of a batch, the first by their names
MOST_SOURCES = 1_000
#: for the collector's answer, each time with retries; at its end the sink waits 30 s at most for what is left
TIMEOUT_SECONDS = 5.0


class _Numbers(RandomIdGenerator):
    """The next trace's number is said before it begins."""

    def __init__(self) -> None:
        self.trace_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id


class Traces:
    def __init__(self, landing: str, exporter: SpanExporter) -> None:
        self._landing = landing_name(landing)
        self._numbers = _Numbers()
        told = Resource.create({"service.name": "menura-sink", "service.version": version("menura")})
        self._provider = TracerProvider(resource=told, id_generator=self._numbers, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("menura")

    def applied(self, cuts: Iterable[CutSeen], seconds: float) -> None:
        """A batch that is in the lake now. By one thread."""
        ended_us = time.time_ns() // 1000
        newest = sorted(last_cuts(cut for cut in cuts if cut.first_commit_timestamp_us).items())
        for _, cut in newest[:MOST_SOURCES]:
            self._trace(cut, ended_us - int(seconds * 1e6), ended_us)

    def close(self) -> None:
        self._provider.shutdown()

    def _trace(self, cut: CutSeen, began_us: int, ended_us: int) -> None:
        self._numbers.trace_id = trace_id(self._landing, cut)
        what: dict[str, AnyValue] = {"menura.tenant": cut.tenant, "menura.source": cut.source, "menura.cut": cut.cut}
        began = min(cut.first_commit_timestamp_us, ended_us)
        change = self._tracer.start_span(
            "change", start_time=began * 1000, attributes={**what, "menura.entry": cut.entry}
        )
        within = set_span_in_context(change)
        for name, end_us in (("land", cut.committed_at_us), ("wait", began_us), ("apply", ended_us)):
            span = self._tracer.start_span(name, within, start_time=began * 1000, attributes=what)
            began = max(began, min(end_us, ended_us))
            span.end(began * 1000)
        change.end(ended_us * 1000)


def trace_id(landing: str, cut: CutSeen) -> int:
    words = f"{landing}\n{cut.tenant}/{cut.source}\n{cut.cut}"
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:16]) or 1


@contextmanager
def sending(landing: str, url: str) -> Iterator[Traces]:
    """To the collector at `url`; OpenTelemetry's environment variables say the rest. Raises `SinkSettingInvalid`."""
    where = urlsplit(url)
    if where.scheme not in ("http", "https") or not where.hostname:
        raise SinkSettingInvalid(
            "reading the arguments",
            f"--traces {url!r} is no address",
            remedy="Use the OTLP/HTTP address of a collector, such as http://127.0.0.1:4318",
        )
    traces = Traces(landing, OTLPSpanExporter(f"{url.rstrip('/')}/v1/traces", timeout=TIMEOUT_SECONDS))
    try:
        yield traces
    finally:
        traces.close()
