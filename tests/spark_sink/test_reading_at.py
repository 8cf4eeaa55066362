"""Tables as of one cut of each source: which cut, which rows, and why a table can't be read there."""

import json
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from pyspark.sql import SparkSession

from spark_sink import lake_command, reading_at
from spark_sink.errors import CutBeforeHorizon, CutNotComplete, SinkError, SinkSettingInvalid, TableNotAtCut
from spark_sink.ingest.cut_log_source import entry_rows
from spark_sink.lake import records
from spark_sink.lake.boundaries import Boundaries, Boundary
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.records import Records
from spark_sink.lake.tail import AT_ONCE, Waiting
from spark_sink.lake_command import main
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import list_tables
from spark_sink.reading_at import LakeCut, folder_path, lake_at
from spark_sink.work import CutSeen, EventSeen, Outcome, Result, TableId, split_rows
from tests.spark_sink.landing import (
    COMMIT_US,
    Chunk,
    Event,
    Table,
    Writer,
    apply_entries,
    insert,
    table_id,
    update,
)

ACCOUNTS = Table("accounts", {"id": pa.int32(), "v": pa.int32()}, database="bank")
VAULT = Table("vault", {"id": pa.int32(), "v": pa.int32()}, database="bank")
TABLES = [table_id(ACCOUNTS), table_id(VAULT)]
SOURCE = ("acme", "shop")
SECOND_US = 1_000_000
WAITS = Waiting(3600, -1, part_of_table=1e9)


def batch(
    writer: Writer, lake: Path, first: int, last: int, *, whole: bool = True, waiting: Waiting = AT_ONCE
) -> list[Outcome]:
    """What the sink does with these entries, without Spark; `whole` False: as if it tried a table again. None stops."""
    log = LandingLog(str(writer.folder))
    entries = {number: log.read_entry(number) for number in range(first, last + 1)}
    missing = [number for number, entry in entries.items() if entry is None]
    assert not missing, f"{writer.folder} lacks the entries {missing} of {first} to {last}"
    known, _ = split_rows([row for entry in entries.values() if entry is not None for row in entry_rows(entry)])
    outcomes = apply_entries(writer.folder, lake, first=first, last=last, waiting=waiting)
    stopped = [f"{each.table}: {each.code}: {each.message}" for each in outcomes if each.result is Result.STOPPED]
    assert not stopped, stopped
    kept = Records(str(lake))
    kept.record_events([each for each in known if isinstance(each, EventSeen)])
    kept.record_batch([each for each in known if isinstance(each, CutSeen)], outcomes, whole=whole)
    return outcomes


def transfer(writer: Writer, amount: int, source: str = "shop") -> int:
    """From the account, which had 100 before the first one, to the vault; a second later than the one before."""
    writer.commit_us += SECOND_US
    before = writer.cuts["acme", source] - 1
    had = 100 - before * amount
    moved = update({"id": 1, "v": had}, {"id": 1, "v": had - amount})
    kept = update({"id": 1, "v": 100 - had}, {"id": 1, "v": 100 - had + amount})
    return writer.cut((ACCOUNTS, [moved]), (VAULT, [kept]), source=source)


def opened(writer: Writer, source: str = "shop") -> int:
    return writer.cut((ACCOUNTS, [insert(id=1, v=100)]), (VAULT, [insert(id=1, v=0)]), source=source)


def values(found: LakeCut) -> list[int]:
    """The account's and the vault's of each source."""
    return [found.arrow(each.table)["v"].to_pylist()[0] for each in found.tables]


def refused(lake: Path, kind: type[SinkError], **asked: Any) -> str:
    with pytest.raises(kind) as found:
        lake_at(str(lake), TABLES, **asked)
    return str(found.value)


@pytest.fixture
def bank(writer: Writer, lake: Path) -> Writer:
    """Boundaries 1, 3 and 6, of seconds 0, 2 and 5."""
    opened(writer)
    for _ in range(5):
        transfer(writer, 10)
    for first, last in ((1, 1), (2, 3), (4, 6)):
        batch(writer, lake, first, last)
    return writer


