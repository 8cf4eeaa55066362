"""One row from its source's log to what readers see, and what is said of a key without changes."""

import json
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from menura.horizon import HORIZONS_FOLDER, Horizon, HorizonName, encode_horizon

from spark_sink.errors import SinkError, SinkSettingInvalid, TableNotInLake
from spark_sink.ingest import table_task
from spark_sink.lake.records import Records, StoppedTable
from spark_sink.lake.tail import AT_ONCE, Waiting
from spark_sink.landed import cut_search
from spark_sink.trace import Change, Trace, trace
from spark_sink.trace_command import main
from tests.spark_sink.driver import Driver
from tests.spark_sink.landing import (
    COMMIT_US,
    Chunk,
    Event,
    Started,
    Table,
    Verified,
    Writer,
    delete,
    insert,
    table_id,
    truncate,
    update,
)
from tests.spark_sink.test_reading_at import batch

ORDERS = Table("orders", {"id": pa.int32(), "note": pa.string()})
ID = table_id(ORDERS)


class Followed:
    """A lake that follows a landing, batch by batch, with its records."""

    def __init__(self, writer: Writer, lake: Path, waiting: Waiting = AT_ONCE) -> None:
        self.writer, self.lake, self.waiting = writer, lake, waiting
        self.entry = 0

    def cut(self, *batches: Any) -> None:
        self.writer.cut(*batches)
        self.follow()

    def follow(self) -> None:
        first, self.entry = self.entry + 1, self.writer.entry
        batch(self.writer, self.lake, first, self.entry, waiting=self.waiting)

    def trace(self, *key: str, table: Table = ORDERS, landing: bool = True) -> Trace:
        return trace(str(self.lake), table_id(table), key, str(self.writer.folder) if landing else None)


@pytest.fixture
def followed(writer: Writer, lake: Path) -> Followed:
    return Followed(writer, lake)


def row(number: int, note: str) -> dict[str, object]:
    return {"id": number, "note": note}


def kinds(found: Trace) -> list[str]:
    return [change.kind for change in found.changes]


def test_a_key_when_it_was_dumped_changed_read_again_and_deleted_then_each_change_has_its_place_at_every_stage(
    followed: Followed,
) -> None:
    followed.cut(Started(ORDERS, again=False), Event(ORDERS, "DUMP_STARTED", dump="dump-1"))
    followed.cut(Chunk(ORDERS, [row(7, "first"), row(9, "other")], gsn=2))
    followed.cut((ORDERS, [update(row(7, "first"), row(7, "second"))]), Event(ORDERS, "DUMPED", dump="dump-1"))
    followed.cut((ORDERS, [insert(**row(8, "another")), update(row(7, "second"), row(7, "third"))]))
    followed.cut(Event(ORDERS, "DUMP_STARTED", dump="dump-2"))
    again = followed.writer.last_gsns["acme", "shop"]
    followed.cut(Chunk(ORDERS, [row(7, "third"), row(8, "another"), row(9, "other")], gsn=again, dump="dump-2"))
    before = followed.trace("7")
    assert kinds(before) == ["snapshot", "update", "update", "snapshot"]
    assert [change.is_shown for change in before.changes] == [False, False, False, True] and before.rows == 1
    followed.cut((ORDERS, [delete(**row(7, "third"))]), Event(ORDERS, "DUMPED", dump="dump-2"))

    found = followed.trace("7")
    assert kinds(found) == ["snapshot", "update", "update", "snapshot", "delete"] and found.rows == 0
    assert not any(change.is_shown for change in found.changes) and not found.notes and not found.waiting
    cuts = [2, 3, 4, 6, 7]
    assert [change.landed and (change.landed.entry, change.landed.cut) for change in found.changes] == [
        (cut, cut) for cut in cuts
    ]
    assert [change.position for change in found.changes] == ["gtid:read", "gtid:3", "gtid:4", "gtid:read", "gtid:7"]
    assert [change.committed_us for change in found.changes] == [COMMIT_US + at for at in (7, 0, 0, 7, 0)]
    assert {change.landed.gateway for change in found.changes if change.landed} == {"gw-1"}
    files = [path for change in found.changes if change.landed for path, _ in change.landed.files]
    assert len(set(files)) == 5 and all((followed.writer.folder / path).is_file() for path in files)
    assert ["dump-dump-1" in path or "dump-dump-2" in path for path in files] == [True, False, False, True, False]
    for kind in ("changelog", "current"):
        versions = [getattr(change, kind) for change in found.changes]
        numbers = [at.version for at in versions]
        assert numbers == sorted(set(numbers)) and all(at.is_first and at.at_us > COMMIT_US for at in versions)
        # the version before lacks what the version has
        folder = f"{ID.folder(str(followed.lake))}/{kind}"
        for change, version in zip(found.changes, numbers, strict=True):
            held = [_has(folder, at, change) for at in (version - 1, version)]
            assert held == [
                change.kind == "delete" and kind == "current",
                kind == "changelog" or change.kind != "delete",
            ]


