"""The merge of a large table beside batches: it is held on its way, and batches, readers and events go on.

The sink runs as it does in production, but for its loop, of which the test makes each turn itself.
"""

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from spark_sink.ingest import detached_merge, merging, waiting_merges
from spark_sink.ingest.detached_merge import Preparation
from spark_sink.ingest.query import Sink
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.table_writer import merge_waiting
from spark_sink.lake.file_merge import write_piece
from spark_sink.lake.merge_record import left_merges
from spark_sink.reading import stopped_tables
from tests.spark_sink.detached_merges import (
    LARGE,
    ROWS,
    Source,
    check_readers,
    folder,
    land,
    merged,
    prepared_files,
)
from tests.spark_sink.detached_sink import MOST_ROWS, WAITING, held_writing
from tests.spark_sink.divided_sink import killing
from tests.spark_sink.landing import (
    Batch,
    Chunk,
    Event,
    Started,
    Table,
    Writer,
    altered,
    insert,
    table_id,
    truncate,
    update,
)
from tests.spark_sink.test_catching_up import Batches, applied, batches, following
from tests.stack import wait_for

__all__ = ["batches"]
pytestmark = [pytest.mark.spark, pytest.mark.long]

OTHER = Table("other", LARGE.columns)


@pytest.fixture
def settings(writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch) -> SinkSettings:
    monkeypatch.setattr(merging, "VAIN_PAUSE_SECONDS", 0.0)
    checkpoint = str(lake / "_menura/checkpoint")
    return SinkSettings(str(writer.folder), str(lake), checkpoint, 0.1, waiting=WAITING, detached_bytes=0)