@pytest.mark.parametrize(
    ("cut", "second", "found"),
    [(None, None, 6), (6, None, 6), (5, None, 3), (3, None, 3), (2, None, 1), (None, 0, 1), (None, 4, 3), (None, 2, 3)],
)
def test_tables_when_asked_for_a_cut_or_a_time_then_are_those_of_the_newest_boundary_up_to_it(
    bank: Writer, lake: Path, cut: int | None, second: int | None, found: int
) -> None:
    at_us = None if second is None else COMMIT_US + second * SECOND_US
    read = lake_at(str(lake), TABLES, cuts=None if cut is None else {SOURCE: cut}, at_us=at_us)
    assert [each.cut for each in read.sources] == [found]
    assert values(read) == [100 - 10 * (found - 1), 10 * (found - 1)]
    assert not any(each.note for each in [*read.sources, *read.tables])


def test_a_time_when_nothing_later_has_come_then_is_refused_unless_it_may_be_incomplete(
    bank: Writer, lake: Path
) -> None:
    newest_us = COMMIT_US + 5 * SECOND_US
    assert "something of before may still come" in refused(lake, CutNotComplete, at_us=newest_us)
    read = lake_at(str(lake), TABLES, at_us=newest_us, allow_incomplete=True)
    assert (read.sources[0].cut, values(read)) == (6, [50, 50]) and "may still come" in read.sources[0].note
    transfer(bank, 10)
    batch(bank, lake, 7, 7)
    assert lake_at(str(lake), TABLES, at_us=newest_us).sources[0].cut == 6
    assert "not in the lake yet, whose newest one is 7" in refused(lake, CutNotComplete, cuts={SOURCE: 8})


def test_a_time_when_it_is_before_the_first_boundary_then_the_error_says_which_can_be_read(
    bank: Writer, lake: Path
) -> None:
    found = refused(lake, CutBeforeHorizon, at_us=COMMIT_US - 1)
    assert "the first cut that can be read is 1" in found
    with pytest.raises(CutBeforeHorizon, match="no cut of the source"):
        lake_at(str(lake), groups=[("acme", "elsewhere")])


def test_two_sources_when_asked_for_one_time_then_each_is_at_its_own_newest_cut(bank: Writer, lake: Path) -> None:
    opened(bank, "west")
    for _ in range(3):
        transfer(bank, 20, "west")
    batch(bank, lake, 7, 8)
    batch(bank, lake, 9, 10)
    transfer(bank, 10)
    batch(bank, lake, 11, 11)
    groups = [("acme", "shop"), ("acme", "west", "bank")]
    read = lake_at(str(lake), groups=groups, at_us=COMMIT_US + 7 * SECOND_US)
    assert [(each.source, each.cut) for each in read.sources] == [("shop", 6), ("west", 2)]
    assert values(read) == [50, 50, 80, 20]
    with pytest.raises(SinkSettingInvalid, match="no cut of acme/west is given"):
        lake_at(str(lake), groups=groups, cuts={SOURCE: 3})


def test_a_table_that_was_tried_again_when_others_lack_its_cut_then_that_is_no_boundary(
    bank: Writer, lake: Path
) -> None:
    transfer(bank, 10)
    ahead = next(each for each in apply_entries(bank.folder, lake, first=7) if each.table == TABLES[0])
    Records(str(lake)).record_batch([CutSeen(*SOURCE, 1, 7, 7, 0, 0, bank.commit_us)], [ahead])
    read = lake_at(str(lake), TABLES)
    assert (read.sources[0].cut, values(read)) == (6, [50, 50])
    transfer(bank, 10)
    batch(bank, lake, 7, 8)
    read = lake_at(str(lake), TABLES, cuts={SOURCE: 7})
    assert (read.sources[0].cut, values(read)) == (6, [50, 50])
    assert values(lake_at(str(lake), TABLES)) == [30, 70]


