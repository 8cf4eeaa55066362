"""Rows of which the log did not carry every column: the lake keeps what it knows and says what it does not."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from spark_sink.ingest import large_merge
from spark_sink.ingest.large_merge import LargeMerger
from spark_sink.ingest.table_task import TaskSize
from spark_sink.lake import merge
from spark_sink.lake.delta_table import Layout, open_table
from spark_sink.lake.steps import Segment
from spark_sink.landed.landed_file import LandedRows, LandedShape
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import changelog, current_state
from spark_sink.work import ChunkFacts, Result, TableFile
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import Change, Table, Values, Writer, apply_entries, delete, insert, table_id, update

TABLE = Table("t", {"id": pa.int32(), "a": pa.string(), "b": pa.int32()})


def partial(**values: object) -> Values:
    """A row that has these columns alone."""
    return {**values, "_absent": tuple(name for name in TABLE.columns if name not in values)}


def change(key: int, **values: object) -> list[Change]:
    """As binlog_row_image=MINIMAL logs it; a new `id` among the values moves the row."""
    return update(partial(id=key), partial(**{"id": key, **values}))


def rows(lake: Path, table: Table = TABLE) -> list[tuple[object, ...]]:
    """Rows of the current state with what is unknown."""
    found = current_state(str(lake), table_id(table)).to_pylist()
    names = (*table.columns, "_absent")
    return sorted((tuple(row[name] for name in names) for row in found), key=repr)


def test_partial_changes_when_merged_then_each_column_has_its_last_value(writer: Writer, lake: Path) -> None:
    writer.cut((TABLE, [insert(id=1, a="x", b=1), insert(id=2, a="y", b=2)]))
    apply_entries(writer.folder, lake)
    writer.cut((TABLE, [change(1, b=10), change(2, a=None), change(1, a="z"), change(1, b=None)]))
    (outcome,) = apply_entries(writer.folder, lake)
    assert outcome.message == ""
    assert rows(lake) == [(1, "z", None, None), (2, None, 2, None)]


def test_a_row_that_moves_when_its_values_are_absent_then_they_follow_it(writer: Writer, lake: Path) -> None:
    writer.cut((TABLE, [insert(id=n, a=f"a{n}", b=n) for n in (1, 2, 3)]))
    apply_entries(writer.folder, lake)
    swap = [change(1, id=9), change(2, id=1), change(9, id=2, b=99), change(3, id=4), delete(**partial(id=4))]
    writer.cut((TABLE, swap))
    apply_entries(writer.folder, lake)
    assert rows(lake) == [(1, "a2", 2, None), (2, "a1", 99, None)]


def test_an_insert_over_an_earlier_row_when_partial_then_nothing_of_that_row_stays(writer: Writer, lake: Path) -> None:
    writer.cut((TABLE, [insert(id=1, a="old", b=1), insert(id=2, a="old", b=2)]))
    apply_entries(writer.folder, lake)
    again = [delete(**partial(id=1)), insert(**partial(id=1, b=5)), delete(**partial(id=2)), change(2, b=6)]
    writer.cut((TABLE, again))
    apply_entries(writer.folder, lake)
    assert rows(lake) == [(1, None, 5, '["a"]'), (2, None, 6, '["a"]')]


def test_a_key_that_the_lake_lacks_when_changed_then_unknown_columns_are_named_until_known(
    writer: Writer, lake: Path
) -> None:
    writer.cut((TABLE, [change(7, b=1), change(8, b=None)]))
    apply_entries(writer.folder, lake)
    assert rows(lake) == [(7, None, 1, '["a"]'), (8, None, None, '["a"]')]
    writer.cut((TABLE, [change(7, b=2)]))
    apply_entries(writer.folder, lake)
    assert rows(lake)[0] == (7, None, 2, '["a"]')
    writer.cut(
        (TABLE, [change(7, id=6), change(6, a=None), update({"id": 8, "a": "q", "b": 0}, {"id": 8, "a": "r", "b": 1})])
    )
    apply_entries(writer.folder, lake)
    assert rows(lake) == [(6, None, 2, None), (8, "r", 1, None)]


def test_partial_rows_when_logged_then_the_changelog_names_what_they_lack(writer: Writer, lake: Path) -> None:
    table = Table("t", {"unit price": pa.int32(), "id": pa.int32(), **{f"c{n}": pa.int32() for n in range(9)}})
    whole = {"unit price": 1, "id": 1, **{f"c{n}": n for n in range(9)}}
    lacking = {"id": 2, "_absent": ("unit price", "c8")}
    writer.cut((table, [insert(**whole), insert(**lacking)]))
    apply_entries(writer.folder, lake)
    logged = changelog(str(lake), table_id(table)).sort_by("_gsn")["_absent"].to_pylist()
    assert logged == [None, json.dumps(["unit%20price", "c8"])]
    assert current_state(str(lake), table_id(table)).sort_by("id")["_absent"].to_pylist() == logged


def test_unrepresentable_values_when_later_changes_lack_the_column_then_they_stay(writer: Writer, lake: Path) -> None:
    table = Table("t", {"id": pa.int32(), "d": pa.date32(), "e": pa.date32()})
    zero = {"id": 1, "d": None, "e": None, "_unrepresentable": '{"d":"0000-00-00","e":"2024-00-00"}'}
    writer.cut((table, [insert(**zero)]))
    apply_entries(writer.folder, lake)
    lacks_d = [{"id": 1, "_absent": ("d", "e")}, {"id": 1, "e": None, "_absent": ("d",)}]
    writer.cut((table, [update(*lacks_d)]))
    apply_entries(writer.folder, lake)
    found = current_state(str(lake), table_id(table)).to_pylist()[0]
    assert (found["d"], found["e"], found["_unrepresentable"]) == (None, None, '{"d":"0000-00-00"}')


def test_a_table_without_a_key_when_rows_are_partial_then_it_stops_before_anything_is_written(
    writer: Writer, lake: Path
) -> None:
    keyless = Table("t", dict(TABLE.columns), key=())
    writer.cut((keyless, [insert(id=1, a="x", b=1)]))
    apply_entries(writer.folder, lake)
    writer.cut((keyless, [insert(id=2, b=2, _absent=("a",))]))
    (outcome,) = apply_entries(writer.folder, lake)
    assert (outcome.result, outcome.code) == (Result.STOPPED, "ROWS_PARTIAL")
    assert "Have the source's log hold all values of each row; then run: " in outcome.message
    assert '"x"' not in outcome.message
    assert changelog(str(lake), table_id(keyless)).num_rows == 1


def test_a_row_without_its_key_when_it_comes_then_the_table_stops(writer: Writer, lake: Path) -> None:
    writer.cut((TABLE, [insert(a="x", _absent=("id", "b"))]))
    (outcome,) = apply_entries(writer.folder, lake)
    assert outcome.code == "ROWS_PARTIAL" and "without the primary key's" in outcome.message


def test_a_lake_of_before_partial_rows_when_they_come_then_it_goes_on(writer: Writer, lake: Path) -> None:
    """A landing of format 1, and tables that the sink then made: neither has `_absent`."""
    writer.cut((TABLE, [insert(id=1, a="x", b=1), insert(id=2, a="y", b=2)]))
    (landed,) = (writer.folder / "data/acme/shop/shop/t").glob("*.parquet")
    old = pq.read_table(landed).drop_columns(["_absent"])
    pq.write_table(old, landed, write_page_checksum=True)
    apply_entries(writer.folder, lake)
    for kind in ("changelog", "current"):
        delta = open_table(f"{table_id(TABLE).folder(str(lake))}/{kind}")
        assert delta is not None
        held = delta.to_pyarrow_table().drop_columns(["_absent"])
        write_deltalake(delta, held, mode="overwrite", schema_mode="overwrite")
    writer.cut((TABLE, [insert(id=3, a="z", b=3)]))
    apply_entries(writer.folder, lake)
    writer.cut((TABLE, [change(1, b=5)]))
    (outcome,) = apply_entries(writer.folder, lake)
    assert outcome.message == ""
    assert rows(lake) == [(1, "x", 5, None), (2, "y", 2, None), (3, "z", 3, None)]
    assert changelog(str(lake), table_id(TABLE)).sort_by("_gsn")["_absent"].to_pylist()[-1] == '["a"]'


@pytest.mark.parametrize("killed_at", [None, 1, 3])
def test_a_cut_too_large_for_a_task_when_its_rows_are_partial_then_it_merges_in_chunks_between_pairs(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int | None
) -> None:
    writer.cut((TABLE, [insert(id=n, a=f"a{n}", b=n) for n in range(6)]))
    apply_entries(writer.folder, lake)
    writer.row_group_rows = 5
    writer.cut((TABLE, [change(n, id=n + 10) for n in range(6)] + [change(n + 10, b=n * 7) for n in range(6)]))
    (large,) = apply_entries(writer.folder, lake, TaskSize(rows=1), first=2)
    assert large.result is Result.LARGE
    monkeypatch.setattr(large_merge, "CHUNK_ROWS", 3)
    merger = LargeMerger(None, LandingLog(str(writer.folder)), str(lake))  # type: ignore[arg-type]
    if killed_at is not None:
        with monkeypatch.context() as patched, pytest.raises(Killed):
            kill_at(patched, merge, "merge_effect", killed_at)
            merger.apply(large)
    outcome = merger.apply(large)
    assert outcome.message == ""
    assert rows(lake) == sorted(((n + 10, f"a{n}", n * 7, None) for n in range(6)), key=repr)
    assert changelog(str(lake), table_id(TABLE)).num_rows == 6 + 24


def test_rows_of_a_dump_when_they_are_many_and_of_one_number_then_they_are_not_merged_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever is killed between two parts would take all of them for done."""
    monkeypatch.setattr(large_merge, "CHUNK_ROWS", 3)
    rows = pa.table({"_gsn": pa.repeat(pa.scalar(5), 10)})
    shape = LandedShape(pa.schema([]), (), (), {})
    for chunk, parts in ((None, 3), (ChunkFacts(0, 5, 0, "", is_whole=True), 1)):
        file = TableFile(1, 1, "s", "p", 10, 1, 5, 5, chunk)
        segment = Segment((LandedRows(file, shape, rows),), Layout("", (), ()), 5)
        found = list(large_merge.chunks([rows[:6], rows[6:]], segment, "acme/shop", 0, [("acme/shop", 1)]))
        assert len(found) == parts and sum(len(each) for tables, _ in found for each in tables) == 10
