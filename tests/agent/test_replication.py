"""From a change on a real server to batches and cuts at a gateway, through the whole agent process."""

import json
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
from menura.roles import Role
from menura.v1 import changes_pb2, config_pb2

from agent.sources.mysql.server import replication
from tests.agent.dumping import agent_inside, poll
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import client, running_agent, write_config
from tests.servers import Server, server

ORDERS: Table = ("shop", "orders")
ITEMS: Table = ("shop", "items")


def prepare(running: Server) -> None:
    running.create_replication_user()
    running.run(
        "CREATE DATABASE shop CHARACTER SET utf8mb4",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY AUTO_INCREMENT, note VARCHAR(100), secret VARCHAR(100))",
        "CREATE TABLE shop.items (id INT PRIMARY KEY AUTO_INCREMENT, note VARCHAR(100), secret VARCHAR(100))",
    )


def config(folder: Path, gateway: GatewayDouble, database: Server, **source: object) -> Path:
    return write_config(folder, gateway.address, {"shop": {"client": client(database), **source}})


def current_state(gateway: GatewayDouble, table: Table) -> dict[int, tuple[object, ...]]:
    """The rows that the changes leave, by key; each change must fit the state before it."""
    state: dict[int, tuple[object, ...]] = {}
    last_gsn = 0
    for row in gateway.rows("shop", table):
        assert row["_gsn"] > last_gsn
        last_gsn = row["_gsn"]
        key, values = row["id"], tuple(value for name, value in row.items() if not name.startswith("_"))
        if row["_change_type"] == 0:
            assert key not in state
        else:
            assert key in state or row["_change_type"] == 2
        if row["_change_type"] in (1, 3):
            assert state.pop(key) == values
        else:
            state[key] = values
    return state


def selected(database: Server, table: Table) -> dict[int, tuple[object, ...]]:
    return {row[0]: row for row in database.run(f"SELECT * FROM {table[0]}.{table[1]} ORDER BY id")}


def wait_equal(gateway: GatewayDouble, database: Server, *tables: Table) -> None:
    for table in tables:
        expected = selected(database, table)
        poll(lambda table=table, expected=expected: current_state(gateway, table) == expected, every=0.02)
        assert current_state(gateway, table) == expected


def change(database: Server, *, rounds: int, table: str = "orders") -> None:
    statements = []
    for number in range(rounds):
        statements += [
            f"INSERT INTO shop.{table} (note, secret) VALUES ('note {number}', 'canary-{table}'), ('zweite ä', NULL)",
            f"UPDATE shop.{table} SET note = CONCAT(note, '!') WHERE id % 3 = {number % 3}",
        ]
    statements.append(f"DELETE FROM shop.{table} WHERE id % 7 = 3")
    database.run(*statements)


def last_state(gateway: GatewayDouble, table: Table) -> config_pb2.TableState | None:
    effective = gateway.source("shop").effective
    found = [t for t in effective[-1].tables if (t.table.database, t.table.table) == table] if effective else []
    return found[0] if found else None


def stops(gateway: GatewayDouble, table: Table) -> list[changes_pb2.TableStopped]:
    """What committed cuts say of the table's stop; its state is soon not told any more, since nobody wants it then."""
    cuts = gateway.source("shop").committed
    return [stop for cut in cuts for stop in cut.stopped if (stop.table.database, stop.table.table) == table]


