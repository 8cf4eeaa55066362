"""Events among the rows: truncates, added, renamed and dropped columns, tables that come again."""

import datetime
import itertools
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

from spark_sink.ingest.table_task import TaskSize
from spark_sink.lake import changelog as changelog_module
from spark_sink.lake import delta_table, merge, schema_change
from spark_sink.lake.delta_table import open_table, read_progress, schema_of
from spark_sink.reading import changelog, current_state
from spark_sink.work import Result
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import (
    Event,
    Table,
    Unrepresentable,
    Writer,
    altered,
    apply_entries,
    delete,
    insert,
    lake_rows,
    table_id,
    truncate,
    update,
)

TABLE = Table("t", {"id": pa.int32(), "v": pa.string()})
KEYLESS = Table("t", {"id": pa.int32(), "v": pa.string()}, key=())


def logged(lake: Path, table: Table = TABLE) -> list[str]:
    return changelog(str(lake), table_id(table)).sort_by("_gsn")["_change_type"].to_pylist()


def apply(writer: Writer, lake: Path) -> None:
    for outcome in apply_entries(writer.folder, lake):
        assert outcome.message == ""


@pytest.mark.parametrize("table", [TABLE, KEYLESS], ids=["keyed", "keyless"])
@pytest.mark.parametrize("are_apart", [False, True])
def test_a_truncate_among_rows_of_one_file_when_applied_then_only_later_rows_stay(
    writer: Writer, lake: Path, table: Table, are_apart: bool
) -> None:
    steps = [
        (table, [insert(id=1, v="a"), insert(id=2, v="b")]),
        truncate(table),
        (table, [insert(id=1, v="c")]),
        truncate(table),
        (table, [insert(id=3, v="d"), insert(id=3, v="d") if not table.key else insert(id=4, v="e")]),
    ]
    if are_apart:
        for step in steps:
            writer.cut(step)
            apply(writer, lake)
    else:
        writer.cut(*steps)
        apply(writer, lake)
    assert [row["id"] for row in lake_rows(lake, table)] == ([3, 4] if table.key else [3, 3])
    assert logged(lake) == ["insert"] * 2 + ["truncate", "insert", "truncate"] + ["insert"] * 2
    assert {outcome.result for outcome in apply_entries(writer.folder, lake)} == {Result.SKIPPED}
    current = open_table(f"{table_id(table).folder(str(lake))}/current")
    assert read_progress(current, "acme/shop").cut == writer.cuts["acme", "shop"]


@pytest.mark.history
@pytest.mark.parametrize("call", range(1, 5))
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (merge, "merge_effect"),
        (schema_change, "write_layout"),
        (changelog_module, "append"),
        (delta_table, "write_deltalake"),
    ],
)
def test_a_kill_at_any_commit_when_replayed_with_other_bounds_then_nothing_is_lost_or_doubled(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, call: int
) -> None:
    wide = Table("t", {**KEYLESS.columns, "n": pa.int32()}, key=())
    moved = Table("t", {"id": pa.int32(), "w": pa.string(), "n": pa.int32()}, key=())
    writer.cut((KEYLESS, [insert(id=1, v="a")]), truncate(KEYLESS), (KEYLESS, [insert(id=2, v="b")] * 2))
    writer.cut(altered(wide, added={"n": 5}), (wide, [insert(id=3, v="c", n=6), delete(id=2, v="b", n=5)]))
    writer.cut(
        altered(moved, renamed={"w": "v"}), (moved, [update({"id": 2, "w": "b", "n": 5}, {"id": 4, "w": "b", "n": 5})])
    )
    with monkeypatch.context() as patched:
        kill_at(patched, module, name, call)
        try:
            apply_entries(writer.folder, lake)
        except Killed:
            was_killed = True
        else:
            was_killed = False
    for last in (1, 2, 3):
        first = apply_entries(writer.folder, lake, last=last)
        assert [outcome.message for outcome in first] == [""]
    assert lake_rows(lake, moved) == [{"id": 3, "w": "c", "n": 6}, {"id": 4, "w": "b", "n": 5}]
    assert logged(lake) == ["insert", "truncate", *["insert"] * 3, "delete", "update_preimage", "update_postimage"]
    assert was_killed or call > 1


