"""Messages that no honest agent sends: each ends its own stream with an error, and the gateway serves on."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from menura.change_batch import MAX_BATCH_BYTES, METADATA_LAYOUT
from menura.landing import LandedForeignKey
from menura.protocol import LEAST_PROTOCOL_VERSION, PROTOCOL_VERSION
from menura.v1.changes_pb2 import ChangeBatch, Position, Replicate, TableEvent
from menura.v1.config_pb2 import Hello, TableName

from gateway.errors import StreamError
from gateway.wire.change_batch import read_batch
from gateway.wire.message import frames_of
from tests.gateway.harness import data_files, landed_gsns, read_log, read_rows, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import (
    ABSENT,
    ROW_FIELDS,
    TABLE_FIELDS,
    UNREPRESENTABLE,
    batch_of_bits,
    change_batch,
    commit_cut,
    cut_end,
    frame,
    partial_batch,
    rows_batch,
    scripted_agent,
    table_event,
    transactions_batch,
    with_bits,
)

Make = Callable[[Replicate], ChangeBatch]


def honest(run: Replicate, **changes: Any) -> ChangeBatch:
    return change_batch(run, 1, "orders", rows_batch(range(1, 11)), **changes)


def with_rows(columns: list[pa.Array], fields: list[pa.Field], **options: Any) -> Make:
    def make(run: Replicate) -> ChangeBatch:
        batch = honest(run)
        batch.rows, batch.rows_bytes = frame(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)), **options)
        batch.row_count = batch.first_gsn = batch.last_gsn = 1
        return batch

    return make


def one_row(**changes: Any) -> tuple[list[pa.Array], list[pa.Field]]:
    """A row's columns by name, some of them replaced."""
    fields = [*ROW_FIELDS, *TABLE_FIELDS, UNREPRESENTABLE]
    values = {
        "_change_type": 0,
        "_gsn": 1,
        "_transaction": 0,
        "id": 1,
        "note": "x",
        "_unrepresentable": None,
    } | changes
    return [pa.array([values[field.name]], field.type) for field in fields], fields


def with_absent(*absent: bytes, type_: pa.DataType = ABSENT.type, **changes: Any) -> Make:
    """A row whose id is null and whose `_absent` is this."""
    columns, fields = one_row(id=None, **changes)
    return with_rows([*columns, pa.array(absent, type_)], [*fields, pa.field("_absent", type_)])


def bad_text(run: Replicate) -> ChangeBatch:
    offsets, data = pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xc3\x28")
    columns, fields = one_row()
    columns[4] = pa.Array.from_buffers(pa.string(), 1, [None, offsets, data])
    return with_rows(columns, fields)(run)


def offsets_beyond_data(run: Replicate) -> ChangeBatch:
    batch = with_rows(*one_row(note="x" * 0x0101))(run)
    raw = pa.decompress(batch.rows, decompressed_size=batch.rows_bytes, codec="zstd", asbytes=True)
    lying = raw.replace(b"\0\0\0\0\x01\x01\0\0", b"\0\0\0\0\xff\xff\xff\x7f")
    assert lying != raw
    batch.rows = pa.compress(lying, codec="zstd", asbytes=True)
    return batch


def garbage(run: Replicate) -> ChangeBatch:
    batch = honest(run)
    batch.rows = b"no zstd at all"
    return batch


def lz4_frame(run: Replicate, announced: int = 0, behind: bytes = b"") -> ChangeBatch:
    """An honest batch in a frame of LZ4, but for so many bytes announced, and what stands behind it."""
    batch = honest(run)
    raw = pa.decompress(batch.rows, decompressed_size=batch.rows_bytes, codec="zstd", asbytes=True)
    batch.rows, batch.rows_bytes = pa.compress(raw, codec="lz4", asbytes=True) + behind, announced or len(raw)
    return batch


def nothing(run: Replicate) -> ChangeBatch:
    batch = honest(run)
    batch.rows, batch.rows_bytes = pa.compress(b"", codec="zstd", asbytes=True), 0
    return batch


