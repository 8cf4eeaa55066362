"""Keys of every kind that ranges go by, in lakes that something has changed: found at the right key, read again by
ranges, and equal then. Without Spark: tasks and the driver's part as they are."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from menura.key_values import Key
from menura.landed_digest import LandedFocus, decode_focus
from menura.landing import KeyNumbers, LandedChunk, LandedRepair, decode_chunk

from spark_sink.lake.delta_table import Layout, create_table, scan, schema_of
from spark_sink.lake.leaves import range_condition
from spark_sink.reading import current_state
from tests.spark_sink.driver import Driver
from tests.spark_sink.landing import (
    Chunk,
    Event,
    Table,
    Values,
    Verified,
    altered,
    insert,
    key_kinds,
    key_values,
    table_id,
)
from tests.spark_sink.test_verifications import LEAF_ROWS, driver

__all__ = ["driver"]

SOURCE = "acme", "shop"
DAY, MOMENT = date(2024, 1, 1), datetime(2024, 1, 1)  # noqa: DTZ001  (a database's own)


def some_bytes(chance: random.Random) -> bytes:
    """Some are the beginning of others, some are very long."""
    size = chance.choice((0, 1, 1, 2, 3, 16, 600))
    return bytes(chance.choice((0, 1, 0x7F, 0x80, 0xFF)) for _ in range(size))


def some_text(chance: random.Random) -> str:
    return "".join(chance.choice("\x01 aAz'\\é\U0001f600\uffff") for _ in range(chance.choice((0, 1, 2, 3, 200))))


@dataclass(frozen=True)
class Column:
    type: pa.DataType
    value: Callable[[random.Random], object]
    kind: str = ""


COLUMNS = {
    "integer": Column(pa.int32(), lambda chance: chance.randrange(-50, 50)),
    "date": Column(
        pa.date32(), lambda chance: DAY + timedelta(days=chance.choice((-738000, 0, chance.randrange(-90, 90))))
    ),
    "moment": Column(pa.timestamp("us"), lambda chance: MOMENT + timedelta(microseconds=chance.randrange(-2500, 2500))),
    "instant": Column(
        pa.timestamp("us", "UTC"),
        lambda chance: (MOMENT + timedelta(milliseconds=chance.randrange(-90, 90))).replace(tzinfo=UTC),
    ),
    "price": Column(pa.decimal128(12, 2), lambda chance: Decimal(chance.randrange(-(10**4), 10**4)).scaleb(-2)),
    "large": Column(
        pa.decimal128(38, 0),
        lambda chance: Decimal(chance.choice((1, -1)) * (chance.randrange(100) + chance.choice((0, 2**64, 10**37)))),
    ),
    "bytes": Column(pa.binary(), some_bytes),
    "text": Column(pa.string(), some_text, "text"),
    # as a server with another collation has it: no range can go by it
    "collated": Column(pa.string(), some_text),
}
KEYS: Sequence[tuple[str, ...]] = (
    ("date",), ("moment",), ("instant",), ("price",), ("large",), ("bytes",), ("text",),
    ("date", "collated"), ("bytes", "integer"), ("integer", "moment"), ("text", "large", "collated"),
)  # fmt: skip


@dataclass
class Scenario:
    """A table, its source's rows, and its lake."""

    driver: Driver
    key: tuple[str, ...]
    chance: random.Random
    table: Table = field(init=False)
    rows: list[Values] = field(init=False)
    verifications: int = 0

    def __post_init__(self) -> None:
        columns = {name: COLUMNS[name].type for name in self.key}
        self.table = Table("orders", {**columns, "n": pa.int64(), "note": pa.string()}, self.key)
        kinds = [COLUMNS[name].kind or key_kinds(replace(self.table, key=(name,))) for name in self.key]
        texts = [each if isinstance(each, str) else "".join(each) for each in kinds]
        self.kinds = tuple(texts[: texts.index("")] if "" in texts else texts)
        made = {tuple(COLUMNS[name].value(self.chance) for name in self.key) for _ in range(90)}
        self.rows = [self.row(key, n) for n, key in enumerate(sorted(made, key=repr))]
        self.chance.shuffle(self.rows)
        # several files, whose keys overlap
        for begin in range(0, len(self.rows), 30):
            self.driver.writer.cut((self.table, [insert(**values) for values in self.rows[begin : begin + 30]]))
            self.driver.follow()

    def row(self, key: tuple[object, ...], n: int) -> Values:
        return {**dict(zip(self.key, key, strict=True)), "n": n, "note": "same"}

    def values(self, row: Values) -> Key:
        return key_values(self.table, row, self.kinds)

    @property
    def current(self) -> str:
        return f"{table_id(self.table).folder(str(self.driver.lake))}/current"

    def between(self, above: Key, up_to: Key) -> list[Values]:
        return [row for row in self.rows if self.values(row) > above and (not up_to or self.values(row) <= up_to)]

    def verify(self, focus: LandedFocus | None = None) -> dict[str, Any]:
        self.verifications += 1
        name, writer = f"verification-{self.verifications}", self.driver.writer
        writer.cut(Event(self.table, "VERIFICATION_STARTED", dump=name))
        gsn = writer.last_gsns[SOURCE]
        if focus is not None:
            shown = [row for part in focus.ranges for row in self.between(part.above, part.up_to)]
            parts: list[tuple[list[Values], Key, Key]] = [(shown, (), ())]
        else:
            ends = sorted({self.values(row) for row in self.chance.sample(self.rows, 2)})
            bounds: list[Key] = [(), *ends, ()]
            parts = [(self.between(*pair), *pair) for pair in pairwise(bounds)]
        for shown, above, up_to in parts:
            writer.cut(Verified(self.table, shown, gsn, above, up_to, name, LEAF_ROWS, focus=focus, kinds=self.kinds))
        writer.cut(Event(self.table, "VERIFIED", dump=name))
        self.driver.follow()
        return self.driver.verdict(name)

    def repair(self, focus: LandedFocus) -> None:
        writer = self.driver.writer
        writer.cut(Event(self.table, "REPAIR_STARTED", dump="repair-1"))
        gsn = writer.last_gsns[SOURCE] - 1
        for part, each in enumerate(focus.ranges):
            writer.cut(Chunk(self.table, self.between(each.above, each.up_to), gsn, part, "repair-1", repairs=True))
        ranges = tuple(KeyNumbers(each.above, each.up_to) for each in focus.ranges)
        repaired = LandedRepair(gsn, self.key[: len(focus.kinds)], ranges, focus.kinds)
        writer.cut(Event(self.table, "REPAIRED", dump="repair-1", repaired=repaired))
        self.driver.follow()

    def meddle(self) -> set[int]:
        """Change, drop and add rows of the lake; the numbers of those that differ then."""
        changed, dropped = (int(str(row["n"])) for row in self.chance.sample(self.rows, 2))
        lake = DeltaTable(self.current)
        lake.update({"note": "'other'"}, predicate=f"n = {changed}")
        lake.delete(f"n = {dropped}")
        known = {tuple(row[name] for name in self.key) for row in self.rows}
        key = next(key for key in self._keys() if key not in known)
        added = lake.to_pyarrow_table(filters=[("n", "=", changed)])
        values = {**dict(zip(self.key, key, strict=True)), "n": 1000}
        arrays = [
            pa.array([values[name]], field_.type) if name in values else added[name]
            for name, field_ in zip(added.column_names, added.schema, strict=True)
        ]
        write_deltalake(lake, pa.table(arrays, schema=added.schema), mode="append")
        return {changed, dropped, 1000}

    def _keys(self) -> Any:
        while True:
            yield tuple(COLUMNS[name].value(self.chance) for name in self.key)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.history) for seed in (1, 2))])
