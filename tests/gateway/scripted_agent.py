"""An agent by script: opens streams, builds change batches as the contract says, waits for answers."""

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.compute as pc
from menura.change_batch import LAYOUT_SPLIT, METADATA_LAYOUT, METADATA_WHOLE_ROWS
from menura.message_parts import in_parts
from menura.protocol import PROTOCOL_VERSION
from menura.schema import schema_id
from menura.v1.changes_pb2 import ChangeBatch, ChunkRef, CutEnd, Position, Replicate, TableEvent
from menura.v1.config_pb2 import Hello, SourceHello, TableName
from menura.v1.snapshot_pb2 import ChunkEnd, DesiredDumps, DumpPlan, SnapshotBatch
from menura.v1.stream_pb2 import Header, RequestType, StreamRequest, StreamResponse

SCHEMA_ID = "00112233aabbccdd"
ANSWER_SECONDS = 300
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))

ROW_FIELDS = [pa.field("_change_type", pa.int8()), pa.field("_gsn", pa.int64()), pa.field("_transaction", pa.int32())]
TABLE_FIELDS = [
    pa.field("id", pa.int64(), metadata={"menura.source_type": "bigint", "menura.key": "1"}),
    pa.field("note", pa.string(), metadata={"menura.source_type": "varchar charset utf8mb4"}),
]
ABSENT = pa.field("_absent", pa.binary())
WHOLE_ROWS = "Turn whole rows on"
UNREPRESENTABLE = pa.field("_unrepresentable", pa.string())
SNAPSHOT_SCHEMA_ID = schema_id((("id", "bigint", 1, ""), ("note", "varchar charset utf8mb4", 0, "")))


def frame(batch: pa.RecordBatch, *, is_split: bool = False, **options: Any) -> tuple[bytes, int]:
    """An Arrow IPC stream in a zstd frame, and its size before compression; split as an agent does it, or plain."""
    if is_split:
        batch = batch.replace_schema_metadata({**(batch.schema.metadata or {}), METADATA_LAYOUT: LAYOUT_SPLIT})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    raw = bytearray(sink.getvalue())
    if is_split:
        _, message = pa.ipc.MessageReader.open_stream(bytes(raw))
        end = len(raw) - len(END_OF_STREAM)
        raw[end - message.body.size : end] = _split(batch, message.body.to_pybytes())
    return pa.compress(bytes(raw), codec="zstd", asbytes=True), len(raw)


def _split(batch: pa.RecordBatch, body: bytes) -> bytes:
    """A record batch's body with values and offsets byte by byte; each buffer is padded to eight."""
    done = b""
    rows = batch.num_rows
    for column in batch.columns:
        has_text = len(column.buffers()) == 3
        width = 4 if has_text else column.type.bit_width // 8
        bits = (rows + 7) // 8
        sizes = [bits if column.null_count else 0, (rows + has_text) * width if width else bits]
        for is_values, size in enumerate(sizes):
            part = body[len(done) : len(done) + size]
            split = b"".join(part[byte::width] for byte in range(width)) if is_values and width else part
            done += split + bytes(-size % 8)
        if has_text:
            size = int.from_bytes(part[-4:], "little")  # the last offset
            done += body[len(done) : len(done) + size] + bytes(-size % 8)
    assert len(done) == len(body)
    return done


def rows_batch(gsns: Sequence[int], change_type: int = 0, note: str = "note") -> pa.RecordBatch:
    """One transaction for every ten rows."""
    count = len(gsns)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([change_type] * count, pa.int8()),
            pa.array(gsns, pa.int64()),
            pa.array([index // 10 for index in range(count)], pa.int32()),
            pa.array([gsn * 100 for gsn in gsns], pa.int64()),
            pa.array([f"{note} {gsn}" for gsn in gsns]),
            pa.nulls(count, pa.string()),
        ],
        schema=pa.schema([*ROW_FIELDS, *TABLE_FIELDS, UNREPRESENTABLE]),
    )