def test_sync_from_oldest_when_rows_change_then_equals_the_table(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    change(database, rounds=5)
    gateway.sync("shop", ORDERS, ITEMS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        wait_equal(gateway, database, ORDERS, ITEMS)
        change(database, rounds=3, table="items")
        database.run(
            "BEGIN",
            "INSERT INTO shop.orders (note) VALUES ('a')",
            "INSERT INTO shop.items (note) VALUES ('b')",
            "COMMIT",
        )
        wait_equal(gateway, database, ORDERS, ITEMS)
        record = gateway.source("shop")
        start = record.committed[0]
        assert {(s.table.database, s.table.table) for s in start.started} == {ORDERS, ITEMS}
        assert [s.earlier_rows_missing for s in start.started] == ["", ""]
        gateway.wait(lambda: (s := last_state(gateway, ORDERS)) and s.state == config_pb2.TableState.STREAMING)
        gateway.wait(lambda: record.status.HasField("lag_us") and record.status.lag_us == 0)
        assert record.status.read_position == record.status.source_position
        assert record.status.rows > 0


def test_sync_from_now_when_rows_exist_then_says_what_is_missing(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    change(database, rounds=1)
    gateway.sync("shop", ORDERS, now=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        record = gateway.source("shop")
        gateway.wait(lambda: record.committed)
        assert "need a dump" in record.committed[0].started[0].earlier_rows_missing
        database.run("INSERT INTO shop.orders (id, note) VALUES (1000, 'new')")
        gateway.wait(lambda: gateway.rows("shop", ORDERS))
        assert [row["id"] for row in gateway.rows("shop", ORDERS)] == [1000]


def test_sync_when_the_stream_breaks_again_and_again_then_nothing_is_lost_or_doubled(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    dice = random.Random(1)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        gateway.wait(lambda: gateway.source("shop").committed)
        for _ in range(5):
            change(database, rounds=4)
            before = gateway.source("shop").replicates
            gateway.drop("shop", Role.CHANGES)
            gateway.wait(lambda before=before: gateway.source("shop").replicates > before)
            time.sleep(dice.random() / 10)
        wait_equal(gateway, database, ORDERS)
        numbers = [event.gsn for cut in gateway.source("shop").committed for event in cut.events]
        numbers = sorted(numbers + [row["_gsn"] for row in gateway.rows("shop", ORDERS)])
        assert numbers == list(range(1, len(numbers) + 1))


def test_sync_when_the_agent_is_killed_then_goes_on_from_the_last_cut(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    for round_ in range(3):
        change(database, rounds=4)
        with running_agent(config(tmp_path, gateway, database), tmp_path / "log") as process:
            before = len(gateway.source("shop").committed)
            gateway.wait(lambda before=before: len(gateway.source("shop").committed) > before)
            if round_ < 2:
                process.send_signal(signal.SIGKILL)
                process.wait()
            else:
                wait_equal(gateway, database, ORDERS)


def test_second_table_from_oldest_when_the_first_is_ahead_then_both_are_whole(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    change(database, rounds=3)
    change(database, rounds=3, table="items")
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        wait_equal(gateway, database, ORDERS)
        change(database, rounds=2)
        gateway.sync("shop", ITEMS, oldest=True)
        wait_equal(gateway, database, ORDERS, ITEMS)
        change(database, rounds=2)
        change(database, rounds=2, table="items")
        wait_equal(gateway, database, ORDERS, ITEMS)
        cuts = gateway.source("shop").committed
        assert any(cut.ahead for cut in cuts)
        gateway.wait(lambda: not gateway.source("shop").committed[-1].ahead)


def test_sync_when_a_table_leaves_and_returns_where_it_stopped_then_is_whole(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, ITEMS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        change(database, rounds=2)
        wait_equal(gateway, database, ORDERS, ITEMS)
        left_at = gateway.source("shop").committed[-1].position
        gateway.unsync("shop", ORDERS)
        change(database, rounds=2)
        change(database, rounds=2, table="items")
        wait_equal(gateway, database, ITEMS)
        gateway.sync("shop", ORDERS, position=left_at)
        wait_equal(gateway, database, ORDERS, ITEMS)


def test_ignored_column_when_rows_are_sent_then_its_bytes_never_leave(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, ITEMS, oldest=True)
    filter_ = {"orders": {"ignored_columns": ["secret"]}, "items": None}
    with running_agent(config(tmp_path, gateway, database, filter=filter_), tmp_path / "log"):
        change(database, rounds=3)
        change(database, rounds=3, table="items")
        database.run("INSERT INTO shop.orders (id, note) VALUES (5000, 'last')")
        gateway.wait(lambda: any(row["id"] == 5000 for row in gateway.rows("shop", ORDERS)))
        assert all("secret" not in row for row in gateway.rows("shop", ORDERS))
        assert not gateway.rows("shop", ITEMS)
        gateway.wait(lambda: (s := last_state(gateway, ITEMS)) and s.state == config_pb2.TableState.DENIED)
        assert list(last_state(gateway, ORDERS).ignored_columns) == ["secret"]
        for batch in gateway.source("shop").batches:
            assert "canary" not in str(batch.rows.to_pylist())
        assert not any(b"canary" in message for message in gateway.messages)
        assert b"canary" not in (tmp_path / "log").read_bytes()


def test_credit_when_it_runs_out_then_reading_stops_and_memory_is_bounded(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.grants_credit = False
    wide = "SELECT NULL, SHA2(RAND(), 256), SHA2(RAND(), 256) FROM orders"
    inserts = ["INSERT INTO orders (note) VALUES ('x')", *[f"INSERT INTO orders {wide}"] * 18]
    database.run(*inserts, database="shop")
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log") as process:
        record = gateway.source("shop")
        stood = [record.status]

        def stands() -> bool:
            """Nothing was read in more than a second of waiting."""
            now = record.status
            if now.read_bytes != stood[0].read_bytes:
                stood[0] = now
            return now.credit_wait_us - stood[0].credit_wait_us > 1_200_000

        gateway.wait(stands)
        assert not record.batches
        assert psutil.Process(process.pid).memory_info().rss < 160 << 20
        gateway.grants_credit = True
        gateway.grant("shop", 1 << 20)
        gateway.wait(lambda: sum(batch.rows.num_rows for batch in record.batches) == 1 << 18)


def test_sync_when_the_server_restarts_then_goes_on(database: Server, gateway: GatewayDouble, tmp_path: Path) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        change(database, rounds=2)
        wait_equal(gateway, database, ORDERS)
        database.stop()
        gateway.wait(lambda: gateway.source("shop").status.error.code)
        database.start()
        change(database, rounds=2)
        wait_equal(gateway, database, ORDERS)
        gateway.wait(lambda: not gateway.source("shop").status.error.code)


@pytest.mark.parametrize(
    ("statements", "code"),
    [
        (
            [
                "ALTER TABLE shop.items MODIFY id INT NOT NULL DEFAULT 0",
                "SET SESSION binlog_row_image = 'MINIMAL'",
                "INSERT INTO shop.items () VALUES ()",
            ],
            "TABLE_ROW_UNREADABLE",
        ),
    ],
)
def test_table_when_it_can_not_go_on_then_stops_alone(
    database: Server, gateway: GatewayDouble, tmp_path: Path, statements: list[str], code: str
) -> None:
    gateway.sync("shop", ORDERS, ITEMS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        database.run("INSERT INTO shop.items (note) VALUES ('kept')")
        wait_equal(gateway, database, ORDERS, ITEMS)
        kept = current_state(gateway, ITEMS)
        database.run(*statements)
        change(database, rounds=2)
        wait_equal(gateway, database, ORDERS)
        stops = [stop for cut in gateway.source("shop").committed for stop in cut.stopped]
        assert [(stop.table.table, stop.error.code) for stop in stops] == [("items", code)]
        assert current_state(gateway, ITEMS) == kept


def test_statement_when_it_is_logged_instead_of_rows_then_tables_go_on_and_are_read_again(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """Each table is told once, however many statements there are, since one dump heals all of them."""
    gateway.sync("shop", ORDERS, ITEMS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        change(database, rounds=1)
        wait_equal(gateway, database, ORDERS, ITEMS)
        update = "UPDATE shop.items SET note = 'y' WHERE id < 0"
        database.run("SET SESSION binlog_format = 'STATEMENT'", *[update] * 200, "BEGIN", *[update] * 9, "ROLLBACK")
        gateway.wait(lambda: len([event for event in gateway.events("shop") if event.unlogged_changes]) == 2)
        change(database, rounds=1, table="items")
        wait_equal(gateway, database, ORDERS, ITEMS)
        told = [event for event in gateway.events("shop") if event.unlogged_changes]
    assert sorted(event.table.table for event in told) == ["items", "orders"]
    for event in told:
        assert (event.kind, event.reread) == (changes_pb2.TableEvent.ROWS_UNLOGGED, True)
        assert event.unlogged_changes.startswith("UPDATE was logged as a statement")
    assert not any(cut.stopped for cut in gateway.source("shop").committed)


def test_statement_when_it_is_logged_and_the_policy_is_to_stop_then_every_table_stops_before_it(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, ITEMS, oldest=True)
    stops = config(tmp_path, gateway, database, unlogged_changes="stop")
    with running_agent(stops, tmp_path / "log"):
        change(database, rounds=1)
        wait_equal(gateway, database, ORDERS, ITEMS)
        kept = current_state(gateway, ORDERS)
        database.run(
            "SET SESSION binlog_format = 'MIXED'",
            "BEGIN",
            "INSERT INTO shop.orders (note) VALUES (UUID())",
            "INSERT INTO shop.items (note) VALUES ('x')",
            "COMMIT",
        )
        gateway.wait(lambda: sum(len(cut.stopped) for cut in gateway.source("shop").committed) == 2)
        stops = [stop for cut in gateway.source("shop").committed for stop in cut.stopped]
        assert {stop.error.code for stop in stops} == {"TABLE_STATEMENT_LOGGED"}
        assert current_state(gateway, ORDERS) == kept
        assert not gateway.rows("shop", ITEMS)


def test_sync_when_mysql_has_no_gtids_then_goes_by_file_and_offset(gateway: GatewayDouble, tmp_path: Path) -> None:
    with server("mysql", tmp_path / "server", gtid_mode="OFF", enforce_gtid_consistency="OFF") as database:
        prepare(database)
        change(database, rounds=2)
        gateway.sync("shop", ORDERS, oldest=True)
        with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
            wait_equal(gateway, database, ORDERS)
            database.run("FLUSH BINARY LOGS")
            change(database, rounds=2)
            wait_equal(gateway, database, ORDERS)
            gateway.drop("shop", Role.CHANGES)
            change(database, rounds=2)
            change(database, rounds=2, table="items")
            gateway.sync("shop", ITEMS, oldest=True)
            change(database, rounds=2, table="items")
            wait_equal(gateway, database, ORDERS, ITEMS)
            position = gateway.source("shop").committed[-1].position
            assert position.text.startswith("binlog.000002:")
            assert json.loads(position.token)["server_uuid"]


def test_sync_when_a_transaction_has_filled_a_file_beyond_what_can_be_asked_for_then_goes_on_in_the_next(
    gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server("mysql", tmp_path / "server", gtid_mode="OFF", enforce_gtid_consistency="OFF") as database:
        prepare(database)
        change(database, rounds=1)
        gateway.sync("shop", ORDERS, oldest=True)
        with agent_inside(config(tmp_path, gateway, database)):
            wait_equal(gateway, database, ORDERS)
        database.run("FLUSH BINARY LOGS")
        change(database, rounds=1)
        monkeypatch.setattr(replication, "MOST_DUMP_OFFSET", 200)
        with agent_inside(config(tmp_path, gateway, database)):
            wait_equal(gateway, database, ORDERS)
