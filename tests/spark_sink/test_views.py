"""Views: equal to their text over the tables after each batch, whatever comes, and whatever is killed or lost."""

import logging
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from menura.change_batch import CHANGE_TYPE
from menura.views.definition import InputName, Shape
from menura.views.plan import Plan
from pyspark.errors import PySparkException

from spark_sink.export.feed import Feed
from spark_sink.ingest.view_task import ViewOutcome
from spark_sink.lake import tail
from spark_sink.lake.tail import Waiting
from spark_sink.reading import changelog, list_tables
from spark_sink.reading_at import lake_at
from spark_sink.views import closure, inputs, maintain, view_table
from spark_sink.views.maintain import ViewWork, view_table_id
from spark_sink.work import TableId
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import Chunk, Event, Table, Values, insert, update
from tests.spark_sink.view_model import ORDERS, PEOPLE, Named, Text, World, texts

WAITS = Waiting(3600, -1, part_of_table=1e9)
AT_ONCE = Waiting(0)


def joined(named: Named) -> str:
    return f"SELECT o.id, o.qty, p.name FROM {named('orders')} o LEFT JOIN {named('people')} p ON p.id = o.person"


def by_name(named: Named) -> str:
    return (
        f"SELECT v.name, count(*) AS n, sum(v.qty) AS qty, max(v.id) AS last FROM {named('joined')} v"
        " WHERE v.qty IS NULL OR v.qty >= 0 GROUP BY v.name"
    )


def chained(tmp_path: Path, seed: int = 1, waiting: Waiting = AT_ONCE) -> World:
    world = World(tmp_path, seed, waiting=waiting)
    world.want(joined=joined, by_name=by_name)
    world.step(30)
    world.check()
    return world


def versions(world: World) -> list[tuple[str, int]]:
    return sorted((state.name, state.version) for state in world.sink.states())


def test_a_view_of_groups_when_it_is_exported_then_it_has_its_own_columns_and_none_of_the_sinks(tmp_path: Path) -> None:
    world = chained(tmp_path)
    world.step()
    for begin in (Feed.state, Feed.next):
        step = begin(Feed(str(world.lake), [view_table_id("acme", "by_name")]))
        assert step is not None
        rows = [
            (message.value[side], of.envelope.shape.fields())
            for of, message in step.messages()
            if message.value
            for side in ("before", "after")
        ]
        assert {(*(row or columns), *columns) for row, columns in rows} == {("name", "n", "qty", "last") * 2}


@pytest.mark.parametrize(
    "text", [joined, lambda named: f"SELECT o.qty, count(*) AS n FROM {named('orders')} o GROUP BY o.qty"]
)
def test_a_view_when_its_table_can_not_be_read_then_its_storage_failed_and_it_goes_on_once_it_can(
    text: Text, tmp_path: Path
) -> None:
    world = World(tmp_path, 1, stores=False)
    world.want(v=text)
    world.land(30)
    world.apply()
    orders = TableId("acme", "shop", "app", "orders").folder(str(world.lake))
    files = [Path(path) for path in DeltaTable(f"{orders}/current").file_uris()]
    for path in files:
        path.rename(path.with_suffix(".away"))
    world.sink.turn()
    assert [(state.state, state.code) for state in world.sink.states()] == [("stopped", "VIEW_STORAGE_FAILED")]
    for path in files:
        path.with_suffix(".away").rename(path)
    world.sink = world.new_sink()
    world.sink.turn()
    world.check()


class Losing(World):
    """Loses the job of some views, after the turns of all others in it."""

    lost: tuple[str, ...] = ()

    def tasks(self, task: Any, values: Any) -> Any:
        named = {value: value.definition.name for value in values}
        found = super().tasks(task, [value for value in values if named[value] not in self.lost])
        if len(found) < len(values):
            raise PySparkException("a worker was killed")
        return found


