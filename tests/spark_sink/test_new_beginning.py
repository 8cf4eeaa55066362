"""A table that the sink has stopped and that a dump begins anew: in the lake it equals its source again, once."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from menura.landing import LandedForeignKey
from pyspark.sql import SparkSession

from spark_sink.ingest.batch_jobs import BatchJobs
from spark_sink.ingest.checkpoint import Checkpoint
from spark_sink.ingest.cut_log_source import Row
from spark_sink.ingest.new_beginning import new_beginning, row_from
from spark_sink.ingest.query import Sink
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.table_states import TableStates
from spark_sink.lake.delta_table import open_table, scan
from spark_sink.lake.records import Records, StoppedTable
from spark_sink.reading import changelog, stopped_tables
from spark_sink.running import run
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import (
    Chunk,
    Event,
    Table,
    Values,
    Writer,
    delete,
    insert,
    lake_rows,
    table_id,
    update,
)

KEYED = Table("t", {"id": pa.int32(), "note": pa.string()})
RETYPED = Table("t", {"id": pa.int32(), "note": pa.binary(), "more": pa.int64()})
KEYLESS = Table("t", {"id": pa.int32(), "note": pa.string()}, key=())
OTHER = Table("other", {"id": pa.int32()})
Follow = Callable[[], SinkStatus]


@pytest.fixture
def settings(writer: Writer, lake: Path) -> SinkSettings:
    return SinkSettings(str(writer.folder), str(lake), str(lake / "_menura" / "checkpoint"), available_now=True)


@pytest.fixture
def follow(session: SparkSession, settings: SinkSettings) -> Follow:
    """Run the sink over what the log holds now, to its end; what it knew then."""

    def until_done() -> SinkStatus:
        status = SinkStatus()
        run(session, settings, threading.Event(), status)
        return status

    return until_done


def lose_a_file(writer: Writer, table: Table = KEYED) -> int:
    """A cut whose file of the table is gone; it stops the table."""
    cut = writer.cut((table, [insert(id=7, note="lost")]), (OTHER, [insert(id=writer.entry)]))
    (file,) = (writer.folder / f"data/acme/shop/shop/{table.name}").glob(f"*-{cut:020d}-*")
    file.unlink()
    return cut


def rows(lake: Path, table: Table = KEYED) -> list[Values]:
    return list(lake_rows(lake, table))


def errors(lake: Path) -> list[dict[str, object]]:
    found = open_table(f"{lake}/_menura/errors")
    assert found is not None
    return list(scan(found, "SELECT * FROM t ORDER BY at_us").read_all().to_pylist())


@pytest.mark.spark
@pytest.mark.parametrize("after", [KEYED, RETYPED], ids=["same", "retyped"])
def test_stopped_table_when_a_dump_begins_then_it_begins_anew_and_equals_its_source_at_the_dumps_end(
    writer: Writer, lake: Path, follow: Follow, after: Table
) -> None:
    def value(text: str) -> dict[str, object]:
        return {"note": text} if after is KEYED else {"note": text.encode(), "more": 1}

    writer.cut((KEYED, [insert(id=1, note="old"), insert(id=2, note="old")]))
    follow()
    lost = lose_a_file(writer)
    status = follow()
    (stop,) = stopped_tables(str(lake))
    assert (stop.cut, stop.code, stop.begins_at_gsn) == (lost, "DATA_FILE_UNREADABLE", 0)
    assert list(status.now().stopped) == [table_id(KEYED)]
    writer.cut((KEYED, [insert(id=3, note="left out")]))
    writer.cut(Event(after, "DUMP_STARTED", dump="d1"), (after, [insert(id=4, **value("new"))]))
    floor = writer.last_gsns["acme", "shop"]
    status = follow()
    assert stopped_tables(str(lake)) == []
    assert status.now().stopped == {}
    assert rows(lake, after) == [{"id": 4, **value("new")}]
    writer.cut((after, [update({"id": 4, **value("new")}, {"id": 5, **value("moved")})]))
    writer.cut(Chunk(after, [{"id": 1, **value("old")}, {"id": 4, **value("new")}], floor, dump="d1"))
    writer.cut(Event(after, "DUMPED", dump="d1", removes_rows_before_gsn=floor - 1))
    follow()
    expected = [{"id": 1, **value("old")}, {"id": 5, **value("moved")}]
    assert rows(lake, after) == expected
    last = errors(lake)[-1]
    assert (last["code"], "its changelog lacks changes" in str(last["message"])) == ("", True)
    assert "truncate" in changelog(str(lake), table_id(KEYED))["_change_type"].to_pylist()
    logged = changelog(str(lake), table_id(KEYED)).num_rows
    shutil.rmtree(lake / "_menura" / "checkpoint")
    follow()  # the whole log again
    assert rows(lake, after) == expected
    assert changelog(str(lake), table_id(KEYED)).num_rows == logged


@pytest.mark.spark
def test_stopped_table_without_a_key_when_its_dump_is_done_then_it_is_the_dump_and_what_follows(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    writer.cut((KEYLESS, [insert(id=1, note="old")]))
    lose_a_file(writer, KEYLESS)
    follow()
    assert [stop.table for stop in stopped_tables(str(lake))] == [table_id(KEYLESS)]
    whole = Event(KEYLESS, "DUMPED", removes_rows=True, dump="d1")
    copy = {"id": 2, "note": "new"}
    writer.cut(whole, Chunk(KEYLESS, [copy, copy], dump="d1"), (KEYLESS, [delete(**copy), insert(id=3, note="later")]))
    follow()
    assert stopped_tables(str(lake)) == []
    assert rows(lake, KEYLESS) == [copy, {"id": 3, "note": "later"}]


@pytest.mark.spark
def test_stopped_table_when_it_can_go_on_from_where_it_stopped_then_a_dump_leaves_nothing_out(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    cut = writer.cut((KEYED, [insert(id=1, note="kept")]))
    (file,) = (writer.folder / "data/acme/shop/shop/t").glob(f"*-{cut:020d}-*")
    file.rename(writer.folder / "away")
    follow()
    assert len(stopped_tables(str(lake))) == 1
    (writer.folder / "away").rename(file)
    writer.cut(Event(KEYED, "DUMP_STARTED", dump="d1"), (KEYED, [insert(id=2, note="new")]))
    follow()
    assert rows(lake) == [{"id": 1, "note": "kept"}, {"id": 2, "note": "new"}]
    assert errors(lake)[-1]["message"] == ""


@pytest.mark.spark
def test_stopped_table_when_the_sink_is_killed_while_it_begins_anew_then_the_next_start_does_it_once(
    writer: Writer, lake: Path, follow: Follow, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.cut((KEYED, [insert(id=1, note="old")]))
    follow()
    lose_a_file(writer)
    follow()
    writer.cut(Event(KEYED, "DUMP_STARTED", dump="d1"), (KEYED, [insert(id=4, note="new")]))

    # The new place recorded, and nothing done; then all done, but for its record.
    for of, method, call in ((BatchJobs, "run", 2), (TableStates, "record", 1)):
        with monkeypatch.context() as patch:
            kill_at(patch, of, method, call)
            with pytest.raises(Killed):
                retry_all(session, writer, lake)
    (stop,) = stopped_tables(str(lake))
    assert stop.begins_at_gsn > 0
    follow()
    assert stopped_tables(str(lake)) == []
    assert rows(lake) == [{"id": 4, "note": "new"}]
    kinds = changelog(str(lake), table_id(KEYED))["_change_type"].to_pylist()
    assert sorted(kinds) == ["insert", "insert", "truncate"]


@pytest.mark.spark
def test_child_when_its_parent_begins_anew_then_it_stays_stopped_and_says_so_until_it_begins_anew_too(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    child = Table("child", {"id": pa.int32(), "t": pa.int32()})
    cascade = LandedForeignKey("child_t", ("t",), ("shop", "t"), ("id",), "cascade", "", (None,))
    writer.cut(Event(child, "FOREIGN_KEYS", foreign_keys=(cascade,)), (KEYED, [insert(id=1, note="a")]))
    writer.cut((child, [insert(id=10, t=1)]))
    follow()
    lose_a_file(writer)  # nobody knows that it was the parent's delete
    follow()
    stops = {stop.table.table: stop.code for stop in stopped_tables(str(lake))}
    assert stops == {"t": "DATA_FILE_UNREADABLE", "child": "PARENT_STOPPED"}
    writer.cut(Event(KEYED, "DUMP_STARTED", dump="d1"), (KEYED, [insert(id=2, note="new")]))
    follow()
    for _ in range(2):  # also at the next start
        (stop,) = stopped_tables(str(lake))
        assert (stop.table, stop.code, stop.terminal) == (table_id(child), "PARENT_BEGUN_ANEW", True)
        assert "menura sync resync shop shop.child" in stop.message
        follow()
    assert rows(lake) == [{"id": 2, "note": "new"}]
    writer.cut(Event(child, "DUMP_STARTED", dump="d2"), (child, [insert(id=20, t=2)]))
    follow()
    writer.cut((KEYED, [delete(id=2, note="new")]))
    follow()
    assert stopped_tables(str(lake)) == []
    assert rows(lake, child) == []


@pytest.mark.spark
def test_children_when_a_parent_begins_anew_and_their_own_dumps_are_in_the_log_already_then_they_begin_with_them(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    """No later event would have them tried again."""
    child, grandchild = Table("child", {"id": pa.int32(), "up": pa.int32()}), Table("deep", {"id": pa.int32()})
    for table, parent in ((child, "t"), (grandchild, "child")):
        key = LandedForeignKey(f"{table.name}_up", ("id",), ("shop", parent), ("id",), "cascade", "", (None,))
        writer.cut(Event(table, "FOREIGN_KEYS", foreign_keys=(key,)))
    writer.cut((KEYED, [insert(id=1, note="a")]), (child, [insert(id=1, up=1)]), (grandchild, [insert(id=1)]))
    follow()
    lose_a_file(writer)
    writer.cut(Event(KEYED, "DUMP_STARTED", dump="d1"), (KEYED, [insert(id=2, note="new")]))
    writer.cut(Event(child, "DUMP_STARTED", dump="d2"), (child, [insert(id=2, up=2)]))
    writer.cut(Event(grandchild, "DUMP_STARTED", dump="d3"), (grandchild, [insert(id=2)]))
    follow()
    assert stopped_tables(str(lake)) == []
    assert (rows(lake), rows(lake, child)) == ([{"id": 2, "note": "new"}], [{"id": 2, "up": 2}])
    assert rows(lake, grandchild) == [{"id": 2}]


@pytest.mark.spark
def test_child_when_its_parent_never_comes_back_and_its_keys_do_not_follow_it_any_more_then_its_own_dump_begins_it(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    child = Table("child", {"id": pa.int32()})
    key = LandedForeignKey("child_up", ("id",), ("shop", "t"), ("id",), "cascade", "", (None,))
    writer.cut(Event(child, "FOREIGN_KEYS", foreign_keys=(key,)))
    writer.cut((KEYED, [insert(id=1, note="a")]), (child, [insert(id=1)]))
    follow()
    lose_a_file(writer)
    follow()
    writer.cut(Event(child, "DUMP_STARTED", dump="d1"), (child, [insert(id=2)]))
    follow()
    assert {stop.table.table: stop.code for stop in stopped_tables(str(lake))}["child"] == "PARENT_STOPPED"
    writer.cut(Event(child, "FOREIGN_KEYS", foreign_keys=()))
    writer.cut(Event(child, "DUMP_STARTED", dump="d2"), (child, [insert(id=3)]))
    follow()
    assert [stop.table for stop in stopped_tables(str(lake))] == [table_id(KEYED)]
    assert rows(lake, child) == [{"id": 3}]


@pytest.mark.spark
def test_child_when_its_parent_begins_anew_from_before_the_childs_last_dump_then_that_dump_counts(
    writer: Writer, lake: Path, follow: Follow
) -> None:
    """The parent's folder is lost, and the landing has lost its first file: it begins with a dump of long ago."""
    child = Table("child", {"id": pa.int32(), "up": pa.int32()})
    key = LandedForeignKey("child_up", ("up",), ("shop", "t"), ("id",), "cascade", "", (None,))
    first = writer.cut(Event(child, "FOREIGN_KEYS", foreign_keys=(key,)), (KEYED, [insert(id=1, note="a")]))
    writer.cut(Event(KEYED, "DUMP_STARTED", dump="d1"), (KEYED, [insert(id=2, note="b"), insert(id=3, note="c")]))
    writer.cut(Event(KEYED, "DUMPED", dump="d1", removes_rows_before_gsn=writer.last_gsns["acme", "shop"] - 2))
    writer.cut(Event(child, "DUMP_STARTED", dump="d2"), (child, [insert(id=20, up=2), insert(id=30, up=3)]))
    follow()
    (file,) = (writer.folder / "data/acme/shop/shop/t").glob(f"*-{first:020d}-*")
    file.unlink()
    shutil.rmtree(lake / "acme/shop/shop/t")
    writer.cut((KEYED, [delete(id=2, note="b")]))
    follow()
    assert stopped_tables(str(lake)) == []
    assert rows(lake) == [{"id": 3, "note": "c"}]
    assert rows(lake, child) == [{"id": 30, "up": 3}]


