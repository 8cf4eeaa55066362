"""Partial changes that give rows other keys while a table is proven part by part: it is not said to be equal then."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN
from menura.landed_digest import LandedFocus, decode_focus
from menura.landing import KeyNumbers, LandedRepair

from spark_sink.ingest.conclusions import SINCE_UNKNOWN
from spark_sink.ingest.verifications import UNREAD
from spark_sink.lake import moved_rows
from spark_sink.lake.changelog_retention import Kept, write_kept
from spark_sink.lake.delta_table import read_layout, scan, schema_of, write_layout
from spark_sink.lake.moved_rows import CUT_OFF, MOVED, TOO_MANY, WITHOUT_KEY, why_unsure
from spark_sink.reading import current_state
from tests.spark_sink.driver import Driver
from tests.spark_sink.landing import Change, Chunk, Event, Verified, Writer, table_id, update
from tests.spark_sink.test_verifications import ENDED, LEAF_ROWS, ORDERS, STARTED, Rows, begin, changes, read, row

SOURCE = "acme", "shop"
VALUES = ("amount", "note", "price", "total")


@pytest.fixture
def driver(writer: Writer, lake: Path) -> Iterator[Driver]:
    made = Driver(writer, lake)
    yield made
    made.verifications.stop(60)


def partial(rows: Rows, key: int, to: int, **changed: object) -> list[Change]:
    """As binlog_row_image=MINIMAL logs it; `rows` follows."""
    rows[to] = {**rows.pop(key), "id": to, **changed}
    lacks = tuple(name for name in VALUES if name not in changed)
    return update({"id": key, ABSENT: VALUES}, {"id": to, **changed, ABSENT: lacks})


def verified(driver: Driver, rows: Rows, *behind: list[Change]) -> dict[str, Any]:
    """Keys up to 40 are read before these changes, the others behind them."""
    writer = driver.writer
    writer.cut(STARTED)
    before = {key: values for key, values in rows.items() if key % 2 == 0}
    writer.cut(read(before, writer.last_gsns[SOURCE], None, 40))
    for each in behind:
        writer.cut((ORDERS, [each]))
    writer.cut(read(rows, writer.last_gsns[SOURCE], 40, None))
    writer.cut(ENDED)
    driver.follow()
    return driver.verdict()


def held(driver: Driver) -> dict[int, tuple[object, ...]]:
    found = current_state(str(driver.lake), table_id(ORDERS)).to_pylist()
    return {each["id"]: tuple(each[name] for name in VALUES) for each in found}


def shown(rows: Rows) -> dict[int, tuple[object, ...]]:
    return {key: tuple(values[name] for name in VALUES) for key, values in rows.items()}


def log_of(lake: Path) -> DeltaTable:
    return DeltaTable(f"{table_id(ORDERS).folder(str(lake))}/changelog")


def test_row_when_a_partial_change_takes_it_from_an_unread_part_to_a_read_one_then_the_table_is_not_equal(
    driver: Driver,
) -> None:
    rows = begin(driver.writer, random.Random(3))
    rows[60] = {**rows[60], "price": 77.0}  # unlogged: the lake has another one
    found = verified(driver, rows, partial(rows, 60, 5, note="moved"))
    assert (found["verdict"], found["reason"]) == ("unknown", MOVED)
    assert held(driver)[5] != shown(rows)[5], "each part was equal at its moment, and the table is not"


def test_rows_when_partial_changes_leave_their_keys_and_whole_ones_move_then_the_table_is_equal(
    driver: Driver,
) -> None:
    rows = begin(driver.writer, random.Random(3))
    driver.writer.cut((ORDERS, [partial(rows, 64, 66 + 1, note="before it")]))
    rows[68] = rows.pop(67) | {"id": 68}
    driver.writer.cut((ORDERS, [update({**rows[68], "id": 67}, rows[68])]))
    stays = partial(rows, 60, 60, note="stays")
    before, rows[5] = rows.pop(62), {**row(random.Random(4), 5), "note": "whole"}
    found = verified(driver, rows, stays, update(before, rows[5]))
    assert (found["verdict"], found["reason"]) == ("equal", "")
    assert held(driver) == shown(rows)


def test_table_when_it_is_read_as_one_chunk_then_a_row_that_a_partial_change_has_moved_is_proven_too(
    driver: Driver,
) -> None:
    proof = Proof(driver, 3)
    driver.writer.cut(STARTED, (ORDERS, [partial(proof.rows, 60, 5, note="moved")]))
    found = proof.verify("verification-2")
    assert (found["verdict"], found["reason"]) == ("equal", "")
    gsn = proof.gsn()
    driver.writer.cut(Event(ORDERS, "VERIFICATION_STARTED", dump="verification-3"))
    driver.writer.cut((ORDERS, [partial(proof.rows, 62, 7, note="moved")]))
    rows = list(proof.rows.values())
    driver.writer.cut(Verified(ORDERS, rows, gsn, None, None, "verification-3", LEAF_ROWS))
    driver.writer.cut(Event(ORDERS, "VERIFIED", dump="verification-3"))
    driver.follow()
    assert driver.verdict("verification-3")["verdict"] == "equal"
    assert held(driver) == shown(proof.rows)


def test_verification_when_its_changelog_can_not_be_read_then_it_is_unknown(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_changelog: DeltaTable, _gsn: int) -> str:
        raise pa.ArrowInvalid("a file that is cut off")

    monkeypatch.setattr("spark_sink.ingest.verifications.why_unsure", broken)
    rows = begin(driver.writer, random.Random(3))
    found = verified(driver, rows, partial(rows, 60, 60, note="stays"))
    assert (found["verdict"], found["reason"]) == ("unknown", f"{UNREAD}: ArrowInvalid")


@pytest.mark.parametrize(("bound", "most"), [("MOST_CHANGES", 3), ("MOST_PARTIAL", 1), ("MOST_PARTIAL_BYTES", 31)])
def test_changes_when_they_are_more_than_are_looked_at_then_a_verification_is_unknown(
    bound: str, most: int, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = begin(driver.writer, random.Random(3))  # 40 of before, which count to none of the bounds
    driver.follow()
    monkeypatch.setattr(moved_rows, bound, most)
    stay = [partial(rows, key, key, note="stays") for key in (60, 62)]
    found = verified(driver, rows, *stay)
    assert (found["verdict"], found["reason"]) == ("unknown", TOO_MANY)
    monkeypatch.setattr(moved_rows, bound, most + 1)
    assert why_unsure(log_of(driver.lake), found["gsn"]) == ""


def test_changes_when_they_are_looked_at_then_only_keys_and_numbers_are_read(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns: list[str] = []

    def noted(table: DeltaTable, query: str) -> pa.RecordBatchReader:
        found = scan(table, query)
        columns.extend(found.schema.names)
        return found

    monkeypatch.setattr(moved_rows, "scan", noted)
    rows = begin(driver.writer, random.Random(3))
    found = verified(driver, rows, partial(rows, 60, 60, note="stays"))
    assert found["verdict"] == "equal" and columns == [GSN, "id"] * 2


def test_changelog_when_changes_of_the_meantime_were_cut_off_then_nothing_is_known_of_rows_that_moved(
    driver: Driver,
) -> None:
    rows = begin(driver.writer, random.Random(3))
    driver.writer.cut((ORDERS, [partial(rows, 60, 60, note="stays")]))
    driver.follow()
    write_kept(log_of(driver.lake), Kept(begins_gsn=9))
    assert why_unsure(log_of(driver.lake), 8) == ""
    assert why_unsure(log_of(driver.lake), 7) == CUT_OFF


def test_table_without_a_key_when_a_partial_change_came_then_nothing_is_known_of_rows_that_moved(
    driver: Driver,
) -> None:
    rows = begin(driver.writer, random.Random(3))
    driver.writer.cut((ORDERS, [partial(rows, 60, 60, note="stays")]))
    driver.follow()
    log = log_of(driver.lake)
    write_layout(log, replace(read_layout(log), key=()))
    assert why_unsure(log, 40) == WITHOUT_KEY
    assert why_unsure(log, driver.writer.last_gsns[SOURCE]) == ""


def test_images_that_the_lake_derived_when_they_lack_values_then_their_rows_may_have_moved(driver: Driver) -> None:
    rows = begin(driver.writer, random.Random(3))
    driver.writer.cut((ORDERS, [partial(rows, 60, 60, note="stays")]))
    driver.follow()
    log = log_of(driver.lake)
    assert why_unsure(log, 40) == ""
    stays = scan(log, f"SELECT * FROM t WHERE {GSN} > 40").read_all()
    derived = stays.set_column(stays.column_names.index(GSN), GSN, pa.array([50, 50], pa.int64()))
    write_deltalake(log, derived.cast(schema_of(log)), mode="append")
    assert sorted(stays[CHANGE_TYPE].to_pylist()) == ["update_postimage", "update_preimage"]
    assert why_unsure(log, 40) == MOVED


class Proof:
    """A whole verification, a repair of what differs and its proof, with others' changes between all steps."""

    def __init__(self, driver: Driver, seed: int) -> None:
        self.driver, self.chance = driver, random.Random(seed)
        self.rows = begin(driver.writer, self.chance)

    def gsn(self) -> int:
        return self.driver.writer.last_gsns[SOURCE]

    def verify(self, name: str, focus: LandedFocus | None = None) -> dict[str, Any]:
        writer = self.driver.writer
        writer.cut(Event(ORDERS, "VERIFICATION_STARTED", dump=name))
        shown_rows = list(self.rows.values())
        writer.cut(Verified(ORDERS, shown_rows, self.gsn(), None, None, name, LEAF_ROWS, focus=focus))
        writer.cut(Event(ORDERS, "VERIFIED", dump=name))
        self.driver.follow()
        return self.driver.verdict(name)

    def repair(self, focus: LandedFocus) -> None:
        writer = self.driver.writer
        writer.cut(Event(ORDERS, "REPAIR_STARTED", dump="repair-1"))
        started = self.gsn() - 1
        for part, each in enumerate(focus.ranges):
            inside = [values for key, values in self.rows.items() if is_in((key,), each)]
            writer.cut(Chunk(ORDERS, inside, self.gsn(), part, "repair-1", repairs=True))
        ranges = tuple(KeyNumbers(each.above, each.up_to) for each in focus.ranges)
        writer.cut(Event(ORDERS, "REPAIRED", dump="repair-1", repaired=LandedRepair(started, ("id",), ranges)))

    def focus(self) -> LandedFocus:
        """Of a first verification, of a row that something has changed in the source, and nothing logged."""
        self.rows[60] = {**self.rows[60], "price": 77.0}
        first = self.verify("verification-1")
        focus = decode_focus(json.loads(first["focus"]))
        assert first["verdict"] == "unknown" and focus.rest_equal_at_us
        assert is_in((60,), focus.ranges[0]) and focus.since_gsn == first["gsn"]
        return replace(focus, repaired_by="repair-1")

    def drill_down(self, focus: LandedFocus) -> None:
        """It keeps what the first one has found of the rest."""
        second = self.verify("verification-2", replace(focus, repaired_by=""))
        assert second["verdict"] == "differs" and second["gsn"] > focus.since_gsn


