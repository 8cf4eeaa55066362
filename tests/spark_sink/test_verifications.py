"""A verification's chunks against lakes that are equal to their source under changes, and lakes that something has
changed since: the verdict, and the leaf that it names. Without Spark: tasks and the driver's part as they are."""

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from menura.change_batch import ABSENT
from menura.lake_report import LakeVerdict
from menura.landing import LandedForeignKey, LandedPosition, LandedStart

from spark_sink.ingest.verifications import Verifications
from spark_sink.lake import digests
from spark_sink.lake.delta_table import scan
from spark_sink.lake.digests import SUSPECTED
from spark_sink.lake.tail import AT_ONCE, Waiting
from spark_sink.work import TableId
from tests.spark_sink.driver import Driver
from tests.spark_sink.landing import (
    Change,
    Event,
    Table,
    Values,
    Verified,
    Writer,
    apply_entries,
    delete,
    insert,
    table_id,
    update,
)

ORDERS = Table(
    "orders",
    {
        "id": pa.int32(),
        "amount": pa.uint64(),
        "note": pa.string(),
        "price": pa.float64(),
        "total": pa.decimal128(12, 2),
    },
)
STARTED = Event(ORDERS, "VERIFICATION_STARTED", dump="verification-1")
ENDED = Event(ORDERS, "VERIFIED", dump="verification-1")
LEAF_ROWS = 8
Rows = dict[int, Values]


def row(chance: random.Random, number: int) -> Values:
    return {
        "id": number,
        "amount": chance.choice([0, 7, 2**64 - 1]),
        "note": chance.choice(["", "a", "ü", None]),
        "price": chance.choice([0.0, 1.5, None, 1e300]),
        "total": Decimal(chance.randrange(-(10**6), 10**6)) / 100,
    }


def changes(chance: random.Random, rows: Rows, keys: Sequence[int], fixed: frozenset[int]) -> list[list[Change]]:
    """Some of one transaction, which `rows` follows; keys move too, over leaves and ranges."""
    made: list[list[Change]] = []
    for _ in range(chance.randrange(1, 5)):
        number, other = (chance.choice([key for key in keys if key not in fixed]) for _ in range(2))
        if number not in rows:
            rows[number] = row(chance, number)
            made.append(insert(**rows[number]))
        elif chance.random() < 0.3:
            made.append(delete(**rows.pop(number)))
        else:
            to = other if other not in rows else number
            after = row(chance, to)
            made.append(update(rows.pop(number), after))
            rows[to] = after
    return made


@pytest.fixture
def driver(writer: Writer, lake: Path) -> Iterator[Driver]:
    made = Driver(writer, lake)
    yield made
    made.verifications.stop(60)


def begin(writer: Writer, chance: random.Random, count: int = 40) -> Rows:
    rows: Rows = {number: row(chance, number) for number in range(0, 2 * count, 2)}
    writer.cut((ORDERS, [insert(**values) for values in rows.values()]))
    return rows


def read(rows: Rows, gsn: int, lower: int | None, upper: int | None, dump: str = "verification-1") -> Verified:
    shown = [
        values
        for number, values in rows.items()
        if (lower is None or number > lower) and (upper is None or number <= upper)
    ]
    return Verified(ORDERS, shown, gsn, lower, upper, dump, LEAF_ROWS)


