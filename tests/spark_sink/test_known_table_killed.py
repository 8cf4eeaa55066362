"""Small tables whose worker is killed with -9 at each step of a batch, and whose commits meet others'.

What the lake holds afterwards is read by delta-rs and by a replay of the log, and compared with the rows that landed.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError

from spark_sink.ingest import table_task
from spark_sink.lake import delta_table, known_table
from spark_sink.lake.delta_table import commit_properties, open_again, rewrite, schema_of
from spark_sink.lake.known_table import KnownTable
from spark_sink.lake.recorded import Recorded
from spark_sink.lake.retention import clean
from spark_sink.reading import changelog
from spark_sink.work import Outcome, Result
from tests.servers import ROOT
from tests.spark_sink.delta_log import read_by_hand, replay
from tests.spark_sink.landing import Table, Writer, apply_entries, delete, insert, lake_rows, table_id, update

ORDERS = Table("orders", {"id": pa.int32(), "v": pa.int32(), "word": pa.string()})
KINDS = ("changelog", "current")
BATCHES = 6


def folder(lake: Path, kind: str) -> Path:
    return Path(table_id(ORDERS).folder(str(lake)), kind)


def row(id_: int, v: int) -> dict[str, object]:
    return {"id": id_, "v": v, "word": f"w{v}"}


@pytest.fixture
def landed(writer: Writer) -> Writer:
    """A table whose first row each batch changes, and which gets and loses others."""
    writer.cut((ORDERS, [insert(**row(1, 0)), insert(**row(2, 0))]))
    for number in range(1, BATCHES):
        others = [insert(**row(10 + number, 0)), delete(**row(9 + number, 0))] if number > 1 else [insert(**row(11, 0))]
        writer.cut((ORDERS, [update(row(1, number - 1), row(1, number)), *others]))
    return writer


EXPECTED = [row(1, BATCHES - 1), row(2, 0), row(10 + BATCHES - 1, 0)]
CHANGES = 2 + 3 + 4 * (BATCHES - 2)


def apply(landing: Path, lake: Path, first: int, last: int, recorded: Recorded | None = None) -> list[Outcome]:
    """A batch for each entry."""
    found = {table_id(ORDERS): recorded} if recorded is not None else None
    return [
        outcome
        for number in range(first, last + 1)
        for outcome in apply_entries(landing, lake, first=number, last=number, recorded=found)
    ]


def check(lake: Path) -> None:
    """Every row is there once, whoever reads."""
    assert lake_rows(lake, ORDERS) == sorted(EXPECTED, key=repr)
    by_hand = read_by_hand(folder(lake, "current")).select(["id", "v", "word"]).to_pylist()
    assert sorted(by_hand, key=lambda each: each["id"]) == EXPECTED
    logged = changelog(str(lake), table_id(ORDERS))
    assert logged.num_rows == CHANGES == len(set(logged["_gsn"].to_pylist()))
    assert read_by_hand(folder(lake, "changelog")).num_rows == CHANGES
    for kind in KINDS:
        found, seen = replay(folder(lake, kind)), DeltaTable(str(folder(lake, kind)))
        assert found.version == seen.version()
        assert {name: seen.transaction_version(name) for name in found.transactions} == found.transactions
        assert found.transactions["acme/shop"] == BATCHES


def sweep(base: Path) -> None:
    """Batches in processes that are killed, each in a lake of its own: before the n-th file operation of Python's, or
    when a file reaches so many bytes. For a process that has opened no table, so that it may be forked."""
    steps: list[tuple[str, Callable[[str], None]]] = [
        *((f"step-{step}", partial(_die_at, step)) for step in range(1, 10)),
        *((f"bytes-{size}", partial(_die_above, size)) for size in (0, 1000)),
    ]
    for name, arm in steps:
        lake = base / name
        child = os.fork()
        if child == 0:
            apply(base / "landing", lake, 1, 4)
            arm(str(lake))
            apply(base / "landing", lake, 5, 5)
            os._exit(0)
        sys.stdout.write(f"{name} {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")


def _die_at(step: int, lake: str) -> None:
    left = [step]

    def seen(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.link", "os.remove") and str(arguments[0]).startswith(lake):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(seen)


def _die_above(size_bytes: int, _: str) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


@pytest.mark.history
def test_worker_when_it_is_killed_at_any_step_then_each_row_is_there_once_and_what_it_left_is_removed(
    landed: Writer, lake: Path
) -> None:
    code = f"from pathlib import Path; from {__name__} import sweep; sweep(Path({str(lake.parent)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    ends = dict(line.split() for line in done.stdout.splitlines())
    assert ends.pop("step-9") == "0"  # of each table: the draft, its link, its end, the look at the checkpoint
    assert set(ends.values()) == {str(-signal.SIGKILL), str(-signal.SIGXFSZ)}
    for name in ("step-9", *ends):
        killed = lake.parent / name
        apply(landed.folder, killed, 5, BATCHES)
        check(killed)
        for kind in KINDS:
            table = DeltaTable(str(folder(killed, kind)))
            table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
            assert {path.name for path in folder(killed, kind).iterdir()} == {*replay_files(killed, kind), "_delta_log"}
        check(killed)


def replay_files(lake: Path, kind: str) -> set[str]:
    return set(replay(folder(lake, kind)).files)


def others_row(path: Path) -> None:
    """A second writer."""
    table = DeltaTable(str(path))
    empty = schema_of(table).empty_table()
    write_deltalake(table, empty, mode="append", commit_properties=commit_properties(("another", 7)))


def others_schema(path: Path) -> None:
    DeltaTable(str(path)).alter.add_columns(list(Schema.from_arrow(pa.schema([("theirs", pa.int64())])).fields))


def others_rewrite(path: Path) -> None:
    DeltaTable(str(path)).optimize.compact(target_size=1 << 30)
    clean(str(path), 0)


OTHERS: dict[str, Callable[[Path], None]] = {
    "another's commit": others_row,
    "a change of schema": others_schema,
    "compaction and cleaning": others_rewrite,
    "a property": lambda path: DeltaTable(str(path)).alter.set_table_properties({"delta.appendOnly": "false"}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", OTHERS)
def test_table_when_another_writes_between_two_batches_then_both_stay(
    landed: Writer, lake: Path, what: str, kind: str
) -> None:
    apply(landed.folder, lake, 1, 4)
    OTHERS[what](folder(lake, kind))
    before = DeltaTable(str(folder(lake, kind))).version()
    outcomes = apply(landed.folder, lake, 5, BATCHES)
    assert [each.result for each in outcomes] == [Result.APPLIED] * 2
    found = DeltaTable(str(folder(lake, kind)))
    assert found.version() >= before + 2
    if what == "a change of schema":
        assert "theirs" in schema_of(found).names
    if what == "another's commit":
        assert found.transaction_version("another") == 7
    check(lake)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", OTHERS)
def test_table_when_another_writes_just_before_the_entry_then_the_batch_is_done_again_on_top(
    landed: Writer, lake: Path, what: str, kind: str, at_link: Callable[[Path, Callable[[Path], None]], None]
) -> None:
    apply(landed.folder, lake, 1, 4)
    path = folder(lake, kind)
    at_link(path, OTHERS[what])
    outcomes = apply(landed.folder, lake, 5, BATCHES)
    assert [each.result for each in outcomes] == [Result.APPLIED] * 2
    check(lake)


def test_batch_when_its_table_is_remembered_then_delta_rs_opens_nothing(
    landed: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(_: KnownTable | None, name: str) -> None:
        raise AssertionError(name)

    for module in (table_task, delta_table):  # a table's turn to be cleaned, or compacted
        monkeypatch.setattr(module, "is_due", lambda *_: False)
    apply(landed.folder, lake, 1, 3)
    monkeypatch.setattr(KnownTable, "__getattr__", opened)
    monkeypatch.setattr(delta_table, "open_table", lambda folder: opened(None, folder))
    outcomes = apply(landed.folder, lake, 4, BATCHES)
    assert [each.result for each in outcomes] == [Result.APPLIED] * 3, outcomes
    check(lake)


@pytest.fixture
def at_link(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Callable[[Path], None]], None]:
    """Have somebody do something once, before the next link of an entry of this table."""

    def arm(path: Path, do: Callable[[Path], None]) -> None:
        link, left = os.link, [path]

        def meanwhile(source: Path, target: Path) -> None:
            if left and path in Path(target).parents:
                do(left.pop())
            link(source, target)

        monkeypatch.setattr(os, "link", meanwhile)

    return arm


def test_table_when_another_task_has_done_the_same_batch_then_it_is_there_once(
    landed: Writer, lake: Path, at_link: Callable[[Path, Callable[[Path], None]], None]
) -> None:
    """As a task does whose driver was killed: it lives on for a moment."""
    arguments = f"Path({str(landed.folder)!r}), Path({str(lake)!r}), 5, 5"
    code = f"from pathlib import Path; from {__name__} import apply; apply({arguments})"

    def same(_: Path) -> None:
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)

    apply(landed.folder, lake, 1, 4)
    at_link(folder(lake, "changelog"), same)
    apply(landed.folder, lake, 5, BATCHES)
    check(lake)


def test_table_when_delta_rs_has_to_go_on_and_another_was_faster_then_the_commit_fails(
    landed: Writer, lake: Path
) -> None:
    apply(landed.folder, lake, 1, 4)
    path = str(folder(lake, "current"))
    known = open_again(path, "acme/shop")
    assert isinstance(known, KnownTable)
    write_deltalake(
        path, schema_of(known).empty_table(), mode="append", commit_properties=commit_properties(("acme/shop", 5))
    )
    with pytest.raises(CommitFailedError):
        rewrite(known, schema_of(known), lambda rows: rows, [("acme/shop", 5)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["lost", "older"])
def test_folder_when_it_is_lost_or_an_older_copy_is_put_back_then_the_table_stops(
    landed: Writer, lake: Path, what: str, kind: str
) -> None:
    path, copy = folder(lake, kind), lake / "copy"
    apply(landed.folder, lake, 1, 3)
    shutil.copytree(path, copy)
    (last,) = apply(landed.folder, lake, 4, 4)
    shutil.rmtree(path)
    if what == "older":
        copy.rename(path)
    recorded = Recorded(last.changelog_version, last.current_version)
    (outcome,) = apply(landed.folder, lake, 5, 5, recorded)
    assert (outcome.result, outcome.code) == (Result.STOPPED, "LAKE_TABLE_LOST")


def test_folder_when_a_copy_of_the_same_version_takes_its_place_then_it_is_read_anew(
    landed: Writer, lake: Path
) -> None:
    apply(landed.folder, lake, 1, 4)
    path = folder(lake, "current")
    shutil.copytree(path, lake / "copy")
    shutil.rmtree(path)
    (lake / "copy").rename(path)
    assert known_table.recall(str(path)) is None
    apply(landed.folder, lake, 5, BATCHES)
    check(lake)


def test_clock_when_it_goes_back_by_days_then_no_row_is_lost(
    landed: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(landed.folder, lake, 1, 4)
    monkeypatch.setattr(known_table, "_now_ms", lambda: 1_600_000_000_000)
    apply(landed.folder, lake, 5, BATCHES)
    for kind in KINDS:
        clean(str(folder(lake, kind)), 24)
    check(lake)