def with_bits(rows: pa.RecordBatch) -> pa.RecordBatch:
    """With a column of truth values, some of them null."""
    bits = pa.array([(True, False, None)[number % 3] for number in range(rows.num_rows)])
    place = rows.schema.get_field_index("note")
    return rows.add_column(place, pa.field("paid", pa.bool_(), metadata={"menura.source_type": "boolean"}), bits)


def partial_batch(gsns: Sequence[int], absent: Sequence[bytes | None]) -> pa.RecordBatch:
    """Rows where bit 0 of `absent` takes the id away and bit 1 the note."""
    rows = rows_batch(gsns)
    columns = list(rows.columns)
    for bit, place in enumerate((3, 4)):
        gone = pa.array([mask is not None and bool(mask[0] >> bit & 1) for mask in absent])
        columns[place] = pc.if_else(gone, None, columns[place])
    schema = pa.schema([*rows.schema, ABSENT.with_metadata({METADATA_WHOLE_ROWS: WHOLE_ROWS})])
    return pa.RecordBatch.from_arrays([*columns, pa.array(absent, pa.binary())], schema=schema)


def table_event(gsn: int, kind: str | int, table: str = "orders", **facts: Any) -> TableEvent:
    name = TableName(database="shop", table=table)
    return TableEvent(table=name, kind=kind, gsn=gsn, **facts)


def transactions_batch(count: int, first: int = 1) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "_transaction_id": pa.array(range(first, first + count), pa.int64()),
            "_commit_timestamp_us": pa.array([1_700_000_000_000_000 + first + index for index in range(count)]),
            "_position": pa.array([f"uuid:{first + index}" for index in range(count)]),
        }
    )


def change_batch(
    run: Replicate,
    cut: int,
    table: str,
    rows: pa.RecordBatch,
    transactions: pa.RecordBatch | None = None,
    *,
    is_split: bool = False,
    **changes: Any,
) -> ChangeBatch:
    transactions = transactions or transactions_batch((rows.num_rows + 9) // 10)
    rows_frame, rows_bytes = frame(rows, is_split=is_split)
    transactions_frame, transactions_bytes = frame(transactions, is_split=is_split)
    batch = ChangeBatch(
        generation=run.generation,
        lease_epoch=run.lease_epoch,
        cut=cut,
        table=TableName(database="shop", table=table),
        schema_id=SCHEMA_ID,
        row_count=rows.num_rows,
        first_gsn=rows.column("_gsn")[0].as_py(),
        last_gsn=rows.column("_gsn")[-1].as_py(),
        rows=rows_frame,
        rows_bytes=rows_bytes,
        transactions=transactions_frame,
        transactions_bytes=transactions_bytes,
    )
    batch.MergeFrom(ChangeBatch(**changes))
    return batch


def batch_of_bits(run: Replicate, size: int, *, is_split: bool = False) -> ChangeBatch:
    """A thousand truth values, which are said to have so many bytes; 125 are true."""
    paid = pa.array([number % 3 == 0 for number in range(1000)])
    batch = change_batch(run, 1, "orders", rows_batch(range(1, 1001)).add_column(4, "paid", paid), is_split=is_split)
    raw = pa.decompress(batch.rows, decompressed_size=batch.rows_bytes, codec="zstd", asbytes=True)
    before, told, after = raw.partition((125).to_bytes(8, "little"))  # the first buffer of that size
    assert told
    batch.rows = pa.compress(before + size.to_bytes(8, "little") + after, codec="zstd", asbytes=True)
    return batch


def snapshot_rows(ids: Sequence[int], note: str = "note") -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), pa.array([f"{note} {id_}" for id_ in ids]), pa.nulls(len(ids), pa.string())],
        schema=pa.schema([*TABLE_FIELDS, UNREPRESENTABLE]),
    )


