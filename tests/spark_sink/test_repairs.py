"""Ranges of a table that are read again: rows outside of them stay, and doing it twice is doing it once."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from menura.landed_digest import LandedFocus, decode_focus
from menura.landing import KeyNumbers, LandedRepair

from spark_sink.ingest.conclusions import HEALED
from spark_sink.lake import changelog as changelog_module
from spark_sink.lake import chunk_merge, current_rows, merge
from spark_sink.lake.delta_table import open_dump_gsn
from spark_sink.reading import current_state
from tests.spark_sink.driver import Driver
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import (
    Chunk,
    Event,
    Values,
    Verified,
    Writer,
    altered,
    apply_entries,
    delete,
    insert,
    table_id,
    update,
)
from tests.spark_sink.test_chunks import SOURCE, apply, row
from tests.spark_sink.test_partial_rows import TABLE, change, rows
from tests.spark_sink.test_verifications import LEAF_ROWS, ORDERS, begin

#: keys above 10 up to and with 20, and above 30
RANGES = (KeyNumbers((10,), (20,)), KeyNumbers((30,), ()))
KEYS = (1, 10, 11, 15, 20, 21, 30, 31, 99)


def stale(writer: Writer) -> None:
    """Rows of which the source's have changed unlogged."""
    writer.cut((TABLE, [insert(**row(key, "stale")) for key in KEYS]))


def started(writer: Writer) -> int:
    writer.cut(Event(TABLE, "REPAIR_STARTED", dump="repair-1"))
    return writer.last_gsns[SOURCE] - 1  # the event's own


def chunks(gsn: int, first: list[int], second: list[int], a: str = "read") -> list[Chunk]:
    return [
        Chunk(TABLE, [row(key, a) for key in keys], gsn, part, "repair-1", repairs=True)
        for part, keys in enumerate((first, second))
    ]


def repaired(gsn: int, key: tuple[str, ...] = ("id",)) -> Event:
    return Event(TABLE, "REPAIRED", dump="repair-1", repaired=LandedRepair(gsn, key, RANGES))


def test_ranges_when_they_are_read_again_then_rows_outside_of_them_stay_and_those_not_read_are_gone(
    writer: Writer, lake: Path
) -> None:
    stale(writer)
    gsn = started(writer)
    writer.cut(*chunks(gsn, [11, 12, 20], [31]))
    writer.cut(repaired(gsn))
    apply(writer, lake)
    outside = [(key, "stale", 1, None) for key in (1, 10, 21, 30)]
    inside = [(key, "read", 1, None) for key in (11, 12, 20, 31)]
    assert sorted(rows(lake)) == sorted(outside + inside)
    numbers = {r["id"]: r["_gsn"] for r in current_state(str(lake), table_id(TABLE)).to_pylist()}
    assert numbers == {1: 1, 10: 2, 21: 6, 30: 7} | dict.fromkeys((11, 12, 20, 31), gsn)


def test_ranges_when_changes_come_meanwhile_then_those_above_a_chunk_decide_and_those_below_are_in_it(
    writer: Writer, lake: Path
) -> None:
    stale(writer)
    gsn = started(writer)
    writer.cut((TABLE, [update(row(15), row(15, "seen")), insert(**row(12, "seen")), delete(**row(20))]))
    later = writer.last_gsns[SOURCE]
    writer.cut(
        (TABLE, [update(row(11), row(11, "later")), insert(**row(13, "later")), delete(**row(12)), change(1, b=7)])
    )
    writer.cut(*chunks(later, [11, 12, 15], []))
    writer.cut((TABLE, [update(row(15), row(40, "moved"))]))
    writer.cut(repaired(gsn))
    apply(writer, lake)
    assert sorted(rows(lake)) == [
        (1, "stale", 7, None),
        (10, "stale", 1, None),
        (11, "later", 1, None),
        (13, "later", 1, None),
        (21, "stale", 1, None),
        (30, "stale", 1, None),
        (40, "moved", 1, None),
    ]