@pytest.mark.parametrize("key", KEYS, ids="-".join)
def test_table_when_its_lake_is_changed_then_rows_are_named_by_ranges_of_its_key_and_repaired(
    key: tuple[str, ...], seed: int, driver: Driver
) -> None:
    scenario = Scenario(driver, key, random.Random(seed))
    assert scenario.verify()["verdict"] == "equal"
    differing = scenario.meddle()
    first = scenario.verify()
    assert first["verdict"] == "unknown" and first["focus"], first["reason"]
    focus = decode_focus(json.loads(first["focus"]))
    assert focus.ranges and focus.kinds == scenario.kinds and not focus.bits
    second = scenario.verify(focus)
    assert second["verdict"] == "differs"
    counts = {(row["source_rows"], row["lake_rows"], *row["columns"]) for row in json.loads(second["rows"])}
    assert counts == {(1, 1, "note"), (1, 0), (0, 1)} and len(json.loads(second["rows"])) == len(differing)
    held = {row["n"]: row["_gsn"] for row in current_state(str(driver.lake), table_id(scenario.table)).to_pylist()}
    scenario.repair(focus)
    third = scenario.verify(replace(focus, repaired_by="repair-1"))
    assert third["verdict"] == "equal", third["reason"]
    fourth = scenario.verify()
    assert fourth["verdict"] == "equal", fourth["reason"]
    found = {row["n"]: row["_gsn"] for row in current_state(str(driver.lake), table_id(scenario.table)).to_pylist()}
    assert set(found) == {row["n"] for row in scenario.rows}
    inside = {row["n"] for each in focus.ranges for row in scenario.between(each.above, each.up_to)}
    assert len(inside) < len(scenario.rows) and {n for n in found if found[n] != held.get(n)} <= inside