@pytest.mark.parametrize("literals", ["literal", "text"])
def test_columns_that_are_added_when_earlier_rows_have_a_value_then_only_those_get_it(
    writer: Writer, lake: Path, literals: str
) -> None:
    """`text`: up to format 5, in MySQL's words."""
    is_former = literals == "text"
    columns = {
        **TABLE.columns,
        "n": pa.uint64(),
        "d": pa.decimal128(10, 2),
        "f": pa.float64(),
        "t": pa.int64(),
        "day": pa.date32(),
        "zero": pa.date32(),
        "at": pa.timestamp("us"),
        "instant": pa.timestamp("us", "UTC"),
        "text": pa.string(),
        "raw": pa.binary(),
        "yes": pa.bool_(),
        "no": pa.bool_(),
        "nothing": pa.string(),
        "who knows": pa.string(),
    }
    wide = Table("t", columns)
    added = {
        "n": "18446744073709551615",
        "d": "-1.50",
        "f": "1e300",
        "t": "-838:59:59.000001" if is_former else "-3020399000001",
        "day": "9999-12-31",
        "zero": "2024-00-00" if is_former else Unrepresentable("2024-00-00"),
        "at": "2024-02-29 23:59:59.123456",
        "instant": "2024-02-29 23:59:59",
        "text": "",
        "raw": "C3A900FF",
        "yes": "true",
        "no": "false",
        "nothing": None,
        "who knows": ...,
    }
    writer.cut((TABLE, [insert(id=1, v="a"), insert(id=2, v="b"), insert(id=3, v="c")]))
    apply(writer, lake)
    after = dict.fromkeys(columns)
    changed = [update({**after, "id": 2, "_absent": tuple(added)}, {**after, "id": 2, "v": "new"})]
    types = {"t": "time(6)"} if is_former else {}
    writer.cut(altered(wide, added=added, types=types, literals=literals), (wide, changed))
    apply(writer, lake)
    earlier, later, _ = current_state(str(lake), table_id(TABLE)).sort_by("id").to_pylist()
    assert {name: earlier[name] for name in columns if name in earlier} == {
        "id": 1, "v": "a", "n": Decimal(2**64 - 1), "d": Decimal("-1.50"), "f": 1e300, "t": -3_020_399_000_001,
        "day": datetime.date(9999, 12, 31), "zero": None,
        "at": datetime.datetime(2024, 2, 29, 23, 59, 59, 123456),  # noqa: DTZ001
        "instant": datetime.datetime(2024, 2, 29, 23, 59, 59, tzinfo=datetime.UTC),
        "text": "", "raw": b"\xc3\xa9\0\xff", "yes": True, "no": False, "nothing": None,
    }  # fmt: skip
    assert (earlier["_unrepresentable"], earlier["_absent"]) == ('{"zero":"2024-00-00"}', '["who%20knows"]')
    assert {later[name] for name in columns if name in later} == {None, 2, "new"}
    assert (later["_unrepresentable"], later["_absent"]) == (None, None)


def test_a_value_of_earlier_rows_that_is_none_of_its_type_when_read_then_the_table_stops(
    writer: Writer, lake: Path
) -> None:
    wide = Table("t", {**TABLE.columns, "n": pa.int32()})
    writer.cut((TABLE, [insert(id=1, v="a")]))
    apply(writer, lake)
    writer.cut(altered(wide, added={"n": "seven"}))
    (outcome,) = apply_entries(writer.folder, lake)
    assert outcome.code == "EVENT_UNREADABLE" and "seven" not in outcome.message


def test_a_type_that_this_version_does_not_know_when_an_event_tells_it_then_that_table_stops_by_its_name(
    writer: Writer, lake: Path
) -> None:
    event = altered(TABLE)
    columns = tuple(replace(column, arrow_format="ttu") for column in event.columns)
    writer.cut((TABLE, [insert(id=1, v="a")]), replace(event, columns=columns))
    (outcome,) = apply_entries(writer.folder, lake)
    assert outcome.code == "EVENT_UNREADABLE" and "type ttu" in outcome.message and "Upgrade" in outcome.message


@pytest.mark.parametrize("table", [TABLE, KEYLESS], ids=["keyed", "keyless"])
def test_columns_that_swap_their_names_when_renamed_then_earlier_values_follow(
    writer: Writer, lake: Path, table: Table
) -> None:
    before = Table("t", {"id": pa.int32(), "a": pa.date32(), "b": pa.date32(), "gone": pa.date32()}, key=table.key)
    after = Table("t", {"id": pa.int32(), "b": pa.date32(), "a": pa.date32(), "new": pa.date32()}, key=table.key)
    day = datetime.date(2024, 1, 1)
    text = '{"a":"0000-00-00","gone":"2024-00-01"}'
    writer.cut((before, [insert(id=1, a=None, b=day, gone=None, _unrepresentable=text)]))
    apply(writer, lake)
    writer.cut(altered(after, renamed={"b": "a", "a": "b"}, added={"new": Unrepresentable("0000-00-00")}))
    apply(writer, lake)
    (row,) = current_state(str(lake), table_id(table)).to_pylist()
    assert {name: row[name] for name in after.columns} == {"id": 1, "a": day, "b": None, "new": None}
    assert row["_unrepresentable"] == '{"b":"0000-00-00","new":"0000-00-00"}'
    gone = {"id": 1, "b": None, "a": day, "new": None, "_unrepresentable": row["_unrepresentable"]}
    writer.cut((after, [delete(**gone)]))
    apply(writer, lake)
    assert lake_rows(lake, after) == []


