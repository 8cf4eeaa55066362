"""A table of which more lands than others are to wait for: it catches up in parts, with batches of the others between.

The sink runs as it does in production, but for its loop, of which the test makes each turn itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from menura.landing import LandedForeignKey
from pyspark.sql import SparkSession

from spark_sink.errors import TableNotInLake
from spark_sink.ingest import table_task
from spark_sink.ingest.batch_share import BatchShare
from spark_sink.ingest.query import Sink
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.table_task import TaskSize
from spark_sink.reading import current_state, row_count, stopped_tables
from spark_sink.work import ChunkFacts, TableFile, TableId
from tests.spark_sink.landing import Event, Table, Writer, insert, lake_rows, table_id, update
from tests.stack import wait_for

pytestmark = pytest.mark.spark

#: without a key: what were done twice would be there twice
HUGE = Table("huge", {"id": pa.int32()}, key=())
SMALL = Table("small", {"id": pa.int32()})
PARENT, CHILD = Table("parent", {"id": pa.int32()}), Table("child", {"id": pa.int32(), "parent": pa.int32()})
CASCADE = LandedForeignKey("fk", ("parent",), ("shop", "parent"), ("id",), "cascade", "cascade", (None,))
SHARE_ROWS = 100
CUT_ROWS = 60
CUTS = 7


@pytest.fixture
def settings(writer: Writer, lake: Path) -> SinkSettings:
    checkpoint = str(lake / "_menura/checkpoint")
    return SinkSettings(str(writer.folder), str(lake), checkpoint, 0.1, share=BatchShare(rows=SHARE_ROWS))


@contextmanager
def following(session: SparkSession, settings: SinkSettings) -> Iterator[Sink]:
    sink = Sink(session, settings, SinkStatus())
    query = sink.start()
    try:
        yield sink
    finally:
        sink.stop_batches(60)
        query.stop()
        sink.views.stop(60, finish=False)
        sink.verifications.stop(60, finish=False)


def land(writer: Writer, first: int, cuts: int = CUTS) -> None:
    """Cuts with many rows of the one table, and one of the other."""
    for number in range(first, first + cuts):
        rows = [insert(id=number * CUT_ROWS + place) for place in range(CUT_ROWS)]
        writer.cut((HUGE, rows), (SMALL, [insert(id=number)]))


def applied(sink: Sink, writer: Writer) -> None:
    wait_for("the batch", lambda: sink.status.now().entry >= writer.entry or None, seconds=300)


def catch_up(sink: Sink, lake: Path) -> list[int]:
    """Turns until the table has joined the batches: its rows after each."""
    counts = []
    while table_id(HUGE) in sink._stopped:
        assert sink.has_more
        sink.retry_due()
        counts.append(row_count(str(lake), table_id(HUGE)))
    return counts


def test_table_when_more_of_it_lands_than_a_share_then_others_go_on_between_its_parts(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path
) -> None:
    land(writer, 0)
    with following(session, settings) as sink:
        applied(sink, writer)
        assert row_count(str(lake), table_id(SMALL)) == CUTS
        (stop,) = stopped_tables(str(lake))
        assert (stop.table, stop.code, stop.terminal) == (table_id(HUGE), "TABLE_BEHIND", False)
        boundary = writer.cuts["acme", "shop"]
        sink.retry_due()
        assert row_count(str(lake), table_id(HUGE)) == 2 * CUT_ROWS, "the entry with which it has its share is the last"
        land(writer, CUTS, 1)
        applied(sink, writer)
        assert row_count(str(lake), table_id(SMALL)) == CUTS + 1
        assert row_count(str(lake), table_id(HUGE)) == 2 * CUT_ROWS
        (later,) = stopped_tables(str(lake))
        assert (later.entry, later.cut) == (2, 3) and later.at_us > stop.at_us
        counts = catch_up(sink, lake)
        assert counts == [4 * CUT_ROWS, 6 * CUT_ROWS, 8 * CUT_ROWS, 8 * CUT_ROWS]
        with pytest.raises(TableNotInLake):
            current_state(str(lake), table_id(HUGE), boundary)
        writer.cut((HUGE, [insert(id=-1)]))
        applied(sink, writer)
        assert stopped_tables(str(lake)) == [] and not sink.has_more
        cut = writer.cuts["acme", "shop"]
        assert current_state(str(lake), table_id(HUGE), cut).num_rows == 8 * CUT_ROWS + 1
    assert sorted(row["id"] for row in lake_rows(lake, HUGE)) == [-1, *range(8 * CUT_ROWS)]


def test_parts_when_the_sink_starts_again_between_two_then_no_row_is_there_twice(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path
) -> None:
    land(writer, 0)
    for _ in range(4):
        with following(session, settings) as sink:
            applied(sink, writer)
            sink.retry_due()
            land(writer, len(lake_rows(lake, SMALL)), 1)
    with following(session, settings) as sink:
        applied(sink, writer)
        catch_up(sink, lake)
    rows = len(lake_rows(lake, SMALL))
    assert sorted(row["id"] for row in lake_rows(lake, HUGE)) == list(range(rows * CUT_ROWS))


def test_part_when_it_was_written_and_not_recorded_then_it_is_skipped(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    def killed(_: object) -> None:
        raise Killed

    land(writer, 0)
    with following(session, settings) as sink:
        applied(sink, writer)
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(sink.records, "record_stops", killed)
            sink.retry_due()
        assert row_count(str(lake), table_id(HUGE)) == 2 * CUT_ROWS
    with following(session, settings) as sink:
        assert catch_up(sink, lake)[0] == 2 * CUT_ROWS
    assert sorted(row["id"] for row in lake_rows(lake, HUGE)) == list(range(CUTS * CUT_ROWS))


def test_cut_when_it_is_more_than_a_task_holds_then_it_is_a_part_of_its_own(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path
) -> None:
    writer.cut((HUGE, [insert(id=number) for number in range(300)]), (SMALL, [insert(id=1)]))
    writer.cut((HUGE, [insert(id=300)]))
    with following(session, replace(settings, size=TaskSize(rows=200))) as sink:
        applied(sink, writer)
        assert catch_up(sink, lake) == [300, 301]
    assert sorted(row["id"] for row in lake_rows(lake, HUGE)) == list(range(301))


def test_table_when_its_store_had_failed_then_it_goes_on_in_parts(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, share=BatchShare())
    land(writer, 0, 1)
    with following(session, settings) as sink:
        applied(sink, writer)
    with monkeypatch.context() as patched:
        patched.setattr("spark_sink.ingest.batch_jobs.table_task", failing)
        land(writer, 1)
        with following(session, settings) as sink:
            applied(sink, writer)
            (stop,) = stopped_tables(str(lake))
            assert stop.code == "LAKE_STORAGE_FAILED"
            sink.ask_retry([stop.table])
            sink.retry_due()
            (again,) = stopped_tables(str(lake))
            assert again.code == "LAKE_STORAGE_FAILED" and again.at_us > stop.at_us and not sink.has_more
    with following(session, replace(settings, share=BatchShare(rows=SHARE_ROWS))) as sink:
        sink.retry_due()
        (behind,) = stopped_tables(str(lake))
        assert (behind.code, behind.entry) == ("TABLE_BEHIND", 3)
        catch_up(sink, lake)
    assert sorted(row["id"] for row in lake_rows(lake, HUGE)) == list(range((CUTS + 1) * CUT_ROWS))


def failing(settings: table_task.TaskSettings) -> Callable[..., Iterator[str]]:
    """`table_task`, in whose process one table's store fails."""
    task, apply_work = table_task.table_task(settings), table_task.apply_work

    def run(rows: object) -> Iterator[str]:
        def work(log: object, lake: object, table: TableId, *others: object) -> object:
            if table.table == HUGE.name:
                raise OSError("no such disk")
            return apply_work(log, lake, table, *others)

        table_task.apply_work = work  # this process's alone, and only while the task lasts
        try:
            yield from task(rows)
        finally:
            table_task.apply_work = apply_work

    return run


