"""The lake's old versions: their files and their log go, each table's in its own turn; what is read stays."""

import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from spark_sink.ingest import table_task
from spark_sink.lake import records
from spark_sink.lake.delta_table import Layout, create_table, open_table, scan
from spark_sink.lake.recorded import Recorded, recorded_tables
from spark_sink.lake.records import Records, StoppedTable
from spark_sink.lake.retention import CLEAN_EVERY_VERSIONS, clean, is_due
from spark_sink.reading import changelog, list_tables
from spark_sink.work import CutSeen, Outcome, Result, TableId
from tests.spark_sink.landing import Table, Writer, apply_entries, insert, lake_rows, table_id, update

ORDERS = Table("orders", {"id": pa.int32(), "v": pa.int32()})


def follow(writer: Writer, lake: Path, first: int, last: int, recorded: Recorded) -> Recorded:
    """One batch for each entry, as the driver does; nothing is kept."""
    for number in range(first, last + 1):
        (outcome,) = apply_entries(
            writer.folder, lake, first=number, last=number, recorded={table_id(ORDERS): recorded}, keep_hours=0
        )
        assert outcome.result is Result.APPLIED, outcome
        recorded = recorded.followed_by(outcome.changelog_version, outcome.current_version)
    return recorded


def files(folder: Path) -> int:
    return len(list(folder.glob("*.parquet")))


def log_entries(folder: Path) -> int:
    return len(list((folder / "_delta_log").glob("*.json")))


def small_table(folder: Path) -> DeltaTable:
    return create_table(str(folder), pa.schema([("id", pa.int64())]), Layout("", ("id",), ("id",)))


@pytest.mark.history
@pytest.mark.parametrize("turn", [0, 9, 18, 27], ids=str)
def test_table_when_its_turns_lie_anywhere_between_versions_then_no_checkpoint_forgets_a_file_before_it_is_removed(
    tmp_path: Path, turn: int
) -> None:
    names = (tmp_path / f"t{number}" for number in range(10_000))
    folder = next(name for name in names if crc32(str(name).encode()) % CLEAN_EVERY_VERSIONS == turn)
    table, cleanings = small_table(folder), 0
    while table.version() < 4 * CLEAN_EVERY_VERSIONS:
        before = table.version()
        write_deltalake(table, pa.table({"id": [before]}), mode="overwrite")
        if is_due(str(folder), before, table.version()):
            clean(str(folder), 0)
            cleanings += 1
            assert files(folder) == 1
            assert log_entries(folder) <= 2  # a checkpoint has the rest
            table = DeltaTable(str(folder))
    assert cleanings >= 3
    assert DeltaTable(str(folder)).to_pyarrow_table().num_rows == 1


def test_file_that_can_not_be_removed_when_a_table_is_cleaned_then_the_log_is_shortened_all_the_same(
    tmp_path: Path,
) -> None:
    table = small_table(tmp_path)
    for number in range(3):
        write_deltalake(table, pa.table({"id": [number]}), mode="overwrite")
    (kept,) = table.file_uris()
    for stuck in set(tmp_path.glob("*.parquet")) - {Path(kept)}:
        stuck.unlink()
        Path(stuck, "what a storage refuses to remove").mkdir(parents=True)
    with pytest.raises((OSError, DeltaError)):
        clean(str(tmp_path), 0)
    assert list((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))
    assert DeltaTable(str(tmp_path)).to_pyarrow_table()["id"].to_pylist() == [2]


@pytest.mark.long
def test_table_when_it_has_had_many_versions_then_the_files_and_the_log_of_old_ones_are_gone(
    writer: Writer, lake: Path
) -> None:
    batches = 170
    writer.cut((ORDERS, [insert(id=1, v=0), insert(id=2, v=0)]))
    for number in range(1, batches):
        writer.cut((ORDERS, [update({"id": 1, "v": number - 1}, {"id": 1, "v": number})]))
    folder = Path(table_id(ORDERS).folder(str(lake)))
    recorded = follow(writer, lake, 1, batches, Recorded())
    assert lake_rows(lake, ORDERS) == [{"id": 1, "v": batches - 1}, {"id": 2, "v": 0}]
    assert changelog(str(lake), table_id(ORDERS)).num_rows == 2 * batches
    for kind in ("changelog", "current"):
        table = DeltaTable(str(folder / kind))
        assert table.version() >= batches
        # what came since the last cleaning is there
        assert files(folder / kind) <= 2 * CLEAN_EVERY_VERSIONS + len(table.file_uris())
        assert log_entries(folder / kind) <= CLEAN_EVERY_VERSIONS + 3
    assert recorded.current is not None


@pytest.mark.history
@pytest.mark.parametrize("moments", [1, 60, 200], ids=str)
def test_cleaning_when_it_is_killed_then_the_table_is_whole_and_the_next_one_removes_the_rest(
    tmp_path: Path, moments: int
) -> None:
    """Killed with -9 once so many files are gone, or at its end."""
    table = DeltaTable.create(str(tmp_path), pa.schema([("id", pa.int64())]))
    for number in range(300):
        write_deltalake(table, pa.table({"id": [number]}), mode="overwrite" if number % 10 else "append")
    rows, held = sorted(table.to_pyarrow_table()["id"].to_pylist()), files(tmp_path)
    code = f"from spark_sink.lake.retention import clean; clean({str(tmp_path)!r}, 0)"
    cleaning = subprocess.Popen([sys.executable, "-c", code])
    try:
        while files(tmp_path) > held - moments and cleaning.poll() is None:
            time.sleep(0.0005)
    finally:
        cleaning.kill()
        cleaning.wait()
    assert files(tmp_path) <= held
    assert sorted(DeltaTable(str(tmp_path)).to_pyarrow_table()["id"].to_pylist()) == rows
    (tmp_path / "part-00000-of-a-killed-writer.parquet").write_bytes(b"never committed")
    table = DeltaTable(str(tmp_path))
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert files(tmp_path) == len(table.file_uris())
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == rows


