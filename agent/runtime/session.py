"""The gRPC streams to the gateway: one per (source, RequestType) over one connection.

Comes in: what a plugin wants to say, and the gateway's requests. Goes out: numbered messages, in order,
through a bounded queue: a plugin that is faster than the network waits in `StreamWriter.send`. Nothing here is
durable: after a break the stream opens anew with Hello, and both sides say their whole state again.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Protocol
from uuid import uuid4

import grpc
from menura import allocator
from menura.bounds import MAX_NAME_CHARS
from menura.change_batch import Compression
from menura.message_parts import in_parts
from menura.v1 import changes_pb2, config_pb2, snapshot_pb2, stream_pb2
from menura.wire_format import length_delimited

from agent.errors import (
    GatewayError,
    GatewayRefused,
    GatewayRefusedForNow,
    GatewayUnreachable,
    IdentityRefused,
    StreamOutOfSequence,
)
from agent.identity import IdentityFile, Stamp
from agent.runtime.backoff import Backoff
from agent.runtime.commands import CommandLog
from agent.runtime.requests import MAX_REQUEST_BYTES, read_request
from agent.settings import AgentConfig, GatewayConfig
from agent.veto.outgoing import Withheld

log = logging.getLogger("menura.session")

#: of what is sent; in protobuf's and gRPC's own limits, above menura.change_batch.MAX_BATCH_BYTES
MAX_MESSAGE_BYTES = 300 << 20
#: messages waiting in one stream; a batch is already compressed
QUEUE_MESSAGES = 4
#: of a batch that is alone on its way: rows of many MiB would be there several times
LARGE_BYTES = 8 << 20
RECONNECT_FIRST_SECONDS = 0.2
RECONNECT_MOST_SECONDS = 5.0
READ_AGAIN = "Nothing is lost: the log is read again from the last committed cut"
#: what a gateway says that ends its work in good order
GATEWAY_STOPPING = "GATEWAY_STOPPING"
#: what a gateway says of who we are: it says the same again until somebody does something about it
IDENTITY_CODES = frozenset(
    {
        "AGENT_REVOKED",
        "AGENT_UNKNOWN",
        "CERTIFICATE_INVALID",
        "CERTIFICATE_MISSING",
        "CERTIFICATE_SUPERSEDED",
        "DUPLICATE_AGENT",
        "IDENTITY_MISMATCH",
    }
)
#: until it is asked again
STAND_BACK_SECONDS = 30.0
#: signs of a failed stream's own words
MAX_DETAILS = 300
#: a stream that was open for so long counts as a success
STABLE_SECONDS = 10.0

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Of pings that measure the way too: while one is out, keepalive sends none. An answer to it stands behind what the
    # other side has in its buffers: over a megabit per second that may be half a minute of rows.
    ("grpc.http2.ping_timeout_ms", 30_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    # an attempt that nobody answers ends after so long
    ("grpc.min_reconnect_backoff_ms", 8_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


_SERVICE = stream_pb2.DESCRIPTOR.services_by_name["Gateway"]
_METHOD = f"/{_SERVICE.full_name}/Stream"
#: number of the field `rows`, by the name of the batch
_ROWS_OF = {
    "change_batch": changes_pb2.ChangeBatch.ROWS_FIELD_NUMBER,
    "snapshot_batch": snapshot_pb2.SnapshotBatch.ROWS_FIELD_NUMBER,
}
#: one message, taken out when it is serialized: nobody keeps it while its parts are sent
Outgoing = list[tuple[stream_pb2.StreamResponse, list[bytes] | None]]


class StreamClosed(Exception):
    """The stream that this was sent on is over; its plugin hears of it through `closed`."""


class Plugin(Protocol):
    """What works on one stream. All but `hello` come from the stream's thread and MUST NOT block."""

    source: str
    request_type: stream_pb2.RequestType

    def hello(self) -> config_pb2.Hello: ...
    def opened(self, writer: "StreamWriter", ack: config_pb2.HelloAck) -> None: ...
    def received(self, request: stream_pb2.StreamRequest) -> None: ...
    def refused(self, error: GatewayError) -> None:
        """One end refuses what the other has said; the stream ends, before this or after it."""

    def closed(self) -> None: ...


