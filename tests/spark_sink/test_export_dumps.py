"""What an export gives of dumps, and how much it reads and holds for them."""

import gc
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from spark_sink.export import feed, late_rows
from spark_sink.export.feed import Feed
from spark_sink.export.outputs import FolderOutput
from spark_sink.export.position import Position
from spark_sink.export.ranges import Held, merged, ordered
from spark_sink.lake.delta_table import schema_of
from tests.spark_sink.landing import Chunk, Event, Table, Writer, altered, delete, insert, table_id, update
from tests.spark_sink.test_export import ID, KEYED, ORDERS, Lake, export, lines, row

SOURCE = ("acme", "shop")
#: a reader's batch
BATCH_ROWS = 64


@pytest.fixture
def held(writer: Writer, lake: Path) -> Lake:
    return Lake(writer, lake)


@pytest.fixture
def output(tmp_path: Path) -> FolderOutput:
    return FolderOutput(tmp_path / "out", KEYED)


def seen(output: Path, since: int = 0) -> list[tuple[Any, str]]:
    return [(key["id"], value["op"]) for key, value in lines(output)[since:] if value is not None]


@pytest.mark.parametrize("type_", [pa.int64(), pa.string(), pa.timestamp("us")])
def test_an_export_when_an_alter_and_a_late_chunk_come_in_one_step_then_each_change_is_out_once(
    held: Lake, output: FolderOutput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: pa.DataType
) -> None:
    """Wider types are written anew in place, others under another name."""
    monkeypatch.setattr(late_rows, "COMPARED_ROWS", 2)
    held.cut((ORDERS, [insert(**row(number)) for number in range(4)]), Event(ORDERS, "DUMP_STARTED", dump="dump-1"))
    held.cut((ORDERS, [insert(**row(4))]))
    watermark = held.writer.last_gsns[SOURCE]
    held.cut(Chunk(ORDERS, [row(0, "a"), row(4)], watermark, 0, "dump-1"))
    held.cut((ORDERS, [update(row(1), row(1, "b"))]))
    export(held, output)
    before = len(lines(tmp_path / "out"))
    changed = replace(ORDERS, columns={**ORDERS.columns, "id": pa.int64(), "note": type_})
    found = [{**row(2), "note": None}, {**row(9), "note": None}]
    held.writer.cut(altered(changed))
    held.writer.cut(Chunk(changed, found, watermark, 1, "dump-1"), (changed, [delete(**{**row(3), "note": None})]))
    held.follow()
    export(held, output)
    assert seen(tmp_path / "out", before) == [(2, "r"), (9, "r"), (3, "d")]


def test_a_dumps_end_when_it_is_exported_then_nothing_older_is_read_of_the_changelog(
    held: Lake, output: FolderOutput, tmp_path: Path
) -> None:
    for number in range(4):
        held.cut((ORDERS, [insert(**row(number))]))
    old = held.changelog().file_uris()
    held.cut((ORDERS, [update(row(0), row(0, "a"))]), Event(ORDERS, "DUMP_STARTED", dump="dump-1"))
    began_gsn = held.writer.last_gsns[SOURCE]
    held.cut((ORDERS, [insert(**row(7)), update(row(1), row(1, "b"))]))
    held.cut(Chunk(ORDERS, [row(0, "a"), row(1, "b")], held.writer.last_gsns[SOURCE], 0, "dump-1"))
    export(held, output)
    for file in old:
        Path(file.removeprefix("file://")).unlink()
    held.cut((ORDERS, [insert(**row(8))]))
    held.cut(Event(ORDERS, "DUMPED", dump="dump-1", removes_rows_before_gsn=began_gsn))
    before = len(lines(tmp_path / "out"))
    export(held, output)
    assert seen(tmp_path / "out", before) == [(8, "c"), (2, "d"), (3, "d")]


def test_a_dumps_end_when_other_tables_change_behind_it_then_it_comes_in_its_order(
    held: Lake, output: FolderOutput
) -> None:
    other = Table("others", ORDERS.columns)
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2))]), (other, [insert(**row(1))]))
    held.cut(Event(ORDERS, "DUMP_STARTED", dump="dump-1"))
    began_gsn = held.writer.last_gsns[SOURCE]
    held.cut(Chunk(ORDERS, [row(1)], began_gsn, 0, "dump-1"))
    position = export(held, output, ID, table_id(other))
    assert position is not None
    held.writer.cut(Event(ORDERS, "DUMPED", dump="dump-1", removes_rows_before_gsn=began_gsn))
    held.writer.cut((other, [insert(**row(2))]))
    held.writer.cut((ORDERS, [insert(**row(3))]))
    held.follow()
    step = Feed(str(held.folder), [ID, table_id(other)], position=position).next() or pytest.fail()
    found = [(of.envelope.table.table, message.gsn) for of, message in step.messages() if message.value is not None]
    assert [table for table, _ in found] == ["orders", "others", "orders"]
    assert found == sorted(found, key=lambda each: each[1])


