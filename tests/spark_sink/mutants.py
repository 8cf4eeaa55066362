"""`python -m tests.spark_sink.mutants [--seeds N] [--first N]`: lakes that something has changed, which is found at the
right key each time; and lakes that nothing has, of which no leaf ever differs.

Each seed has a table of one form (its key: an integer, a text, both, none), others' transactions while it is verified,
and a mutant of its lake, or none and DDL, truncates and dumps in its place. What differs is read again until rows are
named, as the control plane orders it. Where the key is an integer, the rows that are named are read again by a repair,
beside others' transactions, and the table is equal then. The source is in memory; digests are the agent's, and the
sink's tasks and driver are as they are, without Spark.
"""

import argparse
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from menura.landed_digest import LandedFocus, decode_focus
from menura.landing import KeyNumbers, LandedRepair

from agent.snapshot import digest
from spark_sink.lake.tail import AT_ONCE, Waiting
from tests.spark_sink.driver import Driver
from tests.spark_sink.landing import (
    Change,
    Chunk,
    Event,
    Table,
    Values,
    Verified,
    Writer,
    altered,
    delete,
    insert,
    table_id,
    truncate,
    update,
)

COLUMNS = {
    "id": pa.int32(),
    "code": pa.string(),
    "amount": pa.uint64(),
    "note": pa.string(),
    "price": pa.float64(),
    "total": pa.decimal128(12, 2),
}
KEYS: Sequence[tuple[str, ...]] = (("id",), ("code",), ("code", "id"), ())
#: never, always, and until there are some rows
WAITINGS = (AT_ONCE, Waiting(3600, -1, part_of_table=1e9), Waiting(3600, -1, 6, 1e9))
#: rows with these ids are changed by mutants alone
FIXED = frozenset(range(16, 25))
MOST_READINGS = 6


@dataclass(frozen=True)
class Mutant:
    """What it does to the lake, and which rows have to be named with which columns (None: those of a lone row)."""

    change: Callable[[DeltaTable], object]
    named: dict[int, tuple[str, ...]]


def _set(**values: str) -> Callable[[DeltaTable], object]:
    return lambda lake: lake.update(values, predicate="id = 20")


def _doubled(lake: DeltaTable) -> None:
    rows = lake.to_pyarrow_table(filters=[("id", "=", 20)])
    write_deltalake(lake, rows, mode="append")


MUTANTS: dict[str, Mutant] = {
    "a row dropped": Mutant(lambda lake: lake.delete("id = 20"), {20: ()}),
    "a row doubled": Mutant(_doubled, {20: ()}),
    "two rows swapped": Mutant(
        lambda lake: lake.update(
            {"note": "CASE WHEN id = 20 THEN 'of 22' ELSE '' END"}, predicate="id = 20 OR id = 22"
        ),
        {20: ("note",), 22: ("note",)},
    ),
    "one bit": Mutant(_set(amount="CAST('6' AS DECIMAL(20, 0))"), {20: ("amount",)}),
    "a boundary shifted": Mutant(_set(id="21", code="'code 21'"), {20: (), 21: ()}),
    "NULL for an empty text": Mutant(_set(note="NULL"), {20: ("note",)}),
    "a stale value": Mutant(_set(note="'before'"), {20: ("note",)}),
    "a float": Mutant(_set(price="1.5000000000000002"), {20: ("price",)}),
    "a decimal": Mutant(_set(total="CAST('3.14' AS DECIMAL(12, 2))"), {20: ("total",)}),
    "a lost file": Mutant(lambda lake: lake.delete("id >= 16 AND id <= 24"), dict.fromkeys(range(16, 25, 2), ())),
    "a merge skipped": Mutant(
        lambda lake: lake.update({"note": "'before'", "amount": "1"}, predicate="id = 20 OR id = 22"),
        {20: ("amount", "note"), 22: ("amount", "note")},
    ),
}


def code_of(number: int) -> str:
    """Texts that servers order in ways of their own."""
    return f"{'aAbBéÉ'[number % 6]}{'  ' * (number % 2)} {number}" if number not in FIXED else f"code {number}"


def row(chance: random.Random, number: int) -> dict[str, object]:
    if number in FIXED:
        fixed = {"amount": 7, "price": 1.5, "total": Decimal("3.15")}
        return {"id": number, "code": code_of(number), "note": "" if number == 20 else f"of {number}", **fixed}
    return {
        "id": number,
        "code": code_of(number),
        "amount": chance.choice([0, 7, 2**64 - 1]),
        "note": chance.choice(["", "a", "ü", None]),
        "price": chance.choice([0.0, 1.5, None, 1e300]),
        "total": Decimal(chance.randrange(-(10**6), 10**6)) / 100,
    }


