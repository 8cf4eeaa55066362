"""What changes of definitions may not do: fill a cut beyond what a gateway takes, or bring it a name it refuses."""

from pathlib import Path

import pytest

from agent.mysql.stream import cuts
from tests.agent.dumping import agent_inside
from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import running_agent
from tests.agent.test_replication import ORDERS, config, database, gateway, stops, wait_equal
from tests.servers import Server

__all__ = ["database", "gateway"]

COLUMNS = 100
CHANGES = 60
MOST_BYTES = 200_000


def test_events_when_they_do_not_fit_one_cut_then_several_carry_them(
    database: Server, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cuts.MAX_EVENTS_BYTES > MOST_BYTES
    monkeypatch.setattr(cuts, "MAX_EVENTS_BYTES", MOST_BYTES)
    columns = ", ".join(f"`a column with a name of some length, number {number}` TINYINT" for number in range(COLUMNS))
    database.run(f"CREATE TABLE shop.wide ({columns})")
    database.run(*[f"ALTER TABLE shop.wide COMMENT '{number}'" for number in range(CHANGES)])
    gateway.sync("shop", ("shop", "wide"), oldest=True)
    with agent_inside(config(tmp_path, gateway, database)):
        committed = gateway.source("shop").committed
        gateway.wait(lambda: sum(len(cut.events) for cut in committed) == CHANGES + 1)
    sizes = [sum(event.ByteSize() for event in cut.events) for cut in committed]
    assert sum(sizes) > MOST_BYTES
    assert max(sizes) <= MOST_BYTES


def test_column_when_an_alter_gives_it_a_reserved_name_then_its_table_alone_stops(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    database.run("CREATE TABLE shop.reserved (id INT PRIMARY KEY)", "INSERT INTO shop.reserved VALUES (1)")
    gateway.sync("shop", ORDERS, ("shop", "reserved"), oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        wait_equal(gateway, database, ORDERS, ("shop", "reserved"))
        database.run(
            "ALTER TABLE shop.reserved ADD COLUMN _menura_x INT", "INSERT INTO shop.orders (note) VALUES ('a')"
        )
        gateway.wait(lambda: stops(gateway, ("shop", "reserved")))
        (stopped,) = stops(gateway, ("shop", "reserved"))
        assert stopped.error.code == "TABLE_COLUMN_RESERVED"
        wait_equal(gateway, database, ORDERS)