def snapshot_batch(dump: str, chunk: int, rows: pa.RecordBatch, table: str = "orders", **changes: Any) -> SnapshotBatch:
    rows_frame, rows_bytes = frame(rows)
    facts: dict[str, Any] = {
        "dump": dump,
        "chunk": chunk,
        "table": TableName(database="shop", table=table),
        "schema_id": SNAPSHOT_SCHEMA_ID,
        "row_count": rows.num_rows,
        "rows": rows_frame,
        "rows_bytes": rows_bytes,
        **changes,
    }
    return SnapshotBatch(**facts)


def dump_plan(dump: str, *boundaries: str, **changes: Any) -> DumpPlan:
    """By id, in ranges between these."""
    bounds = ["", *boundaries, ""]
    ranges = [
        {"number": number, "lower": lower, "upper": upper}
        for number, (lower, upper) in enumerate(itertools.pairwise(bounds))
    ]
    return DumpPlan(**{"dump": dump, "key": ["id"], "ranges": ranges, **changes})


def chunk_end(dump: str, chunk: int, lower: str, upper: str, row_count: int, /, **changes: Any) -> ChunkEnd:
    facts: dict[str, Any] = {
        "dump": dump,
        "chunk": chunk,
        "table": TableName(database="shop", table="orders"),
        "lower": lower,
        "upper": upper,
        "last_of_range": upper == "",
        "row_count": row_count,
        "source_bytes": 100 * row_count,
        "read_at_us": 1_700_000_000_000_000,
        "read_us": 1000,
        "position": "uuid:1-7",
        **changes,
    }
    return ChunkEnd(**facts)


def chunk_ref(dump: str, chunk: int, gsn: int, table: str = "orders") -> ChunkRef:
    return ChunkRef(table=TableName(database="shop", table=table), dump=dump, chunk=chunk, gsn=gsn)


def cut_end(run: Replicate, cut: int, last_gsn: int, /, **changes: Any) -> CutEnd:
    facts: dict[str, Any] = {
        "generation": run.generation,
        "lease_epoch": run.lease_epoch,
        "cut": cut,
        "position": Position(kind="mysql", text=f"uuid:1-{last_gsn}", token=str(last_gsn)),
        "last_gsn": last_gsn,
        "last_transaction_id": last_gsn,
        "transaction_count": 1,
        **changes,
    }
    return CutEnd(**facts)


def raw_stream(channel: grpc.aio.Channel, **options: Any) -> Any:
    """A call that sends bytes as they are."""
    method = channel.stream_stream("/menura.v1.Gateway/Stream", None, StreamRequest.FromString)
    return method(**options)


@dataclass
class AgentStream:
    call: Any
    header: Header
    credit: int = 0
    received: int = 0
    unread: list[Any] = field(default_factory=list)

    async def send(self, header: dict[str, Any] | None = None, **payload: Any) -> None:
        self.header.sequence += 1
        message = StreamResponse(header=self.header, **payload)
        for name, value in (header or {}).items():
            setattr(message.header, name, value)
        if batch := payload.get("change_batch"):
            self.credit -= batch.rows_bytes + batch.transactions_bytes
        if batch := payload.get("snapshot_batch"):
            self.credit -= batch.rows_bytes
        for part in in_parts(message.SerializeToString()):
            await self.call.write(part)

    async def send_batch(self, batch: ChangeBatch | SnapshotBatch) -> None:
        """Under credit, as an agent does."""
        await self.wait_credit()
        if isinstance(batch, SnapshotBatch):
            await self.send(snapshot_batch=batch)
        else:
            await self.send(change_batch=batch)

    async def wait_credit(self, seconds: float = ANSWER_SECONDS, *, least: int = 1) -> None:
        """Until a batch may be sent; or until there is so much."""
        async with asyncio.timeout(seconds):
            while self.credit < least:
                await self._receive()

    async def expect(self, payload: str, seconds: float = ANSWER_SECONDS) -> Any:
        """The next message of that kind; others stay for later, credits are counted."""
        async with asyncio.timeout(seconds):
            while True:
                for message in self.unread:
                    if message.WhichOneof("payload") == payload:
                        self.unread.remove(message)
                        return getattr(message, payload)
                await self._receive()

    async def _receive(self) -> None:
        message = await self.call.read()
        if message is grpc.aio.EOF:
            raise EOFError(f"the gateway ended the stream: {await self.call.code()} {[str(m) for m in self.unread]}")
        self.received += 1
        assert message.header.sequence == self.received
        ours = (self.header.tenant, self.header.agent, self.header.source)
        assert (message.header.tenant, message.header.agent, message.header.source) == ours
        if message.WhichOneof("payload") == "credit":
            self.credit += message.credit.bytes
        else:
            self.unread.append(message)

    async def expect_error(self, seconds: float = ANSWER_SECONDS) -> Any:
        """The gateway's error; the stream has ended after it."""
        error = await self.expect("error", seconds)
        async with asyncio.timeout(seconds):
            await self.call.code()
        return error

    async def close(self) -> None:
        self.call.cancel()


