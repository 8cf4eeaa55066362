"""What a verification could not prove: its ranges are read again, and only then the table is equal, and truly is."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from menura.key_values import INTEGER
from menura.landed_digest import LandedFocus, LandedRange, decode_focus
from menura.landing import KeyNumbers, LandedRepair

from spark_sink.ingest.verdicts import verdict_of
from spark_sink.lake.boundaries import Condition, proofs_at
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.moved_rows import MOVED
from spark_sink.reading import current_state
from spark_sink.reporter import PAGE_VERDICT_CHARS, _verdict_parts
from tests.spark_sink.driver import Driver
from tests.spark_sink.landing import Change, Chunk, Event, Verified, Writer, delete, insert, table_id, update
from tests.spark_sink.test_moved_rows import SOURCE, VALUES, is_in, partial
from tests.spark_sink.test_verifications import ENDED, LEAF_ROWS, ORDERS, Rows, begin, read, row

GAP = Event(ORDERS, "LOG_GAP", unlogged_changes="the log was purged")
STARTED = Event(ORDERS, "VERIFICATION_STARTED", dump="verification-1", reread=True)


@pytest.fixture
def driver(writer: Writer, lake: Path) -> Iterator[Driver]:
    made = Driver(writer, lake)
    yield made
    made.verifications.stop(60)


def transaction(chance: random.Random, rows: Rows, *, moves: bool) -> list[list[Change]]:
    """Whole changes and partial ones; `moves`: partial ones give rows other keys, too."""
    made: list[list[Change]] = []
    for _ in range(chance.randrange(1, 4)):
        key, other = chance.randrange(-4, 90), chance.randrange(-4, 90)
        if key not in rows:
            rows[key] = row(chance, key)
            made.append(insert(**rows[key]))
        elif chance.random() < 0.2:
            made.append(delete(**rows.pop(key)))
        elif chance.random() < 0.5:
            to = other if moves and other not in rows and chance.random() < 0.3 else key
            made.append(partial(rows, key, to, note=chance.choice(["p", "q"])))
        else:
            to = other if other not in rows else key
            before, rows[to] = rows.pop(key), row(chance, to)
            made.append(update(before, rows[to]))
    return made


def in_the_gap(chance: random.Random, rows: Rows) -> None:
    """Rows come, go and change in one part of the keys, and the log has nothing of it."""
    first = chance.randrange(0, 60)
    for key in chance.sample(range(first, first + 16), 6):
        if key in rows and chance.random() < 0.4:
            del rows[key]
        else:
            rows[key] = {**row(chance, key), "note": "in the gap"}


class History:
    """Others' transactions between any two steps."""

    def __init__(self, driver: Driver, seed: int, *, moves: bool) -> None:
        self.driver, self.chance, self.moves = driver, random.Random(seed), moves
        self.rows = begin(driver.writer, self.chance)
        in_the_gap(self.chance, self.rows)
        driver.writer.cut(GAP)

    def others(self, most: int = 2) -> None:
        for _ in range(self.chance.randrange(most + 1)):
            self.driver.writer.cut((ORDERS, transaction(self.chance, self.rows, moves=self.moves)))
        if self.chance.random() < 0.3:
            self.driver.follow()

    def gsn(self) -> int:
        return self.driver.writer.last_gsns[SOURCE]

    def verify(self) -> dict[str, Any]:
        self.others()
        self.driver.writer.cut(STARTED)
        for lower, upper in ((None, 25), (25, 60), (60, None)):
            self.others()
            gsn = self.gsn()
            shown = read(self.rows, gsn, lower, upper)
            self.others()
            self.driver.writer.cut(shown)
        self.driver.writer.cut(ENDED)
        self.driver.follow()
        return self.driver.verdict("verification-1")

    def repair(self, focus: LandedFocus) -> None:
        writer = self.driver.writer
        self.others()
        writer.cut(Event(ORDERS, "REPAIR_STARTED", dump="repair-1"))
        started = self.gsn() - 1
        for part, each in enumerate(focus.ranges):
            self.others()
            gsn, inside = self.gsn(), [values for key, values in self.rows.items() if is_in((key,), each)]
            self.others()
            writer.cut(Chunk(ORDERS, inside, gsn, part, "repair-1", repairs=True))
        ranges = tuple(KeyNumbers(each.above, each.up_to) for each in focus.ranges)
        writer.cut(Event(ORDERS, "REPAIRED", dump="repair-1", repaired=LandedRepair(started, ("id",), ranges)))

    def prove(self, focus: LandedFocus) -> dict[str, Any]:
        self.others()
        writer = self.driver.writer
        writer.cut(Event(ORDERS, "VERIFICATION_STARTED", dump="proof", reread=True))
        within = replace(focus, repaired_by="repair-1")
        rows = list(self.rows.values())
        writer.cut(Verified(ORDERS, rows, self.gsn(), None, None, "proof", LEAF_ROWS, focus=within))
        writer.cut(Event(ORDERS, "VERIFIED", dump="proof"))
        self.driver.follow()
        return self.driver.verdict("proof")


