"""Tables that the filter drops under new names, and rules of the filter that fit no table any more."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from menura.v1 import changes_pb2, config_pb2

from tests.agent.dumping import agent_inside
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import agent, client, running_agent, write_config
from tests.agent.test_replication import last_state
from tests.servers import Server, server

ORDERS: Table = ("shop", "orders")
FRESH: Table = ("shop", "fresh")
OTHER: Table = ("shop", "other")
CANARY = "kanarienvogel"
DENIED = config_pb2.TableState.DENIED
SWAP = "RENAME TABLE shop.orders TO shop.tmp, shop.hidden TO shop.orders, shop.tmp TO shop.hidden"


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(request.param, tmp_path_factory.mktemp("server")) as found:
        found.create_replication_user()
        yield found


@pytest.fixture
def database(running: Server) -> Server:
    """With the tables orders, other and hidden, and an empty log."""
    forget = "RESET BINARY LOGS AND GTIDS" if running.flavor == "mysql" else "RESET MASTER"
    running.run("DROP DATABASE IF EXISTS shop", forget, "CREATE DATABASE shop")
    for table in ("orders", "other", "hidden"):
        running.run(f"CREATE TABLE shop.{table} (id INT PRIMARY KEY AUTO_INCREMENT, note VARCHAR(40), secret INT)")
        insert(running, table, CANARY if table == "hidden" else table)
    return running


def insert(database: Server, table: str, note: str) -> None:
    database.run(f"INSERT INTO shop.{table} (note) VALUES ('{note}')")


def config(folder: Path, gateway: GatewayDouble, database: Server, rules: object, policy: str = "accept") -> Path:
    source = {"client": client(database), "filter_policy": policy, "filter": rules}
    return write_config(folder, gateway.address, {"shop": source})


def wait_stopped(gateway: GatewayDouble, table: Table, code: str) -> changes_pb2.TableStopped:
    def found() -> list[changes_pb2.TableStopped]:
        stops = [stop for cut in gateway.source("shop").committed for stop in cut.stopped]
        return [stop for stop in stops if (stop.table.database, stop.table.table) == table]

    gateway.wait(found)
    assert found()[-1].error.code == code, found()
    return found()[-1]


def wait_note(gateway: GatewayDouble, table: Table, note: str) -> None:
    gateway.wait(lambda: any(row["note"] == note for row in gateway.rows("shop", table)))


def check_nothing_left(gateway: GatewayDouble) -> None:
    record = gateway.source("shop")
    rows = [batch.rows.to_pylist() for batch in record.batches] + [chunk.rows for chunk in record.ledger.chunks]
    assert CANARY not in repr(rows)
    assert CANARY.encode() not in b"".join(gateway.messages)


def test_a_dropped_table_when_it_takes_a_synced_ones_name_then_that_stops_and_stays_denied(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    settings = config(tmp_path, gateway, database, {"hidden": None})
    gateway.sync("shop", ORDERS, OTHER, oldest=True)
    with running_agent(settings, tmp_path / "log"):
        wait_note(gateway, ORDERS, "orders")
        database.run(SWAP)
        insert(database, "orders", CANARY)
        stop = wait_stopped(gateway, ORDERS, "TABLE_DENIED")
        assert "was renamed from shop.hidden" in stop.error.found
        assert "sources.shop.filter.shop.orders.renamed_from: [shop.hidden]" in stop.error.remedy
    insert(database, "orders", CANARY)
    gateway.sync("shop", ORDERS, now=True)
    with running_agent(settings, tmp_path / "log"):
        insert(database, "other", "later")
        insert(database, "orders", CANARY)
        wait_note(gateway, OTHER, "later")
        gateway.wait(lambda: (state := last_state(gateway, ORDERS)) and state.state == DENIED)
        database.run(SWAP)  # back: each content is under its own name again
        gateway.sync("shop", ORDERS, now=True)
        insert(database, "other", "last")
        wait_note(gateway, OTHER, "last")
    with running_agent(settings, tmp_path / "log"):
        gateway.wait(lambda: (state := last_state(gateway, ORDERS)) and state.state != DENIED)
        gateway.wait(
            lambda: (
                insert(database, "orders", "again")
                or any(row["note"] == "again" for row in gateway.rows("shop", ORDERS))
            )
        )
    check_nothing_left(gateway)


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.parametrize(
    "statement", ["RENAME TABLE shop.hidden TO shop.fresh", "ALTER TABLE shop.hidden RENAME shop.fresh"]
)
def test_a_dropped_table_when_it_has_another_name_then_stays_denied_until_the_filter_names_the_former(
    statement: str, is_away: bool, database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    settings = config(tmp_path, gateway, database, {"hidden": None})
    gateway.sync("shop", OTHER, oldest=True)
    with running_agent(settings, tmp_path / "log"):
        wait_note(gateway, OTHER, "other")
        if not is_away:
            database.run(statement)
            insert(database, "other", "behind")
            wait_note(gateway, OTHER, "behind")
    if is_away:
        database.run(statement)
    gateway.sync("shop", FRESH, oldest=True)
    gateway.dump("shop", "of-hidden", FRESH)
    with agent_inside(settings):
        insert(database, "fresh", CANARY)
        insert(database, "other", "later")
        wait_note(gateway, OTHER, "later")
        gateway.wait(lambda: (state := last_state(gateway, FRESH)) and state.state == DENIED)
    check_nothing_left(gateway)
    gateway.source("shop").ledger.dumps.clear()
    settings = config(tmp_path, gateway, database, {"hidden": None, "fresh": {"renamed_from": ["hidden"]}})
    with running_agent(settings, tmp_path / "log"):
        wait_note(gateway, FRESH, CANARY)


def test_a_table_when_it_is_made_under_the_name_of_a_renamed_one_then_is_a_new_one(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    settings = config(tmp_path, gateway, database, {"hidden": None})
    gateway.sync("shop", OTHER, FRESH, oldest=True)
    with running_agent(settings, tmp_path / "log"):
        wait_note(gateway, OTHER, "other")
        database.run("RENAME TABLE shop.hidden TO shop.fresh", "DROP TABLE shop.fresh")
        database.run("CREATE TABLE shop.fresh LIKE shop.other")
        insert(database, "other", "behind")
        wait_note(gateway, OTHER, "behind")
    gateway.sync("shop", FRESH, now=True)
    with running_agent(settings, tmp_path / "log"):
        gateway.wait(
            lambda: insert(database, "fresh", "new") or any(row["note"] == "new" for row in gateway.rows("shop", FRESH))
        )


def test_tables_under_the_policy_drop_when_renamed_away_and_back_or_changed_online_then_go_on(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    settings = config(tmp_path, gateway, database, {"orders": {"renamed_from": ["built"]}}, "drop")
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(settings, tmp_path / "log"):
        wait_note(gateway, ORDERS, "orders")
        database.run("RENAME TABLE shop.orders TO shop.away", "RENAME TABLE shop.away TO shop.orders")
        insert(database, "orders", "back")
        wait_note(gateway, ORDERS, "back")
        database.run("CREATE TABLE shop._orders_gho LIKE shop.orders", "ALTER TABLE shop._orders_gho ADD more INT")
        database.run("RENAME TABLE shop.orders TO shop._orders_del, shop._orders_gho TO shop.orders")
        insert(database, "orders", "online")
        wait_note(gateway, ORDERS, "online")
        database.run("CREATE TABLE shop.built LIKE shop.orders", "CREATE TABLE shop.other_built LIKE shop.orders")
        database.run("RENAME TABLE shop.orders TO shop.before, shop.built TO shop.orders")
        insert(database, "orders", "named")
        wait_note(gateway, ORDERS, "named")
        database.run("RENAME TABLE shop.orders TO shop.before_that, shop.other_built TO shop.orders")
        stop = wait_stopped(gateway, ORDERS, "TABLE_DENIED")
    assert "shop.other_built" in stop.error.found


def test_a_table_with_ignored_columns_when_it_has_another_name_then_they_stay_ignored(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    settings = config(tmp_path, gateway, database, {"orders": {"ignored_columns": ["secret"]}})
    gateway.sync("shop", ORDERS, OTHER, oldest=True)
    with running_agent(settings, tmp_path / "log"):
        wait_note(gateway, ORDERS, "orders")
        database.run("RENAME TABLE shop.orders TO shop.fresh")
        insert(database, "other", "behind")
        wait_note(gateway, OTHER, "behind")
    gateway.sync("shop", FRESH, now=True)
    with running_agent(settings, tmp_path / "log"):
        gateway.wait(lambda: insert(database, "fresh", "renamed") or gateway.rows("shop", FRESH))
    assert all("secret" not in row for row in gateway.rows("shop", FRESH))


def test_a_rule_when_its_table_is_gone_then_is_a_warning_and_the_other_tables_go_on(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    settings = config(tmp_path, gateway, database, {"hidden": None, "orders": {"ignored_columns": ["secret"]}})
    gateway.sync("shop", ORDERS, OTHER, oldest=True)
    with running_agent(settings, tmp_path / "log"):
        wait_note(gateway, ORDERS, "orders")
    database.run("DROP TABLE shop.hidden", "DROP TABLE shop.orders")
    shown = agent("check", settings)
    assert shown.returncode == 0
    assert shown.stdout.count("warning: FILTER_TABLE_UNKNOWN") == 2
    with running_agent(settings, tmp_path / "log2"):
        insert(database, "other", "later")
        wait_note(gateway, OTHER, "later")
        record = gateway.source("shop")
        gateway.wait(lambda: [told.code for told in record.effective[-1].warnings] == ["FILTER_TABLE_UNKNOWN"] * 2)
        assert not record.effective[-1].HasField("error")
    assert (tmp_path / "log2").read_text().count("FILTER_TABLE_UNKNOWN") == 2


def test_an_ignored_column_when_it_is_misspelt_then_its_table_alone_is_denied(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    settings = config(tmp_path, gateway, database, {"orders": {"ignored_columns": ["secert"]}})
    shown = agent("check", settings)
    assert shown.returncode == 14 and "'secert'" in shown.stdout
    gateway.sync("shop", ORDERS, OTHER, oldest=True)
    with running_agent(settings, tmp_path / "log"):
        wait_note(gateway, OTHER, "other")
        gateway.wait(lambda: (state := last_state(gateway, ORDERS)) and state.state == DENIED)
        state = last_state(gateway, ORDERS)
        assert state is not None and state.error.code == "FILTER_COLUMN_UNKNOWN"
        assert not gateway.rows("shop", ORDERS)


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_ignored_column_when_it_is_dropped_then_the_table_goes_on_as_long_as_the_agent_knows(
    is_lost: bool, database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    settings = config(tmp_path, gateway, database, {"orders": {"ignored_columns": ["secret"]}})
    gateway.sync("shop", ORDERS, OTHER, oldest=True)
    with running_agent(settings, tmp_path / "log"):
        wait_note(gateway, ORDERS, "orders")
        database.run("ALTER TABLE shop.orders DROP COLUMN secret")
        insert(database, "orders", "without")
        wait_note(gateway, ORDERS, "without")
    if is_lost:
        shutil.rmtree(tmp_path / "state")
    with running_agent(settings, tmp_path / "log"):
        insert(database, "orders", "later")
        insert(database, "other", "later")
        wait_note(gateway, OTHER, "later")
        if is_lost:
            wait_stopped(gateway, ORDERS, "FILTER_COLUMN_UNKNOWN")
        else:
            wait_note(gateway, ORDERS, "later")
