"""Divided turns of views: the same rows, changes and versions as of one task, whatever is killed between two steps."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from menura.change_batch import CHANGE_TYPE, GSN
from menura.views.definition import InputName

from spark_sink.ingest import divided_views
from spark_sink.lake import uncommitted_files
from spark_sink.lake.delta_table import scan
from spark_sink.lake.key_bounds import bounded
from spark_sink.lake.tail import Waiting
from spark_sink.lake.uncommitted_files import FilesWriter
from spark_sink.reading import changelog, current_state
from spark_sink.views import current_rewrite, division, division_end, inputs, view_table
from spark_sink.views.division import Dividing
from spark_sink.views.key_ranges import SAMPLED_ROWS, KeyRange, choose_ranges
from spark_sink.views.maintain import view_table_id
from spark_sink.views.view_table import ViewTable
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.view_model import SOURCES, Named, World, texts

AT_ONCE = Waiting(0)
WAITS = Waiting(3600, -1, part_of_table=1e9)
OF_ANY_SIZE = Dividing(3, least_rows=0, least_gain=0)
TABLES = [InputName(source, "app", name) for name, source in SOURCES.items()]


def joined(named: Named) -> str:
    return f"SELECT o.id, o.qty, p.name FROM {named('orders')} o LEFT JOIN {named('people')} p ON p.id = o.person"


def by_name(named: Named) -> str:
    return (
        f"SELECT v.name, count(*) AS n, sum(v.qty) AS qty, avg(v.qty) AS mean, max(v.id) AS last"
        f" FROM {named('joined')} v GROUP BY v.name"
    )


def named_again(named: Named) -> str:
    """Driven by a key that is null in one row."""
    return f"SELECT b.name, b.n, b.last FROM {named('by_name')} b"


CHAIN = {"joined": joined, "by_name": by_name, "named_again": named_again}


class Counted(World):
    """That counts ranges."""

    ranges = 0

    def tasks(self, task: Any, values: Any) -> Any:
        self.ranges += sum(isinstance(each, divided_views._Range) for each in values)
        return super().tasks(task, values)


def counted(folder: Path, seed: int, dividing: Dividing, waiting: Waiting = AT_ONCE) -> Counted:
    world = Counted(folder, seed, waiting=waiting, dividing=dividing)
    world.want(**texts(seed, 2), **CHAIN)
    return world


def log_of(world: World, name: str) -> list[dict[str, Any]]:
    return changelog(str(world.lake), view_table_id("acme", name)).to_pylist()


def changes(world: World, name: str) -> Counter[tuple[object, ...]]:
    """All of a view's, but for their numbers."""
    rows = log_of(world, name)
    return Counter(tuple(value for column, value in row.items() if column != GSN) for row in rows)


def reached(world: World, name: str) -> tuple[object, ...]:
    table = ViewTable(str(world.lake), view_table_id("acme", name), 0)
    found = table.reached(TABLES, sorted(set(SOURCES.values())))
    assert found is not None
    return found.version, found.digest, found.inputs, found.cuts


def check_numbers(world: World, name: str) -> None:
    """Each change has one of its own, both sides of an update the same; those of a version are above the former's."""
    numbers: dict[int, list[str]] = {}
    last: dict[int, tuple[int, int]] = {}
    for row in log_of(world, name):
        numbers.setdefault(row[GSN], []).append(row[CHANGE_TYPE])
        low, high = last.get(row["_transaction_id"], (row[GSN], row[GSN]))
        last[row["_transaction_id"]] = (min(low, row[GSN]), max(high, row[GSN]))
    for kinds in numbers.values():
        assert len(kinds) == 1 or sorted(kinds) == ["update_postimage", "update_preimage"]
    puts = {told_row(row) for row in log_of(world, name) if row[CHANGE_TYPE] in ("insert", "update_postimage")}
    assert puts.issuperset(map(told_row, current_state(str(world.lake), view_table_id("acme", name)).to_pylist()))
    spans = [span for _, span in sorted(last.items())]
    assert all(before[1] < after[0] for before, after in pairwise(spans)), spans


def told_row(row: dict[str, Any]) -> tuple[object, ...]:
    """With its number."""
    return row[GSN], *(value for column, value in row.items() if not column.startswith("_"))


def unnamed_files(world: World, name: str) -> list[Path]:
    """Of divisions, that no version names."""
    found = []
    for kind in ("changelog", "current"):
        folder = Path(view_table_id("acme", name).folder(str(world.lake)), kind)
        last = DeltaTable(str(folder)).version()
        named = {path.rpartition("/")[2] for at in range(last + 1) for path in DeltaTable(str(folder), at).file_uris()}
        found += [path for path in folder.glob("divided-*") if path.name not in named]
    return found


