"""Sinks before, at and behind a horizon: what they lack is told of each table, or they refuse."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from menura.horizon import Horizon, HorizonName, HorizonSource, HorizonTable, encode_horizon
from menura.landing import LandedEvent, LandedForeignKey, LandedPosition, decode_entry, entry_path
from pyspark.sql import SparkSession

from spark_sink.errors import LogEntryMissing
from spark_sink.ingest.families import Families
from spark_sink.ingest.horizon import begin_at_horizon
from spark_sink.ingest.missed_rows import MissedRows
from spark_sink.ingest.settings import SinkSettings
from spark_sink.lake.records import Records
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import list_tables, stopped_tables
from spark_sink.running import run
from tests.spark_sink.landing import Chunk, Event, Table, Writer, delete, insert, lake_rows, table_id, truncate

ORDERS, ITEMS, NOTES, GONE = (Table(name, {"id": pa.int32()}) for name in ("orders", "items", "notes", "gone"))
KEYS = LandedEvent(
    "shop", "items", "FOREIGN_KEYS", 1, 1, 1, "", "", removes_rows=False,
    foreign_keys=(LandedForeignKey("fk", ("id",), ("shop", "orders"), ("id",), "cascade", "", (None,)),),
)  # fmt: skip

Follow = Callable[[Path], None]


@pytest.fixture
def follow(session: SparkSession, writer: Writer) -> Follow:
    """Run a lake's sink over what the log holds now, to its end."""

    def until_done(lake: Path) -> None:
        settings = SinkSettings(str(writer.folder), str(lake), f"{lake}/_menura/checkpoint", available_now=True)
        run(session, settings, threading.Event())

    return until_done


def shorten(writer: Writer, first_entry: int, *tables: Table, keys: tuple[LandedEvent, ...] = ()) -> None:
    """What retention does: a horizon behind the log's last entry, and all before `first_entry` is removed."""
    key = ("acme", "shop")
    told = tuple(
        HorizonTable(
            table.database, table.name, 0, writer.last_cuts.get((*key, table.database, table.name), 0), "", 1, 1, 1, 0,
            is_dropped=table is GONE, key_events=keys if table is ITEMS else (),
        )
        for table in tables
    )  # fmt: skip
    source = HorizonSource(
        *key, "mysql", 1, 1, writer.cuts[key], writer.last_gsns[key], 1, 1, 1, 1, 1, 1, (LandedPosition(),), (), told
    )
    name = HorizonName(writer.entry, first_entry)
    path = writer.folder / name.path
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encode_horizon(Horizon(writer.landing, writer.entry, first_entry, 1, (source,))))
    for number in range(1, first_entry):
        entry = writer.folder / entry_path(number)
        for cut in decode_entry(entry.read_bytes()).cuts:
            for file in cut.files:
                (writer.folder / file.path).unlink()
        entry.unlink()


def ids(lake: Path, table: Table) -> list[object]:
    return [row["id"] for row in lake_rows(lake, table)]


def landed(writer: Writer) -> None:
    """Three entries that go and three that stay, in which `notes` has its dump."""
    writer.cut((ORDERS, [insert(id=1)]), (ITEMS, [insert(id=1)]), (NOTES, [insert(id=1)]), (GONE, [insert(id=1)]))
    writer.cut(truncate(ORDERS))
    writer.cut((NOTES, [insert(id=2)]))
    writer.cut(Event(NOTES, "DUMPED", removes_rows=True, dump="d1"), Chunk(NOTES, [{"id": 3}], dump="d1"))
    writer.cut((ITEMS, [insert(id=2)]))
    writer.cut((NOTES, [insert(id=4)]))


@pytest.mark.spark
def test_lake_when_it_begins_behind_a_horizon_then_each_table_waits_for_its_dump_and_says_so(
    writer: Writer, lake: Path, tmp_path: Path, follow: Follow
) -> None:
    """The last word of `orders` is a TRUNCATE; without its stop a lake would never hear of the table."""
    landed(writer)
    follow(tmp_path / "old")
    shorten(writer, 4, ORDERS, ITEMS, NOTES, GONE)
    for _ in range(2):
        follow(lake)
        stops = {stop.table.table: stop for stop in stopped_tables(str(lake))}
        assert {name: stop.code for name, stop in stops.items()} == {"orders": "ENTRIES_GONE", "items": "ENTRIES_GONE"}
        assert "menura sync resync shop shop.orders" in stops["orders"].message
        assert ids(lake, NOTES) == [3, 4]
        assert table_id(ITEMS) not in list_tables(str(lake))
    writer.cut(Event(ITEMS, "DUMP_STARTED", dump="d2"), (ITEMS, [insert(id=5)]))
    number = writer.last_gsns["acme", "shop"]
    writer.cut(Chunk(ITEMS, [{"id": 1}, {"id": 2}], number, dump="d2"))
    writer.cut(Event(ITEMS, "DUMPED", dump="d2", removes_rows_before_gsn=number - 1), (NOTES, [insert(id=6)]))
    for each in (lake, tmp_path / "old"):
        follow(each)
        assert (ids(each, ITEMS), ids(each, NOTES)) == ([1, 2, 5], [3, 4, 6])
    assert ids(tmp_path / "old", ORDERS) == []
    assert [stop.table for stop in stopped_tables(str(lake))] == [table_id(ORDERS)]