@pytest.mark.spark
def test_stopped_tables_when_asked_for_then_each_is_seen_to_be_tried_and_transient_ones_are_not_delayed(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path, follow: Follow
) -> None:
    """A child that can only begin anew has no outcome; one below a table that waits is not tried each minute."""
    child, deep = Table("child", {"id": pa.int32()}), Table("deep", {"id": pa.int32()})
    for table, parent in ((child, "t"), (deep, "child")):
        key = LandedForeignKey(f"{table.name}_up", ("id",), ("shop", parent), ("id",), "cascade", "", (None,))
        writer.cut(Event(table, "FOREIGN_KEYS", foreign_keys=(key,)))
    writer.cut((KEYED, [insert(id=1, note="a")]), (child, [insert(id=1)]), (deep, [insert(id=1)]))
    follow()
    lose_a_file(writer)
    follow()
    sink = Sink(session, settings, SinkStatus())
    sink.start().awaitTermination()
    stops = {stop.table.table: stop for stop in stopped_tables(str(lake))}
    assert {name: stop.code for name, stop in stops.items()} == {
        "t": "DATA_FILE_UNREADABLE", "child": "PARENT_STOPPED", "deep": "PARENT_STOPPED",
    }  # fmt: skip
    sink.retry_due()
    assert {stop.table.table: stop for stop in stopped_tables(str(lake))} == stops
    writer.cut(Event(KEYED, "DUMP_STARTED", dump="d1"))
    sink.start().awaitTermination()
    sink.retry_due()
    stops = {stop.table.table: stop for stop in stopped_tables(str(lake))}
    assert {name: stop.code for name, stop in stops.items()} == {
        "child": "PARENT_BEGUN_ANEW", "deep": "PARENT_BEGUN_ANEW",
    }  # fmt: skip
    pauses = dict(sink._pauses._pauses)
    sink.ask_retry([table_id(child)])
    sink.retry_due()
    tried = {stop.table.table: stop for stop in stopped_tables(str(lake))}
    assert tried["child"].at_us > stops["child"].at_us
    assert tried["deep"] == stops["deep"]
    assert sink._pauses._pauses == pauses


