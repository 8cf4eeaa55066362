"""A table's tail merged file by file and committed at the end: the same rows as by a MERGE, or nothing."""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from menura.stores.options import StorageOptions, current, parse, use

from spark_sink.ingest import detached_merge, table_writer
from spark_sink.ingest.detached_merge import Failed, MergeStart, Turns, prepare
from spark_sink.ingest.left_merges import LeftMerges
from spark_sink.ingest.table_writer import merge_waiting
from spark_sink.ingest.waiting_merges import FAILED_PAUSE_US, WaitingMerges
from spark_sink.lake import file_merge, merge_commit
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.file_merge import PreparedMerge, Unplanned
from spark_sink.lake.merge_commit import commit_merge, current_version
from spark_sink.lake.recorded import Recorded
from spark_sink.lake.table_options import OptionRules
from spark_sink.lake.tail import Waiting
from spark_sink.landed.storage import open_storage
from spark_sink.reading import current_state
from spark_sink.work import CutSeen, Outcome, Result
from tests.object_store import S3Proxy
from tests.spark_sink.landing import (
    Change,
    Table,
    Writer,
    apply_entries,
    delete,
    insert,
    table_id,
    update,
)
from tests.stack import wait_for

WAITS = Waiting(3600, -1, part_of_table=1e9, detached_bytes=0)
KEYED = Table("items", {"id": pa.int64(), "v": pa.int32()})
PAIRS = Table("items", {"id": pa.int64(), "at": pa.timestamp("us"), "v": pa.int32()}, key=("id", "at"))
TEXTS = Table("items", {"id": pa.string(), "v": pa.int32()})
KEYLESS = Table("items", {"id": pa.int64(), "v": pa.int32()}, key=())
TABLES = {"number": KEYED, "pair": PAIRS, "text": TEXTS, "keyless": KEYLESS}
OPTIONS = {"plain": "none", "kept": "soft_delete,commit_time"}


def run_here(task: Callable[[Iterable[Any]], Iterator[object]], steps: Sequence[Any]) -> list[object]:
    return list(task(steps))


def folder(lake: Path, kind: str = "current") -> Path:
    return Path(table_id(KEYED).folder(str(lake))) / kind


def start(lake: Path) -> MergeStart:
    version = current_version(str(lake), table_id(KEYED))
    assert version is not None
    recorded = Recorded(DeltaTable(folder(lake, "changelog")).version(), version)
    return MergeStart(str(lake), table_id(KEYED), recorded, version, WAITS, StorageOptions())


def prepared(lake: Path) -> PreparedMerge:
    came = prepare(run_here, start(lake), 1, lambda: True, Turns().turn)
    assert isinstance(came, PreparedMerge), came
    return came


def row(table: Table, key: int, value: int) -> dict[str, object]:
    if table is TEXTS:
        return {"id": f"k{key}", "v": value}
    if table is PAIRS:
        return {"id": key % 5, "at": datetime(2026, 1, 1, microsecond=key), "v": value}  # noqa: DTZ001  (a database's own)
    return {"id": key, "v": value}


class Source:
    """Random changes of a table."""

    def __init__(self, writer: Writer, lake: Path, table: Table, seed: int, options: str = "none") -> None:
        self.writer, self.lake, self.table = writer, lake, table
        self.chosen = random.Random(seed)
        self.rows: dict[int, int] = {}
        self.options = OptionRules.parse([options])
        self.last: Outcome

    def apply(self, changes: Sequence[list[Change]], waiting: Waiting = WAITS) -> None:
        self.writer.cut((self.table, changes))
        number = self.writer.entry
        folders, options = (self.writer.folder, self.lake), self.options
        (self.last,) = apply_entries(*folders, first=number, last=number, waiting=waiting, table_options=options)
        assert self.last.message == ""

    def add(self, count: int) -> None:
        """Rows that have files of their own."""
        first = max(self.rows, default=0) + 1
        new = range(first, first + count)
        self.rows.update(dict.fromkeys(new, 0))
        self.apply([insert(**row(self.table, key, 0)) for key in new], replace(WAITS, seconds=0))

    def change(self, count: int) -> None:
        changes: list[list[Change]] = []
        for _ in range(count):
            key, value = self.chosen.randrange(60), self.chosen.randrange(1, 1000)
            held = self.rows.pop(key, None)
            if held is None:
                changes.append(insert(**row(self.table, key, value)))
            elif self.chosen.random() < 0.3:
                changes.append(delete(**row(self.table, key, held)))
                continue
            else:
                changes.append(update(row(self.table, key, held), row(self.table, key, value)))
            self.rows[key] = value
        self.apply(changes)


