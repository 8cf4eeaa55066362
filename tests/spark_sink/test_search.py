"""Search indexes: exactly their tables' rows at each commit, whatever changes and whatever is killed."""

import gc
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_sink.errors import HistoryImpossible, SearchIndexFailed, SearchIndexMissing, SearchTableRefused
from spark_sink.export.rows import Shape
from spark_sink.lake.changelog_retention import read_kept, write_kept
from spark_sink.lake.delta_table import read_layout
from spark_sink.reading import current_state, open_rows
from spark_sink.search import following, index
from spark_sink.search.asking import Search
from spark_sink.search.checking import Comparison, compare
from spark_sink.search.columns import field_of
from spark_sink.search.entries import Entry, Gone, Reached, SearchOutput
from spark_sink.search.following import Follower
from spark_sink.search.index import IndexWriter, open_index, taking
from spark_sink.search.lag import lag_of
from spark_sink.search.opensearch.cluster import Cluster
from spark_sink.search.opensearch.indexes import Indexes
from spark_sink.search.searching import engine_of, open_digests, open_search
from spark_sink.views.maintain import view_table_id
from spark_sink.work import TableId
from tests.servers import ROOT
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import (
    Change,
    Table,
    Workload,
    Writer,
    altered,
    delete,
    insert,
    table_id,
    truncate,
    update,
)
from tests.spark_sink.test_export import ID, ORDERS, Dumps, Lake, row
from tests.spark_sink.view_model import World

#: where indexes are
Where = Path | Cluster
EVENTS = table_id(Workload.EVENTS)
PLAIN = Table("plain", {"id": pa.int32()})
#: follows to the newest cut, and is killed before the nth entry, before a commit or in its midst, or behind it all
CHILD = """
import os, random, signal, sys, threading
from pathlib import Path
from spark_sink.search import following, index
from spark_sink.work import TableId
lake, folder, table, seed = sys.argv[1], Path(sys.argv[2]), TableId(*sys.argv[3].split("/")), int(sys.argv[4])
chosen = random.Random(seed)
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
left = chosen.randrange(40) if seed % 4 == 0 else -1
real_document, real_commit = index.IndexWriter._document, index.IndexWriter.commit
def document(self, entry):
    global left
    left -= 1
    if left == 0:
        kill()
    return real_document(self, entry)
def commit(self, reached):
    if seed % 4 == 1:
        kill()
    if seed % 4 == 2:
        threading.Timer(chosen.random() * 0.03, kill).start()
    real_commit(self, reached)
index.IndexWriter._document, index.IndexWriter.commit = document, commit
with index.taking(folder):
    follower = following.Follower(lake, index.FolderEngine(folder), [table])
    while follower.turn():
        pass
    kill()
"""


@pytest.fixture
def held(writer: Writer, lake: Path) -> Lake:
    return Lake(writer, lake)


@pytest.fixture
def where(tmp_path: Path) -> Where:
    """Of indexes; tests/spark_sink/test_search_opensearch.py has another one."""
    return tmp_path / "indexes"


def follow(held: Lake, where: Where, *tables: TableId) -> Follower:
    """All that is new, as one run of the command."""
    engine = engine_of(where)
    with engine.taking():
        follower = Follower(str(held.folder), engine, tables or [ID])
        while follower.turn():
            pass
        follower.close()
    return follower


def shown(where: Where, table: TableId = ID) -> list[tuple[object, ...]]:
    """The index's rows, as a search gives them."""
    found = open_search(where, table).ask(Search(limit=1000, timeout_seconds=60))
    assert found.total == len(found.rows)
    return sorted((tuple(each.values()) for each in found.rows), key=repr)


def reached_in(where: Where, table: TableId = ID) -> Reached:
    return open_search(where, table).reached


def which(where: Where) -> str:
    """Another one where the index was built anew."""
    return str(open_index(where, ID)[0].number) if isinstance(where, Path) else str(Indexes(where, ID).live())


def compared(where: Where, table: TableId = ID) -> Comparison:
    """With the lake that it was made from."""
    with open_digests(where, table) as found:
        return compare(None, found, table)


def in_lake(held: Lake, table: Table = ORDERS, cut: int | None = None) -> list[tuple[object, ...]]:
    rows = current_state(str(held.folder), table_id(table), cut).to_pylist()
    wide = [name for name, type_ in table.columns.items() if type_ == pa.uint64()]
    texts = [{**each, **{name: str(each[name]) for name in wide if each[name] is not None}} for each in rows]
    return sorted((tuple(each[name] for name in table.columns) for each in texts), key=repr)