def table_of(numbers: list[int]) -> pa.Table:
    """On the heap that Arrow counts."""
    rows = {"_gsn": numbers, "_change_type": ["snapshot"] * len(numbers), "filling": ["x" * 1000] * len(numbers)}
    return pa.table(rows).cast(
        pa.schema([("_gsn", pa.int64()), ("_change_type", pa.string()), ("filling", pa.string())])
    )


@pytest.mark.parametrize("numbers", [[7] * 5000, list(range(5000)), list(range(5000, 0, -1)), [1] * 2500 + [2] * 2500])
def test_rows_when_they_are_more_than_may_be_held_then_they_come_in_order_and_no_more_are_held(
    numbers: list[int],
) -> None:
    def read(low: int, high: int, kind: str | None) -> Iterator[pa.Table]:
        if kind not in (None, "snapshot"):
            return
        wanted = [number for number in numbers if low < number <= high]
        for begin in range(0, len(wanted), BATCH_ROWS):
            yield table_of(wanted[begin : begin + BATCH_ROWS])

    limits = Held(rows=512, bytes=1 << 30)
    gc.collect()
    before, most, found = pa.total_allocated_bytes(), 0, []
    for rows in ordered(read, -1, (1 << 63) - 1, limits):
        most = max(most, pa.total_allocated_bytes() - before)
        found += rows["_gsn"].to_pylist()
    assert found == sorted(numbers)
    # Sorting has its rows twice.
    assert most < 2 * (limits.rows + 2 * BATCH_ROWS) * 1100
    by_bytes, most = Held(rows=1 << 30, bytes=100_000), 0
    for _ in ordered(read, -1, (1 << 63) - 1, by_bytes):
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 2 * (by_bytes.bytes + 2 * BATCH_ROWS * 1100)


@pytest.mark.parametrize("held_rows", [6, 512])
@pytest.mark.parametrize("is_in_order", [True, False])
def test_rows_when_they_are_a_thousand_times_what_may_be_held_then_each_is_read_a_few_times(
    held_rows: int, *, is_in_order: bool
) -> None:
    numbers, read_rows = list(range(6000)), 0
    if not is_in_order:
        random.Random(1).shuffle(numbers)

    def read(low: int, high: int, kind: str | None) -> Iterator[pa.Table]:
        nonlocal read_rows
        wanted = [number for number in numbers if low < number <= high and kind in (None, "insert")]
        for begin in range(0, len(wanted), 8):
            found = wanted[begin : begin + 8]
            read_rows += len(found)
            yield pa.table({"_gsn": pa.array(found, pa.int64()), "_change_type": ["insert"] * len(found)})

    parts = ordered(read, -1, (1 << 63) - 1, Held(held_rows))
    assert [number for rows in parts for number in rows["_gsn"].to_pylist()] == list(range(6000))
    assert read_rows < 8 * 6000


def test_tables_of_a_step_when_they_are_many_then_they_share_what_is_held_and_begin_at_their_turn(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [Table(f"t{number}", ORDERS.columns) for number in range(5)]
    held = Lake(writer, lake)
    for table in tables:
        held.cut((table, [insert(**row(1)), insert(**row(2))]))
    begun: list[str] = []
    shares: set[int] = set()
    real = feed._in_order

    def in_order(changelog: DeltaTable, shape: Any, above_gsn: int, limits: Held) -> Iterator[Any]:
        begun.append(changelog.table_uri)
        shares.add(limits.rows)
        return real(changelog, shape, above_gsn, limits)

    monkeypatch.setattr(feed, "_in_order", in_order)
    ids = [replace(ID, table=table.name) for table in tables]
    step = Feed(str(held.folder), ids, position=Position()).next() or pytest.fail()
    for number, _ in enumerate(step.messages()):
        assert len(begun) <= number // 2 + 2
    assert len(begun) == 5 and shares == {Held().rows // 5}


def test_iterators_when_they_are_merged_then_equal_numbers_keep_their_order() -> None:
    first, second = [(1, "a"), (3, "a"), (3, "b")], [(2, "c"), (3, "c")]
    parts = [(1, lambda: iter(first)), (2, lambda: iter(second)), (0, lambda: iter(()))]
    assert list(merged(parts, lambda each: each[0])) == [(1, "a"), (2, "c"), (3, "a"), (3, "b"), (3, "c")]


def test_a_changelogs_former_rows_when_its_columns_got_other_names_and_types_then_they_are_as_it_has_them(
    held: Lake,
) -> None:
    held.cut((ORDERS, [insert(**row(1, "a"))]))
    before = held.changelog()
    held.cut(
        (
            replace(ORDERS, columns={"id": pa.int64(), "amount": pa.uint64(), "note": pa.int32()}),
            [insert(id=2, amount=1, note=5)],
        )
    )
    now = held.changelog()
    rows = late_rows.as_written(before.to_pyarrow_table(), schema_of(before), schema_of(now))
    kept = now.to_pyarrow_table().cast(schema_of(now)).filter(pc.field("id") == 1)
    assert rows.equals(kept)