def is_in(key: tuple[int, ...], within: Any) -> bool:
    return (not within.above or key > within.above) and (not within.up_to or key <= within.up_to)


def test_repair_when_a_partial_change_has_moved_a_row_out_of_its_ranges_before_then_its_proof_is_not_equal(
    driver: Driver,
) -> None:
    proof = Proof(driver, 3)
    focus = proof.focus()
    driver.writer.cut((ORDERS, [partial(proof.rows, 60, 5, note="moved")]))
    proof.repair(focus)
    third = proof.verify("verification-3", focus)
    assert (third["verdict"], third["reason"]) == ("unknown", MOVED)
    assert held(driver)[5] != shown(proof.rows)[5], "what the repair has not read again has what was stale"


def test_repair_when_it_is_not_told_since_when_the_rest_was_equal_then_its_proof_is_not_equal(
    driver: Driver,
) -> None:
    proof = Proof(driver, 3)
    focus = proof.focus()
    proof.drill_down(focus)
    proof.repair(focus)
    older = proof.verify("verification-3", replace(focus, since_gsn=0))
    assert (older["verdict"], older["reason"]) == ("unknown", SINCE_UNKNOWN)
    newer = proof.verify("verification-4", focus)
    assert newer["verdict"] == "equal" and held(driver) == shown(proof.rows)


@pytest.mark.parametrize("seed", range(6))
def test_history_with_partial_changes_when_a_proof_says_equal_then_the_lake_is_the_source(
    seed: int, driver: Driver
) -> None:
    proof, chance = Proof(driver, seed), random.Random(seed)
    moves = seed % 2 == 1

    def others() -> None:
        for _ in range(chance.randrange(3)):
            key, free = chance.choice(sorted(proof.rows)), chance.choice(sorted({*range(1, 90)} - proof.rows.keys()))
            to = free if moves and chance.random() < 0.5 else key
            of_transaction = [partial(proof.rows, key, to, note=chance.choice(["p", "q"]))]
            of_transaction += changes(chance, proof.rows, range(-4, 90), frozenset())
            driver.writer.cut((ORDERS, of_transaction))

    focus = proof.focus()
    others()
    proof.repair(focus)
    others()
    found = proof.verify("verification-2", focus)
    assert found["verdict"] == "equal" or (moves and found["reason"] == MOVED), found
    if found["verdict"] == "equal":
        assert held(driver) == shown(proof.rows)