def _has(folder: str, version: int, change: Change) -> bool:
    rows = DeltaTable(folder, version=version).to_pyarrow_table().to_pylist()
    is_delete_of_current = folder.endswith("current") and change.kind == "delete"
    return any(each["id"] == 7 and (is_delete_of_current or each["_gsn"] == change.gsn) for each in rows)


def test_a_key_when_an_update_changes_it_then_both_keys_say_so(followed: Followed) -> None:
    followed.cut((ORDERS, [insert(**row(1, "a")), insert(**row(3, "b"))]))
    followed.cut((ORDERS, [update(row(1, "a"), row(2, "a"))]))
    assert kinds(followed.trace("1")) == ["insert", "update, to another key"] and followed.trace("1").rows == 0
    there = followed.trace("2")
    assert kinds(there) == ["update, from another key"] and there.changes[0].is_shown


@pytest.mark.parametrize("is_dump", [False, True])
def test_a_key_when_an_event_took_its_row_away_then_the_event_is_among_its_changes(
    followed: Followed, is_dump: bool
) -> None:
    followed.cut((ORDERS, [insert(**row(1, "a")), insert(**row(3, "b"))]))
    if is_dump:  # which does not bring the row again
        followed.cut(Event(ORDERS, "DUMP_STARTED", dump="dump-1"))
        gsn = followed.writer.last_gsns["acme", "shop"]
        ended = Event(ORDERS, "DUMPED", dump="dump-1", removes_rows_before_gsn=gsn - 1)
        followed.cut(Chunk(ORDERS, [row(3, "b")], gsn), ended)
        assert kinds(followed.trace("3")) == ["insert", "snapshot"]
    else:
        followed.cut(truncate(ORDERS))
    found = followed.trace("1")
    assert kinds(found) == ["insert", "removed by DUMPED" if is_dump else "removed by TRUNCATED"] and found.rows == 0


def test_a_change_when_it_has_landed_and_the_lake_is_behind_or_stopped_then_it_waits(followed: Followed) -> None:
    followed.cut((ORDERS, [insert(**row(1, "a"))]))
    followed.writer.cut((ORDERS, [update(row(1, "a"), row(1, "b")), insert(**row(2, "c"))]))
    found = followed.trace("1")
    assert kinds(found) == ["insert"] and found.changes[0].is_shown
    assert [(each.kind, each.landed and each.landed.entry) for each in found.waiting] == [("update", 2)]
    assert [each.kind for each in followed.trace("2").waiting] == ["insert"]
    stop = StoppedTable(ID, 2, 2, "SCHEMA_CHANGED", "no change of it is followed", terminal=True, at_us=COMMIT_US)
    Records(str(followed.lake)).record_stops([stop])
    followed.entry = 2
    followed.cut((Table("others", ORDERS.columns), [insert(**row(1, "x"))]))
    found = followed.trace("1")
    assert [each.kind for each in found.waiting] == ["update"]
    assert found.notes == ("the lake stopped it at cut 2, SCHEMA_CHANGED: no change of it is followed",)


def test_a_change_when_it_waits_in_the_changelog_then_it_is_what_readers_see_and_in_no_current_version(
    writer: Writer, lake: Path
) -> None:
    followed = Followed(writer, lake, Waiting(3600, -1, part_of_table=1e9))
    followed.cut((ORDERS, [insert(**row(number, "a")) for number in range(50)]))
    followed.cut((ORDERS, [update(row(7, "a"), row(7, "b"))]))
    (first, second) = followed.trace("7").changes
    assert first.current is not None and second.current is None and second.changelog is not None
    assert (first.is_shown, second.is_shown) == (False, True)


def test_a_key_when_nothing_is_known_of_it_then_says_what_was_looked_through_and_what_the_lake_lacks(
    followed: Followed,
) -> None:
    followed.cut(Started(ORDERS, again=False))
    followed.cut((ORDERS, [insert(**row(1, "a"))]))
    followed.cut(Event(ORDERS, "DUMP_STARTED", dump="dump-1"))
    found = followed.trace("5")
    assert not found.changes and not found.waiting and found.rows == 0
    looked = found.looked
    assert (looked.changelog_files, looked.changelog_files_read, looked.begins_gsn, looked.cut) == (1, 0, 0, 3)
    assert (looked.first_entry, looked.last_entry) == (1, 3)
    assert [event["kind"] for event in found.events] == ["SYNC_STARTED", "DUMP_STARTED"]
    assert found.notes == ("dump dump-1 of it has begun and not ended",)
    with pytest.raises(TableNotInLake, match=r"menura table show shop shop\.nowhere"):
        followed.trace("5", table=replace(ORDERS, name="nowhere"))