def test_a_row_when_a_partial_change_that_the_chunk_has_came_upon_a_stale_one_then_the_chunks_counts(
    writer: Writer, lake: Path
) -> None:
    stale(writer)
    gsn = started(writer)
    writer.cut((TABLE, [change(11, b=7)]))
    seen = writer.last_gsns[SOURCE]
    apply(writer, lake)
    writer.cut((TABLE, [change(15, b=8)]))
    apply(writer, lake)
    assert (11, "stale", 7, None) in rows(lake) and (15, "stale", 8, None) in rows(lake)
    writer.cut(Chunk(TABLE, [row(11, "read", 7), row(15, "read")], seen, 0, "repair-1", repairs=True))
    writer.cut(repaired(gsn))
    apply(writer, lake)
    inside = [found for found in rows(lake) if found[0] in (11, 15)]
    assert sorted(inside) == [(11, "read", 7, None), (15, "read", 8, None)]


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("kill", [None, "write_deltalake", "merge_effect"])
def test_a_key_when_the_lake_has_it_twice_then_a_repair_leaves_one_row_and_others_as_they_are(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch, is_small: bool, kill: str | None
) -> None:
    if not is_small:  # then delta-rs's MERGE changes each of a key's rows
        monkeypatch.setattr(current_rows, "SMALL_BYTES", 0)
    stale(writer)
    apply(writer, lake)
    current = DeltaTable(f"{table_id(TABLE).folder(str(lake))}/current")
    write_deltalake(current, current.to_pyarrow_table().filter(pc.field("id") >= 11), mode="append")
    gsn = started(writer)
    writer.cut((TABLE, [update(row(15), row(15, "later")), change(20, b=7)]))
    writer.cut(*chunks(gsn, [11, 12, 15, 20], [31]))
    writer.cut(repaired(gsn))
    if kill is not None:
        with monkeypatch.context() as killing:
            kill_at(killing, chunk_merge, kill, 1)
            with pytest.raises(Killed):
                apply_entries(writer.folder, lake)
    apply(writer, lake)
    outside = [(key, "stale", 1, None) for key in (1, 10, 21, 21, 30, 30)]
    inside = [(11, "read", 1, None), (12, "read", 1, None), (15, "later", 1, None), (20, "read", 7, None)]
    assert sorted(rows(lake)) == sorted([*outside, *inside, (31, "read", 1, None)])


@pytest.mark.history
@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        (changelog_module, "append", 2), (merge, "merge_effect", 1), (merge, "merge_chunks", 1),
        (chunk_merge, "append", 1), (chunk_merge, "merge_effect", 1), (chunk_merge, "merge_effect", 2),
        (merge, "remove_below", 1), (merge, "merge_effect", 2),
    ],
)  # fmt: skip
def test_a_kill_between_steps_of_a_repair_when_all_is_done_again_then_the_table_is_the_same(
    writer: Writer, lake: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, call: int
) -> None:
    monkeypatch.setattr(chunk_merge, "PIECE_ROWS", 2)
    stale(writer)
    apply(writer, lake)
    gsn = started(writer)
    writer.cut((TABLE, [update(row(11), row(11, "later"))]))
    writer.cut(*chunks(gsn, [11, 12, 13, 15, 20], [31]))
    writer.cut((TABLE, [delete(**row(12))]))
    writer.cut(repaired(gsn))
    writer.cut((TABLE, [insert(**row(16, "after")), delete(**row(1))]))
    with monkeypatch.context() as killing:
        kill_at(killing, module, name, call)
        with pytest.raises(Killed):
            apply_entries(writer.folder, lake)
    expected = [
        (10, "stale", 1, None), (11, "later", 1, None), (13, "read", 1, None),
        (15, "read", 1, None), (16, "after", 1, None),
        (20, "read", 1, None), (21, "stale", 1, None), (30, "stale", 1, None), (31, "read", 1, None),
    ]  # fmt: skip
    for _ in range(2):
        apply(writer, lake)
        assert sorted(rows(lake)) == expected
    current = DeltaTable(f"{table_id(TABLE).folder(str(lake))}/current")
    changelog = DeltaTable(f"{table_id(TABLE).folder(str(lake))}/changelog")
    assert open_dump_gsn(current, changelog, "acme/shop") is None


def test_a_repair_when_it_runs_then_the_changes_that_its_chunks_need_are_kept(writer: Writer, lake: Path) -> None:
    stale(writer)
    gsn = started(writer)
    writer.cut(*chunks(gsn, [11], []))
    apply(writer, lake)
    folder = table_id(TABLE).folder(str(lake))
    current, changelog = DeltaTable(f"{folder}/current"), DeltaTable(f"{folder}/changelog")
    assert open_dump_gsn(current, changelog, "acme/shop") == gsn


