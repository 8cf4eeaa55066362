"""Positions that the server can't serve, and replicas that get in each other's way."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import PositionPurged, ServerIdDuplicate, SourceRebuilt
from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import client, running_agent, write_config
from tests.agent.test_replication import ITEMS, ORDERS, change, prepare, wait_equal
from tests.servers import Flavor, Server, server
from tests.stack import wait_for

FLAVORS: tuple[Flavor, ...] = ("mariadb", "mysql")


@pytest.fixture(params=FLAVORS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with server(request.param, tmp_path / "server") as running:
        prepare(running)
        yield running


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    double = GatewayDouble()
    yield double
    double.stop()


def config(folder: Path, gateway: GatewayDouble, database: Server, **source: object) -> Path:
    return write_config(folder, gateway.address, {"shop": {"client": client(database), **source}})


def purge(database: Server) -> None:
    database.run("FLUSH BINARY LOGS")
    change(database, rounds=1)
    database.run("FLUSH BINARY LOGS")
    last = database.run("SHOW BINARY LOGS")[-1][0]
    deadline = time.monotonic() + 90
    while database.run("SHOW BINARY LOGS")[0][0] != last:  # a log that a replica still reads stays
        assert time.monotonic() < deadline
        database.run(f"PURGE BINARY LOGS TO '{last}'")
        time.sleep(0.1)


def wait_for_another_second(database: Server, before: int) -> None:
    """The server's log says to the second when a file was begun."""
    wait_for("the server's next second", lambda: seconds_of(database) > before, 90, every=0.05)


def seconds_of(database: Server) -> int:
    return int(str(database.run("SELECT UNIX_TIMESTAMP()")[0][0]))


