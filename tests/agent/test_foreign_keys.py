"""Rows that change without rows in the log: by a foreign key's action on MariaDB, through a MERGE table on both."""

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
PARTS: Table = ("shop", "parts")
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
    """A tree, two tables that delete from each other, and a trigger that writes the child of its own table.

    Tables beside them have such keys too, which can't have acted: they go on.
    """
    database.run(
        "CREATE TABLE tree (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES tree (id) ON DELETE SET NULL)",
        "CREATE TABLE ring (id INT PRIMARY KEY, other INT, KEY (other))",
        "CREATE TABLE ring2 (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES ring (id) ON DELETE CASCADE)",
        "ALTER TABLE ring ADD FOREIGN KEY (other) REFERENCES ring2 (id) ON DELETE CASCADE",
        f"CREATE TABLE `lines` ({CHILD} ON DELETE CASCADE)",
        "CREATE TRIGGER noted AFTER DELETE ON orders FOR EACH ROW INSERT INTO `lines` VALUES (OLD.id + 100, NULL)",
        "CREATE TABLE plain (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES plain (id))",
        f"CREATE TABLE parts ({CHILD.replace('orders', 'items')} ON DELETE CASCADE)",
        "CREATE TRIGGER counted AFTER DELETE ON parts FOR EACH ROW UPDATE items SET note = 'x' WHERE id = 1",
        "INSERT INTO tree VALUES (1, NULL), (2, 1), (3, NULL)",
        "INSERT INTO ring VALUES (1, NULL), (2, NULL)",
        "INSERT INTO ring2 VALUES (1)",
        "UPDATE ring SET other = 1 WHERE id = 2",
        "INSERT INTO orders (id) VALUES (1), (2)",
        "INSERT INTO `lines` VALUES (10, 1), (11, 2)",
        "INSERT INTO plain VALUES (1, NULL), (2, 1), (3, NULL)",
        "INSERT INTO items (id) VALUES (1), (2)",
        "INSERT INTO parts VALUES (10, 1), (11, 2)",
        database="shop",
    )
    kept = (ORDERS, ITEMS, PLAIN, PARTS)
    tables = (*kept, TREE, RING, LINES)
    gateway.sync("shop", *tables, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        wait_equal(gateway, database, *tables)
        counts = {table: len(gateway.rows("shop", table)) for table in (TREE, RING, LINES)}
        for table in ("tree", "ring", "orders"):
            database.run(
                f"UPDATE {table} SET id = 50 WHERE id = 99", f"DELETE FROM {table} WHERE id = 1", database="shop"
            )
        database.run(
            "DELETE FROM plain WHERE id = 3",
            "DELETE FROM parts WHERE id = 10",
            "DELETE FROM items WHERE id = 50",
            "UPDATE parts SET parent = NULL WHERE id = 11",
            database="shop",
        )
        if database.flavor == "mysql":
            wait_equal(gateway, database, *tables)
            return
        wait_equal(gateway, database, *kept)
        for table, count in counts.items():
            (stopped,) = stops(gateway, table)
            assert stopped.error.code == "TABLE_ROWS_UNCERTAIN"
            assert "CASCADE" in stopped.error.found
            assert len(gateway.rows("shop", table)) == count


def test_table_when_it_is_written_through_a_merge_table_then_stops_before_it(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """The log has such rows under the name of the MERGE table, which may be made later, or in another database."""
    shard = "(id INT PRIMARY KEY, note VARCHAR(20)) ENGINE="
    names = [f"shard{number}" for number in range(6)]
    tables: list[Table] = [("shop", name) for name in names]
    united, later, emptied, beside, *alone = tables
    database.run(
        "CREATE DATABASE other CHARACTER SET utf8mb4",
        *(f"CREATE TABLE {name} {shard}MyISAM" for name in names),
        f"CREATE TABLE other.united {shard}MERGE UNION=(shop.shard0) INSERT_METHOD=LAST",
        f"CREATE TABLE other.emptied {shard}MRG_MyISAM UNION=(shop.shard2)",
        f"CREATE TABLE other.beside {shard}MRG_MyISAM UNION=(shop.shard3) INSERT_METHOD=FIRST",
        *(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')" for name in names),
        database="shop",
    )
    gateway.sync("shop", *tables, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        wait_equal(gateway, database, *tables)
        before = {table: gateway.rows("shop", table) for table in (united, later, emptied, beside)}
        database.run(
            f"CREATE TABLE later {shard}MRG_MyISAM UNION=(shard1) INSERT_METHOD=LAST",
            "INSERT INTO other.united VALUES (3, 'c')",
            "UPDATE later SET note = 'x' WHERE id = 1",
            "UPDATE other.beside m, shard3 t SET m.note = 'x', t.note = 'y' WHERE m.id = 1 AND t.id = 2",
            "TRUNCATE TABLE other.emptied",
            "UPDATE shard4 LEFT JOIN shard5 ON shard5.id = 99 SET shard4.note = 'x', shard5.note = 'y'",
            "DELETE FROM shard5 WHERE id = 1",
            database="shop",
        )
        wait_equal(gateway, database, *alone)
        codes = {table: [stop.error.code for stop in stops(gateway, table)] for table in before}
        assert codes == {table: ["TABLE_ROWS_UNCERTAIN"] for table in before} | {emptied: ["TABLE_ROWS_REMOVED"]}
        assert {table: gateway.rows("shop", table) for table in before} == before
