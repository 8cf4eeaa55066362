"""What is known of stopped tables: in which order, when they are tried again, what that costs."""

import shutil
import threading
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, SchemaMismatchError
from menura.landing import entry_path
from pyspark.sql import SparkSession

from spark_sink.ingest import table_task
from spark_sink.ingest.missed_rows import MissedRows
from spark_sink.ingest.retry_pauses import LONGEST_SECONDS, RetryPauses
from spark_sink.ingest.settings import SinkSettings
from spark_sink.lake import records
from spark_sink.lake.records import NUMBER, Records, StoppedTable
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import stopped_tables
from spark_sink.running import run
from spark_sink.work import Result, TableId
from tests.remedies import commands
from tests.spark_sink.landing import (
    Chunk,
    Event,
    Table,
    Writer,
    apply_entries,
    insert,
    lake_rows,
    table_id,
    update,
)

pytestmark = pytest.mark.spark

ORDERS = Table("orders", {"id": pa.int32(), "v": pa.int32()})
ITEMS = Table("items", {"id": pa.int32()})


def stop(code: str, at_us: int) -> StoppedTable:
    return StoppedTable(table_id(ORDERS), 3, 3, code, "why", terminal=True, at_us=at_us)


def test_stop_when_the_clock_has_gone_back_then_it_is_still_the_last_thing_known(lake: Path) -> None:
    """By the clock the table went on after it stopped, and a restart lost what it missed."""
    kept = Records(str(lake))
    kept.record_stops([stop("A", 1000)])
    kept.record_stops([stop("", 2000)])
    kept.record_stops([stop("B", 500)])
    assert [found.code for found in kept.stopped_tables().values()] == ["B"]


def test_stops_of_an_earlier_version_when_later_ones_come_then_those_count(lake: Path) -> None:
    kept = Records(str(lake))
    facts = {"tenant": "acme", "source": "shop", "database": "shop", "table": "orders", "entry": 3, "cut": 3}
    former = [
        {**facts, "code": code, "message": "", "terminal": True, "at_us": at_us}
        for code, at_us in (("", 2000), ("A", 3000))
    ]
    schema = pa.schema([field for field in records.ERRORS_SCHEMA if field.name != NUMBER])
    write_deltalake(kept.errors_folder, pa.Table.from_pylist(former, schema=schema))
    assert [found.code for found in kept.stopped_tables().values()] == ["A"]
    kept.record_stops([stop("", 1000)])
    assert kept.stopped_tables() == {}


