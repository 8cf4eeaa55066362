"""Tables that are huge, kill their worker or fail, and others beside them, which never wait for them.

Nothing here is slow by itself: a huge table's task stands still until the test lets it go on. Who waited for it would
wait for ever. How long small tables wait is counted in batches.
"""

import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import sleep

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import Row, SparkSession

from spark_sink.errors import SinkError, TableBehind
from spark_sink.ingest import batch_jobs, batch_share, isolation, table_task
from spark_sink.ingest.query import Sink
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.table_task import TaskSettings
from spark_sink.lake.tail import Waiting
from spark_sink.reading import current_state, row_count, stopped_tables
from spark_sink.work import ChunkFacts, TableFile, TableId
from tests.spark_sink.landing import Table, Writer, insert, table_id, update
from tests.stack import wait_for

pytestmark = pytest.mark.spark

SMALL = [Table(f"t{number}", {"id": pa.int32()}) for number in range(50)]
HUGE = Table("huge", {"id": pa.int32(), "v": pa.int32()})
KILLER, LOST = Table("killer", {"id": pa.int32()}), Table("lost", {"id": pa.int32()})
LARGE = Table("large", {"id": pa.int32(), "v": pa.int32(), "note": pa.string()})
HUGE_ROWS = 3_000
#: more than a small table ever has here, and less than the large one
LARGE_BYTES = 64 << 10
#: that begin once a cut has landed; the one that runs then may have begun before
MOST_BATCHES = 2