@pytest.mark.spark
def test_lake_when_it_is_before_the_logs_first_entry_then_its_sink_refuses_and_one_that_lost_its_checkpoint_goes_on(
    writer: Writer, lake: Path, tmp_path: Path, follow: Follow
) -> None:
    writer.cut((ORDERS, [insert(id=1)]))
    follow(tmp_path / "late")
    shutil.copytree(tmp_path / "late", tmp_path / "late without")
    shutil.rmtree(tmp_path / "late without" / "_menura" / "checkpoint")
    for number in (2, 3, 4):
        writer.cut((ORDERS, [insert(id=number)]))
    follow(lake)
    shorten(writer, 4, ORDERS)
    for name in ("late", "late without"):
        with pytest.raises(LogEntryMissing, match=r"all before entry 4.*new --lake and --checkpoint"):
            follow(tmp_path / name)
        assert ids(tmp_path / name, ORDERS) == [1]
    follow(tmp_path / "new")  # as the refusal says
    assert [stop.code for stop in stopped_tables(str(tmp_path / "new"))] == ["ENTRIES_GONE"]
    shutil.rmtree(lake / "_menura" / "checkpoint")
    writer.cut((ORDERS, [insert(id=5)]))
    follow(lake)
    assert ids(lake, ORDERS) == [1, 2, 3, 4, 5]
    assert stopped_tables(str(lake)) == []


def test_beginning_when_it_is_done_again_then_stops_and_keys_are_recorded_once(writer: Writer, lake: Path) -> None:
    landed(writer)
    shorten(writer, 4, ORDERS, ITEMS, NOTES, GONE, keys=(KEYS,))
    log, records = LandingLog(str(writer.folder)), Records(str(lake))
    for _ in range(2):
        assert begin_at_horizon(log, records) == 6
    stops = records.stopped_tables()
    assert {(stop.table.table, stop.entry) for stop in stops.values()} == {("orders", 3), ("items", 3), ("notes", 3)}
    families = Families()
    families.read(records.events_folder)
    assert families.above([table_id(ITEMS)]) == {table_id(ORDERS)}
    missed = MissedRows(log, records.events_folder, {table: stop.entry for table, stop in stops.items()}, stops)
    missed.read_on()
    assert missed.gone_entry == 3
    assert [row["table"] for row in missed.rows() if row.get("path")] == []


@pytest.mark.spark
def test_child_when_its_keys_were_told_again_after_a_dump_then_a_new_lake_begins_it_with_a_later_one(
    writer: Writer, lake: Path, tmp_path: Path, follow: Follow
) -> None:
    """Each new stream of an agent tells the keys anew, so the last event of them says nothing of when they began."""

    def told() -> LandedEvent:
        writer.cut(Event(ITEMS, "FOREIGN_KEYS", foreign_keys=KEYS.foreign_keys))
        return replace(KEYS, gsn=writer.last_gsns["acme", "shop"] - 1)

    def dump(*keys: int) -> None:
        writer.cut(*(Event(table, "DUMP_STARTED", dump=f"{table.name} {keys}") for table in (ORDERS, ITEMS)))
        number = writer.last_gsns["acme", "shop"]
        for table in (ORDERS, ITEMS):
            writer.cut(Chunk(table, [{"id": key} for key in keys], number, dump=f"{table.name} {keys}"))
        for table in (ORDERS, ITEMS):
            name = f"{table.name} {keys}"
            writer.cut(Event(table, "DUMPED", removes_rows_before_gsn=number - 2, dump=name))

    told()
    writer.cut((ORDERS, [insert(id=1), insert(id=2)]), (ITEMS, [insert(id=1), insert(id=2)]))
    dump(1, 2)
    writer.cut((ORDERS, [delete(id=1)]))
    again = told()
    follow(tmp_path / "old")
    assert ids(tmp_path / "old", ITEMS) == [2]
    shorten(writer, 3, ORDERS, ITEMS, keys=(again,))
    follow(lake)
    assert ids(lake, ORDERS) == [2]
    assert [(stop.table.table, stop.code) for stop in stopped_tables(str(lake))] == [("items", "PARENT_BEGUN_ANEW")]
    dump(2)
    follow(lake)
    assert (ids(lake, ORDERS), ids(lake, ITEMS), stopped_tables(str(lake))) == ([2], [2], [])