def test_position_when_its_log_was_purged_then_the_source_says_so_and_reads_nothing(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    path = config(tmp_path, gateway, database)
    with running_agent(path, tmp_path / "log"):
        change(database, rounds=1)
        wait_equal(gateway, database, ORDERS)
    purge(database)
    cuts = len(gateway.source("shop").committed)
    with running_agent(path, tmp_path / "log", PositionPurged.exit_code):
        record = gateway.source("shop")
        gateway.wait(lambda: record.status and record.status.error.code == "POSITION_PURGED")
        assert "binlog_expire_logs_seconds" in record.status.error.remedy
        assert record.status.error.terminal
        assert len(record.committed) == cuts


def test_log_when_it_is_reset_then_its_numbers_are_not_taken_for_those_of_before(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """While the stream is open, which hears nothing of it; on MySQL while nobody reads, with as many transactions."""
    reset = "RESET MASTER" if database.flavor == "mariadb" else "RESET BINARY LOGS AND GTIDS"
    gateway.sync("shop", ORDERS, oldest=True)
    path = config(tmp_path, gateway, database)
    record = gateway.source("shop")
    ends = (0, SourceRebuilt.exit_code)
    rebuilt = lambda: record.status is not None and record.status.error.code == "SOURCE_REBUILT"  # noqa: E731
    with running_agent(path, tmp_path / "log", *ends) as process:
        if database.flavor == "mysql":
            database.run("FLUSH BINARY LOGS")
        begun = seconds_of(database)
        change(database, rounds=1)
        wait_equal(gateway, database, ORDERS)
        rows = len(gateway.rows("shop", ORDERS))
        if database.flavor == "mysql":
            process.kill()
            process.wait()
        else:
            gateway.wait(lambda: record.status is not None and record.status.HasField("lag_us"))
            database.run(reset, "INSERT INTO shop.orders (note) VALUES ('after')")
            gateway.wait(rebuilt)
    if database.flavor == "mysql":
        wait_for_another_second(database, begun)
        database.run(reset)
        change(database, rounds=9)
        with running_agent(path, tmp_path / "log", *ends):
            gateway.wait(rebuilt)
    assert "reset" in record.status.error.found
    assert len(gateway.rows("shop", ORDERS)) == rows


def test_log_when_it_was_reset_and_is_longer_than_before_then_is_not_taken_for_the_same(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """While nobody read it; all GTIDs of the committed position are there again."""
    reset = "RESET MASTER" if database.flavor == "mariadb" else "RESET BINARY LOGS AND GTIDS"
    gateway.sync("shop", ORDERS, oldest=True)
    path = config(tmp_path, gateway, database)
    record = gateway.source("shop")
    ends = (0, SourceRebuilt.exit_code)
    begun = seconds_of(database)
    with running_agent(path, tmp_path / "log") as process:
        change(database, rounds=1)
        wait_equal(gateway, database, ORDERS)
        process.kill()
        process.wait()
    rows = len(gateway.rows("shop", ORDERS))
    wait_for_another_second(database, begun)
    database.run(reset)
    change(database, rounds=9)
    with running_agent(path, tmp_path / "log", *ends):
        gateway.wait(lambda: record.status is not None and record.status.error.code == "SOURCE_REBUILT")
    assert "was begun at" in record.status.error.found
    assert len(gateway.rows("shop", ORDERS)) == rows
    gateway.unsync("shop", ORDERS)
    gateway.sync("shop", ITEMS, oldest=True)
    change(database, rounds=1, table="items")
    with running_agent(path, tmp_path / "log") as process:
        wait_equal(gateway, database, ITEMS)
        process.kill()
        process.wait()
    change(database, rounds=1, table="items")
    with running_agent(path, tmp_path / "log"):
        wait_equal(gateway, database, ITEMS)


def test_start_from_oldest_when_the_log_was_purged_then_says_what_is_missing(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    change(database, rounds=1)
    purge(database)
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        record = gateway.source("shop")
        gateway.wait(lambda: record.committed)
        assert "has purged its log" in record.committed[0].started[0].earlier_rows_missing
        database.run("INSERT INTO shop.orders (id, note) VALUES (9000, 'new')")
        gateway.wait(lambda: any(row["id"] == 9000 for row in gateway.rows("shop", ORDERS)))


def test_start_at_a_position_when_given_as_text_then_begins_there(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    change(database, rounds=1)
    status = "SHOW MASTER STATUS" if database.flavor == "mariadb" else "SHOW BINARY LOG STATUS"
    row = database.run(status)[0]
    database.run("INSERT INTO shop.orders (id, note) VALUES (9000, 'new')")
    database.run("INSERT INTO shop.items (id, note) VALUES (9001, 'new')")
    gtids = database.run("SELECT @@gtid_binlog_pos")[0][0] if database.flavor == "mariadb" else row[4]
    by_gtid = gtids if database.flavor == "mysql" else None
    gateway.sync("shop", ORDERS, position_text=f"{row[0]}:{row[1]}")
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        gateway.wait(lambda: gateway.rows("shop", ORDERS))
        assert [r["id"] for r in gateway.rows("shop", ORDERS)] == [9000]
        if by_gtid:
            gateway.sync("shop", ITEMS, position_text=f"{row[0]}:{row[1]}")
            gateway.wait(lambda: gateway.rows("shop", ITEMS))
            assert [r["id"] for r in gateway.rows("shop", ITEMS)] == [9001]


@pytest.mark.parametrize("text", ["nonsense", "binlog.000001:99999999", "binlog.000077:4", "9-9-999999"])
def test_start_at_a_position_when_the_server_does_not_know_it_then_that_table_stops(
    database: Server, gateway: GatewayDouble, tmp_path: Path, text: str
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        change(database, rounds=1)
        wait_equal(gateway, database, ORDERS)
        gateway.sync("shop", ITEMS, position_text=text)
        gateway.wait(lambda: any(cut.stopped for cut in gateway.source("shop").committed))
        (stop,) = [stop for cut in gateway.source("shop").committed for stop in cut.stopped]
        assert stop.table.table == "items"
        assert stop.error.code in ("POSITION_INVALID", "SOURCE_REBUILT", "POSITION_PURGED")
        change(database, rounds=1)
        wait_equal(gateway, database, ORDERS)


def test_server_id_when_another_replica_has_it_then_both_say_so(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    other = GatewayDouble()
    try:
        (tmp_path / "other").mkdir()
        for double in (gateway, other):
            double.sync("shop", ORDERS, oldest=True)
        ours = config(tmp_path, gateway, database, server_id=77)
        theirs = config(tmp_path / "other", other, database, server_id=77)
        codes_at_end = (0, ServerIdDuplicate.exit_code)  # which of the two reads when they are stopped is chance
        with (
            running_agent(ours, tmp_path / "log", *codes_at_end),
            running_agent(theirs, tmp_path / "other" / "log", *codes_at_end),
        ):

            def codes() -> set[str]:
                found = [double.source("shop").status for double in (gateway, other)]
                return {status.error.code for status in found if status is not None}

            gateway.wait(lambda: "SERVER_ID_DUPLICATE" in codes())
    finally:
        other.stop()