def slow(gates: Path, settings: TaskSettings) -> Callable[[Iterable[Row]], Iterator[str]]:
    """`table_task`, in whose process one table kills it, and another one waits at its gate if it is done beside."""
    task, apply_work = table_task.table_task(settings), table_task.apply_work

    def run(rows: Iterable[Row]) -> Iterator[str]:
        def work(log: object, lake: object, table: TableId, *others: object) -> object:
            if table.table == "killer":
                (gates / f"death-{os.getpid()}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if table.table == "huge" and others[-1] is None:  # no share of a batch
                stand(gates)
            return apply_work(log, lake, table, *others)

        table_task.apply_work = work  # this process's alone, and only while the task lasts
        try:
            yield from task(rows)
        finally:
            table_task.apply_work = apply_work

    return run


def slow_merge(gates: Path, settings: TaskSettings) -> Callable[[Iterable[tuple[TableId, int]]], Iterator[str]]:
    """`merge_task`, which waits at the gate."""
    task = table_task.merge_task(settings)

    def run(tables: Iterable[tuple[TableId, int]]) -> Iterator[str]:
        stand(gates)
        yield from task(tables)

    return run


def stand(gates: Path) -> None:
    """At the gate, while it is closed."""
    while (gates / "closed").exists():
        (gates / "standing").touch()
        sleep(0.05)


@pytest.fixture
def gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "gates"
    folder.mkdir()
    (folder / "closed").touch()
    monkeypatch.setattr(batch_jobs, "table_task", partial(slow, folder))
    monkeypatch.setattr(batch_jobs, "merge_task", partial(slow_merge, folder))
    return folder


@contextmanager
def following(session: SparkSession, settings: SinkSettings) -> Iterator[Sink]:
    """As `cli.run` does, while the test looks."""
    sink = Sink(session, settings, SinkStatus())
    query = sink.start()
    ended = threading.Event()
    failures: list[Exception] = []

    def turns() -> None:
        while not ended.wait(0.2):
            try:
                sink.turn()
            except (SinkError, OSError, DeltaError) as failure:
                failures.append(failure)
                return

    thread = threading.Thread(target=turns)
    try:
        with sink.beside():
            thread.start()
            yield sink
    finally:
        ended.set()
        sink.stop_batches(60)
        query.stop()
        thread.join()
        sink.views.stop(60, finish=False)
        sink.verifications.stop(60, finish=False)
    assert failures == []


class Neighbours:
    """Fifty tables that get a row with each cut."""

    def __init__(self, writer: Writer, lake: Path, sink: Sink) -> None:
        self.writer, self.lake, self.sink = writer, lake, sink
        self.rows = 0

    def move(self, *others: object, source: str = "bad") -> None:
        """A cut of them all, which they have after a batch or two; beside it a cut of `others`."""
        self.rows += 1
        cuts = [self.writer.make_cut([(table, [insert(id=self.rows)]) for table in SMALL])]
        if others:
            cuts.append(self.writer.make_cut(others, source=source))
            for file in (self.writer.folder / "data/acme/bad/shop/lost").glob("*"):
                file.unlink()
        began = self.sink.batches
        entry = self.writer.write_entry(cuts).entry
        wait_for(
            "the small tables' batch",
            lambda: (self.sink.status.now().entry >= entry or self.sink.batches > began + MOST_BATCHES) or None,
            seconds=120,
        )
        counts = {row_count(str(self.lake), table_id(table)) for table in SMALL}
        assert counts == {self.rows}, self.sink.batches - began


def of(table: Table, source: str = "bad") -> TableId:
    return TableId("acme", source, table.database, table.name)


@pytest.fixture
def settings(writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch) -> SinkSettings:
    share = batch_share.BatchShare(rows=HUGE_ROWS - 1, rewritten_bytes=LARGE_BYTES)
    monkeypatch.setattr(batch_jobs, "BatchShare", lambda: share)
    waiting = Waiting(seconds=0.001, small_bytes=LARGE_BYTES)
    return SinkSettings(str(writer.folder), str(lake), str(lake / "_menura/checkpoint"), 0.2, waiting=waiting)


def test_small_tables_when_others_are_huge_kill_their_workers_and_fail_then_they_wait_for_none_of_them(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path, gates: Path
) -> None:
    first = [insert(id=number, v=0) for number in range(HUGE_ROWS)]
    with following(session, settings) as sink:
        small = Neighbours(writer, lake, sink)
        small.move((HUGE, first), source="shop2")
        wait_for("the huge table's task", lambda: (gates / "standing").exists() or None)
        for number in range(3):
            small.move((KILLER, [insert(id=number)]), (LOST, [insert(id=number)]))
            sink.stops.ask([of(KILLER), of(LOST)])
        assert {stop.table.table: stop.code for stop in stopped_tables(str(lake))}["huge"] == "TABLE_BEHIND"
        wait_for(
            "the killer to be given up",
            lambda: (
                ("killer", True)
                in {
                    (stop.table.table, stop.terminal)
                    for stop in stopped_tables(str(lake))
                    if stop.code == "WORKER_KILLED"
                }
                or None
            ),
        )
        (gates / "closed").unlink()
        wait_for("the huge table to join again", lambda: of(HUGE, "shop2") not in sink.stops.tables or None)
        small.move((HUGE, [insert(id=HUGE_ROWS, v=1)]), source="shop2")
    assert row_count(str(lake), of(HUGE, "shop2")) == HUGE_ROWS + 1
    stops = {stop.table.table: stop for stop in stopped_tables(str(lake))}
    assert {name: stop.terminal for name, stop in stops.items()} == {"killer": True, "lost": True}
    assert len(list(gates.glob("death-*"))) > isolation.ATTEMPTS


def test_small_tables_when_a_large_one_is_merged_then_they_and_its_own_changes_do_not_wait(
    session: SparkSession, settings: SinkSettings, writer: Writer, lake: Path, gates: Path
) -> None:
    held = dict.fromkeys(range(HUGE_ROWS - 2), 0)
    with following(session, settings) as sink:
        small = Neighbours(writer, lake, sink)
        small.move((LARGE, [insert(id=number, v=0, note=note(number)) for number in held]))
        for number in range(4):
            row = {"id": number, "v": 0, "note": note(number)}
            small.move((LARGE, [update(row, row | {"v": 1})]))
            held[number] = 1
            rows = current_state(str(lake), of(LARGE)).select(["id", "v"]).to_pylist()
            assert {row["id"]: row["v"] for row in rows} == held  # the merge's and what waits
            if number == 0:
                wait_for("the merge", lambda: (gates / "standing").exists() or None)
        assert stopped_tables(str(lake)) == []
        (gates / "closed").unlink()
        wait_for("all to be merged", lambda: merged(lake) == held or None)
        wait_for("nothing to wait", lambda: not sink._merges.tables or None)
        assert row_count(str(lake), of(LARGE), cut=writer.cuts["acme", "bad"]) == len(held)


def note(number: int) -> str:
    """That does not become small in a file."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def merged(lake: Path) -> dict[int, int]:
    """As a reader has it who knows of no changelog."""
    rows = DeltaTable(f"{of(LARGE).folder(str(lake))}/current").to_pyarrow_table(columns=["id", "v"]).to_pylist()
    return {row["id"]: row["v"] for row in rows}


def test_share_of_a_batch_when_rows_are_of_a_dump_then_they_count_by_the_work_that_they_are() -> None:
    share = batch_share.BatchShare(rows=8_000)
    file = TableFile(1, 1, "", "", 1_001, 10, 1, 1, chunk=ChunkFacts(1, 1, 0, "", is_whole=False))
    with pytest.raises(TableBehind):
        share.check(of(HUGE), [file])
    share.check(of(HUGE), [replace(file, rows=1_000)])
    share.check(of(HUGE), [replace(file, chunk=None, rows=8_000)])
    with pytest.raises(TableBehind):
        share.check(of(HUGE), [replace(file, chunk=None, plain_bytes=(32 << 20) + 1)])
