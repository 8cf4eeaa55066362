"""The gRPC streams by themselves: order, gaps, refusals, bounds, and the credit that they carry."""

import threading
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc
import pytest
from menura.change_batch import Compression
from menura.protocol import PROTOCOL_VERSION
from menura.v1 import config_pb2, error_pb2, stream_pb2, stream_pb2_grpc

from agent.errors import GatewayError
from agent.runtime.credit import Credit, CreditCancelled
from agent.runtime.session import QUEUE_MESSAGES, GatewayChannel, Stream, StreamClosed, StreamWriter
from agent.settings import AgentConfig, GatewayConfig
from tests.stack import wait_for

Script = Callable[[Iterator[stream_pb2.StreamResponse], grpc.ServicerContext], Iterator[stream_pb2.StreamRequest]]


class Scripted(stream_pb2_grpc.GatewayServicer):
    """Answers each stream that opens with the next script."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        stream_pb2_grpc.add_GatewayServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Stream(
        self, request_iterator: Iterator[stream_pb2.StreamResponse], context: grpc.ServicerContext
    ) -> Iterator[stream_pb2.StreamRequest]:
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        yield from script(request_iterator, context)

    def stop(self) -> None:
        self._server.stop(0).wait()


class Recorder:
    """A plugin that remembers what happened to it."""

    source = ""
    request_type = stream_pb2.Control_Heartbeat

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.events: list[str] = []
        self.refusals: list[GatewayError] = []
        self.writer: StreamWriter | None = None

    def hello(self) -> config_pb2.Hello:
        return config_pb2.Hello(protocol=PROTOCOL_VERSION)

    def opened(self, writer: StreamWriter, ack: config_pb2.HelloAck) -> None:
        self.writer = writer
        self._note(f"opened {ack.gateway}")

    def received(self, request: stream_pb2.StreamRequest) -> None:
        self._note(str(request.WhichOneof("payload")))

    def refused(self, error: GatewayError) -> None:
        self.refusals.append(error)

    def closed(self) -> None:
        self._note("closed")

    def _note(self, event: str) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def wait(self, *events: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.events[: len(events)] == list(events), 300), self.events


def header(sequence: int) -> stream_pb2.Header:
    return stream_pb2.Header(tenant="acme", agent="db-1", request_type=stream_pb2.Control_Heartbeat, sequence=sequence)


def ack(sequence: int, name: str) -> stream_pb2.StreamRequest:
    return stream_pb2.StreamRequest(header=header(sequence), hello_ack=config_pb2.HelloAck(gateway=name))


def hold(messages: Iterator[stream_pb2.StreamResponse]) -> None:
    for _ in messages:
        pass


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def start() -> Iterator[Callable[[Recorder, Scripted], None]]:
    running: list[tuple[Stream, GatewayChannel, Scripted]] = []

    def run(recorder: Recorder, gateway: Scripted) -> None:
        channel = GatewayChannel(AgentConfig("acme", "db-1", GatewayConfig(gateway.address, None), ()))
        stream = Stream(channel, recorder)
        stream.start()
        running.append((stream, channel, gateway))

    yield run
    for stream, channel, gateway in running:
        stream.stop(5)
        channel.close()
        gateway.stop()


def test_stream_when_numbers_have_a_gap_then_opens_anew(
    recorder: Recorder, start: Callable[[Recorder, Scripted], None]
) -> None:
    def gap(
        messages: Iterator[stream_pb2.StreamResponse], _: grpc.ServicerContext
    ) -> Iterator[stream_pb2.StreamRequest]:
        yield ack(1, "first")
        yield stream_pb2.StreamRequest(header=header(3), heartbeat_ack=config_pb2.HeartbeatAck())
        hold(messages)

    def good(
        messages: Iterator[stream_pb2.StreamResponse], _: grpc.ServicerContext
    ) -> Iterator[stream_pb2.StreamRequest]:
        yield ack(1, "second")
        hold(messages)

    start(recorder, Scripted(gap, good))
    recorder.wait("opened first", "closed", "opened second")


def test_stream_when_the_gateway_refuses_then_tries_again(
    recorder: Recorder, start: Callable[[Recorder, Scripted], None]
) -> None:
    def refuse(_: object, context: grpc.ServicerContext) -> Iterator[stream_pb2.StreamRequest]:
        yield stream_pb2.StreamRequest(header=header(1), error=error_pb2.Error(code="LEASE_HELD", doing="opening"))
        context.abort(grpc.StatusCode.ABORTED, "refused")

    def good(
        messages: Iterator[stream_pb2.StreamResponse], _: grpc.ServicerContext
    ) -> Iterator[stream_pb2.StreamRequest]:
        yield ack(1, "second")
        hold(messages)

    start(recorder, Scripted(refuse, good))
    recorder.wait("opened second")


def test_stream_when_it_fails_then_the_log_says_why_in_one_line_of_bounded_length(
    recorder: Recorder, start: Callable[[Recorder, Scripted], None], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object, context: grpc.ServicerContext) -> Iterator[stream_pb2.StreamRequest]:
        context.abort(grpc.StatusCode.UNAVAILABLE, "x" * 5_000 + "\ncertificate verify failed")
        yield from ()

    def good(
        messages: Iterator[stream_pb2.StreamResponse], _: grpc.ServicerContext
    ) -> Iterator[stream_pb2.StreamRequest]:
        yield ack(1, "second")
        hold(messages)

    with caplog.at_level("WARNING", "menura.session"):
        start(recorder, Scripted(fail, good))
        recorder.wait("opened second")
    (record,) = caplog.records
    error = vars(record)["fields"]["error"]
    assert "status UNAVAILABLE (... xxx" in error
    assert "x certificate verify failed). Nothing is lost" in error
    assert len(error) < 700


def test_stream_when_messages_are_sent_then_each_has_the_header_and_the_next_number(
    recorder: Recorder, start: Callable[[Recorder, Scripted], None]
) -> None:
    seen: list[stream_pb2.Header] = []

    def record(messages: Iterator[stream_pb2.StreamResponse], _: object) -> Iterator[stream_pb2.StreamRequest]:
        yield ack(1, "first")
        for message in messages:
            seen.append(message.header)
            if len(seen) == 6:
                yield stream_pb2.StreamRequest(header=header(2), heartbeat_ack=config_pb2.HeartbeatAck())

    start(recorder, Scripted(record))
    recorder.wait("opened first")
    assert recorder.writer is not None
    for _ in range(5):
        recorder.writer.send(stream_pb2.StreamResponse(heartbeat=config_pb2.Heartbeat()))
    recorder.wait("opened first", "heartbeat_ack")
    assert [one.sequence for one in seen] == [1, 2, 3, 4, 5, 6]
    assert {(one.tenant, one.agent, one.source, one.session) for one in seen} == {("acme", "db-1", "", seen[0].session)}


def test_stream_when_stopped_before_its_first_word_then_ends_without_an_error(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_asked, is_stopped = threading.Event(), threading.Event()

    def hello() -> config_pb2.Hello:
        is_asked.set()
        assert is_stopped.wait(300)
        return config_pb2.Hello(protocol=PROTOCOL_VERSION)

    monkeypatch.setattr(recorder, "hello", hello)
    channel = GatewayChannel(AgentConfig("acme", "db-1", GatewayConfig("127.0.0.1:1", None), ()))
    stream = Stream(channel, recorder)
    stream.start()
    assert is_asked.wait(300)
    stream.stop(0)
    is_stopped.set()
    stream.stop(300)
    channel.close()
    assert not caplog.records


def test_writer_when_nobody_takes_messages_then_send_waits_and_a_close_ends_the_wait() -> None:
    writer = StreamWriter(stream_pb2.Header(), Compression.LZ4)
    sent: list[int] = []

    def send() -> None:
        with pytest.raises(StreamClosed):
            for number in range(QUEUE_MESSAGES + 1):
                writer.send(stream_pb2.StreamResponse())
                sent.append(number)

    sender = threading.Thread(target=send)
    sender.start()
    wait_for("the queue to be full", lambda: len(sent) == QUEUE_MESSAGES, every=0.01)
    sender.join(0.3)
    assert sender.is_alive()
    assert len(sent) == QUEUE_MESSAGES
    writer.close()
    sender.join(300)
    assert not sender.is_alive()


def test_credit_when_spent_then_waits_for_a_grant_and_counts_the_wait() -> None:
    credit, cancelled, passed = Credit(), threading.Event(), threading.Event()
    credit.grant(10)
    credit.wait(cancelled)
    assert credit.left_bytes == 10
    credit.spend(25)
    assert credit.left_bytes == 0

    def wait() -> None:
        credit.wait(cancelled)
        passed.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    credit.grant(15)
    wait_for("a wait that is counted while it lasts", lambda: credit.waited_us >= 150_000, every=0.01)
    assert not passed.is_set()
    credit.grant(1)
    assert passed.wait(300)
    waiter.join()
    waited_us = credit.waited_us
    assert 150_000 <= waited_us == credit.waited_us


def test_credit_when_the_wait_is_cancelled_then_raises() -> None:
    credit, cancelled = Credit(), threading.Event()
    cancelled.set()
    with pytest.raises(CreditCancelled):
        credit.wait(cancelled)