@dataclass
class Scenario:
    """One table, its source's rows by id, and its lake."""

    seed: int
    folder: Path
    chance: random.Random = field(init=False)
    table: Table = field(init=False)
    driver: Driver = field(init=False)
    rows: dict[int, dict[str, object]] = field(init=False)
    verifications: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.table = Table("orders", COLUMNS, KEYS[self.seed % len(KEYS)])
        (self.folder / "landing").mkdir()
        self.driver = Driver(Writer(self.folder / "landing"), self.folder / "lake")
        self.driver.waiting = self.chance.choice(WAITINGS)
        self.rows = {number: row(self.chance, number) for number in range(0, 80, 2)}
        # of a table without a key some rows are there twice
        self.driver.writer.cut((self.table, [insert(**values) for values in self.held()]))

    def held(self) -> list[Values]:
        twice = [each for number, each in self.rows.items() if number in (18, 24)] if not self.table.key else []
        return [*self.rows.values(), *twice]

    def write(self) -> None:
        """A transaction of others, in a cut of its own."""
        self.driver.writer.cut((self.table, self.changes()))

    def changes(self) -> list[list[Change]]:
        keys = [number for number in range(-4, 90) if number not in FIXED]
        made: list[list[Change]] = []
        for _ in range(self.chance.randrange(1, 4)):
            number, other = (self.chance.choice(keys) for _ in range(2))
            if number not in self.rows:
                self.rows[number] = self.row(number)
                made.append(insert(**self.rows[number]))
            elif self.chance.random() < 0.3:
                made.append(delete(**self.rows.pop(number)))
            else:
                to = other if other not in self.rows else number
                after = self.row(to)
                made.append(update(self.rows.pop(number), after))
                self.rows[to] = after
        return made

    def row(self, number: int) -> dict[str, object]:
        made = row(self.chance, number)
        return {name: made.get(name, "added") for name in self.table.columns}

    def verify(self, meddle: Callable[[], object] = lambda: None) -> dict[str, Any]:
        """The last verdict, once what differs was read again. `meddle`: while it is first read."""
        found = self._verify(None, meddle)
        for _ in range(MOST_READINGS):
            if found["focus"] is None:
                return found
            found = self._verify(decode_focus(json.loads(found["focus"])), lambda: None)
        raise AssertionError(f"seed {self.seed}: it is read again and again")

    def _verify(self, focus: LandedFocus | None, meddle: Callable[[], object]) -> dict[str, Any]:
        self.verifications += 1
        dump, writer = f"verification-{self.verifications}", self.driver.writer
        writer.cut(Event(self.table, "VERIFICATION_STARTED", dump=dump))
        self.driver.follow()
        meddle()
        bounds: list[int | None] = [None, None]
        if focus is None and self.table.key == ("id",):
            bounds = [None, *sorted(self.chance.sample(range(2, 80), 2)), None]
        for lower, upper in pairwise(bounds):
            self._read(dump, focus, lower, upper)
        writer.cut(Event(self.table, "VERIFIED", dump=dump))
        self.driver.follow()
        return self.driver.verdict(dump)

    def _read(self, dump: str, focus: LandedFocus | None, lower: int | None, upper: int | None) -> None:
        """A chunk, at a moment among others' transactions; a later cut names it."""
        gsn, shown = self.driver.writer.last_gsns["acme", "shop"], None
        for _ in range(self.chance.randrange(1, 4)):
            if shown is None and self.chance.random() < 0.5:
                shown = list(self.held())
            self.write()
            if self.chance.random() < 0.3:
                self.driver.follow()
        shown = self.held() if shown is None else shown
        if focus is None:
            shown = [
                each
                for each in shown
                if (lower is None or int(str(each["id"])) > lower) and (upper is None or int(str(each["id"])) <= upper)
            ]
        in_buckets = self.table.key != ("id",)
        chunk = Verified(self.table, shown, gsn, lower, upper, dump, 8, in_buckets=in_buckets, focus=focus)
        self.driver.writer.cut((self.table, self.changes()), chunk)

    # --- what may happen to the table

    def add_column(self) -> None:
        name = f"added {self.verifications}"
        self.table = replace(self.table, columns={**self.table.columns, name: pa.string()})
        for each in self.rows.values():
            each[name] = None
        self.driver.writer.cut(altered(self.table, added={name: None}))

    def truncate(self) -> None:
        self.rows = {}
        self.driver.writer.cut(truncate(self.table))

    def dump(self) -> None:
        """Of its rows anew, beside the stream."""
        writer, name = self.driver.writer, f"dump-{self.verifications}"
        writer.cut(Event(self.table, "DUMP_STARTED", dump=name))
        gsn = writer.last_gsns["acme", "shop"]
        writer.cut(Chunk(self.table, list(self.held()), gsn, dump=name))

    def repair(self, ids: Iterable[int]) -> None:
        """Read these keys again, each as a range of its own, as the control plane orders it."""
        writer, name = self.driver.writer, f"repair-{self.verifications}"
        ranges = tuple(KeyNumbers((number - 1,), (number,)) for number in sorted(ids))
        writer.cut(Event(self.table, "REPAIR_STARTED", dump=name))
        started_gsn = writer.last_gsns["acme", "shop"] - 1
        for part, each in enumerate(ranges):
            self.write()
            gsn = writer.last_gsns["acme", "shop"]
            shown = [self.rows[number] for number in each.up_to if number in self.rows]
            self.write()
            writer.cut(Chunk(self.table, shown, gsn, part, name, repairs=True))
            if self.chance.random() < 0.5:
                self.driver.follow()
        writer.cut(Event(self.table, "REPAIRED", dump=name, repaired=LandedRepair(started_gsn, ("id",), ranges)))

    def named(self, found: dict[str, Any]) -> dict[int, tuple[str, ...]]:
        """The rows that a verdict names, by id, with their columns."""
        ids = {}
        for number in range(-4, 100):
            key = json.dumps([str({**row(self.chance, number)}[name]) for name in self.table.key], ensure_ascii=False)
            ids[key] = number
        return {ids[each["key"]]: tuple(sorted(each["columns"])) for each in json.loads(found["rows"])}


