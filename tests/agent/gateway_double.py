"""A gateway for protocol tests: records what an agent sends, grants credit, and does what the test tells it.

Of dumps it plays the ledger (`dump_ledger`). It checks sequences and headers as the real one must, and digests as the
real one does: one that would be refused ends the test. It lands nothing, and commits cuts by remembering them: a stream
that opens again gets a Replicate from the last committed cut.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

import grpc
import pyarrow as pa
from menura.message_parts import MAX_GRPC_BYTES, Assembly
from menura.roles import ROLES, Role
from menura.v1 import catalog_pb2, changes_pb2, config_pb2, error_pb2, snapshot_pb2, stream_pb2, stream_pb2_grpc

from gateway.errors import PayloadInvalid
from gateway.wire.digest import landed_digest, landed_focus
from tests.agent.dump_ledger import Dump, DumpLedger
from tests.agent.running import check_agents
from tests.agent.wire import read_table

WINDOW_BYTES = 64 << 20

Table = tuple[str, str]


@dataclass
class Batch:
    cut: int
    table: Table
    schema_id: str
    rows: pa.Table
    transactions: pa.Table
    raw: changes_pb2.ChangeBatch


@dataclass
class SourceRecord:
    """All that is known of one source; `committed` is what survives a broken stream."""

    hello: config_pb2.SourceHello | None = None
    effective: list[config_pb2.EffectiveState] = field(default_factory=list)
    #: before the first one it says nothing
    status: config_pb2.SourceStatus = field(default_factory=config_pb2.SourceStatus)
    cartography: list[catalog_pb2.Cartography] = field(default_factory=list)
    errors: list[stream_pb2.StreamResponse] = field(default_factory=list)
    committed: list[changes_pb2.CutEnd] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    pending: list[Batch] = field(default_factory=list)
    tables: dict[Table, changes_pb2.TableSync] = field(default_factory=dict)
    generation: int = 1
    streams: dict[Role, "_Stream"] = field(default_factory=dict)
    replicates: int = 0
    #: identity of another server that somebody has accepted
    accepted_server: str = ""
    #: cuts with a higher number than this are dropped uncommitted
    loses_cuts: bool = False
    last_kept_cut: int = 0
    ledger: DumpLedger = field(default_factory=DumpLedger)

    def existing(self) -> set[Table]:
        """That the cartography has, with all differences that were told."""
        found: set[Table] = set()
        was_last = False
        for part in [*self.cartography]:
            if was_last and not part.base:
                found.clear()
            was_last = part.last
            found |= {(card.table.database, card.table.table) for card in part.tables}
            found -= {(table.database, table.table) for table in part.gone}
        return found


def whole_messages(received: Iterator[stream_pb2.StreamResponse]) -> Iterator[stream_pb2.StreamResponse]:
    """What came in parts is put together."""
    assembly: Assembly | None = None
    for message in received:
        if message.WhichOneof("payload") != "part":
            assert assembly is None
            yield message
            continue
        assembly = assembly or Assembly(message.part.whole_bytes)
        whole = assembly.add(message.part)
        if whole is not None:
            assembly = None
            yield stream_pb2.StreamResponse.FromString(whole)


class _Stream:
    def __init__(self, context: grpc.ServicerContext) -> None:
        self.context = context
        #: what still comes of a stream that is over is not heard
        self.is_over = False
        self.out: SimpleQueue[stream_pb2.StreamRequest | None] = SimpleQueue()


class GatewayDouble(stream_pb2_grpc.GatewayServicer):
    def __init__(
        self, *, window_bytes: int = WINDOW_BYTES, cut_interval_ms: int = 50, cut_bytes: int = 8 << 20
    ) -> None:
        self.window_bytes = window_bytes
        self.cut_interval_ms = cut_interval_ms
        self.cut_bytes = cut_bytes
        self.grants_credit = True
        #: whether chunks are told to have landed
        self.lands_chunks = True
        #: why a message of an agent ends its stream; None: it is taken
        self.refuses: Callable[[stream_pb2.StreamResponse], error_pb2.Error | None] = lambda response: None
        #: why the real one would refuse a digest
        self.invalid: PayloadInvalid | None = None
        self.sources: dict[str, SourceRecord] = {}
        self.desired_sources: config_pb2.DesiredSources | None = None
        self.heartbeats: list[config_pb2.Heartbeat] = []
        self.messages: list[bytes] = []
        self.changed = threading.Condition()
        #: those without a source, by agent
        self._control: dict[tuple[str, Role], _Stream] = {}
        self._server = grpc.server(
            futures.ThreadPoolExecutor(64),
            options=[("grpc.max_receive_message_length", MAX_GRPC_BYTES), ("grpc.max_send_message_length", 300 << 20)],
        )
        stream_pb2_grpc.add_GatewayServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        for record in self.sources.values():
            for stream in record.streams.values():
                stream.out.put(None)
        self._server.stop(0).wait()
        if self.invalid is not None:
            raise self.invalid

    # --- what tests say

    def source(self, name: str) -> SourceRecord:
        with self.changed:
            return self.sources.setdefault(name, SourceRecord())

    def sync(self, source: str, *tables: Table, **start: object) -> None:
        """Desire these tables too, beginning as `start` says, e.g. oldest=True."""
        record = self.source(source)
        with self.changed:
            record.generation += 1
            for table in tables:
                name = config_pb2.TableName(database=table[0], table=table[1])
                record.tables[table] = changes_pb2.TableSync(table=name, **start)
            self._push(source)

    def unsync(self, source: str, *tables: Table) -> None:
        record = self.source(source)
        with self.changed:
            record.generation += 1
            for table in tables:
                del record.tables[table]
            self._push(source)

    def accept(self, source: str, identity: str) -> None:
        """Somebody accepts the server that is there in place of the one that was read."""
        record = self.source(source)
        with self.changed:
            record.generation += 1
            record.accepted_server = identity
            self._push(source)

    def dump(self, source: str, dump: str, table: Table, **order: object) -> Dump:
        """Order a dump, e.g. with priority=2."""
        ledger = self.source(source).ledger
        with self.changed:
            ledger.dumps[dump] = made = Dump(dump, table, **order)
        self.order(source)
        return made

    def order(self, source: str, *dumps: Dump, **changes: object) -> None:
        """Change orders, e.g. with paused=True, and tell the agent of all."""
        ledger = self.source(source).ledger
        with self.changed:
            for dump in dumps:
                for name, value in changes.items():
                    setattr(dump, name, value)
            ledger.generation += 1
            self._push_dumps(source)

    def configure(self, desired: config_pb2.DesiredSources) -> None:
        """Desire these sources of every agent, now and whenever it comes again."""
        with self.changed:
            self.desired_sources = desired
            for stream in [found for (_, role), found in self._control.items() if role is Role.CONFIG]:
                stream.out.put(stream_pb2.StreamRequest(desired_sources=desired))

    def ask_cartography(self, source: str, known: bytes) -> None:
        """As if the one of that digest was recorded."""
        question = catalog_pb2.CartographyRequest(known=known)
        self._send(source, Role.CATALOG, stream_pb2.StreamRequest(cartography_request=question))

    def lose_cuts(self, source: str, *, loses: bool = True, last_kept_cut: int = 0) -> None:
        """As if the gateway was killed before it commits each cut of the source from now on, or behind this one."""
        with self.changed:
            record = self.source(source)
            record.loses_cuts, record.last_kept_cut = loses, last_kept_cut

    def drop(self, source: str, role: Role) -> None:
        """End a stream as a broken network would."""
        self._open_stream(source, role).out.put(None)

    def refuse(self, source: str, role: Role, error: error_pb2.Error) -> None:
        """End a stream and say why."""
        self._refuse(self._open_stream(source, role), error)

    def _refuse(self, stream: _Stream, error: error_pb2.Error) -> None:
        stream.is_over = True
        stream.out.put(stream_pb2.StreamRequest(error=error))
        stream.out.put(None)

    def grant(self, source: str, size: int, role: Role = Role.CHANGES) -> None:
        request = stream_pb2.StreamRequest(credit=changes_pb2.Credit(bytes=size))
        self._open_stream(source, role).out.put(request)

    def wait_gone(self, source: str) -> None:
        """The agent is not running any more: what it sent last has been heard, or never will be."""
        streams = self.source(source).streams
        self.wait(lambda: all(stream.is_over for stream in (*self._control.values(), *streams.values())))

    def _open_stream(self, source: str, role: Role) -> _Stream:
        streams = self.source(source).streams
        self.wait(lambda: role in streams and not streams[role].is_over)
        return streams[role]

    def wait(self, condition: Callable[[], object], seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        with self.changed:
            while not condition():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError("the condition did not come true in time")
                check_agents()
                if self.invalid is not None:
                    raise self.invalid
                self.changed.wait(min(left, 0.2))

    def rows(self, source: str, table: Table) -> list[dict[str, object]]:
        """Committed rows in the order of their numbers."""
        rows = [row for batch in self.source(source).batches if batch.table == table for row in batch.rows.to_pylist()]
        return sorted(rows, key=lambda row: row["_gsn"])

    def events(self, source: str, table: Table | None = None) -> list[changes_pb2.TableEvent]:
        """Committed events, of one table or of all, in the order of their numbers."""
        found = [event for cut in self.source(source).committed for event in cut.events]
        return [event for event in found if table in (None, (event.table.database, event.table.table))]

    # --- the protocol

    def Stream(
        self, request_iterator: Iterator[stream_pb2.StreamResponse], context: grpc.ServicerContext
    ) -> Iterator[stream_pb2.StreamRequest]:
        request_iterator = whole_messages(request_iterator)
        first = next(request_iterator, None)
        if first is None:
            return
        assert first.WhichOneof("payload") == "hello" and first.header.sequence == 1
        stream = _Stream(context)
        key = first.header
        role = ROLES[key.request_type]
        reader = threading.Thread(target=self._read, args=(request_iterator, stream, key), daemon=True)
        with self.changed:  # nobody else sends on it before its first words, or commits what these leave out
            record = self.sources.setdefault(key.source, SourceRecord()) if key.source else None
            if record is None:
                former = self._control.get((key.agent, role))
                self._control[key.agent, role] = stream
            else:
                former = record.streams.get(role)
                record.streams[role] = stream
            if former is not None:
                former.is_over = True
            ack = config_pb2.HelloAck(gateway="double", heartbeat_interval_ms=200)
            stream.out.put(stream_pb2.StreamRequest(hello_ack=ack))
            self._opened(first, stream, record)
            self.changed.notify_all()
        reader.start()
        try:
            yield from self._requests(context, stream, key)
        finally:
            with self.changed:
                stream.is_over = True
                if role is Role.CATALOG and record is not None and record.streams.get(role) is stream:
                    record.ledger.forget()
                self.changed.notify_all()

    def _requests(
        self, context: grpc.ServicerContext, stream: _Stream, key: stream_pb2.Header
    ) -> Iterator[stream_pb2.StreamRequest]:
        sequence = 0
        while context.is_active():
            try:
                request = stream.out.get(timeout=0.5)
            except Empty:
                continue
            if request is None:
                context.abort(grpc.StatusCode.UNAVAILABLE, "dropped by the test")
            sequence += 1
            request.header.CopyFrom(key)
            request.header.sequence = sequence
            yield request

    def _opened(self, first: stream_pb2.StreamResponse, stream: _Stream, record: SourceRecord | None) -> None:
        role = ROLES[first.header.request_type]
        if role is Role.CONFIG:
            if self.desired_sources is not None:
                stream.out.put(stream_pb2.StreamRequest(desired_sources=self.desired_sources))
            for hello in first.hello.sources:
                self.source(hello.source).hello = hello
                stream.out.put(stream_pb2.StreamRequest(desired_state=self._desired(hello.source)))
        elif role is Role.CATALOG:
            assert record is not None
            record.ledger.forget()
            stream.out.put(stream_pb2.StreamRequest(cartography_request=catalog_pb2.CartographyRequest()))
            if self.grants_credit:
                stream.out.put(stream_pb2.StreamRequest(credit=changes_pb2.Credit(bytes=self.window_bytes)))
            stream.out.put(stream_pb2.StreamRequest(desired_dumps=record.ledger.desired()))
        elif role is Role.CHANGES:
            assert record is not None
            if self.grants_credit:
                stream.out.put(stream_pb2.StreamRequest(credit=changes_pb2.Credit(bytes=self.window_bytes)))
            if record.tables:
                stream.out.put(stream_pb2.StreamRequest(replicate=self._replicate(first.header.source)))

    def _desired(self, source: str) -> config_pb2.DesiredState:
        record = self.source(source)
        names = [config_pb2.TableName(database=d, table=t) for d, t in record.tables]
        return config_pb2.DesiredState(source=source, generation=record.generation, tables=names)

    def _replicate(self, source: str) -> changes_pb2.Replicate:
        record = self.source(source)
        last = record.committed[-1] if record.committed else None
        record.pending.clear()
        record.replicates += 1
        return changes_pb2.Replicate(
            generation=record.generation,
            lease_epoch=1,
            next_cut=last.cut + 1 if last else 1,
            next_gsn=last.last_gsn + 1 if last else 1,
            next_transaction_id=last.last_transaction_id + 1 if last else 1,
            position=last.position if last else None,
            ahead=last.ahead if last else (),
            tables=record.tables.values(),
            cut_interval_ms=self.cut_interval_ms,
            cut_bytes=self.cut_bytes,
            accepted_server=record.accepted_server,
        )

    def _push_dumps(self, source: str) -> None:
        record = self.source(source)
        if Role.CATALOG in record.streams:
            desired = stream_pb2.StreamRequest(desired_dumps=record.ledger.desired())
            self._send(source, Role.CATALOG, desired)

    def _push(self, source: str) -> None:
        record = self.source(source)
        for stream in [found for (_, role), found in self._control.items() if role is Role.CONFIG]:
            stream.out.put(stream_pb2.StreamRequest(desired_state=self._desired(source)))
        if Role.CHANGES in record.streams:
            self._send(source, Role.CHANGES, stream_pb2.StreamRequest(replicate=self._replicate(source)))

    def _send(self, source: str, role: Role, request: stream_pb2.StreamRequest) -> None:
        self.source(source).streams[role].out.put(request)

    def _read(self, responses: Iterator[stream_pb2.StreamResponse], stream: _Stream, key: stream_pb2.Header) -> None:
        expected = 1
        try:
            for response in responses:
                expected += 1
                assert response.header.sequence == expected
                assert (response.header.source, response.header.request_type) == (key.source, key.request_type)
                self._received(response, stream)
        except grpc.RpcError:
            return

    def _received(self, response: stream_pb2.StreamResponse, stream: _Stream) -> None:
        with self.changed:
            if stream.is_over:
                return
            self.messages.append(response.SerializeToString())
            refusal = self.refuses(response)
            if refusal is not None:
                self._refuse(stream, refusal)
                return
            kind = response.WhichOneof("payload")
            if kind == "heartbeat":
                self.heartbeats.append(response.heartbeat)
                for status in response.heartbeat.sources:
                    self.source(status.source).status = status
                stream.out.put(stream_pb2.StreamRequest(heartbeat_ack=config_pb2.HeartbeatAck(received_at_us=1)))
            elif kind == "effective_state":
                self.source(response.effective_state.source).effective.append(response.effective_state)
            elif kind == "cartography":
                self.source(response.header.source).cartography.append(response.cartography)
            elif kind == "error":
                self.source(response.header.source).errors.append(response)
            elif kind in ("dump_plan", "snapshot_batch", "chunk_end", "chunk_dropped", "dump_status", "dump_failed"):
                self._dump(kind, response, stream)
            elif kind == "change_batch":
                self._batch(response, stream)
            elif kind == "cut_end":
                self._cut(response, stream)
            self.changed.notify_all()

    def _dump(self, kind: str, response: stream_pb2.StreamResponse, stream: _Stream) -> None:
        source = response.header.source
        record = self.source(source)
        ledger = record.ledger
        if record.streams.get(Role.CATALOG) is not stream:
            return
        if kind == "snapshot_batch":
            ledger.batch(response.snapshot_batch)
            if self.grants_credit:
                size = response.snapshot_batch.rows_bytes
                stream.out.put(stream_pb2.StreamRequest(credit=changes_pb2.Credit(bytes=size)))
        elif kind == "chunk_end":
            end = response.chunk_end
            self._check_digest(end, ledger.dumps[end.dump])
            ledger.ended(end)
            if self.lands_chunks:
                landed = snapshot_pb2.ChunkLanded(dump=end.dump, chunk=end.chunk)
                stream.out.put(stream_pb2.StreamRequest(chunk_landed=landed))
        elif kind == "chunk_dropped":
            ledger.drop(response.chunk_dropped)
        elif kind == "dump_plan":
            dump = ledger.planned(response.dump_plan)
            if dump is not None:
                self._planned(source, dump)
        elif kind == "dump_status":
            if response.dump_status.dump in ledger.dumps:
                ledger.dumps[response.dump_status.dump].statuses.append(response.dump_status)
        elif response.dump_failed.dump in ledger.dumps:
            ledger.dumps[response.dump_failed.dump].failed = response.dump_failed.error
            ledger.generation += 1
            self._push_dumps(source)

    def _check_digest(self, end: snapshot_pb2.ChunkEnd, dump: Dump) -> None:
        if not end.HasField("digest"):
            return
        try:
            landed_digest(end.digest, end.row_count, landed_focus(dump.focus) if dump.focus is not None else None)
        except PayloadInvalid as invalid:
            self.invalid = self.invalid or invalid

    def _planned(self, source: str, dump: Dump) -> None:
        """A table that is read whole begins with its dump."""
        record = self.source(source)
        self._push_dumps(source)
        sync = record.tables.get(dump.table)
        assert dump.plan is not None
        if sync is not None and not dump.plan.key and sync.dump != dump.dump:
            record.tables[dump.table] = changes_pb2.TableSync(table=sync.table, dump=dump.dump)
            record.generation += 1
            self._push(source)

    def _batch(self, response: stream_pb2.StreamResponse, stream: _Stream) -> None:
        record = self.source(response.header.source)
        message = response.change_batch
        if self.grants_credit:
            size = message.rows_bytes + message.transactions_bytes
            stream.out.put(stream_pb2.StreamRequest(credit=changes_pb2.Credit(bytes=size)))
        if message.generation != record.generation:
            return
        batch = Batch(
            message.cut,
            (message.table.database, message.table.table),
            message.schema_id,
            read_table(message.rows, message.rows_bytes),
            read_table(message.transactions, message.transactions_bytes),
            message,
        )
        assert batch.rows.num_rows == message.row_count
        record.pending.append(batch)

    def _cut(self, response: stream_pb2.StreamResponse, stream: _Stream) -> None:
        record = self.source(response.header.source)
        end = response.cut_end
        if end.generation != record.generation:
            return
        if record.loses_cuts and end.cut > record.last_kept_cut:
            record.pending = []
            return
        expected = record.committed[-1].cut + 1 if record.committed else 1
        assert end.cut == expected, (end.cut, expected)
        assert all(batch.cut == end.cut for batch in record.pending)
        assert all(event.transaction_id <= end.last_transaction_id for event in end.events)
        record.batches += record.pending
        record.pending = []
        record.committed.append(end)
        for started in end.started:
            sync = record.tables.get((started.table.database, started.table.table))
            if sync is not None:
                record.tables[started.table.database, started.table.table] = changes_pb2.TableSync(table=sync.table)
        committed = record.ledger.commit(end)
        if committed and Role.CATALOG in record.streams:
            said = snapshot_pb2.ChunksCommitted(chunks=committed)
            self._send(response.header.source, Role.CATALOG, stream_pb2.StreamRequest(chunks_committed=said))
        if any(event.dump for event in end.events):
            self._push_dumps(response.header.source)
        stopped = [(stop.table.database, stop.table.table) for stop in end.stopped]
        stream.out.put(stream_pb2.StreamRequest(cut_committed=changes_pb2.CutCommitted(cut=end.cut, log_entry=end.cut)))
        if stopped:
            record.generation += 1
            for table in stopped:
                record.tables.pop(table, None)
            self._push(response.header.source)
