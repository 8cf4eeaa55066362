"""Folders of the lake that are lost, or put back from an older copy: noticed, and written anew from the landing."""

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_sink.ingest import query
from spark_sink.ingest.retry_pauses import RetryPauses
from spark_sink.ingest.settings import SinkSettings
from spark_sink.lake.delta_table import open_table, scan
from spark_sink.lake.recorded import Recorded, lost_tables, recorded_tables
from spark_sink.reading import changelog, stopped_tables
from spark_sink.running import run
from spark_sink.work import Result
from tests.spark_sink.landing import (
    Chunk,
    Event,
    Table,
    Workload,
    Writer,
    altered,
    apply_entries,
    insert,
    lake_rows,
    table_id,
    truncate,
)
from tests.stack import wait_for

pytestmark = pytest.mark.spark

ORDERS, EVENTS = Workload.ORDERS, Workload.EVENTS
OLD = Table("t", {"id": pa.int32(), "v": pa.int32()})
NEW = Table("t", {"id": pa.int32(), "v": pa.float64()})
TABLES = (ORDERS, EVENTS, OLD)
#: which folders of a table are lost, or older
PARTS = {"all": ("changelog", "current"), "changelog": ("changelog",), "current": ("current",)}


@pytest.fixture
def follow(session: SparkSession, writer: Writer, lake: Path) -> Callable[[], None]:
    """Run the sink over what the log holds now, to its end."""

    def until_done() -> None:
        settings = SinkSettings(str(writer.folder), str(lake), str(lake / "_menura" / "checkpoint"), available_now=True)
        run(session, settings, threading.Event())

    return until_done


def folder(lake: Path, table: Table) -> Path:
    return Path(table_id(table).folder(str(lake)))


def damage(lake: Path, copy: Path, table: Table, parts: tuple[str, ...], has_copy: bool) -> None:
    for part in parts:
        shutil.rmtree(folder(lake, table) / part)
        if has_copy:
            shutil.copytree(copy / table.name / part, folder(lake, table) / part)


def states(lake: Path) -> list[tuple[str, str]]:
    """Of each change of a table's state its table and code, in order."""
    errors = open_table(f"{lake}/_menura/errors")
    rows = scan(errors, "SELECT * FROM t ORDER BY at_us").read_all().to_pylist() if errors is not None else []
    return [(row["table"], row["code"]) for row in rows]


def logged(lake: Path) -> dict[str, list[str]]:
    return {
        table.name: sorted(repr(sorted(row.items())) for row in changelog(str(lake), table_id(table)).to_pylist())
        for table in TABLES
    }


@pytest.mark.parametrize("has_copy", [False, True], ids=["lost", "older"])
@pytest.mark.parametrize("parts", PARTS)
def test_folders_that_are_lost_or_older_when_the_sink_starts_then_they_are_written_anew_from_the_landing(
    writer: Writer, lake: Path, tmp_path: Path, follow: Callable[[], None], parts: str, has_copy: bool
) -> None:
    workload, copy = Workload(1), tmp_path / "copy"
    for _ in range(3):
        workload.cut(writer)
    writer.cut((OLD, [insert(id=1, v=1), insert(id=2, v=2)]), truncate(OLD), (OLD, [insert(id=3, v=3)]))
    follow()
    for table in TABLES:
        shutil.copytree(folder(lake, table), copy / table.name)
    for _ in range(3):
        workload.cut(writer)
    writer.cut(Event(OLD, "DUMP_STARTED", dump="dump-1"))
    floor = writer.last_gsns["acme", "shop"]
    writer.cut(Chunk(OLD, [{"id": 3, "v": 4}], floor))
    writer.cut(altered(NEW), (NEW, [insert(id=4, v=0.5)]))
    follow()
    rows_before, logged_before = {table.name: lake_rows(lake, table) for table in TABLES}, logged(lake)
    for table in TABLES:
        damage(lake, copy, table, PARTS[parts], has_copy)
    follow()  # nothing new has landed
    assert {table.name: lake_rows(lake, table) for table in TABLES} == rows_before
    assert logged(lake) == logged_before
    assert sorted(states(lake)) == sorted((name, code) for name in rows_before for code in ("LAKE_TABLE_LOST", ""))
    assert stopped_tables(str(lake)) == []
    workload.cut(writer)
    follow()
    assert lake_rows(lake, ORDERS) == workload.orders.expected()
    assert lake_rows(lake, EVENTS) == workload.events.expected()
    assert len(states(lake)) == 2 * len(TABLES)