def test_a_repairs_end_when_the_key_has_another_name_meanwhile_then_no_row_is_taken_away(
    writer: Writer, lake: Path
) -> None:
    stale(writer)
    gsn = started(writer)
    writer.cut(*chunks(gsn, [11], []))
    writer.cut(altered(TABLE))
    writer.cut(repaired(gsn, ("former",)))
    apply(writer, lake)
    assert {found[0] for found in rows(lake)} == set(KEYS)


@pytest.fixture
def driver(writer: Writer, lake: Path) -> Iterator[Driver]:
    made = Driver(writer, lake)
    yield made
    made.verifications.stop(60)


@dataclass
class _Proof:
    """Verifications of one table, which nobody changes meanwhile."""

    driver: Driver
    rows: dict[int, Values]

    def verify(self, name: str, focus: LandedFocus | None = None) -> dict[str, Any]:
        writer = self.driver.writer
        writer.cut(Event(ORDERS, "VERIFICATION_STARTED", dump=name))
        gsn = writer.last_gsns[SOURCE]
        writer.cut(Verified(ORDERS, list(self.rows.values()), gsn, None, None, name, LEAF_ROWS, focus=focus))
        writer.cut(Event(ORDERS, "VERIFIED", dump=name))
        self.driver.follow()
        return self.driver.verdict(name)

    def repair(self, focus: LandedFocus) -> None:
        writer = self.driver.writer
        writer.cut(Event(ORDERS, "REPAIR_STARTED", dump="repair-1"))
        gsn = writer.last_gsns[SOURCE] - 1
        for part, each in enumerate(focus.ranges):
            shown = [
                values
                for key, values in self.rows.items()
                if (not each.above or key > each.above[0]) and (not each.up_to or key <= each.up_to[0])
            ]
            writer.cut(Chunk(ORDERS, shown, gsn, part, "repair-1", repairs=True))
        ranges = tuple(KeyNumbers(each.above, each.up_to) for each in focus.ranges)
        writer.cut(Event(ORDERS, "REPAIRED", dump="repair-1", repaired=LandedRepair(gsn, ("id",), ranges)))
        self.driver.follow()


def test_table_that_differs_when_its_ranges_were_read_again_then_it_is_equal_as_of_its_oldest_reading(
    driver: Driver,
) -> None:
    chance = random.Random(7)
    proof = _Proof(driver, begin(driver.writer, chance))
    driver.follow()
    current = f"{table_id(ORDERS).folder(str(driver.lake))}/current"
    DeltaTable(current).update({"note": "'other'"}, predicate="id = 18")
    DeltaTable(current).delete("id = 70")
    del proof.rows[40]  # deleted unlogged
    first = proof.verify("verification-1")
    assert first["verdict"] == "unknown"
    focus = decode_focus(json.loads(first["focus"]))
    assert len(focus.ranges) == 2, "two of the leaves touch"
    assert focus.rest_equal_at_us == first["read_at_us"] > 0
    assert sum(each.rows for each in focus.ranges) == 3 * LEAF_ROWS - 1
    second = proof.verify("verification-2", focus)
    assert second["verdict"] == "differs" and len(json.loads(second["rows"])) == 3
    numbers = {r["id"]: r["_gsn"] for r in current_state(str(driver.lake), table_id(ORDERS)).to_pylist()}
    proof.repair(focus)
    again = proof.verify("verification-3", replace(focus, repaired_by="repair-1", rest_equal_in="another lake"))
    assert (again["verdict"], again["reason"]) == ("unknown", HEALED)
    third = proof.verify("verification-4", replace(focus, repaired_by="repair-1"))
    assert third["verdict"] == "equal" and third["reason"].endswith("since repair repair-1")
    assert third["read_at_us"] == focus.rest_equal_at_us
    held = {r["id"]: r["_gsn"] for r in current_state(str(driver.lake), table_id(ORDERS)).to_pylist()}
    assert set(held) == set(proof.rows)
    outside = [
        key
        for key in held
        if not any(each.above < (key,) and (not each.up_to or (key,) <= each.up_to) for each in focus.ranges)
    ]
    assert outside and all(held[key] == numbers[key] for key in outside)
    assert proof.verify("verification-5")["verdict"] == "equal"