def check_equal(held: Lake, where: Where) -> None:
    """To the newest cut: by whole rows, and by what `menura search check` compares."""
    assert shown(where) == in_lake(held)
    found = compared(where)
    assert found.is_equal, found
    assert lag_of(str(held.folder), ID, reached_in(where)).seconds == 0


def change(work: Workload, held: Lake, dumps: Dumps) -> None:
    """Keys come, go and move, the table is emptied, and a dump goes on, which finds that the log lacks changes."""
    for _ in range(work.random.randrange(1, 3)):
        work.cut(held.writer)
    for _ in range(2):
        held.writer.cut(*dumps.step())
    if work.random.random() < 0.2:
        work.orders.rows.clear()
        held.writer.cut(truncate(ORDERS))
    held.follow()
    if work.random.random() < 0.2:
        held.changelog().optimize.compact()


@pytest.mark.history
@pytest.mark.parametrize("seed", range(2))
def test_an_index_when_its_table_changes_at_random_then_searches_see_it_at_one_cut_and_no_other_rows(
    held: Lake, where: Where, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_put, real_output = following._put, type(engine_of(where)).output

    def look() -> None:
        reached = reached_in(where)
        assert not reached.is_between
        assert shown(where) == in_lake(held, cut=reached.cut)

    def put(output: SearchOutput, found: dict[str, Entry | Gone]) -> None:
        real_put(output, found)
        look()

    def output(self: Any, *arguments: Any) -> SearchOutput:
        made = real_output(self, *arguments)
        commit = made.commit

        def committed(reached: Reached) -> None:
            commit(reached)
            look()

        made.commit = committed  # type: ignore[method-assign]
        return made

    built: list[TableId] = []
    real_build = Follower._build
    monkeypatch.setattr(Follower, "_build", lambda self, table: built.append(table) or real_build(self, table))
    monkeypatch.setattr(following, "_put", put)
    monkeypatch.setattr(type(engine_of(where)), "output", output)
    work = Workload(seed)
    held.cut((ORDERS, work.orders.follow([insert(**row(0, "a"))])))
    dumps = Dumps(work, held)
    engine = engine_of(where)
    with engine.taking():
        follower = Follower(str(held.folder), engine, [ID])
        for _ in range(9):
            change(work, held, dumps)
            if work.random.random() < 0.7:
                assert follower.turn()
                assert not follower.failed
                check_equal(held, where)
        while follower.turn():
            pass
        follower.close()
    check_equal(held, where)
    assert built == [ID]  # never anew


@pytest.mark.history
def test_an_index_when_its_process_is_killed_at_random_then_it_is_as_at_one_cut_and_goes_on(
    held: Lake, where: Path
) -> None:
    work = Workload(10)
    held.cut((ORDERS, work.orders.follow([insert(**row(number, "a")) for number in range(30)])))
    dumps = Dumps(work, held)
    table = "/".join((ID.tenant, ID.source, ID.database, ID.table))
    for number in range(5):
        change(work, held, dumps)
        code = [sys.executable, "-c", CHILD, str(held.folder), str(where), table, str(number)]
        child = subprocess.run(code, cwd=ROOT, check=False, capture_output=True, text=True)
        assert child.returncode == -9, child.stderr
        try:
            reached = reached_in(where)
        except SearchIndexMissing:
            assert number < 3  # the fourth one comes to its end
        else:
            assert shown(where) == in_lake(held, cut=reached.cut)
            assert compared(where).is_equal
    change(work, held, dumps)
    follow(held, where)
    check_equal(held, where)
    assert len(list((where / ID.default_folder).glob("[0-9]*"))) == 1


@pytest.mark.history
@pytest.mark.parametrize(
    ("kind", "name", "call"),
    [(IndexWriter, "upsert", 1), (IndexWriter, "commit", 1), (index.shutil, "rmtree", 1)],
)
def test_an_index_when_it_is_killed_while_it_is_built_anew_then_the_former_or_the_new_one_answers(
    held: Lake, where: Path, kind: type, name: str, call: int
) -> None:
    killed_while_built_anew(held, where, kind, name, call)


def killed_while_built_anew(held: Lake, where: Where, kind: type, name: str, call: int) -> None:
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2))]))
    follow(held, where)
    before = shown(where)
    held.cut(altered(Table("orders", {**ORDERS.columns, "more": pa.string()})))
    wider = Table("orders", {**ORDERS.columns, "more": pa.string()})
    held.cut((wider, [insert(**row(3), more="now"), update({**row(1), "more": None}, {**row(1), "more": "one"})]))
    with pytest.MonkeyPatch.context() as patched:
        kill_at(patched, kind, name, call)
        with pytest.raises(Killed):
            follow(held, where)
    gc.collect()
    assert shown(where) in (before, in_lake(held, wider))
    follow(held, where)
    assert shown(where) == in_lake(held, wider)
    assert open_search(where, ID).ask(Search("more:one")).total == 1
    assert compared(where).is_equal


