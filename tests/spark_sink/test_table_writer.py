"""Changelog and current state of one table after another, through delta-rs on real Delta tables, without Spark."""

import datetime
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from spark_sink.ingest.table_task import TaskSize
from spark_sink.lake import delta_table, merge, schema_change
from spark_sink.lake.delta_table import open_table, schema_of
from spark_sink.lake.net_effect import KEY_TEXT
from spark_sink.reading import changelog, current_state
from spark_sink.work import Result
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import Table, Workload, Writer, apply_entries, delete, insert, lake_rows, table_id, update

ORDERS = Workload.ORDERS
EVENTS = Workload.EVENTS


def order(identity: int, amount: int = 1, note: str = "n") -> dict[str, object]:
    return {"id": identity, "amount": amount, "note": note}


@pytest.mark.parametrize("cuts_per_batch", [1, 7])
def test_random_changes_when_applied_batch_by_batch_then_the_tables_equal_the_model(
    writer: Writer, lake: Path, cuts_per_batch: int
) -> None:
    workload = Workload(cuts_per_batch)
    for _ in range(6):
        first = writer.entry + 1
        for _ in range(cuts_per_batch):
            workload.cut(writer)
        assert all(outcome.code == "" for outcome in apply_entries(writer.folder, lake, first=first))
        assert lake_rows(lake, ORDERS) == workload.orders.expected()
        assert lake_rows(lake, EVENTS) == workload.events.expected()
    logged = sum(changelog(str(lake), table_id(table)).num_rows for table in (ORDERS, EVENTS))
    assert logged == workload.changes


def test_a_replay_with_other_bounds_when_all_is_there_then_nothing_changes(writer: Writer, lake: Path) -> None:
    workload = Workload(3)
    for _ in range(5):
        workload.cut(writer)
    apply_entries(writer.folder, lake)
    logged = changelog(str(lake), table_id(EVENTS)).num_rows
    again = apply_entries(writer.folder, lake)
    assert {outcome.result for outcome in again} == {Result.SKIPPED}
    one_by_one = apply_entries(writer.folder, lake, TaskSize(rows=1), first=3)
    assert {outcome.result for outcome in one_by_one} <= {Result.SKIPPED, Result.LARGE}
    assert lake_rows(lake, EVENTS) == workload.events.expected()
    assert changelog(str(lake), table_id(EVENTS)).num_rows == logged


