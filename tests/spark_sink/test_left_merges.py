"""Files of merges beside batches that came to nothing go by their names, and none that a commit names ever does."""

import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from menura.stores.local import LocalStore
from menura.stores.store import OutcomeUnknown

from spark_sink.ingest import left_merges
from spark_sink.ingest.left_merges import LeftMerges
from spark_sink.ingest.waiting_merges import WaitingMerges
from spark_sink.lake import merge_commit, merge_record
from spark_sink.lake.file_merge import Piece, PreparedMerge, Rows, write_piece
from spark_sink.work import CutSeen, Outcome, Result
from tests.spark_sink.landing import Table, Writer, table_id
from tests.spark_sink.test_file_merge import begun, commit, folder, merged, prepared, read

LATER = '{"format": 2, "folder": "acme", "identity": "x", "version": 1}'


def files(lake: Path) -> set[str]:
    return {path.name for path in folder(lake).glob("merged-*")}


def names(at: PreparedMerge) -> set[str]:
    return {each.name for each in at.added}


def is_empty(lake: Path) -> bool:
    return not list((lake / "_menura/merges").iterdir())


def remove_left(lake: Path) -> None:
    """As at a start."""
    left = LeftMerges(str(lake))
    left.remove(left.settle(left.found([])))


def preparation(at: PreparedMerge) -> str:
    return at.plan.record.preparation


@pytest.fixture
def nobody_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_merges, "LIVES_ON_SECONDS", 0.0)


def test_merges_of_two_sinks_when_one_comes_too_late_then_it_removes_its_own_files_alone(
    writer: Writer, lake: Path
) -> None:
    begun(writer, lake)
    cut, before = writer.cuts["acme", "shop"], read(lake)
    one, other = prepared(lake), prepared(lake)
    assert commit(lake, one, cut) and not commit(lake, other, cut)
    LeftMerges(str(lake)).has_ended(preparation(other), (), lives_on=False)
    assert files(lake) == names(one) and read(lake) == before
    LeftMerges(str(lake)).has_ended(preparation(one), names(one), lives_on=False)
    assert files(lake) == names(one) and read(lake) == before
    assert is_empty(lake)


@pytest.mark.usefixtures("nobody_lives_on")
@pytest.mark.parametrize("is_committed", [False, True])
def test_merge_when_its_process_was_killed_then_what_it_left_goes_at_the_next_start_but_what_is_committed(
    writer: Writer, lake: Path, *, is_committed: bool
) -> None:
    begun(writer, lake)
    cut, before = writer.cuts["acme", "shop"], read(lake)
    killed = prepared(lake)
    assert not is_committed or commit(lake, killed, cut)
    remove_left(lake)
    assert files(lake) == (names(killed) if is_committed else set())
    assert is_empty(lake) and read(lake) == before
    assert is_committed or not commit(lake, killed, cut), "it lived on, in another process"
    assert read(lake) == before
    if not is_committed:
        assert commit(lake, prepared(lake), cut)
    assert read(lake) == merged(lake) == before


@pytest.mark.usefixtures("nobody_lives_on")
@pytest.mark.parametrize("when", ["before the look", "after the look", "never"])
def test_merge_when_its_store_owes_the_answer_to_its_commit_then_its_files_stay_if_it_is_carried_out(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    begun(writer, lake)
    cut, before, at = writer.cuts["acme", "shop"], read(lake), prepared(lake)
    late: list[Callable[[], bool]] = []
    put = LocalStore.put_if_absent

    def lost(store: LocalStore, path: str, document: bytes) -> bool:
        late.append(lambda: put(store, path, document))
        raise OutcomeUnknown

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "put_if_absent", lost)
        with pytest.raises(OutcomeUnknown):
            commit(lake, at, cut)
    assert files(lake) == names(at)
    if when == "before the look":
        assert late[0]()
    remove_left(lake)
    if when == "after the look":
        assert not late[0]()
    assert files(lake) == (names(at) if when == "before the look" else set())
    assert is_empty(lake) and read(lake) == before


@pytest.mark.usefixtures("nobody_lives_on")
def test_merge_when_no_answer_says_whether_its_number_is_taken_then_its_files_stay_until_one_does(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun(writer, lake)
    before, at = read(lake), prepared(lake)

    def lost(*_: object) -> bool:
        raise OutcomeUnknown

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "put_if_absent", lost)
        remove_left(lake)
    assert files(lake) == names(at)
    (line,) = [record.getMessage() for record in caplog.records if preparation(at) in record.getMessage()]
    assert f"does not say whether version {at.plan.record.version} is taken" in line
    assert at.plan.record.folder in line and "check that it can be reached" in line
    caplog.clear()
    remove_left(lake)
    assert files(lake) == set() and read(lake) == before
    assert caplog.records == []