def run(seed: int, folder: Path) -> str:
    """What was done; AssertionError where it was not found, or where nothing was to be found."""
    scenario = Scenario(seed, folder)
    names = list(MUTANTS)
    digest_rows, digest.MOST_ROWS = digest.MOST_ROWS, scenario.chance.choice([6, digest.MOST_ROWS])
    try:
        if seed // 4 % 3 == 2:
            return _unmutated(scenario)
        return _mutated(scenario, names[(seed // 12 * 2 + seed // 4 % 3) % len(names)])
    finally:
        digest.MOST_ROWS = digest_rows
        scenario.driver.verifications.stop(60)


def _mutated(scenario: Scenario, name: str) -> str:
    mutant = MUTANTS[name]
    current = f"{table_id(scenario.table).folder(str(scenario.driver.lake))}/current"
    found = scenario.verify(lambda: mutant.change(DeltaTable(current)))
    said = f"seed {scenario.seed}: {name}, key {scenario.table.key}: {found['verdict']}, {found['reason']}"
    assert found["verdict"] == "differs", said
    if scenario.table.key:
        expected = {
            number: tuple(each for each in columns if each not in scenario.table.key)
            for number, columns in mutant.named.items()
        }
        assert scenario.named(found) == expected, f"{said}: {found['rows']}"
        if scenario.table.key == ("id",):
            scenario.repair(mutant.named)
            found = scenario.verify()
            assert found["verdict"] == "equal", f"{said}; repaired, then {found['verdict']}, {found['reason']}"
    else:
        lone = [each for each in json.loads(found["rows"]) if 0 in (each["source_rows"], each["lake_rows"])]
        assert lone or name in ("a row doubled", "a lost file", "a row dropped"), f"{said}: {found['rows']}"
    return said


def _unmutated(scenario: Scenario) -> str:
    chance = scenario.chance
    doings = [scenario.write, scenario.add_column, scenario.truncate]
    doings += [scenario.dump] if scenario.table.key else []  # without one it has to be empty before
    for _ in range(3):
        doing = chance.choice(doings)
        found = scenario.verify(doing)
        said = (
            f"seed {scenario.seed}: {doing.__name__}, key {scenario.table.key}: {found['verdict']}, {found['reason']}"
        )
        assert found["verdict"] in ("equal", "unknown", "void") and found["leaves"] is None, said
        found = scenario.verify()
        assert found["verdict"] == "equal", f"{said}; then {found['verdict']}, {found['reason']}, {found['leaves']}"
    return said


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.spark_sink.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    for seed in range(asked.first, asked.first + asked.seeds):
        folder = Path(tempfile.mkdtemp(prefix="menura-mutants-"))
        try:
            print(run(seed, folder), flush=True)  # noqa: T201  (a command)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
