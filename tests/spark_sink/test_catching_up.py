"""A table of which more lands than others are to wait for: it catches up in parts, with batches of the others between.

The sink runs as it does in production, but for its loop, of which the test makes each turn itself.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from menura.landing import LandedForeignKey
from pyspark.sql import DataFrame, SparkSession

from spark_sink.errors import TableNotAtCut, TableNotInLake
from spark_sink.ingest import catching_up, table_task
from spark_sink.ingest.batch_share import BatchShare
from spark_sink.ingest.catching_up import CatchingUp
from spark_sink.ingest.cut_log_source import Limits
from spark_sink.ingest.query import Sink
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.table_task import TaskSize
from spark_sink.lake.boundaries import read_boundaries
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.records import StoppedTable
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import current_state, row_count, stopped_tables
from spark_sink.reading_at import lake_at
from spark_sink.work import TableFile, TableId
from tests.spark_sink.landing import Event, Table, Values, Verified, Writer, insert, lake_rows, table_id, update
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
def settings(writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch) -> SinkSettings:
    monkeypatch.setattr(catching_up, "QUICK_SECONDS", 0.0)  # a part stays a share, however fast the machine is
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


class Batches:
    """Lets batches begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._may_begin, guarded = threading.Event(), Sink._guarded
        self._may_begin.set()

        def held(sink: Sink, frame: DataFrame, batch: int) -> None:
            assert self._may_begin.wait(600)
            guarded(sink, frame, batch)

        monkeypatch.setattr(Sink, "_guarded", held)

    @contextmanager
    def held(self) -> Iterator[None]:
        """None begins meanwhile; the caller has seen the last one done."""
        self._may_begin.clear()
        try:
            yield
        finally:
            self._may_begin.set()


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Batches:
    """Made before a sink is, which hands its method on."""
    return Batches(monkeypatch)


class Killed(Exception):
    """As where the process ends."""


