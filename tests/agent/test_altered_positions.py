"""A table whose position somebody has altered while it was stopped: rows come again, or a gap is told, or it stops."""

from pathlib import Path

import pytest
from menura.v1 import changes_pb2

from tests.agent.dumping import agent_inside
from tests.agent.gateway_double import GatewayDouble
from tests.agent.memory import ORDERS, config, create, database, gateway, order
from tests.agent.test_memory_source import rows_of
from tests.memory_source.database import Change, MemoryDatabase
from tests.memory_source.positions import MemoryPosition

__all__ = ["database", "gateway"]

ITEMS = ("shop", "items")
GAP = changes_pb2.TableEvent.LOG_GAP


@pytest.fixture
def log(database: MemoryDatabase) -> str:
    """Its name; five transactions, four of them with a row of orders."""
    create(database)
    for number in range(1, 5):
        database.commit(Change(ORDERS, None, order(number, "row")))
    create(database, ITEMS, rows=1)
    return database.end()[0]


def alter(gateway: GatewayDouble, log: str, before: int, to: str, why: str = "ticket 7") -> None:
    gateway.sync("shop", ORDERS, position_text=to, altered_from=MemoryPosition(log, before).to_proto(), altered_why=why)


@pytest.mark.parametrize(("before", "to", "ids"), [(4, 2, [2, 3, 4]), (2, 4, [4]), (3, 3, [3, 4])])
def test_position_when_altered_then_rows_come_again_and_only_what_is_skipped_is_a_gap(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path, log: str, before: int, to: int, ids: list[int]
) -> None:
    alter(gateway, log, before, f"{log}:{to}", "ticket 7\x1b[2J")
    with agent_inside(config(tmp_path, gateway.address)):
        gateway.wait(lambda: len(gateway.rows("shop", ORDERS)) == len(ids))
    assert [id_ for _, id_ in rows_of(gateway)] == ids
    gaps = [event for event in gateway.events("shop", ORDERS) if event.kind == GAP]
    (start,) = [start for cut in gateway.source("shop").committed for start in cut.started]
    assert (start.position.text, start.earlier_rows_missing) == (f"{log}:{to}", "")
    if to <= before:
        assert gaps == []
    else:
        (gap,) = gaps
        assert (gap.gap_from, gap.gap_to, gap.reread) == (f"{log}:{before}", f"{log}:{to}", True)
        assert "was altered: ticket 7 [2J" in gap.unlogged_changes
        assert gap.gsn < min(int(str(row["_gsn"])) for row in gateway.rows("shop", ORDERS))


@pytest.mark.parametrize(("policy", "rereads"), [("note", False), ("stop", True)])
def test_position_when_altered_to_a_later_one_then_no_policy_stops_the_table(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path, log: str, policy: str, rereads: bool
) -> None:
    alter(gateway, log, 2, f"{log}:4")
    with agent_inside(config(tmp_path, gateway.address, unlogged_changes=policy)):
        gateway.wait(lambda: gateway.rows("shop", ORDERS))
    (gap,) = [event for event in gateway.events("shop", ORDERS) if event.kind == GAP]
    assert gap.reread is rereads
    assert not [stop for cut in gateway.source("shop").committed for stop in cut.stopped]


def test_position_when_the_log_does_not_have_it_then_the_table_stops_where_it_was_and_others_go_on(
    database: MemoryDatabase, gateway: GatewayDouble, tmp_path: Path, log: str
) -> None:
    database.purge()
    database.commit(Change(ORDERS, None, order(9, "row")), Change(ITEMS, None, order(9, "row")))
    gateway.sync("shop", ITEMS, oldest=True)
    codes = []
    for to in (f"{log}:2", f"{log}:99", "somewhere", "other:3"):
        known = len([stop for cut in gateway.source("shop").committed for stop in cut.stopped])
        alter(gateway, log, 4, to)
        with agent_inside(config(tmp_path, gateway.address)):
            gateway.wait(
                lambda least=known: (
                    len([stop for cut in gateway.source("shop").committed for stop in cut.stopped]) > least
                    and gateway.rows("shop", ITEMS)
                )
            )
        stop = [stop for cut in gateway.source("shop").committed for stop in cut.stopped][-1]
        assert (stop.table.table, stop.position.text) == ("orders", f"{log}:4")
        codes.append(stop.error.code)
    assert codes == ["POSITION_PURGED", "POSITION_INVALID", "POSITION_INVALID", "SOURCE_REBUILT"]
    assert not gateway.rows("shop", ORDERS)
