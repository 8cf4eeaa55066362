"""The stream of changes: messages in, change batches and cuts out. A state machine around the compiled decoder.

Comes in: bytes of the replication connection. Goes out, through a `Sink`: batches of rows, and at a transaction's end
the cut that makes them count; to the server, how far the gateway has committed. In the normal case no Python runs per
row or transaction: `decode` returns for what Python must decide, which is a message per table and session. Here each
message is judged; where the stream is stands in `read_position`, what is being sent in `cuts`, which tables get rows
in `router`, how they look in `definitions`.

Nothing is durable here. A kill at any point leaves the last committed cut, from which the log is read again with the
same numbers. A position moves only past what was decoded or is proven to hold no row of ours, and the server may forget
only what a committed cut holds and no dump needs any more.
"""

import logging
from collections import deque
from collections.abc import Sequence
from typing import NoReturn, Protocol

from menura.v1 import changes_pb2

from agent.capture.changes import ReadAgain
from agent.capture.cuts import Cuts
from agent.capture.starts import Starts
from agent.errors import EventUnknown, EventUnreadable
from agent.sources.postgresql.failures import connection_lost, message_unknown, message_unreadable
from agent.sources.postgresql.native.blocks import BlockError
from agent.sources.postgresql.native.decoder import DecodeError, Message, Reason
from agent.sources.postgresql.positions import WalPosition
from agent.sources.postgresql.read_position import ReadPosition
from agent.sources.postgresql.stream.context import StreamContext
from agent.sources.postgresql.stream.definitions import StreamDefinitions
from agent.sources.postgresql.stream.looks import Look
from agent.sources.postgresql.stream.relations import MessageBodyError, parse_message, parse_truncate
from agent.sources.postgresql.stream.router import TableRouter
from agent.sources.postgresql.stream.stops import Stops

log = logging.getLogger("menura.wal")

#: the server is told at each commit, and this often
ACKNOWLEDGE_SECONDS = 10.0
#: messages that concern no table: types' names come from the catalog, who wrote a transaction first is not told on
_SILENT = frozenset({"Y", "O"})


class ByteStream(Protocol):
    def receive_into(self, buffer: memoryview, timeout_seconds: float) -> int: ...
    def acknowledge(self, written_lsn: int, flushed_lsn: int) -> None: ...


class ServerRefused(Exception):
    """The server ended the stream with an error; whoever can ask it finds out what it means."""

    def __init__(self, fields: dict[str, str], position: WalPosition) -> None:
        self.fields = fields
        self.position = position
        super().__init__(fields.get("C", ""))