def held(driver: Driver) -> dict[int, tuple[object, ...]]:
    found = current_state(str(driver.lake), table_id(ORDERS)).to_pylist()
    assert len({each["id"] for each in found}) == len(found)
    return {each["id"]: (*(each[name] for name in VALUES), each["_absent"]) for each in found}


def shown(rows: Rows) -> dict[int, tuple[object, ...]]:
    return {key: (*(values[name] for name in VALUES), None) for key, values in rows.items()}


@pytest.mark.history
@pytest.mark.parametrize("seed", range(16))
def test_table_behind_a_gap_when_what_is_not_proven_was_read_again_then_it_is_the_sources_wherever_it_is_said(
    seed: int, driver: Driver
) -> None:
    history = History(driver, seed, moves=seed % 2 == 1)
    first = history.verify()
    assert first["verdict"] in ("equal", "unknown")
    if first["verdict"] == "equal":
        assert held(driver) == shown(history.rows)
        return
    if first["reason"] == MOVED:
        assert history.moves and first["unproven"] is None
        return
    focus = decode_focus(json.loads(first["unproven"]))
    assert focus.ranges and focus.tells_anew and focus.since_gsn == first["gsn"] and focus.rest_equal_at_us > 0
    history.repair(focus)
    proof = history.prove(focus)
    assert proof["verdict"] == "equal" or (history.moves and proof["reason"] == MOVED), proof
    if proof["verdict"] == "equal":
        assert held(driver) == shown(history.rows)
        assert proof["since_gsn"] == focus.since_gsn


def behind_a_gap(driver: Driver, started: Event, **source: Any) -> tuple[Rows, dict[str, Any]]:
    """The table in two chunks; `source`: of row 60, which the log does not say."""
    rows = begin(driver.writer, random.Random(3))
    driver.writer.cut(GAP)
    rows[60] = {**rows[60], **source}
    driver.writer.cut(started)
    for lower, upper in ((None, 40), (40, None)):
        driver.writer.cut(read(rows, driver.writer.last_gsns[SOURCE], lower, upper))
    driver.writer.cut(ENDED)
    driver.follow()
    return rows, driver.verdict()


def test_verdict_when_the_agent_tells_anew_since_it_began_then_it_says_since_when_and_else_not(
    driver: Driver,
) -> None:
    _, found = behind_a_gap(driver, STARTED)
    assert found["verdict"] == "equal" and found["since_gsn"] == found["gsn"] > 0
    assert verdict_of(table_id(ORDERS), found).since_gsn == found["gsn"]


def test_verdict_when_an_older_agent_has_begun_it_then_it_stands_for_no_dump(driver: Driver) -> None:
    rows, found = behind_a_gap(driver, replace(STARTED, reread=False), price=77.0)
    assert (found["verdict"], found["unproven"], found["since_gsn"]) == ("unknown", None, 0)
    del rows
    focus = replace(decode_focus(json.loads(found["focus"])), repaired_by="repair-1")
    assert focus.since_gsn == found["gsn"] and not focus.tells_anew