@pytest.mark.history
@pytest.mark.parametrize("seed", range(4))
def test_views_when_each_turn_is_divided_then_they_are_as_of_one_task(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(inputs, "MOST_CHANGES", 0)  # each turn of a table's view is a comparison
    waiting = WAITS if seed % 3 else AT_ONCE
    alone, divided = (
        counted(tmp_path / word, seed, dividing, waiting)
        for word, dividing in (("alone", Dividing()), ("divided", OF_ANY_SIZE))
    )
    for turn in range(3):
        for world in (alone, divided):
            world.step(12 if turn else 40)
            world.check()
        for name in divided.views:
            assert changes(divided, name) == changes(alone, name), name
            assert reached(divided, name) == reached(alone, name), name
            check_numbers(divided, name)
            assert unnamed_files(divided, name) == []
    assert alone.ranges == 0
    assert divided.ranges >= 2 * (3 if seed % 2 else 1) * 3


def test_a_view_when_a_range_is_empty_or_all_are_then_it_is_as_of_one_task(tmp_path: Path) -> None:
    world = Counted(tmp_path, 3, dividing=OF_ANY_SIZE)
    world.want(
        joined=lambda named: joined(named) + " WHERE o.id > 30",
        none=lambda named: joined(named) + " WHERE o.id > 1000",
        groups=lambda named: f"SELECT o.qty, count(*) AS n FROM {named('orders')} o WHERE o.id > 1000 GROUP BY o.qty",
    )
    for turn in range(3):
        world.step(12 if turn else 40)
        world.check()
    assert world.ranges >= 6
    assert {state.version for state in world.sink.states()} == {3}


def test_a_small_view_when_its_limit_is_higher_then_it_is_not_divided(tmp_path: Path) -> None:
    world = counted(tmp_path, 1, Dividing(8, least_gain=0))
    world.step(40)
    world.check()
    assert world.ranges == 0


@pytest.mark.history
@pytest.mark.parametrize(
    ("module", "name", "calls"),
    [
        (division, "commit_nothing", 2),
        (division, "remove_files", 2),
        (FilesWriter, "end", 3),
        (uncommitted_files.pq, "write_table", 2),
        (division_end, "end_division", 1),
        (view_table, "commit_files", 2),
        (division_end, "version_of", 1),
        (division_end, "remove_files", 1),
    ],
)
def test_a_divided_turn_when_it_is_killed_between_two_steps_then_the_next_turn_has_all_once(
    module: Any, name: str, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MOST_CHANGES", 0)
    for call in range(1, calls + 1):
        world = Counted(tmp_path / f"{call}", call, dividing=OF_ANY_SIZE)
        world.want(joined=joined, by_name=by_name)
        for number in (40, 12):
            world.land(number)
            world.apply()
            with monkeypatch.context() as patch:
                where = divided_views if name == "end_division" else module
                kill_at(patch, where, name, call)
                with suppress(Killed):
                    world.sink.turn()
            world.sink = world.new_sink()
            world.sink.turn()
            world.check()
        world.step()
        world.check()
        for view in world.views:
            check_numbers(world, view)
            assert unnamed_files(world, view) == []


def test_an_end_of_a_division_when_another_one_has_begun_since_then_it_fails_and_nothing_is_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Counted(tmp_path, 1, dividing=OF_ANY_SIZE)
    world.want(joined=joined)
    world.land(40)
    world.apply()
    held: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(divided_views, "end_division", lambda *arguments: held.append(arguments))
        with suppress(AttributeError):
            world.sink.turn()
    folder = Path(view_table_id("acme", "joined").folder(str(world.lake)))
    old = set(folder.rglob("divided-*"))
    assert len(old) == 6
    with monkeypatch.context() as patch:
        kill_at(patch, divided_views, "end_division", 1)
        world.sink = world.new_sink()
        with pytest.raises(Killed):
            world.sink.turn()
    assert old.isdisjoint(folder.rglob("divided-*"))
    with pytest.raises(DeltaError):
        division_end.end_division(*held[0])
    world.sink = world.new_sink()
    world.sink.turn()
    world.check()
    assert unnamed_files(world, "joined") == []


def test_a_current_state_when_another_division_begins_after_the_changelogs_commit_then_no_removed_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MOST_CHANGES", 0)
    world = Counted(tmp_path, 1, waiting=WAITS, dividing=OF_ANY_SIZE)
    world.want(joined=joined)
    world.step(40)
    held: list[Any] = []

    def stand(*arguments: Any) -> None:
        held.append(arguments)
        raise Killed

    for module, name, act in ((ViewTable, "put_files", stand), (divided_views, "compute_range", None)):
        world.land(empties=False)
        world.apply()
        with monkeypatch.context() as patch:
            if act is not None:
                patch.setattr(module, name, act)
            else:
                kill_at(patch, module, name, 1)
            world.sink = world.new_sink()
            with pytest.raises(Killed):
                world.sink.turn()
    table, *rest = held[0]
    with pytest.raises(DeltaError):
        table.put_files(*rest)
    world.sink = world.new_sink()
    world.sink.turn()
    world.check()
    assert unnamed_files(world, "joined") == []


@pytest.mark.parametrize("dividing", [Dividing(), OF_ANY_SIZE], ids=["alone", "divided"])
@pytest.mark.parametrize(("kind", "most_changes"), [("changelog", 0), ("current", 0), ("current", inputs.MOST_CHANGES)])
def test_a_view_when_files_that_it_names_are_gone_then_it_is_computed_anew_by_itself(
    kind: str, dividing: Dividing, most_changes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MOST_CHANGES", most_changes)
    world = Counted(tmp_path, 2, dividing=dividing)
    world.want(joined=joined, by_name=by_name)
    world.step(40)
    for name in ("joined", "by_name"):
        folder = Path(view_table_id("acme", name).folder(str(world.lake)), kind)
        for path in DeltaTable(str(folder)).file_uris():
            Path(path).unlink()
    for _ in range(3):
        world.land(empties=False)
        world.apply()
        world.sink.turn()
    world.check()


@pytest.mark.parametrize("has_other_columns", [False, True])
def test_a_divided_turn_when_it_is_killed_before_the_current_state_has_it_then_its_changes_are_not_merged_at_once(
    has_other_columns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MOST_CHANGES", 0)
    world = Counted(tmp_path, 1, dividing=OF_ANY_SIZE)
    world.want(joined=joined)
    world.step(40)
    if has_other_columns:
        world.want(joined=lambda named: joined(named).replace("p.name", "p.name, o.day"))
    world.land(empties=False)
    world.apply()
    with monkeypatch.context() as patch:
        kill_at(patch, ViewTable, "put_files", 1)
        with pytest.raises(Killed):
            world.sink.turn()
    monkeypatch.setattr(current_rewrite, "MOST_MERGED_ROWS", 0)
    kill_at(monkeypatch, view_table, "merge_tail", 1)
    world.sink = world.new_sink()
    world.sink.turn()
    world.check()


@pytest.mark.history
@pytest.mark.parametrize("seed", range(4))
def test_views_when_their_changes_are_more_than_a_merge_takes_then_they_equal_their_texts(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_rewrite, "MOST_MERGED_ROWS", 0)
    waits = WAITS if seed % 2 else AT_ONCE
    world = counted(tmp_path, seed, Dividing(), waits)
    for turn in range(5):
        world.step(12 if turn else 40)
        if turn == 3:  # what three versions have left is put at once
            world.waiting = AT_ONCE
            world.sink = world.new_sink()
        world.check()


def test_a_range_when_its_view_can_not_be_computed_then_the_view_alone_stops_and_goes_on_once_it_can(
    tmp_path: Path,
) -> None:
    world = Counted(tmp_path, 1, dividing=OF_ANY_SIZE)

    def doubled(named: Named) -> str:
        return f"SELECT o.id, o.qty * 4611686018427387904 AS x FROM {named('orders')} o"

    world.want(joined=joined, doubled=doubled)
    world.step(40)
    states = {state.name: (state.state, state.code) for state in world.sink.states()}
    assert states == {"joined": ("following", ""), "doubled": ("stopped", "VIEW_NOT_COMPUTED")}
    world.want(joined=joined, doubled=lambda named: doubled(named) + " WHERE o.qty BETWEEN 0 AND 1")
    world.step()
    world.check()


def key_values(choose: random.Random) -> Iterator[tuple[pa.DataType, list[object]]]:
    moment = datetime(1969, 12, 31, 23, 59, 59, 999_500)  # noqa: DTZ001  (of a column without a zone)
    yield pa.int64(), [choose.randrange(-(2**63), 2**63) for _ in range(50)]
    yield pa.int32(), [choose.randrange(3) for _ in range(50)]
    yield pa.string(), [choose.choice(["", "'", "ä", "a", "Z", "\U0001f600", "a'b"]) + str(at % 9) for at in range(50)]
    yield pa.binary(), [choose.randbytes(3) for _ in range(50)]
    yield pa.decimal128(20, 2), [Decimal(choose.randrange(-(10**18), 10**18)) / 100 for _ in range(50)]
    yield pa.date32(), [date(1, 1, 1) + timedelta(choose.randrange(3_000_000)) for _ in range(50)]
    yield pa.timestamp("us"), [moment + timedelta(microseconds=choose.randrange(3000)) for _ in range(50)]
    yield pa.timestamp("us", "UTC"), [choose.randrange(-(2**62), 2**62) for _ in range(50)]


@pytest.mark.parametrize("seed", range(3))
def test_ranges_when_keys_are_of_any_type_then_each_row_is_in_one_and_a_scan_leaves_none_out(
    seed: int, tmp_path: Path
) -> None:
    choose = random.Random(seed)
    for place, (type_, values) in enumerate(key_values(choose)):
        rows = pa.table({"k": pa.array([*values, None], type_)})
        table = DeltaTable.create(str(tmp_path / f"{place}"), rows.schema)
        uncommitted_files.commit_files(table, _files(table, rows, "`k`"), [])
        ranges = choose_ranges([rows.slice(0, 20), rows.slice(20)], ["k"], 51, 4)
        assert len(ranges) >= (2 if type_ == pa.int32() else 3), type_
        field = rows.schema.field("k")
        parts = [each.only(field)(rows) for each in ranges]
        assert told(pa.concat_tables(parts)) == told(rows)
        for each, part in zip(ranges, parts, strict=True):
            near = pa.table(scan(table, f"SELECT k FROM t WHERE {each.skipping(field)}").read_all())
            assert told(each.only(field)(near)) == told(part), (type_, each)


def told(rows: pa.Table) -> list[str]:
    """Python's calendar ends before some values."""
    values = rows["k"].cast(pa.int64()) if pa.types.is_timestamp(rows["k"].type) else rows["k"]
    return sorted(map(repr, values.to_pylist()))


def _files(table: DeltaTable, rows: pa.Table, columns: str) -> tuple[uncommitted_files.DataFile, ...]:
    writer = FilesWriter(table.table_uri, "divided-1-", columns)
    for at in range(len(rows)):
        writer.add(rows.slice(at, 1))
        if at % 7 == 0:
            writer._write()
    return writer.end()


def test_ranges_when_the_first_column_has_one_value_then_another_column_divides() -> None:
    rows = pa.table({"tenant": [7] * 1000, "id": list(range(1000))})
    ranges = choose_ranges([rows], ["tenant", "id"], 1000, 4)
    assert [(each.place, each.low, each.high) for each in ranges] == [
        (1, low and pa.scalar(low), high and pa.scalar(high))
        for low, high in ((None, 250), (250, 500), (500, 750), (750, None))
    ]


def test_ranges_when_most_rows_have_one_value_then_the_others_are_divided_and_where_all_do_nothing_is() -> None:
    skewed = pa.table({"id": [5] * 900 + list(range(6, 106))})
    assert choose_ranges([skewed], ["id"], 1000, 4) == ()
    ranges = choose_ranges([pa.table({"id": [5] * 600 + list(range(6, 406))})], ["id"], 1000, 4)
    assert [each.low for each in ranges] == [None, pa.scalar(156)]
    assert choose_ranges([pa.table({"id": [5] * 9})], ["id"], 9, 4) == ()
    assert choose_ranges([pa.table({"id": pa.nulls(9, pa.int64())})], ["id"], 9, 4) == ()
    assert choose_ranges([], ["id"], 9, 4) == ()


def test_ranges_when_a_table_is_large_then_they_are_of_a_sample_and_about_even() -> None:
    count = 7 * SAMPLED_ROWS + 3
    rows = pa.table({"id": pa.arange(0, count, 1)})
    tables = [rows.slice(at, 4_999) for at in range(0, count, 4_999)]
    ranges = choose_ranges(tables, ["id"], count, 3)
    sizes = [each.only(rows.schema.field("id"))(rows).num_rows for each in ranges]
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) < 100


def test_condition_when_a_range_is_open_then_null_is_in_the_first_alone() -> None:
    field = pa.field("k", pa.int64())
    assert KeyRange(0, None, None).skipping(field) == "TRUE"
    assert bounded(field, None, pa.scalar(3)) == '("k" <= 3 OR "k" IS NULL)'
    assert bounded(field, pa.scalar(3), pa.scalar(5)) == '"k" >= 3 AND "k" <= 5'
