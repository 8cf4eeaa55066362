"""What a lake would lose without a word: another landing's numbers, entries that are gone, changes between two cuts."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from menura.landing import IDENTITY_PATH, LandedPosition, LandedStart, LandedStop, entry_path
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_sink.errors import LakeLost, LogEntryMissing, LogEntryUnreadable, OtherLanding, SinkError
from spark_sink.ingest import cut_log_source
from spark_sink.ingest.cut_log_source import CutLogReader, Limits, RowsPartition
from spark_sink.ingest.settings import SinkSettings
from spark_sink.lake.delta_table import open_table, scan
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import list_tables, stopped_tables
from spark_sink.running import run
from spark_sink.work import Result
from tests.spark_sink.landing import Event, Table, Writer, apply_entries, insert, lake_rows, table_id, truncate

pytestmark = pytest.mark.spark

ORDERS = Table("orders", {"id": pa.int32()})
ITEMS = Table("items", {"id": pa.int32()})

Follow = Callable[[Writer, Path, Path], None]


@pytest.fixture
def follow(session: SparkSession) -> Follow:
    """Run the sink over what the log holds now, to its end."""

    def until_done(writer: Writer, lake: Path, checkpoint: Path) -> None:
        run(
            session, SinkSettings(str(writer.folder), str(lake), str(checkpoint), available_now=True), threading.Event()
        )

    return until_done


def fill(writer: Writer, cuts: int) -> None:
    for number in range(1, cuts + 1):
        writer.cut((ORDERS, [insert(id=number)]))


@pytest.mark.parametrize("way", ["another landing", "another landing, kept checkpoint", "begun again in its place"])
def test_landing_when_it_is_not_the_lakes_then_the_sink_refuses_it_and_says_which_it_is(
    writer: Writer, lake: Path, tmp_path: Path, follow: Follow, way: str
) -> None:
    """Without identities three of these cuts were skipped without a word: the lake has cuts 1 to 3."""
    checkpoint = tmp_path / "checkpoint"
    fill(writer, 3)
    follow(writer, lake, checkpoint)
    if way == "begun again in its place":
        shutil.rmtree(writer.folder)
        other = Writer(writer.folder)
    else:
        other = Writer(tmp_path / "other")
    fill(other, 5)
    if way == "another landing":
        checkpoint = tmp_path / "new"
    if "kept" in way:
        lake = tmp_path / "new lake"
    with pytest.raises(OtherLanding, match=f"it is landing {other.landing}.*belongs to landing {writer.landing}"):
        follow(other, lake, checkpoint)
    assert not (tmp_path / "new").exists()
    assert len(list_tables(str(lake))) == ("kept" not in way)


def test_lake_when_it_is_lost_and_the_checkpoint_is_kept_then_the_sink_refuses_to_go_on(
    writer: Writer, lake: Path, tmp_path: Path, follow: Follow
) -> None:
    fill(writer, 3)
    follow(writer, lake, tmp_path / "checkpoint")
    shutil.rmtree(lake)
    writer.cut((ITEMS, [insert(id=1)]))
    with pytest.raises(LakeLost, match="entries up to 3"):
        follow(writer, lake, tmp_path / "checkpoint")
    follow(writer, lake, tmp_path / "new")
    assert [row["id"] for row in lake_rows(lake, ORDERS)] == [1, 2, 3]


def test_landing_of_an_earlier_version_when_it_gets_an_identity_then_its_lake_goes_on_with_it(
    lake: Path, tmp_path: Path, follow: Follow
) -> None:
    writer = Writer(tmp_path / "landing", landing="")
    fill(writer, 2)
    follow(writer, lake, tmp_path / "checkpoint")
    writer.landing = "5b" * 16
    fill(writer, 2)
    follow(writer, lake, tmp_path / "checkpoint")
    assert len(lake_rows(lake, ORDERS)) == 2  # the same two keys again
    (writer.folder / IDENTITY_PATH).unlink()
    with pytest.raises(OtherLanding, match="does not say which landing it is"):
        follow(writer, lake, tmp_path / "checkpoint")


@pytest.mark.parametrize("gone", [(3,), (2, 3), (3, 4), (1, 2, 3, 4)], ids=str)
def test_entries_when_they_are_gone_then_the_sink_fails_and_names_the_first_one(
    writer: Writer, lake: Path, tmp_path: Path, follow: Follow, gone: tuple[int, ...]
) -> None:
    """Without a look behind it the next entry was not written yet: nothing new, for ever."""
    fill(writer, 2)
    follow(writer, lake, tmp_path / "checkpoint")
    for number in range(3, 5):
        writer.cut((ORDERS, [insert(id=number)]))
    kept = {number: (writer.folder / entry_path(number)).read_bytes() for number in gone}
    for number in gone:
        (writer.folder / entry_path(number)).unlink()
    if gone[-1] == 4 and gone[0] == 3:  # of these nobody can know; but of entry 2
        (writer.folder / entry_path(2)).rename(tmp_path / "entry 2")
    with pytest.raises(LogEntryMissing, match="entry 3 of the cut log"):
        follow(writer, lake, tmp_path / "checkpoint")
    for number, document in kept.items():
        (writer.folder / entry_path(number)).write_bytes(document)
    follow(writer, lake, tmp_path / "checkpoint")
    assert [row["id"] for row in lake_rows(lake, ORDERS)] == [1, 2, 3, 4]


def problems(reader: CutLogReader, start: dict[str, object]) -> list[object]:
    end = reader.latestOffset(start, ReadAllAvailable())
    parts = reader.partitions(start, end)
    return [row["problem"] for part in parts if isinstance(part, RowsPartition) for row in part.rows]


def test_reader_when_an_entry_goes_while_it_runs_then_the_next_batch_is_that_problem(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_log_source, "LOOK_SECONDS", 0.0)
    fill(writer, 2)
    reader = CutLogReader(LandingLog(str(writer.folder)), lambda: 1, Limits())
    start = reader.latestOffset({"entry": 0}, ReadAllAvailable())
    assert start == {"entry": 2, "landing": writer.landing}
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    fill(writer, 2)
    (writer.folder / entry_path(3)).unlink()
    assert problems(reader, start) == ["it is gone, and entry 4 is there"]


def test_reader_when_the_landing_is_begun_again_while_it_runs_then_the_next_batch_is_that_problem(
    writer: Writer,
) -> None:
    fill(writer, 2)
    reader = CutLogReader(LandingLog(str(writer.folder)), lambda: 1, Limits())
    start = reader.latestOffset({"entry": 0}, ReadAllAvailable())
    shutil.rmtree(writer.folder)
    other = Writer(writer.folder)
    fill(other, 3)
    (problem,) = problems(reader, start)
    assert other.landing in str(problem) and writer.landing in str(problem)


def test_table_when_changes_before_a_file_are_missing_then_it_alone_stops_until_a_dump_begins_it_anew(
    writer: Writer, lake: Path
) -> None:
    """As where the sink has forgotten that the table had stopped: its records were lost, or the clock went back."""
    writer.cut((ORDERS, [insert(id=1)]), (ITEMS, [insert(id=1)]))
    apply_entries(writer.folder, lake)
    writer.cut((ORDERS, [insert(id=2)]))
    writer.cut((ORDERS, [insert(id=3)]), (ITEMS, [insert(id=2)]))
    done = {each.table.table: each for each in apply_entries(writer.folder, lake, first=3)}
    assert (done["items"].result, done["orders"].result) == (Result.APPLIED, Result.STOPPED)
    stop = done["orders"]
    assert (stop.code, stop.entry, stop.terminal) == ("PREDECESSOR_MISSING", 3, True)
    assert "follows cut 2 of the table, which has cut 1" in stop.message
    assert [row["id"] for row in lake_rows(lake, ORDERS)] == [1]
    assert [each.result for each in apply_entries(writer.folder, lake, first=2)] == [Result.APPLIED, Result.SKIPPED]


def test_table_when_a_truncate_follows_missing_changes_then_it_stops_too(writer: Writer, lake: Path) -> None:
    """Its rows would be right, its changelog not."""
    writer.cut((ORDERS, [insert(id=1)]))
    writer.cut(truncate(ORDERS), (ORDERS, [insert(id=2)]))
    (stop,) = apply_entries(writer.folder, lake, first=2)
    assert stop.code == "PREDECESSOR_MISSING" and "which has none" in stop.message


def test_table_when_only_events_and_cuts_without_rows_stand_between_then_it_goes_on(writer: Writer, lake: Path) -> None:
    writer.cut(Event(ORDERS, "DUMP_STARTED", dump="d"))
    writer.cut((ITEMS, [insert(id=1)]))
    writer.cut((ORDERS, [insert(id=1)]))
    writer.cut(truncate(ORDERS))
    writer.cut((ORDERS, [insert(id=2)]))
    for number in range(1, 6):
        outcomes = apply_entries(writer.folder, lake, first=number, last=number)
        assert all(outcome.result is not Result.STOPPED for outcome in outcomes), outcomes
    assert [row["id"] for row in lake_rows(lake, ORDERS)] == [2]


def test_errors_when_they_are_told_then_the_sink_says_what_to_do(writer: Writer, lake: Path, follow: Follow) -> None:
    fill(writer, 1)
    follow(writer, lake, lake / "_menura/checkpoint")
    writer.cut((ORDERS, [insert(id=2)]))
    (writer.folder / entry_path(2)).write_text("{}")
    with pytest.raises(SinkError) as told:
        follow(writer, lake, lake / "_menura/checkpoint")
    assert isinstance(told.value, LogEntryUnreadable) and not isinstance(told.value, LogEntryMissing)
    assert stopped_tables(str(lake)) == [] and table_id(ORDERS) in list_tables(str(lake))


def test_syncs_when_they_start_and_stop_then_the_lakes_events_say_so_and_from_where(
    writer: Writer, lake: Path, tmp_path: Path, follow: Follow
) -> None:
    here, there = (LandedPosition("mysql", text, "{}") for text in ("3e11:1-7", "3e11:1-9"))
    first = writer.make_cut([(ORDERS, [insert(id=1)]), (ITEMS, [insert(id=1)])])
    started = LandedStart("shop", "orders", here, "the dump was cancelled"), LandedStart("shop", "items", here)
    writer.write_entry([replace(first, started=started)])
    writer.cut((ORDERS, [insert(id=2)]))
    last = writer.make_cut([(ITEMS, [insert(id=2)])])
    writer.write_entry([replace(last, stopped=(LandedStop("shop", "orders", there, "EVENT_UNKNOWN", "type 99"),))])
    for checkpoint in ("one", "two"):  # a replay tells nothing twice
        follow(writer, lake, tmp_path / checkpoint)
    events = open_table(f"{lake}/_menura/events")
    assert events is not None
    rows = scan(events, 'SELECT * FROM t ORDER BY _gsn, kind, "table"').read_all().to_pylist()
    assert [(row["kind"], row["table"], row["_gsn"], row["_position"], row["statement"]) for row in rows] == [
        ("SYNC_STARTED", "items", first.files[0].first_gsn, "3e11:1-7", ""),
        ("SYNC_STARTED", "orders", first.files[0].first_gsn, "3e11:1-7", "the dump was cancelled"),
        ("SYNC_STOPPED", "orders", last.last_gsn, "3e11:1-9", "EVENT_UNKNOWN: type 99"),
    ]
    assert [row["id"] for row in lake_rows(lake, ORDERS)] == [1, 2]
