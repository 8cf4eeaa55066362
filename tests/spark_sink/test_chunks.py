"""Chunks of dumps in the lake, case by case; `test_dump_model` has them at random."""

from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from menura.landing import entry_path

from spark_sink.errors import LogEntryUnreadable
from spark_sink.ingest.cut_log_source import entry_rows
from spark_sink.lake import changelog as changelog_module
from spark_sink.lake import chunk_merge, merge
from spark_sink.lake.records import Records
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import changelog, current_state
from spark_sink.work import EventSeen, split_rows
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import (
    COMMIT_US,
    Chunk,
    Event,
    Table,
    Values,
    Writer,
    altered,
    apply_entries,
    delete,
    insert,
    table_id,
    truncate,
    update,
)
from tests.spark_sink.test_partial_rows import TABLE, change, partial, rows

KEYLESS = Table("t", TABLE.columns, key=())
SOURCE = ("acme", "shop")


def started(writer: Writer) -> int:
    """A dump begins; the floor of its chunks."""
    writer.cut(Event(TABLE, "DUMP_STARTED", dump="dump-1"))
    return writer.last_gsns[SOURCE]


def apply(writer: Writer, lake: Path) -> None:
    assert [outcome.message for outcome in apply_entries(writer.folder, lake)] == [""]


def row(key: int, a: str | None = "old", b: int | None = 1) -> Values:
    return {"id": key, "a": a, "b": b}


def test_a_chunk_when_changes_are_above_its_number_then_those_decide(writer: Writer, lake: Path) -> None:
    floor = started(writer)
    writer.cut((TABLE, [update(row(1), row(1, "new")), delete(**row(2)), insert(**row(3, "new"))]))
    writer.cut(Chunk(TABLE, [row(1), row(2), row(4)], floor))
    apply(writer, lake)
    assert rows(lake) == [(1, "new", 1, None), (3, "new", 1, None), (4, "old", 1, None)]
    log = changelog(str(lake), table_id(TABLE)).filter(pc.field("_change_type") == "snapshot").to_pylist()
    assert {(r["_gsn"], r["_transaction_id"], r["_commit_timestamp_us"], r["_position"]) for r in log} == {
        (floor, 0, COMMIT_US + 7, "gtid:read")
    }


def test_a_chunk_when_a_change_comes_in_a_later_cut_of_its_batch_then_that_decides(writer: Writer, lake: Path) -> None:
    floor = started(writer)
    writer.cut(Chunk(TABLE, [row(1), row(2)], floor))
    writer.cut((TABLE, [delete(**row(1)), update(row(2), row(5))]))
    writer.cut((TABLE, [insert(**row(1, "again"))]))
    apply(writer, lake)
    assert rows(lake) == [(1, "again", 1, None), (5, "old", 1, None)]


@pytest.mark.parametrize("are_apart", [False, True])
def test_a_chunk_when_partial_changes_are_above_it_then_they_belong_on_its_rows(
    writer: Writer, lake: Path, are_apart: bool
) -> None:
    """Keys: changed, moved away, moved there and changed, deleted, taken by another row after a delete."""
    floor = started(writer)
    writer.cut((TABLE, [change(1, b=2), change(2, id=20, b=3), change(30, id=3), change(3, b=None)]))
    writer.cut((TABLE, [change(4, b=9), delete(**partial(id=4)), delete(**partial(id=5)), change(50, id=5)]))
    if are_apart:
        apply(writer, lake)
        assert rows(lake)[0] == (1, None, 2, '["a"]')
    writer.cut(Chunk(TABLE, [row(1), row(2), row(3, "moved", 7), row(4), row(5, "whose?")], floor))
    apply(writer, lake)
    assert rows(lake) == [
        (1, "old", 2, None),
        (20, "old", 3, None),
        (3, "moved", None, None),
        (5, None, None, '["a", "b"]'),
    ]


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize(
    ("module", "name"),
    [(changelog_module, "append"), (merge, "merge_effect"), (merge, "merge_chunks"), (chunk_merge, "append")],
)
def test_a_kill_before_a_chunk_is_merged_when_replayed_to_an_earlier_end_then_later_changes_stay(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, call: int
) -> None:
    monkeypatch.setattr(chunk_merge, "PIECE_ROWS", 1)
    floor = started(writer)
    writer.cut((TABLE, [change(1, b=2)]), Chunk(TABLE, [row(key) for key in (1, 2, 3, 4)], floor))
    writer.cut((TABLE, [delete(**row(2)), change(3, a="new"), insert(**row(5))]))
    with monkeypatch.context() as patched, suppress(Killed):
        kill_at(patched, module, name, call)
        apply(writer, lake)
    apply_entries(writer.folder, lake, last=2)
    if (module, name, call) == (merge, "merge_effect", 1):  # the changelog is further than that
        assert rows(lake) == [(1, "old", 2, None), *((key, "old", 1, None) for key in (2, 3, 4))]
    apply(writer, lake)
    assert rows(lake) == [(1, "old", 2, None), (3, "new", 1, None), (4, "old", 1, None), (5, "old", 1, None)]
    kinds = Counter(changelog(str(lake), table_id(TABLE))["_change_type"].to_pylist())
    assert kinds == {"snapshot": 4, "update_preimage": 2, "update_postimage": 2, "delete": 1, "insert": 1}