def test_a_key_when_files_can_not_have_it_then_they_are_not_opened(followed: Followed) -> None:
    for first in range(0, 50, 10):
        followed.cut((ORDERS, [insert(**row(number, "a")) for number in range(first, first + 10)]))
    expected = followed.trace("33")
    assert kinds(expected) == ["insert"] and expected.looked.changelog_files_read == 1
    folder = Path(ID.folder(str(followed.lake)), "changelog")
    added = pa.table(DeltaTable(str(folder)).get_add_actions(flatten=True)).to_pylist()
    for file in added:
        if not file["min.id"] <= 33 <= file["max.id"]:
            (folder / file["path"]).unlink()
    assert followed.trace("33") == expected


def test_a_change_when_what_is_old_has_been_removed_then_says_what_is_gone(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A table's turn to be cleaned comes by its folder's name, which is another one in each run.
    monkeypatch.setattr(table_task, "is_due", lambda *_: False)
    followed.cut((ORDERS, [insert(**row(1, "a"))]))
    followed.cut((ORDERS, [update(row(1, "a"), row(1, "b"))]))
    for kind in ("changelog", "current"):
        folder = Path(ID.folder(str(followed.lake)), kind)
        DeltaTable(str(folder)).create_checkpoint()
        for number in range(2):
            (folder / f"_delta_log/{number:020d}.json").unlink()
    (change,) = (each for each in followed.trace("1").changes if each.kind == "insert")
    assert change.changelog is not None and not change.changelog.is_first
    paths = [path for path, _ in change.landed.files] if change.landed is not None else []
    (followed.writer.folder / paths[0]).unlink()
    (change, _) = followed.trace("1").changes
    assert change.landed is not None and [is_there for _, is_there in change.landed.files] == [False]
    without = followed.trace("1", landing=False)
    assert [each.landed for each in without.changes] == [None, None] and without.looked.last_entry == 0


@pytest.mark.parametrize("keys", [(), (Event(ORDERS, "FOREIGN_KEYS"),)], ids=["no keys", "keys"])
def test_a_key_when_a_verification_behind_a_gap_was_equal_then_the_gap_is_over_unless_keys_were_told_before(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, keys: tuple[Event, ...]
) -> None:
    followed.cut(Started(ORDERS, again=False), (ORDERS, [insert(**row(7, "first"))]), *keys)
    followed.cut(Event(ORDERS, "LOG_GAP", unlogged_changes="the log was purged"))
    stale, gap = "may be stale: the log was purged", "its source's log had a gap"
    assert stale in (said := " ".join(followed.trace("7").notes)) and gap in said
    proven = {ID: followed.writer.last_gsns["acme", "shop"]}
    monkeypatch.setattr("spark_sink.trace.proofs_at", lambda *_: proven)
    assert (stale in (said := " ".join(followed.trace("7").notes))) is bool(keys) and gap in said


def test_a_key_when_its_table_was_verified_then_says_the_last_proof_and_whether_the_row_differs(
    writer: Writer, lake: Path
) -> None:
    driver = Driver(writer, lake)
    rows = [row(number, "a") for number in range(6)]
    writer.cut((ORDERS, [insert(**each) for each in rows]))
    driver.follow()
    read = lambda *key: trace(str(lake), ID, key)  # noqa: E731
    assert read("3").newest is None
    for number, change in ((1, "TRUE = FALSE"), (2, "id = 3")):
        dump, gsn = f"verification-{number}", writer.last_gsns["acme", "shop"]
        writer.cut(Event(ORDERS, "VERIFICATION_STARTED", dump=dump))
        driver.follow()
        DeltaTable(f"{ID.folder(str(lake))}/current").delete(change)
        writer.cut(Verified(ORDERS, rows, gsn, dump=dump, leaf_rows=2), Event(ORDERS, "VERIFIED", dump=dump))
        driver.follow()
        driver.verdict(dump)
    found = read("3")
    assert found.equal is not None and found.newest is not None
    assert (found.equal.verification, found.newest.verification) == ("verification-1", "verification-2")
    assert found.newest.verdict == "unknown" and found.newest.says_of_key == "leaf"
    assert read("1").newest is not None and read("1").newest.says_of_key == ""


NOON = datetime(2026, 1, 31, 12, 0, 0, 123456)  # noqa: DTZ001  (of a type without a zone)
VALUES: list[tuple[pa.DataType, object, str]] = [
    (pa.string(), "a 'b' \"c\"", "a 'b' \"c\""),
    (pa.uint64(), 2**64 - 1, str(2**64 - 1)),
    (pa.int64(), -5, "-5"),
    (pa.decimal128(12, 2), Decimal("-3.14"), "-3.14"),
    (pa.date32(), date(2026, 1, 31), "2026-01-31"),
    (pa.timestamp("us"), NOON, "2026-01-31 12:00:00.123456"),
    (pa.timestamp("us", "UTC"), NOON.replace(microsecond=123457), "2026-01-31 12:00:00.123457"),
    (pa.binary(), b"\x00\xff", "00ff"),
    (pa.float64(), 1.5, "1.5"),
    (pa.bool_(), True, "true"),
]


@pytest.mark.parametrize(("type_", "value", "word"), VALUES, ids=str)
def test_a_key_when_it_is_of_a_type_then_its_literal_finds_it_and_others_do_not(
    followed: Followed, type_: pa.DataType, value: object, word: str
) -> None:
    table = Table("typed", {"code": type_, "id": pa.int32()}, key=("code", "id"))
    followed.cut((table, [insert(code=value, id=1), insert(code=value, id=2)]))
    for key in ([word, "2"], [json.dumps([word, "2"])]):
        found = followed.trace(*key, table=table)
        assert kinds(found) == ["insert"] and found.changes[0].gsn == 2 and found.rows == 1
    assert not followed.trace(word, "3", table=table).changes


@pytest.mark.parametrize(
    ("key", "said"),
    [(["1", "2"], r"2 values are given, and the key is \(id\)"), (["one"], "'one' is no value of column id, a int64")],
)
def test_a_key_when_it_is_none_of_the_table_then_is_refused(followed: Followed, key: list[str], said: str) -> None:
    followed.cut((ORDERS, [insert(**row(1, "a"))]))
    with pytest.raises(SinkSettingInvalid, match=said):
        followed.trace(*key)
    keyless = replace(ORDERS, name="keyless", key=())
    followed.cut((keyless, [insert(**row(1, "a"))]))
    with pytest.raises(SinkError, match="nothing tells its rows apart"):
        followed.trace("1", table=keyless)


def test_trace_when_it_is_a_command_then_prints_lines_or_json(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    followed.cut((ORDERS, [insert(**row(-7, "a"))]))
    followed.writer.cut((ORDERS, [update(row(-7, "a"), row(-7, "b"))]))
    where = ["--lake", str(followed.lake), "--landing", str(followed.writer.folder)]
    monkeypatch.setattr("sys.argv", ["menura trace", "acme/shop/shop/orders", "-7", *where])
    assert main() == 0
    printed = capsys.readouterr().out
    assert "id=-7: readers see 1 row" in printed and "insert  gsn 1  <- what readers see" in printed
    assert "source     gtid:1, transaction 1, committed 2023-11-14 22:13:20Z" in printed
    assert "landed     entry 2" in printed and "lake       not yet" in printed
    monkeypatch.setattr("sys.argv", ["menura trace", "acme/shop/shop/orders", "-7", *where, "--format", "json"])
    assert main() == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["kind"] for each in (*told["changes"], *told["waiting"])] == ["insert", "update"]
    monkeypatch.setattr("sys.argv", ["menura trace", "acme/shop", "-7", *where])
    assert main() == 2 and "'acme/shop' is no table" in capsys.readouterr().err


def test_a_change_when_its_entry_is_below_the_horizon_then_says_so_and_later_ones_are_found_among_other_sources(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.cut((ORDERS, [insert(**row(1, "a"))]))
    for number in range(12):  # of another source, which has the same numbers
        followed.writer.cut((ORDERS, [insert(**row(number, "x"))]), source="other")
    followed.cut((ORDERS, [update(row(1, "a"), row(1, "b"))]))
    for number in range(12):
        followed.writer.cut((ORDERS, [delete(**row(number, "x"))]), source="other")
    followed.cut((ORDERS, [update(row(1, "b"), row(1, "c"))]))
    assert [each.landed and each.landed.entry for each in followed.trace("1").changes] == [1, 14, 27]
    monkeypatch.setattr(cut_search, "MOST_ENTRIES", 5)
    assert "not among those of the cut log that were searched" in followed.trace("1").changes[1].note
    monkeypatch.undo()
    folder = followed.writer.folder
    horizon = Horizon(followed.writer.landing, 10, 5, COMMIT_US, ())
    (folder / HORIZONS_FOLDER).mkdir()
    (folder / HorizonName(10, 5).path).write_bytes(encode_horizon(horizon))
    for entry in range(1, 5):
        (folder / followed.writer.entry_path(entry)).unlink()
    found = followed.trace("1")
    assert [each.landed and each.landed.entry for each in found.changes] == [None, 14, 27]
    assert found.changes[0].note.endswith("entries from 5 on are there") and found.looked.first_entry == 5
