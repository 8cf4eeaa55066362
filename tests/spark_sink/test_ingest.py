"""The streaming query over the cut log, on a real session: batches, replays, stopped tables, Spark's own MERGE."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from menura.landing import FORMAT, entry_path
from pyspark.sql import SparkSession

from spark_sink.errors import LogEntryUnreadable
from spark_sink.ingest.cut_log_source import Limits
from spark_sink.ingest.table_task import TaskSize
from spark_sink.lake.delta_table import open_table, scan
from spark_sink.reading import (
    changelog,
    changelog_frame,
    current_state,
    current_state_frame,
    list_tables,
    stopped_tables,
)
from tests.spark_sink.landing import (
    Chunk,
    Event,
    Table,
    Workload,
    Writer,
    altered,
    apply_entries,
    delete,
    insert,
    lake_rows,
    table_id,
    truncate,
    update,
)

pytestmark = pytest.mark.spark

ORDERS, EVENTS = Workload.ORDERS, Workload.EVENTS
Follow = Callable[..., None]


def test_a_fence_when_it_stands_alone_in_a_batch_then_the_sink_goes_on_behind_it(
    follow: Follow, writer: Writer, lake: Path
) -> None:
    writer.cut((EVENTS, [insert(kind="a", value=1.0)]))
    follow()
    writer.fence(1)
    follow()
    writer.cut((EVENTS, [insert(kind="b", value=2.0)]))
    follow()
    assert [number for number, *_ in boundaries(lake)] == [1, 2]


def boundaries(lake: Path, tenant: str = "acme") -> list[tuple[int, str, int]]:
    cuts = open_table(f"{lake}/_menura/cuts")
    assert cuts is not None
    rows = scan(cuts, "SELECT * FROM t").read_all().to_pylist()
    return sorted((row["cut"], row["table"], row["current_version"]) for row in rows if row["tenant"] == tenant)


def test_a_log_of_two_tenants_when_followed_in_small_batches_then_all_tables_equal_their_models(
    writer: Writer, lake: Path, follow: Follow, session: SparkSession
) -> None:
    workloads = {"acme": Workload(1), "globex": Workload(2)}
    for _ in range(6):
        for tenant, workload in workloads.items():
            workload.cut(writer, tenant)
    follow(limits=Limits(cuts=4))
    for tenant, workload in workloads.items():
        assert lake_rows(lake, ORDERS, tenant) == workload.orders.expected()
        assert lake_rows(lake, EVENTS, tenant) == workload.events.expected()
    assert {cut for cut, _, _ in boundaries(lake)} == {2, 4, 6}
    assert len(list_tables(str(lake))) == 4
    frame = current_state_frame(session, str(lake), table_id(ORDERS))
    assert sorted(row["id"] for row in frame.collect()) == sorted(
        row["id"] for row in workloads["acme"].orders.expected()
    )
    logged = changelog_frame(session, str(lake), table_id(ORDERS)).count()
    assert logged == changelog(str(lake), table_id(ORDERS)).num_rows


def test_a_lost_checkpoint_when_the_sink_starts_again_then_nothing_is_written_twice(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    workload = Workload(5)
    for _ in range(4):
        workload.cut(writer)
    follow()
    shutil.rmtree(lake / "_menura" / "checkpoint")
    workload.cut(writer)
    follow(limits=Limits(cuts=3))
    assert lake_rows(lake, EVENTS) == workload.events.expected()
    logged = sum(changelog(str(lake), table_id(table)).num_rows for table in (ORDERS, EVENTS))
    assert logged == workload.changes


def test_two_hundred_tables_in_one_cut_when_followed_then_each_is_there(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    tables = [Table(f"t{number}", {"id": pa.int32()}) for number in range(200)]
    writer.cut(*((table, [insert(id=number)]) for number, table in enumerate(tables)))
    follow()
    assert [lake_rows(lake, table) for table in tables] == [[{"id": number}] for number in range(200)]


def test_a_table_whose_file_is_missing_when_it_comes_back_then_the_table_catches_up(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    workload = Workload(6)
    workload.cut(writer)
    follow()
    workload.cut(writer)
    (missing,) = (writer.folder / "data/acme/shop/shop/events").glob(f"*-{2:020d}-*")
    missing.rename(writer.folder / "kept")
    follow()
    workload.cut(writer)
    follow()
    (stop,) = stopped_tables(str(lake))
    assert (stop.table, stop.cut, stop.code) == (table_id(EVENTS), 2, "DATA_FILE_UNREADABLE")
    assert lake_rows(lake, ORDERS) == workload.orders.expected()
    (writer.folder / "kept").rename(missing)
    follow()
    assert stopped_tables(str(lake)) == []
    assert lake_rows(lake, EVENTS) == workload.events.expected()


def test_a_stopped_table_whose_entries_are_gone_when_the_sink_starts_then_it_stays_stopped(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    workload = Workload(7)
    for _ in range(2):
        workload.cut(writer)
    follow()
    workload.cut(writer)
    for path in (writer.folder / "data/acme/shop/shop/events").glob(f"*-{3:020d}-*"):
        path.unlink()
    follow()
    (writer.folder / entry_path(3)).unlink()
    workload.cut(writer)
    follow()
    assert [stop.table for stop in stopped_tables(str(lake))] == [table_id(EVENTS)]


def test_an_entry_of_an_unknown_format_when_met_then_the_sink_stops_before_it_and_says_so(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    for number in (1, 2):
        writer.cut((ORDERS, [insert(id=number, amount=1, note="n")]))
    entry = writer.folder / entry_path(2)
    written = entry.read_bytes()
    entry.write_bytes(written.replace(b'"format":%d' % FORMAT, b'"format":99'))
    with pytest.raises(LogEntryUnreadable, match=f"format 99, this version reads {FORMAT}"):
        follow()
    assert [row["id"] for row in lake_rows(lake, ORDERS)] == [1]
    entry.write_bytes(written)
    follow()
    assert [row["id"] for row in lake_rows(lake, ORDERS)] == [1, 2]


def test_cuts_with_a_gap_when_met_then_the_sink_stops_before_them(writer: Writer, lake: Path, follow: Follow) -> None:
    writer.cut((ORDERS, [insert(id=1, amount=1, note="n")]))
    writer.cuts["acme", "shop"] += 1
    writer.cut((ORDERS, [insert(id=2, amount=1, note="n")]))
    with pytest.raises(LogEntryUnreadable, match="goes from cut 1 of epoch 1 to cut 3"):
        follow()
    assert [row["id"] for row in lake_rows(lake, ORDERS)] == [1]


@pytest.mark.long
def test_random_changes_when_merged_by_spark_then_the_tables_equal_the_model(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    workload = Workload(8)
    for size in (TaskSize(), TaskSize(rows=1), TaskSize(rows=1), TaskSize()):
        for _ in range(3):
            workload.cut(writer)
        follow(size)
        assert lake_rows(lake, ORDERS) == workload.orders.expected()
        assert lake_rows(lake, EVENTS) == workload.events.expected()
    logged = sum(changelog(str(lake), table_id(table)).num_rows for table in (ORDERS, EVENTS))
    assert logged == workload.changes
    versions = boundaries(lake)
    shutil.rmtree(lake / "_menura" / "checkpoint")
    follow(TaskSize(rows=1))
    assert boundaries(lake)[-1] == versions[-1]
    assert lake_rows(lake, EVENTS) == workload.events.expected()
    assert not (lake / "_menura" / "staging" / "acme" / "shop" / "shop" / "events").exists()


@pytest.mark.long
def test_dumps_when_merged_by_spark_then_rows_equal_those_of_a_worker(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    key = {"id": 1, "amount": 2, "note": "n"}
    gone, copy = {"kind": "x", "value": None}, {"kind": "y", "value": -0.0}
    whole = Event(EVENTS, "DUMPED", removes_rows=True, dump="d1")
    writer.cut((EVENTS, [insert(**gone), insert(**copy)]), Event(ORDERS, "DUMP_STARTED", dump="d2"))
    floor = writer.last_gsns["acme", "shop"]
    orders = [key, {**key, "id": 3}, {**key, "id": 4}]
    writer.cut(
        whole,
        Chunk(EVENTS, [copy, copy, copy], dump="d1"),
        (EVENTS, [delete(**copy), insert(**gone)]),
        (ORDERS, [update(key, {**key, "id": 2}), delete(**{**key, "id": 3})]),
        Chunk(ORDERS, orders, floor, dump="d2"),
    )
    follow(TaskSize(rows=1))
    assert lake_rows(lake, EVENTS) == [gone, copy, copy]
    assert lake_rows(lake, ORDERS) == [{**key, "id": 2}, {**key, "id": 4}]
    shutil.rmtree(lake / "_menura" / "checkpoint")
    follow(TaskSize(rows=1))
    assert lake_rows(lake, EVENTS) == [gone, copy, copy]
    assert changelog(str(lake), table_id(ORDERS)).num_rows == 3 + len(orders)


def test_every_kind_of_key_when_merged_by_spark_then_rows_equal_those_of_a_worker(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    columns = {"id": pa.uint64(), "unit price": pa.decimal128(10, 2), "at": pa.timestamp("us"), "raw": pa.binary()}
    table = Table("T `x", columns, key=("id", "at"))
    near = [{"id": 2**64 - 1 - n, "unit price": None, "at": None, "raw": b"\0"} for n in range(3)]
    first = [insert(**{**row, "_unrepresentable": '{"at":"0000-00-00 00:00:00"}'}) for row in near]
    writer.cut((table, first))
    follow(TaskSize(rows=1))
    gone = {**near[0], "_unrepresentable": '{"at":"0000-00-00 00:00:00"}'}
    other = {**near[1], "_unrepresentable": '{"at":"2024-00-00 00:00:00"}'}
    writer.cut((table, [delete(**gone), insert(**other), update(near[2], near[2])]))
    follow(TaskSize(rows=1))
    rows = current_state(str(lake), table_id(table))
    assert rows.num_rows == 4
    assert set(rows["id"].to_pylist()) == {2**64 - 2, 2**64 - 3}


@pytest.mark.long
def test_truth_values_when_merged_by_spark_then_rows_equal_those_of_a_worker(
    writer: Writer, lake: Path, follow: Follow, tmp_path: Path
) -> None:
    keyed = Table("keyed", {"on": pa.bool_(), "n": pa.int32(), "v": pa.bool_()}, key=("on", "n"))
    wide = Table("keyed", {**keyed.columns, "w": pa.bool_()}, key=keyed.key)
    bag = Table("bag", {"v": pa.bool_(), "n": pa.int32()}, key=())
    truths = (True, False, None)
    rows = [{"on": on, "n": n, "v": truths[n % 3]} for on in (True, False) for n in range(6)]
    copies = [{"v": v, "n": n} for v in (*truths, *truths) for n in (1, 2)]
    writer.cut((keyed, [insert(**row) for row in rows]), (bag, [insert(**row) for row in copies]))
    writer.cut(
        (keyed, [delete(**rows[0]), update(rows[1], {**rows[1], "on": False, "n": 7}), update(rows[2], rows[2])]),
        (bag, [delete(**copies[0]), delete(**copies[2]), update(copies[4], {**copies[4], "v": False})]),
    )
    lacking = {"on": False, "n": 4, "v": None, "_absent": ("v", "w")}
    writer.cut(
        altered(wide, added={"w": "true"}), (wide, [update(lacking, {**lacking, "w": False, "_absent": ("v",)})])
    )
    worker = tmp_path / "worker"
    for cut in (1, 2, 3):
        apply_entries(writer.folder, worker, first=cut, last=cut)
    follow(TaskSize(rows=1), Limits(cuts=1))
    for table in (wide, bag):
        assert repr(lake_rows(lake, table)) == repr(lake_rows(worker, table))
    assert {(row["on"], row["n"], row["v"], row["w"]) for row in lake_rows(lake, wide)} == {
        *((True, n, truths[n % 3], True) for n in range(2, 6)),
        *((False, n, truths[n % 3], n != 4) for n in range(6)),
        (False, 7, False, True),
    }
    assert sorted((row["v"], row["n"]) for row in lake_rows(lake, bag) if row["v"] is not None) == [
        (False, 1), (False, 1), (False, 2), (False, 2), (True, 1), (True, 2), (True, 2)
    ]  # fmt: skip


def events(lake: Path) -> list[tuple[object, ...]]:
    table = open_table(f"{lake}/_menura/events")
    assert table is not None
    rows = scan(table, 'SELECT * FROM t ORDER BY tenant, "_gsn"').read_all().to_pylist()
    return [(row["tenant"], row["table"], row["kind"], row["cut"], row["removes_rows"]) for row in rows]


def test_events_when_batches_are_replayed_and_a_table_is_stopped_then_each_is_recorded_once(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    table = Table("t", {"id": pa.int32(), "v": pa.float64()})
    broken = Table("t", {"id": pa.int32(), "v": pa.binary()})
    writer.cut((table, [insert(id=1, v=1.0)]), truncate(table), (table, [insert(id=2, v=2.0)]))
    writer.cut(truncate(ORDERS), tenant="globex")
    follow()
    writer.cut(altered(broken))  # the lake can't hold it: the table stops
    writer.cut(truncate(table))
    follow(limits=Limits(cuts=1))
    shutil.rmtree(lake / "_menura" / "checkpoint")
    writer.cut(Event(table, "DROPPED", removes_rows=True), truncate(ORDERS))
    follow(limits=Limits(cuts=2))
    assert events(lake) == [
        ("acme", "t", "TRUNCATED", 1, True),
        ("acme", "t", "ALTERED", 2, False),
        ("acme", "t", "TRUNCATED", 3, True),
        ("acme", "t", "DROPPED", 4, True),
        ("acme", "orders", "TRUNCATED", 4, True),
        ("globex", "orders", "TRUNCATED", 1, True),
    ]
    statement = scan(open_table(f"{lake}/_menura/events"), "SELECT statement, columns FROM t WHERE kind = 'ALTERED'")
    (row,) = statement.read_all().to_pylist()
    assert row["statement"] == "ALTER TABLE t ..." and [c["name"] for c in json.loads(row["columns"])] == ["id", "v"]


def test_events_partial_rows_and_bad_keys_when_merged_by_spark_then_rows_equal_those_of_a_worker(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    table = Table("t", {"id": pa.string(), "a": pa.int32(), "b": pa.int32()}, key=("id",))
    wide = Table("t", {**table.columns, "c": pa.int32()}, key=("id",))
    rows = [insert(id=f"k{n}", a=n, b=n) for n in range(9)]
    bad = {"id": None, "a": 1, "b": 2, "_unrepresentable": '{"id":"0xE4"}'}
    lacking = {"id": "k1", "a": 7, "b": None, "c": None, "_absent": ("b", "c")}
    writer.cut((table, rows), truncate(table), (table, rows[:3]))
    writer.cut((table, [delete(id="k0", a=0, b=0), insert(**bad)]), altered(wide, added={"c": "5"}))
    writer.cut((wide, [update({"id": "k1", "_absent": ("a", "b", "c")}, lacking)]))
    follow(TaskSize(rows=1))
    assert lake_rows(lake, wide) == [
        {"id": "k1", "a": 7, "b": 1, "c": 5},
        {"id": "k2", "a": 2, "b": 2, "c": 5},
        {"id": None, "a": 1, "b": 2, "c": 5},
    ]
    last = max(cut for cut, *_ in boundaries(lake))
    before = current_state(str(lake), table_id(wide), last)
    writer.cut(truncate(wide))
    follow()
    assert lake_rows(lake, wide) == []
    assert before.num_rows == 3 == current_state(str(lake), table_id(wide), last).num_rows