@pytest.mark.parametrize("parts", PARTS)
def test_a_folder_that_is_lost_when_a_batch_comes_then_its_table_stops_before_anything_is_written(
    writer: Writer, lake: Path, parts: str
) -> None:
    writer.cut((OLD, [insert(id=1, v=1)]), (ORDERS, [insert(id=1, amount=2, note="a")]))
    outcomes = apply_entries(writer.folder, lake)
    recorded = {found.table: Recorded(found.changelog_version, found.current_version) for found in outcomes}
    damage(lake, lake, OLD, PARTS[parts], has_copy=False)
    writer.cut((OLD, [insert(id=2, v=2)]), (ORDERS, [insert(id=2, amount=2, note="a")]))
    found = {each.table.table: each for each in apply_entries(writer.folder, lake, first=2, recorded=recorded)}
    assert (found["orders"].result, found["t"].result) == (Result.APPLIED, Result.STOPPED)
    assert (found["t"].code, found["t"].entry, found["t"].terminal) == ("LAKE_TABLE_LOST", 1, False)
    assert "version" in found["t"].message
    left = [part for part in ("changelog", "current") if (folder(lake, OLD) / part).exists()]
    assert left == [part for part in ("changelog", "current") if part not in PARTS[parts]]


def test_a_folder_that_is_lost_while_the_sink_runs_when_rows_come_then_the_table_has_all_of_them(
    writer: Writer, lake: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "RetryPauses", partial(RetryPauses, 0.5))
    settings = SinkSettings(str(writer.folder), str(lake), str(lake / "_menura" / "checkpoint"), trigger_seconds=0.2)
    stop = threading.Event()
    running = threading.Thread(target=run, args=(session, settings, stop))
    running.start()
    try:
        writer.cut((OLD, [insert(id=1, v=1)]))
        wait_for("the first row", lambda: folder(lake, OLD).exists() and _cuts(lake) == {1})
        shutil.rmtree(folder(lake, OLD))
        writer.cut((OLD, [insert(id=2, v=2)]))
        wait_for("the table to go on", lambda: states(lake)[-1:] == [("t", "")])
        assert lake_rows(lake, OLD) == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]
    finally:
        stop.set()
        running.join()


def _cuts(lake: Path) -> set[int]:
    cuts = open_table(f"{lake}/_menura/cuts")
    return set(scan(cuts, "SELECT cut FROM t").read_all()["cut"].to_pylist()) if cuts is not None else set()


def test_a_lost_table_when_the_landing_has_lost_its_rows_too_then_it_stays_stopped_and_says_which(
    writer: Writer, lake: Path, follow: Callable[[], None]
) -> None:
    writer.cut((OLD, [insert(id=1, v=1)]))
    follow()
    shutil.rmtree(folder(lake, OLD))
    for path in (writer.folder / "data").rglob("*.parquet"):
        path.unlink()
    follow()
    (stop,) = stopped_tables(str(lake))
    assert stop.code == "DATA_FILE_UNREADABLE" and "is missing" in stop.message
    codes = [code for _, code in states(lake)]  # both again where Spark ended the query and it began again
    assert codes == ["LAKE_TABLE_LOST", "DATA_FILE_UNREADABLE"] * (len(codes) // 2)
    writer.cut((OLD, [insert(id=2, v=2)]))
    follow()
    assert not folder(lake, OLD).exists()


def test_a_table_that_was_made_anew_when_its_versions_are_recorded_then_the_last_ones_count(
    writer: Writer, lake: Path, follow: Callable[[], None]
) -> None:
    for number in range(1, 5):
        writer.cut((OLD, [insert(id=number, v=1)]))
        follow()
    shutil.rmtree(folder(lake, OLD))
    follow()
    recorded = recorded_tables(open_table(f"{lake}/_menura/cuts"))
    (held,) = recorded.values()
    current = open_table(f"{folder(lake, OLD)}/current")
    assert current is not None and held.current == current.version()
    assert lost_tables(str(lake), recorded) == {}


def test_a_table_without_rows_in_the_lake_when_its_dump_begins_before_its_rows_come_then_it_goes_on_with_them(
    writer: Writer, lake: Path, session: SparkSession
) -> None:
    """The dump's first file follows one that the lake never had."""
    writer.cut((OLD, [insert(id=1, v=1)]))
    for path in (writer.folder / "data").rglob("*.parquet"):
        path.unlink()
    settings = SinkSettings(str(writer.folder), str(lake), str(lake / "_menura" / "checkpoint"), trigger_seconds=0.2)
    stop = threading.Event()
    running = threading.Thread(target=run, args=(session, settings, stop))
    running.start()
    try:
        wait_for("the stop", lambda: states(lake)[-1:] == [("t", "DATA_FILE_UNREADABLE")])
        writer.cut(Event(OLD, "DUMP_STARTED", dump="dump-1"))
        wait_for("the table to go on", lambda: states(lake)[-1:] == [("t", "")])
        writer.cut(Chunk(OLD, [{"id": 1, "v": 1}], writer.last_gsns["acme", "shop"]))
        wait_for("the dump's cut", lambda: 3 in _cuts(lake))
        assert stopped_tables(str(lake)) == []
        writer.cut((OLD, [insert(id=2, v=2)]))
        wait_for("the next cut", lambda: 4 in _cuts(lake))
        assert lake_rows(lake, OLD) == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]
    finally:
        stop.set()
        running.join()