def test_a_kill_after_a_truncate_when_replayed_then_a_chunk_from_before_it_stays_away(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor = started(writer)
    writer.cut(Chunk(TABLE, [row(1), row(2)], floor))
    writer.cut(truncate(TABLE), (TABLE, [insert(**row(3))]))
    with monkeypatch.context() as patched, suppress(Killed):
        kill_at(patched, merge, "merge_effect", 1)
        apply(writer, lake)
    apply(writer, lake)
    assert rows(lake) == [(3, "old", 1, None)]


def test_a_chunk_again_when_the_table_has_rows_then_older_ones_are_overwritten_and_stale_ones_go(
    writer: Writer, lake: Path
) -> None:
    writer.cut((TABLE, [insert(**row(key)) for key in (1, 2, 3)]))
    began = writer.last_gsns[SOURCE] + 1
    floor = started(writer)
    writer.cut((TABLE, [change(2, b=5), insert(**row(4, "new"))]))
    apply(writer, lake)
    writer.cut(Chunk(TABLE, [row(1), row(2, "truth")], floor), Chunk(TABLE, [row(7)], floor, range=1))
    writer.cut(Event(TABLE, "DUMPED", dump="dump-1", removes_rows_before_gsn=began))
    apply(writer, lake)
    assert rows(lake) == [(1, "old", 1, None), (2, "truth", 5, None), (4, "new", 1, None), (7, "old", 1, None)]
    assert set(current_state(str(lake), table_id(TABLE)).to_pydict()["_gsn"]) >= {floor}


def test_partial_changes_when_changes_before_the_dump_were_missed_then_values_from_before_it_are_unknown(
    writer: Writer, lake: Path
) -> None:
    """Keys: changed; moved behind the dump's back; moved to a key that its chunk still has with another row."""
    writer.cut((TABLE, [insert(**row(key, "stale")) for key in (1, 2, 3, 4)]))
    began = writer.last_gsns[SOURCE] + 1
    floor = started(writer)
    writer.cut((TABLE, [change(1, b=5), change(2, id=20, b=5), delete(**partial(id=3)), change(4, id=3, b=5)]))
    apply(writer, lake)
    assert rows(lake) == [(key, None, 5, '["a"]') for key in (1, 20, 3)]
    writer.cut(Chunk(TABLE, [row(1, "truth"), row(3, "whose?")], floor))
    writer.cut((TABLE, [change(20, b=6)]))
    writer.cut(Event(TABLE, "DUMPED", dump="dump-1", removes_rows_before_gsn=began))
    apply(writer, lake)
    assert rows(lake) == [(1, "truth", 5, None), (20, None, 6, '["a"]'), (3, None, 5, '["a"]')]


def test_rows_that_are_as_the_chunk_has_them_when_merged_then_nothing_is_written_anew(
    writer: Writer, lake: Path
) -> None:
    started(writer)
    writer.cut((TABLE, [insert(**row(1)), insert(**row(2, None, None))]))
    writer.cut(Chunk(TABLE, [row(1), row(2, None, None)], writer.last_gsns[SOURCE]))
    apply(writer, lake)
    operations = [found["operation"] for found in DeltaTable(f"{table_id(TABLE).folder(str(lake))}/current").history()]
    assert "MERGE" not in operations


def test_keys_of_invalid_bytes_when_in_a_chunk_then_each_is_its_own_row(writer: Writer, lake: Path) -> None:
    table = Table("t", {"k": pa.string(), "n": pa.int32()}, key=("k",))

    def bad(raw: str, n: int) -> dict[str, object]:
        return {"k": None, "n": n, "_unrepresentable": f'{{"k":"{raw}"}}'}

    writer.cut(altered(table))
    floor = writer.last_gsns[SOURCE]
    writer.cut((table, [delete(**bad("0xFF", 1)), insert(k="it's", n=5)]))
    writer.cut(Chunk(table, [bad("0xFF", 1), bad("0xFE", 2), {"k": "it's", "n": 4}, {"k": "zz", "n": 6}], floor))
    apply(writer, lake)
    found = current_state(str(lake), table_id(table)).to_pylist()
    assert sorted((r["k"] or "", r["n"], r["_unrepresentable"] or "") for r in found) == [
        ("", 2, '{"k":"0xFE"}'),
        ("it's", 5, ""),
        ("zz", 6, ""),
    ]


def test_composite_keys_when_they_share_their_first_column_then_only_their_own_changes_decide(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_merge, "PIECE_ROWS", 2)
    table = Table("t", {"x": pa.uint64(), "day": pa.date32(), "n": pa.int32()}, key=("x", "day"))
    days = [None, *range(4)]

    def of(day: object, n: int) -> dict[str, object]:
        raw = '{"day":"0000-00-00"}' if day is None else None
        return {"x": 2**64 - 1, "day": day, "n": n, "_unrepresentable": raw}

    writer.cut(altered(table))
    floor = writer.last_gsns[SOURCE]
    writer.cut((table, [update(of(None, 1), of(None, 2)), delete(**of(2, 1))]))
    writer.cut(Chunk(table, [of(day, 1) for day in days], floor))
    apply(writer, lake)
    found = current_state(str(lake), table_id(table)).to_pylist()
    assert sorted(r["n"] for r in found) == [1, 1, 1, 2]


@pytest.mark.parametrize("table", [TABLE, KEYLESS], ids=["keyed", "keyless"])
def test_a_whole_table_when_dumped_then_it_replaces_all_rows_and_later_changes_go_on(
    writer: Writer, lake: Path, table: Table
) -> None:
    writer.cut((table, [insert(**row(1)), insert(**row(2))]))
    apply(writer, lake)
    copies = [row(3)] if table.key else [row(3), row(3), row(3)]
    ended = Event(table, "DUMPED", removes_rows=True, dump="dump-1")
    writer.cut((table, [delete(**row(1))]), ended, Chunk(table, [row(2, "new"), *copies]), (table, [delete(**row(3))]))
    writer.cut((table, [insert(**row(4))]))
    apply(writer, lake)
    left = [(3, "old", 1, None)] * (len(copies) - 1)
    assert rows(lake, table) == [(2, "new", 1, None), *left, (4, "old", 1, None)]


def test_a_range_of_a_table_without_a_key_when_met_then_the_table_stops(writer: Writer, lake: Path) -> None:
    writer.cut(Chunk(KEYLESS, [row(1)], 1))
    (outcome,) = apply_entries(writer.folder, lake)
    assert outcome.code == "CHUNK_WITHOUT_KEY"


def test_a_file_of_a_chunk_that_its_cut_does_not_name_when_read_then_the_entry_is_refused(writer: Writer) -> None:
    writer.cut(Chunk(TABLE, [row(1)], 1))
    entry = writer.folder / entry_path(1)
    entry.write_bytes(entry.read_bytes().replace(b'"chunk":1,"gsn"', b'"chunk":2,"gsn"'))
    with pytest.raises(LogEntryUnreadable, match="does not say what chunk 1 of dump dump-1 is"):
        LandingLog(str(writer.folder)).read_entry(1)


def test_events_of_dumps_when_the_lake_is_of_an_earlier_version_then_their_columns_are_added(
    writer: Writer, lake: Path
) -> None:
    records = Records(str(lake))

    def record() -> None:
        entry = LandingLog(str(writer.folder)).read_entry(writer.entry)
        assert entry is not None
        records.record_events(seen for seen in split_rows(entry_rows(entry))[0] if isinstance(seen, EventSeen))

    writer.cut(altered(TABLE))
    record()
    events = DeltaTable(records.events_folder)
    held = events.to_pyarrow_table()
    held = held.drop_columns(held.column_names[held.column_names.index("dump") :])

    write_deltalake(events, held, mode="overwrite", schema_mode="overwrite")
    began = started(writer) - 1
    record()
    writer.cut(Event(TABLE, "DUMPED", dump="dump-1", removes_rows_before_gsn=began))
    record()
    found = DeltaTable(records.events_folder).to_pyarrow_table().sort_by("_gsn").to_pylist()
    assert [(r["kind"], r["dump"], r["removes_rows_before_gsn"]) for r in found] == [
        ("ALTERED", None, None),
        ("DUMP_STARTED", "dump-1", None),
        ("DUMPED", "dump-1", began),
    ]
