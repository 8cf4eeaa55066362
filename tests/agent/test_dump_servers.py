"""Dumps where the server, or the agent, is not the plain one: replicas, no GTIDs, kills, a gateway without credit."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from menura.v1 import mysql_client_pb2, stream_pb2

from agent.mysql.dump import reading
from agent.mysql.dump.results import RowsPlan, RowsReading
from tests.agent.dumping import (
    Writers,
    agent_inside,
    dumped,
    selected,
    small_chunks,
    wait_dumped,
    wait_equal,
    wait_status,
)
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import client, running_agent, write_config
from tests.agent.test_dumps import create
from tests.servers import Flavor, Server, replica_of, server

FLAVORS: tuple[Flavor, ...] = ("mariadb", "mysql")
WIDE: Table = ("shop", "wide")


@pytest.fixture(params=FLAVORS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with server(request.param, tmp_path / "server") as running:
        prepare(running)
        yield running


def prepare(running: Server) -> None:
    running.create_replication_user()
    running.run("CREATE DATABASE shop CHARACTER SET utf8mb4")


@pytest.fixture
def gateway() -> Iterator[GatewayDouble]:
    double = GatewayDouble()
    yield double
    double.stop()


def config(folder: Path, gateway: GatewayDouble, database: Server, **source: object) -> Path:
    return write_config(folder, gateway.address, {"shop": {"client": client(database), **source}})


def create_wide(database: Server) -> None:
    """20,000 rows of a kilobyte."""
    numbers = ",".join(f"({number})" for number in range(20_000))
    database.run(
        "CREATE TABLE shop.wide (id INT PRIMARY KEY, note VARCHAR(2000) NOT NULL DEFAULT '')",
        f"INSERT INTO shop.wide (id) VALUES {numbers}",
        "UPDATE shop.wide SET note = REPEAT(SHA2(id, 256), 15)",
        "ANALYZE TABLE shop.wide",
    )


def test_dump_when_the_agent_is_killed_then_it_goes_on_at_the_chunk(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create_wide(database)
    gateway.sync("shop", WIDE, now=True)
    path, log = config(tmp_path, gateway, database), tmp_path / "log"
    ledger = gateway.source("shop").ledger
    dump = gateway.dump("shop", "killed", WIDE, limits=mysql_client_pb2.DumpLimits(rows_per_second=10_000))
    with running_agent(path, log) as process:
        gateway.wait(lambda: len(ledger.chunks) > 1)
        process.kill()
    read, had = ledger.received_rows, sum(len(chunk.rows) for chunk in ledger.chunks)
    gateway.order("shop", dump, limits=mysql_client_pb2.DumpLimits())
    database.run("UPDATE shop.wide SET note = 'unseen' WHERE id % 1000 = 7", "DELETE FROM shop.wide LIMIT 9")
    with running_agent(path, log) as process:
        wait_dumped(gateway, dump)
        wait_equal(gateway, database, dump, ("id",))
        assert psutil.Process(process.pid).memory_info().rss < 200 << 20
    assert ledger.received_rows - read <= 20_000 - had
    assert dumped(gateway, dump, ("id",)) == selected(database, WIDE, ("id",))


def test_dump_when_credit_runs_out_then_reading_stops_and_memory_is_bounded(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create_wide(database)
    gateway.grants_credit = False
    gateway.sync("shop", WIDE, now=True)
    dump = gateway.dump("shop", "held", WIDE)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log") as process:
        gateway.wait(lambda: gateway.source("shop").committed)
        grant = stream_pb2.StreamRequest()
        grant.credit.bytes = 1
        gateway._send("shop", stream_pb2.MySQLClient, grant)
        ledger = gateway.source("shop").ledger
        gateway.wait(lambda: ledger.received_rows)
        told = len(dump.statuses)
        gateway.wait(lambda: len(dump.statuses) > told + 2)
        assert ledger.received_rows < 20_000
        assert psutil.Process(process.pid).memory_info().rss < 200 << 20
        gateway.grants_credit = True
        grant.credit.bytes = 64 << 20
        gateway._send("shop", stream_pb2.MySQLClient, grant)
        wait_dumped(gateway, dump)


def test_dump_when_it_is_read_from_a_replica_then_it_waits_for_it_and_ignores_what_only_the_replica_has(
    database: Server, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    mysql = database.flavor == "mysql"
    table = create(database, rows=2000)
    whole = create(database, "KEY (id)", table="keyless")
    with replica_of(database, tmp_path / "replica") as replica:
        gateway.wait(lambda: replica.run("SHOW DATABASES LIKE 'shop'") and replica.run("SHOW TABLES FROM shop"))
        replica.run("CREATE DATABASE errant", "CREATE TABLE errant.t (a INT)", "INSERT INTO errant.t VALUES (1)")
        replica.run("STOP REPLICA SQL_THREAD" if mysql else "STOP SLAVE SQL_THREAD")
        gateway.sync("shop", table, now=True)
        source = {"client": client(replica), "binlog": client(database), "dump": {"max_replica_lag_seconds": 0}}
        with agent_inside(write_config(tmp_path, gateway.address, {"shop": source})):
            gateway.wait(lambda: gateway.source("shop").committed)
            database.run("DELETE FROM shop.orders WHERE id % 5 = 0")
            gateway.wait(lambda: gateway.rows("shop", table))
            with Writers(database, "shop.orders", 6, most_id=8000):
                gateway.sync("shop", whole, dump="whole")
                first = gateway.dump("shop", "replica", table)
                wait_status(gateway, first, "lags behind")
                replica.run("START REPLICA SQL_THREAD" if mysql else "START SLAVE SQL_THREAD")
                wait_dumped(gateway, first)
                replica.run("INSERT INTO errant.t VALUES (2)")
                second = gateway.dump("shop", "whole", whole)
                wait_dumped(gateway, second)
            wait_equal(gateway, database, first, ("id",))
            wait_equal(gateway, database, second, ("id", "note"))


def test_dump_when_mysql_has_no_gtids_then_snapshots_give_its_positions(
    gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    with server("mysql", tmp_path / "server", gtid_mode="OFF", enforce_gtid_consistency="OFF") as database:
        prepare(database)
        database.run("GRANT LOCK TABLES ON shop.* TO 'menura'@'%'")
        table = create(database, rows=2000)
        whole = create(database, "KEY (id)", table="keyless")
        gateway.sync("shop", table, now=True)
        gateway.sync("shop", whole, dump="whole")
        with agent_inside(config(tmp_path, gateway, database)), Writers(database, "shop.orders", 7, 8000) as writers:
            first, second = gateway.dump("shop", "files", table), gateway.dump("shop", "whole", whole)
            wait_dumped(gateway, first)
            wait_dumped(gateway, second)
            writers.stop()
            wait_equal(gateway, database, first, ("id",))
            wait_equal(gateway, database, second, ("id", "note"))


def test_dump_when_the_replica_has_no_gtids_then_it_fails_and_says_why(gateway: GatewayDouble, tmp_path: Path) -> None:
    without = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    with (
        server("mysql", tmp_path / "server", **without) as database,
        server("mysql", tmp_path / "other", **without) as other,
    ):
        prepare(database)
        prepare(other)
        table = create(database)
        gateway.sync("shop", table, now=True)
        dump = gateway.dump("shop", "unrelated", table)
        with agent_inside(config(tmp_path, gateway, other, binlog=client(database))):
            gateway.wait(lambda: dump.failed)
    assert dump.failed is not None
    assert dump.failed.code == "DUMP_SERVER_UNRELATED"


def test_dump_when_a_row_cannot_be_read_then_it_fails_and_names_the_range(
    database: Server, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    table = create(database)

    class Spoilt(RowsReading):
        def _next(self, reader: object) -> object:
            if '"' not in self._statement and "> 1" in self._statement:
                raise self._plan.invalid("bytes that are none of its type", "note")
            return super()._next(reader)  # type: ignore[arg-type]

    def read_spoilt(connection: object, statement: str, plan: RowsPlan, *rest: object) -> RowsReading:
        return Spoilt(connection, statement, plan, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "read_rows", read_spoilt)
    gateway.sync("shop", table, now=True)
    dump = gateway.dump("shop", "spoilt", table)
    with agent_inside(config(tmp_path, gateway, database)):
        gateway.wait(lambda: dump.failed)
        committed = len(gateway.source("shop").committed)
        database.run("INSERT INTO shop.orders VALUES (100000, 'after', 'after')")
        gateway.wait(lambda: len(gateway.source("shop").committed) > committed)
    assert dump.failed is not None
    assert dump.failed.code == "DUMP_RESULT_INVALID"
    assert "keys (id) above" in dump.failed.found
    assert "column note" in dump.failed.found


def test_dump_when_the_log_has_partial_rows_then_it_is_read_in_one_snapshot(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    with server("mysql", tmp_path / "server", binlog_row_image="MINIMAL") as database:
        prepare(database)
        table = create(database)
        gateway.sync("shop", table, dump="partial")
        dump = gateway.dump("shop", "partial", table)
        with agent_inside(config(tmp_path, gateway, database)):
            wait_dumped(gateway, dump)
        wait_equal(gateway, database, dump, ("id",))
    assert dump.plan is not None and not dump.plan.key
    assert "binlog_row_image is MINIMAL" in dump.plan.warning
