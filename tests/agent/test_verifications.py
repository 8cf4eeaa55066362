"""What an agent says of a table that is verified: digests of its rows, and no row. The source is one in memory."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from menura.row_hash import HashedRows
from menura.v1 import snapshot_pb2

from agent.columnar.encode import SnapshotRows
from agent.snapshot import digest
from agent.snapshot.digest import ChunkDigest, KeyUnordered
from tests.agent.dump_ledger import Committed
from tests.agent.dumping import agent_inside, wait_dumped
from tests.agent.gateway_double import GatewayDouble
from tests.agent.memory import COLUMNS, ORDERS, Writers, config, create, database, gateway, lake, order, selected
from tests.agent.policed import agent_with
from tests.memory_source.changes import fields_of, values_of
from tests.memory_source.database import Change, Column, MemoryDatabase, Row
from tests.memory_source.tables import ROW_BYTES

__all__ = ["database", "gateway"]

WRAP = 1 << 64
VERIFICATION = "0f8e0000-0000-4000-8000-000000000001"


def hashed(rows: list[Row]) -> HashedRows:
    fields = fields_of(COLUMNS)
    arrays = [pa.array(values, field.type) for values, field in zip(values_of(COLUMNS, rows), fields, strict=True)]
    return HashedRows(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))


def leaves_of(chunks: list[Committed]) -> list[tuple[int, int, int, int]]:
    """Of each leaf its last key, rows and sums, where no chunk is the last of its range."""
    return [
        (int(leaf.up_to[0]) if leaf.up_to else 0, leaf.rows, leaf.first_sum, leaf.second_sum)
        for chunk in sorted(chunks, key=lambda chunk: (chunk.end.range, chunk.number))
        for leaf in chunk.end.digest.leaves
    ]


def test_table_when_it_is_verified_then_its_leaves_are_the_sums_of_its_rows_and_no_row_is_sent(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "LEAF_ROWS", 40)
    create(database, ORDERS, rows=1000)
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)):
        verification = gateway.dump("shop", VERIFICATION, ORDERS, verifies=True)
        wait_dumped(gateway, verification)
    ledger = gateway.source("shop").ledger
    assert ledger.received_rows == 0
    rows = sorted(database.tables[ORDERS].rows, key=lambda row: int(str(row["id"])))
    begin = 0
    for upper, count, first, second in leaves_of(ledger.chunks):
        assert hashed(rows[begin : begin + count]).sums() == (count, first, second)
        assert count <= 40 and (not upper or rows[begin + count - 1]["id"] == upper)
        begin += count
    assert begin == 1000
    (columns,) = {tuple((each.name, each.arrow_format) for each in chunk.end.digest.columns) for chunk in ledger.chunks}
    assert columns == (*((column.name, column.arrow_format) for column in COLUMNS), ("_unrepresentable", "u"))


def test_table_when_others_write_to_it_then_its_verification_ends_and_its_chunks_follow_each_other(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, ORDERS, rows=1000)
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)), Writers(database, ORDERS, 1, 3000):
        verification = gateway.dump("shop", VERIFICATION, ORDERS, verifies=True)
        wait_dumped(gateway, verification)
    assert verification.dumped is not None and verification.dumped.position


@pytest.mark.parametrize("verifies", [True, False])
@pytest.mark.parametrize("key", [("id",), ("id", "name")])
def test_a_chunk_when_it_ends_where_its_range_does_then_it_is_the_last_of_it_and_has_all_of_its_rows(
    key: tuple[str, ...], verifies: bool, database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    columns = tuple(replace(one, key=key.index(one.name) + 1 if one.name in key else 0) for one in COLUMNS)
    create(database, ORDERS, columns=columns)
    rows = [order(number if key == ("id",) else number // 300, f"{number:04}") for number in range(1800)]
    database.commit(*(Change(ORDERS, None, row) for row in rows))
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)):
        dump = gateway.dump("shop", VERIFICATION, ORDERS, verifies=verifies)
        wait_dumped(gateway, dump)
    ends = [chunk.end for chunk in gateway.source("shop").ledger.chunks]
    assert any(end.upper and end.last_of_range and end.row_count >= 100 for end in ends), "none ended so"
    assert all(end.lower != end.upper for end in ends)
    assert dump.plan is not None
    assert sorted(end.upper for end in ends if end.last_of_range) == sorted(part.upper for part in dump.plan.ranges)
    assert sum(end.row_count for end in ends) == len(rows)
    assert verifies or lake(gateway, dump, key) == selected(database, ORDERS, key)


def create_named(database: MemoryDatabase, rows: int, columns: tuple[Column, ...]) -> None:
    create(database, ORDERS, columns=columns)
    database.commit(*(Change(ORDERS, None, order(number, f"row {number}")) for number in range(1, rows + 1)))


@pytest.mark.parametrize("key", [(), ("name",), ("name", "id")])
def test_table_when_the_lake_would_not_find_ranges_of_its_rows_then_leaves_are_buckets_of_one_snapshot(
    key: tuple[str, ...], database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    columns = tuple(replace(one, key=key.index(one.name) + 1 if one.name in key else 0) for one in COLUMNS)
    create_named(database, 1000, columns)
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)):
        verification = gateway.dump("shop", VERIFICATION, ORDERS, verifies=True)
        wait_dumped(gateway, verification)
    (chunk,) = gateway.source("shop").ledger.chunks
    made, rows = chunk.end.digest, hashed(database.tables[ORDERS].rows)
    assert (tuple(made.key), made.bits, gateway.source("shop").ledger.received_rows) == (key, 3, 0)
    places = [[name for name, _ in rows.columns].index(name) for name in key] or range(len(COLUMNS))
    buckets = [each & 7 for each in memoryview(rows.key_hashes(places)).cast("q")]
    expected = dict.fromkeys(buckets, (0, 0, 0))
    for row, bucket in enumerate(buckets):
        held, more = expected[bucket], rows.sums(row, row + 1)
        expected[bucket] = (held[0] + 1, (held[1] + more[1]) % WRAP, (held[2] + more[2]) % WRAP)
    found = {leaf.upper[0]: (leaf.rows, leaf.first_sum % WRAP, leaf.second_sum % WRAP) for leaf in made.leaves}
    assert found == expected


@pytest.mark.parametrize(("key", "rows"), [("id", 200), ("id", 3000), ("name", 5000)])
def test_table_when_a_part_of_it_is_read_again_then_its_rows_alone_are_told_or_smaller_buckets_where_they_are_many(
    key: str, rows: int, database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    columns = tuple(replace(one, key=int(one.name == key)) for one in COLUMNS)
    create_named(database, 5000, columns)
    numbered = snapshot_pb2.FocusRange(lower='["1000", "#"]', upper="", above=["1000"], up_to=[str(1000 + rows)])
    of_ranges = snapshot_pb2.Focus(ranges=[numbered], kinds=["integer"])
    focus = of_ranges if key == "id" else snapshot_pb2.Focus(bits=1, buckets=[1])
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)):
        verification = gateway.dump("shop", VERIFICATION, ORDERS, verifies=True, focus=focus)
        wait_dumped(gateway, verification)
    (chunk,) = gateway.source("shop").ledger.chunks
    made = chunk.end.digest
    assert made.within == focus and gateway.source("shop").ledger.received_rows == 0
    if rows == 200:
        assert made.bits == 64
        told = sorted(json.loads(leaf.key) for leaf in made.leaves)
        assert told == [[str(number)] for number in range(1001, 1201)]
        assert {len(leaf.columns) for leaf in made.leaves} == {len(made.columns)}
    else:
        assert made.bits == (12 if key == "id" else 9)
        assert not any(leaf.key or leaf.columns for leaf in made.leaves)
        assert key == "id" or all(leaf.upper[0] & 1 for leaf in made.leaves)
        assert key == "name" or sum(leaf.rows for leaf in made.leaves) == rows


def test_ranges_when_their_bounds_are_numbers_alone_then_no_other_row_is_read(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create_named(database, 5000, COLUMNS)
    parts = [snapshot_pb2.FocusRange(above=["100"], up_to=["150"]), snapshot_pb2.FocusRange(above=["4900"])]
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)):
        focus = snapshot_pb2.Focus(ranges=parts, kinds=["integer"])
        verification = gateway.dump("shop", VERIFICATION, ORDERS, verifies=True, focus=focus)
        wait_dumped(gateway, verification)
    (chunk,) = gateway.source("shop").ledger.chunks
    assert (chunk.end.row_count, chunk.end.source_bytes) == (150, 150 * ROW_BYTES)
    told = sorted(int(json.loads(leaf.key)[0]) for leaf in chunk.end.digest.leaves)
    assert told == [*range(101, 151), *range(4901, 5001)]


def test_buckets_when_the_key_could_be_read_by_ranges_then_they_are_read_as_they_were_found(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create_named(database, 500, COLUMNS)
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)):
        focus = snapshot_pb2.Focus(bits=1, buckets=[1])
        verification = gateway.dump("shop", VERIFICATION, ORDERS, verifies=True, focus=focus)
        wait_dumped(gateway, verification)
    (chunk,) = gateway.source("shop").ledger.chunks
    hashes = memoryview(hashed(database.tables[ORDERS].rows).key_hashes([0])).cast("q")
    assert {leaf.upper[0] for leaf in chunk.end.digest.leaves} == {each for each in hashes if each & 1}


def test_ranges_when_the_key_is_none_of_integers_any_more_then_they_are_refused(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create_named(database, 50, tuple(replace(column, key=int(column.name == "name")) for column in COLUMNS))
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)):
        focus = snapshot_pb2.Focus(ranges=[snapshot_pb2.FocusRange(above=["10"], up_to=["20"])], kinds=["integer"])
        verification = gateway.dump("shop", VERIFICATION, ORDERS, verifies=True, focus=focus)
        gateway.wait(lambda: verification.failed is not None)
    assert verification.failed is not None
    assert verification.failed.code == "VERIFICATION_IMPOSSIBLE"
    assert "menura verify run shop shop.orders" in verification.failed.remedy


def test_table_when_its_keys_are_beyond_int64_then_leaves_end_with_them_as_with_others(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "LEAF_ROWS", 10)
    columns = tuple(replace(column, arrow_format="L") if column.name == "id" else column for column in COLUMNS)
    create(database, ORDERS, columns=columns)
    first = (1 << 63) - 50
    database.commit(*(Change(ORDERS, None, order(first + number, "")) for number in range(300)))
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)):
        verification = gateway.dump("shop", VERIFICATION, ORDERS, verifies=True)
        wait_dumped(gateway, verification)
    chunks = sorted(gateway.source("shop").ledger.chunks, key=lambda chunk: (chunk.end.range, chunk.number))
    assert sum(chunk.end.row_count for chunk in chunks) == 300
    leaves = leaves_of(chunks)
    assert max(upper for upper, *_ in leaves) > 1 << 63 and max(count for _, count, _, _ in leaves) == 10


def test_table_when_its_hosts_policy_keeps_columns_back_then_no_hash_has_them(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, ORDERS, rows=20)
    gateway.sync("shop", ORDERS, now=True)
    policy = "default: closed\ndatabases: {shop: {orders: {columns: [id, name]}}}\n"
    with agent_with(config(tmp_path, gateway.address), policy):
        verification = gateway.dump("shop", VERIFICATION, ORDERS, verifies=True)
        wait_dumped(gateway, verification)
    (chunk, *_) = gateway.source("shop").ledger.chunks
    assert [column.name for column in chunk.end.digest.columns] == ["id", "name", "_unrepresentable"]


def batch(*keys: tuple[int, int]) -> SnapshotRows:
    columns = {"a": pa.array([key[0] for key in keys], pa.uint8()), "b": pa.array([key[1] for key in keys], pa.int32())}
    return SnapshotRows(len(keys), "00ff", pa.record_batch(columns))


def test_digest_when_rows_come_in_batches_then_leaves_go_on_over_them_and_end_with_their_last_keys() -> None:
    made = ChunkDigest(("a", "b"), ("integer", "integer"), (1, -3), 2)
    for rows in (batch((1, -2)), batch((1, 5), (2, -9)), batch(), batch((2, 0), (2, 1))):
        made.add(rows)
    found = made.message((3, 0))
    assert [(list(leaf.up_to), leaf.rows) for leaf in found.leaves] == [(["1", "5"], 2), (["2", "0"], 2), ([], 1)]
    assert list(found.key) == ["a", "b"]
    whole = ChunkDigest(("a", "b"), ("integer", "integer"), ())
    whole.add(batch((1, -2), (1, 5), (2, -9), (2, 0), (2, 1)))
    (leaf,) = whole.message(()).leaves
    assert leaf.first_sum % WRAP == sum(each.first_sum for each in found.leaves) % WRAP
    assert leaf.second_sum % WRAP == sum(each.second_sum for each in found.leaves) % WRAP


def test_digest_when_a_chunk_has_no_rows_then_is_one_leaf_of_none() -> None:
    made = ChunkDigest(("a",), ("integer",), (7,)).message((9,))
    expected = snapshot_pb2.Digest(key=["a"], leaves=[snapshot_pb2.Leaf()], kinds=["integer"], above=["7"], up_to=["9"])
    assert made == expected


@pytest.mark.parametrize("keys", [[(2, 1), (1, 1)], [(1, 2), (1, 1)], [(1, 1), (1, 1)], [(0, 3)]])
def test_digest_when_keys_do_not_rise_then_is_refused(keys: list[tuple[int, int]]) -> None:
    with pytest.raises(KeyUnordered):
        ChunkDigest(("a", "b"), ("integer", "integer"), (0, 3)).add(batch(*keys))