def test_an_index_when_many_rows_change_or_the_changelog_lacks_some_then_it_is_built_anew(
    held: Lake, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.cut((ORDERS, [insert(**row(number)) for number in range(8)]))
    follow(held, where)
    former = which(where)
    monkeypatch.setattr(following, "MOST_CHANGES", 4)
    held.cut((ORDERS, [delete(**row(number)) for number in range(6)]))
    follow(held, where)
    check_equal(held, where)
    assert (second := which(where)) != former
    held.cut((ORDERS, [insert(**row(20))]))
    write_kept(held.changelog(), type(read_kept(held.changelog()))(begins_gsn=1000))
    held.cut((ORDERS, [insert(**row(21))]))
    assert not follow(held, where).failed
    check_equal(held, where)
    assert which(where) not in (former, second)


@pytest.mark.parametrize("failure", [HistoryImpossible("testing", "a step fails"), OSError("a step fails")])
def test_an_index_when_a_step_fails_in_its_midst_then_nothing_of_it_is_there_and_the_next_one_has_all(
    held: Lake, where: Where, failure: Exception
) -> None:
    def half_put(output: SearchOutput, found: dict[str, Entry | Gone]) -> None:
        output.delete([Gone(key, each.gsn) for key, each in found.items()])
        raise failure

    held.cut((ORDERS, [insert(**row(number)) for number in range(3)]))
    with (engine := engine_of(where)).taking():
        follower = Follower(str(held.folder), engine, [ID])
        follower.turn()
        before = shown(where)
        held.cut((ORDERS, [delete(**row(1)), insert(**row(5))]))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(following, "_put", half_put)
            with suppress(OSError):
                follower.turn()
        assert list(follower.failed.values()) == ([failure] if isinstance(failure, HistoryImpossible) else [])
        assert shown(where) == before
        held.cut((ORDERS, [insert(**row(6))]))
        while follower.turn():
            pass
        follower.close()
    assert not follower.failed
    check_equal(held, where)


def test_an_index_when_rows_come_without_all_values_then_it_has_all_of_them(held: Lake, where: Where) -> None:
    held.cut((ORDERS, [insert(**row(number, "long")) for number in range(4)]))
    follow(held, where)
    former = which(where)

    def moved(before: int, after: int, **known: object) -> list[Change]:
        lacking = {"_absent": tuple(name for name in ("amount", "note") if name not in known)}
        return update({"id": before, "_absent": ("amount", "note")}, {"id": after, **known, **lacking})

    swap = [moved(0, 9), moved(1, 0, amount=7), moved(9, 1, note="new"), moved(2, 2, amount=None)]
    held.cut((ORDERS, [*swap, moved(3, 5), delete(id=5, _absent=("amount", "note"))]))
    follow(held, where)
    check_equal(held, where)
    assert [each[0] for each in shown(where)] == [0, 1, 2]
    assert which(where) == former


def test_a_table_without_a_key_when_it_is_to_be_indexed_then_is_refused_and_others_go_on(
    held: Lake, where: Where
) -> None:
    held.cut((ORDERS, [insert(**row(1))]), (Workload.EVENTS, [insert(kind="a")]))
    follower = follow(held, where, ID, EVENTS)
    assert list(follower.failed) == [EVENTS]
    assert isinstance(follower.failed[EVENTS], SearchTableRefused)
    check_equal(held, where)
    with pytest.raises(SearchIndexMissing):
        open_search(where, EVENTS)


def test_a_table_when_its_index_is_to_be_built_anew_and_is_refused_then_it_is_tried_once_for_each_version(
    held: Lake, where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[TableId] = []
    real = Follower._build

    def build(self: Follower, table: TableId) -> None:
        built.append(table)
        real(self, table)

    monkeypatch.setattr(Follower, "_build", build)
    held.cut((Workload.EVENTS, [insert(kind="a")]))
    write_kept(held.changelog(EVENTS), type(read_kept(held.changelog(EVENTS)))(begins_gsn=2))
    with (engine := engine_of(where)).taking():
        follower = Follower(str(held.folder), engine, [EVENTS])
        for tries in (1, 2):
            held.cut((Workload.EVENTS, [insert(kind="b")]))
            assert [follower.turn() for _ in range(3)] == [False] * 3
            assert isinstance(follower.failed[EVENTS], SearchTableRefused)
            assert len(built) == tries
        follower.close()


def test_an_index_when_it_is_killed_before_its_folder_has_a_file_then_the_next_one_builds_all(
    held: Lake, where: Path
) -> None:
    held.cut((ORDERS, [insert(**row(1))]), (PLAIN, [insert(id=1)]))
    with pytest.MonkeyPatch.context() as patched:
        kill_at(patched, index.tantivy, "Index", 1)
        with pytest.raises(Killed):
            follow(held, where)
    assert list((where / ID.default_folder / "1").iterdir()) == []
    with pytest.raises(SearchIndexMissing):
        open_index(where, ID)
    assert not follow(held, where, ID, table_id(PLAIN)).failed
    check_equal(held, where)
    assert shown(where, table_id(PLAIN)) == in_lake(held, PLAIN)
    assert [each.name for each in (where / ID.default_folder).glob("[0-9]*")] == ["2"]


@pytest.mark.parametrize("numbers", [(7,), (7, 8)])  # with the same version, and with another
def test_an_index_when_its_table_is_another_one_now_then_it_is_built_anew(
    held: Lake, where: Where, numbers: tuple[int, ...]
) -> None:
    held.cut((ORDERS, [insert(**row(1)), insert(**row(2))]))
    follow(held, where)
    other = Lake(Writer(held.folder.parent / "landing2"), held.folder.parent / "lake2")
    for number in numbers:
        other.cut((ORDERS, [insert(**row(number))]))
    follow(other, where)
    check_equal(other, where)


def test_an_index_of_a_view_when_its_tables_change_then_it_is_equal_at_each_cut(tmp_path: Path, where: Where) -> None:
    world = World(tmp_path, 1)
    world.want(joined=lambda named: f"SELECT o.id, o.total, p.name FROM {named('orders')} o"
                                    f" LEFT JOIN {named('people')} p ON p.id = o.person")  # fmt: skip
    table = view_table_id("acme", "joined")
    for changes in (30, 12, 12):
        world.step(changes)
        with (engine := engine_of(where)).taking():
            follower = Follower(str(world.lake), engine, [table])
            while follower.turn():
                pass
            follower.close()
        assert not follower.failed
        found = current_state(str(world.lake), table).to_pylist()
        rows = [(each["id"], str(each["total"]) if each["total"] is not None else None, each["name"]) for each in found]
        assert shown(where, table) == sorted(rows, key=repr)
        assert compared(where, table).is_equal


def test_a_folder_when_another_process_writes_there_then_is_refused(held: Lake, where: Path) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    with taking(where), pytest.raises(SearchIndexFailed, match="another process"):
        follow(held, where)
    follow(held, where)
    check_equal(held, where)


def test_a_check_when_an_index_lacks_a_row_or_has_others_then_it_says_how_many(held: Lake, where: Where) -> None:
    held.cut((ORDERS, [insert(**row(number, "a")) for number in range(20)]))
    follow(held, where)
    reached = reached_in(where)
    source = Shape.of(open_rows(str(held.folder), ID).schema, read_layout(held.changelog()), field_of)
    rows = source.rows(pa.concat_tables(list(open_rows(str(held.folder), ID).tables(["id", "amount", "note", "_gsn"]))))
    entries = {each.values["id"]: each for each in (Entry.of(found, reached.definition) for found in rows)}
    writer = engine_of(where).output(ID, reached.definition, reached)
    changed, foreign = replace(entries[5], values={**entries[5].values, "note": "b"}), replace(entries[6], key="f" * 32)

    def counted(deleted: Sequence[Entry], put: Sequence[Entry]) -> tuple[int, int, int, int]:
        writer.delete([Gone(each.key, each.gsn) for each in deleted])
        writer.upsert(put)
        writer.commit(reached)
        found = compared(where)
        assert found.is_equal == (found.ranges == 0)
        return found.index_rows, found.missing, found.extra, found.other

    assert counted([], [changed]) == (20, 0, 0, 1)
    assert counted([entries[3]], [foreign]) == (20, 1, 1, 1)
    assert counted([entries[4]], [entries[5]]) == (19, 2, 1, 0)
    assert counted([foreign], [entries[3], entries[4]]) == (20, 0, 0, 0)
    writer.close()


def test_an_index_when_it_is_behind_the_lake_then_it_says_since_when(held: Lake, where: Where) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    follow(held, where)
    reached = reached_in(where)
    held.cut((Workload.EVENTS, [insert(kind="a")]))
    assert lag_of(str(held.folder), ID, reached).seconds == 0
    held.cut((ORDERS, [insert(**row(2))]))
    lag = lag_of(str(held.folder), ID, reached)
    assert (lag.index_cut, lag.lake_cut) == (1, 3)
    assert lag.seconds > 0
    assert compared(where).is_equal  # at its own cut
