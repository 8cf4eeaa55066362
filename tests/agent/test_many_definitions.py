"""What changes of definitions may not do: fill a cut beyond what a gateway takes, or bring it a name it refuses."""

from pathlib import Path

from menura.change_batch import MAX_EVENTS_BYTES

from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import running_agent
from tests.agent.test_replication import ORDERS, config, database, gateway, stops, wait_equal
from tests.servers import Server

__all__ = ["database", "gateway"]

COLUMNS = 800
CHANGES = 180


def test_events_when_they_do_not_fit_one_cut_then_several_carry_them(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    columns = ", ".join(f"`a column with a name of some length, number {number}` TINYINT" for number in range(COLUMNS))
    database.run(f"CREATE TABLE shop.wide ({columns})")
    database.run(*[f"ALTER TABLE shop.wide COMMENT '{number}'" for number in range(CHANGES)])
    gateway.sync("shop", ("shop", "wide"), oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        cuts = gateway.source("shop").committed
        gateway.wait(lambda: sum(len(cut.events) for cut in cuts) == CHANGES + 1, 60)
        sizes = [sum(event.ByteSize() for event in cut.events) for cut in cuts]
        assert sum(sizes) > MAX_EVENTS_BYTES
        assert max(sizes) <= MAX_EVENTS_BYTES


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