class StreamWriter:
    """The agent's side of one open stream; safe to use from several threads."""

    def __init__(
        self,
        header: stream_pb2.Header,
        compression: Compression,
        look: Callable[[str, stream_pb2.StreamResponse], None] | None = None,
    ) -> None:
        """`look`: at each message before it is queued; raises `Withheld`."""
        #: of the rows that it sends
        self.compression = compression
        self._header = header
        self._look = look
        self._queue: deque[tuple[stream_pb2.StreamResponse, list[bytes] | None]] = deque()
        #: number of the last message that the transport has taken over
        self._sent = 0
        self._changed = threading.Condition()
        self.is_closed = False
        self._call: grpc.Call | None = None

    def send(self, response: stream_pb2.StreamResponse, rows: list[bytes] | None = None) -> None:
        """Queue one message, waiting while the queue is full; raises `StreamClosed`.

        `rows`: pieces of its batch's field of that name, which are not copied into the message; the list is emptied
        once they are sent. A large batch is waited for: while it is on its way, no other is made.
        """
        try:
            if self._look is not None:
                self._look(self._header.source, response)
        except Withheld as withheld:
            fields = {"source": self._header.source, "message": response.WhichOneof("payload")}
            log.error("a message stays on this host: its stream opens anew", extra={"fields": fields})  # noqa: TRY400
            self.abort()
            raise StreamClosed from withheld
        is_large = sum(map(len, rows or ())) >= LARGE_BYTES
        with self._changed:
            while (self._queue if is_large else len(self._queue) >= QUEUE_MESSAGES) and not self.is_closed:
                self._changed.wait()
            if self.is_closed:
                raise StreamClosed
            self._header.sequence += 1
            self._header.sent_at_us = time.time_ns() // 1000
            response.header.CopyFrom(self._header)
            self._queue.append((response, rows))
            number = self._header.sequence
            self._changed.notify_all()
            while is_large and self._sent < number and not self.is_closed:
                self._changed.wait()
        if is_large:
            allocator.trim()  # its frame was made of many small blocks

    def messages(self) -> Iterator[bytes]:
        """For gRPC's sending thread: it takes the next message, or part of one, when the transport has room."""
        taken = 0
        while True:
            with self._changed:
                self._sent = taken
                self._changed.notify_all()
                while not self._queue and not self.is_closed:
                    self._changed.wait()
                if not self._queue:
                    return
                outgoing = [self._queue.popleft()]
                self._changed.notify_all()
            yield from in_parts(_serialized(outgoing))
            taken += 1

    def started(self, call: grpc.Call) -> None:
        self._call = call

    def close(self) -> None:
        """No more messages; what is queued still goes out while the call lives."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def abort(self) -> None:
        """End the stream now, both ways; it is opened anew."""
        with self._changed:
            self._queue.clear()
        self.close()
        if self._call is not None:
            self._call.cancel()


class GatewayChannel:
    """The one connection to the gateway; a new one when its certificate's files change (`follow_files`)."""

    def __init__(
        self, config: AgentConfig, look: Callable[[str, stream_pb2.StreamResponse], None] | None = None
    ) -> None:
        """`look`: at each message that leaves, by the source of its stream."""
        self._config = config
        self.look = look
        self._session = str(uuid4())
        self._lock = threading.Lock()
        self._told: set[str] = set()
        self._writers: set[StreamWriter] = set()
        #: called when there is a new connection
        self.followers: list[Callable[[], object]] = []
        self._stamp = _stamp(config.gateway)
        self._dialled(_channel(config.gateway))

    @property
    def address(self) -> str:
        return self._config.gateway.address

    @property
    def compression(self) -> Compression:
        """Of rows on their way to the gateway."""
        return self._config.gateway.compression

    def header(self, source: str, request_type: stream_pb2.RequestType) -> stream_pb2.Header:
        return stream_pb2.Header(
            tenant=self._config.tenant,
            agent=self._config.agent,
            source=source,
            request_type=request_type,
            session=self._session,
        )

    def open(self, writer: StreamWriter) -> Iterator[bytes]:
        """What the gateway sends from now on, as bytes.

        Raises `IdentityUnusable` where the certificate has expired: nobody would answer.
        """
        tls = self._config.gateway.tls
        if isinstance(tls, IdentityFile):
            tls.check_expiry()
        with self._lock:
            self._writers.add(writer)
            call = self._stream(writer.messages(), wait_for_ready=False)
            writer.started(call)
        return call  # type: ignore[no-any-return]

    def left(self, writer: StreamWriter) -> None:
        with self._lock:
            self._writers.discard(writer)

    def follow_files(self) -> None:
        """Dial anew where the certificate's files have changed; raises `IdentityUnusable`, and the former one stays.

        Streams that are open end, and open again on the new connection: the former one's certificate ends soon.
        """
        stamp = _stamp(self._config.gateway)
        if stamp == self._stamp:
            return
        channel, former = _channel(self._config.gateway), self._channel
        with self._lock:
            self._stamp = stamp
            self._dialled(channel)
            writers = list(self._writers)
        for writer in writers:
            writer.abort()
        former.close()
        log.info("connecting anew with new certificates", extra={"fields": {"streams": len(writers)}})
        for follower in list(self.followers):
            follower()

    def open_anew(self) -> None:
        """End all streams: what they have queued does not leave, and what comes next is made for new ones."""
        with self._lock:
            writers = list(self._writers)
        for writer in writers:
            writer.abort()

    def _dialled(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._stream = channel.stream_stream(_METHOD, request_serializer=None, response_deserializer=None)

    def is_news(self, error: GatewayUnreachable) -> bool:
        """Whether no stream has told it since one was open: all of them fail with their one connection."""
        with self._lock:
            is_new = str(error) not in self._told
            self._told.add(str(error))
            return is_new

    def opened(self) -> None:
        with self._lock:
            self._told.clear()

    def close(self) -> None:
        self._channel.close()


class Stream:
    """Keeps one plugin's stream open, in a thread of its own."""

    def __init__(self, channel: GatewayChannel, plugin: Plugin) -> None:
        self._channel = channel
        self._plugin = plugin
        self._stopping = threading.Event()
        #: what a pause ends with
        self._wake = threading.Event()
        channel.followers.append(self._wake.set)
        self._stands_back = False
        self._writer: StreamWriter | None = None
        self._backoff = Backoff(RECONNECT_FIRST_SECONDS, RECONNECT_MOST_SECONDS, Random())  # noqa: S311
        self._last_error = ""
        self._commands, self._gateway = CommandLog(), ""
        self._opened_at = 0.0
        self._was_stable = True
        name = stream_pb2.RequestType.Name(plugin.request_type)
        self._thread = threading.Thread(target=self._run, name=f"{plugin.source}/{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        self._stopping.set()
        self._wake.set()
        writer = self._writer
        if writer is not None:
            writer.abort()
        self._thread.join(timeout_seconds)
        with suppress(ValueError):  # told before
            self._channel.followers.remove(self._wake.set)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            self._stands_back = False
            try:
                self._one_session()
            except GatewayError as error:
                self._report(error)
            except Exception:
                log.exception("defect", extra={"fields": {"stream": self._thread.name}})
            if not self._stopping.is_set():
                spread = Random().uniform(0.8, 1.2)  # noqa: S311
                self._wake.wait(STAND_BACK_SECONDS * spread if self._stands_back else self._backoff.next_seconds())

    def _report(self, error: GatewayError) -> None:
        """Each failure once: a repeated one stays silent until the stream has been open again."""
        if self._stopping.is_set():
            return
        if isinstance(error, GatewayUnreachable):
            level = logging.WARNING if self._channel.is_news(error) else logging.DEBUG
            log.log(level, "gateway not reached, trying again", extra={"fields": {"error": str(error)}})
            return
        self._plugin.refused(error)
        level = logging.DEBUG if str(error) == self._last_error else logging.WARNING
        self._last_error = str(error)
        log.log(level, "stream failed", extra={"fields": {"stream": self._thread.name, "error": str(error)}})

    def _one_session(self) -> None:
        header = self._channel.header(self._plugin.source, self._plugin.request_type)
        own_header = stream_pb2.Header.FromString(header.SerializeToString())
        writer = StreamWriter(own_header, self._channel.compression, self._channel.look)
        self._writer = writer
        if self._stopping.is_set():
            return
        try:
            writer.send(stream_pb2.StreamResponse(hello=self._plugin.hello()))
        except StreamClosed:  # told to stop meanwhile
            return
        opened = False
        refused: GatewayRefused | GatewayUnreachable | None = None
        try:
            for number, data in enumerate(self._channel.open(writer), start=1):
                request = read_request(data, self._plugin.request_type, self._channel.address)
                _check(header, request.header, number, self._channel.address)
                kind = request.WhichOneof("payload")
                if kind == "error":
                    refused = _refused(request, self._channel.address)
                    self._report(refused)  # the gateway ends the stream, or goes on without what the error names
                elif kind == "hello_ack":
                    opened = True
                    self._opened(writer, request)
                else:
                    self._commands.obeyed(request, self._gateway)
                    self._plugin.received(request)
        except grpc.RpcError as broken:
            if refused is not None or writer.is_closed:  # said above, or our own wish
                self._stands_back = isinstance(refused, IdentityRefused) and not writer.is_closed
                return
            raise _broken(broken, self._channel.address) from broken
        finally:
            writer.abort()
            self._channel.left(writer)
            if opened:
                self._plugin.closed()
                self._was_stable = time.monotonic() - self._opened_at >= STABLE_SECONDS
                if self._was_stable:
                    self._backoff.succeeded()
                    self._last_error = ""

    def _opened(self, writer: StreamWriter, request: stream_pb2.StreamRequest) -> None:
        self._opened_at = time.monotonic()
        self._channel.opened()
        self._gateway = request.hello_ack.gateway[:MAX_NAME_CHARS]
        level = logging.INFO if self._was_stable else logging.DEBUG  # else what failed is tried again and again
        fields = {"stream": self._thread.name, "gateway": self._gateway}
        log.log(level, "stream open", extra={"fields": fields})
        self._plugin.opened(writer, request.hello_ack)


def _serialized(outgoing: Outgoing) -> bytes:
    """The message, and behind it its batch once more with the rows alone: a parser merges both."""
    response, rows = outgoing.pop()
    serialized = response.SerializeToString()
    if not rows:
        return serialized
    batch = stream_pb2.StreamResponse.DESCRIPTOR.fields_by_name[response.WhichOneof("payload") or ""]
    field = length_delimited(_ROWS_OF[batch.name], sum(map(len, rows)))
    whole = len(field) + sum(map(len, rows))
    parts = [serialized, length_delimited(batch.number, whole), field, *rows]
    rows.clear()
    return b"".join(parts)


def _channel(gateway: GatewayConfig) -> grpc.Channel:
    if gateway.tls is None:
        return grpc.insecure_channel(gateway.address, options=_CHANNEL_OPTIONS)
    found = gateway.tls.read()
    credentials = grpc.ssl_channel_credentials(found.ca, found.key, found.certificate)
    named = (("grpc.ssl_target_name_override", found.server_name),) if found.server_name else ()
    return grpc.secure_channel(gateway.address, credentials, options=(*_CHANNEL_OPTIONS, *named))


def _stamp(gateway: GatewayConfig) -> Stamp:
    return () if gateway.tls is None else gateway.tls.stamp()


def _check(ours: stream_pb2.Header, theirs: stream_pb2.Header, number: int, address: str) -> None:
    found = (theirs.tenant, theirs.agent, theirs.source, theirs.request_type, theirs.sequence)
    expected = (ours.tenant, ours.agent, ours.source, ours.request_type, number)
    if found != expected:
        raise StreamOutOfSequence(
            f"receiving from the gateway {address}",
            f"a header of {found}, expected {expected}",
            data="Nothing is lost: the stream opens anew",
            remedy="If it repeats, gateway and agent are of versions that don't fit",
            source=ours.source,
        )


def _refused(request: stream_pb2.StreamRequest, address: str) -> GatewayRefused | GatewayUnreachable:
    error = request.error
    if error.code == GATEWAY_STOPPING:
        return GatewayUnreachable(
            f"talking to the gateway {address}",
            "the gateway is stopping",
            data=READ_AGAIN,
            remedy="It is tried again by itself; start the gateway",
        )
    kind = GatewayRefused if error.terminal else GatewayRefusedForNow
    return (IdentityRefused if error.code in IDENTITY_CODES else kind)(
        f"talking to the gateway {address}",
        f"it ended the stream with {error.code}: {error.doing}: {error.found}",
        data=error.data or "Nothing is lost: the stream opens anew",
        remedy=error.remedy,
        source=request.header.source,
    )


def _plain(details: str) -> str:
    """What gRPC or the other side says: one line, and not a long one. Its last words tell the most."""
    line = "".join(sign if sign.isprintable() else " " for sign in details)
    return line if len(line) <= MAX_DETAILS else "... " + line[-MAX_DETAILS:]


def _broken(broken: grpc.RpcError, address: str) -> GatewayRefused | GatewayUnreachable:
    status, details = (broken.code().name, broken.details()) if isinstance(broken, grpc.Call) else ("UNKNOWN", "")
    found = f"the stream ended with gRPC status {status} ({_plain(details or 'no details')})"
    doing = f"talking to the gateway {address}"
    if status == grpc.StatusCode.RESOURCE_EXHAUSTED.name:
        many = "Let the gateway have fewer streams, or this source fewer tables"
        return GatewayRefusedForNow(doing, found, data=READ_AGAIN, remedy=many)
    fix = "Start the gateway, or correct gateway.address and gateway.tls"
    return GatewayUnreachable(doing, found, data=READ_AGAIN, remedy=fix)
