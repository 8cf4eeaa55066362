"""Rows that a foreign key's action changes: in the log of MySQL, not in MariaDB's."""

from pathlib import Path

from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import running_agent
from tests.agent.test_replication import ITEMS, ORDERS, config, database, gateway, stops, wait_equal
from tests.servers import Server

__all__ = ["database", "gateway"]

LINES: Table = ("shop", "lines")
PLAIN: Table = ("shop", "plain")


def test_child_when_a_parent_is_deleted_then_equals_its_table_or_stops_before(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    child = "id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES orders (id)"
    database.run(
        "INSERT INTO orders (id, note) VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        f"CREATE TABLE `lines` ({child} ON DELETE CASCADE)",
        f"CREATE TABLE plain ({child})",
        "INSERT INTO `lines` VALUES (10, 1), (11, 2)",
        "INSERT INTO plain VALUES (20, 3)",
        database="shop",
    )
    gateway.sync("shop", ORDERS, ITEMS, PLAIN, LINES, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        wait_equal(gateway, database, ORDERS, PLAIN, LINES)
        database.run("UPDATE orders SET note = 'x' WHERE id = 1", "DELETE FROM orders WHERE id = 1", database="shop")
        if database.flavor == "mysql":
            wait_equal(gateway, database, ORDERS, PLAIN, LINES)
            return
        gateway.wait(lambda: stops(gateway, LINES))
        (stopped,) = stops(gateway, LINES)
        assert stopped.error.code == "TABLE_ROWS_UNCERTAIN"
        assert "CASCADE" in stopped.error.found
        assert "foreign keys" in stopped.error.remedy
        assert {row["id"] for row in gateway.rows("shop", LINES)} == {10, 11}
        database.run("INSERT INTO orders (id, note) VALUES (4, 'd')", database="shop")
        wait_equal(gateway, database, ORDERS, PLAIN)
