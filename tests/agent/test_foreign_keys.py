"""Rows that a foreign key's action changes: in the log of MySQL, not in MariaDB's."""

from pathlib import Path

from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import running_agent
from tests.agent.test_replication import ITEMS, ORDERS, config, database, gateway, stops, wait_equal
from tests.servers import Server

__all__ = ["database", "gateway"]

LINES: Table = ("shop", "lines")
PLAIN: Table = ("shop", "plain")
TREE: Table = ("shop", "tree")
RING: Table = ("shop", "ring")
CHILD = "id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES orders (id)"


def test_child_when_a_parent_is_deleted_then_equals_its_table_or_stops_before(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    database.run(
        "INSERT INTO orders (id, note) VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        f"CREATE TABLE `lines` ({CHILD} ON DELETE CASCADE)",
        f"CREATE TABLE plain ({CHILD})",
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


def test_table_when_its_own_rows_and_those_of_keys_change_in_one_statement_then_stops_before_it(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """A tree, two tables that delete from each other, and a trigger that writes the child of its own table."""
    database.run(
        "CREATE TABLE tree (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES tree (id) ON DELETE SET NULL)",
        "CREATE TABLE ring (id INT PRIMARY KEY, other INT, KEY (other))",
        "CREATE TABLE ring2 (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES ring (id) ON DELETE CASCADE)",
        "ALTER TABLE ring ADD FOREIGN KEY (other) REFERENCES ring2 (id) ON DELETE CASCADE",
        f"CREATE TABLE `lines` ({CHILD} ON DELETE CASCADE)",
        "CREATE TRIGGER noted AFTER DELETE ON orders FOR EACH ROW INSERT INTO `lines` VALUES (OLD.id + 100, NULL)",
        "INSERT INTO tree VALUES (1, NULL), (2, 1), (3, NULL)",
        "INSERT INTO ring VALUES (1, NULL), (2, NULL)",
        "INSERT INTO ring2 VALUES (1)",
        "UPDATE ring SET other = 1 WHERE id = 2",
        "INSERT INTO orders (id) VALUES (1), (2)",
        "INSERT INTO `lines` VALUES (10, 1), (11, 2)",
        database="shop",
    )
    tables = (ORDERS, ITEMS, TREE, RING, LINES)
    gateway.sync("shop", *tables, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        wait_equal(gateway, database, *tables)
        kept = {table: len(gateway.rows("shop", table)) for table in (TREE, RING, LINES)}
        for table in ("tree", "ring", "orders"):
            database.run(
                f"UPDATE {table} SET id = 50 WHERE id = 99", f"DELETE FROM {table} WHERE id = 1", database="shop"
            )
        database.run("INSERT INTO items (id) VALUES (1)", database="shop")
        if database.flavor == "mysql":
            wait_equal(gateway, database, *tables)
            return
        wait_equal(gateway, database, ORDERS, ITEMS)
        for table, rows in kept.items():
            (stopped,) = stops(gateway, table)
            assert stopped.error.code == "TABLE_ROWS_UNCERTAIN"
            assert "CASCADE" in stopped.error.found
            assert len(gateway.rows("shop", table)) == rows


def test_table_when_a_key_of_it_can_not_have_acted_then_goes_on(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    database.run(
        "CREATE TABLE tree (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES tree (id))",
        f"CREATE TABLE `lines` ({CHILD} ON DELETE CASCADE)",
        "CREATE TRIGGER counted AFTER DELETE ON `lines` FOR EACH ROW UPDATE orders SET note = 'x' WHERE id = 1",
        "INSERT INTO tree VALUES (1, NULL), (2, 1), (3, NULL)",
        "INSERT INTO orders (id) VALUES (1), (2)",
        "INSERT INTO `lines` VALUES (10, 1), (11, 2)",
        database="shop",
    )
    gateway.sync("shop", ORDERS, TREE, LINES, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        database.run(
            "DELETE FROM tree WHERE id = 3",
            "DELETE FROM `lines` WHERE id = 10",
            "DELETE FROM orders WHERE id = 50",
            "UPDATE `lines` SET parent = NULL WHERE id = 11",
            database="shop",
        )
        wait_equal(gateway, database, ORDERS, TREE, LINES)