def test_a_batch_that_changes_no_table_when_a_time_is_asked_for_then_it_tells_that_the_time_is_complete(
    bank: Writer, lake: Path
) -> None:
    bank.commit_us += SECOND_US
    bank.cut()
    batch(bank, lake, 7, 7)
    read = lake_at(str(lake), TABLES, at_us=COMMIT_US + 5 * SECOND_US)
    assert (read.sources[0].cut, values(read)) == (6, [50, 50])
    assert lake_at(str(lake), TABLES).sources[0].cut == 7
    assert list_tables(str(lake)) == sorted(TABLES)


def test_a_table_when_it_had_stopped_or_was_brought_further_then_the_error_says_which(bank: Writer, lake: Path) -> None:
    kept = Records(str(lake))
    at_seven = CutSeen(*SOURCE, 1, 7, 7, 0, 0, bank.commit_us)
    kept.record_batch([at_seven], [Outcome(TABLES[0], Result.SKIPPED, 7, 7, changelog_version=9)], whole=True)
    assert "brought it further" in refused(lake, TableNotAtCut)
    stop = Outcome(TABLES[0], Result.STOPPED, 7, 7, code="ROWS_PARTIAL")
    kept.record_stops([records.StoppedTable(TABLES[0], 7, 7, stop.code, "why", terminal=True, at_us=1)])
    assert "it had stopped with ROWS_PARTIAL" in refused(lake, TableNotAtCut, allow_incomplete=True)
    assert values(lake_at(str(lake), [TABLES[1]])) == [50]
    assert values(lake_at(str(lake), TABLES, cuts={SOURCE: 6})) == [50, 50]


def test_a_table_when_it_was_dumped_or_to_be_read_again_then_is_refused_until_a_dump_has_ended(
    bank: Writer, lake: Path
) -> None:
    unlogged = Event(ACCOUNTS, "ROWS_UNLOGGED", unlogged_changes="a partition was exchanged")
    bank.cut(unlogged)
    bank.cut(Event(ACCOUNTS, "DUMP_STARTED", dump="dump-1"))
    floor = bank.last_gsns[SOURCE]
    bank.cut(Chunk(ACCOUNTS, [{"id": 1, "v": 7}], floor))
    bank.cut(Event(ACCOUNTS, "DUMPED", dump="dump-1", removes_rows_before_gsn=floor))
    for entry in range(7, 11):
        batch(bank, lake, entry, entry)
    assert "to be read again: a partition was exchanged" in refused(lake, TableNotAtCut, cuts={SOURCE: 7})
    for cut in (8, 9):
        assert "dump dump-1 of it had begun and not ended" in refused(lake, TableNotAtCut, cuts={SOURCE: cut})
    read = lake_at(str(lake), TABLES, cuts={SOURCE: 9}, allow_incomplete=True)
    assert [bool(each.note) for each in read.tables] == [True, False]
    read = lake_at(str(lake), TABLES, cuts={SOURCE: 10})
    assert values(read) == [7, 50] and not any(each.note for each in read.tables)


def test_a_table_when_its_folder_was_made_anew_then_older_cuts_of_it_are_refused(bank: Writer, lake: Path) -> None:
    for _ in range(2):
        transfer(bank, 10)
    batch(bank, lake, 7, 8)
    shutil.rmtree(TABLES[0].folder(str(lake)))
    batch(bank, lake, 1, 8, whole=False)
    assert values(lake_at(str(lake), TABLES)) == [30, 70]
    assert "folder was lost" in refused(lake, TableNotAtCut, cuts={SOURCE: 6})
    assert values(lake_at(str(lake), [TABLES[1]], cuts={SOURCE: 6})) == [50]