def bit_flips(run: Replicate) -> ChangeBatch:
    batch = honest(run)
    raw = bytearray(pa.decompress(batch.rows, decompressed_size=batch.rows_bytes, codec="zstd", asbytes=True))
    for place in range(8, min(200, len(raw)), 3):
        raw[place] ^= 0xFF
    batch.rows = pa.compress(bytes(raw), codec="zstd", asbytes=True)
    return batch


def two_batches(run: Replicate) -> ChangeBatch:
    batch, rows = honest(run), rows_batch(range(1, 11))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
        writer.write_batch(rows)
    raw = sink.getvalue()
    batch.rows, batch.rows_bytes = pa.compress(raw, codec="zstd", asbytes=True), raw.size
    return batch


def unknown_layout(run: Replicate) -> ChangeBatch:
    batch, rows = honest(run), rows_batch(range(1, 11))
    batch.rows, batch.rows_bytes = frame(rows.replace_schema_metadata({METADATA_LAYOUT: "upside down"}))
    return batch


def swapped(run: Replicate) -> ChangeBatch:
    rows = rows_batch([5, 4, 6])
    batch = change_batch(run, 1, "orders", rows)
    batch.first_gsn, batch.last_gsn = 5, 6
    return batch


LIES: dict[str, tuple[str, Make]] = {
    "garbage": ("BATCH_INVALID", garbage),
    "bit flips": ("BATCH_INVALID", bit_flips),
    "no bytes": ("BATCH_INVALID", nothing),
    "a smaller size of LZ4 announced": ("BATCH_INVALID", partial(lz4_frame, announced=10)),
    "a larger size of LZ4 announced": ("BATCH_INVALID", partial(lz4_frame, announced=MAX_BATCH_BYTES // 2)),
    "bytes behind a frame of LZ4": ("BATCH_INVALID", partial(lz4_frame, behind=b"x")),
    "two frames of LZ4": ("BATCH_INVALID", partial(lz4_frame, behind=pa.compress(b"more", codec="lz4", asbytes=True))),
    "more rows announced": ("BATCH_INVALID", lambda run: honest(run, row_count=11)),
    "smaller size announced": ("BATCH_INVALID", lambda run: honest(run, rows_bytes=10)),
    "larger size announced": ("BATCH_INVALID", lambda run: honest(run, rows_bytes=MAX_BATCH_BYTES // 2)),
    "oversize": ("BATCH_TOO_LARGE", lambda run: honest(run, rows_bytes=MAX_BATCH_BYTES + 1)),
    "oversize in sum": ("BATCH_TOO_LARGE", lambda run: honest(run, rows_bytes=2**64 - 1, transactions_bytes=1)),
    "other numbers": ("BATCH_INVALID", lambda run: honest(run, first_gsn=2)),
    "numbers out of order": ("OUT_OF_SEQUENCE", swapped),
    "two record batches": ("BATCH_INVALID", two_batches),
    "unknown layout": ("BATCH_INVALID", unknown_layout),
    "compressed buffers": ("BATCH_INVALID", with_rows(*one_row(note="x" * 1000), compression="zstd")),
    "text that is not UTF-8": ("BATCH_INVALID", bad_text),
    "offsets beyond data": ("BATCH_INVALID", offsets_beyond_data),
    **{
        f"bits in {size} bytes, {is_split=}": ("BATCH_INVALID", partial(batch_of_bits, size=size, is_split=is_split))
        for size in (0, 124, 2**40, 2**64 - 1)
        for is_split in (False, True)
    },
    "null number": ("BATCH_INVALID", with_rows(*one_row(_gsn=None))),
    "unknown change type": ("BATCH_INVALID", with_rows(*one_row(_change_type=9))),
    "negative change type": ("BATCH_INVALID", with_rows(*one_row(_change_type=-1))),
    "transaction beyond the list": ("BATCH_INVALID", with_rows(*one_row(_transaction=7))),
    "negative transaction": ("BATCH_INVALID", with_rows(*one_row(_transaction=-1))),
    "missing column": ("BATCH_COLUMNS", with_rows(one_row()[0][1:], one_row()[1][1:])),
    "no column of the table": (
        "BATCH_COLUMNS",
        with_rows([*one_row()[0][:3], one_row()[0][5]], [*ROW_FIELDS, UNREPRESENTABLE]),
    ),
    "two columns of one name": (
        "BATCH_COLUMNS",
        with_rows(
            [*one_row()[0][:4], *one_row()[0][3:]], [*ROW_FIELDS, TABLE_FIELDS[0], *TABLE_FIELDS, UNREPRESENTABLE]
        ),
    ),
    "reserved name": (
        "BATCH_COLUMNS",
        with_rows(one_row()[0], [*ROW_FIELDS, TABLE_FIELDS[0], pa.field("_Position", pa.string()), UNREPRESENTABLE]),
    ),
    "nested type": (
        "BATCH_COLUMNS",
        with_rows(
            [*one_row()[0][:3], pa.array([[1]]), one_row()[0][5]],
            [*ROW_FIELDS, pa.field("id", pa.list_(pa.int64())), UNREPRESENTABLE],
        ),
    ),
    "absent column with a value": ("BATCH_INVALID", with_absent(b"\x03")),
    "absent without a byte": ("BATCH_INVALID", with_absent(b"")),
    "absent of two bytes for two columns": ("BATCH_INVALID", with_absent(b"\x01\x00")),
    "absent beyond the last column": ("BATCH_INVALID", with_absent(b"\x05")),
    "absent beyond the last column, highest bit": ("BATCH_INVALID", with_absent(b"\x80")),
    "absent as text": ("BATCH_COLUMNS", with_absent("a", type_=pa.string())),
    "absent before unrepresentable": (
        "BATCH_COLUMNS",
        with_rows(
            [*one_row()[0][:5], pa.array([None], pa.binary()), one_row()[0][5]],
            [*ROW_FIELDS, *TABLE_FIELDS, ABSENT, UNREPRESENTABLE],
        ),
    ),
    "reserved prefix": (
        "BATCH_COLUMNS",
        with_rows(one_row()[0], [*ROW_FIELDS, TABLE_FIELDS[0], pa.field("_Menura_x", pa.string()), UNREPRESENTABLE]),
    ),
    "text that ends a row": (
        "BATCH_COLUMNS",
        with_rows(
            one_row()[0],
            [*ROW_FIELDS, TABLE_FIELDS[0], TABLE_FIELDS[1].with_metadata({"menura.row_end": "1"}), UNREPRESENTABLE],
        ),
    ),
    "transactions with other columns": (
        "BATCH_COLUMNS",
        lambda run: change_batch(run, 1, "orders", rows_batch([1]), rows_batch([1])),
    ),
    "path as schema_id": ("BATCH_INVALID", lambda run: honest(run, schema_id="../../../../etc/x")),
    "table without a name": (
        "BATCH_INVALID",
        lambda run: change_batch(run, 1, "", rows_batch([1])),
    ),
    "undesired table": ("TABLE_NOT_DESIRED", lambda run: change_batch(run, 1, "secrets", rows_batch([1]))),
    "path as table": ("TABLE_NOT_DESIRED", lambda run: change_batch(run, 1, "../../x", rows_batch([1]))),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_batch_when_it_comes_ends_the_stream_and_lands_nothing(tmp_path: Path, lie: str) -> None:
    code, make = LIES[lie]
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await stream.expect("hello_ack")
            await stream.send_batch(make(run))
            error = await stream.expect_error()
            assert error.code == code, error
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, range(1, 11))

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == list(range(1, 11))
    assert len(data_files(tmp_path)) == 1


def test_other_columns_under_the_same_schema_id_when_they_come_in_a_cut_end_the_stream(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await stream.send_batch(honest(run))
            rows = rows_batch(range(11, 12))
            other = rows.rename_columns([*rows.schema.names[:4], "b", "_unrepresentable"])
            await stream.send_batch(change_batch(run, 1, "orders", other))
            assert (await stream.expect_error()).code == "BATCH_COLUMNS"

    asyncio.run(scenario())


def test_a_batch_without_credit_when_it_comes_ends_the_stream(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, credit_window_bytes=400) as address,
            scripted_agent(address, "shop") as agent,
        ):
            stream, run = await agent.open_binlog("shop")
            big = rows_batch(range(1, 100_000))

            async def send() -> None:
                for _ in range(3):
                    await stream.send(change_batch=change_batch(run, 1, "orders", big))

            sending = asyncio.create_task(send())
            assert (await stream.expect_error()).code == "CREDIT_OVERDRAWN"
            with suppress(grpc.RpcError, asyncio.InvalidStateError):  # the stream ends before all is sent
                await sending

    asyncio.run(scenario())
    assert data_files(tmp_path) == []


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ({"tenant": "umbrella"}, "HEADER_INVALID"),
        ({"tenant": "../etc"}, "HEADER_INVALID"),
        ({"agent": "agent-2"}, "HEADER_INVALID"),
        ({"source": "crm"}, "HEADER_INVALID"),
        ({"session": "another"}, "HEADER_INVALID"),
        ({"request_type": 10}, "HEADER_INVALID"),
        ({"request_type": 99}, "REQUEST_TYPE_UNSUPPORTED"),
        ({"sequence": 3}, "STREAM_OUT_OF_SEQUENCE"),
        ({"sequence": 1}, "STREAM_OUT_OF_SEQUENCE"),
    ],
)
def test_a_header_that_differs_when_it_comes_ends_the_stream(tmp_path: Path, header: dict[str, Any], code: str) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await stream.send(cut_end=cut_end(run, 1, 0), header=header)
            assert (await stream.expect_error()).code == code

    asyncio.run(scenario())
    assert read_log(tmp_path) == []


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ({"hello": Hello(protocol=LEAST_PROTOCOL_VERSION - 1)}, "PROTOCOL_VERSION"),
        ({"hello": Hello(protocol=PROTOCOL_VERSION + 1)}, "PROTOCOL_VERSION"),
        ({"cut_end": cut_end(Replicate(), 1, 0)}, "HELLO_MISSING"),
        ({"hello": Hello(protocol=PROTOCOL_VERSION), "header": {"session": ""}}, "HEADER_INVALID"),
        ({"hello": Hello(protocol=PROTOCOL_VERSION), "header": {"request_type": 99}}, "REQUEST_TYPE_UNSUPPORTED"),
        ({"hello": Hello(protocol=PROTOCOL_VERSION), "header": {"sequence": 5}}, "STREAM_OUT_OF_SEQUENCE"),
    ],
)
def test_a_stream_when_it_begins_wrongly_is_refused(tmp_path: Path, first: dict[str, Any], code: str) -> None:
    async def scenario() -> None:
        async with running_gateway(tmp_path, MemoryRegistry()) as address, scripted_agent(address, "shop") as agent:
            stream = agent.dial("MySQLBinlog", "shop")
            await stream.send(**first)
            assert (await stream.expect_error()).code == code

    asyncio.run(scenario())