def test_proof_when_the_rest_was_verified_by_an_older_agent_then_it_is_equal_and_stands_for_no_dump(
    driver: Driver,
) -> None:
    rows, found = behind_a_gap(driver, replace(STARTED, reread=False), price=77.0)
    history = History.__new__(History)
    history.driver, history.chance, history.moves, history.rows = driver, random.Random(1), False, rows
    focus = decode_focus(json.loads(found["focus"]))
    history.repair(focus)
    proof = history.prove(focus)
    assert (proof["verdict"], proof["since_gsn"]) == ("equal", 0)
    assert verdict_of(table_id(ORDERS), proof).since_gsn == 0


def test_sink_when_it_is_killed_between_then_the_verdict_still_says_since_when(driver: Driver) -> None:
    rows = begin(driver.writer, random.Random(3))
    driver.writer.cut(STARTED)
    driver.follow()
    driver.verdict()  # stops it, and starts another one
    driver.writer.cut(read(rows, driver.writer.last_gsns[SOURCE], None, None))
    driver.writer.cut(ENDED)
    driver.follow()
    found = driver.verdict()
    assert found["verdict"] == "equal" and found["since_gsn"] == found["gsn"]


def test_verdicts_when_they_have_many_unproven_ranges_then_a_page_has_no_more_than_its_bytes(driver: Driver) -> None:
    _, found = behind_a_gap(driver, STARTED)
    ranges = tuple(LandedRange("", "", (at * 10**17,), (at * 10**17 + 1,), 1) for at in range(16))
    unproven = LandedFocus(ranges, 0, (), (INTEGER,), 1, "t" * 36, since_gsn=1, tells_anew=True)
    told = replace(verdict_of(table_id(ORDERS), {**found, "verdict": "unknown"}), unproven=unproven)
    parts = _verdict_parts([told] * 900)
    assert sum(map(len, parts)) == 900 and len(parts) >= 900 * 16 * 60 // PAGE_VERDICT_CHARS > 1


def event(kind: str, gsn: int) -> dict[str, Any]:
    unlogged = None if kind == "FOREIGN_KEYS" else "purged"
    return {"kind": kind, "_gsn": gsn, "unlogged_changes": unlogged, "statement": "", "dump": ""}


def test_gap_when_a_later_verification_was_equal_then_it_is_over_and_other_causes_and_later_ones_are_not(
    driver: Driver,
) -> None:
    _, found = behind_a_gap(driver, STARTED)
    records, table = open_table(driver.verifications.records.folder), table_id(ORDERS)
    assert proofs_at(records, *SOURCE, found["cut"]) == {table: found["gsn"]}
    assert proofs_at(records, *SOURCE, found["cut"] - 1) == {}
    events = [event("LOG_GAP", 3), event("ROWS_UNLOGGED", 4), event("LOG_GAP", 900)]
    assert stale(events, found["gsn"]) == [4, 900]
    keys_before, keys_later = event("FOREIGN_KEYS", 2), event("FOREIGN_KEYS", found["gsn"] + 1)
    assert stale([keys_before, *events], found["gsn"]) == [3, 4, 900], "a dump alone brings what keys did"
    assert stale([*events, keys_later], found["gsn"]) == [4, 900], "what is covered stays so"


def test_gap_when_an_older_agent_has_begun_the_verification_then_it_is_not_over(driver: Driver) -> None:
    _, found = behind_a_gap(driver, replace(STARTED, reread=False))
    assert found["verdict"] == "equal"
    assert proofs_at(open_table(driver.verifications.records.folder), *SOURCE, found["cut"]) == {}


def stale(events: Sequence[dict[str, Any]], since_gsn: int) -> list[int]:
    condition = Condition()
    for each in events:
        condition.follow(each)
    condition.proven(since_gsn)
    return sorted(condition.stale)