def test_boundaries_when_a_later_one_came_before_the_horizon_then_are_not_kept() -> None:
    found = Boundaries([Boundary(cut, cut * 10, cut * 100) for cut in (1, 2, 4)])
    assert [found.is_kept(each, 200) for each in found.found] == [True, True, True]
    assert [found.is_kept(each, 201) for each in found.found] == [False, True, True]
    assert [found.is_kept(each, 401) for each in found.found] == [False, False, True]
    assert (found.at_time(25), found.at_time(9), found.at_cut(3)) == (found.found[1], None, found.found[1])
    assert (found.is_complete(39), found.is_complete(40)) == (True, False)


def test_a_cut_when_its_versions_are_removed_then_the_error_names_the_horizon(
    bank: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = open_table(Records(str(lake)).cuts_folder)
    assert held is not None
    held.alter.set_table_properties({"delta.logRetentionDuration": "interval 2 hours"})
    later_us = reading_at.now_us() + 3 * reading_at.HOUR_US
    monkeypatch.setattr(reading_at, "now_us", lambda: later_us)
    found = refused(lake, CutBeforeHorizon, cuts={SOURCE: 3})
    assert "the first cut that can be read is 6" in found and "old versions stay for 2 hours" in found
    assert values(lake_at(str(lake), TABLES)) == [50, 50]
    read = lake_at(str(lake), TABLES)
    shutil.rmtree(TABLES[0].folder(str(lake)) + "/current")
    with pytest.raises(SinkError):
        read.arrow(TABLES[0])


def test_quiet_tables_when_old_boundaries_are_left_out_then_can_be_read_as_of_the_horizon(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SHORTEN_EVERY_VERSIONS", 4)
    clock = iter(range(10**18))
    monkeypatch.setattr(records, "now_us", lambda: next(clock) * 600_000_000)  # a batch each ten minutes
    monkeypatch.setattr(reading_at, "now_us", lambda: 0)
    kept = Records(str(lake), keep_hours=1)
    quiet, busy = TABLES
    for cut in range(1, 41):
        changed = [busy, quiet] if cut in (1, 40) else [busy]
        outcomes = [
            Outcome(each, Result.APPLIED, cut, cut, changelog_version=cut, current_version=cut) for each in changed
        ]
        kept.record_batch([CutSeen(*SOURCE, 1, cut, cut, 0, 0, cut)], outcomes, whole=True)
    read = lake_at(str(lake), TABLES, cuts={SOURCE: 39})
    assert [each.current_version for each in read.tables] == [1, 39]


def test_a_table_whose_changes_wait_when_read_at_a_cut_then_has_them(
    writer: Writer, lake: Path, session: SparkSession
) -> None:
    opened(writer)
    for _ in range(3):
        transfer(writer, 10)
    for entry in range(1, 5):
        batch(writer, lake, entry, entry, waiting=WAITS)
    assert [values(lake_at(str(lake), TABLES, cuts={SOURCE: cut})) for cut in (2, 3)] == [[90, 10], [80, 20]]
    read = lake_at(str(lake), TABLES, cuts={SOURCE: 3})
    with pytest.raises(TableNotAtCut, match="stand in its changelog alone"):
        list(read.statements())
    names = read.create_views(session)
    assert sorted(names.values()) == ["accounts", "vault"]
    batch(writer, lake, 1, 4)  # whatever the sink does, the views stay
    total = session.sql("SELECT a.v + b.v AS total, a.v FROM accounts a JOIN vault b USING (id)").collect()
    assert [tuple(row) for row in total] == [(100, 80)]


def command(monkeypatch: pytest.MonkeyPatch, lake: Path, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["menura lake", "at", *arguments, "--lake", str(lake)])
    return main()


def test_command_when_asked_for_a_time_then_shows_cuts_and_rows_and_writes_files(
    bank: Writer, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    when = datetime.fromtimestamp(COMMIT_US / 1e6 + 4, UTC).isoformat()
    assert command(monkeypatch, lake, when, "acme/shop") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "source acme/shop  cut 3  committed 2023-11-14 22:13:22Z"
    assert [line.split()[:2] for line in shown[1:]] == [["table", folder_path(table)] for table in TABLES]
    assert command(monkeypatch, lake, "acme/shop=3", folder_path(TABLES[0]), "--format", "csv") == 0
    assert pa.csv.read_csv(pa.py_buffer(capsys.readouterr().out.encode()))["v"].to_pylist() == [80]
    for form in ("csv", "arrow"):
        assert (
            command(monkeypatch, lake, "newest", "acme/shop/bank", "--format", form, "--output", str(tmp_path / form))
            == 0
        )
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/**/*.*") if "bank" in path.parts)
    expected = [f"{form}/{folder_path(table)}.{form}" for form in ("arrow", "csv") for table in TABLES]
    assert [path for path in files if path.startswith(("arrow/", "csv/"))] == expected
    with pa.OSFile(str(tmp_path / "arrow" / f"{folder_path(TABLES[1])}.arrow")) as file:
        assert pa.ipc.open_file(file).read_all()["v"].to_pylist() == [50]
    assert json.loads((tmp_path / "arrow" / "cut.json").read_text())["sources"][0]["cut"] == 6
    capsys.readouterr()
    assert command(monkeypatch, lake, "newest", "acme/shop", "--format", "sql") == 0
    assert "VERSION AS OF" in capsys.readouterr().out


def test_command_when_it_may_wait_then_asks_again_until_the_dump_is_in_the_lake(
    bank: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bank.cut(Event(ACCOUNTS, "DUMP_STARTED", dump="dump-1"))
    floor = bank.last_gsns[SOURCE]
    bank.cut(Chunk(ACCOUNTS, [{"id": 1, "v": 7}], floor))
    bank.cut(Event(ACCOUNTS, "DUMPED", dump="dump-1", removes_rows_before_gsn=floor))
    batch(bank, lake, 7, 7)
    entries = iter((8, 9))
    newest = ("newest", folder_path(TABLES[0]), "--format", "csv")
    assert command(monkeypatch, lake, *newest) != 0
    assert "dump dump-1 of it had begun and not ended" in capsys.readouterr().err

    def sleep(_: float) -> None:
        entry = next(entries)
        batch(bank, lake, entry, entry)

    # the command's alone: other threads of this process sleep too
    monkeypatch.setattr(lake_command, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    assert command(monkeypatch, lake, "acme/shop=7", *newest[1:], "--wait", "600") != 0  # that cut stays as it is
    assert next(entries) == 8
    batch(bank, lake, 8, 8)
    assert command(monkeypatch, lake, *newest, "--wait", "600") == 0
    assert pa.csv.read_csv(pa.py_buffer(capsys.readouterr().out.encode()))["v"].to_pylist() == [7]


@pytest.mark.parametrize(
    "arguments",
    [
        ["yesterday", "acme/shop"],
        ["2026-01-31T12:00:00", "acme/shop"],
        ["shop=3", "acme/shop"],
        ["newest", "acme"],
        ["newest", "acme/shop/bank/accounts/more"],
        ["newest", "acme/shop", "--format", "arrow"],
        ["newest", "acme/shop", "--format", "csv"],
    ],
)
def test_command_when_its_arguments_mean_nothing_then_it_says_what_to_give(
    bank: Writer,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
) -> None:
    assert command(monkeypatch, lake, *arguments) == 2
    assert "SINK_SETTING_INVALID" in capsys.readouterr().err


def test_statements_when_run_in_spark_then_the_views_are_those_tables_at_the_cut(
    bank: Writer, lake: Path, session: SparkSession
) -> None:
    for statement in lake_at(str(lake), TABLES, cuts={SOURCE: 3}).statements():
        session.sql(statement.rstrip(";"))
    found = session.sql("SELECT a.v, b.v FROM accounts a JOIN vault b USING (id)").collect()
    assert [tuple(row) for row in found] == [(80, 20)]
    odd = TableId("acme", "shop", "bank", "order lines")
    assert reading_at.view_names([odd]) == {odd: "order lines"}
