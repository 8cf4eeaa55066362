"""An export of several tables when one of them can't be exported, and what its operator is told."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_sink import export_command, history
from spark_sink.errors import ChangelogShortened, ExportPositionInvalid, LakeStorageFailed, TableNotAtCut
from spark_sink.export.feed import Feed
from spark_sink.export.lake_access import store_failures
from spark_sink.export.outputs import FolderOutput
from spark_sink.lake.changelog_retention import Kept, write_kept
from spark_sink.lake.delta_table import read_progress
from spark_sink.lake.records import Records, StoppedTable
from spark_sink.work import CHANGELOG, CURRENT, CutSeen, Outcome, Result
from tests.spark_sink.landing import COMMIT_US, Chunk, Event, Workload, Writer, insert, table_id
from tests.spark_sink.test_export import ID, KEYED, ORDERS, Lake, export, lines, row

EVENTS = table_id(Workload.EVENTS)
SOURCE = ("acme", "shop")


@pytest.fixture
def held(writer: Writer, lake: Path) -> Lake:
    return Lake(writer, lake)


@pytest.fixture
def output(tmp_path: Path) -> FolderOutput:
    return FolderOutput(tmp_path / "out", KEYED)


def exported(folder: Path, seen: int = 0) -> list[tuple[int, str]]:
    """Keys and operations of `orders`, without tombstones."""
    return [(key["id"], value["op"]) for key, value in lines(folder)[seen:] if value is not None]


def dump(held: Lake, *numbers: int) -> None:
    """One that finds these rows of `orders`."""
    started_gsn = held.writer.last_gsns[SOURCE] + 1
    name = f"dump-{started_gsn}"
    held.cut(Event(ORDERS, "DUMP_STARTED", dump=name))
    found = Chunk(ORDERS, [row(number) for number in numbers], held.writer.last_gsns[SOURCE], dump=name)
    held.cut(found, Event(ORDERS, "DUMPED", dump=name, removes_rows_before_gsn=started_gsn))


def shorten(held: Lake) -> None:
    """All that has come is kept no longer."""
    gsn = read_progress(held.changelog(), ID.application).gsn
    write_kept(held.changelog(), Kept(begins_gsn=gsn + 1))
    held.changelog().delete(f"_gsn <= {gsn}")


def log_entry(held: Lake, version: int) -> Path:
    return Path(f"{ID.folder(str(held.folder))}/{CHANGELOG}/_delta_log/{version:020}.json")


def run(monkeypatch: pytest.MonkeyPatch, held: Lake, *more: str) -> int:
    monkeypatch.setattr("sys.argv", ["menura export", "acme/shop", "--lake", str(held.folder), *more])
    return export_command.main()


def test_an_export_when_one_table_can_not_go_on_then_it_is_left_out_and_named_and_the_others_go_on(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ("--output", str(tmp_path), "--with-keys")
    held.cut((ORDERS, [insert(**row(1))]), (Workload.EVENTS, [insert(kind="a")]))
    assert run(monkeypatch, held, *to) == 0
    held.cut((ORDERS, [insert(**row(2))]))
    shorten(held)
    for number in range(2):
        held.cut((ORDERS, [insert(**row(3 + number))]), (Workload.EVENTS, [insert(kind="b")]))
        assert run(monkeypatch, held, *to) == ChangelogShortened.exit_code
        said = capsys.readouterr().err
        assert said.count("CHANGELOG_SHORTENED") == 1 and str(ID) in said and "--from state" in said
        assert exported(tmp_path) == [(1, "c")] and len(lines(tmp_path, EVENTS)) == 2 + number


def test_an_export_when_the_lake_is_another_one_with_the_same_version_then_it_is_refused_and_not_up_to_date(
    held: Lake, output: FolderOutput, tmp_path: Path
) -> None:
    other = Lake(Writer(tmp_path / "landing2"), tmp_path / "lake2")
    for number, lake in enumerate((held, other)):
        lake.cut((ORDERS, [insert(**row(number))]))
    position = export(held, output)
    assert position is not None
    assert position.tables[ID].version == other.changelog().version()
    for _ in range(2):
        with pytest.raises(ExportPositionInvalid, match="another table of this name"):
            export(other, output)
    assert Feed(str(held.folder), [ID], position=position).next() is None
    assert exported(tmp_path / "out") == [(0, "c")]


def test_a_dumps_end_when_the_changelog_was_shortened_then_it_matters_only_where_a_row_may_have_gone(
    held: Lake, output: FolderOutput, tmp_path: Path
) -> None:
    held.cut((ORDERS, [insert(**row(number)) for number in (1, 2, 3)]))
    export(held, output)
    shorten(held)
    held.cut((ORDERS, [insert(**row(4))]))
    export(held, output)
    dump(held, 1, 2, 3, 4)
    export(held, output)
    seen = len(lines(tmp_path / "out"))
    assert sorted(exported(tmp_path / "out")) == [(number, op) for number in (1, 2, 3, 4) for op in "cr"]
    dump(held, 1, 3, 4)  # of the second the changelog has a row by now
    export(held, output)
    assert exported(tmp_path / "out", seen)[-1] == (2, "d")
    shorten(held)
    dump(held, 1, 3)
    export(held, output)
    assert exported(tmp_path / "out")[-1] == (4, "d")
    shorten(held)
    dump(held, 1)
    DeltaTable(f"{ID.folder(str(held.folder))}/{CURRENT}").vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(ChangelogShortened, match="may have taken away"):
        export(held, output)


def test_an_export_when_a_table_has_had_more_dumps_than_a_statement_holds_then_those_that_are_out_do_not_count(
    held: Lake, output: FolderOutput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_ENDS", 1)
    held.cut((ORDERS, [insert(**row(number)) for number in range(5)]))
    export(held, output)
    for number in range(4):
        seen = len(lines(tmp_path / "out"))
        dump(held, *range(number + 1, 5))
        export(held, output)
        assert [key for key, op in exported(tmp_path / "out", seen) if op == "d"] == [number]


def test_an_export_when_a_table_has_had_too_many_dumps_since_then_the_others_go_on(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ("--output", str(tmp_path), "--with-keys")
    monkeypatch.setattr(history, "MOST_ENDS", 1)
    held.cut((ORDERS, [insert(**row(1))]), (Workload.EVENTS, [insert(kind="a")]))
    assert run(monkeypatch, held, *to) == 0
    for _ in range(2):
        dump(held, 1)
    held.cut((Workload.EVENTS, [insert(kind="b")]))
    assert run(monkeypatch, held, *to) == 1
    assert "HISTORY_IMPOSSIBLE" in capsys.readouterr().err and len(lines(tmp_path, EVENTS)) == 2


def test_an_export_when_the_version_of_its_position_is_removed_then_the_table_is_to_begin_anew(
    held: Lake, output: FolderOutput
) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    position = export(held, output)
    assert position is not None
    version = position.tables[ID].version
    dump(held, 1)
    held.changelog().optimize.compact()
    held.cut((ORDERS, [insert(**row(2))]))
    held.changelog().vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(ExportPositionInvalid, match=f"version {version} is removed.*--from state"):
        export(held, output)
    held.changelog().create_checkpoint()
    log_entry(held, version).unlink()
    held.cut((ORDERS, [insert(**row(3))]))
    with pytest.raises(ExportPositionInvalid, match=f"version {version} is removed.*--from state"):
        export(held, output)


def test_an_export_when_the_store_fails_then_its_position_is_as_good_as_before(
    held: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ("--output", str(tmp_path / "out"), "--with-keys")
    held.cut((ORDERS, [insert(**row(1))]))
    assert run(monkeypatch, held, *to) == 0
    entry = log_entry(held, held.changelog().version())
    dump(held, 1)
    held.changelog().create_checkpoint()
    whole = entry.read_bytes()
    entry.write_text("an answer of something between")
    assert run(monkeypatch, held, *to) == LakeStorageFailed.exit_code
    assert "LAKE_STORAGE_FAILED" in capsys.readouterr().err
    entry.write_bytes(whole)
    assert run(monkeypatch, held, *to) == 0
    assert exported(tmp_path / "out") == [(1, "c"), (1, "r")]


def test_an_export_when_files_are_removed_while_it_reads_then_the_next_start_reads_others(held: Lake) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    step = Feed(str(held.folder), [ID]).next()
    assert step is not None
    for file in Path(f"{ID.folder(str(held.folder))}/{CHANGELOG}").glob("*.parquet"):
        file.unlink()
    with pytest.raises(LakeStorageFailed), store_failures():
        list(step.messages())


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_export_when_it_is_to_begin_at_a_cut_at_which_a_table_can_not_be_read_then_is_refused(
    held: Lake, output: FolderOutput, *, is_lost: bool
) -> None:
    held.cut((ORDERS, [insert(**row(1))]), (Workload.EVENTS, [insert(kind="a")]))
    records, last = Records(str(held.folder)), held.writer.cuts[SOURCE]
    stopped_at = CutSeen(*SOURCE, 1, last + 1, last + 1, 0, 0, COMMIT_US)
    stop = Outcome(ID, Result.STOPPED, last + 1, last + 1, code="ROWS_PARTIAL")
    if is_lost:
        shutil.rmtree(ID.folder(str(held.folder)))
        stop_row = StoppedTable(ID, last + 1, last + 1, "ROWS_PARTIAL", "why", terminal=True, at_us=1)
        records.record_stops([stop_row])
    records.record_batch([stopped_at], [stop], whole=True)
    feed = Feed(str(held.folder), [ID, EVENTS])
    for word in ("newest", "state", str(last + 1)):
        with pytest.raises(TableNotAtCut, match=f"{ID} is not readable at cut {last + 1}"):
            export_command.begin(feed, word, output)
    assert output.position() is None
    others = export_command.begin(Feed(str(held.folder), [EVENTS]), "newest", output)
    assert set(others.tables) == {EVENTS} and set(feed.newest(10).tables) == {EVENTS}
    if not is_lost:
        assert set(export_command.begin(feed, str(last), output).tables) == {ID, EVENTS}