def test_tables_when_foreign_keys_join_them_then_their_batch_waits_for_both(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path
) -> None:
    writer.cut((PARENT, [insert(id=number) for number in range(2)]), (CHILD, [insert(id=1, parent=0)]))
    writer.cut(Event(CHILD, "FOREIGN_KEYS", foreign_keys=(CASCADE,)))
    with following(session, settings) as sink:
        applied(sink, writer)
        moves = [update({"id": number}, {"id": number + 1}) for number in range(1, 2 * SHARE_ROWS)]
        writer.cut((PARENT, [*moves, update({"id": 0}, {"id": -1})]))
        applied(sink, writer)
        assert stopped_tables(str(lake)) == []
    assert lake_rows(lake, CHILD) == [{"id": 1, "parent": -1}]


def test_share_when_rows_are_of_a_dump_then_they_count_by_the_work_that_they_are() -> None:
    share = BatchShare(rows=8_000, plain_bytes=1 << 20)
    file = TableFile(1, 1, "", "", 1_001, 10, 1, 1, chunk=ChunkFacts(1, 1, 0, "", is_whole=False))
    assert not share.holds([file]) and share.holds([replace(file, rows=1_000)])
    plain = replace(file, chunk=None, rows=8_000)
    assert share.holds([plain]) and not share.holds([plain, replace(plain, rows=1)])
    assert not share.holds([replace(plain, plain_bytes=(1 << 20) + 1)])