def test_delta_errors_when_they_may_pass_then_the_table_is_tried_again_and_waits(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A MERGE that can't read a file of the table: delta-rs says DeltaError, not OSError."""
    monkeypatch.setattr(table_task, "STORAGE_PAUSE_SECONDS", 0.0)
    writer.cut((ORDERS, [insert(id=1, v=1)]))
    apply_entries(writer.folder, lake)
    (rows,) = (lake / "acme/shop/shop/orders/current").glob("*.parquet")
    kept = lake / "kept"
    rows.rename(kept)
    rows.mkdir()  # reading it fails: EISDIR
    writer.cut((ORDERS, [update({"id": 1, "v": 1}, {"id": 1, "v": 2})]), (ITEMS, [insert(id=1)]))
    done = {each.table.table: each for each in apply_entries(writer.folder, lake, first=2)}
    assert (done["items"].result, done["orders"].result) == (Result.APPLIED, Result.STOPPED)
    assert (done["orders"].code, done["orders"].terminal) == ("LAKE_STORAGE_FAILED", False)
    assert commands(done["orders"].message) == [["sync", "retry", "shop", "shop.orders"]]
    rows.rmdir()
    kept.rename(rows)
    assert apply_entries(writer.folder, lake, first=2)[0].result is Result.APPLIED
    assert lake_rows(lake, ORDERS) == [{"id": 1, "v": 2}]


@pytest.mark.parametrize(("failure", "attempts"), [(DeltaError, 3), (OSError, 3), (SchemaMismatchError, 1)])
def test_failures_when_a_second_attempt_may_help_then_there_is_one(
    monkeypatch: pytest.MonkeyPatch, failure: type[Exception], attempts: int
) -> None:
    monkeypatch.setattr(table_task, "STORAGE_PAUSE_SECONDS", 0.0)
    calls = []

    def fail() -> None:
        calls.append(1)
        raise failure("as the storage does")

    with pytest.raises((table_task.LakeStorageFailed, SchemaMismatchError)):
        table_task.with_storage_retries(table_id(ORDERS), 1, fail)
    assert len(calls) == attempts


def test_retries_when_a_table_fails_again_and_again_then_they_come_more_and_more_slowly() -> None:
    retries, table, other = RetryPauses(60.0), table_id(ORDERS), table_id(ITEMS)
    assert retries.due([table], 0.0) == set()
    moments = [now for now in range(1, 20_000) if retries.due([table], float(now))]
    pauses = [after - before for before, after in zip([0, *moments], moments, strict=False)]
    assert pauses[:4] == [60, 120, 240, 480] and pauses[-1] == LONGEST_SECONDS
    assert retries.due([other], 20_000.0) == set()
    assert retries.due([table, other], 20_060.0) == {other}  # the first one began anew


def test_missed_rows_when_they_are_asked_for_again_then_only_new_entries_are_read(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 6):
        writer.cut((ORDERS, [insert(id=number, v=1)]), (ITEMS, [insert(id=number)]))
    read: list[int] = []
    read_entry = LandingLog.read_entry

    def counted(log: LandingLog, entry: int) -> object:
        read.append(entry)
        return read_entry(log, entry)

    monkeypatch.setattr(LandingLog, "read_entry", counted)
    missed = MissedRows(LandingLog(str(writer.folder)), str(lake / "_menura/events"), {table_id(ORDERS): 3})
    missed.read_on()
    assert [row["entry"] for row in missed.rows()] == [3, 4, 5]
    writer.cut((ORDERS, [insert(id=6, v=1)]))
    missed.read_on()
    assert read == [3, 4, 5, 6, 6, 7]
    assert [cut.entry for cut in missed.cuts] == [row["entry"] for row in missed.rows()] == [3, 4, 5, 6]


def test_table_when_the_log_has_lost_what_it_missed_then_it_says_so_and_a_dump_begins_it_anew(
    writer: Writer, lake: Path, session: SparkSession
) -> None:
    settings = SinkSettings(str(writer.folder), str(lake), str(lake / "_menura/checkpoint"), available_now=True)
    follow = partial(run, session, settings, threading.Event())
    writer.cut((ORDERS, [insert(id=1, v=1)]))
    follow()
    writer.cut((ORDERS, [insert(id=2, v=2)]))
    shutil.rmtree(writer.folder / "data")
    follow()
    writer.cut((ITEMS, [insert(id=1)]))
    writer.cut((ITEMS, [insert(id=2)]))
    follow()
    (writer.folder / entry_path(2)).unlink()
    follow()
    (found,) = stopped_tables(str(lake))
    assert (found.code, found.entry, found.terminal) == ("ENTRIES_GONE", 2, True)
    assert "lacks entry 2" in found.message and "is missing" in found.message
    assert commands(found.message)[-1] == ["sync", "resync", "shop", "shop.orders"]
    writer.cut(Event(ORDERS, "DUMP_STARTED", dump="anew"))
    floor = writer.last_gsns["acme", "shop"]
    writer.cut(Chunk(ORDERS, [{"id": 1, "v": 1}, {"id": 2, "v": 2}], floor, dump="anew"))
    writer.cut(Event(ORDERS, "DUMPED", dump="anew", removes_rows_before_gsn=floor - 1))
    follow()
    assert stopped_tables(str(lake)) == []
    assert lake_rows(lake, ORDERS) == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]
    assert DeltaTable(f"{TableId('acme', 'shop', 'shop', 'items').folder(str(lake))}/current").version()