def read(lake: Path, *, with_deleted: bool = False) -> Counter[str]:
    return Counter(map(repr, current_state(str(lake), table_id(KEYED), with_deleted=with_deleted).to_pylist()))


def merged(lake: Path) -> Counter[str]:
    """As who knows of no changelog reads it."""
    return Counter(map(repr, DeltaTable(folder(lake)).to_pyarrow_table().to_pylist()))


def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group of rows is a step of its own."""
    monkeypatch.setattr(detached_merge, "LOOK_ROWS", 20)
    monkeypatch.setattr(detached_merge, "WRITE_ROWS", 9)
    monkeypatch.setattr(file_merge, "READ_ROWS", 7)
    monkeypatch.setattr(file_merge, "DECODED_ROWS", 4)


@pytest.mark.parametrize(
    ("table", "options"),
    # deleted rows are kept by their keys
    [(table, options) for table in TABLES for options in OPTIONS if (table, options) != ("keyless", "kept")],
)
def test_tail_when_it_is_merged_file_by_file_then_the_rows_are_those_of_a_merge(
    writer: Writer, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, options: str
) -> None:
    small_files(monkeypatch)
    source = Source(writer, lake, TABLES[table], 7, OPTIONS[options])
    for _ in range(3):
        source.add(12)
    for number in range(4):
        source.change(25)
        source.change(10)
        before, rows, other = read(lake), merged(lake), tmp_path / f"other-{number}"
        shutil.copytree(lake, other)
        merge_waiting(str(other), table_id(KEYED))
        at = prepared(lake)
        assert (read(lake), merged(lake)) == (before, rows), "nothing is there before its commit"
        done = commit_merge(str(lake), at, writer.cuts["acme", "shop"], WAITS)
        assert done is not None and done.merged_gsn == 0
        assert read(lake) == before
        assert merged(lake) == merged(other) != rows
        assert read(lake, with_deleted=True) == read(other, with_deleted=True)
    assert sum(before.values()) == len(source.rows)


def begun(writer: Writer, lake: Path) -> Source:
    """Rows in two files, and changes that wait."""
    source = Source(writer, lake, KEYED, 3)
    source.add(12)
    source.add(12)
    source.change(10)
    return source


def commit(lake: Path, at: PreparedMerge, cut: int) -> bool:
    return commit_merge(str(lake), at, cut, WAITS) is not None


def test_merge_when_more_waits_by_its_commit_then_that_waits_on_and_anew(writer: Writer, lake: Path) -> None:
    source = begun(writer, lake)
    at = prepared(lake)
    source.change(5)
    before = read(lake)
    done = commit_merge(str(lake), at, writer.cuts["acme", "shop"], WAITS)
    assert done is not None and done.merged_gsn == at.plan.basis.gsn > source.last.merged_gsn
    assert read(lake) == before != merged(lake)
    hours = table_writer.now_us() + 7_200_000_000
    with pytest.MonkeyPatch.context() as later:
        later.setattr(table_writer, "now_us", lambda: hours)
        source.change(5)
    assert source.last.merge_at_us == hours + 3_600_000_000, "it waits from now on"
    before = read(lake)
    assert commit(lake, prepared(lake), writer.cuts["acme", "shop"])
    assert before == read(lake) and sum(merged(lake).values()) == len(source.rows)


def test_commit_when_the_table_is_not_what_its_files_were_made_from_then_it_is_none(writer: Writer, lake: Path) -> None:
    begun(writer, lake)
    at, cut = prepared(lake), writer.cuts["acme", "shop"]
    before, rows = read(lake), merged(lake)
    gone = folder(lake) / at.added[-1].name
    hidden = gone.rename(gone.with_suffix(".hidden"))
    assert not commit(lake, at, cut), "a file is gone"
    hidden.rename(gone)
    assert not commit(lake, at, cut - 1), "the changelog is beyond the boundary"
    assert not commit(lake, replace(at, plan=replace(at.plan, basis=replace(at.plan.basis, changelog_id="x"))), cut)
    with pytest.MonkeyPatch.context() as patched:
        held, opened = DeltaTable(folder(lake)), merge_commit.open_table
        DeltaTable(folder(lake)).alter.set_table_properties({"menura.other": "x"}, raise_if_not_exists=False)
        patched.setattr(merge_commit, "open_table", lambda of: held if of.endswith("current") else opened(of))
        with pytest.raises(FileExistsError):  # another commit was first
            commit(lake, at, cut)
    assert (read(lake), merged(lake)) == (before, rows)
    assert commit(lake, prepared(lake), cut)
    assert read(lake) == before


def test_merge_when_a_table_is_not_to_be_merged_so_then_nothing_is_prepared(writer: Writer, lake: Path) -> None:
    source = begun(writer, lake)
    begins = start(lake)
    prepared_of = partial(prepare, run_here, cores=1, is_wanted=lambda: True, turn=Turns().turn)
    assert prepared_of(start=replace(begins, waiting=replace(WAITS, detached_bytes=1 << 20))) is Unplanned.WHOLE
    assert prepared_of(start=replace(begins, version=begins.version - 1)) is Unplanned.MOVED
    assert prepare(run_here, begins, 1, lambda: False, Turns().turn) is None
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(file_merge, "tail_effect", fail)
        came = prepared_of(start=begins)
    assert isinstance(came, Failed) and "ZeroDivisionError" in came.message
    DeltaTable(folder(lake)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    assert prepared_of(start=start(lake)) is Unplanned.WHOLE
    merge_waiting(str(lake), table_id(KEYED))
    assert prepared_of(start=start(lake)) is Unplanned.MERGED
    assert sum(merged(lake).values()) == len(source.rows)


def fail(*_: object) -> None:
    raise ZeroDivisionError


def test_merges_when_many_follow_each_other_then_files_do_not_become_more(writer: Writer, lake: Path) -> None:
    source = Source(writer, lake, KEYED, 5)
    source.add(30)
    for _ in range(6):
        source.change(20)
        assert commit(lake, prepared(lake), writer.cuts["acme", "shop"])
    assert DeltaTable(folder(lake)).get_add_actions().num_rows == 1
    assert sum(merged(lake).values()) == len(source.rows)


@pytest.mark.parametrize("what", ["rows", "repeated text"])
def test_steps_when_rows_are_many_or_large_then_each_reads_and_writes_few_bytes(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    texts = Table("items", {"id": pa.int64(), "v": pa.string()})
    value = "x" * (10 if what == "rows" else 10_000)
    writer.cut((texts, [insert(id=key, v=value) for key in range(400)]))
    writer.cut((texts, [update({"id": key, "v": value}, {"id": key, "v": "y"}) for key in range(0, 400, 50)]))
    for number in (1, 2):
        apply_entries(writer.folder, lake, first=number, last=number, waiting=WAITS)
    bounds = (file_merge, "READ_BYTES", 1 << 18), (file_merge, "DECODED_ROWS", 16), (detached_merge, "WRITE_ROWS", 130)
    for module, name, value_of in bounds:
        monkeypatch.setattr(module, name, value_of)
    sizes, read_rows = list[int](), file_merge.read_rows

    def measured(*arguments: Any) -> Iterator[pa.Table]:
        for rows in read_rows(*arguments):
            sizes.append(rows.nbytes)
            yield rows

    monkeypatch.setattr(file_merge, "read_rows", measured)
    before = read(lake)
    at = prepared(lake)
    assert len(at.removed) == 1 and len(at.added) == 4, "100 rows a step"
    assert max(sizes) < (1 << 18) + 17 * 10_100
    assert commit(lake, at, writer.cuts["acme", "shop"])
    assert read(lake) == merged(lake) == before


def test_merge_when_its_effect_is_too_large_for_a_task_then_it_is_merged_as_a_small_one(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(writer, lake)
    monkeypatch.setattr(file_merge, "EFFECT_BYTES", 100)
    assert prepare(run_here, start(lake), 1, lambda: True, Turns().turn) is Unplanned.WHOLE


def test_merge_when_more_rows_are_new_than_a_step_writes_then_they_have_steps_of_their_own(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(writer, lake, KEYED, 3)
    source.add(12)
    source.apply([insert(id=key, v=1) for key in range(100, 130)])
    monkeypatch.setattr(detached_merge, "WRITE_ROWS", 14)
    at = prepared(lake)
    assert not at.removed and len(at.added) == 3
    before = read(lake)
    assert commit(lake, at, writer.cuts["acme", "shop"])
    assert read(lake) == merged(lake) == before and sum(before.values()) == 42


def test_preparations_when_two_are_on_their_way_then_their_jobs_take_turns(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(monkeypatch)
    begun(writer, lake)
    turns, jobs = Turns(), list[str]()
    starts = [replace(start(lake), preparation=name) for name in ("a", "b")]

    def run(name: str, task: Callable[[Iterable[Any]], Iterator[object]], steps: Sequence[Any]) -> list[object]:
        if not jobs:
            wait_for("the other one", lambda: len(turns._waiting) == 2 or None, 300)
        jobs.append(name)
        found = run_here(task, steps)
        if jobs.count(name) < most:
            wait_for("the other one", lambda: len(turns._waiting) == 2 or None, 300)
        return found

    plan = prepared(lake)
    most = 2 + -(-sum(each.rows for each in plan.removed) // 9)
    with ThreadPoolExecutor(2) as threads:
        prepares = [
            threads.submit(prepare, partial(run, each.preparation), each, 1, lambda: True, turns.turn)
            for each in starts
        ]
        assert all(isinstance(each.result(), PreparedMerge) for each in prepares)
    assert jobs in (["a", "b"] * (len(jobs) // 2), ["b", "a"] * (len(jobs) // 2))


def test_merges_when_one_has_failed_then_a_batch_does_not_have_it_tried_sooner() -> None:
    boundary, table = CutSeen("acme", "shop", 1, 5, 5, 0, 0, 0), table_id(KEYED)
    waits = Outcome(table, Result.APPLIED, 5, 5, changelog_version=3, merge_at_us=100, merges_detached=True)
    merges = WaitingMerges()
    merges.note([boundary], [waits], 100)
    assert merges.due_detached(100, ()) == table and not merges.due(100, (), 9)
    merges.failed([table], 100)
    merges.note([boundary], [waits], 100)
    assert merges.due_detached(99 + FAILED_PAUSE_US, ()) is None
    assert merges.due_detached(99, ()) == table, "the clock went back"
    assert merges.due_detached(100 + FAILED_PAUSE_US, ()) == table
    merges.is_not_detached(table)
    assert list(merges.due(100 + FAILED_PAUSE_US, (), 9)) == [table]
    merges.note([boundary], [replace(waits, merge_at_us=0)], 100)
    for change in (
        merges.is_not_detached,
        lambda gone: merges.failed([gone], 0),
        lambda gone: merges.waits_on(gone, 0, 0),
    ):
        change(table)
    assert not merges.tables


def test_merge_when_the_lake_is_in_an_object_store_then_it_is_committed_there(
    writer: Writer, lake: Path, tmp_path: Path
) -> None:
    begun(writer, lake)
    before, cut = read(lake), writer.cuts["acme", "shop"]
    with ExitStack() as ends:
        proxy = S3Proxy(tmp_path / "store")
        ends.callback(proxy.close)
        use(parse(proxy.options(), {}))
        ends.callback(use, parse(()))
        url = f"{proxy.url}/lake"
        for path in filter(Path.is_file, lake.rglob("*")):
            open_storage(url).put(path.relative_to(lake).as_posix(), path.read_bytes())
        version = current_version(url, table_id(KEYED))
        assert version is not None
        recorded = Recorded(DeltaTable(folder(lake, "changelog")).version(), version)
        begins = MergeStart(url, table_id(KEYED), recorded, version, WAITS, current().carried())
        of = [replace(begins, preparation=name) for name in ("at", "late", "killed")]
        at, late, killed = (prepare(run_here, each, 1, lambda: True, Turns().turn) for each in of)
        assert isinstance(at, PreparedMerge) and isinstance(late, PreparedMerge) and isinstance(killed, PreparedMerge)
        assert commit_merge(url, at, cut, WAITS) is not None
        assert commit_merge(url, late, cut, WAITS) is None
        left = LeftMerges(url)
        left.has_ended("late", (), lives_on=False)
        assert sorted(left.found(["at"])) == ["killed"]
        left.remove(left.settle(left.found(["at"])))
        left.has_ended("at", [each.name for each in at.added], lives_on=False)
        names = {found.path for found in open_storage(f"{table_id(KEYED).folder(url)}/current").list("")}
        assert {name for name in names if name.startswith("merged-")} == {each.name for each in at.added}
        assert list(left.found([])) == ["killed"], "its tasks may live on"
        found = current_state(url, table_id(KEYED))
        assert Counter(map(repr, found.to_pylist())) == before
        held = open_table(f"{table_id(KEYED).folder(url)}/current")
        assert held is not None and held.version() == version + 1