def retry_all(session: SparkSession, writer: Writer, lake: Path) -> None:
    sink = Sink(session, SinkSettings(str(writer.folder), str(lake), str(lake / "elsewhere")), SinkStatus())
    sink.tables.stopped = Records(str(lake)).stopped_tables()
    sink.retry_stopped(list(sink.tables.stopped))


@pytest.mark.spark
def test_stopped_table_when_somebody_asks_then_it_is_tried_again_and_others_are_left_alone(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path, follow: Follow
) -> None:
    cut = writer.cut((KEYED, [insert(id=1, note="kept")]), (OTHER, [insert(id=1)]))
    folder = writer.folder / "data/acme/shop/shop"
    files = [next((folder / name).glob(f"*-{cut:020d}-*")) for name in ("t", "other")]
    for number, file in enumerate(files):
        file.rename(writer.folder / f"away-{number}")
    follow()
    sink = Sink(session, settings, SinkStatus())
    sink.start().awaitTermination()
    for number, file in enumerate(files):
        (writer.folder / f"away-{number}").rename(file)
    sink.retry_due()
    assert len(stopped_tables(str(lake))) == 2  # terminal: somebody has to ask
    sink.ask_retry([table_id(KEYED), table_id(Table("unknown", {}))])
    sink.retry_due()
    assert [stop.table for stop in stopped_tables(str(lake))] == [table_id(OTHER)]
    assert list(sink.status.now().stopped) == [table_id(OTHER)]
    assert rows(lake) == [{"id": 1, "note": "kept"}]


