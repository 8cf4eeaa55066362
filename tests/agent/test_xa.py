"""XA transactions on real servers, through the whole agent: rows count at the commit, once, and in its place."""

import itertools
import random
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from menura.v1 import changes_pb2

from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import running_agent
from tests.agent.test_replication import ITEMS, ORDERS, config, prepare, wait_equal
from tests.servers import FLAVORS, Server, server


@pytest.fixture(scope="module", params=FLAVORS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(request.param, tmp_path_factory.mktemp(request.param)) as started:
        prepare(started)
        yield started


@pytest.fixture
def database(running: Server) -> Server:
    running.roll_back_prepared()
    reset = "RESET MASTER" if running.flavor == "mariadb" else "RESET BINARY LOGS AND GTIDS"
    running.run("TRUNCATE shop.orders", "TRUNCATE shop.items", reset)
    return running


def prepare_xa(database: Server, xid: str, *statements: str) -> None:
    """Prepared by a session that then ends."""
    database.prepare_xa(xid, *statements, database="shop")


def remembered(folder: Path) -> int:
    """How many open transactions the agent's state knows."""
    with closing(sqlite3.connect(folder / "state" / "shop.prepared.sqlite")) as connection:
        return int(connection.execute("SELECT count(*) FROM prepared WHERE ended IS NULL").fetchone()[0])


def test_xa_when_committed_and_rolled_back_then_rows_count_at_the_commit(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, ITEMS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        prepare_xa(
            database, "'a'", "INSERT INTO orders (id, note) VALUES (1, 'a')", "INSERT INTO items VALUES (1, 'a', '')"
        )
        prepare_xa(database, "X'00ff27',X'0a',7", "INSERT INTO orders (id, note) VALUES (2, 'b')")
        prepare_xa(database, "'c'", "INSERT INTO orders (id, note) VALUES (3, 'c')")
        database.run("INSERT INTO shop.orders (id, note) VALUES (4, 'between')")
        gateway.wait(lambda: [row["id"] for row in gateway.rows("shop", ORDERS)] == [4])
        database.run("XA ROLLBACK 'c'", "XA COMMIT X'00ff27',X'0a',7", "XA COMMIT 'a'")
        one_phase = (
            "XA START 'd'",
            "UPDATE shop.orders SET note = 'd' WHERE id = 1",
            "XA END 'd'",
            "XA COMMIT 'd' ONE PHASE",
        )
        database.run(*one_phase)
        prepare_xa(
            database, "'a'", "DELETE FROM orders WHERE id = 2", "SAVEPOINT s", "INSERT INTO orders (id) VALUES (5)"
        )
        database.run("XA COMMIT 'a'")
        wait_equal(gateway, database, ORDERS, ITEMS)
        assert [row["id"] for row in gateway.rows("shop", ORDERS)] == [4, 2, 1, 1, 1, 2, 5]


def test_xa_when_committed_then_has_the_place_and_time_of_the_commit(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        prepare_xa(database, "'a'", "INSERT INTO orders (id) VALUES (1)")
        database.run(
            "INSERT INTO shop.orders (id) VALUES (2)", "XA COMMIT 'a'", "INSERT INTO shop.orders (id) VALUES (3)"
        )
        wait_equal(gateway, database, ORDERS)
        transactions = [
            transaction for batch in gateway.source("shop").batches for transaction in batch.transactions.to_pylist()
        ]
        numbers = [transaction["_transaction_id"] for transaction in transactions]
        assert numbers == sorted(numbers)
        sequence = [int(str(transaction["_position"]).replace("-", ":").split(":")[-1]) for transaction in transactions]
        assert sequence == [sequence[0], sequence[0] + 1, sequence[0] + 2]
        times = [transaction["_commit_timestamp_us"] for transaction in transactions]
        assert times == sorted(times)


def test_xa_when_the_agent_is_killed_before_the_commit_then_rows_come_once(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log") as process:
        prepare_xa(database, "'a'", "INSERT INTO orders (id) VALUES (1)")
        prepare_xa(database, "'b'", "INSERT INTO orders (id) VALUES (2)")
        database.run("INSERT INTO shop.orders (id) VALUES (3)")
        gateway.wait(lambda: gateway.rows("shop", ORDERS))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert remembered(tmp_path) == 2
    database.run("XA COMMIT 'a'", "XA ROLLBACK 'b'")
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log") as process:
        wait_equal(gateway, database, ORDERS)
        database.run("INSERT INTO shop.orders (id) VALUES (4)")
        wait_equal(gateway, database, ORDERS)
        process.send_signal(signal.SIGKILL)
        process.wait()
    for path in (tmp_path / "state").iterdir():
        path.unlink()
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        database.run("INSERT INTO shop.orders (id) VALUES (5)")
        wait_equal(gateway, database, ORDERS)
    assert [row["id"] for row in gateway.rows("shop", ORDERS)] == [3, 1, 4, 5]


def test_xa_when_the_state_is_lost_before_the_commit_then_is_found_in_the_log(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    prepare_xa(database, "'a'", "INSERT INTO orders (id) VALUES (100)")
    database.run("XA COMMIT 'a'")
    prepare_xa(database, "'a'", "INSERT INTO orders (id) VALUES (1), (2)", "UPDATE orders SET note = 'x' WHERE id = 2")
    database.run("FLUSH BINARY LOGS")
    prepare_xa(database, "'b'", "INSERT INTO orders (id) VALUES (101)")
    database.run("FLUSH BINARY LOGS", "INSERT INTO shop.items (id) VALUES (1)")
    gateway.sync("shop", ORDERS, now=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        gateway.wait(lambda: gateway.source("shop").committed)
        database.run("XA COMMIT 'a'", "XA ROLLBACK 'b'", "INSERT INTO shop.orders (id) VALUES (3)")
        gateway.wait(lambda: [row["id"] for row in gateway.rows("shop", ORDERS)][-1:] == [3])
        assert [row["id"] for row in gateway.rows("shop", ORDERS)] == [1, 2, 2, 2, 3]


def test_xa_when_the_log_lacks_the_prepare_then_tables_go_on_and_are_read_again(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    prepare_xa(database, "'a'", "INSERT INTO orders (id) VALUES (1)")
    database.run("FLUSH BINARY LOGS")
    (last,) = database.run("SHOW BINARY LOGS")[-1:]
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        purged = lambda: len(database.run("SHOW BINARY LOGS")) == 1  # noqa: E731
        gateway.wait(lambda: cursor.execute(f"PURGE BINARY LOGS TO '{last[0]}'") or purged())
    gateway.sync("shop", ORDERS, now=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        gateway.wait(lambda: gateway.source("shop").committed)
        insert = "INSERT INTO shop.orders (id) VALUES ({})"
        database.run(insert.format(2), "XA COMMIT 'a'", insert.format(3))
        gateway.wait(lambda: [row["id"] for row in gateway.rows("shop", ORDERS)] == [2, 3])
        before, after = (row["_gsn"] for row in gateway.rows("shop", ORDERS))
        (event,) = [event for cut in gateway.source("shop").committed for event in cut.events]
        assert (event.kind, event.reread) == (changes_pb2.TableEvent.ROWS_UNLOGGED, True)
        assert before < event.gsn < after
        assert "prepared" in event.unlogged_changes


def test_xa_when_the_server_restarts_before_the_commit_then_rows_come_once(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        prepare_xa(database, "'a'", "INSERT INTO orders (id) VALUES (1)")
        prepare_xa(database, "'b'", "INSERT INTO orders (id) VALUES (2)")
        database.run("INSERT INTO shop.orders (id) VALUES (3)")
        wait_equal(gateway, database, ORDERS)
        assert remembered(tmp_path) == 2
        database.stop()
        database.start()
        database.run("INSERT INTO shop.orders (id) VALUES (4)", "XA COMMIT 'b'", "XA ROLLBACK 'a'")
        wait_equal(gateway, database, ORDERS)
        assert [row["id"] for row in gateway.rows("shop", ORDERS)] == [3, 4, 2]


def test_xa_when_a_table_begins_between_prepare_and_commit_then_gets_the_rows(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        both = ("INSERT INTO orders (id) VALUES (1)", "INSERT INTO items (id) VALUES (1)")
        prepare_xa(database, "'a'", *both)
        database.run("INSERT INTO shop.orders (id) VALUES (2)")
        wait_equal(gateway, database, ORDERS)
        gateway.sync("shop", ITEMS, now=True)
        gateway.wait(lambda: any(cut.started for cut in gateway.source("shop").committed[1:]))
        database.run("XA COMMIT 'a'")
        wait_equal(gateway, database, ORDERS, ITEMS)


def test_xa_when_larger_than_what_is_kept_then_is_read_again_in_portions(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    seed = ["INSERT INTO shop.items (id) VALUES (1)", *["INSERT INTO shop.items (note) SELECT '' FROM shop.items"] * 9]
    wide = "INSERT INTO {} (note, secret) SELECT REPEAT('n', 100), REPEAT('s', 100) FROM items a, items b LIMIT 170000"
    database.run(*seed, "CREATE TABLE IF NOT EXISTS shop.other LIKE shop.orders")
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        prepare_xa(database, "'big'", wide.format("orders"))
        prepare_xa(database, "'small'", "INSERT INTO orders (id) VALUES (1000000)")
        database.run("XA COMMIT 'small'", "XA COMMIT 'big'")
        one_phase = ("XA START 'o'", wide.format("other"), "DELETE FROM orders WHERE id < 5", "XA END 'o'")
        database.run(*one_phase, "XA COMMIT 'o' ONE PHASE", database="shop")
        gateway.wait(lambda: sum(batch.rows.num_rows for batch in gateway.source("shop").batches) == 170_005)
        wait_equal(gateway, database, ORDERS)


def test_xa_when_agent_and_server_are_killed_again_and_again_then_every_row_counts_once(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """Names used again, commits and rollbacks in any order, plain transactions between, and files that change."""
    dice = random.Random(4)
    waiting: list[str] = []
    numbers = itertools.count(1)
    gateway.sync("shop", ORDERS, ITEMS, oldest=True)

    def work(rounds: int) -> None:
        for _ in range(rounds):
            free = [name for name in ("'a'", "'b'", "'c'", "X'00ff',X'61',7") if name not in waiting]
            if free and dice.random() < 0.5:
                new = [next(numbers) for _ in range(dice.randrange(4))]
                inserts = [f"INSERT INTO orders (id, note) VALUES ({number}, 'n')" for number in new]
                updates = [f"UPDATE orders SET note = 'y' WHERE id = {number}" for number in new[:1]]
                prepare_xa(database, free[0], *inserts, *updates, f"INSERT INTO items (id) VALUES ({next(numbers)})")
                waiting.append(free[0])
            elif waiting and dice.random() < 0.6:
                end = dice.choice(["COMMIT", "COMMIT", "ROLLBACK"])
                database.run(f"XA {end} {waiting.pop(dice.randrange(len(waiting)))}")
            else:
                database.run(f"INSERT INTO shop.items (id, note) VALUES ({next(numbers)}, 'plain')")
            if dice.random() < 0.1:
                database.run("FLUSH BINARY LOGS")

    for round_ in range(3):
        with running_agent(config(tmp_path, gateway, database), tmp_path / "log") as process:
            before = len(gateway.source("shop").committed)
            work(25)
            gateway.wait(lambda before=before: len(gateway.source("shop").committed) > before)
            if round_ == 1:
                database.stop(signal.SIGKILL)
                database.start()
            process.send_signal(signal.SIGKILL)
            process.wait()
        work(10)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        database.run(*[f"XA COMMIT {name}" for name in waiting])
        wait_equal(gateway, database, ORDERS, ITEMS)
    stopped = [stop for cut in gateway.source("shop").committed for stop in cut.stopped]
    gsns = [row["_gsn"] for table in (ORDERS, ITEMS) for row in gateway.rows("shop", table)]
    assert not stopped
    assert sorted(gsns) == list(range(1, len(gsns) + 1))
