"""Columns of a type that the lake's column can't hold: a new column under the name, the old values under another."""

import contextlib
import datetime
import itertools
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_sink.ingest.large_merge import LargeMerger
from spark_sink.ingest.table_task import TaskSize
from spark_sink.lake import changelog as changelog_module
from spark_sink.lake import merge, schema_change
from spark_sink.landed.lake_schema import lake_type, wider
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import changelog, current_state
from spark_sink.work import Result
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import (
    Chunk,
    Event,
    Table,
    Writer,
    altered,
    apply_entries,
    delete,
    insert,
    lake_rows,
    table_id,
    update,
)

DAY, AT = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 1, 2, 3, 4)  # noqa: DTZ001
#: a type as it lands and two values
TYPES = {
    "int": (pa.int32(), 1, 2),
    "bigint unsigned": (pa.uint64(), 2**64 - 1, 0),
    "decimal": (pa.decimal128(10, 2), Decimal("1.25"), Decimal("-2.50")),
    "double": (pa.float64(), 1.5, -0.0),
    "text": (pa.string(), "a", ""),
    "blob": (pa.binary(), b"a", b"\xff"),
    "boolean": (pa.bool_(), True, False),
    "date": (pa.date32(), DAY, datetime.date(1, 1, 1)),
    "datetime": (pa.timestamp("us"), AT, AT.replace(year=1004)),
    "timestamp": (pa.timestamp("us", "UTC"), AT.replace(tzinfo=datetime.UTC), None),
}
PAIRS = [
    (one, two)
    for one, two in itertools.permutations(TYPES, 2)
    if (first := lake_type(TYPES[one][0])) and (last := lake_type(TYPES[two][0])) and wider(first, last) is None
]
SOURCE = ("acme", "shop")


def table(kind: str, key: tuple[str, ...] = ("id",), name: str = "t") -> Table:
    return Table(name, {"id": pa.int32(), "v": TYPES[kind][0], "w": pa.string()}, key=key)


def apply(writer: Writer, lake: Path) -> None:
    assert [outcome.message for outcome in apply_entries(writer.folder, lake)] == [""]


def state(lake: Path) -> list[tuple[object, ...]]:
    rows = current_state(str(lake), table_id(table("int"))).to_pylist()
    return sorted(((row["id"], row["v"], row["w"], row["_absent"]) for row in rows), key=repr)


def logged(lake: Path, *names: str) -> list[tuple[object, ...]]:
    rows = changelog(str(lake), table_id(table("int"))).sort_by("_gsn").to_pylist()
    return [tuple(row[name] for name in names) for row in rows]


@pytest.mark.long
@pytest.mark.parametrize("has_event", [True, False], ids=["event", "no event"])
@pytest.mark.parametrize(("before", "after"), PAIRS, ids="-".join)
def test_a_type_that_the_lakes_column_cannot_hold_when_it_comes_then_earlier_values_are_unknown_and_logged(
    writer: Writer, lake: Path, before: str, after: str, has_event: bool
) -> None:
    (_, old, other), (_, new, newer) = TYPES[before], TYPES[after]
    writer.cut((table(before), [insert(id=1, v=old, w="a"), insert(id=2, v=other, w="b")]))
    if PAIRS.index((before, after)) % 2:
        apply(writer, lake)
    if has_event:
        writer.cut(altered(table(after)))
    changed = update({"id": 1, "v": new, "w": "a"}, {"id": 1, "v": newer, "w": "a"})
    writer.cut((table(after), [insert(id=3, v=new, w="c"), changed]))
    apply(writer, lake)
    assert state(lake) == [(1, newer, "a", None), (2, None, "b", '["v"]'), (3, new, "c", None)]
    assert current_state(str(lake), table_id(table(after))).schema.field("v").type == lake_type(TYPES[after][0])
    found = logged(lake, "v~1", "v")
    assert found == [(old, None), (other, None), (None, new), (None, new), (None, newer)]


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
@pytest.mark.parametrize("are_apart", [True, False])
def test_types_that_come_and_go_when_followed_then_each_kind_of_value_has_its_column(
    writer: Writer, lake: Path, keyed: bool, are_apart: bool
) -> None:
    key = ("id",) if keyed else ()
    for number, kind in enumerate(("int", "double", "int", "date"), 1):
        writer.cut(altered(table(kind, key)), (table(kind, key), [insert(id=number, v=TYPES[kind][1], w=kind)]))
        if are_apart:
            apply(writer, lake)
    apply(writer, lake)
    assert [row[1:] for row in state(lake)] == [
        (None, "int", '["v"]'), (None, "double", '["v"]'), (None, "int", '["v"]'), (DAY, "date", None)
    ]  # fmt: skip
    assert logged(lake, "v~1", "v~2", "v~3", "v") == [
        (1, None, None, None), (None, 1.5, None, None), (None, None, 1, None), (None, None, None, DAY)
    ]  # fmt: skip