def run_verification(
    driver: Driver, chance: random.Random, rows: Rows, fixed: frozenset[int] = frozenset(),
    meddle: Callable[[DeltaTable], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Ranges are read one after the other, each at a moment between others' transactions."""
    writer, keys = driver.writer, range(-4, 90)
    writer.cut(STARTED)
    driver.follow()
    if meddle is not None:
        meddle(DeltaTable(f"{table_id(ORDERS).folder(str(driver.lake))}/current"))
    bounds = [None, *sorted(chance.sample(range(2, 80), 2)), None]
    for lower, upper in pairwise(bounds):
        gsn = writer.last_gsns["acme", "shop"]
        shown: Verified | None = None
        for _ in range(chance.randrange(1, 5)):
            if shown is None and chance.random() < 0.5:
                shown = read(rows, gsn, lower, upper)
            if chance.random() < 0.8:
                writer.cut((ORDERS, changes(chance, rows, keys, fixed)))
            if chance.random() < 0.3:
                driver.follow()
        writer.cut((ORDERS, changes(chance, rows, keys, fixed)), shown or read(rows, gsn, lower, upper))
        if chance.random() < 0.5:
            writer.cut((ORDERS, changes(chance, rows, keys, fixed)))
    writer.cut(ENDED)
    driver.follow()
    return driver.verdict()


#: never, always, and until there are some rows
WAITINGS = (AT_ONCE, Waiting(3600, -1, part_of_table=1e9), Waiting(3600, -1, 6, 1e9))


@pytest.mark.history
@pytest.mark.parametrize("seed", range(12))
def test_table_when_nothing_has_changed_it_but_its_source_then_is_equal_under_concurrent_changes(
    seed: int, driver: Driver
) -> None:
    chance = random.Random(seed)
    rows = begin(driver.writer, chance)
    driver.waiting = WAITINGS[seed % len(WAITINGS)]
    found = run_verification(driver, chance, rows)
    assert (found["verdict"], found["reason"], found["leaves"]) == ("equal", "", None)
    assert found["source_rows"] > 0 and found["cut"] > 1
    assert [each for each in driver.verifications.records.rows() if each["chunk"] is not None] == []


#: of the row with key 20 or 22, which nobody changes in the meantime
MUTANTS: Mapping[str, Callable[[DeltaTable], object]] = {
    "a row dropped": lambda lake: lake.delete("id = 20"),
    "a row doubled": lambda lake: write_deltalake(
        lake, lake.to_pyarrow_table(filters=[("id", "=", 20)]), mode="append"
    ),
    "a row that the source does not have": lambda lake: lake.update({"id": "21"}, predicate="id = 20"),
    "two rows swapped": lambda lake: lake.update(
        {"id": "CASE WHEN id = 20 THEN 22 ELSE 20 END"}, predicate="id = 20 OR id = 22"
    ),
    "one bit": lambda lake: lake.update({"amount": "CAST('6' AS DECIMAL(20, 0))"}, predicate="id = 20"),
    "NULL for an empty text": lambda lake: lake.update({"note": "NULL"}, predicate="id = 20"),
    "a stale value": lambda lake: lake.update({"note": "'stale'"}, predicate="id = 20"),
    "a float": lambda lake: lake.update({"price": "1.5000000000000002"}, predicate="id = 20"),
    "a decimal": lambda lake: lake.update({"total": "CAST('3.14' AS DECIMAL(12, 2))"}, predicate="id = 20"),
}
FIXED = frozenset({20, 21, 22})


@pytest.mark.parametrize("mutant", MUTANTS)
def test_table_when_something_has_changed_the_lake_then_differs_at_the_right_leaf(mutant: str, driver: Driver) -> None:
    chance = random.Random(mutant)
    rows = begin(driver.writer, chance)
    of_20, of_22 = (
        {"id": number, "amount": 7, "note": "", "price": 1.5, "total": Decimal("3.15")} for number in (20, 22)
    )
    of_22["amount"] = 8
    driver.writer.cut((ORDERS, [update(rows[20], of_20), update(rows[22], of_22)]))
    rows[20], rows[22] = of_20, of_22
    driver.waiting = chance.choice(WAITINGS)

    found = run_verification(driver, chance, rows, FIXED, MUTANTS[mutant])

    assert (found["verdict"], found["reason"]) == ("unknown", SUSPECTED)
    leaves = json.loads(found["leaves"])
    assert leaves
    for leaf in leaves:
        lower, upper = (bound[0] if bound else None for bound in (leaf["lower"], leaf["upper"]))
        assert (lower is None or lower < 22) and (upper is None or upper >= 20), leaf
    kept = [each for each in driver.verifications.records.rows() if each["chunk"] is not None]
    assert {each["verdict"] for each in kept} == {"unknown"}
    (told,) = driver.told[table_id(ORDERS)]
    assert (told.verdict, told.leaves_differ, told.position) == ("unknown", len(leaves), found["position"])
    assert told.leaves_equal and told.read_at_us and told.leaves[0].source_rows == leaves[0]["source_rows"]
    again: dict[TableId, tuple[LakeVerdict, ...]] = {}
    Verifications(str(driver.lake), again.update).start()  # as after a start
    assert again == driver.told


def verified(driver: Driver, *cuts: Sequence[Any], rows: Sequence[Values], table: Table = ORDERS) -> dict[str, Any]:
    """The whole table, read before these cuts."""
    started, ended = (Event(table, event.kind, dump=event.dump) for event in (STARTED, ENDED))
    driver.writer.cut(started)
    gsn = driver.writer.last_gsns["acme", "shop"]
    for cut in cuts:
        driver.writer.cut(*cut)
    driver.writer.cut(Verified(table, rows, gsn, leaf_rows=LEAF_ROWS))
    driver.writer.cut(ended)
    driver.follow()
    return driver.verdict()


def test_rows_when_the_lake_lacks_values_of_them_then_they_are_unknown_and_no_other_is(driver: Driver) -> None:
    rows = begin(driver.writer, random.Random(1))
    partial = {**rows[0], "note": None, ABSENT: ("note",)}
    driver.writer.cut((ORDERS, [delete(**rows[0]), insert(**partial)]))
    found = verified(driver, rows=list(rows.values()))
    assert (found["verdict"], "lack values" in found["reason"]) == ("unknown", True)


def test_rows_when_the_log_has_no_values_of_before_then_a_reading_after_its_changes_is_equal(driver: Driver) -> None:
    """As PostgreSQL logs updates and deletes of a table whose replica identity is its key."""
    rows = begin(driver.writer, random.Random(1))
    after = {**rows[4], "note": "after"}
    key_alone = {"id": 2, ABSENT: ("amount", "note", "price", "total")}
    logged = (ORDERS, [[("update_postimage", after)], [("delete", key_alone)]])
    left = [after if number == 4 else values for number, values in rows.items() if number != 2]
    assert verified(driver, [logged], rows=left)["verdict"] == "equal"


def test_rows_when_the_log_has_no_values_of_before_then_a_reading_before_its_changes_is_unknown(driver: Driver) -> None:
    rows = begin(driver.writer, random.Random(1))
    before = list(rows.values())
    found = verified(driver, [(ORDERS, [[("update_postimage", {**rows[4], "note": "after"})]])], rows=before)
    assert (found["verdict"], "which of the transactions were seen" in found["reason"]) == ("unknown", True)


def test_rows_when_the_log_has_no_values_of_before_then_what_did_not_change_differs_all_the_same(
    driver: Driver,
) -> None:
    rows = begin(driver.writer, random.Random(1))
    driver.follow()
    DeltaTable(f"{table_id(ORDERS).folder(str(driver.lake))}/current").update({"note": "'other'"}, predicate="id = 60")
    changed = (ORDERS, [[("update_postimage", {**rows[4], "note": "after"})]])
    found = verified(driver, [changed], rows=list(rows.values()))
    assert found["reason"] == SUSPECTED
    (leaf,) = json.loads(found["leaves"])
    assert leaf["lower"][0] < 60 <= leaf["upper"][0]


@pytest.mark.parametrize(("held", "verdict"), [("1.250", "equal"), ("1.254", SUSPECTED), ("1.2500001", SUSPECTED)])
def test_values_when_the_lakes_type_is_wider_then_are_equal_only_where_nothing_is_rounded(
    held: str, verdict: str, driver: Driver
) -> None:
    wide = Table("orders", {"id": pa.int32(), "total": pa.decimal128(16, 7)})
    narrow = Table("orders", {"id": pa.int32(), "total": pa.decimal128(12, 2)})
    driver.writer.cut((wide, [insert(id=1, total=Decimal(held))]))
    driver.writer.cut((narrow, [insert(id=2, total=Decimal("7.00"))]))
    rows = [{"id": 1, "total": Decimal("1.25")}, {"id": 2, "total": Decimal("7.00")}]
    found = verified(driver, rows=rows, table=narrow)
    assert verdict in (found["verdict"], found["reason"])


CUSTOMERS = Table("customers", {"id": pa.int32()})
LINES = Table("lines", {"id": pa.int32(), "customer": pa.int32()})
CASCADE = LandedForeignKey("by_customer", ("customer",), ("shop", "customers"), ("id",), "cascade", "cascade", (None,))


@pytest.mark.parametrize("reads_before", [True, False])
def test_children_when_keys_change_them_without_the_log_in_the_meantime_then_are_equal(
    reads_before: bool, driver: Driver
) -> None:
    lines = [{"id": number, "customer": number % 5} for number in range(40)]
    driver.writer.cut(
        (CUSTOMERS, [insert(id=number) for number in range(5)]),
        Event(LINES, "FOREIGN_KEYS", foreign_keys=(CASCADE,)),
        (LINES, [insert(**line) for line in lines]),
    )
    left = [{**line, "customer": 9 if line["customer"] == 3 else line["customer"]} for line in lines]
    left = [line for line in left if line["customer"] != 2]
    cuts = [[(CUSTOMERS, [delete(id=2)])], [(CUSTOMERS, [update({"id": 3}, {"id": 9})])]]
    found = verified(driver, *cuts, rows=lines if reads_before else left, table=LINES)
    assert (found["verdict"], found["reason"]) == ("equal", "")


def test_table_when_a_chunk_is_missing_then_it_is_not_equal_but_unknown(driver: Driver) -> None:
    rows = begin(driver.writer, random.Random(1))
    driver.writer.cut(STARTED)
    gsn = driver.writer.last_gsns["acme", "shop"]
    driver.writer.cut(read(rows, gsn, None, 20), read(rows, gsn, 30, None))
    driver.writer.cut(ENDED)
    driver.follow()
    found = driver.verdict()
    assert (found["verdict"], found["reason"]) == ("unknown", "a part of the table was not compared")


@pytest.mark.parametrize("place", [1, 2, 3])
def test_table_when_a_chunk_has_no_keys_then_its_others_follow_each_other(place: int, driver: Driver) -> None:
    rows = begin(driver.writer, random.Random(1))
    driver.writer.cut(STARTED)
    gsn = driver.writer.last_gsns["acme", "shop"]
    chunks = [read(rows, gsn, None, 20), read(rows, gsn, 20, 30), read(rows, gsn, 30, None)]
    for chunk in (*chunks[:place], read(rows, gsn, 20, 20), *chunks[place:]):
        driver.writer.cut(chunk)
    driver.writer.cut(ENDED)
    driver.follow()
    found = driver.verdict()
    assert (found["verdict"], found["reason"], found["source_rows"]) == ("equal", "", len(rows))


def test_table_when_its_sync_begins_anew_in_the_meantime_then_its_verification_is_void(driver: Driver) -> None:
    rows = begin(driver.writer, random.Random(1))
    driver.writer.cut(STARTED)
    gsn = driver.writer.last_gsns["acme", "shop"]
    driver.writer.cut(read(rows, gsn, None, 20))
    cut = driver.writer.make_cut([])
    driver.writer.write_entry([replace(cut, started=(LandedStart("shop", "orders", LandedPosition()),))])
    driver.writer.cut(read(rows, gsn, 20, None))
    driver.writer.cut(ENDED)
    driver.follow()
    found = driver.verdict()
    assert (found["verdict"], found["reason"]) == ("void", "the table's sync began anew")


def test_table_when_another_verification_begins_then_the_former_is_void_and_the_other_counts(driver: Driver) -> None:
    rows = begin(driver.writer, random.Random(1))
    driver.writer.cut(STARTED)
    driver.writer.cut(Event(ORDERS, "VERIFICATION_STARTED", dump="verification-2"))
    gsn = driver.writer.last_gsns["acme", "shop"]
    driver.writer.cut(read(rows, gsn, None, None, "verification-2"))
    driver.writer.cut(Event(ORDERS, "VERIFIED", dump="verification-2"))
    driver.follow()
    driver.verdict()
    verdicts = {row["verification"]: row["verdict"] for row in driver.verifications.records.rows()}
    assert verdicts == {"verification-1": "void", "verification-2": "equal"}


def test_sink_when_it_starts_again_then_it_compares_what_was_due_and_counts_nothing_twice(driver: Driver) -> None:
    rows = begin(driver.writer, random.Random(1))
    driver.verifications.stop(60)  # its thread does nothing more, as if it was killed
    driver.writer.cut(STARTED)
    gsn = driver.writer.last_gsns["acme", "shop"]
    driver.writer.cut(read(rows, gsn, None, 20))
    driver.follow()
    driver.writer.cut((ORDERS, [delete(**rows.pop(78))]), read(rows, gsn, 20, None))
    driver.writer.cut(ENDED)
    driver.follow()
    driver.entry -= 2
    driver.follow()  # a batch that is done again

    driver.verifications = Verifications(str(driver.lake))
    driver.verifications.start()

    found = driver.verdict()
    assert (found["verdict"], found["source_rows"], found["lake_rows"]) == ("equal", 39, 39)


def test_sink_when_the_lake_can_not_be_read_as_it_was_then_the_chunk_is_unknown_and_the_sink_goes_on(
    driver: Driver,
) -> None:
    rows = begin(driver.writer, random.Random(1))
    driver.verifications.stop(60)
    driver.writer.cut(STARTED)
    driver.writer.cut(read(rows, driver.writer.last_gsns["acme", "shop"], None, None))
    driver.writer.cut(ENDED)
    driver.follow()
    for file in Path(table_id(ORDERS).folder(str(driver.lake)), "current").glob("*.parquet"):
        file.unlink()
    driver.verifications = Verifications(str(driver.lake))
    driver.verifications.start()
    found = driver.verdict()
    assert (found["verdict"], "could not be read" in found["reason"]) == ("unknown", True)


def test_table_when_the_lake_has_made_it_anew_then_its_chunks_are_void(driver: Driver) -> None:
    rows = begin(driver.writer, random.Random(1))
    driver.verifications.stop(60)
    driver.writer.cut(STARTED)
    driver.writer.cut(read(rows, driver.writer.last_gsns["acme", "shop"], None, None))
    driver.writer.cut(ENDED)
    driver.follow()
    shutil.rmtree(table_id(ORDERS).folder(str(driver.lake)))
    apply_entries(driver.writer.folder, driver.lake)
    driver.verifications = Verifications(str(driver.lake))
    driver.verifications.start()
    assert driver.verdict()["verdict"] == "void"


def test_table_when_it_is_empty_on_both_sides_or_on_one_then_it_is_equal_or_differs(driver: Driver) -> None:
    rows = begin(driver.writer, random.Random(1))
    driver.writer.cut((ORDERS, [delete(**values) for values in rows.values()]))
    assert verified(driver, rows=[])["verdict"] == "equal"


def test_chunk_when_others_keys_changed_in_the_meantime_then_their_rows_are_not_read(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that lags has hours of a table's changes between a chunk and the cut that names it."""
    read_rows: list[int] = []

    def counted(table: DeltaTable, query: str) -> pa.RecordBatchReader:
        found = scan(table, query).read_all()
        if "SELECT *" in query:
            read_rows.append(found.num_rows)
        return found.to_reader()

    monkeypatch.setattr(digests, "scan", counted)
    rows = begin(driver.writer, random.Random(1))
    driver.writer.cut(STARTED)
    gsn = driver.writer.last_gsns["acme", "shop"]
    shown = read(rows, gsn, None, 6)
    changed: list[list[Change]] = []
    for key in (4, *range(10, 80, 2)):
        after: Values = {**rows[key], "note": "later"}
        changed.append(update(rows[key], after))
        rows[key] = after
    driver.writer.cut((ORDERS, changed), shown, read(rows, gsn, 6, None))
    driver.writer.cut(ENDED)
    driver.follow()
    assert driver.verdict()["verdict"] == "equal"
    assert read_rows == [2]  # of the one key that the first chunk has


@pytest.mark.parametrize("keys", [(4, 60), (4, 6)], ids=["two leaves", "one leaf"])
def test_chunk_when_it_shows_a_transaction_and_not_one_before_it_in_the_log_then_it_is_unknown(
    driver: Driver, keys: tuple[int, int]
) -> None:
    """A PostgreSQL's commit is in its log before others see it, and may wait there for a standby."""
    rows = begin(driver.writer, random.Random(1))
    driver.writer.cut(STARTED)
    gsn = driver.writer.last_gsns["acme", "shop"]
    first, second = ({**rows[key], "note": "later"} for key in keys)
    driver.writer.cut((ORDERS, [update(rows[keys[0]], first)]))
    driver.writer.cut((ORDERS, [update(rows[keys[1]], second)]), read({**rows, keys[1]: second}, gsn, None, None))
    driver.writer.cut(ENDED)
    driver.follow()
    assert driver.verdict()["verdict"] == "unknown"


@pytest.mark.parametrize(("transactions", "is_known"), [(20, True), (21, False)])
def test_leaf_when_many_transactions_change_it_then_it_differs_only_if_each_choice_of_them_could_be_tried(
    driver: Driver, transactions: int, is_known: bool
) -> None:
    rows = begin(driver.writer, random.Random(1))
    driver.writer.cut(STARTED)
    gsn, shown = driver.writer.last_gsns["acme", "shop"], {**rows, 6: {**rows[6], "note": "of no transaction"}}
    for number in range(transactions):
        later = {**rows[4], "note": f"later {number}"}
        driver.writer.cut((ORDERS, [update(rows[4], later)]))
        rows[4] = later
    driver.writer.cut((ORDERS, [update(rows[60], rows[60])]), read(shown, gsn, None, None))
    driver.writer.cut(ENDED)
    driver.follow()
    assert (driver.verdict()["reason"] == SUSPECTED) == is_known