def test_a_repairs_end_when_the_key_has_another_type_by_then_then_no_row_is_taken_away(driver: Driver) -> None:
    """A range of days is no range of integers, also where the numbers are the same."""
    dated = Table("orders", {"id": pa.date32(), "n": pa.int64()}, ("id",))
    driver.writer.cut((dated, [insert(id=date(1970, 1, 1) + timedelta(days=n), n=n) for n in range(9)]))
    numbered = Table("orders", {"id": pa.int64(), "n": pa.int64()}, ("id",))
    driver.writer.cut(Event(dated, "REPAIR_STARTED", dump="repair-1"))
    gsn = driver.writer.last_gsns[SOURCE] - 1
    driver.writer.cut(altered(numbered, removes_rows=True))
    driver.writer.cut((numbered, [insert(id=n, n=n) for n in range(9)]))
    later = driver.writer.last_gsns[SOURCE] + 1
    repaired = LandedRepair(later, ("id",), (KeyNumbers((2,), (5,)),), ("date",))
    assert gsn < later
    driver.writer.cut(Event(numbered, "REPAIRED", dump="repair-1", repaired=repaired))
    driver.follow()
    assert current_state(str(driver.lake), table_id(numbered)).num_rows == 9


@pytest.mark.parametrize("middle", [(), (20,)])
def test_a_row_of_the_lake_when_it_has_no_key_then_the_table_is_not_equal(middle: Key, driver: Driver) -> None:
    table = Table("orders", {"id": pa.date32(), "n": pa.int64()}, ("id",))
    rows = [{"id": date(1970, 1, 1) + timedelta(days=n), "n": n} for n in range(40)]
    driver.writer.cut((table, [insert(**values) for values in rows]))
    driver.follow()
    lake = DeltaTable(f"{table_id(table).folder(str(driver.lake))}/current")
    extra = lake.to_pyarrow_table(filters=[("n", "=", 7)])
    write_deltalake(lake, extra.set_column(0, extra.schema.field(0), pa.nulls(1, pa.date32())), mode="append")
    driver.writer.cut(Event(table, "VERIFICATION_STARTED", dump="verification-1"))
    gsn = driver.writer.last_gsns[SOURCE]
    bounds: list[Key] = [(), middle, ()] if middle else [(), ()]
    for above, up_to in pairwise(bounds):
        shown = [row for row in rows if key_values(table, row, ("date",)) > above]
        shown = [row for row in shown if not up_to or key_values(table, row, ("date",)) <= up_to]
        driver.writer.cut(Verified(table, shown, gsn, above, up_to, leaf_rows=LEAF_ROWS))
    driver.writer.cut(Event(table, "VERIFIED", dump="verification-1"))
    driver.follow()
    found = driver.verdict()
    assert found["verdict"] == "unknown" and found["leaves"] is not None and json.loads(found["leaves"])


