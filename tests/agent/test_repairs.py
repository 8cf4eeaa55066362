"""Ranges of a table that are read again: they alone are, beside the stream. The source is one in memory."""

from dataclasses import replace
from pathlib import Path

from menura.v1 import changes_pb2, snapshot_pb2

from tests.agent.dump_ledger import merged
from tests.agent.dumping import agent_inside, wait_dumped
from tests.agent.gateway_double import GatewayDouble
from tests.agent.memory import COLUMNS, ORDERS, Writers, config, create, database, gateway, selected
from tests.agent.test_verifications import create_named
from tests.memory_source.database import MemoryDatabase

__all__ = ["database", "gateway"]

REPAIR = "0f8e0000-0000-4000-8000-000000000001"
#: keys above 100 up to and with 150, and above 4900
FOCUS = snapshot_pb2.Focus(
    ranges=[snapshot_pb2.FocusRange(above=["100"], up_to=["150"]), snapshot_pb2.FocusRange(above=["4900"])],
    kinds=["integer"],
)
GONE = [changes_pb2.KeyRange(above=["100"], up_to=["150"]), changes_pb2.KeyRange(above=["4900"])]


def is_inside(key: int) -> bool:
    return 100 < key <= 150 or key > 4900


def test_ranges_when_they_are_read_again_then_no_other_row_is_sent_and_the_end_says_which_are_gone(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create_named(database, 5000, COLUMNS)
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)):
        repair = gateway.dump("shop", REPAIR, ORDERS, focus=FOCUS)
        wait_dumped(gateway, repair)
    ledger = gateway.source("shop").ledger
    assert ledger.received_rows == 150
    sent = sorted(int(str(row["id"])) for chunk in ledger.chunks for row in chunk.rows)
    assert sent == [key for key in range(1, 5001) if is_inside(key)]
    assert repair.dumped is not None
    assert list(repair.dumped.repaired.ranges) == GONE and list(repair.dumped.repaired.key) == ["id"]
    assert repair.dumped.position and not repair.dumped.removes_rows and not repair.dumped.removes_rows_before_gsn


def test_ranges_when_others_write_to_them_then_chunks_and_changes_give_the_sources_rows(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(database, ORDERS, rows=1000)
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)):
        with Writers(database, ORDERS, 1, 3000):
            wide = snapshot_pb2.Focus(
                ranges=[snapshot_pb2.FocusRange(above=["1000"], up_to=["2000"])], kinds=["integer"]
            )
            repair = gateway.dump("shop", REPAIR, ORDERS, focus=wide)
            wait_dumped(gateway, repair)
        chunks = gateway.source("shop").ledger.chunks
        expected = in_the_range(selected(database, ORDERS))

        def found() -> dict[tuple[object, ...], dict[str, object]]:
            return in_the_range(merged(gateway.rows("shop", ORDERS), chunks, ("id",), repair.started_gsn))

        gateway.wait(lambda: found() == expected)
        assert expected


def in_the_range(rows: dict[tuple[object, ...], dict[str, object]]) -> dict[tuple[object, ...], dict[str, object]]:
    return {key: row for key, row in rows.items() if 1000 < int(str(key[0])) <= 2000}


def test_a_repair_when_the_agent_is_gone_in_its_middle_then_another_one_reads_the_rest(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create_named(database, 5000, COLUMNS)
    gateway.sync("shop", ORDERS, now=True)
    ledger = gateway.source("shop").ledger
    wide = snapshot_pb2.Focus(ranges=[snapshot_pb2.FocusRange(above=["1000"], up_to=["3000"])], kinds=["integer"])
    with agent_inside(config(tmp_path, gateway.address)):
        slow = snapshot_pb2.DumpLimits(rows_per_second=300)
        repair = gateway.dump("shop", REPAIR, ORDERS, focus=wide, limits=slow)
        gateway.wait(lambda: len(ledger.chunks) > 2)
    gateway.order("shop", repair, limits=snapshot_pb2.DumpLimits())
    with agent_inside(config(tmp_path, gateway.address)):
        wait_dumped(gateway, repair)
    sent = sorted(int(str(row["id"])) for chunk in ledger.chunks for row in chunk.rows)
    assert sent == list(range(1001, 3001))
    assert ledger.received_rows < 2000 + 3 * 100


def test_a_repair_when_the_table_has_no_key_of_integers_then_it_fails_and_nothing_is_read(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create_named(database, 50, tuple(replace(column, key=int(column.name == "name")) for column in COLUMNS))
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway.address)):
        repair = gateway.dump("shop", REPAIR, ORDERS, focus=FOCUS)
        gateway.wait(lambda: repair.failed is not None)
    assert repair.failed is not None
    assert repair.failed.code == "REPAIR_IMPOSSIBLE" and "menura sync resync shop shop.orders" in repair.failed.remedy
    assert gateway.source("shop").ledger.received_rows == 0
