"""Changes that wait in a large table's changelog: who reads the table sees them, and what can't wait merges them."""

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_sink.errors import TableNotInLake
from spark_sink.ingest import table_writer
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.table_task import TaskSize
from spark_sink.ingest.table_writer import merge_waiting
from spark_sink.ingest.waiting_merges import FAILED_PAUSE_US, WaitingMerges
from spark_sink.lake import delta_table
from spark_sink.lake.delta_table import open_table, scan
from spark_sink.lake.retention import clean
from spark_sink.lake.tail import BYTES_PER_SECOND, SMALL_BYTES, Waiting
from spark_sink.reading import changelog, create_view, current_state, current_state_frame, open_rows, row_count
from spark_sink.running import run
from spark_sink.work import CutSeen, Outcome, Result
from tests.spark_sink.landing import (
    Batch,
    Change,
    Chunk,
    Event,
    Table,
    Writer,
    apply_entries,
    delete,
    insert,
    lake_rows,
    table_id,
    truncate,
    update,
)
from tests.stack import wait_for

ITEMS = Table("items", {"id": pa.int32(), "v": pa.int32()})
KEYLESS = Table("items", {"id": pa.int32(), "v": pa.int32()}, key=())
WAITS = Waiting(3600, -1, part_of_table=1e9)


def folder(lake: Path, kind: str) -> str:
    return f"{table_id(ITEMS).folder(str(lake))}/{kind}"


def merged_rows(lake: Path) -> list[tuple[int, int]]:
    """As a reader has them who knows of no changelog."""
    rows = DeltaTable(folder(lake, "current")).to_pyarrow_table().to_pylist()
    return sorted((row["id"], row["v"]) for row in rows)


def rows(lake: Path, table: Table = ITEMS) -> list[tuple[int, int]]:
    return sorted((int(str(row["id"])), int(str(row["v"]))) for row in lake_rows(lake, table))


def changed(key: int, before: int, after: int) -> list[Change]:
    return update({"id": key, "v": before}, {"id": key, "v": after})


def begin(writer: Writer, lake: Path, table: Table = ITEMS) -> None:
    """Rows 0 to 5; then changes that wait."""
    writer.cut((table, [insert(id=key, v=0) for key in range(6)]))
    writer.cut((table, [changed(1, 0, 1), delete(id=2, v=0), insert(id=7, v=0), changed(7, 0, 7)]))
    for number in (1, 2):
        (outcome,) = apply_entries(writer.folder, lake, first=number, last=number, waiting=WAITS)
    assert outcome.merged_gsn and outcome.merge_at_us and (outcome.changelog_version, outcome.message) != (None, "")


BEGUN = [(0, 0), (1, 1), (3, 0), (4, 0), (5, 0), (7, 7)]


@pytest.mark.parametrize("table", [ITEMS, KEYLESS], ids=["keyed", "keyless"])
def test_changes_when_they_wait_then_readers_see_them_and_the_current_state_has_them_once_it_is_merged(
    writer: Writer, lake: Path, table: Table
) -> None:
    begin(writer, lake, table)
    assert merged_rows(lake) == [(key, 0) for key in range(6)]
    assert rows(lake, table) == BEGUN and row_count(str(lake), table_id(table)) == len(BEGUN)
    opened = open_rows(str(lake), table_id(table))
    merge_waiting(str(lake), table_id(table))
    assert merged_rows(lake) == BEGUN == rows(lake, table)
    assert sorted(key for batch in opened.tables(["id"]) for key in batch["id"].to_pylist()) == [k for k, _ in BEGUN]
    assert not merge_waiting(str(lake), table_id(table)).changed
    (outcome,) = apply_entries(writer.folder, lake, waiting=WAITS)
    assert outcome.result is Result.SKIPPED and not outcome.merged_gsn


NEXT: dict[str, tuple[Batch, list[tuple[int, int]]]] = {
    "a truncate": (truncate(ITEMS), []),
    "an event": (Event(ITEMS, "ROWS_UNLOGGED"), BEGUN),
    "a chunk": (Chunk(ITEMS, [{"id": 9, "v": 9}, {"id": 2, "v": 2}, {"id": 0, "v": 0}], gsn=6), [*BEGUN, (9, 9)]),
    "many rows": ((ITEMS, [insert(id=9, v=9)]), [*BEGUN, (9, 9)]),
    "many bytes": ((ITEMS, [insert(id=9, v=9)]), [*BEGUN, (9, 9)]),
    "time": ((ITEMS, [insert(id=9, v=9)]), [*BEGUN, (9, 9)]),
    "a clock that went back": ((ITEMS, [insert(id=9, v=9)]), [*BEGUN, (9, 9)]),
    "nothing may wait": ((ITEMS, [insert(id=9, v=9)]), [*BEGUN, (9, 9)]),
}


