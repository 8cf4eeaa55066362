"""What no honest agent says of a chunk: the stream ends with an error, nothing of it counts, nothing stays behind."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from menura.change_batch import MAX_BATCH_BYTES
from menura.v1.config_pb2 import TableName
from menura.v1.snapshot_pb2 import ChunkDropped, DumpFailed, DumpStatus, SnapshotBatch

from gateway.errors import StreamError
from gateway.landing import chunks
from gateway.landing.chunks import ClientChunks
from gateway.registry import DumpDesired, SourceKey
from gateway.streams import dumps
from gateway.wire.message import frames_of
from gateway.wire.snapshot_batch import read_rows
from tests.gateway.dump_script import DumpScript, dump_begun, open_dump, open_started, registry
from tests.gateway.harness import data_files, read_log, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import (
    TABLE_FIELDS,
    UNREPRESENTABLE,
    chunk_end,
    chunk_ref,
    dump_plan,
    eventually,
    frame,
    scripted_agent,
    snapshot_batch,
    snapshot_rows,
    table_event,
)

__all__ = ["registry"]

Lie = Callable[[DumpScript], Awaitable[None]]


def raw_batch(**changes: Any) -> Lie:
    """An honest one with fields replaced."""

    async def lie(script: DumpScript) -> None:
        made = snapshot_batch(script.dump, 1, snapshot_rows(range(10)))
        for name, value in changes.items():
            if name == "table":
                made.table.CopyFrom(value)
            else:
                setattr(made, name, value)
        await script.client.send(snapshot_batch=made)

    return lie


def rows_of(*fields: pa.Field, schema_id: str | None = None) -> Lie:
    async def lie(script: DumpScript) -> None:
        columns = [pa.array([1] if field.type == pa.int64() else ["x"], field.type) for field in fields]
        made = snapshot_batch(script.dump, 1, snapshot_rows([1]))
        made.rows, made.rows_bytes = frame(pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(fields))))
        made.schema_id = schema_id or made.schema_id
        await script.client.send(snapshot_batch=made)

    return lie


def end(*, sent: int = 10, rows: int = 10, lower: str = "", upper: str = "m", chunk: int = 1, **changes: Any) -> Lie:
    async def lie(script: DumpScript) -> None:
        await script.client.send(snapshot_batch=snapshot_batch(script.dump, 1, snapshot_rows(range(sent))))
        await script.client.send(chunk_end=chunk_end(script.dump, chunk, lower, upper, rows, **changes))

    return lie


def after_chunk(**message: Any) -> Lie:
    """Once chunk 1, up to "m", is pending."""

    async def lie(script: DumpScript) -> None:
        await script.send_chunk(1, "", "m", range(10))
        await script.client.send(**{name: make(script.dump) for name, make in message.items()})

    return lie


async def other_columns(script: DumpScript) -> None:
    await script.client.send(snapshot_batch=snapshot_batch(script.dump, 1, snapshot_rows(range(10))))
    made = snapshot_batch(script.dump, 1, snapshot_rows([1]))
    field = pa.field("id", pa.int32(), metadata={"menura.source_type": "bigint", "menura.key": "1"})
    columns = [pa.array([1], pa.int32()), pa.array(["x"]), pa.nulls(1, pa.string())]
    schema = pa.schema([field, TABLE_FIELDS[1], UNREPRESENTABLE])
    made.rows, made.rows_bytes = frame(pa.RecordBatch.from_arrays(columns, schema=schema))
    await script.client.send(snapshot_batch=made)


async def after_dropping(script: DumpScript) -> None:
    await script.client.send(snapshot_batch=snapshot_batch(script.dump, 1, snapshot_rows(range(10))))
    await script.client.send(chunk_dropped=ChunkDropped(dump=script.dump, chunk=1))
    await script.client.send(snapshot_batch=snapshot_batch(script.dump, 1, snapshot_rows(range(10))))


async def many_at_once(script: DumpScript) -> None:
    for chunk in range(1, dumps.MAX_OPEN_CHUNKS + 2):
        await script.client.send(snapshot_batch=snapshot_batch(script.dump, chunk, snapshot_rows([1])))


LIES: dict[str, tuple[str, Lie]] = {
    "another dump": ("DUMP_NOT_DESIRED", raw_batch(dump="11111111-2222-3333-4444-555555555555")),
    "a path for a dump": ("DUMP_NOT_DESIRED", raw_batch(dump="../../log")),
    "the end of another dump's chunk": ("DUMP_NOT_DESIRED", end(dump="no-such-dump")),
    "another table": ("PAYLOAD_INVALID", raw_batch(table=TableName(database="shop", table="items"))),
    "no table": ("PAYLOAD_INVALID", raw_batch(table=TableName())),
    "too large": ("BATCH_TOO_LARGE", raw_batch(rows_bytes=MAX_BATCH_BYTES + 1)),
    "larger than it says": ("BATCH_INVALID", raw_batch(rows_bytes=100)),
    "no rows": ("BATCH_INVALID", raw_batch(row_count=0)),
    "more rows than it says": ("BATCH_INVALID", raw_batch(row_count=9)),
    "no schema_id": ("BATCH_INVALID", raw_batch(schema_id="../../../../etc/")),
    "another schema_id": ("BATCH_COLUMNS", raw_batch(schema_id="00112233aabbccdd")),
    "no zstd": ("BATCH_INVALID", raw_batch(rows=b"no zstd at all")),
    "nothing": ("BATCH_INVALID", raw_batch(rows=pa.compress(b"", codec="zstd", asbytes=True), rows_bytes=0)),
    "no _unrepresentable": ("BATCH_COLUMNS", rows_of(*TABLE_FIELDS)),
    "no columns": ("BATCH_COLUMNS", rows_of(UNREPRESENTABLE)),
    "a _gsn": ("BATCH_COLUMNS", rows_of(pa.field("_gsn", pa.int64()), *TABLE_FIELDS, UNREPRESENTABLE)),
    "a column twice": ("BATCH_COLUMNS", rows_of(*TABLE_FIELDS, TABLE_FIELDS[1], UNREPRESENTABLE)),
    "a column more than its schema_id": (
        "BATCH_COLUMNS",
        rows_of(*TABLE_FIELDS, pa.field("more", pa.string()), UNREPRESENTABLE),
    ),
    "a key that is no number": (
        "BATCH_COLUMNS",
        rows_of(pa.field("id", pa.int64(), metadata={"menura.key": "-1"}), UNREPRESENTABLE),
    ),
    "other columns in the middle": ("BATCH_COLUMNS", other_columns),
    "fewer rows at the end": ("PAYLOAD_INVALID", end(rows=9)),
    "more rows at the end": ("PAYLOAD_INVALID", end(rows=11)),
    "rows of another chunk": ("PAYLOAD_INVALID", end(chunk=2)),
    "the end of another table": ("PAYLOAD_INVALID", end(table=TableName(database="shop", table="items"))),
    "a range that is not planned": ("OUT_OF_SEQUENCE", end(range=7)),
    "a hole before it": ("OUT_OF_SEQUENCE", end(lower="c")),
    "no progress": ("PAYLOAD_INVALID", end(upper="", last_of_range=False)),
    "a bound with a NUL": ("PAYLOAD_INVALID", end(upper="m\0")),
    "a long bound": ("PAYLOAD_INVALID", end(upper="m" * 40_000)),
    "a time before 1970": ("PAYLOAD_INVALID", end(read_at_us=-1)),
    "a huge number": ("PAYLOAD_INVALID", end(source_bytes=1 << 63)),
    "a long position": ("PAYLOAD_INVALID", end(position="x" * 70_000)),
    "chunk 0": ("OUT_OF_SEQUENCE", raw_batch(chunk=0)),
    "a batch after the end": (
        "OUT_OF_SEQUENCE",
        after_chunk(snapshot_batch=lambda dump: snapshot_batch(dump, 1, snapshot_rows([1]))),
    ),
    "an end twice": ("OUT_OF_SEQUENCE", after_chunk(chunk_end=lambda dump: chunk_end(dump, 1, "", "m", 10))),
    "a second chunk that leaves some out": (
        "OUT_OF_SEQUENCE",
        after_chunk(chunk_end=lambda dump: chunk_end(dump, 2, "p", "", 0)),
    ),
    "a batch after giving up": ("OUT_OF_SEQUENCE", after_dropping),
    "too many at once": ("PAYLOAD_INVALID", many_at_once),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_a_chunk_when_it_comes_ends_the_stream_and_leaves_nothing(
    tmp_path: Path, registry: MemoryRegistry, lie: str
) -> None:
    code, tell = LIES[lie]
    dump = registry.want_dump("acme", "shop", "orders")

    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, started):
            await tell(script)
            assert (await script.client.expect_error()).code == code
            await eventually("its files to go", lambda: not data_files(tmp_path))
            await script.end_cut((1, started))

    asyncio.run(scenario())
    assert not [file for entry in read_log(tmp_path) for cut in entry.cuts for file in cut.files]


def test_the_dump_of_another_tenant_when_an_agent_names_it_is_unknown(tmp_path: Path, registry: MemoryRegistry) -> None:
    registry.want("umbrella", "shop", "orders")
    dump, foreign = registry.want_dump("acme", "shop", "orders"), registry.want_dump("umbrella", "shop", "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry) as address,
            scripted_agent(address, "shop") as agent,
            scripted_agent(address, "shop", tenant="umbrella") as other,
        ):
            theirs, started = await open_started(other, foreign)
            await theirs.send_chunk(1, "", "", range(10))
            for message in (
                {"snapshot_batch": snapshot_batch(foreign, 2, snapshot_rows([1]))},
                {"chunk_end": chunk_end(foreign, 2, "", "", 0)},
                {"chunk_dropped": ChunkDropped(dump=foreign, chunk=1)},
                {"dump_plan": dump_plan(foreign)},
                {"dump_failed": DumpFailed(dump=foreign)},
                {"dump_status": DumpStatus(dump=foreign)},
            ):
                client, desired = await agent.open_client("shop")
                assert [order.dump for order in desired.dumps] == [dump]
                await client.send(**message)
                assert (await client.expect_error()).code == "DUMP_NOT_DESIRED"
            ours = await open_dump(agent, dump)
            await ours.end_cut(chunks=[chunk_ref(foreign, 1, 1)])
            await ours.end_cut(events=[table_event(ours.gsn + 1, "DUMP_STARTED", dump=foreign)])
            await theirs.end_cut((1, started))
            await theirs.client.expect("chunks_committed")

    asyncio.run(scenario())
    cuts = [cut for entry in read_log(tmp_path) for cut in entry.cuts if cut.chunks or cut.events]
    assert {cut.tenant for cut in cuts} == {"umbrella"}


def test_a_chunk_when_its_dump_has_no_plan_ends_the_stream(tmp_path: Path, registry: MemoryRegistry) -> None:
    dump = registry.want_dump("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            script = await open_dump(agent, dump)
            await script.send_chunk(1, "", "", range(10), landed=False)
            assert (await script.client.expect_error()).code == "OUT_OF_SEQUENCE"
            await script.reopen_client()
            await script.send_chunk(script.order.next_chunk, "", "m", range(10), landed=False)
            assert (await script.client.expect_error()).code == "PAYLOAD_INVALID"
            assert data_files(tmp_path) == []

    asyncio.run(scenario())


def test_rows_of_a_dump_when_no_credit_is_left_end_the_stream(tmp_path: Path, registry: MemoryRegistry) -> None:
    dump = registry.want_dump("acme", "shop", "orders")

    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump, dump_credit_window_bytes=400) as (script, _):
            client, batch = script.client, snapshot_batch(dump, 1, snapshot_rows(range(100_000)))

            async def send() -> None:
                for _ in range(3):
                    await client.send(snapshot_batch=batch)

            sending = asyncio.create_task(send())
            assert (await client.expect_error()).code == "CREDIT_OVERDRAWN"
            with suppress(grpc.RpcError, asyncio.InvalidStateError):  # the stream ends before all is sent
                await sending

    asyncio.run(scenario())
    assert data_files(tmp_path) == []


def test_credit_when_too_many_chunks_wait_for_a_cut_comes_back_with_the_cut(
    tmp_path: Path, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "MAX_PENDING_CHUNKS", 4)
    dump = registry.want_dump("acme", "shop", "orders")

    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump, dump_credit_window_bytes=1000) as (script, started):
            bounds = ["", "a", "b", "c", "d", "e"]
            for chunk in (1, 2, 3):
                await script.send_chunk(chunk, bounds[chunk - 1], bounds[chunk], range(10))
            assert script.client.credit < 1000
            await script.end_cut((1, started), (2, started), (3, started))
            await script.client.expect("chunks_committed")
            await script.send_chunk(4, "c", "d", range(10))
            await script.client.wait_credit(least=1000)
            assert script.client.credit == 1000
            for chunk, (lower, upper) in enumerate(itertools.pairwise("defgh"), 5):
                await script.client.send(chunk_end=chunk_end(dump, chunk, lower, upper, 0))
            assert (await script.client.expect_error()).code == "PAYLOAD_INVALID"

    asyncio.run(scenario())


def test_numbers_of_chunks_when_millions_are_passed_over_cost_no_memory() -> None:
    order = DumpDesired("d", "shop", "orders", 0, False, 0, 0, 0, 0, None, (), 1)
    stream = ClientChunks(SourceKey("acme", "shop"), "session", {})
    stream.desire([order])
    stream.read_whole("d")
    stream.receive("d", 1 << 40)
    stream.receive("d", (1 << 40) - 7)
    with pytest.raises(StreamError, match="again"):
        stream.receive("d", 5)
    assert stream.next_chunk(order) == (1 << 40) + 1


def test_rows_of_a_dump_when_their_bytes_are_damaged_at_random_are_read_or_refused() -> None:
    chance = random.Random(21)
    whole = snapshot_batch("d", 1, snapshot_rows(range(10)))
    raw = pa.decompress(whole.rows, decompressed_size=whole.rows_bytes, codec="zstd", asbytes=True)
    refused = 0
    for _ in range(1000):
        damaged = bytearray(raw)
        for _ in range(chance.randrange(1, 8)):
            damaged[chance.randrange(len(raw))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        made = SnapshotBatch()
        made.CopyFrom(whole)
        made.rows = pa.compress(bytes(damaged), codec="zstd", asbytes=True)
        try:
            rows = read_rows(made, frames_of(made)).rows
        except StreamError:
            refused += 1
        else:
            assert rows.num_rows == 10
    assert refused > 250