class Gate:
    """Holds a preparation before its last job."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        run_job = Preparation._run_job

        def held(preparation: Preparation, task: Any, steps: Any) -> Any:
            if steps[0].func is write_piece:
                self.reached.set()
                assert self.opened.wait(600)
            return run_job(preparation, task, steps)

        monkeypatch.setattr(Preparation, "_run_job", held)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


@pytest.fixture
def source(writer: Writer) -> Source:
    return Source(writer)


def held(sink: Sink, source: Source, gate: Gate) -> None:
    """A merge of five changed rows is on its way."""
    source.begin()
    applied(sink, source.writer)
    land(sink, source, (LARGE, source.change(1, 2, 3, 4, 5)))
    assert sink.has_more
    sink.merge_due()
    wait_for("the merge to be held", lambda: gate.reached.is_set() or None, 300)


def finish(sink: Sink, gate: Gate) -> None:
    """Let it go on, and commit what came of it."""
    (preparation,) = sink._merging._preparations
    gate.opened.set()
    until_done(preparation)
    sink.merge_due()


def test_merge_when_it_is_held_then_batches_of_all_tables_go_on_and_readers_have_each_cut(
    session: SparkSession, settings: SinkSettings, source: Source, lake: Path, gate: Gate
) -> None:
    with following(session, settings) as sink:
        held(sink, source, gate)
        at_the_plan = dict(source.rows)
        land(sink, source)
        land(sink, source, (LARGE, source.change(1, 7)))
        land(sink, source)
        assert merged(lake) == dict.fromkeys(range(ROWS), 0)
        check_readers(lake, source)
        assert not sink.has_more
        finish(sink, gate)
        assert merged(lake) == at_the_plan
        check_readers(lake, source)
        land(sink, source, (LARGE, source.change(2)))
        check_readers(lake, source)
        assert merged(lake) == at_the_plan and not sink.has_more
        land(sink, source, (LARGE, source.change(9, 10)))
        sink.merge_due()
        finish(sink, gate)
        assert merged(lake) == source.rows
        check_readers(lake, source)
    with following(session, settings) as sink:
        assert table_id(LARGE) not in sink.tables.merges.tables
        land(sink, source, (LARGE, source.change(2)))
        check_readers(lake, source)


def alter(source: Source) -> Batch:
    wider = replace(LARGE, columns={**LARGE.columns, "w": pa.int32()})
    return altered(wider, added={"w": None})


def empty(source: Source) -> Batch:
    source.rows.clear()
    return truncate(LARGE)


def drop(source: Source) -> Batch:
    source.rows.clear()
    return Event(LARGE, "DROPPED", removes_rows=True)


def bring_chunk(source: Source) -> Batch:
    source.rows[ROWS] = 5
    return Chunk(LARGE, [{"id": ROWS, "v": 5}], gsn=source.writer.last_gsns["acme", "shop"])


def event(kind: str) -> Callable[[Source], Batch]:
    return lambda _: Event(LARGE, kind, dump="dump-1")


CONFLICTS: dict[str, Callable[[Source], Batch]] = {
    "altered": alter,
    "truncated": empty,
    "dropped": drop,
    "dump begins": event("DUMP_STARTED"),
    "dump ends": event("DUMPED"),
    "chunk": bring_chunk,
    "repair begins": event("REPAIR_STARTED"),
    "synced again": lambda _: Started(LARGE),
    "too much for waiting": lambda source: (LARGE, source.change(*range(MOST_ROWS + 1))),
}


def until_done(preparation: Preparation) -> None:
    wait_for("the merge to be prepared", lambda: preparation.is_done or None, 300)


def settle(sink: Sink, lake: Path, source: Source) -> None:
    """Turns until the current state has all rows."""
    for _ in range(60):
        if merged(lake) == source.rows and not stopped_tables(str(lake)):
            return
        sink.retry_due()
        sink.merge_due()
        for preparation in sink._merging._preparations:
            until_done(preparation)
    raise AssertionError((merged(lake), source.rows, stopped_tables(str(lake))))


@pytest.mark.parametrize("what", CONFLICTS)
def test_merge_when_something_else_changes_the_table_meanwhile_then_it_is_given_up_and_nothing_is_lost(
    session: SparkSession, settings: SinkSettings, source: Source, lake: Path, gate: Gate, what: str
) -> None:
    with following(session, settings) as sink:
        held(sink, source, gate)
        land(sink, source, CONFLICTS[what](source))
        check_readers(lake, source)
        version = DeltaTable(folder(lake, "current")).version()
        finish(sink, gate)
        assert DeltaTable(folder(lake, "current")).version() == version
        assert prepared_files(lake) == set() and left_merges(str(lake)) == {}
        check_readers(lake, source)
        if source.rows:
            keys = sorted(source.rows)[:6]
            land(sink, source, (LARGE, source.change(*keys)))
            check_readers(lake, source)
            settle(sink, lake, source)
    check_readers(lake, source)


def test_merge_when_its_batch_was_sooner_then_it_is_not_prepared_in_vain_again_at_once(
    session: SparkSession,
    settings: SinkSettings,
    source: Source,
    lake: Path,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merging, "VAIN_PAUSE_SECONDS", 1e9)
    with following(session, settings) as sink:
        held(sink, source, gate)
        land(sink, source, (LARGE, source.change(*range(MOST_ROWS + 1))))
        finish(sink, gate)
        land(sink, source, (LARGE, source.change(1, 2, 3, 4, 5)))
        assert table_id(LARGE) in sink.tables.merges.tables and not sink.has_more
        check_readers(lake, source)
        land(sink, source, (LARGE, source.change(*range(MOST_ROWS + 1))))
        assert merged(lake) == source.rows, "its batches merge it"
        check_readers(lake, source)


def test_merge_when_its_table_stops_or_loses_its_rows_meanwhile_then_it_is_given_up_and_nothing_is_lost(
    session: SparkSession, settings: SinkSettings, source: Source, lake: Path, gate: Gate, batches: Batches
) -> None:
    with following(session, settings) as sink:
        held(sink, source, gate)
        with batches.held():  # none reads the file before it is gone
            source.cut((LARGE, source.change(1)))
            (landed,) = source.writer.folder.glob(f"**/large/**/*{source.writer.cuts['acme', 'shop']:020d}*.parquet")
            hidden = landed.rename(landed.with_suffix(".hidden"))
        applied(sink, source.writer)
        assert [stop.table for stop in stopped_tables(str(lake))] == [table_id(LARGE)]
        version = DeltaTable(folder(lake, "current")).version()
        finish(sink, gate)
        assert DeltaTable(folder(lake, "current")).version() == version
        assert prepared_files(lake) == set()
        hidden.rename(landed)
        sink.ask_retry([table_id(LARGE)])
        settle(sink, lake, source)
        check_readers(lake, source)


def test_merge_when_another_copy_of_the_table_stands_in_its_place_then_it_is_given_up(
    session: SparkSession, settings: SinkSettings, source: Source, lake: Path, gate: Gate
) -> None:
    with following(session, settings) as sink:
        held(sink, source, gate)
        version = DeltaTable(folder(lake, "current")).version()
        rows = DeltaTable(folder(lake, "current")).to_pyarrow_table()
        shutil.rmtree(folder(lake, "current"))
        write_deltalake(folder(lake, "current"), rows)
        for _ in range(version):
            write_deltalake(folder(lake, "current"), rows, mode="overwrite")
        finish(sink, gate)
        assert DeltaTable(folder(lake, "current")).version() == version
        assert prepared_files(lake) == set()


def test_merge_when_its_worker_is_killed_then_others_go_on_and_it_is_tried_again(
    session: SparkSession,
    settings: SinkSettings,
    source: Source,
    lake: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mark = tmp_path / "killed"
    task = partial(killing, detached_merge._step_task, str(mark))
    monkeypatch.setattr(detached_merge, "_step_task", task)
    with following(session, settings) as sink:
        source.begin()
        applied(sink, source.writer)
        land(sink, source, (LARGE, source.change(1, 2, 3, 4, 5)))
        turns(sink)
        assert mark.exists()
        waiting = sink.tables.merges.tables[table_id(LARGE)]
        assert waiting.rests_until_us > waiting.until_us and not sink.has_more
        land(sink, source, (LARGE, source.change(1)))
        assert not sink.has_more, "a batch of the table does not have it tried sooner"
        check_readers(lake, source)
        monkeypatch.setattr(waiting_merges, "FAILED_PAUSE_US", 0)
        sink.tables.merges.failed([table_id(LARGE)], 0)
        turns(sink)
        assert merged(lake) == source.rows
        check_readers(lake, source)


def test_merge_when_its_preparation_raises_what_nobody_expects_then_the_sink_goes_on_and_it_is_tried_again(
    session: SparkSession,
    settings: SinkSettings,
    source: Source,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a value")

    with following(session, settings) as sink:
        source.begin()
        applied(sink, source.writer)
        land(sink, source, (LARGE, source.change(1, 2, 3, 4, 5)))
        with monkeypatch.context() as patched:
            patched.setattr(detached_merge, "_pieces", fail)
            turns(sink)
        assert f"waiting changes not merged table={table_id(LARGE)} error=KeyError" in caplog.text
        assert "a value" not in caplog.text
        land(sink, source, (LARGE, source.change(1)))
        check_readers(lake, source)
        monkeypatch.setattr(waiting_merges, "FAILED_PAUSE_US", 0)
        sink.tables.merges.failed([table_id(LARGE)], 0)
        turns(sink)
        assert merged(lake) == source.rows


def test_merge_when_the_sink_stops_meanwhile_then_it_ends_at_once_and_the_next_start_does_it(
    session: SparkSession,
    settings: SinkSettings,
    source: Source,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    mark = tmp_path / "held"
    with monkeypatch.context() as patched:
        patched.setattr(detached_merge, "_step_task", partial(held_writing, detached_merge._step_task, str(mark)))
        with following(session, settings) as sink:
            source.begin()
            applied(sink, source.writer)
            land(sink, source, (LARGE, source.change(1, 2, 3, 4, 5)))
            sink.merge_due()
            wait_for("the merge to be held in its worker", lambda: mark.exists() or None, 300)
            (preparation,) = sink._merging._preparations
        until_done(preparation)
        sink.merge_due()
    assert "not merged" not in caplog.text and stopped_tables(str(lake)) == []
    with following(session, settings) as sink:
        turns(sink)
    assert merged(lake) == source.rows
    named = set(pa.table(DeltaTable(folder(lake, "current")).get_add_actions())["path"].to_pylist())
    assert prepared_files(lake) <= named
    check_readers(lake, source)


def test_merge_when_another_table_is_due_meanwhile_then_that_is_merged_too_and_not_with_its_batch(
    session: SparkSession,
    settings: SinkSettings,
    source: Source,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached, opened = threading.Event(), threading.Event()
    pieces = detached_merge._pieces

    def held_pieces(plan: Any, looked: Any) -> Any:
        if plan.table == table_id(LARGE):
            reached.set()
            assert opened.wait(600)
        return pieces(plan, looked)

    monkeypatch.setattr(detached_merge, "_pieces", held_pieces)
    with following(session, settings) as sink:
        try:
            source.begin()
            land(sink, source, (OTHER, [insert(id=key, v=0) for key in range(9)]))
            land(sink, source, (LARGE, source.change(1, 2, 3, 4, 5)))
            sink.merge_due()
            wait_for("the merge to be held", lambda: reached.is_set() or None, 300)
            land(sink, source, (OTHER, [update({"id": key, "v": 0}, {"id": key, "v": 1}) for key in range(5)]))
            assert sink.has_more
            sink.merge_due()
            other = sink._merging._preparations[-1]
            assert other.start.table == table_id(OTHER)
            until_done(other)
            sink.merge_due()
            current = f"{table_id(OTHER).folder(str(lake))}/current"
            assert sum(DeltaTable(current).to_pyarrow_table()["v"].to_pylist()) == 5
            assert merged(lake) == dict.fromkeys(range(ROWS), 0)
        finally:
            opened.set()
        turns(sink)
        assert merged(lake) == source.rows
        check_readers(lake, source)


def test_merge_when_nothing_waited_and_something_does_by_its_end_then_that_is_not_forgotten(
    session: SparkSession, settings: SinkSettings, source: Source, lake: Path
) -> None:
    with following(session, settings) as sink:
        source.begin()
        applied(sink, source.writer)
        land(sink, source, (LARGE, source.change(1, 2, 3, 4, 5)))
        merge_waiting(str(lake), table_id(LARGE))  # as before a kill that came before its record
        sink.merge_due()
        (preparation,) = sink._merging._preparations
        until_done(preparation)
        land(sink, source, (LARGE, source.change(6, 7, 8, 9, 10)))
        sink.merge_due()
        assert table_id(LARGE) in sink.tables.merges.tables
        turns(sink)
        assert merged(lake) == source.rows
        check_readers(lake, source)


def turns(sink: Sink) -> None:
    """Merges that are due, one after the other."""
    for _ in range(60):
        sink.merge_due()
        if not sink._merging._preparations and not sink.has_more:
            return
        for preparation in sink._merging._preparations:
            until_done(preparation)
    raise AssertionError("merges do not end")