@pytest.mark.spark
def test_status_when_batches_were_applied_then_entry_sources_and_figures_follow_also_after_a_start(
    writer: Writer, lake: Path, settings: SinkSettings, follow: Follow
) -> None:
    assert Checkpoint(settings.checkpoint).read() == (0, "")
    for number in range(3):
        writer.cut((OTHER, [insert(id=number)]))
    now = follow().now()
    assert (now.entry, now.rows, now.batches > 0) == (3, 3, True)
    assert now.sources["acme", "shop"].cut == 3
    assert Checkpoint(settings.checkpoint).read() == (3, writer.landing)
    again = follow().now()
    assert (again.entry, again.rows, again.sources) == (3, 0, {})


def test_beginning_when_several_dumps_were_missed_then_the_newest_counts_and_only_of_a_stop_that_waits() -> None:
    stop = StoppedTable(table_id(KEYED), 3, 3, "X", "broken", terminal=True, at_us=1)
    missed = [
        event(4, 40, "DUMP_STARTED"),
        event(5, 50, "DUMPED"),
        event(6, 60, "DUMP_STARTED"),
        event(7, 70, "ALTERED"),
    ]
    found = new_beginning(stop, [*missed, event(8, 80, "DUMP_STARTED", "other"), {"event": None}])
    assert found is not None
    assert (found.entry, found.cut, found.begins_at_gsn, found.code) == (6, 6, 60, "X")
    assert new_beginning(found, missed) is None  # it was tried
    assert new_beginning(StoppedTable(table_id(KEYED), 3, 3, "X", "", terminal=False, at_us=1), missed) is None
    assert [row_from(row, 60) is not None for row in missed] == [False, False, True, True]
    begun = row_from(missed[2], 60)
    assert begun is not None and json.loads(begun["event"])["removes_rows"] is True
    assert row_from(missed[0], 0) == missed[0]


def event(entry: int, gsn: int, kind: str, table: str = "t") -> Row:
    document = {
        "database": "shop", "table": table, "kind": kind, "gsn": gsn, "transaction_id": 1, "commit_timestamp_us": 1,
        "position": "", "statement": "", "removes_rows": False, "columns": [], "new_name": [], "dump": "d",
        "removes_rows_before_gsn": 0,
    }  # fmt: skip
    return {
        "tenant": "acme", "source": "shop", "database": "shop", "table": table, "entry": entry, "cut": entry,
        "first_gsn": gsn, "last_gsn": gsn, "event": json.dumps(document),
    }  # fmt: skip