def test_a_cut_end_with_impossible_facts_when_it_comes_ends_the_stream(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            for changes, code in (
                ({"position": Position(kind="../etc")}, "PAYLOAD_INVALID"),
                ({"position": Position(kind="mysql", token="x" * 65_537)}, "PAYLOAD_INVALID"),
                ({"position": Position(kind="mysql", text="\0")}, "PAYLOAD_INVALID"),
                ({"last_gsn": -1}, "OUT_OF_SEQUENCE"),
                ({"last_transaction_id": -1}, "OUT_OF_SEQUENCE"),
                ({"ahead": [{"tables": [TableName(database="shop")]}]}, "PAYLOAD_INVALID"),
            ):
                stream, run = await agent.open_binlog("shop")
                await stream.send(cut_end=cut_end(run, 1, 0, **changes))
                assert (await stream.expect_error()).code == code

    asyncio.run(scenario())
    assert read_log(tmp_path) == []


COLUMN = {"name": "id", "arrow_format": "l"}
FOREIGN_KEY = {
    "name": "fk", "columns": ["up"], "parent": {"database": "shop", "table": "orders"}, "parent_columns": ["id"],
    "comparisons": [{}], "on_delete": "CASCADE",
}  # fmt: skip
LYING_EVENTS: dict[str, tuple[str, list[TableEvent]]] = {
    "undesired table": ("TABLE_NOT_DESIRED", [table_event(1, "DROPPED", table="secrets")]),
    "no table": ("PAYLOAD_INVALID", [table_event(1, "DROPPED", table="")]),
    "no number": ("OUT_OF_SEQUENCE", [table_event(0, "DROPPED")]),
    "number beyond the cut": ("OUT_OF_SEQUENCE", [table_event(11, "DROPPED")]),
    "numbers that do not grow": ("OUT_OF_SEQUENCE", [table_event(5, "DROPPED"), table_event(5, "CREATED")]),
    "transaction beyond the cut": ("OUT_OF_SEQUENCE", [table_event(5, "DROPPED", transaction_id=11)]),
    "no kind": ("PAYLOAD_INVALID", [table_event(5, "KIND_UNSPECIFIED")]),
    "unknown kind": ("PAYLOAD_INVALID", [table_event(5, 77)]),
    "time before 1970": ("PAYLOAD_INVALID", [table_event(5, "DROPPED", commit_timestamp_us=-1)]),
    "long position": ("PAYLOAD_INVALID", [table_event(5, "DROPPED", position="x" * 1025)]),
    "long statement": ("PAYLOAD_INVALID", [table_event(5, "DROPPED", statement="\u00e9" * 32_769)]),
    "many bytes": ("PAYLOAD_INVALID", [table_event(n, "DROPPED", statement="x" * 60_000) for n in range(1, 200)]),
    "dropped with a new name": (
        "PAYLOAD_INVALID",
        [table_event(5, "DROPPED", new_name=TableName(database="shop", table="x"))],
    ),
    "too many columns": (
        "PAYLOAD_INVALID",
        [table_event(5, "ALTERED", columns=[{**COLUMN, "name": f"c{n}"} for n in range(4097)])],
    ),
    **{
        name: ("PAYLOAD_INVALID", [table_event(5, "ALTERED", columns=columns)])
        for name, columns in {
            "a column twice": [COLUMN, COLUMN],
            "a column without a name": [{**COLUMN, "name": ""}],
            "a column of no type": [{**COLUMN, "arrow_format": "+l"}],
            "a number that ends a row": [{**COLUMN, "row_end": True}],
            "two columns that end a row": [
                {"name": name, "arrow_format": "tsu:UTC", "row_end": True} for name in ("a", "b")
            ],
            "a decimal of 39 digits": [{**COLUMN, "arrow_format": "d:39,0"}],
            "a decimal of more scale than digits": [{**COLUMN, "arrow_format": "d:5,6"}],
            "a key with two columns at one place": [{**COLUMN, "key": 2}, {**COLUMN, "name": "other", "key": 2}],
            "a long earlier value": [{**COLUMN, "text": "x" * 65_537}],
            "an added column that is renamed": [{**COLUMN, "renamed_from": "x", "is_null": True}],
        }.items()
    },
    **{
        name: ("PAYLOAD_INVALID", [table_event(5, kind, **facts)])
        for name, (kind, facts) in {
            "keys of an ALTER": ("ALTERED", {"foreign_keys": [FOREIGN_KEY]}),
            "keys with a bound of no re-read": ("FOREIGN_KEYS", {"most_rereads_per_hour": 4}),
            "keys without end": ("FOREIGN_KEYS", {"foreign_keys": [FOREIGN_KEY] * 1001}),
            "a key without columns": (
                "FOREIGN_KEYS",
                {"foreign_keys": [{**FOREIGN_KEY, "columns": [], "parent_columns": [], "comparisons": []}]},
            ),
            "a key with more columns on one side": (
                "FOREIGN_KEYS", {"foreign_keys": [{**FOREIGN_KEY, "parent_columns": ["id", "other"]}]}
            ),
            "a key without a name": ("FOREIGN_KEYS", {"foreign_keys": [{**FOREIGN_KEY, "name": ""}]}),
            "a key with a comparison too many": (
                "FOREIGN_KEYS", {"foreign_keys": [{**FOREIGN_KEY, "comparisons": [{}, {}]}]}
            ),
            "a key of no table": ("FOREIGN_KEYS", {"foreign_keys": [{**FOREIGN_KEY, "parent": {}}]}),
            "a key that does nothing": ("FOREIGN_KEYS", {"foreign_keys": [{**FOREIGN_KEY, "on_delete": 0}]}),
            "a key with an unknown action": ("FOREIGN_KEYS", {"foreign_keys": [{**FOREIGN_KEY, "on_update": 9}]}),
            "unchecked rows without a first one": ("FOREIGN_KEYS_UNCHECKED", {}),
            "unchecked rows after their event": ("FOREIGN_KEYS_UNCHECKED", {"unchecked_from_gsn": 6}),
            "unchecked rows of a DROP": ("DROPPED", {"unchecked_from_gsn": 3}),
        }.items()
    },
}  # fmt: skip


def test_foreign_keys_when_a_cut_tells_of_them_then_its_entry_has_them(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")
    events = [
        table_event(3, "FOREIGN_KEYS", foreign_keys=[FOREIGN_KEY], reread=True, most_rereads_per_hour=4),
        table_event(5, "FOREIGN_KEYS_UNCHECKED", unchecked_from_gsn=4),
    ]

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await stream.send(cut_end=cut_end(run, 1, 10, events=events))
            await stream.expect("cut_committed")

    asyncio.run(scenario())
    keys, unchecked = read_log(tmp_path)[0].cuts[0].events
    key = LandedForeignKey("fk", ("up",), ("shop", "orders"), ("id",), "cascade", "", (None,))
    assert (keys.kind, keys.foreign_keys) == ("FOREIGN_KEYS", (key,))
    assert (keys.reread, keys.most_rereads_per_hour) == (True, 4)
    assert (unchecked.kind, unchecked.unchecked_from_gsn) == ("FOREIGN_KEYS_UNCHECKED", 4)


@pytest.mark.parametrize("lie", LYING_EVENTS)
def test_a_cut_with_lying_events_when_it_ends_ends_the_stream_and_lands_nothing(tmp_path: Path, lie: str) -> None:
    code, events = LYING_EVENTS[lie]
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await stream.send(cut_end=cut_end(run, 1, 10, events=events))
            assert (await stream.expect_error()).code == code

    asyncio.run(scenario())
    assert read_log(tmp_path) == []


def test_a_transactions_batch_with_a_position_twice_when_it_lands_keeps_each_rows_own(tmp_path: Path) -> None:
    """Parquet's dictionary pages need distinct values; an agent may send the same position for two transactions."""
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")
    transactions = transactions_batch(3).set_column(2, "_position", pa.array(["same", "same", "other"]))

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await stream.send_batch(change_batch(run, 1, "orders", rows_batch(range(1, 31)), transactions))
            await stream.send(cut_end=cut_end(run, 1, 30))
            await stream.expect("cut_committed")

    asyncio.run(scenario())
    rows = read_rows(tmp_path, read_log(tmp_path))
    assert [row["_position"] for row in rows] == ["same"] * 20 + ["other"] * 10


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("rows", [with_bits(rows_batch(range(1, 11))), partial_batch(range(1, 11), [None, b"\2"] * 5)])
def test_a_batch_when_its_bytes_are_damaged_at_random_is_read_or_refused(rows: pa.RecordBatch, is_split: bool) -> None:
    chance = random.Random(20)
    whole = change_batch(Replicate(generation=1, lease_epoch=1), 1, "orders", rows, is_split=is_split)
    raw = pa.decompress(whole.rows, decompressed_size=whole.rows_bytes, codec="zstd", asbytes=True)
    refused = 0
    for _ in range(2000):
        damaged = bytearray(raw)
        for _ in range(chance.randrange(1, 8)):
            damaged[chance.randrange(len(raw))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        batch = ChangeBatch()
        batch.CopyFrom(whole)
        batch.rows = pa.compress(bytes(damaged), codec="zstd", asbytes=True)
        try:
            landed = read_batch(batch, frames_of(batch), 0)
        except StreamError:
            refused += 1
        else:
            assert landed is not None
            assert landed.rows.num_rows == 10
    assert refused > 500