@pytest.mark.usefixtures("nobody_lives_on")
def test_merge_when_its_table_is_an_older_copy_then_its_files_stay_and_the_log_says_why(
    writer: Writer, lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun(writer, lake)
    at = prepared(lake)
    version = at.plan.record.version
    (folder(lake) / merge_record.entry_path(version - 1)).unlink()
    remove_left(lake)
    assert files(lake) == names(at) and not is_empty(lake)
    (line,) = [record.getMessage() for record in caplog.records if preparation(at) in record.getMessage()]
    assert f"its log ends at version {version - 2}, and the files are for version {version}" in line
    assert "their table is whole and goes on, and the next merge asks again" in line


@pytest.mark.usefixtures("nobody_lives_on")
@pytest.mark.parametrize("is_made_again", [False, True])
def test_merge_when_its_table_is_gone_then_its_files_go_and_another_table_there_is_left_alone(
    writer: Writer, lake: Path, *, is_made_again: bool
) -> None:
    begun(writer, lake)
    at, rows = prepared(lake), DeltaTable(folder(lake)).to_pyarrow_table()
    shutil.rmtree(folder(lake) / "_delta_log")
    if is_made_again:
        for _ in range(at.plan.basis.current_version + 1):
            write_deltalake(folder(lake), rows, mode="append")
    remove_left(lake)
    assert files(lake) == set() and is_empty(lake)
    if is_made_again:
        assert DeltaTable(folder(lake)).version() == at.plan.basis.current_version


@pytest.mark.usefixtures("nobody_lives_on")
def test_merge_when_the_log_has_forgotten_the_version_that_it_was_for_then_no_file_goes(
    writer: Writer, lake: Path
) -> None:
    begun(writer, lake)
    cut, at = writer.cuts["acme", "shop"], prepared(lake)
    assert commit(lake, at, cut)
    table = DeltaTable(folder(lake))
    table.alter.set_table_properties({"menura.other": "x"}, raise_if_not_exists=False)
    table.create_checkpoint()
    (folder(lake) / merge_record.entry_path(at.plan.record.version)).unlink()
    before = read(lake)
    remove_left(lake)
    assert files(lake) == names(at) and is_empty(lake) and read(lake) == before


def test_merge_when_its_number_is_free_since_its_log_is_gone_then_nobody_says_that_it_is_a_commit(
    writer: Writer, lake: Path
) -> None:
    begun(writer, lake)
    cut, at = writer.cuts["acme", "shop"], prepared(lake)
    path = folder(lake) / "_delta_log/_last_checkpoint"
    path.write_text('{"version": 1000}')
    with pytest.MonkeyPatch.context() as patched:
        held = DeltaTable(folder(lake), version=at.plan.basis.current_version)
        opened = merge_record.open_table
        patched.setattr(merge_commit, "open_table", lambda of: held if of.endswith("current") else opened(of))
        with pytest.raises(OSError, match="checkpoint"):
            commit(lake, at, cut)
        path.write_text("{}")
        (folder(lake) / merge_record.entry_path(at.plan.record.version)).unlink()
        with pytest.raises(OSError, match="_last_checkpoint is no document"):
            commit(lake, at, cut)
    assert files(lake) == names(at)


@pytest.mark.usefixtures("nobody_lives_on")
def test_merge_when_its_put_is_carried_out_and_the_answer_says_that_it_was_there_then_it_is_its_commit(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a proxy, or NFS, repeats what was done."""
    begun(writer, lake)
    cut, before, at = writer.cuts["acme", "shop"], read(lake), prepared(lake)
    put = LocalStore.put_if_absent

    def repeated(store: LocalStore, path: str, document: bytes) -> bool:
        assert put(store, path, document)
        return put(store, path, document)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "put_if_absent", repeated)
        assert commit(lake, at, cut)
    assert files(lake) == names(at) and read(lake) == merged(lake) == before


@pytest.mark.usefixtures("nobody_lives_on")
def test_merge_when_a_checkpoint_is_made_of_it_before_its_commit_has_ended_then_its_files_and_entry_stay(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(writer, lake)
    cut, before, at = writer.cuts["acme", "shop"], read(lake), prepared(lake)
    put = LocalStore.put_if_absent

    def checkpointed(store: LocalStore, path: str, document: bytes) -> bool:
        done = put(store, path, document)
        DeltaTable(folder(lake)).create_checkpoint()
        return done

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "put_if_absent", checkpointed)
        with pytest.raises(OSError, match="checkpoint"):
            commit(lake, at, cut)
    assert DeltaTable(folder(lake)).version() == at.plan.record.version
    remove_left(lake)
    assert files(lake) == names(at) and is_empty(lake)
    assert read(lake) == merged(lake) == before


@pytest.mark.usefixtures("nobody_lives_on")
@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', LATER])
def test_merge_when_its_record_is_broken_then_it_is_left_alone_with_its_files_and_others_go(
    writer: Writer, lake: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    begun(writer, lake)
    at, other = prepared(lake), prepared(lake)
    for path in (lake / "_menura/merges" / preparation(at)).glob("*.json"):
        path.write_text(text)
    remove_left(lake)
    LeftMerges(str(lake)).has_ended(preparation(at), (), lives_on=False)
    assert files(lake) == names(at) and preparation(at) in caplog.text and "EBADMSG" in caplog.text
    assert list(LeftMerges(str(lake)).found([])) == [preparation(at)]
    assert preparation(other) not in caplog.text


def test_merge_when_it_ended_before_it_noted_anything_then_no_folder_of_it_stays(writer: Writer, lake: Path) -> None:
    begun(writer, lake)
    own = lake / "_menura/merges/early"
    own.mkdir(parents=True)
    (own / "effect-1.parquet").touch()
    LeftMerges(str(lake)).has_ended("early", (), lives_on=True)
    assert is_empty(lake)


def test_step_when_a_file_has_other_rows_than_the_log_says_then_it_fails(writer: Writer, lake: Path) -> None:
    begun(writer, lake)
    plan = prepared(lake).plan
    held = plan.files[0]
    piece = Piece(Rows(replace(held, rows=held.rows - 1), 0, held.rows - 1))
    with pytest.raises(OSError, match="another number of rows"):
        write_piece(plan, piece)


def test_merge_when_a_task_of_it_lives_on_then_the_file_that_it_writes_is_found_too(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(writer, lake)
    at, left = prepared(lake), LeftMerges(str(lake))
    left.has_ended(preparation(at), (), lives_on=True)
    assert files(lake) == set() and list(left.found([])) == [preparation(at)]
    written = folder(lake) / at.added[0].name
    written.touch()
    left.remove(left.settle(left.found([])))
    assert not written.exists() and not is_empty(lake)
    at.plan.record.note("merged-late.parquet")
    (folder(lake) / "merged-late.parquet").touch()
    monkeypatch.setattr(left_merges, "LIVES_ON_SECONDS", 0.0)
    left.remove(left.settle(left.found([])))
    assert files(lake) == set() and is_empty(lake)


def test_merge_when_its_store_refuses_to_remove_files_then_they_go_with_the_next_one(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun(writer, lake)
    at, left = prepared(lake), LeftMerges(str(lake))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "no")

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "delete", refuse)
        left.has_ended(preparation(at), (), lives_on=False)
    assert files(lake) == names(at) and "PermissionError" in caplog.text
    assert left.found([preparation(at)]) == {}, "one in progress is left alone"
    monkeypatch.setattr(left_merges, "LIVES_ON_SECONDS", 0.0)
    left.remove(left.settle(left.found([])))
    assert files(lake) == set() and is_empty(lake)


def test_merges_when_batches_and_merges_change_them_at_once_then_none_is_forgotten() -> None:
    interval = sys.getswitchinterval()
    merges, boundary = WaitingMerges(), CutSeen("acme", "shop", 1, 5, 5, 0, 0, 0)
    tables = [table_id(Table(f"t{number}", {})) for number in range(3000)]
    waits = [Outcome(table, Result.APPLIED, 5, 5, changelog_version=3, merge_at_us=100) for table in tables]
    merges.begin({table_id(Table("other", {})): boundary})
    is_over = threading.Event()

    def fail() -> None:
        while not is_over.is_set():
            merges.failed([table_id(Table("other", {}))], 0)

    thread = threading.Thread(target=fail)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for each in waits:
            merges.note([boundary], [each], 100)
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert merges.tables.keys() >= set(tables)
