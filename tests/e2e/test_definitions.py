"""What changes beside rows: definitions, truncates, partial images, prepared transactions; the lake stays equal."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.e2e import load
from tests.e2e.lake import recorded_events, wait_until_equal
from tests.servers import Flavor, Server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

FLAVORS = ("mysql", "mariadb")


@contextmanager
def settings(server: Server, values: Mapping[str, str]) -> Iterator[None]:
    """Global settings, taken back at the end; sessions that are open keep theirs."""
    before = {name: server.run(f"SELECT @@GLOBAL.{name}")[0][0] for name in values}
    for name, value in values.items():
        server.run(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        for name, value in before.items():
            server.run(f"SET GLOBAL {name} = {value if isinstance(value, int) else repr(value)}")


def events_of(lake: Path, source: str, table: str) -> list[str]:
    """Kinds of a table's events in the lake, in their order."""
    mine = [row for row in recorded_events(lake) if row["source"] == source and row["table"] == table]
    return [str(row["kind"]) for row in sorted(mine, key=lambda row: row["_gsn"])]


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
@pytest.mark.parametrize("flavor", FLAVORS)
def test_table_when_its_definition_changes_under_load_then_the_lake_follows(
    flavor: Flavor, metadata: str, servers: dict[Flavor, Server], running: Stack
) -> None:
    server, source = servers[flavor], f"ddl-{flavor}-{metadata.lower()}"
    database = source.replace("-", "_")
    with settings(server, {"binlog_row_metadata": f"'{metadata}'"}):
        load.create_tables(server, database, "orders", "calm")
        with running.agent(source, {source: server}):
            for table in ("orders", "calm"):
                running.start_sync(source, database, table, "oldest")
            with load.writing(server, database, "orders"):
                for change in (
                    "ALTER TABLE orders ADD COLUMN stock INT NOT NULL DEFAULT 5 AFTER id",
                    "ALTER TABLE orders ADD COLUMN (place VARCHAR(20) DEFAULT 'shelf', weight DECIMAL(8,3) NULL)",
                    "ALTER TABLE orders RENAME COLUMN place TO shelf",
                    "ALTER TABLE orders MODIFY COLUMN amount DECIMAL(14,2) NOT NULL FIRST",
                    "ALTER TABLE orders DROP COLUMN weight",
                    "TRUNCATE TABLE orders",
                    "ALTER TABLE orders ADD COLUMN late BIGINT UNSIGNED DEFAULT 18446744073709551615, COMMENT 'x'",
                ):
                    with closing(server.connect(database=database)) as connection, connection.cursor() as cursor:
                        cursor.execute(change)
            server.run(
                "ALTER TABLE calm ADD COLUMN kept CHAR(3) NOT NULL DEFAULT 'abc'",
                "DROP TABLE IF EXISTS missing",
                database=database,
            )
            wait_until_equal(running.lake, running.tenant, source, server, database, ["orders", "calm"])
            server.run(
                "DROP TABLE orders",
                "CREATE TABLE orders (id BIGINT PRIMARY KEY, name VARCHAR(10) CHARACTER SET latin1)",
                "INSERT INTO orders VALUES (1, 'grün')",
                database=database,
            )
            wait_until_equal(running.lake, running.tenant, source, server, database, ["orders", "calm"])
            expected = ["ALTERED"] * 5 + ["TRUNCATED", "ALTERED", "DROPPED", "CREATED"]

            def has_all() -> bool:
                kinds = events_of(running.lake, source, "orders")
                return [kind for kind in kinds if kind != "CREATED" or kind is kinds[-1]][-len(expected) :] == expected

            wait_for(f"the events {expected}", has_all)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_rows_when_images_are_partial_and_compressed_then_the_lake_equals_the_source(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    server, source = servers[flavor], f"partial-{flavor}"
    database = source.replace("-", "_")
    server.run(
        f"CREATE DATABASE {database} CHARACTER SET utf8mb4",
        f"CREATE TABLE {database}.documents (id INT PRIMARY KEY, title VARCHAR(50), body LONGTEXT, facts JSON,"
        " seen INT NOT NULL DEFAULT 3)",
        f"INSERT INTO {database}.documents (id, title, body, facts) VALUES"
        """ (1, 'one', REPEAT('a', 3000), '{"a": 1, "b": [1, 2]}'), (2, 'two', REPEAT('b', 9), '{"a": 2}'),"""
        """ (3, 'three', NULL, NULL)""",
    )
    compression = {"mysql": "binlog_transaction_compression = ON", "mariadb": "log_bin_compress = ON"}[flavor]
    compressed = settings(server, {"log_bin_compress": "ON"}) if flavor == "mariadb" else settings(server, {})
    with running.agent(source, {source: server}), compressed:
        running.start_sync(source, database, "documents", "oldest")
        for image in ("MINIMAL", "NOBLOB", "FULL"):
            with closing(server.connect(database=database)) as connection, connection.cursor() as cursor:
                cursor.execute(f"SET binlog_row_image = {image}")
                if flavor == "mysql":
                    cursor.execute(f"SET {compression}")
                    if image != "MINIMAL":  # a difference can't be applied to a document that the log leaves out
                        cursor.execute("SET binlog_row_value_options = 'PARTIAL_JSON'")
                cursor.execute("UPDATE documents SET seen = seen + 1")
                cursor.execute("UPDATE documents SET facts = JSON_SET(facts, '$.a', seen, '$.c', 'grün') WHERE id < 3")
                cursor.execute("UPDATE documents SET title = %s, body = NULL WHERE id = 2", (f"to {image}",))
                cursor.execute("INSERT INTO documents (id, title) VALUES (%s, NULL)", (len(image) * 10,))
                cursor.execute("UPDATE documents SET id = id + 1000, body = 'moved' WHERE id = %s", (len(image) * 10,))
                cursor.execute("DELETE FROM documents WHERE id = 3")
                cursor.execute("INSERT INTO documents VALUES (3, 'back', 'whole', NULL, 9)")
        with closing(server.connect(database=database)) as connection, connection.cursor() as cursor:
            cursor.execute("SET binlog_row_image = MINIMAL")
            cursor.execute("INSERT INTO documents (id, title) VALUES (7, 'what it leaves out has its default')")
        wait_until_equal(running.lake, running.tenant, source, server, database, ["documents"])


@pytest.mark.parametrize("flavor", FLAVORS)
def test_prepared_transactions_when_committed_by_another_session_then_only_those_reach_the_lake(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    server, source = servers[flavor], f"xa-{flavor}"
    database = source.replace("-", "_")
    load.create_tables(server, database, "accounts", rows=5)
    with running.agent(source, {source: server}):
        running.start_sync(source, database, "accounts", "oldest")
        for xid, row in (("'kept'", 1), ("'dropped'", 2), ("'late','branch',7", 3)):
            server.prepare_xa(
                xid,
                f"UPDATE accounts SET amount = amount + 100, note = 'xa' WHERE id = {row}",
                f"INSERT INTO accounts (amount) VALUES ({row})",
                database=database,
            )
        server.run("UPDATE accounts SET note = 'between' WHERE id = 4", database=database)
        server.run("XA COMMIT 'late','branch',7", "XA ROLLBACK 'dropped'", database=database)
        server.run("INSERT INTO accounts (amount) VALUES (77)", "XA COMMIT 'kept'", database=database)
        wait_until_equal(running.lake, running.tenant, source, server, database, ["accounts"])


@pytest.mark.parametrize("flavor", FLAVORS)
def test_table_when_an_online_schema_change_swaps_it_then_its_rows_stay_and_the_copy_is_no_data(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    server, source = servers[flavor], f"swap-{flavor}"
    database = source.replace("-", "_")
    load.create_tables(server, database, "items", rows=30)
    with running.agent(source, {source: server}):
        running.start_sync(source, database, "items", "oldest")
        wait_until_equal(running.lake, running.tenant, source, server, database, ["items"])
        server.run(
            "CREATE TABLE _items_gho LIKE items",
            "ALTER TABLE _items_gho ADD COLUMN colour VARCHAR(9) NOT NULL DEFAULT 'red'",
            "INSERT INTO _items_gho (id, amount, note) SELECT id, amount, note FROM items",
            "RENAME TABLE items TO _items_del, _items_gho TO items",
            "UPDATE items SET colour = 'blue' WHERE id < 4",
            "INSERT INTO items (amount, colour) VALUES (9, 'green')",
            "DROP TABLE _items_del",
            database=database,
        )
        wait_until_equal(running.lake, running.tenant, source, server, database, ["items"])
        wait_for("the swap's event", lambda: events_of(running.lake, source, "items")[-1:] == ["SWAPPED"])
        folders = wait_for("the table's folder", lambda: sorted(path.name for path in running.lake.rglob("*items*")))
        assert not [name for name in folders if "gho" in name or "del" in name]