def test_a_changed_type_when_the_table_is_dumped_then_nothing_is_unknown(writer: Writer, lake: Path) -> None:
    old, new = table("text"), table("date")
    writer.cut((old, [insert(id=key, v="x", w="a") for key in (1, 2, 3)]), altered(new))
    writer.cut(Event(new, "DUMP_STARTED", dump="dump-1"))
    floor = writer.last_gsns[SOURCE]
    writer.cut((new, [delete(id=2, v=DAY, w="a")]))
    writer.cut(Chunk(new, [{"id": key, "v": DAY, "w": "a"} for key in (1, 3)], floor))
    writer.cut(Event(new, "DUMPED", dump="dump-1", removes_rows_before_gsn=floor))
    apply(writer, lake)
    assert state(lake) == [(1, DAY, "a", None), (3, DAY, "a", None)]


@pytest.mark.parametrize(("before", "after"), [("int", "blob"), ("date", "datetime"), ("double", "int"),
                                               ("boolean", "int"), ("text", "boolean")])  # fmt: skip
def test_a_key_that_changes_its_type_when_followed_then_earlier_rows_stay_until_a_dump_ends(
    writer: Writer, lake: Path, before: str, after: str
) -> None:
    """No later change can find them by the new key."""
    (_, old, other), (_, new, newer) = TYPES[before], TYPES[after]
    writer.cut((table(before, ("v",)), [insert(id=1, v=old, w="a"), insert(id=2, v=other, w="b")]))
    apply(writer, lake)
    keyed = table(after, ("v",))
    writer.cut(altered(keyed), (keyed, [update({"id": 1, "v": new, "w": "a"}, {"id": 1, "v": new, "w": "c"})]))
    writer.cut((keyed, [delete(id=2, v=newer, w="b")]))
    apply(writer, lake)
    stale = [(1, None, "a", '["v"]'), (2, None, "b", '["v"]')]
    assert state(lake) == sorted([*stale, (1, new, "c", None)], key=repr)
    writer.cut(Event(keyed, "DUMP_STARTED", dump="dump-1"))
    floor = writer.last_gsns[SOURCE]
    writer.cut(Chunk(keyed, [{"id": 1, "v": new, "w": "c"}, {"id": 3, "v": newer, "w": "d"}], floor))
    writer.cut(Event(keyed, "DUMPED", dump="dump-1", removes_rows_before_gsn=floor))
    apply(writer, lake)
    assert state(lake) == sorted([(1, new, "c", None), (3, newer, "d", None)], key=repr)


def test_a_column_that_is_renamed_and_changes_its_type_when_followed_then_earlier_values_are_unknown(
    writer: Writer, lake: Path
) -> None:
    writer.cut((table("int"), [insert(id=1, v=1, w="a")]))
    after = Table("t", {"id": pa.int32(), "x": pa.date32(), "w": pa.string()})
    writer.cut(altered(after, renamed={"x": "v"}), (after, [insert(id=2, x=DAY, w="b")]))
    apply(writer, lake)
    assert lake_rows(lake, after) == [{"id": 1, "x": None, "w": "a"}, {"id": 2, "x": DAY, "w": "b"}]
    assert [row["_absent"] for row in current_state(str(lake), table_id(after)).sort_by("id").to_pylist()] == [
        '["x"]',
        None,
    ]
    assert logged(lake, "v", "x") == [(1, None), (None, DAY)]


