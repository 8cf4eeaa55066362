"""Rows in the log that don't count: rolled back after they were logged, or never finished. On real servers."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import running_agent
from tests.agent.test_replication import ITEMS, ORDERS, config, prepare, wait_equal
from tests.servers import FLAVORS, Flavor, Server, server


@pytest.fixture(scope="module", params=FLAVORS)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # without GTIDs MySQL permits what MariaDB permits
    options = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"} if request.param == "mysql" else {}
    folder = tmp_path_factory.mktemp(request.param)
    with server(request.param, folder, log_bin_trust_function_creators="1", **options) as running:
        prepare(running)
        running.run(
            "CREATE TABLE shop.notes (id INT PRIMARY KEY AUTO_INCREMENT, note VARCHAR(100)) ENGINE = MyISAM",
            "CREATE FUNCTION shop.f() RETURNS INT BEGIN INSERT INTO shop.orders (note) VALUES ('e'); SAVEPOINT a;"
            " INSERT INTO shop.orders (note) VALUES ('f'); INSERT INTO shop.notes (note) VALUES ('f'); ROLLBACK TO a;"
            " RETURN 1; END",
        )
        yield running


@pytest.fixture
def gateway(database: Server) -> Iterator[GatewayDouble]:
    database.run("DELETE FROM shop.orders", "DELETE FROM shop.items", "DELETE FROM shop.notes")
    database.run("RESET MASTER" if database.flavor == "mariadb" else "RESET BINARY LOGS AND GTIDS")
    double = GatewayDouble()
    yield double
    double.stop()


def logged(database: Server) -> str:
    return str([row[5] for row in database.run("SHOW BINLOG EVENTS")])


def test_rollback_when_rows_were_logged_before_it_then_they_do_not_count(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, ("shop", "notes"), oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        for rows in (1, 3):
            database.run(
                "BEGIN",
                *["INSERT INTO orders (note) VALUES ('gone')"] * rows,
                "INSERT INTO notes (note) VALUES ('kept')",
                "CREATE TEMPORARY TABLE t (a INT)",
                "INSERT INTO orders (note) VALUES ('gone too')",
                "ROLLBACK",
                "INSERT INTO orders (note) VALUES ('after')",
                database="shop",
            )
        wait_equal(gateway, database, ORDERS)
        assert len(gateway.rows("shop", ("shop", "notes"))) == 2
        assert [row["note"] for row in gateway.rows("shop", ORDERS)] == ["after", "after"]
        numbers = [row["_gsn"] for table in (ORDERS, ("shop", "notes")) for row in gateway.rows("shop", table)]
        assert sorted(numbers) == [1, 2, 3, 4]
    assert database.flavor == "mysql" or "ROLLBACK" in logged(database)


@pytest.mark.parametrize("rows", [1, 40_000])
def test_rollback_to_a_savepoint_when_rows_were_logged_after_it_then_those_do_not_count(
    database: Server, gateway: GatewayDouble, tmp_path: Path, rows: int
) -> None:
    """40,000 rows are sent before the rollback is read: the log is read again."""
    database.run("INSERT INTO shop.items (note) SELECT 'x' FROM information_schema.columns LIMIT 250")
    many = f"INSERT INTO orders (note) SELECT 'gone' FROM items a, items b LIMIT {rows}"
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        database.run(
            "BEGIN",
            "INSERT INTO orders (note) VALUES ('first')",
            "SAVEPOINT `a``b`",
            many,
            "SAVEPOINT c",
            "INSERT INTO notes (note) VALUES ('kept')",
            "UPDATE orders SET note = 'gone too'",
            "ROLLBACK TO `A``B`",
            "UPDATE orders SET note = CONCAT(note, '!')",
            "COMMIT",
            "INSERT INTO orders (note) VALUES ('after')",
            database="shop",
        )
        wait_equal(gateway, database, ORDERS)
        assert [row["note"] for row in gateway.rows("shop", ORDERS)] == ["first", "first", "first!", "after"]
        assert [row["_gsn"] for row in gateway.rows("shop", ORDERS)] == [1, 2, 3, 4]
    assert database.flavor == "mysql" or "ROLLBACK TO" in logged(database)


def test_rollback_to_a_savepoint_when_a_function_has_one_of_its_name_then_the_table_stops(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, ITEMS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        database.run(
            "INSERT INTO orders (note) VALUES ('before')",
            "BEGIN",
            "INSERT INTO items (note) VALUES ('first')",
            "SAVEPOINT a",
            "INSERT INTO orders (note) VALUES ('gone')",
            "SELECT f()",
            "INSERT INTO notes (note) VALUES ('kept')",
            "ROLLBACK TO a",
            "COMMIT",
            "INSERT INTO items (note) VALUES ('after')",
            database="shop",
        )
        wait_equal(gateway, database, ITEMS)
        assert [row["note"] for row in gateway.rows("shop", ORDERS)] == ["before"]
        stops = [stop for cut in gateway.source("shop").committed for stop in cut.stopped]
        expected = [("orders", "TABLE_ROWS_UNCERTAIN")] if database.flavor == "mariadb" else []
        assert [(stop.table.table, stop.error.code) for stop in stops] == expected


def test_rollback_in_a_prepared_transaction_when_it_is_committed_then_those_rows_do_not_count(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        database.run(
            "XA START 'x'",
            "INSERT INTO orders (note) VALUES ('first')",
            "SAVEPOINT a",
            "INSERT INTO orders (note) VALUES ('gone')",
            "INSERT INTO notes (note) VALUES ('kept')",
            "ROLLBACK TO a",
            "INSERT INTO orders (note) VALUES ('second')",
            "XA END 'x'",
            "XA PREPARE 'x'",
            "XA COMMIT 'x'",
            database="shop",
        )
        wait_equal(gateway, database, ORDERS)
        assert [row["note"] for row in gateway.rows("shop", ORDERS)] == ["first", "second"]


@pytest.mark.parametrize("flavor", FLAVORS)
def test_transaction_when_the_server_was_killed_while_writing_it_then_its_tables_stop(
    flavor: Flavor, tmp_path: Path
) -> None:
    """MariaDB leaves half a transaction in the log and begins the next file; MySQL cuts it off."""
    gateway = GatewayDouble()
    with server(flavor, tmp_path / "server") as database:
        prepare(database)
        database.run("INSERT INTO shop.orders (note) VALUES ('before')")
        begin = _end_of_log(database)
        database.run("INSERT INTO shop.orders (note) VALUES ('half')")
        file, end = _end_of_log(database)
        database.stop(signal.SIGKILL)
        assert database.folder is not None
        with (database.folder / "data" / file).open("r+b") as log:
            assert begin[1] < end - 31
            log.truncate(end - 31)  # without its XID event
        database.start()
        for table in (ORDERS, ITEMS):
            database.run(f"INSERT INTO {'.'.join(table)} (note) VALUES ('after')")
        gateway.sync("shop", ORDERS, ITEMS, oldest=True)
        with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
            wait_equal(gateway, database, ITEMS)
            if flavor == "mysql":
                gateway.wait(lambda: len(gateway.rows("shop", ORDERS)) == 2)
            stops = [stop for cut in gateway.source("shop").committed for stop in cut.stopped]
            notes = [row["note"] for row in gateway.rows("shop", ORDERS)]
            expected = [("orders", "TABLE_ROWS_UNCERTAIN")] if flavor == "mariadb" else []
            assert [(stop.table.table, stop.error.code) for stop in stops] == expected
            assert notes == (["before"] if flavor == "mariadb" else ["before", "after"])
    gateway.stop()


def _end_of_log(database: Server) -> tuple[str, int]:
    file, size, *_ = database.run("SHOW BINARY LOGS")[-1]
    return str(file), int(str(size))