def test_files_when_they_are_younger_than_what_is_kept_then_they_stay_readable(tmp_path: Path) -> None:
    table = DeltaTable.create(str(tmp_path), pa.schema([("id", pa.int64())]))
    for number in range(5):
        write_deltalake(table, pa.table({"id": [number]}), mode="overwrite")
    assert clean(str(tmp_path), 1) == 0
    table = DeltaTable(str(tmp_path))
    assert table.metadata().configuration["delta.logRetentionDuration"] == "interval 1 hours"
    table.load_as_version(2)
    assert table.to_pyarrow_table()["id"].to_pylist() == [1]


def test_turns_when_tables_have_the_same_versions_then_they_come_at_different_ones() -> None:
    folders = [f"/lake/t{number}/current" for number in range(1000)]
    turns = {
        folder: [version for version in range(1, 10 * CLEAN_EVERY_VERSIONS + 1) if is_due(folder, version - 1, version)]
        for folder in folders
    }
    every = CLEAN_EVERY_VERSIONS
    assert {later - due for found in turns.values() for due, later in pairwise(found)} == {every}
    assert all(every <= found[0] < 2 * every for found in turns.values())  # not of a table that is new
    together = Counter(version for found in turns.values() for version in found)
    assert max(together.values()) < 60
    assert all(is_due(folder, every, 2 * every) and not is_due(folder, 50, 50) for folder in folders)


def test_storage_that_lets_nothing_be_removed_when_a_table_is_cleaned_then_its_rows_are_there_all_the_same(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_folder: str, _keep_hours: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(table_task, "clean", refuse)
    monkeypatch.setattr(table_task, "is_due", lambda *_: True)
    writer.cut((ORDERS, [insert(id=1, v=0)]))
    (outcome,) = apply_entries(writer.folder, lake)
    assert (outcome.result, outcome.unclean) == (Result.APPLIED, "PermissionError")
    assert lake_rows(lake, ORDERS) == [{"id": 1, "v": 0}]


def test_boundaries_when_they_are_old_then_each_tables_last_ones_stay(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SHORTEN_EVERY_VERSIONS", 8)
    kept = Records(str(lake), keep_hours=1)
    orders, quiet, stopped = (TableId("acme", "shop", "shop", name) for name in ("orders", "quiet", "stopped"))
    clock = iter(range(10**18))
    monkeypatch.setattr(records, "now_us", lambda: next(clock) * 600_000_000)  # a batch each ten minutes
    for cut in range(1, 41):
        tables = {orders: cut, quiet: cut if cut < 3 else None, stopped: cut if cut < 5 else None}
        outcomes = [
            Outcome(table, Result.APPLIED, cut, cut, changelog_version=version, current_version=version)
            for table, version in tables.items()
            if version is not None or (table == stopped and cut == 5)
        ]
        kept.record_batch([CutSeen("acme", "shop", 1, cut, cut, 0, 0, 0)], outcomes)
    cuts = open_table(kept.cuts_folder)
    assert cuts is not None
    rows = scan(cuts, "SELECT * FROM t").read_all().to_pylist()
    assert {row["cut"] for row in rows if row["table"] == "orders"} >= set(range(36, 41))
    assert len([row for row in rows if row["table"] == "orders"]) < 16
    assert [(row["cut"], row["current_version"]) for row in rows if row["table"] == "quiet"] == [(2, 2)]
    found = [(row["cut"], row["current_version"]) for row in rows if row["table"] == "stopped"]
    assert sorted(found) == [(4, 4), (5, None)]
    assert recorded_tables(cuts) == {orders: Recorded(40, 40), quiet: Recorded(2, 2), stopped: Recorded(4, 4)}
    assert list_tables(str(lake)) == [orders, quiet, stopped]


def test_stops_when_they_are_old_then_each_tables_last_one_stays(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SHORTEN_EVERY_VERSIONS", 4)
    hour = [0]
    monkeypatch.setattr(records, "now_us", lambda: hour[0] * 3_600_000_000)
    kept = Records(str(lake), keep_hours=3)
    often, once = (TableId("acme", "shop", "shop", name) for name in ("often", "once"))
    for number in range(12):
        hour[0] = number
        stops = [StoppedTable(often, number, number, "X", "", terminal=False, at_us=number * 3_600_000_000)]
        kept.record_stops([*stops, *([replace(stops[0], table=once)] if not number else [])])
    found = open_table(kept.errors_folder)
    assert found is not None
    rows = scan(found, "SELECT * FROM t").read_all().to_pylist()
    assert 3 <= len([row for row in rows if row["table"] == "often"]) < 10
    assert {table: stop.entry for table, stop in kept.stopped_tables().items()} == {often: 11, once: 0}


def test_tables_when_a_lake_of_an_earlier_version_has_no_list_of_them_then_the_next_record_makes_it(lake: Path) -> None:
    old, new = (TableId("acme", "shop", "shop", name) for name in ("old", "new"))
    applied = Outcome(old, Result.APPLIED, 1, 1, changelog_version=1, current_version=1)
    cut = CutSeen("acme", "shop", 1, 1, 1, 0, 0, 0)
    Records(str(lake)).record_batch([cut], [applied])
    shutil.rmtree(lake / "_menura" / "tables")
    assert list_tables(str(lake)) == [old]
    Records(str(lake)).record_batch([cut], [replace(applied, table=new)])
    shutil.rmtree(lake / "_menura" / "cuts")
    assert list_tables(str(lake)) == [new, old]