class WalReader:
    """Reads one stream until it fails; made anew for each Replicate."""

    def __init__(self, context: StreamContext) -> None:
        config, decoder = context.config, context.decoder
        self._source = config.name
        self._decoder = decoder
        self._table_positions = context.table_positions
        self._sink = context.sink
        self._coordinator = context.coordinator
        self._seen = context.seen
        self._store = context.store
        self._names = context.names
        self._take_look = context.take_look
        self._lost = context.lost
        self._unsettled = context.unsettled
        self._silence_seconds = context.settings.silence_seconds
        self._clock = context.clock
        self._heard_at = context.clock()
        start = context.table_positions.start
        self._read = read = ReadPosition(
            config.name, start, decoder, context.seen, context.sink.position_is, context.clock
        )
        self._cuts = cuts = Cuts(
            decoder,
            context.table_positions,
            read,
            context.sink,
            context.coordinator,
            context.stale,
            context.settings,
            context.clock,
        )
        stops = Stops(context, read, cuts)
        self._definitions = StreamDefinitions(context, stops, read, cuts)
        self._router = TableRouter(context, self._definitions, stops, read, cuts)
        #: ends of cuts that are not committed yet
        self._sent: deque[tuple[int, int]] = deque()
        self._ended_lsn = start.lsn
        #: up to here the gateway has committed; the server may not have heard of it
        self._committed_lsn = start.lsn
        self._acknowledged_lsn = 0
        self._acknowledged_at = context.clock()
        self._look: Look | None = None
        #: the server waits for all that it sent to be acknowledged
        self._is_awaited = False

    @property
    def oids(self) -> tuple[int, ...]:
        return self._definitions.oids

    def run(self, stream: ByteStream) -> NoReturn:
        """Read until the stream ends or fails, which raises."""
        self._heard_at = self._clock()
        self._acknowledge(stream, at_once=True)
        while True:
            try:
                size = stream.receive_into(self._decoder.writable(), self._cuts.wait_seconds())
            except TimeoutError:
                self._check_silence()
            except BlockError as broken:
                raise message_unreadable(self._read.place(), "", str(broken)) from broken
            except OSError as broken:
                raise connection_lost(
                    self._read.place(), f"the connection broke ({broken.strerror or type(broken).__name__})"
                ) from broken
            else:
                if not size:
                    raise connection_lost(self._read.place(), "the server closed the connection")
                self._heard_at = self._clock()
                self._sink.received(size)
                self._decoder.received(size)
                try:
                    self._decode(stream)
                except (EventUnknown, EventUnreadable):
                    self._end_cut_before_failure()
                    raise
            self._between()
            self._acknowledge(stream)

    def send_start(self, starts: Starts[WalPosition]) -> None:
        self._definitions.begin(self._lost.items())
        self._cuts.begin(starts)
        self._end_cut(starts.started)
        self._sink.tables_are(starts.stopped)

    def wait_for_all(self) -> None:
        """The server goes down, and waits for it; from any thread."""
        self._is_awaited = True

    def _decode(self, stream: ByteStream) -> None:
        """Decode all that was received, with Python's part in between."""
        decoder = self._decoder
        while True:
            try:
                reason = decoder.decode()
            except DecodeError as broken:
                self._fail(broken)
            if reason == Reason.NEED_BYTES:
                return
            if reason == Reason.MESSAGE:
                self._message(decoder.message)
            elif reason == Reason.BATCH_FULL:
                self._cuts.send_batches()
            elif reason == Reason.TRANSACTION_END:
                self._end_cut()
            elif reason == Reason.TRANSACTION_BEGIN:
                self._router.choose()
            elif reason == Reason.KEEPALIVE:
                self._is_awaited = True
                self._acknowledge(stream, at_once=True)
            elif reason == Reason.ERROR:
                raise ServerRefused(decoder.error, self._read.position)
            else:
                raise connection_lost(self._read.place(), "the server ended the stream")

    # --- messages

    def _message(self, message: Message) -> None:
        try:
            if message.kind == "R":
                self._router.relation(message.body)
            elif message.kind == "T":
                self._router.truncate(parse_truncate(message.body))
            elif message.kind == "M":
                parse_message(message.body)
            elif message.kind not in _SILENT:
                raise message_unknown(self._read.place(), message.kind)
        except MessageBodyError as broken:
            raise message_unreadable(self._read.place(), message.kind, str(broken)) from broken
        if self._cuts.has_many_events:
            self._end_cut_now()

    # --- between two portions of bytes

    def _between(self) -> None:
        if self._look is None:  # one that waits is as good as a later one, which would wait longer
            self._look = self._take_look()
        if self._cuts.is_due():
            self._end_cut_now()
        if self._decoder.in_transaction:
            return
        if self._is_awaited:
            self._is_awaited = False
            if self._read.finished_lsn > self._ended_lsn or self._decoder.pending_rows:
                self._end_cut()
        if self._look is not None and self._read.finished_lsn >= self._look.after_lsn:
            look, self._look = self._look, None
            self._passed(look)

    def _passed(self, look: Look) -> None:
        """The stream has all that the look shows."""
        self._read.publish()
        self._router.note_passed()
        self._names.passed(look.names, look.gone)
        ahead = self._table_positions.ahead()
        tables = [table for table in self._table_positions.synced() if table not in ahead]
        self._definitions.look(look, tables)
        if self._unsettled - look.unsettled:
            log.info("tables can begin that were published", extra={"fields": {"source": self._source}})
            self._end_cut()
            raise ReadAgain

    # --- cuts

    def _end_cut_now(self) -> None:
        """At once, or at the end of the transaction that the decoder is in."""
        if self._decoder.in_transaction:
            self._decoder.stop_at_transaction_end = True
        else:
            self._end_cut()

    def _end_cut(self, started: Sequence[changes_pb2.TableStarted] = ()) -> None:
        """Send what is pending and then the cut's end; the decoder stands between two transactions."""
        self._cuts.send_batches()
        self._read.publish()
        self._router.note_passed()
        self._store.committed(self._sink.committed_cut())
        self._definitions.save()
        self._ended_lsn = self._read.position.lsn
        self._sent.append((self._cuts.number, self._ended_lsn))
        self._cuts.end(started)

    def _end_cut_before_failure(self) -> None:
        """Where the source stops, what came before that transaction counts; else it would be read again in vain."""
        decoder = self._decoder
        first_gsn = decoder.transaction_first_gsn
        if self._cuts.has_event_since(first_gsn):
            return
        if decoder.in_transaction and not decoder.drop_rows(first_gsn):
            return
        self._end_cut()

    # --- what the server may forget

    def _acknowledge(self, stream: ByteStream, *, at_once: bool = False) -> None:
        committed_cut = self._sink.committed_cut()
        while self._sent and self._sent[0][0] <= committed_cut:
            self._committed_lsn = max(self._committed_lsn, self._sent.popleft()[1])
        flushed = self._committed_lsn
        held = [self._seen.held(), *self._coordinator.pending_starts()]
        for position in held:
            if isinstance(position, WalPosition):
                flushed = min(flushed, position.lsn)
        flushed = max(flushed, self._acknowledged_lsn)
        now = self._clock()
        is_due = now - self._acknowledged_at >= ACKNOWLEDGE_SECONDS
        if not (at_once or is_due or flushed > self._acknowledged_lsn):
            return
        try:
            stream.acknowledge(max(flushed, self._read.finished_lsn), flushed)
        except OSError as broken:
            found = f"the connection broke ({broken.strerror or type(broken).__name__})"
            raise connection_lost(self._read.place(), found) from broken
        self._acknowledged_lsn, self._acknowledged_at = flushed, now

    # --- failures

    def _check_silence(self) -> None:
        seconds = self._silence_seconds
        if self._clock() - self._heard_at > seconds:
            raise connection_lost(self._read.place(), f"no byte for {seconds:.0f} s, not even a keepalive")

    def _fail(self, broken: DecodeError) -> NoReturn:
        """What a DecodeError becomes: a table's failure where the table is known, else the source's."""
        self._read.publish()
        failed = self._router.failed(broken)
        raise failed or message_unreadable(self._read.place(), broken.kind, str(broken)) from broken