class Former(Verified):
    """As format 12 of the landing has it."""

    def landed(self, number: int) -> LandedChunk:
        made = Verified.landed(self, number)
        assert made.digest is not None
        facts = asdict(replace(made, digest=replace(made.digest, kinds=(), above=(), up_to=())))
        for name in ("kinds", "above", "up_to"):
            del facts["digest"][name]
        return decode_chunk(facts)


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_digest_when_it_is_of_a_former_landing_then_its_ranges_are_of_integers(
    is_changed: bool, driver: Driver
) -> None:
    table = Table("orders", {"id": pa.int32(), "n": pa.int64()}, ("id",))
    rows: list[Values] = [{"id": n, "n": n} for n in range(40)]
    driver.writer.cut((table, [insert(**values) for values in rows]))
    driver.follow()
    if is_changed:
        DeltaTable(f"{table_id(table).folder(str(driver.lake))}/current").update({"n": "7"}, predicate="id = 30")
    driver.writer.cut(Event(table, "VERIFICATION_STARTED", dump="verification-1"))
    gsn = driver.writer.last_gsns[SOURCE]
    for shown, above, up_to in ((rows[:20], None, 19), (rows[20:], 19, None)):
        driver.writer.cut(Former(table, shown, gsn, above, up_to, leaf_rows=LEAF_ROWS))
    driver.writer.cut(Event(table, "VERIFIED", dump="verification-1"))
    driver.follow()
    found = driver.verdict()
    assert found["verdict"] == ("unknown" if is_changed else "equal")
    if is_changed:
        (part,) = decode_focus(json.loads(found["focus"])).ranges
        assert part.above < (30,) <= part.up_to and part.above >= (19,)


@pytest.mark.parametrize(
    "kinds", [(Former, Verified, Verified), (Former, Verified, Former), (Verified, Former, Former)]
)
def test_chunks_when_some_are_of_a_former_landing_then_they_follow_each_other(
    kinds: Sequence[type[Verified]], driver: Driver
) -> None:
    table = Table("orders", {"id": pa.int32(), "n": pa.int64()}, ("id",))
    rows: list[Values] = [{"id": n, "n": n} for n in range(40)]
    driver.writer.cut((table, [insert(**values) for values in rows]))
    driver.follow()
    driver.writer.cut(Event(table, "VERIFICATION_STARTED", dump="verification-1"))
    gsn = driver.writer.last_gsns[SOURCE]
    parts = ((rows[:20], None, 19), (rows[20:30], 19, 29), (rows[30:], 29, None))
    for kind, (shown, above, up_to) in zip(kinds, parts, strict=True):
        driver.writer.cut(kind(table, shown, gsn, above, up_to, leaf_rows=LEAF_ROWS))
    driver.writer.cut(Event(table, "VERIFIED", dump="verification-1"))
    driver.follow()
    found = driver.verdict()
    assert (found["verdict"], found["reason"]) == ("equal", "")


@pytest.mark.parametrize(
    ("type_", "kind", "middle"),
    [(pa.decimal128(20, 0), "integer", 2**63), (pa.decimal128(38, 0), "decimal(0)", 10**30)],
)
def test_a_range_when_the_lakes_decimals_are_beyond_int64_then_no_other_row_is_found(
    type_: pa.DataType, kind: str, middle: int, tmp_path: Path
) -> None:
    """delta-rs writes statistics of such decimals that are rounded: by these it takes all of a file's rows."""
    chance = random.Random(1)
    values = sorted(chance.sample(range(middle - 250, middle + 250), 60))
    schema = pa.schema([("id", type_), ("n", pa.int64())])
    table = create_table(str(tmp_path), schema, Layout("", ("id", "n"), ("id",)))
    for begin in range(0, len(values), 7):
        part = values[begin : begin + 7]
        write_deltalake(
            table,
            pa.table([[Decimal(value) for value in part], [*range(begin, begin + len(part))]], schema),
            mode="append",
        )
    told = pa.table(table.get_add_actions(flatten=True)).column_names
    assert "max.n" in told and "max.id" not in told
    for _ in range(20):
        above, up_to = sorted(chance.sample(values, 2))
        condition = range_condition(["id"], [kind], [((above,), (up_to,))], schema_of(table))
        found = scan(table, f"SELECT n FROM t WHERE {condition}").read_all()["n"].to_pylist()
        assert sorted(found) == [n for n, value in enumerate(values) if above < value <= up_to]


def test_a_focus_when_it_is_of_a_former_landing_then_its_ranges_are_of_integers() -> None:
    part = {"lower": "", "upper": "", "above": [1, 2], "up_to": []}
    assert decode_focus({"ranges": [part], "bits": 0, "buckets": []}).kinds == ("integer", "integer")
    assert decode_focus({"ranges": [], "bits": 4, "buckets": [1]}).kinds == ()