@pytest.mark.parametrize("table", [ORDERS, EVENTS], ids=["keyed", "keyless"])
def test_a_kill_between_changelog_and_current_state_when_replayed_then_each_row_is_there_once(
    writer: Writer, lake: Path, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = Workload(4)
    for _ in range(4):
        workload.cut(writer)

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(merge, "merge_effect", kill)
        with pytest.raises(Killed):
            apply_entries(writer.folder, lake)
    workload.cut(writer)
    apply_entries(writer.folder, lake)
    assert lake_rows(lake, table) == (workload.orders if table is ORDERS else workload.events).expected()
    gsns = changelog(str(lake), table_id(table))["_gsn"].to_pylist()
    apply_entries(writer.folder, lake)
    assert changelog(str(lake), table_id(table))["_gsn"].to_pylist() == gsns


def test_two_writers_of_one_cut_when_they_meet_then_one_finds_its_work_done(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.cut((EVENTS, [insert(kind="x", value=1.0)] * 3))
    apply_entries(writer.folder, lake)
    writer.cut((EVENTS, [insert(kind="x", value=1.0)] * 2))
    merge_effect = merge.merge_effect
    met: list[bool] = []

    def meet(*arguments: object) -> None:
        if not met:
            met.append(True)
            apply_entries(writer.folder, lake)
        merge_effect(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(merge, "merge_effect", meet)
    outcomes = apply_entries(writer.folder, lake)
    assert [outcome.result for outcome in outcomes] == [Result.SKIPPED]
    assert len(lake_rows(lake, EVENTS)) == 5


def test_many_small_commits_when_compacted_then_rows_stay_and_files_are_few(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "COMPACT_EVERY_VERSIONS", 4)
    workload = Workload(9)
    for _ in range(12):
        workload.cut(writer)
        apply_entries(writer.folder, lake, first=writer.entry)
    assert lake_rows(lake, ORDERS) == workload.orders.expected()
    assert lake_rows(lake, EVENTS) == workload.events.expected()
    for kind in ("changelog", "current"):
        table = open_table(f"{table_id(ORDERS).folder(str(lake))}/{kind}")
        assert table is not None and len(table.file_uris()) <= 4
    assert {outcome.result for outcome in apply_entries(writer.folder, lake)} == {Result.SKIPPED}


def test_keys_that_swap_in_one_batch_when_merged_then_each_row_has_its_last_key(writer: Writer, lake: Path) -> None:
    writer.cut((ORDERS, [insert(**order(1, 10)), insert(**order(2, 20))]))
    swap = [update(order(1, 10), order(3, 10)), update(order(2, 20), order(1, 20)), update(order(3, 10), order(2, 10))]
    writer.cut((ORDERS, swap))
    apply_entries(writer.folder, lake)
    assert lake_rows(lake, ORDERS) == [order(1, 20), order(2, 10)]


def test_every_type_when_landed_then_its_lake_value_is_lossless(writer: Writer, lake: Path) -> None:
    moment = datetime.datetime(2024, 2, 29, 23, 59, 59, 999999)  # noqa: DTZ001
    columns: dict[str, tuple[pa.DataType, object, object]] = {
        "id": (pa.uint64(), 2**64 - 1, Decimal(2**64 - 1)),
        "i8": (pa.int8(), -128, -128),
        "u8": (pa.uint8(), 255, 255),
        "i16": (pa.int16(), -32768, -32768),
        "u16": (pa.uint16(), 65535, 65535),
        "i32": (pa.int32(), -(2**31), -(2**31)),
        "u32": (pa.uint32(), 2**32 - 1, 2**32 - 1),
        "i64": (pa.int64(), -(2**63), -(2**63)),
        "dec": (pa.decimal128(38, 10), Decimal("1" * 28 + ".0000000001"), Decimal("1" * 28 + ".0000000001")),
        "f": (pa.float32(), 1.5, 1.5),
        "d": (pa.float64(), -1e300, -1e300),
        "yes": (pa.bool_(), True, True),
        "no": (pa.bool_(), False, False),
        "neither": (pa.bool_(), None, None),
        "text": (pa.string(), "\u00e9\U0001f600'\"`", "\u00e9\U0001f600'\"`"),
        "blob": (pa.binary(), b"\x00\xff", b"\x00\xff"),
        "day": (pa.date32(), datetime.date(9999, 12, 31), datetime.date(9999, 12, 31)),
        "at": (pa.timestamp("us"), moment, moment),
        "instant": (
            pa.timestamp("us", "UTC"),
            moment.replace(tzinfo=datetime.UTC),
            moment.replace(tzinfo=datetime.UTC),
        ),
        "unit price, =%": (pa.string(), None, None),
    }
    table = Table("types", {name: type_ for name, (type_, _, _) in columns.items()})
    landed = {name: value for name, (_, value, _) in columns.items()}
    near = {**landed, "id": 2**64 - 2}
    for changes in ([insert(**landed), insert(**near)], [update(landed, landed)], [delete(**near)]):
        writer.cut((table, changes))
        apply_entries(writer.folder, lake, first=writer.entry)
    (row,) = lake_rows(lake, table)
    assert list(row.values()) == [expected for _, _, expected in columns.values()]
    fields = current_state(str(lake), table_id(table)).schema
    assert fields.field("u8").type == pa.int64() and fields.field("id").type == pa.decimal128(20, 0)
    assert fields.field("at").type == pa.timestamp("us") and fields.field("instant").type == pa.timestamp("us", "UTC")


def test_unrepresentable_dates_in_a_key_when_two_rows_differ_only_there_then_both_stay(
    writer: Writer, lake: Path
) -> None:
    table = Table("days", {"day": pa.date32(), "n": pa.int32()}, key=("day",))

    def row(text: str, n: int) -> dict[str, object]:
        return {"day": None, "n": n, "_unrepresentable": json.dumps({"day": text})}

    writer.cut((table, [insert(**row("0000-00-00", 1)), insert(**row("2024-00-00", 2))]))
    apply_entries(writer.folder, lake)
    writer.cut((table, [update(row("0000-00-00", 1), row("0000-00-00", 3)), delete(**row("2024-00-00", 2))]))
    writer.cut((table, [insert(day=datetime.date(2024, 1, 1), n=4)]))
    apply_entries(writer.folder, lake)
    assert sorted(current_state(str(lake), table_id(table))["n"].to_pylist()) == [3, 4]


def bad_key(raw: str, n: int) -> dict[str, object]:
    return {"code": None, "n": n, "_unrepresentable": json.dumps({"code": raw})}


def test_text_keys_with_invalid_bytes_when_they_come_then_each_is_a_row_and_others_stay(
    writer: Writer, lake: Path
) -> None:
    table = Table("codes", {"code": pa.string(), "n": pa.int32()}, key=("code",))
    writer.cut((table, [insert(code="a", n=1), insert(code="b", n=2)]))
    apply_entries(writer.folder, lake)
    delta = open_table(f"{table_id(table).folder(str(lake))}/current")
    assert delta is not None and KEY_TEXT not in schema_of(delta).names  # an ordinary table has no such column
    writer.cut((table, [insert(**bad_key("0xE4", 3)), insert(**bad_key("0xF6", 4)), insert(code="c", n=5)]))
    apply_entries(writer.folder, lake)
    writer.cut((table, [update(bad_key("0xE4", 3), bad_key("0xE4", 6)), delete(**bad_key("0xF6", 4))]))
    writer.cut((table, [update({"code": "a", "n": 1}, bad_key("0xFC", 1)), delete(code="b", n=2)]))
    apply_entries(writer.folder, lake)
    expected = [{"code": "c", "n": 5}, {"code": None, "n": 1}, {"code": None, "n": 6}]
    assert lake_rows(lake, table) == expected
    assert {outcome.result for outcome in apply_entries(writer.folder, lake)} == {Result.SKIPPED}
    wide = Table("codes", {"code": pa.string(), "n": pa.int32(), "m": pa.int32()}, key=("code",))
    narrow = Table("codes", {"code": pa.string(), "m": pa.int32()}, key=("code",))
    writer.cut((wide, [insert(code="d", n=7, m=8)]), (narrow, [delete(code=None, _unrepresentable='{"code":"0xFC"}')]))
    apply_entries(writer.folder, lake)
    assert sorted(current_state(str(lake), table_id(table))["code"].to_pylist(), key=str) == [None, "c", "d"]


def test_a_kill_while_a_table_gets_its_key_text_when_replayed_then_rows_are_right(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table("codes", {"code": pa.string(), "n": pa.int32()}, key=("code",))
    writer.cut((table, [insert(code="a", n=1)]))
    apply_entries(writer.folder, lake)
    writer.cut((table, [insert(**bad_key("0xE4", 3)), update({"code": "a", "n": 1}, {"code": "a", "n": 2})]))
    for module, name in ((schema_change, "rewrite"), (merge, "merge_effect")):
        with monkeypatch.context() as patched, pytest.raises(Killed):
            kill_at(patched, module, name, 1)
            apply_entries(writer.folder, lake)
    apply_entries(writer.folder, lake)
    assert lake_rows(lake, table) == [{"code": "a", "n": 2}, {"code": None, "n": 3}]


def test_a_partial_row_with_a_key_of_invalid_bytes_when_merged_then_it_keeps_its_own_values(
    writer: Writer, lake: Path
) -> None:
    table = Table("codes", {"code": pa.string(), "n": pa.int32(), "m": pa.int32()}, key=("code",))
    writer.cut((table, [insert(**bad_key("0xE4", 1), m=10), insert(**bad_key("0xF6", 2), m=20)]))
    apply_entries(writer.folder, lake)
    after = {**bad_key("0xF6", 3), "_absent": ("m",)}
    writer.cut((table, [update({**bad_key("0xF6", 0), "n": None, "_absent": ("n", "m")}, after)]))
    apply_entries(writer.folder, lake)
    assert lake_rows(lake, table) == [{"code": None, "n": 1, "m": 10}, {"code": None, "n": 3, "m": 20}]


def test_a_column_that_comes_goes_and_comes_again_when_followed_then_rows_equal_the_source(
    writer: Writer, lake: Path
) -> None:
    narrow = Table("t", {"id": pa.int32(), "a": pa.string()})
    wide = Table("t", {"id": pa.int32(), "a": pa.string(), "New": pa.int32()})
    writer.cut((narrow, [insert(id=1, a="x"), insert(id=2, a="x")]))
    writer.cut((wide, [insert(id=3, a="y", New=7)]))
    apply_entries(writer.folder, lake)
    assert [row["New"] for row in lake_rows(lake, wide)] == [None, None, 7]
    writer.cut((narrow, [insert(id=4, a="z")]))
    apply_entries(writer.folder, lake)
    assert [row["New"] for row in lake_rows(lake, wide)] == [None] * 4
    assert changelog(str(lake), table_id(wide)).sort_by("_gsn")["New"].to_pylist() == [None, None, 7, None]
    writer.cut((wide, [update({"id": 4, "a": "z", "New": None}, {"id": 4, "a": "z", "New": 9})]))
    apply_entries(writer.folder, lake)
    assert [row["New"] for row in lake_rows(lake, wide)] == [None, None, None, 9]


def test_a_keyless_table_when_its_columns_change_then_old_rows_can_still_be_deleted(writer: Writer, lake: Path) -> None:
    narrow = Table("t", {"a": pa.string(), "b": pa.int32()}, key=())
    wide = Table("t", {"a": pa.string(), "b": pa.int32(), "c": pa.string()}, key=())
    only_a = Table("t", {"a": pa.string()}, key=())
    writer.cut((narrow, [insert(a="x", b=1), insert(a="x", b=2), insert(a="y", b=None)]))
    apply_entries(writer.folder, lake)
    writer.cut((wide, [delete(a="y", b=None, c=None)]))
    apply_entries(writer.folder, lake)
    assert len(lake_rows(lake, narrow)) == 2
    writer.cut((only_a, [delete(a="x")]))
    apply_entries(writer.folder, lake)
    assert lake_rows(lake, only_a) == [{"a": "x"}]


def test_a_key_that_changes_inside_a_batch_when_merged_then_no_row_is_lost_or_doubled(
    writer: Writer, lake: Path
) -> None:
    columns = {"a": pa.int32(), "b": pa.int32()}
    both, single, none = (Table("t", columns, key=key) for key in (("a", "b"), ("a",), ()))
    writer.write_entry(
        [
            writer.make_cut(
                [
                    (both, [insert(a=1, b=1), insert(a=1, b=2), delete(a=1, b=1)]),
                    (single, [update({"a": 1, "b": 2}, {"a": 1, "b": 3})]),
                    (none, [insert(a=1, b=3), insert(a=5, b=5)]),
                ]
            )
        ]
    )
    apply_entries(writer.folder, lake)
    expected = [{"a": 1, "b": 3}, {"a": 1, "b": 3}, {"a": 5, "b": 5}]
    assert lake_rows(lake, both) == expected
    assert {outcome.result for outcome in apply_entries(writer.folder, lake)} == {Result.SKIPPED}
    writer.cut((none, [delete(a=1, b=3)]))
    apply_entries(writer.folder, lake)
    assert lake_rows(lake, both) == expected[1:]


def test_a_kill_inside_a_cut_whose_key_changes_when_replayed_then_keyless_rows_are_not_doubled(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none, single = (Table("t", {"a": pa.int32()}, key=key) for key in ((), ("a",)))
    writer.write_entry([writer.make_cut([(none, [insert(a=1), insert(a=2)]), (single, [insert(a=3)])])])
    follow = merge.change_schema

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(merge, "change_schema", kill)
    with pytest.raises(Killed):
        apply_entries(writer.folder, lake)
    monkeypatch.setattr(merge, "change_schema", follow)
    apply_entries(writer.folder, lake)
    assert lake_rows(lake, single) == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_a_type_that_widens_when_followed_then_old_and_new_values_are_exact(writer: Writer, lake: Path) -> None:
    for type_, value in ((pa.int64(), -5), (pa.uint64(), 2**64 - 1), (pa.decimal128(30, 4), Decimal("0.0001"))):
        writer.cut((Table("t", {"id": pa.int32(), "v": type_}), [insert(id=writer.entry, v=value)]))
        apply_entries(writer.folder, lake, first=writer.entry)
    table = Table("t", {"id": pa.int32(), "v": pa.decimal128(30, 4)})
    assert [row["v"] for row in lake_rows(lake, table)] == [Decimal(-5), Decimal(2**64 - 1), Decimal("0.0001")]


@pytest.mark.parametrize(
    ("break_file", "found"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(b"PAR1 no more"), "no readable Parquet file"),
        (lambda path: path.write_bytes(path.read_bytes()[:200] + b"\0" * 50 + path.read_bytes()[250:]), "t.parquet"),
    ],
    ids=["missing", "not parquet", "broken page"],
)
def test_a_bad_data_file_when_met_then_the_table_stops_and_says_which(
    writer: Writer, lake: Path, break_file: object, found: str
) -> None:
    writer.cut((ORDERS, [insert(**order(n, note="some text")) for n in range(500)]), (EVENTS, [insert(kind="x")]))
    (path,) = (writer.folder / "data" / "acme" / "shop" / "shop" / "orders").glob("*.parquet")
    break_file(path)  # type: ignore[operator]
    outcomes = {outcome.table.table: outcome for outcome in apply_entries(writer.folder, lake)}
    assert outcomes["orders"].code == "DATA_FILE_UNREADABLE"
    assert path.name in outcomes["orders"].message and (found in outcomes["orders"].message or found == "t.parquet")
    assert outcomes["events"].result is Result.APPLIED


def test_an_unknown_change_type_when_met_then_the_table_stops_before_anything_is_written(
    writer: Writer, lake: Path
) -> None:
    writer.cut((ORDERS, [[("snapshot", order(1))]]))
    (outcome,) = apply_entries(writer.folder, lake)
    assert outcome.code == "CHANGE_TYPE_UNKNOWN"
    assert open_table(f"{table_id(ORDERS).folder(str(lake))}/changelog") is None


def test_names_that_paths_and_sql_dislike_when_followed_then_tables_and_keys_work(writer: Writer, lake: Path) -> None:
    table = Table('a/b ~"%20', {'we"ird `key': pa.string(), "A.b": pa.int32()}, key=('we"ird `key',), database="..")
    key = 'we"ird `key'
    writer.cut((table, [insert(**{key: "x", "A.b": 1}), insert(**{key: "y", "A.b": 2})]))
    apply_entries(writer.folder, lake)
    writer.cut((table, [update({key: "x", "A.b": 1}, {key: "x", "A.b": 3}), delete(**{key: "y", "A.b": 2})]))
    (outcome,) = apply_entries(writer.folder, lake)
    assert outcome.message == ""
    assert current_state(str(lake), table_id(table))["A.b"].to_pylist() == [3]


def test_two_tenants_with_a_source_of_one_name_when_applied_then_they_stay_apart(writer: Writer, lake: Path) -> None:
    for tenant, amount in (("acme", 1), ("globex", 2)):
        writer.cut((ORDERS, [insert(**order(1, amount))]), tenant=tenant)
    apply_entries(writer.folder, lake)
    assert lake_rows(lake, ORDERS) == [order(1, 1)]
    assert lake_rows(lake, ORDERS, tenant="globex") == [order(1, 2)]


def test_a_delete_of_a_row_that_the_lake_lacks_when_applied_then_later_rows_are_right(
    writer: Writer, lake: Path
) -> None:
    writer.cut((EVENTS, [delete(kind="x", value=1.0), insert(kind="x", value=1.0)]))
    writer.cut((ORDERS, [delete(**order(9)), update(order(8), order(8, 5))]))
    apply_entries(writer.folder, lake)
    assert lake_rows(lake, EVENTS) == [{"kind": "x", "value": 1.0}]
    assert lake_rows(lake, ORDERS) == [order(8, 5)]


def test_inserts_without_a_key_when_equal_rows_are_there_then_they_are_appended_and_each_can_be_deleted(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table("t", {"v": pa.int32()}, key=())
    one, two = insert(v=1), insert(v=2)
    for changes in ([one, two, one], [one, one], [two]):
        writer.cut((table, changes))
    with monkeypatch.context() as patched:
        patched.setattr(merge, "copies_held", None)  # nobody looks what is there
        for number in (1, 2, 3):
            apply_entries(writer.folder, lake, first=number, last=number)
    current = open_table(f"{table_id(table).folder(str(lake))}/current")
    assert current is not None and "MERGE" not in {found["operation"] for found in current.history()}
    left = [1, 1, 1, 1, 2, 2]
    for value in (1, 2, 1, 1, 2):
        writer.cut((table, [delete(v=value), one, delete(v=1), delete(v=3)]))
        apply_entries(writer.folder, lake, first=writer.entry)
        left.remove(value)
        assert lake_rows(lake, table) == [{"v": each} for each in left]