def test_partial_rows_when_a_column_has_changed_its_type_then_the_others_keep_their_values(
    writer: Writer, lake: Path
) -> None:
    new = table("double")
    writer.cut((table("int"), [insert(id=1, v=1, w="a"), insert(id=2, v=2, w="b")]))
    writer.cut(altered(new))
    lacks = {"v": None, "_absent": ("v", "w")}
    writer.cut((new, [update({"id": 1, **lacks}, {"id": 1, "v": None, "w": "c", "_absent": ("v",)})]))
    writer.cut((new, [update({"id": 2, **lacks}, {"id": 2, "v": 0.5, "w": None, "_absent": ("w",)})]))
    apply(writer, lake)
    assert state(lake) == [(1, None, "c", '["v"]'), (2, 0.5, "b", None)]


@pytest.mark.long
@pytest.mark.parametrize("call", range(1, 4))
@pytest.mark.parametrize(
    ("module", "name"),
    [(changelog_module, "rewrite"), (changelog_module, "append"), (merge, "merge_effect"), (merge, "merge_chunks"),
     (schema_change, "rewrite"), (schema_change, "write_layout")],
)  # fmt: skip
@pytest.mark.parametrize("has_event", [True, False], ids=["event", "no event"])
def test_a_kill_while_types_change_when_replayed_from_its_middle_then_nothing_is_lost_or_doubled(
    writer: Writer,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    name: str,
    call: int,
    has_event: bool,
) -> None:
    """A chunk and partial changes above it, then an ALTER, then more: the changelog may be beyond the ALTER."""
    old, new = table("int", ("v",)), table("double", ("v",))
    writer.cut(Event(old, "DUMP_STARTED", dump="dump-1"))
    floor = writer.last_gsns[SOURCE]
    lacks = {"id": None, "w": None, "_absent": ("id", "w")}
    writer.cut((old, [update({"v": 1, **lacks}, {"v": 1, "id": 10, "w": None, "_absent": ("w",)})]))
    writer.cut((old, [update({"v": 2, **lacks}, {"v": 7, **lacks})]))
    writer.cut(Chunk(old, [{"id": key, "v": key, "w": "chunk"} for key in (1, 2, 3)], floor))
    middle = writer.entry
    events = [altered(new)] if has_event else []
    writer.cut(*events, (new, [insert(id=4, v=0.5, w="new")]))
    writer.cut((new, [update({"id": 4, "v": 0.5, "w": "new"}, {"id": 4, "v": 0.5, "w": "newer"})]))
    with monkeypatch.context() as patched:
        kill_at(patched, module, name, call)
        with contextlib.suppress(Killed):
            apply_entries(writer.folder, lake)
    for last in range(middle - 1, writer.entry + 1):
        assert [outcome.message for outcome in apply_entries(writer.folder, lake, last=last)] == [""]
    assert state(lake) == sorted(
        [(3, None, "chunk", '["v"]'), (10, None, "chunk", '["v"]'), (2, None, "chunk", '["v"]'),
         (4, 0.5, "newer", None)],
        key=repr,
    )  # fmt: skip
    changes = [row for row in logged(lake, "_change_type", "v~1", "v") if row[0] != "snapshot"]
    assert [row[1:] for row in changes] == [
        (1, None),
        (1, None),
        (2, None),
        (7, None),
        (None, 0.5),
        (None, 0.5),
        (None, 0.5),
    ]


KEYLESS = table("int", ())


def test_a_keyless_table_when_a_type_changes_then_later_deletes_find_their_rows_by_what_is_known(
    writer: Writer, lake: Path
) -> None:
    new = table("double", ())
    writer.cut((KEYLESS, [insert(id=1, v=1, w="a"), insert(id=1, v=2, w="a"), insert(id=2, v=3, w="b")]))
    apply(writer, lake)
    writer.cut(altered(new))
    writer.cut((new, [insert(id=1, v=2.0, w="a"), delete(id=1, v=2.0, w="a"), delete(id=1, v=1.0, w="a")]))
    writer.cut(
        (new, [update({"id": 2, "v": 3.0, "w": "b"}, {"id": 2, "v": 3.5, "w": "b"}), insert(id=9, v=None, w="c")])
    )
    writer.cut((new, [delete(id=9, v=None, w="c"), delete(id=7, v=1.0, w="none such")]))
    apply(writer, lake)
    assert state(lake) == [(1, None, "a", '["v"]'), (2, 3.5, "b", None)]


