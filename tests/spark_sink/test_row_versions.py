"""Tables with system versioning: the current state is what SELECT * shows, former versions are in the changelog."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from menura.change_batch import METADATA_ROW_END
from menura.landing import LandedColumn
from menura.row_versions import CURRENT_NUMBER, CURRENT_US
from pyspark.sql import SparkSession

from spark_sink.ingest.large_merge import LargeMerger
from spark_sink.ingest.table_task import TaskSize
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import changelog, current_state
from tests.spark_sink.landing import (
    Chunk,
    Event,
    Table,
    Writer,
    altered,
    apply_entries,
    delete,
    insert,
    table_id,
    update,
)

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
SOURCE = ("acme", "shop")


@dataclass(frozen=True)
class Versioned(Table):
    """A table whose last column ends its rows."""

    def landed_schema(self) -> pa.Schema:
        schema = super().landed_schema()
        place = schema.get_field_index("b")
        facts = {**(schema.field(place).metadata or {}), METADATA_ROW_END.encode(): b"1"}
        return schema.set(place, schema.field(place).with_metadata(facts))


def instant(us: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(microseconds=us)


#: of each way to end a row: the column's type, the end of a current row, and two others
ENDS = {
    "timestamps": (pa.timestamp("us", "UTC"), instant(CURRENT_US[0]), instant(7), instant(9)),
    "long timestamps": (pa.timestamp("us", "UTC"), instant(CURRENT_US[1]), instant(7), instant(9)),
    "transactions": (pa.uint64(), CURRENT_NUMBER, 7, 9),
}


def versioned(kind: str, keyed: bool) -> Versioned:
    type_ = ENDS[kind][0]
    columns: Mapping[str, pa.DataType] = {"id": pa.int32(), "v": pa.string(), "a": type_, "b": type_}
    return Versioned("t", columns, key=("id", "b") if keyed else ())


def plain(keyed: bool) -> Table:
    return Table("t", {"id": pa.int32(), "v": pa.string()}, key=("id",) if keyed else ())


def event(kind: str, table: Table, **more: object) -> Event:
    made = altered(plain(bool(table.key)), **more)  # type: ignore[arg-type]
    if isinstance(table, Versioned):
        format_ = {"timestamps": "tsu:UTC", "long timestamps": "tsu:UTC", "transactions": "L"}[kind]
        # The agent does not tell hidden columns apart from those that were there.
        ends = (LandedColumn("a", "timestamp(6)", format_),
                LandedColumn("b", "timestamp(6)", format_, 2 if table.key else 0, row_end=True))  # fmt: skip
        return Event(table, made.kind, made.removes_rows, (*made.columns, *ends), made.statement)
    return Event(table, made.kind, made.removes_rows, made.columns, made.statement)


def state(lake: Path) -> list[tuple[object, ...]]:
    return sorted((row["id"], row["v"]) for row in current_state(str(lake), table_id(plain(True))).to_pylist())


def apply(writer: Writer, lake: Path, size: TaskSize | None = None) -> None:
    assert [outcome.message for outcome in apply_entries(writer.folder, lake, size)] == [""]


def changes(kind: str) -> list[list[tuple[str, Mapping[str, object]]]]:
    """An insert of three rows, an update, a delete, a new row under the old key, and DELETE HISTORY."""
    _, now, one, two = ENDS[kind]
    rows = [insert(id=key, v="old", a=one, b=now) for key in (1, 2, 3)]
    updated = update({"id": 1, "v": "old", "a": one, "b": now}, {"id": 1, "v": "new", "a": two, "b": now})
    former = insert(id=1, v="old", a=one, b=two)
    ended = update({"id": 2, "v": "old", "a": one, "b": now}, {"id": 2, "v": "old", "a": one, "b": two})
    return [*rows, updated, former, ended, insert(id=2, v="again", a=two, b=now), delete(id=1, v="old", a=one, b=two)]


@pytest.mark.parametrize("are_apart", [True, False])
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
@pytest.mark.parametrize("kind", ENDS)
def test_former_versions_when_they_are_logged_then_the_current_state_has_the_current_ones_alone(
    writer: Writer, lake: Path, kind: str, keyed: bool, are_apart: bool
) -> None:
    table = versioned(kind, keyed)
    for change in changes(kind):
        writer.cut((table, [change]))
        if are_apart:
            apply(writer, lake)
    apply(writer, lake)
    assert state(lake) == [(1, "new"), (2, "again"), (3, "old")]
    assert changelog(str(lake), table_id(table)).num_rows == 3 + 2 + 1 + 2 + 1 + 1


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
@pytest.mark.parametrize("kind", ENDS)
def test_versioning_that_is_added_and_dropped_when_followed_then_rows_stay_one_each(
    writer: Writer, lake: Path, kind: str, keyed: bool
) -> None:
    _, now, one, two = ENDS[kind]
    table, before = versioned(kind, keyed), plain(keyed)
    writer.cut((before, [insert(id=key, v="old") for key in (1, 2, 3)]), event(kind, table))
    updated = update({"id": 1, "v": "old", "a": one, "b": now}, {"id": 1, "v": "new", "a": two, "b": now})
    ended = update({"id": 2, "v": "old", "a": one, "b": now}, {"id": 2, "v": "old", "a": one, "b": two})
    writer.cut((table, [updated, insert(id=1, v="old", a=one, b=two), ended]))
    apply(writer, lake)
    assert state(lake) == [(1, "new"), (3, "old")]
    writer.cut(event(kind, before), (before, [update({"id": 3, "v": "old"}, {"id": 3, "v": "last"})]))
    apply(writer, lake)
    assert state(lake) == [(1, "new"), (3, "last")]
    ended = update({"id": 1, "v": "new", "a": one, "b": now}, {"id": 1, "v": "new", "a": one, "b": two})
    writer.cut(event(kind, table), (table, [ended]))
    apply(writer, lake)
    assert state(lake) == [(3, "last")]


@pytest.mark.parametrize("kind", ENDS)
def test_a_dump_of_all_versions_when_history_is_deleted_meanwhile_then_each_current_row_is_there(
    writer: Writer, lake: Path, kind: str
) -> None:
    _, now, one, two = ENDS[kind]
    table = versioned(kind, True)
    writer.cut(Event(table, "DUMP_STARTED", dump="dump-1"))
    floor = writer.last_gsns[SOURCE]
    ended = update({"id": 2, "v": "x", "a": one, "b": now}, {"id": 2, "v": "x", "a": one, "b": two})
    lacks = {"v": None, "_absent": ("v",)}
    moved = update({"id": 4, "a": one, "b": now, **lacks}, {"id": 4, "a": two, "b": now, **lacks})
    writer.cut((table, [delete(id=1, v="former", a=one, b=two), ended, moved]))
    versions = [
        {"id": key, "v": v, "a": one, "b": end} for key in (1, 2, 3, 4) for v, end in (("former", two), ("x", now))
    ]
    writer.cut(Chunk(table, versions, floor))
    writer.cut(Event(table, "DUMPED", dump="dump-1", removes_rows_before_gsn=floor))
    apply(writer, lake)
    assert state(lake) == [(1, "x"), (3, "x"), (4, "x")]
    kinds = changelog(str(lake), table_id(table))["_change_type"].to_pylist()
    assert kinds.count("snapshot") == len(versions)


def test_former_versions_when_a_cut_is_too_large_for_a_worker_then_spark_leaves_them_out_too(
    writer: Writer, lake: Path, session: SparkSession
) -> None:
    table = versioned("timestamps", True)
    writer.cut((table, changes("timestamps")))
    (large,) = apply_entries(writer.folder, lake, TaskSize(rows=1))
    outcome = LargeMerger(session, LandingLog(str(writer.folder)), str(lake)).apply(large)
    assert outcome.message == ""
    assert state(lake) == [(1, "new"), (2, "again"), (3, "old")]


def test_a_column_that_ends_rows_when_it_is_of_another_type_then_the_table_stops(writer: Writer, lake: Path) -> None:
    table = Versioned("t", {"id": pa.int32(), "b": pa.string()})
    writer.cut((table, [insert(id=1, b="x")]))
    (outcome,) = apply_entries(writer.folder, lake)
    assert outcome.code == "DATA_FILE_UNREADABLE" and "ends no row" in outcome.message