@dataclass
class ScriptedAgent:
    channel: grpc.aio.Channel
    tenant: str
    agent: str
    sources: tuple[str, ...]
    session: str = field(default_factory=lambda: str(uuid.uuid4()))

    def dial(self, request_type: str, source: str = "") -> AgentStream:
        """A stream on which nothing was sent yet."""
        header = Header(
            tenant=self.tenant,
            agent=self.agent,
            source=source,
            request_type=RequestType.Value(request_type),
            session=self.session,
            sent_at_us=time.time_ns() // 1000,
        )
        return AgentStream(raw_stream(self.channel), header)

    async def open(self, request_type: str, source: str = "", **hello: Any) -> AgentStream:
        stream = self.dial(request_type, source)
        sources = [SourceHello(source=name, flavor="mysql") for name in self.sources]
        await stream.send(hello=Hello(**{"protocol": PROTOCOL_VERSION, "version": "test", "sources": sources, **hello}))
        return stream

    async def open_binlog(self, source: str) -> tuple[AgentStream, Replicate]:
        """With its first credit."""
        stream = await self.open("MySQLBinlog", source)
        replicate = await stream.expect("replicate")
        await stream.wait_credit()
        return stream, replicate

    async def open_client(self, source: str) -> tuple[AgentStream, DesiredDumps]:
        """Its first orders and its first credit; what the gateway asks of the cartography waits."""
        stream = await self.open("MySQLClient", source)
        desired = await stream.expect("desired_dumps")
        await stream.wait_credit()
        return stream, desired


@asynccontextmanager
async def scripted_agent(
    address: str, *sources: str, tenant: str = "acme", agent: str = "agent-1", session: str = ""
) -> AsyncIterator[ScriptedAgent]:
    """An agent whose Control_Config stream is open; `session`: that of one which comes here from another gateway."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        running = ScriptedAgent(channel, tenant, agent, sources)
        running.session = session or running.session
        control = await running.open("Control_Config")
        await control.expect("hello_ack")
        try:
            yield running
        finally:
            await control.close()


async def eventually(what: str, probe: Any, seconds: float = ANSWER_SECONDS) -> Any:
    """Wait for the first truthy answer."""
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        await asyncio.sleep(0.02)
    return answer


async def commit_cut(stream: AgentStream, run: Replicate, cut: int, gsns: Sequence[int], table: str = "orders") -> int:
    """Send a cut of one batch and wait until it is committed; its log entry."""
    await stream.send_batch(change_batch(run, cut, table, rows_batch(gsns)))
    await stream.send(cut_end=cut_end(run, cut, gsns[-1]))
    while (committed := await stream.expect("cut_committed")).cut < cut:
        pass
    return int(committed.log_entry)