def test_a_keyless_table_when_a_column_of_unknown_values_is_added_then_it_goes_on_and_a_snapshot_fills_it(
    writer: Writer, lake: Path
) -> None:
    wide = Table("t", {**KEYLESS.columns, "x": pa.date32()}, key=())
    zero = '{"x":"0000-00-00"}'
    writer.cut((KEYLESS, [insert(id=number, v=1, w="a") for number in (1, 2, 3)]))
    writer.cut(altered(wide, added={"x": ...}))
    writer.cut((wide, [delete(id=1, v=1, w="a", x=None, _unrepresentable=zero), insert(id=4, v=1, w="a", x=DAY)]))
    apply(writer, lake)
    found = current_state(str(lake), table_id(wide)).sort_by("id").to_pylist()
    assert [(row["id"], row["x"], row["_absent"]) for row in found] == [
        (2, None, '["x"]'),
        (3, None, '["x"]'),
        (4, DAY, None),
    ]
    writer.cut(
        Event(wide, "DUMPED", removes_rows=True, dump="dump-1"),
        Chunk(wide, [{"id": number, "v": 1, "w": "a", "x": DAY} for number in (2, 3, 4)]),
    )
    apply(writer, lake)
    assert [row[-1] for row in state(lake)] == [None] * 3
    assert lake_rows(lake, wide) == [{"id": number, "v": 1, "w": "a", "x": DAY} for number in (2, 3, 4)]


def test_a_keyless_table_with_unknown_values_when_its_batch_is_too_large_for_a_worker_then_deletes_find_their_rows(
    writer: Writer, lake: Path, session: SparkSession
) -> None:
    new = table("double", ())
    writer.cut((KEYLESS, [insert(id=number, v=number, w="a") for number in range(4)]), altered(new))
    apply(writer, lake)
    writer.cut((new, [delete(id=number, v=float(number), w="a") for number in range(3)]))
    (large,) = apply_entries(writer.folder, lake, TaskSize(rows=1), first=2)
    assert large.result is Result.LARGE
    outcome = LargeMerger(session, LandingLog(str(writer.folder)), str(lake)).apply(large)
    assert outcome.message == "" and state(lake) == [(3, None, "a", '["v"]')]


#: as they land one after the other, with a value each: the lake's column is text at last
NUMBERS = [
    (pa.decimal128(20, 0), Decimal("127"), "127.00000000000000000000"),
    (pa.decimal128(12, 4), Decimal("1.5000"), "1.50000000000000000000"),
    (pa.decimal128(30, 20), Decimal("0.25"), "0.25000000000000000000"),
]


@pytest.mark.parametrize("are_apart", [True, False])
@pytest.mark.parametrize("key", [("id",), (), ("v",)], ids=["keyed", "keyless", "in the key"])
def test_a_number_that_is_text_in_the_lake_when_it_gets_more_digits_then_earlier_rows_have_the_text_of_later_ones(
    writer: Writer, lake: Path, key: tuple[str, ...], are_apart: bool
) -> None:
    for number, (type_, value, _) in enumerate(NUMBERS, 1):
        wide = Table("t", {"id": pa.int32(), "v": type_, "w": pa.string()}, key=key)
        writer.cut(
            altered(wide), (wide, [insert(id=number, v=value, w="a"), insert(id=number + 9, v=value + 1, w="a")])
        )
        if are_apart:
            apply(writer, lake)
    writer.cut((wide, [delete(id=number + 9, v=value + 1, w="a") for number, (_, value, _) in enumerate(NUMBERS, 1)]))
    apply(writer, lake)
    assert [row[:2] for row in state(lake)] == [(number, text) for number, (*_, text) in enumerate(NUMBERS, 1)]


@pytest.mark.parametrize("are_apart", [True, False])
def test_a_number_whose_lake_column_has_more_digits_when_it_becomes_text_then_it_is_the_text_of_its_own_type(
    writer: Writer, lake: Path, are_apart: bool
) -> None:
    types = [(pa.decimal128(12, 4), Decimal("1.2500")), (pa.decimal128(12, 2), Decimal("1.50")), (pa.string(), "1.75")]
    for number, (type_, value) in enumerate(types, 1):
        as_is = Table("t", {"id": pa.int32(), "v": type_, "w": pa.string()})
        writer.cut(altered(as_is), (as_is, [insert(id=number, v=value, w="a")]))
        if are_apart:
            apply(writer, lake)
    apply(writer, lake)
    assert [row[:2] for row in state(lake)] == [(1, "1.25"), (2, "1.50"), (3, "1.75")]