@pytest.mark.parametrize("what", NEXT)
def test_changes_that_wait_when_something_can_not_wait_then_they_are_merged_before_it(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    begin(writer, lake)
    batch, expected = NEXT[what]
    writer.cut(batch)
    hours = {"time": 2, "a clock that went back": -2}.get(what, 0)
    now = table_writer.now_us()
    monkeypatch.setattr(table_writer, "now_us", lambda: now + hours * 3_600_000_000)
    waiting = {
        "many rows": replace(WAITS, most_rows=6),
        "many bytes": replace(WAITS, part_of_table=0),
        "nothing may wait": replace(WAITS, seconds=0),
    }.get(what, WAITS)
    versions = DeltaTable(folder(lake, "current")).version()
    (outcome,) = apply_entries(writer.folder, lake, first=3, waiting=waiting)
    assert (outcome.result, outcome.merged_gsn, outcome.merge_at_us) == (Result.APPLIED, 0, 0)
    assert merged_rows(lake) == expected == rows(lake)
    # Of a truncate the tail is of no matter any more; a last batch that waited no longer is merged with the tail's.
    needed = {"a truncate": 1}.get(what, 2)
    assert DeltaTable(folder(lake, "current")).version() >= versions + needed


@pytest.mark.parametrize("lost", ["current", "changelog"])
def test_a_folder_when_it_is_lost_beside_changes_that_wait_then_the_landing_gives_all_rows_again(
    writer: Writer, lake: Path, lost: str
) -> None:
    begin(writer, lake)
    shutil.rmtree(folder(lake, lost))
    writer.cut((ITEMS, [changed(3, 0, 3)]))
    expected = [(key, 3 if key == 3 else value) for key, value in BEGUN]
    for last in (1, 2, 3):
        apply_entries(writer.folder, lake, first=1, last=last, waiting=WAITS)
    assert rows(lake) == expected
    assert sorted(changelog(str(lake), table_id(ITEMS))["_gsn"].to_pylist()) == [*range(1, 7), *range(8, 14), 15, 16]


def test_changelog_when_it_is_compacted_and_cleaned_then_what_waits_is_still_read_and_merged(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "COMPACT_EVERY_VERSIONS", 2)
    begin(writer, lake)
    for number in range(8):
        writer.cut((ITEMS, [changed(0, number, number + 1)]))
        (outcome,) = apply_entries(writer.folder, lake, first=writer.entry, waiting=WAITS)
        assert outcome.merged_gsn
    for kind in ("changelog", "current"):
        clean(folder(lake, kind), 0)
    expected = [(0, 8), *BEGUN[1:]]
    assert rows(lake) == expected and merged_rows(lake) == [(key, 0) for key in range(6)]
    merge_waiting(str(lake), table_id(ITEMS))
    assert merged_rows(lake) == expected == rows(lake)


def test_waiting_when_a_table_is_larger_then_it_is_longer_and_a_small_one_does_not_wait(
    writer: Writer, lake: Path
) -> None:
    assert Waiting().seconds_of(SMALL_BYTES + 1) == Waiting().seconds == 60
    assert Waiting().seconds_of(3600 * BYTES_PER_SECOND) == 3600
    writer.cut((ITEMS, [insert(id=1, v=0)]))
    writer.cut((ITEMS, [changed(1, 0, 1)]))
    for number in (1, 2):
        (outcome,) = apply_entries(writer.folder, lake, first=number, last=number, waiting=Waiting())
        assert outcome.merged_gsn == 0
    assert merged_rows(lake) == [(1, 1)]


def test_merges_when_tables_wait_then_those_that_are_due_come_by_their_time_and_failed_ones_later() -> None:
    boundary = CutSeen("acme", "shop", 1, 5, 5, 0, 0, 0)
    tables = [table_id(Table(f"t{number}", {})) for number in range(4)]
    merges = WaitingMerges()
    merges.begin({tables[0]: boundary})
    outcomes = [
        Outcome(table, Result.APPLIED, 5, 5, changelog_version=3, merge_at_us=100 + number)
        for number, table in enumerate(tables)
    ]
    merges.note([boundary], outcomes[1:], 99)
    assert list(merges.due(99, (), 9)) == [tables[0]]
    assert list(merges.due(98, (), 9)) == tables, "the clock went back"
    assert list(merges.due(102, [tables[1]], 9)) == [tables[0], tables[2]]
    merges.done([tables[0]])
    merges.failed([tables[2]], 102)
    assert list(merges.due(102, (), 9)) == [tables[1]]
    assert list(merges.due(102 + FAILED_PAUSE_US, (), 9)) == [tables[1], tables[3], tables[2]]
    assert list(merges.due(102 + FAILED_PAUSE_US, (), 2)) == [tables[1], tables[3]]
    merges.note([boundary], [replace(outcome, merge_at_us=0) for outcome in outcomes], 102)
    assert not merges.tables


def test_merges_when_a_batch_comes_behind_what_a_retry_has_written_then_the_merge_is_recorded_where_the_table_is(
    writer: Writer, lake: Path
) -> None:
    writer.cut((ITEMS, [insert(id=key, v=0) for key in range(6)]))
    for number in range(4):
        writer.cut((ITEMS, [changed(1, number, number + 1)]))
    cuts = [CutSeen("acme", "shop", 1, number, number, 0, 0, 0) for number in range(6)]
    merges, recorded = WaitingMerges(), {}
    for first, last in ((1, 1), (2, 5), (2, 2), (3, 3)):  # a retry brings the table to the end of the log
        outcomes = apply_entries(writer.folder, lake, first=first, last=last, waiting=WAITS, recorded=dict(recorded))
        merges.note(cuts[first : last + 1], outcomes, table_writer.now_us())
        assert outcomes[0].merge_at_us or first == 1
    assert outcomes[0].changelog_version is None
    assert merges.tables[table_id(ITEMS)].boundary == cuts[5]


@pytest.mark.long
@pytest.mark.spark
def test_a_sink_when_changes_wait_then_every_cut_is_readable_also_over_sparks_merge_and_a_new_checkpoint(
    session: SparkSession, writer: Writer, lake: Path
) -> None:
    model = dict.fromkeys(range(40), 0)
    states: dict[int, list[tuple[int, int]]] = {}

    def cut(*changes: list[Change]) -> None:
        states[writer.cut((ITEMS, changes))] = sorted(model.items())

    def put(*keys: int) -> Iterator[list[Change]]:
        for key in keys:
            yield changed(key, model[key], model[key] + 1)
            model[key] += 1

    def is_read() -> bool:
        try:
            return open_rows(str(lake), table_id(ITEMS), len(states)).progress.cut == len(states)
        except TableNotInLake:
            return False

    cut(*(insert(id=key, v=0) for key in range(40)))
    with running(session, writer, lake, "first", WAITS) as sink:
        wait_for("the rows", lambda: sink.done() or is_read(), 300)
        for keys in ((1, 2), (2, 3), range(40), (4,), (5, 6)):  # the third is Spark's
            cut(*put(*keys))
            wait_for(f"cut {len(states)}", lambda: sink.done() or is_read(), 300)
    assert merged_rows(lake) != states[len(states)] == rows(lake)
    for number, expected in states.items():
        found = current_state(str(lake), table_id(ITEMS), number).to_pylist()
        assert sorted((row["id"], row["v"]) for row in found) == expected, number
    create_view(session, str(lake), table_id(ITEMS), "items")
    assert sorted((row.id, row.v) for row in session.sql("SELECT id, v FROM items").collect()) == states[len(states)]
    assert current_state_frame(session, str(lake), table_id(ITEMS)).count() == len(model)
    with running(session, writer, lake, "second", WAITS) as sink:
        wait_for("the merge of what waited", lambda: sink.done() or merged_rows(lake) == states[len(states)], 300)
        wait_for("its record", lambda: sink.done() or not waits_in_cuts(lake), 300)
        cut(*put(7))
        wait_for("a later cut", lambda: sink.done() or is_read(), 300)
    assert rows(lake) == states[len(states)]
    assert changelog(str(lake), table_id(ITEMS)).num_rows == 40 + 2 * (2 + 2 + 40 + 1 + 2 + 1)


def waits_in_cuts(lake: Path) -> bool:
    """Whether the table's last boundary is one at which changes waited."""
    cuts = open_table(f"{lake}/_menura/cuts")
    assert cuts is not None
    (last,) = scan(cuts, "SELECT merged_gsn FROM t ORDER BY cut DESC, number DESC LIMIT 1").read_all().to_pylist()
    return last["merged_gsn"] is not None


@contextmanager
def running(
    session: SparkSession, writer: Writer, lake: Path, checkpoint: str, waiting: Waiting
) -> Iterator[Future[None]]:
    """The sink in a thread of its own, until the end of the block."""
    settings = SinkSettings(
        str(writer.folder),
        str(lake),
        str(lake.parent / checkpoint),
        trigger_seconds=0.1,
        size=TaskSize(rows=50),
        waiting=waiting,
    )
    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(run, session, settings, stop)
        try:
            yield following
        finally:
            stop.set()
        following.result()