def test_views_when_spark_loses_the_job_of_one_then_it_alone_stops_and_the_others_versions_are_recorded(
    tmp_path: Path,
) -> None:
    world = Losing(tmp_path, 1)
    world.want(joined=joined, people=lambda named: f"SELECT p.id, p.name FROM {named('people')} p")
    world.step(30)
    for turn in range(2):
        world.lost = ("joined",) if turn == 0 else ()
        world.land(30, empties=False)
        world.apply()
        world.sink = world.sink if turn == 0 else world.new_sink()
        world.sink.turn()
        read = lake_at(str(world.lake), groups=[("acme", "~views")])
        at = {each.table.table: each.changelog_version for each in read.tables}
        folder = Path(view_table_id("acme", "people").folder(str(world.lake)), "changelog")
        assert at["people"] == DeltaTable(str(folder)).version()
        states = {state.name: (state.state, state.code) for state in world.sink.states()}
        stands = ("stopped", "VIEW_TASK_LOST") if turn == 0 else ("following", "")
        assert states == {"joined": stands, "people": ("following", "")}
    world.check()


def test_a_turn_when_the_sink_ends_in_the_midst_of_another_one_then_it_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, met = threading.Semaphore(0), threading.Event()
    runs: list[int] = []

    def run(works: Sequence[ViewWork]) -> Sequence[ViewOutcome]:
        runs.append(len(works))
        if len(runs) > 1:
            met.set()
        inside.release()
        met.wait(1)  # a second turn at once would come in here
        return real(works)

    world = World(tmp_path, 1)
    world.want(joined=joined)
    world.land(30)
    world.apply()
    real = world.sink._run
    monkeypatch.setattr(world.sink, "_run", run)
    world.sink.start()
    inside.acquire()
    world.sink.stop(0, finish=True)
    assert not met.is_set()
    assert runs == [1]
    world.check()


@pytest.mark.history
@pytest.mark.parametrize(("seed", "stores"), [(0, True), (1, True), (2, False), (3, False)])
def test_views_when_their_tables_change_at_random_then_they_equal_their_texts(
    seed: int, stores: bool, tmp_path: Path
) -> None:
    world = World(tmp_path, seed, waiting=WAITS if seed % 2 else AT_ONCE, stores=stores)
    world.want(**texts(seed, 4))
    world.step(30)
    world.check()
    for _ in range(5):
        world.step()
        world.check()


def test_a_view_when_it_reads_another_view_then_it_follows_it_at_the_same_cuts(tmp_path: Path) -> None:
    world = chained(tmp_path)
    for _ in range(4):
        world.step()
        world.check()
        assert len({state.cuts for state in world.sink.states()}) == 1
    found = lake_at(str(world.lake), groups=[("acme", "~views")])
    assert [str(each.table.table) for each in found.tables] == ["by_name", "joined"]
    assert view_table_id("acme", "joined") in list_tables(str(world.lake))


def test_a_view_when_nothing_of_its_tables_changes_then_it_has_no_new_version_and_is_as_fresh(tmp_path: Path) -> None:
    world = chained(tmp_path)
    before = versions(world)
    world.writer.cut(source="crm")
    world.apply()
    world.sink.turn()
    assert versions(world) == before
    assert {cut.source: cut.cut for cut in world.sink.states()[0].cuts} == {"crm": 2, "shop": 1}


