"""Rows that change without rows in the log: by a foreign key's action on MariaDB, through a MERGE table on both."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from menura.change_batch import ChangeType
from menura.v1 import changes_pb2

from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import running_agent
from tests.agent.test_replication import ORDERS, config, prepare, stops, wait_equal
from tests.servers import Server, server
from tests.stack import wait_for

LINES: Table = ("shop", "lines")
PLAIN: Table = ("shop", "plain")
TREE: Table = ("shop", "tree")
RING: Table = ("shop", "ring")
PARTS: Table = ("shop", "parts")
CHILD = "id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES orders (id)"


def keys_told(gateway: GatewayDouble, table: Table) -> list[list[tuple[str, str]]]:
    """Of each event about the table's keys: the columns and the parent of each."""
    events = [event for event in gateway.events("shop", table) if event.kind == event.FOREIGN_KEYS]
    return [[(" ".join(key.columns), key.parent.table) for key in event.foreign_keys] for event in events]


def unlogged(gateway: GatewayDouble, table: Table) -> list[str]:
    return [event.unlogged_changes for event in gateway.events("shop", table) if event.unlogged_changes]


def test_child_when_its_parent_is_synced_then_its_keys_are_told_before_the_parents_rows(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """A key without an action is none to tell of; a tree, and a key on two columns, are."""
    both = "FOREIGN KEY (a, b) REFERENCES pairs (id, y) ON DELETE CASCADE ON UPDATE CASCADE"
    database.run(
        f"CREATE TABLE `lines` ({CHILD} ON DELETE CASCADE ON UPDATE SET NULL)",
        f"CREATE TABLE plain ({CHILD})",
        "CREATE TABLE tree (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES tree (id) ON DELETE SET NULL)",
        "CREATE TABLE pairs (id INT, y VARCHAR(9), PRIMARY KEY (id, y))",
        f"CREATE TABLE parts (id INT PRIMARY KEY, a INT, b VARCHAR(9), {both})",
        "INSERT INTO orders (id, note) VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "INSERT INTO tree VALUES (1, NULL), (2, NULL)",
        "INSERT INTO pairs VALUES (1, 'x'), (2, 'x')",
        database="shop",
    )
    tables = (ORDERS, PLAIN, LINES, TREE, ("shop", "pairs"), PARTS)
    gateway.sync("shop", *tables, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        wait_equal(gateway, database, *tables)
        database.run("DELETE FROM orders WHERE id = 1", "DELETE FROM tree WHERE id = 1", database="shop")
        database.run("UPDATE pairs SET y = 'y' WHERE id = 1", "DELETE FROM orders WHERE id = 2", database="shop")
        wait_equal(gateway, database, *tables)
        assert not any(stops(gateway, table) for table in tables)
        assert not any(unlogged(gateway, table) for table in tables)
        if database.flavor == "mysql":
            assert not any(keys_told(gateway, table) for table in tables)
            return
        assert keys_told(gateway, LINES) == [[("parent", "orders")]]
        assert keys_told(gateway, TREE) == [[("up", "tree")]]
        assert keys_told(gateway, PARTS) == [[("a b", "pairs")]]
        assert keys_told(gateway, PLAIN) == []
        (event,) = [event for event in gateway.events("shop", LINES) if event.foreign_keys]
        assert (event.reread, event.most_rereads_per_hour > 0) == (True, True)  # where a lake asks for a dump
        (key,) = event.foreign_keys
        assert (key.on_delete, key.on_update) == (key.CASCADE, key.SET_NULL)
        deleted = [row for row in gateway.rows("shop", ORDERS) if row["_change_type"] == ChangeType.delete]
        assert event.gsn < min(row["_gsn"] for row in deleted)


def test_child_when_a_key_can_not_be_followed_then_its_rows_are_told_unlogged_with_the_key(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """A parent that is not synced, a ring of tables, a child without a key, and columns of two types."""
    database.run(
        "CREATE TABLE outside (id INT PRIMARY KEY)",
        f"CREATE TABLE `lines` ({CHILD.replace('orders', 'outside')} ON DELETE CASCADE)",
        "CREATE TABLE ring (id INT PRIMARY KEY, other INT, KEY (other))",
        "CREATE TABLE ring2 (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES ring (id) ON DELETE CASCADE)",
        "ALTER TABLE ring ADD FOREIGN KEY (other) REFERENCES ring2 (id) ON DELETE CASCADE",
        "CREATE TABLE parts (id INT, parent INT, FOREIGN KEY (parent) REFERENCES orders (id) ON DELETE CASCADE)",
        "INSERT INTO outside VALUES (1), (2)",
        "INSERT INTO ring VALUES (1, NULL), (2, NULL)",
        "INSERT INTO orders (id) VALUES (1), (2)",
        database="shop",
    )
    tables = (ORDERS, LINES, RING, ("shop", "ring2"), PARTS)
    gateway.sync("shop", *tables, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        wait_equal(gateway, database, *tables)
        for table in ("outside", "ring", "orders"):
            database.run(f"DELETE FROM {table} WHERE id = 1", database="shop")
        wait_equal(gateway, database, *tables)
        assert not any(stops(gateway, table) for table in tables)
        found = {table[1]: unlogged(gateway, table) for table in tables}
        if database.flavor == "mysql":
            assert not any(found.values())
            return
        gateway.wait(lambda: unlogged(gateway, PARTS))
        found = {table[1]: " ".join(unlogged(gateway, table)) for table in tables}
        assert "lines_ibfk_1 (parent) REFERENCES shop.outside: shop.outside is not synced here" in found["lines"]
        assert "in a ring" in found["ring2"]
        assert "has no primary key" in found["parts"]
        assert all(not any(told) for table in tables for told in keys_told(gateway, table))


#: computed from the key, over two steps
COMPUTED = "label VARCHAR(9) AS (CONCAT('p', parent)) VIRTUAL, shown VARCHAR(9) AS (UPPER(label)) VIRTUAL"


@pytest.mark.parametrize("is_announced", [True, False], ids=["announced", "unannounced"])
def test_child_when_a_column_is_computed_from_its_key_then_it_is_told_unlogged_where_the_key_changes_values(
    gateway: GatewayDouble, tmp_path: Path, *, is_announced: bool
) -> None:
    """What the key takes away is followed. A computed column that does not leave the host is no reason.

    `middle` gets NULL where rows of its parent go, and passes that on to `moved`, which the same rows open.
    """
    settings = {} if is_announced else {"innodb_native_foreign_keys": "ON"}
    with server("mariadb" if is_announced else "mysql", tmp_path / "server", **settings) as origin:
        prepare(origin)
        both, parts = f"{CHILD} ON DELETE CASCADE ON UPDATE CASCADE", f"{CHILD} ON DELETE SET NULL"
        below = CHILD.replace("orders", "`lines`")
        origin.run(
            f"CREATE TABLE `lines` ({both}, {COMPUTED})",
            f"CREATE TABLE below ({below} ON DELETE CASCADE)",
            f"CREATE TABLE parts ({parts}, {COMPUTED})",
            f"CREATE TABLE plain ({parts}, {COMPUTED})",
            f"CREATE TABLE middle ({parts}, UNIQUE (parent))",
            f"CREATE TABLE moved ({CHILD.replace('parent INT', 'parent INT, up INT, twice INT AS (2 * up) VIRTUAL')}"
            " ON DELETE CASCADE, FOREIGN KEY (up) REFERENCES middle (parent) ON UPDATE CASCADE)",
            "INSERT INTO orders (id) VALUES (1), (2), (3)",
            database="shop",
        )
        moved = ("shop", "moved")
        tables = (ORDERS, LINES, ("shop", "below"), PARTS, PLAIN, ("shop", "middle"), moved)
        gateway.sync("shop", *tables, oldest=True)
        path = config(tmp_path, gateway, origin, filter={"plain": {"ignored_columns": ["label", "shown"]}})
        with running_agent(path, tmp_path / "log"):
            wait_equal(gateway, origin, ORDERS, LINES, PARTS)
            origin.run("DELETE FROM orders WHERE id = 1", database="shop")
            gateway.wait(lambda: unlogged(gateway, PARTS) and unlogged(gateway, moved))
            wait_equal(gateway, origin, ORDERS)
            assert [table for table in tables if unlogged(gateway, table)] == [PARTS, moved]
            origin.run("UPDATE orders SET id = 9 WHERE id = 2", database="shop")
            gateway.wait(lambda: unlogged(gateway, LINES))
            assert "a column is computed from it" in unlogged(gateway, LINES)[0]
            assert [table for table in tables if unlogged(gateway, table)] == [LINES, PARTS, moved]
        told = [event.foreign_keys for event in gateway.events("shop", LINES) if event.foreign_keys]
        followed = (changes_pb2.ForeignKey.CASCADE, changes_pb2.ForeignKey.NONE)
        assert [(key.on_delete, key.on_update) for (key,) in told] == [followed]
        assert [keys_told(gateway, table)[-1:] for table in (PARTS, PLAIN)] == [[[]], [[("parent", "orders")]]]


def test_parents_rows_when_foreign_key_checks_are_off_then_the_cut_says_which(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    database.run(
        f"CREATE TABLE `lines` ({CHILD} ON DELETE CASCADE)",
        "INSERT INTO orders (id, note) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e')",
        database="shop",
    )
    gateway.sync("shop", ORDERS, LINES, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        wait_equal(gateway, database, ORDERS, LINES)
        database.run(
            "DELETE FROM orders WHERE id = 1",
            "SET foreign_key_checks = 0",
            "DELETE FROM orders WHERE id = 2",
            "UPDATE orders SET id = 7 WHERE id = 3",
            "SET foreign_key_checks = 1",
            "DELETE FROM orders WHERE id = 4",
            database="shop",
        )
        wait_equal(gateway, database, ORDERS, LINES)
        if database.flavor == "mysql":
            return
        rows = [row for row in gateway.rows("shop", ORDERS) if row["_change_type"] != ChangeType.insert]
        ranges = [
            (event.unchecked_from_gsn, event.gsn)
            for event in gateway.events("shop", ORDERS)
            if event.unchecked_from_gsn
        ]
        free = [row["id"] for row in rows if any(first <= row["_gsn"] <= last for first, last in ranges)]
        assert free == [2, 3, 7]


def test_rows_without_foreign_keys_when_rows_of_other_tables_have_them_then_no_range_goes_over_those(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """What such a row's keys do to the table has its number: keys that refer to the table act on that."""
    database.run(
        "CREATE TABLE notes (id INT PRIMARY KEY)",
        f"CREATE TABLE `lines` ({CHILD} ON DELETE CASCADE)",
        "INSERT INTO orders (id) VALUES (1), (2), (3)",
        "INSERT INTO notes VALUES (11), (12), (13), (14)",
        database="shop",
    )
    notes: Table = ("shop", "notes")
    gateway.sync("shop", ORDERS, LINES, notes, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        wait_equal(gateway, database, ORDERS, LINES, notes)
        with database.connect(database="shop", autocommit=False) as connection, connection.cursor() as cursor:
            for statement in (
                "SET foreign_key_checks = 0",
                "DELETE FROM orders WHERE id = 1",
                "DELETE FROM notes WHERE id = 11",
                "SET foreign_key_checks = 1",
                "UPDATE notes SET id = 22 WHERE id = 12",
                "SET foreign_key_checks = 0",
                "DELETE FROM orders WHERE id = 2",
                "SET foreign_key_checks = 1",
                "INSERT INTO notes VALUES (15)",
                "DELETE FROM notes WHERE id = 13",
            ):
                cursor.execute(statement)
            connection.commit()
        wait_equal(gateway, database, ORDERS, LINES, notes)
        if database.flavor == "mysql":
            return
        ranges = [
            (event.unchecked_from_gsn, event.gsn)
            for event in gateway.events("shop", ORDERS)
            if event.unchecked_from_gsn
        ]
        changes = [
            (row["_gsn"], table[1], row["id"])
            for table in (ORDERS, notes)
            for row in gateway.rows("shop", table)
            if row["_change_type"] != ChangeType.insert
        ]
        covered = [
            [(name, id_) for gsn, name, id_ in sorted(changes) if first <= gsn <= last] for first, last in ranges
        ]
        assert covered == [[("orders", 1), ("notes", 11)], [("orders", 2)]]


def test_child_when_its_table_maps_have_other_flags_for_a_delete_then_its_rows_stay_in_order(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """MySQL flags a table map by what the statement has to check: an INSERT the parent, a DELETE nothing."""
    database.run("INSERT INTO orders (id) VALUES (1)", f"CREATE TABLE plain ({CHILD})", database="shop")
    gateway.sync("shop", PLAIN, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        gateway.wait(lambda: gateway.source("shop").committed)
        with database.connect(database="shop", autocommit=False) as connection, connection.cursor() as cursor:
            for number in range(3):
                cursor.execute("INSERT INTO plain VALUES (%s, 1), (%s, 1)", (number, number + 100))
                cursor.execute("DELETE FROM plain WHERE id = %s", (number,))
            connection.commit()
        wait_equal(gateway, database, PLAIN)
    batches = [batch.rows for batch in gateway.source("shop").batches if batch.table == PLAIN]
    numbers = [number for rows in batches for number in rows["_gsn"].to_pylist()]
    assert len(numbers) == 9
    assert numbers == sorted(numbers)


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
        assert codes == {table: ["TABLE_ROWS_UNCERTAIN"] for table in before} | {emptied: []}
        told = [(event.kind, event.reread) for event in gateway.events("shop", emptied) if event.unlogged_changes]
        assert told == [(changes_pb2.TableEvent.ROWS_UNLOGGED, True)]
        assert {table: gateway.rows("shop", table) for table in before} == before


def test_rows_below_a_table_when_a_dump_is_to_bring_its_rows_then_they_are_told_unlogged(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """Once, until their own dump has begun; and the table itself is followed all the same."""
    middle, below = ("shop", "middle"), ("shop", "below")
    database.run(
        f"CREATE TABLE middle ({CHILD} ON DELETE CASCADE)",
        f"CREATE TABLE below ({CHILD.replace('orders', 'middle')} ON DELETE CASCADE)",
        "INSERT INTO orders (id) VALUES (1), (2), (3), (4)",
        database="shop",
    )
    tables = (ORDERS, middle, below)
    gateway.sync("shop", *tables, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        wait_equal(gateway, database, ORDERS)
        database.run("DELETE FROM orders WHERE id = 1", database="shop")
        wait_equal(gateway, database, ORDERS)
        assert not any(unlogged(gateway, table) for table in tables)
        gateway.sync("shop", middle, unlogged_gsn=1)
        for number in (2, 3, 4):
            database.run(f"DELETE FROM orders WHERE id = {number}", database="shop")
            wait_equal(gateway, database, ORDERS)
        if database.flavor == "mysql":
            assert not any(unlogged(gateway, table) for table in tables)
            return
        gateway.wait(lambda: unlogged(gateway, below))
        (why,) = unlogged(gateway, below)
        assert "shop.middle has rows that a dump is to bring" in why
        assert not unlogged(gateway, middle)
        assert keys_told(gateway, below)[-1] == [("parent", "middle")]


@pytest.mark.parametrize("is_known_to", ["agent", "gateway"])
def test_rows_below_a_table_when_the_lake_lacks_rows_of_it_then_it_and_they_are_told_unlogged(
    database: Server, gateway: GatewayDouble, tmp_path: Path, is_known_to: str
) -> None:
    """The table began without its earlier rows, in this stream or in one before: once, and only where rows may go."""
    middle, below = ("shop", "middle"), ("shop", "below")
    database.run(
        f"CREATE TABLE middle ({CHILD} ON DELETE CASCADE)",
        f"CREATE TABLE below ({CHILD.replace('orders', 'middle')} ON DELETE CASCADE)",
        "INSERT INTO orders (id) VALUES (1), (2), (3)",
        "INSERT INTO middle VALUES (1, 1), (2, 2)",
        "INSERT INTO below VALUES (1, 1), (2, 2)",
        database="shop",
    )
    gateway.sync("shop", ORDERS, below, oldest=True)
    gateway.sync("shop", middle, **({"now": True} if is_known_to == "agent" else {"oldest": True}))
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        wait_equal(gateway, database, ORDERS)
        gateway.wait(lambda: {start.table.table for start in starts(gateway)} >= {"orders", "middle", "below"})
        if is_known_to == "gateway":
            gateway.sync("shop", middle, earlier_rows_missing=True)
        database.run("INSERT INTO middle VALUES (3, 3)", database="shop")
        wait_equal(gateway, database, ORDERS)
        assert not any(unlogged(gateway, table) for table in (ORDERS, middle, below))
        for number in (1, 2):
            database.run(f"DELETE FROM orders WHERE id = {number}", database="shop")
            wait_equal(gateway, database, ORDERS)
        if database.flavor == "mysql":
            assert not any(unlogged(gateway, table) for table in (ORDERS, middle, below))
            return
        gateway.wait(lambda: unlogged(gateway, below))
        (why,), (of_middle,) = unlogged(gateway, below), unlogged(gateway, middle)
        assert "the lake lacks rows that shop.middle had before its sync began" in why
        assert of_middle == "shop.below follows rows of it that the lake lacks"
        assert all(event.reread for event in gateway.events("shop", middle) if event.unlogged_changes)


def starts(gateway: GatewayDouble) -> list[changes_pb2.TableStarted]:
    return [start for cut in gateway.source("shop").committed for start in cut.started]


@pytest.fixture
def unannounced(tmp_path: Path) -> Iterator[Server]:
    """A MySQL that announces a parent alone, as each does up to 9.5."""
    with server("mysql", tmp_path / "server", innodb_native_foreign_keys="ON") as running:
        running.create_replication_user()
        running.run("CREATE DATABASE shop CHARACTER SET utf8mb4")
        running.run(
            "CREATE TABLE orders (id INT PRIMARY KEY)",
            f"CREATE TABLE middle ({CHILD} ON DELETE CASCADE)",
            f"CREATE TABLE below ({CHILD.replace('orders', 'middle')} ON DELETE SET NULL)",
            "INSERT INTO orders VALUES (1), (2), (3), (4), (5), (6)",
            "INSERT INTO middle VALUES (1, 1), (2, 2)",
            "INSERT INTO below VALUES (1, 1), (2, 2)",
            database="shop",
        )
        yield running


def test_children_when_the_log_announces_their_parents_alone_then_their_keys_are_told_before_the_parents_rows(
    unannounced: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """No statement writes to the children since their stream began; one gets its key from an ALTER meanwhile."""
    middle, below, later = ("shop", "middle"), ("shop", "below"), ("shop", "later")
    unannounced.run("CREATE TABLE later (id INT PRIMARY KEY, parent INT)", database="shop")
    tables = (ORDERS, middle, below, later)
    gateway.sync("shop", *tables, oldest=True)
    with running_agent(config(tmp_path, gateway, unannounced), tmp_path / "log"):
        wait_equal(gateway, unannounced, *tables)
        told_before = len(gateway.events("shop", middle))
    with running_agent(config(tmp_path, gateway, unannounced), tmp_path / "log"):
        unannounced.run("DELETE FROM orders WHERE id = 1", database="shop")
        wait_equal(gateway, unannounced, ORDERS)
        unannounced.run(
            "ALTER TABLE later ADD FOREIGN KEY (parent) REFERENCES orders (id) ON DELETE CASCADE",
            "DELETE FROM orders WHERE id = 2",
            database="shop",
        )
        wait_equal(gateway, unannounced, ORDERS)
        assert not any(unlogged(gateway, table) for table in tables)
        deleted = [row for row in gateway.rows("shop", ORDERS) if row["_change_type"] == ChangeType.delete]
        numbers = {row["id"]: row["_gsn"] for row in deleted}
        assert len(gateway.events("shop", middle)) == told_before + 1
        for table, parent, gone in ((middle, "orders", 1), (below, "middle", 1), (later, "orders", 2)):
            assert keys_told(gateway, table)[-1] == [("parent", parent)]
            assert [event for event in gateway.events("shop", table) if event.foreign_keys][-1].gsn < numbers[gone]


def test_children_when_the_log_announces_a_parent_that_is_not_synced_then_they_are_told_unlogged_where_it_may_act(
    unannounced: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """Not where rows come to the parent, or change in a way without an action, or with foreign_key_checks=0."""
    middle, below, plain = ("shop", "middle"), ("shop", "below"), ("shop", "plain")
    unannounced.run("CREATE TABLE plain (id INT PRIMARY KEY)", database="shop")
    gateway.sync("shop", middle, below, plain, oldest=True)
    with running_agent(config(tmp_path, gateway, unannounced), tmp_path / "log"):
        wait_equal(gateway, unannounced, middle, below)
        unannounced.run(
            "INSERT INTO orders VALUES (9)",
            "UPDATE orders SET id = 10 WHERE id = 9",
            "SET foreign_key_checks = 0",
            "DELETE FROM orders WHERE id = 10",
            "SET foreign_key_checks = 1",
            "INSERT INTO plain VALUES (1)",
            database="shop",
        )
        wait_equal(gateway, unannounced, plain)
        assert not any(unlogged(gateway, table) for table in (middle, below))
        unannounced.run("DELETE FROM orders WHERE id = 1", "INSERT INTO plain VALUES (2)", database="shop")
        wait_equal(gateway, unannounced, plain)
        gateway.wait(lambda: unlogged(gateway, middle) and unlogged(gateway, below))
        assert "(parent) REFERENCES shop.orders: shop.orders is not synced here" in unlogged(gateway, middle)[0]
        assert "shop.orders is not synced here" in unlogged(gateway, below)[0]


def test_child_when_the_log_announces_its_parent_alone_and_its_policy_is_to_stop_then_it_stops(
    unannounced: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    middle = ("shop", "middle")
    gateway.sync("shop", middle, oldest=True)
    path = config(tmp_path, gateway, unannounced, unlogged_changes="stop")
    with running_agent(path, tmp_path / "log"):
        wait_equal(gateway, unannounced, middle)
        unannounced.run("DELETE FROM orders WHERE id = 1", database="shop")
        gateway.wait(lambda: stops(gateway, middle))
        assert [stop.error.code for stop in stops(gateway, middle)] == ["TABLE_ROWS_UNLOGGED"]


@pytest.mark.parametrize(
    ("cause", "image", "is_killed"),
    [
        ("DELETE FROM orders WHERE id = 1", "", False),
        ("UPDATE orders SET id = 20 WHERE id = 1", "", True),
        ("UPDATE orders SET id = 20 WHERE id = 1", "MINIMAL", False),
        ("DELETE FROM orders WHERE id = 1", "NOBLOB", True),
    ],
    ids=["delete", "update, killed", "update, MINIMAL", "delete, NOBLOB, killed"],
)
def test_child_when_a_key_acts_in_the_middle_of_a_cut_and_its_policy_is_to_stop_then_nothing_from_there_on_comes(
    unannounced: Server, gateway: GatewayDouble, tmp_path: Path, cause: str, image: str, *, is_killed: bool
) -> None:
    """Transactions before and behind the cause are of its cut. With an image that is not whole they are compressed."""
    middle, plain = ("shop", "middle"), ("shop", "plain")
    unannounced.run(
        "CREATE TABLE plain (id INT PRIMARY KEY)",
        "ALTER TABLE middle DROP FOREIGN KEY middle_ibfk_1",
        "ALTER TABLE middle ADD FOREIGN KEY (parent) REFERENCES orders (id) ON DELETE CASCADE ON UPDATE CASCADE",
        database="shop",
    )
    gateway.sync("shop", middle, plain, now=True)
    path = config(tmp_path, gateway, unannounced, unlogged_changes="stop")
    with running_agent(path, tmp_path / "log"):
        gateway.wait(lambda: len(starts(gateway)) == 2)
    gateway.wait_gone("shop")
    if image:
        unannounced.run(f"SET GLOBAL binlog_transaction_compression = ON, GLOBAL binlog_row_image = '{image}'")
    unannounced.run(
        "INSERT INTO middle VALUES (3, 3)",
        "BEGIN",
        "INSERT INTO middle VALUES (4, 4)",
        "INSERT INTO plain VALUES (1)",
        cause,
        "INSERT INTO middle VALUES (5, 5)",
        "COMMIT",
        "INSERT INTO middle VALUES (6, 6)",
        "INSERT INTO plain VALUES (2)",
        database="shop",
    )
    if is_killed:  # before the cut of the stop is committed
        gateway.lose_cuts("shop", last_kept_cut=len(gateway.source("shop").committed))
        with running_agent(path, tmp_path / "killed") as process:
            wait_for("the stop", lambda: "table stopped" in (tmp_path / "killed").read_text())
            process.kill()
        gateway.wait_gone("shop")
        gateway.lose_cuts("shop", loses=False)
    with running_agent(path, tmp_path / "log"):
        wait_equal(gateway, unannounced, plain)
        gateway.wait(lambda: stops(gateway, middle))
        (stop,) = stops(gateway, middle)
        assert stop.error.code == "TABLE_ROWS_UNLOGGED"
        assert "shop.orders is not synced here" in stop.error.found
        assert sorted(row["id"] for row in gateway.rows("shop", middle)) == [3]
        told = [state for one in gateway.source("shop").effective for state in one.tables if state.error.code]
        # that it has stopped may be told too late: nobody wants it then
        assert {(state.table.table, state.error.code) for state in told} <= {("middle", "TABLE_ROWS_UNLOGGED")}
    with running_agent(path, tmp_path / "log"):  # who goes on there without a dump stops there again
        gateway.sync("shop", middle, position=stop.position)
        gateway.wait(lambda: len(stops(gateway, middle)) == 2)
        assert stops(gateway, middle)[1].position == stop.position
        assert sorted(row["id"] for row in gateway.rows("shop", middle)) == [3]