@contextmanager
def killed_at(record: str, sink: Sink, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Before it writes this record."""

    def killed(_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(sink.records, record, killed)
        yield


def land(writer: Writer, first: int, cuts: int = CUTS) -> None:
    """Cuts with many rows of the one table, and one of the other."""
    for number in range(first, first + cuts):
        rows = [insert(id=number * CUT_ROWS + place) for place in range(CUT_ROWS)]
        writer.cut((HUGE, rows), (SMALL, [insert(id=number)]))


def applied(sink: Sink, writer: Writer) -> None:
    """And done for Spark too: a batch that the end of its query cuts off before that comes again in the next one."""
    wait_for("the batch", lambda: sink.status.now().entry >= writer.entry or None, seconds=300)
    wait_for("its commit", lambda: sink.checkpoint.read()[0] >= writer.entry or None, seconds=300)


def catch_up(sink: Sink, lake: Path) -> list[int]:
    """Turns until the table has joined the batches: its rows after each."""
    counts: list[int] = []
    while table_id(HUGE) in sink.tables.stopped:
        assert sink.has_more and len(counts) < 30
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
    land(writer, 0)
    with following(session, settings) as sink:
        applied(sink, writer)
        with killed_at("record_stops", sink, monkeypatch):
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
        assert (behind.code, behind.entry) == ("TABLE_BEHIND", 3) and "the store that had failed" in behind.message
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


def test_table_when_its_own_keys_join_it_then_it_catches_up_in_parts_and_no_other_is_taken_whole(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path
) -> None:
    tree = Table("tree", {"id": pa.int32(), "parent": pa.int32()})
    writer.cut(Event(tree, "FOREIGN_KEYS", foreign_keys=(replace(CASCADE, parent=("shop", "tree")),)))
    for number in range(CUTS):
        rows = [insert(id=number * CUT_ROWS + place, parent=None) for place in range(CUT_ROWS)]
        writer.cut((tree, rows), (HUGE, [insert(id=row[0][1]["id"]) for row in rows]))
    writer.cut((tree, [update({"id": 5, "parent": None}, {"id": 5, "parent": 4})]))
    writer.cut((tree, [update({"id": 4, "parent": None}, {"id": -4, "parent": None})]))
    with following(session, settings) as sink:
        applied(sink, writer)
        assert {stop.table.table for stop in stopped_tables(str(lake))} == {"tree", "huge"}
        counts = catch_up(sink, lake)
        assert counts[0] == 2 * CUT_ROWS
    assert stopped_tables(str(lake)) == []
    found = {row["id"]: row["parent"] for row in lake_rows(lake, tree)}
    others = set(range(CUTS * CUT_ROWS)) - {4, 5}
    assert found == {**dict.fromkeys(others), -4: None, 5: -4}


def test_tables_when_one_is_far_behind_then_another_catches_up_and_joins_without_it(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path
) -> None:
    other = Table("other", {"id": pa.int32()}, key=())
    land(writer, 0, 16)
    for number in range(3):
        writer.cut((other, [insert(id=number * CUT_ROWS + place) for place in range(CUT_ROWS)]))
    with following(session, settings) as sink:
        applied(sink, writer)
        turns = 0
        while table_id(other) in sink.tables.stopped:
            sink.retry_due()
            turns += 1
        assert turns <= 4 and table_id(HUGE) in sink.tables.stopped
        catch_up(sink, lake)
    assert len(lake_rows(lake, other)) == 3 * CUT_ROWS and len(lake_rows(lake, HUGE)) == 16 * CUT_ROWS


def test_table_when_the_last_thing_of_it_in_a_part_is_no_work_then_it_joins_all_the_same(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path
) -> None:
    other = Table("other", {"id": pa.int32()}, key=())
    rows = [insert(id=place) for place in range(CUT_ROWS)]
    for _ in range(3):
        writer.cut((HUGE, rows), (other, rows))
    writer.cut(Event(HUGE, "VERIFIED", dump="verification-1"))
    writer.cut((other, rows))
    writer.cut((SMALL, [insert(id=1)]))
    with following(session, settings) as sink:
        applied(sink, writer)
        turns = 0
        while sink.tables.stopped:
            sink.retry_due()
            turns += 1
            assert turns < 10
        version = open_table(sink.records.errors_folder).version()
        sink.retry_due()
        assert open_table(sink.records.errors_folder).version() == version
    assert (len(lake_rows(lake, HUGE)), len(lake_rows(lake, other))) == (3 * CUT_ROWS, 4 * CUT_ROWS)


def rows_at(lake: Path, cut: int) -> set[int | None]:
    """As two readers have the table at the cut; None: it can't be read there."""
    found: set[int | None] = set()
    for read in (
        lambda: row_count(str(lake), table_id(HUGE), cut),
        lambda: lake_at(str(lake), [table_id(HUGE)], cuts={("acme", "shop"): cut}).arrow(table_id(HUGE)).num_rows,
    ):
        try:
            found.add(read())
        except (TableNotAtCut, TableNotInLake):
            found.add(None)
    return found


def test_table_when_it_was_ahead_of_the_batches_then_no_reader_at_a_cut_lacks_rows(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path, batches: Batches
) -> None:
    """A retry of a stopped table goes to the log's end; what the table holds already is no work then."""
    settings = replace(settings, limits=Limits(cuts=2))
    land(writer, 0, 2)
    with following(session, settings) as sink:
        applied(sink, writer)
        with batches.held():
            land(writer, 2, 4)
            sink.retry_stopped([table_id(HUGE)])
            assert row_count(str(lake), table_id(HUGE)) == 6 * CUT_ROWS and sink.status.now().entry == 2
            for number in (6, 7):
                writer.cut((HUGE, [insert(id=number * CUT_ROWS)]), (SMALL, [insert(id=number)]))
        applied(sink, writer)
        assert stopped_tables(str(lake)) == []
        for cut in [each.cut for each in read_boundaries(open_table(sink.records.cuts_folder), "acme", "shop").found]:
            assert rows_at(lake, cut) <= {None, min(cut, 6) * CUT_ROWS + max(0, cut - 6)}, cut
        assert rows_at(lake, 8) == {6 * CUT_ROWS + 2}


def test_table_when_batches_are_behind_the_log_then_it_joins_them_where_they_are(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path, batches: Batches
) -> None:
    settings = replace(settings, limits=Limits(cuts=2), share=BatchShare(rows=CUT_ROWS - 1))  # less than any batch has
    land(writer, 0, 2)
    with following(session, settings) as sink:
        applied(sink, writer)
        with batches.held():
            land(writer, 2, 2)
            assert catch_up(sink, lake)[-1] == 2 * CUT_ROWS and sink.status.now().entry == 2
        applied(sink, writer)
        assert catch_up(sink, lake)[-1] == 4 * CUT_ROWS
        for cut in [each.cut for each in read_boundaries(open_table(sink.records.cuts_folder), "acme", "shop").found]:
            assert rows_at(lake, cut) <= {None, cut * CUT_ROWS}, cut
    assert sorted(row["id"] for row in lake_rows(lake, HUGE)) == list(range(4 * CUT_ROWS))


def test_turns_when_a_table_is_behind_again_and_again_then_others_have_theirs(writer: Writer, lake: Path) -> None:
    land(writer, 0)
    other = Table("other", {"id": pa.int32()}, key=())
    for number in range(CUTS):
        writer.cut((other, [insert(id=number * CUT_ROWS + place) for place in range(CUT_ROWS)]))
    parts = CatchingUp(LandingLog(str(writer.folder)), str(lake / "_menura/events"), BatchShare(rows=SHARE_ROWS))
    often = StoppedTable(table_id(HUGE), CUTS, CUTS, "TABLE_BEHIND", "", terminal=False, at_us=0)
    far = replace(often, table=table_id(other), entry=1)
    had = []
    for _ in range(6):
        stops = parts.of({often.table: often, far.table: far}, 0.0, CUTS)
        had.append(parts.next_turn({often.table: often, far.table: far}, 2, CUTS).tables)
        assert stops.keys() == {often.table, far.table}
        parts.of({far.table: far}, 0.0, CUTS)  # it has joined the batches, and is behind again
    assert sum(far.table in tables for tables in had) >= 3


def test_table_when_the_sink_was_killed_before_it_joined_then_no_reader_at_a_cut_lacks_rows(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(writer, 0, 2)
    with following(session, settings) as sink:
        applied(sink, writer)
        sink.retry_due()
        with killed_at("record_resumed", sink, monkeypatch):
            sink.retry_due()
    with following(session, settings) as sink:
        writer.cut((HUGE, [insert(id=-1)]), (SMALL, [insert(id=2)]))
        applied(sink, writer)
        assert rows_at(lake, 3) == {None}
        catch_up(sink, lake)
        assert rows_at(lake, 3) <= {None, 2 * CUT_ROWS + 1}
    assert len(lake_rows(lake, HUGE)) == 2 * CUT_ROWS + 1


def test_verification_when_its_table_is_behind_then_it_ends_once_the_table_has_its_chunks(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path
) -> None:
    keyed = Table("keyed", {"id": pa.int32()})
    rows: list[Values] = [{"id": number} for number in range(3 * CUT_ROWS)]
    for first in range(0, len(rows), CUT_ROWS):
        writer.cut((keyed, [insert(**row) for row in rows[first : first + CUT_ROWS]]))
    writer.cut(Event(keyed, "VERIFICATION_STARTED", dump="verification-1"))
    writer.cut(Verified(keyed, rows, writer.last_gsns["acme", "shop"]))
    writer.cut(Event(keyed, "VERIFIED", dump="verification-1"))
    with following(session, settings) as sink:
        applied(sink, writer)
        (stop,) = stopped_tables(str(lake))
        assert stop.code == "TABLE_BEHIND" and not sink.status.now().verdicts
        while sink.tables.stopped:
            sink.retry_due()
        wait_for("the verdict", lambda: sink.status.now().verdicts.get(table_id(keyed)), seconds=300)
        (verdict,) = sink.status.now().verdicts[table_id(keyed)]
        assert (verdict.verdict, verdict.lake_rows) == ("equal", len(rows))


def test_share_when_rows_or_their_bytes_are_more_then_it_does_not_hold_them() -> None:
    share = BatchShare(rows=8_000, plain_bytes=1 << 20)
    file = TableFile(1, 1, "", "", 8_000, 10, 1, 1)
    assert share.holds([file]) and not share.holds([file, replace(file, rows=1)])
    assert not share.holds([replace(file, plain_bytes=(1 << 20) + 1)])