def test_a_renamed_column_when_rows_come_then_the_changelog_keeps_both_names(writer: Writer, lake: Path) -> None:
    after = Table("t", {"id": pa.int32(), "w": pa.string()})
    writer.cut((TABLE, [insert(id=1, v="a")]), altered(after, renamed={"w": "v"}), (after, [insert(id=2, w="b")]))
    apply(writer, lake)
    assert lake_rows(lake, after) == [{"id": 1, "w": "a"}, {"id": 2, "w": "b"}]
    rows = changelog(str(lake), table_id(TABLE)).sort_by("_gsn").to_pylist()
    assert [(row["v"], row["w"]) for row in rows] == [("a", None), (None, "b")]


def test_a_column_renamed_from_one_that_the_lake_lacks_when_followed_then_it_is_unknown(
    writer: Writer, lake: Path
) -> None:
    after = Table("t", {"id": pa.int32(), "v": pa.string(), "w": pa.string()})
    writer.cut((TABLE, [insert(id=1, v="a")]), altered(after, renamed={"w": "was ignored"}))
    apply(writer, lake)
    (row,) = current_state(str(lake), table_id(TABLE)).to_pylist()
    assert (row["w"], row["_absent"]) == (None, '["w"]')


def test_a_column_dropped_and_added_in_one_statement_when_followed_then_its_values_are_the_new_ones(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = datetime.date(2024, 1, 1)
    after = Table("t", {"id": pa.int32(), "v": pa.date32()})
    writer.cut((TABLE, [insert(id=1, v="a")]))
    apply(writer, lake)
    writer.cut(altered(after, added={"v": day}), (after, [insert(id=2, v=day)]))
    with monkeypatch.context() as patched, pytest.raises(Killed):
        kill_at(patched, changelog_module, "rewrite", 1)
        apply_entries(writer.folder, lake)
    apply(writer, lake)
    assert lake_rows(lake, after) == [{"id": 1, "v": day}, {"id": 2, "v": day}]
    rows = changelog(str(lake), table_id(TABLE)).sort_by("_gsn").to_pylist()
    assert [(row["v~1"], row["v"]) for row in rows] == [("a", None), (None, day)]


@pytest.mark.parametrize("are_apart", [False, True])
def test_a_table_that_is_dropped_and_comes_again_with_other_types_when_followed_then_only_the_new_one_is_there(
    writer: Writer, lake: Path, are_apart: bool
) -> None:
    one = Table("t", {"id": pa.int32(), "v": pa.float64(), "w": pa.string(), "x": pa.date32()})
    two = Table("t", {"id": pa.string(), "v": pa.binary(), "w": pa.int32(), "y": pa.int32()})
    three = Table("t", {"id": pa.int32(), "v": pa.date32()}, key=())
    steps = [
        (one, [insert(id=1, v=1.5, w="a", x=datetime.date(2024, 1, 1))]),
        Event(one, "DROPPED", removes_rows=True),
        altered(two, kind="CREATED", removes_rows=True),
        (two, [insert(id="x", v=b"y", w=7, y=8)]),
        Event(two, "RENAMED", removes_rows=True),
        (three, [insert(id=5, v=datetime.date(2024, 1, 2))]),
    ]
    for place, step in enumerate(steps, 1):
        if are_apart or place == len(steps):
            writer.cut(*([step] if are_apart else steps))
            apply(writer, lake)
        if are_apart and place == 4:
            assert lake_rows(lake, two) == [{"id": "x", "v": b"y", "w": 7, "y": 8}]
            assert "x" not in current_state(str(lake), table_id(two)).column_names
    assert lake_rows(lake, three) == [{"id": 5, "v": datetime.date(2024, 1, 2)}]
    rows = changelog(str(lake), table_id(one)).sort_by("_gsn")
    assert [kind for kind, _ in itertools.groupby(rows["_change_type"].to_pylist())] == [
        "insert", "truncate", "insert", "truncate", "insert"
    ]  # fmt: skip
    assert rows["v~1"].to_pylist()[0] == 1.5
    assert rows["v~2"].drop_null().to_pylist() == [b"y"]
    assert rows["v"].to_pylist()[-1] == datetime.date(2024, 1, 2)
    assert rows["id"].to_pylist() == ["1", None, None, "x", None, "5"]
    assert rows["w"].to_pylist() == ["a", None, None, "7", None, None]


def test_columns_known_from_an_event_alone_when_followed_then_both_tables_have_their_types(
    writer: Writer, lake: Path
) -> None:
    table = Table("t", {"id": pa.uint64(), "at": pa.timestamp("us", "UTC"), "d": pa.decimal128(10, 2)})
    writer.cut(altered(table, kind="CREATED"))
    apply(writer, lake)
    for found in (current_state(str(lake), table_id(table)), changelog(str(lake), table_id(table))):
        fields = {name: found.schema.field(name).type for name in table.columns}
        assert fields == {
            "id": pa.decimal128(20, 0),
            "at": pa.timestamp("us", "UTC"),
            "d": pa.decimal128(10, 2),
        }
        assert found.num_rows == 0


def test_events_of_a_table_that_the_lake_does_not_know_when_they_name_no_columns_then_nothing_is_made(
    writer: Writer, lake: Path
) -> None:
    writer.cut(truncate(TABLE), Event(TABLE, "ALTERED"), Event(TABLE, "DROPPED", removes_rows=True))
    (outcome,) = apply_entries(writer.folder, lake)
    assert (outcome.message, outcome.current_version, outcome.changelog_version) == ("", None, None)
    assert not Path(table_id(TABLE).folder(str(lake))).exists()
    writer.cut((TABLE, [insert(id=1, v="a")]), truncate(TABLE))
    apply(writer, lake)
    assert lake_rows(lake, TABLE) == [] and logged(lake) == ["truncate"] * 2 + ["insert", "truncate"]


def test_a_key_that_an_event_changes_when_rows_follow_then_they_are_told_apart_by_the_new_one(
    writer: Writer, lake: Path
) -> None:
    by_v = Table("t", dict(TABLE.columns), key=("v",))
    writer.cut((TABLE, [insert(id=1, v="a"), insert(id=2, v="b")]), altered(by_v), (by_v, [delete(id=9, v="b")]))
    apply(writer, lake)
    assert lake_rows(lake, by_v) == [{"id": 1, "v": "a"}]


def test_a_batch_of_events_when_a_later_run_was_ahead_then_its_version_is_not_told(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.cut((TABLE, [insert(id=1, v="a")]))
    writer.cut(truncate(TABLE), (TABLE, [insert(id=2, v="b")]))
    with monkeypatch.context() as patched, pytest.raises(Killed):
        kill_at(patched, merge, "merge_effect", 1)
        apply_entries(writer.folder, lake)
    (outcome,) = apply_entries(writer.folder, lake, last=1)
    assert outcome.current_version is None  # the truncate of cut 2 is in it
    apply(writer, lake)
    assert lake_rows(lake, TABLE) == [{"id": 2, "v": "b"}]


def test_a_column_that_becomes_a_large_number_when_the_table_was_emptied_then_no_statistics_hide_its_rows(
    writer: Writer, lake: Path
) -> None:
    """delta-rs writes statistics of decimals as doubles; see `delta_table`."""
    small, large = (Table("t", {"id": pa.int32(), "n": type_}) for type_ in (pa.int64(), pa.uint64()))
    writer.cut((small, [insert(id=1, n=1)]), truncate(small), altered(large), (large, [insert(id=2, n=2**64 - 1)]))
    writer.cut((Table("u", dict(small.columns)), [insert(id=1, n=1)]))
    writer.cut((Table("u", dict(large.columns)), [insert(id=2, n=2**64 - 1)]))
    for number in (1, 2, 3):
        assert [o.message for o in apply_entries(writer.folder, lake, first=number, last=number)] == [""]
    for name in ("t", "u"):
        delta = open_table(f"{table_id(Table(name, {})).folder(str(lake))}/current")
        assert delta is not None and pa.types.is_decimal(schema_of(delta).field("n").type)
        assert not any("n" in (part or {}) for part in pa.table(delta.get_add_actions())["max"].to_pylist())
        query = f"SELECT id FROM t WHERE n = {2**64 - 1}"
        assert delta_table.scan(delta, query).read_all()["id"].to_pylist() == [2]


def test_a_cut_of_events_and_rows_when_too_large_for_a_task_then_the_driver_gets_both(
    writer: Writer, lake: Path
) -> None:
    writer.cut((TABLE, [insert(id=1, v="a"), insert(id=2, v="b")]), truncate(TABLE))
    (outcome,) = apply_entries(writer.folder, lake, TaskSize(rows=1))
    assert outcome.result is Result.LARGE
    assert [type(each).__name__ for each in outcome.work] == ["TableFile", "CutEvent"]
    assert json.loads(json.dumps(outcome.rows)) == 2


def test_partial_rows_of_a_table_without_a_key_when_a_truncate_follows_then_it_goes_on(
    writer: Writer, lake: Path
) -> None:
    lacking = {"id": 1, "_absent": ("v",)}
    writer.cut((KEYLESS, [insert(**lacking)]), truncate(KEYLESS), (KEYLESS, [insert(id=2, v="b")]))
    apply(writer, lake)
    assert lake_rows(lake, KEYLESS) == [{"id": 2, "v": "b"}]