def test_a_change_of_a_joined_row_when_it_is_looked_up_then_only_rows_that_look_it_up_change(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    world.want(joined=joined)
    people = [{"id": each, "name": "ann", "country": None} for each in (1, 2)]
    orders = [_order(each, person=1 + each % 2) for each in range(10)]
    world.writer.cut((PEOPLE, [insert(**each) for each in people]), source="crm")
    world.writer.cut((ORDERS, [insert(**each) for each in orders]), source="shop")
    world.rows = {
        "orders": {each["id"]: each for each in orders},
        "people": {1: people[0], 2: people[1]},
        "countries": {},
    }
    world.apply()
    world.sink.turn()
    after = {**people[0], "name": "bo"}
    world.writer.cut((PEOPLE, [update(people[0], after)]), source="crm")
    world.rows["people"][1] = after
    world.apply()
    world.sink.turn()
    world.check()
    rows = changelog(str(world.lake), view_table_id("acme", "joined")).to_pylist()
    changed = [row for row in rows if row[CHANGE_TYPE] != "insert"]
    assert sorted(row["id"] for row in changed if row[CHANGE_TYPE] == "update_postimage") == [0, 2, 4, 6, 8]
    assert len(changed) == 10
    assert {row["_position"] for row in changed} == {"crm:2 shop:1"}


def _fanned_out(world: World, orders: int) -> None:
    """All orders are one person's, whose name changes then; of very many the model has none."""
    person, portion = {"id": 1, "name": "ann", "country": None}, 100_000
    world.writer.cut((PEOPLE, [insert(**person)]), source="crm")
    for first in range(0, orders, portion):
        rows = [_order(each, person=1) for each in range(first, min(first + portion, orders))]
        world.writer.cut((ORDERS, [insert(**each) for each in rows]), source="shop")
        world.apply()
        if orders < portion:
            world.rows["orders"] = {each["id"]: each for each in rows}
    world.sink.turn()
    world.rows["people"] = {1: {**person, "name": "bo"}}
    world.writer.cut((PEOPLE, [update(person, world.rows["people"][1])]), source="crm")
    world.apply()
    world.sink.turn()


@pytest.mark.parametrize("stores", [True, False])
@pytest.mark.parametrize(("orders", "is_whole"), [(10, False), (11, True)])
def test_a_change_when_more_rows_look_it_up_than_may_then_all_rows_are_compared_and_its_state_and_the_log_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    stores: bool, orders: int, is_whole: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(closure, "MOST_TOUCHED", 10)
    caplog.set_level(logging.INFO, "menura.sink")
    world = World(tmp_path, 1, stores=stores)
    world.want(joined=joined)
    _fanned_out(world, orders)
    world.check()
    (state,) = world.sink.states()
    why = "more than 10 rows look up what changed"
    assert state.message == (f"Its last version was computed from all rows of its tables: {why}" if is_whole else "")
    assert state.code == "" and (f"changes={orders} whole={why}" in caplog.text) is is_whole
    world.writer.cut(source="crm")
    world.apply()
    world.sink.turn()
    assert world.sink.states()[0].message == state.message
    after = {**world.rows["orders"][0], "qty": 7}
    world.writer.cut((ORDERS, [update(world.rows["orders"][0], after)]), source="shop")
    world.rows["orders"][0] = after
    world.apply()
    world.sink.turn()
    world.check()
    assert world.sink.states()[0].message == ""


@pytest.mark.long
def test_a_change_when_more_than_a_million_rows_look_it_up_then_the_view_is_right(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    world.want(by_name=lambda named: f"SELECT p.name, count(*) AS n, sum(o.qty) AS qty FROM {named('orders')} o"
               f" JOIN {named('people')} p ON p.id = o.person GROUP BY p.name")  # fmt: skip
    _fanned_out(world, closure.MOST_TOUCHED + 1)
    assert world.held("by_name") == [("bo", closure.MOST_TOUCHED + 1, Decimal(closure.MOST_TOUCHED + 1))]
    assert "more than 1000000 rows look up what changed" in world.sink.states()[0].message


def test_a_joined_row_when_a_part_of_its_key_is_a_literal_then_its_changes_are_followed(tmp_path: Path) -> None:
    world = World(tmp_path, 1)
    titles = Table("people", {**PEOPLE.columns, "country": pa.string()}, key=("id", "country"), database="app")
    world.want(
        joined=lambda named: (
            f"SELECT o.id, p.name FROM {named('orders')} o"
            f" LEFT JOIN {named('people')} p ON p.id = o.person AND p.country = 'de'"
        )
    )
    people: list[Values] = [
        {"id": key, "name": "ann", "country": country} for key in (1, 2) for country in ("de", "fr")
    ]
    orders = [_order(each, person=1 + each % 3) for each in range(10)]
    world.writer.cut((titles, [insert(**each) for each in people]), source="crm")
    world.writer.cut((ORDERS, [insert(**each) for each in orders]), source="shop")
    world.rows["orders"] = {each["id"]: each for each in orders}
    world.rows["people"] = dict(enumerate(people))
    world.apply()
    world.sink.turn()
    world.check()
    for place, changed in ((0, {"name": "bo"}), (1, {"name": "bo"}), (2, {"country": "it"})):
        after = {**people[place], **changed}
        world.writer.cut((titles, [update(people[place], after)]), source="crm")
        world.rows["people"][place] = after
        world.apply()
        world.sink.turn()
        world.check()


def _order(key: int, **own: object) -> dict[str, object]:
    return {"id": key, "person": None, "qty": 1, "total": None, "note": None, "day": None, **own}


@pytest.mark.history
@pytest.mark.parametrize(
    ("module", "name"), [(view_table, "append"), (view_table, "write_deltalake"), (tail, "merge_effect")]
)
@pytest.mark.parametrize("call", [1, 2])
def test_views_when_the_sink_is_killed_between_two_steps_then_the_next_turn_has_all(
    module: object, name: str, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, call, waiting=AT_ONCE)
    world.want(joined=joined, by_name=by_name)
    for changes in (30, 12):
        world.land(changes)
        world.apply()
        with monkeypatch.context() as patch:
            kill_at(patch, module, name, call)  # type: ignore[arg-type]
            with suppress(Killed):
                world.sink.turn()
        world.sink = world.new_sink()
        world.sink.turn()
        world.check()


def test_a_version_when_it_is_killed_after_its_commit_then_it_is_not_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = chained(tmp_path)
    world.land()
    world.apply()
    with monkeypatch.context() as patch:
        kill_at(patch, view_table, "compact_when_due", 1)
        with pytest.raises(Killed):
            world.sink.turn()
    held = DeltaTable(f"{view_table_id('acme', 'joined').folder(str(world.lake))}/changelog").version()
    world.sink = world.new_sink()
    world.sink.turn()
    world.check()
    assert DeltaTable(f"{view_table_id('acme', 'joined').folder(str(world.lake))}/changelog").version() == held


@pytest.mark.history
@pytest.mark.parametrize("lost", ["", "changelog", "current"])
def test_a_view_when_its_folder_is_lost_then_it_is_computed_again(lost: str, tmp_path: Path) -> None:
    world = chained(tmp_path)
    world.step()
    shutil.rmtree(Path(view_table_id("acme", "joined").folder(str(world.lake)), lost))
    world.sink = world.new_sink()
    world.step()
    for name, rows in world.expected().items():
        assert world.held(name) == rows


@pytest.mark.history
@pytest.mark.parametrize("kind", ["changelog", "current"])
def test_a_view_when_an_older_copy_of_it_is_put_back_then_it_is_right_again(kind: str, tmp_path: Path) -> None:
    world = chained(tmp_path)
    folder = Path(view_table_id("acme", "joined").folder(str(world.lake)), kind)
    shutil.copytree(folder, tmp_path / "copy")
    world.step()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    world.sink = world.new_sink()
    world.step()
    for name, rows in world.expected().items():
        assert world.held(name) == rows


def test_a_change_without_all_values_when_the_version_before_is_removed_then_the_view_is_computed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = chained(tmp_path)
    monkeypatch.setattr(inputs, "has_partial", lambda rows: True)  # as if a log had carried changed columns alone
    folders = [Path(table.folder(str(world.lake)), "current") for table in list_tables(str(world.lake))]
    before = [path for folder in folders if "~views" not in str(folder) for path in folder.glob("*.parquet")]
    assert before
    world.land()
    world.apply()
    for path in before:
        path.unlink()
    world.sink.turn()
    world.check()


def test_a_view_when_its_text_changes_then_it_is_that_of_the_new_one(tmp_path: Path) -> None:
    world = chained(tmp_path)
    world.want(joined=lambda named: joined(named) + " WHERE o.qty > 0")
    world.step()
    world.check()
    world.want(joined=lambda named: f"SELECT o.id, o.day FROM {named('orders')} o")
    world.step()
    world.check()


def test_a_view_when_a_release_means_something_else_by_its_text_then_it_is_computed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a function was computed wrongly: no change of a table would reach rows that are there."""
    world = chained(tmp_path)
    before = versions(world)
    world.sink = world.new_sink()
    world.sink.turn()
    assert versions(world) == before
    real = maintain.make_plan

    def other(sql: str, shapes: Mapping[InputName, Shape]) -> Plan:
        return real(sql.replace("o.qty,", "o.qty + 1000 AS qty,"), shapes)

    monkeypatch.setattr(maintain, "make_plan", other)
    world.sink = world.new_sink()
    world.sink.turn()
    assert versions(world) == before
    held = world.held("joined")
    monkeypatch.setattr(maintain, "MEANING", maintain.MEANING + 1)
    world.sink = world.new_sink()
    world.sink.turn()
    assert world.held("joined") != held
    assert world.held("joined") == world.replayed("joined")


def test_a_view_when_a_column_of_its_table_changes_then_it_follows_or_says_what_it_lacks(tmp_path: Path) -> None:
    world = chained(tmp_path)
    world.want(joined=joined)
    wider = Table("people", {**PEOPLE.columns, "age": pa.int32()}, database="app")
    row = {"id": 1, "name": "new", "country": None, "age": 3}
    held = world.rows["people"].get(1)
    change = insert(**row) if held is None else update({**held, "age": None}, row)
    world.writer.cut((wider, [change]), source="crm")
    world.rows["people"][1] = {name: row[name] for name in PEOPLE.columns}
    world.apply()
    world.sink.turn()
    world.check()
    world.want(joined=lambda named: f"SELECT o.id, o.gone FROM {named('orders')} o")
    world.sink.turn()
    (state,) = world.sink.states()
    assert (state.state, state.code) == ("stopped", "VIEW_REFUSED")
    assert "The view stays at its last version" in state.message and "view create joined --replace" in state.message
    world.want(joined=joined)
    world.sink.turn()
    world.check()


def test_a_view_when_its_table_is_being_dumped_then_it_waits_and_then_has_what_the_dump_brought(tmp_path: Path) -> None:
    world = chained(tmp_path)
    before = versions(world)
    world.writer.cut(Event(PEOPLE, "DUMP_STARTED", dump="dump-1"), source="crm")
    world.apply()
    world.sink.turn()
    states = {state.name: (state.state, [cut.cut for cut in state.cuts]) for state in world.sink.states()}
    assert states == {"joined": ("waiting", [1, 1]), "by_name": ("following", [1, 1])}
    rows: list[Values] = [{"id": 3, "name": "dumped", "country": "de"}]
    world.writer.cut(Chunk(PEOPLE, rows, gsn=world.writer.last_gsns["acme", "crm"]), source="crm")
    dumped = Event(PEOPLE, "DUMPED", dump="dump-1", removes_rows_before_gsn=world.writer.last_gsns["acme", "crm"] - 1)
    world.writer.cut(dumped, source="crm")
    world.rows["people"] = {3: rows[0]}
    world.apply()
    world.sink = world.new_sink()
    world.sink.turn()
    world.check()
    assert versions(world) > before


def test_a_value_when_it_is_beyond_its_type_then_the_view_alone_stops_and_goes_on_once_it_is_mended(
    tmp_path: Path,
) -> None:
    world = chained(tmp_path)
    big = Table("orders", {**ORDERS.columns, "qty": pa.int64()}, database="app")
    world.want(
        joined=joined,
        doubled=lambda named: f"SELECT o.id, o.qty * 4611686018427387904 AS x FROM {named('orders')} o WHERE o.qty > 0",
    )
    row = _order(77, qty=3)
    world.writer.cut((big, [insert(**row)]), source="shop")
    world.rows["orders"] = {**world.rows["orders"], 77: row}
    world.apply()
    world.sink.turn()
    states = {state.name: (state.state, state.code) for state in world.sink.states()}
    assert states == {"joined": ("following", ""), "doubled": ("stopped", "VIEW_NOT_COMPUTED")}
