"""Leaves that are ranges of a key, where its numbers are very large, and where many leaves differ. Without Spark."""

import json
import random
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from menura.landed_digest import LandedFocus, decode_focus

from tests.spark_sink.driver import Driver
from tests.spark_sink.landing import Event, Table, Values, Verified, insert, table_id
from tests.spark_sink.test_verifications import LEAF_ROWS, ORDERS, begin, driver, verified

__all__ = ["driver"]


def test_table_when_its_keys_are_beyond_int64_then_is_equal_and_a_row_that_is_not_is_named(driver: Driver) -> None:
    table = Table("counters", {"tenant": pa.int32(), "id": pa.uint64(), "note": pa.string()}, ("tenant", "id"))
    rows: list[Values] = [
        {"tenant": tenant, "id": first + number, "note": "same"}
        for tenant in (1, 2)
        for first in (0, (1 << 63) - 20, (1 << 64) - 40)
        for number in range(40)
    ]
    driver.writer.cut((table, [insert(**values) for values in rows]))
    driver.follow()
    middle = (2, (1 << 64) - 20)

    def verify(name: str, focus: LandedFocus | None = None) -> dict[str, Any]:
        driver.writer.cut(Event(table, "VERIFICATION_STARTED", dump=name))
        gsn = driver.writer.last_gsns["acme", "shop"]
        lower = [each for each in rows if (int(str(each["tenant"])), int(str(each["id"]))) <= middle]
        parts = (
            [(rows, None, None)] if focus is not None else [(lower, None, middle), (rows[len(lower) :], middle, None)]
        )
        for shown, above, up_to in parts:
            driver.writer.cut(Verified(table, shown, gsn, above, up_to, name, LEAF_ROWS, focus=focus))
        driver.writer.cut(Event(table, "VERIFIED", dump=name))
        driver.follow()
        return driver.verdict(name)

    assert verify("first")["verdict"] == "equal"
    where = "tenant = 2 AND id = CAST('18446744073709551600' AS DECIMAL(20, 0))"
    DeltaTable(f"{table_id(table).folder(str(driver.lake))}/current").update({"note": "'other'"}, predicate=where)
    found = verify("second")
    focus = decode_focus(json.loads(found["focus"]))
    (part,) = focus.ranges
    assert part.above < (2, (1 << 64) - 16) <= part.up_to and part.above >= middle and focus.rest_equal_at_us
    found = verify("third", focus)
    assert found["verdict"] == "differs"
    (named,) = json.loads(found["rows"])
    assert (json.loads(named["key"]), named["columns"]) == (["2", "18446744073709551600"], ["note"])


def test_leaves_when_many_differ_then_those_that_touch_are_read_again_as_one_range(driver: Driver) -> None:
    rows = begin(driver.writer, random.Random(1), 400)
    driver.follow()
    DeltaTable(f"{table_id(ORDERS).folder(str(driver.lake))}/current").delete("id >= 100 AND id < 700")
    found = verified(driver, rows=list(rows.values()))
    assert len(json.loads(found["leaves"])) > 16
    focus = decode_focus(json.loads(found["focus"]))
    (part,) = focus.ranges
    assert part.above < (100,) and part.up_to >= (698,) and focus.rest_equal_at_us == found["read_at_us"]
