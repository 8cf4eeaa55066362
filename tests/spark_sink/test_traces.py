"""Traces of changes, as a collector of OpenTelemetry gets them, and one that is away."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pyspark.sql import SparkSession

from spark_sink.errors import SinkSettingInvalid
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.running import run
from spark_sink.traces import sending, trace_id
from spark_sink.work import CutSeen
from tests.servers import free_port
from tests.spark_sink.landing import Writer, insert
from tests.spark_sink.test_lost_tables import OLD

#: 2023
COMMITTED_US = 1_700_000_000_000_000


class Collector:
    """Takes what is posted to /v1/traces, as OTLP over HTTP has it."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, self))
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "Collector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, collector: Collector, *arguments: object) -> None:
        self._collector = collector
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_POST(self) -> None:
        assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._collector.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def cut(number: int, source: str = "shop", **changes: int) -> CutSeen:
    times = {"committed_at_us": COMMITTED_US + 300_000, "first_commit_timestamp_us": COMMITTED_US} | changes
    return CutSeen("acme", source, 1, number, number, last_commit_timestamp_us=COMMITTED_US + 100_000, **times)


def attributes(span: Span) -> dict[str, object]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def by_name(spans: list[Span]) -> dict[str, Span]:
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


def test_a_batch_when_it_is_applied_then_the_newest_cut_of_each_source_is_a_trace_of_three_steps(
    collector: Collector,
) -> None:
    with sending("/landing", collector.url) as traces:
        traces.applied([cut(1), cut(2), cut(7, "stock"), cut(9, "idle", first_commit_timestamp_us=0)], 0.25)
    spans = collector.spans()
    assert sorted((span.name, attributes(span)["menura.source"], attributes(span)["menura.cut"]) for span in spans) == [
        (name, source, number)
        for name in ("apply", "change", "land", "wait")
        for source, number in (("shop", 2), ("stock", 7))
    ]
    found = by_name([span for span in spans if attributes(span)["menura.source"] == "shop"])
    change, land, wait, apply = (found[name] for name in ("change", "land", "wait", "apply"))
    assert {span.trace_id for span in found.values()} == {trace_id("/landing", cut(2)).to_bytes(16)}
    assert [span.parent_span_id for span in (change, land, wait, apply)] == [b"", *[change.span_id] * 3]
    assert change.start_time_unix_nano == land.start_time_unix_nano == COMMITTED_US * 1000
    assert land.end_time_unix_nano == wait.start_time_unix_nano == (COMMITTED_US + 300_000) * 1000
    assert wait.end_time_unix_nano == apply.start_time_unix_nano
    assert apply.end_time_unix_nano == change.end_time_unix_nano
    assert apply.end_time_unix_nano - apply.start_time_unix_nano == 250_000_000
    assert attributes(change) == {
        **{"menura.tenant": "acme", "menura.source": "shop"},
        **{"menura.cut": 2, "menura.entry": 2},
    }
    (service,) = {
        each.value.string_value
        for request in collector.requests
        for of_resource in request.resource_spans
        for each in of_resource.resource.attributes
        if each.key == "service.name"
    }
    assert service == "menura-sink"


def test_a_commit_when_its_clock_is_ahead_then_no_span_ends_before_it_begins(collector: Collector) -> None:
    ahead_us = 4_000_000_000_000_000
    with sending("/landing", collector.url) as traces:
        traces.applied([cut(1, first_commit_timestamp_us=ahead_us)], 0.0)
    spans = by_name(collector.spans())
    assert len(spans) == 4
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in spans.values())
    assert spans["change"].end_time_unix_nano < ahead_us * 1000


def test_a_batch_when_it_is_done_again_then_its_trace_has_the_same_number_and_another_cut_another() -> None:
    numbers = {trace_id(landing, each) for landing in ("/a", "/b") for each in (cut(1), cut(2), cut(1, "stock"))}
    assert len(numbers) == 6 and trace_id("/a", cut(1)) in numbers


@pytest.mark.spark
def test_a_sink_when_it_follows_its_landing_then_a_trace_ends_once_the_lake_has_the_change(
    session: SparkSession, writer: Writer, lake: Path, collector: Collector
) -> None:
    writer.cut((OLD, [insert(id=1, v=1)]))
    _follow(session, writer, lake, collector.url)
    spans = by_name(collector.spans())
    assert spans.keys() == {"change", "land", "wait", "apply"}
    assert attributes(spans["change"])["menura.cut"] == 1
    assert spans["change"].start_time_unix_nano == writer.commit_us * 1000


@pytest.mark.spark
def test_a_sink_when_the_collector_is_away_then_the_lake_has_all_and_the_log_says_so(
    session: SparkSession, writer: Writer, lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer.cut((OLD, [insert(id=1, v=1)]))
    status = _follow(session, writer, lake, f"http://127.0.0.1:{free_port()}")
    assert (status.now().entry, status.now().problem) == (1, None)
    assert any(record.name.startswith("opentelemetry") and record.levelname == "ERROR" for record in caplog.records)


def _follow(session: SparkSession, writer: Writer, lake: Path, url: str) -> SinkStatus:
    checkpoint = str(lake / "_menura" / "checkpoint")
    settings = SinkSettings(str(writer.folder), str(lake), checkpoint, available_now=True)
    with sending(settings.landing, url) as traces:
        status = SinkStatus(traces.applied)
        run(session, settings, threading.Event(), status)
    return status


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "grpc://collector:4317", "http://", ""])
def test_an_address_when_it_is_none_then_it_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(SinkSettingInvalid, match=r"http://127\.0\.0\.1:4318"), sending("/landing", url):
        pass
