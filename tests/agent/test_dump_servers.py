"""Dumps where the server, or the agent, is not the plain one: replicas, no GTIDs, kills, a gateway without credit."""

import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pymysql
import pytest
from menura.roles import Role
from menura.v1 import config_pb2, snapshot_pb2

from agent.snapshot import reading, statuses
from tests.agent.dump_ledger import Dump
from tests.agent.dumping import (
    Writers,
    agent_inside,
    create,
    dumped,
    selected,
    small_chunks,
    wait_dumped,
    wait_equal,
    wait_status,
)
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import client, running_agent, write_config
from tests.agent.test_replication import last_state
from tests.remedies import commands
from tests.servers import FLAVORS, Server, replica_of, server

WIDE: Table = ("shop", "wide")


@pytest.fixture(params=FLAVORS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Without tables: each test makes its own."""
    with server(request.param, tmp_path / "server") as running:
        prepare(running)
        yield running


def prepare(running: Server) -> None:
    running.create_replication_user()
    running.run("CREATE DATABASE shop CHARACTER SET utf8mb4")


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
    dump = gateway.dump("shop", "killed", WIDE, limits=snapshot_pb2.DumpLimits(rows_per_second=1_000))
    with running_agent(path, log) as process:
        gateway.wait(lambda: len(ledger.chunks) > 1)
        process.kill()
    gateway.wait_gone("shop")
    read, had = ledger.received_rows, sum(len(chunk.rows) for chunk in ledger.chunks)
    gateway.order("shop", dump, limits=snapshot_pb2.DumpLimits())
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
        gateway.grant("shop", 1, Role.CATALOG)
        ledger = gateway.source("shop").ledger
        gateway.wait(lambda: ledger.received_rows)
        wait_status(gateway, dump, statuses.GATEWAY_WAITS)
        assert ledger.received_rows < 20_000
        assert psutil.Process(process.pid).memory_info().rss < 200 << 20
        gateway.grants_credit = True
        gateway.grant("shop", 64 << 20, Role.CATALOG)
        wait_dumped(gateway, dump)


@pytest.mark.long
def test_dump_when_its_server_is_away_then_its_table_says_why_and_the_others_stream(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create_wide(database)
    database.run("CREATE TABLE shop.small (id INT PRIMARY KEY)")
    small: Table = ("shop", "small")
    with replica_of(database, tmp_path / "replica") as replica:
        path = config(tmp_path, gateway, database, client=client(replica), binlog=client(database))
        gateway.sync("shop", WIDE, small, now=True)
        dump = gateway.dump("shop", "away", WIDE, limits=snapshot_pb2.DumpLimits(rows_per_second=200))
        record = gateway.source("shop")
        with running_agent(path, tmp_path / "log"):
            gateway.wait(lambda: record.ledger.chunks)
            replica.stop()
            gateway.wait(lambda: said(gateway, WIDE) == (config_pb2.TableState.DUMPING, "SOURCE_UNREACHABLE"))
            gateway.wait(lambda: "SOURCE_UNREACHABLE" in [told.code for told in record.effective[-1].warnings])
            gateway.wait(lambda: said(gateway, small) == (config_pb2.TableState.STREAMING, ""))
            assert not record.effective[-1].HasField("error")
            database.run("INSERT INTO shop.small VALUES (1)")
            gateway.wait(lambda: gateway.rows("shop", small))
            gateway.wait(lambda: record.status.HasField("lag_us") and not record.status.HasField("error"))
            replica.start()
            gateway.order("shop", dump, limits=snapshot_pb2.DumpLimits())
            wait_dumped(gateway, dump)
            gateway.wait(lambda: said(gateway, WIDE) == (config_pb2.TableState.STREAMING, ""))
            gateway.wait(lambda: not record.effective[-1].warnings)


def said(gateway: GatewayDouble, table: Table) -> tuple[int, str]:
    """A table's state and its error's code."""
    state = last_state(gateway, table)
    return (0, "") if state is None else (state.state, state.error.code)


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


def test_dump_when_mysql_has_no_gtids_then_asks_for_lock_tables_and_snapshots_give_its_positions(
    gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    with server("mysql", tmp_path / "server", gtid_mode="OFF", enforce_gtid_consistency="OFF") as database:
        prepare(database)
        table = create(database, rows=2000)
        whole = create(database, "KEY (id)", table="keyless")
        gateway.sync("shop", table, now=True)
        gateway.sync("shop", whole, dump="whole")
        with agent_inside(config(tmp_path, gateway, database)), Writers(database, "shop.orders", 7, 8000) as writers:
            first, second = gateway.dump("shop", "files", table), gateway.dump("shop", "whole", whole)
            statement = "GRANT LOCK TABLES ON `shop`.* TO 'menura'@'%'"
            for dump in (first, second):
                wait_status(gateway, dump, statement)
            database.run(statement)
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
        gateway.wait_gone("shop")
        assert dump.failed is not None
        assert dump.failed.code == "DUMP_SERVER_UNRELATED"
        assert (
            "the server of sources.shop.binlog in sources.shop.client too and restart the agent" in dump.failed.remedy
        )
        assert commands(dump.failed.remedy) == [["sync", "retry", "shop", "--all"]]
        database.run("GRANT LOCK TABLES ON `shop`.* TO 'menura'@'%'")
        with agent_inside(config(tmp_path, gateway, database, binlog=client(database))):
            dump = gateway.dump("shop", "again", table)
            wait_dumped(gateway, dump)
            wait_equal(gateway, database, dump, ("id",))


def test_dump_when_a_row_cannot_be_read_then_it_fails_at_that_row_and_others_go_on(
    database: Server,
    gateway: GatewayDouble,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    small_chunks(monkeypatch)
    spoilt, whole, sound = create(database), create(database, "KEY (id)", table="keyless"), create(database, table="ok")
    spoil(database, spoilt, whole)
    gateway.sync("shop", spoilt, now=True)
    gateway.sync("shop", sound, now=True)
    gateway.sync("shop", whole, dump="whole")
    dumps = [gateway.dump("shop", name, table) for name, table in (("spoilt", spoilt), ("whole", whole))]
    with agent_inside(config(tmp_path, gateway, database)):
        for dump in dumps:
            gateway.wait(lambda failing=dump: failing.failed)
        wait_dumped(gateway, later := gateway.dump("shop", "sound", sound))
        database.run("INSERT INTO shop.orders (id, name, note) VALUES (1000000, 'after', '{}')")
        gateway.wait(lambda: any(row["name"] == "after" for row in gateway.rows("shop", spoilt)))
        wait_equal(gateway, database, later, ("id",))
    by_key, at_once = (dump.failed for dump in dumps)
    assert by_key is not None and at_once is not None
    assert by_key.code == at_once.code == "DUMP_RESULT_INVALID"
    code = 3141 if database.flavor == "mysql" else 1034
    assert at_once.found == f"the whole table: the server answered with code {code}"
    found = re.fullmatch(rf"range \d+, the first row above \((\d+)\) by \(id\): .* code {code}", by_key.found)
    assert found is not None, by_key.found
    assert database.flavor == "mariadb" or found[1] == "1497"
    logged = [str(vars(record)) for record in caplog.records if record.message == "dump failed"]
    assert len(logged) == 2 and not any(f"({found[1]})" in line for line in logged)
    with pytest.raises(pymysql.err.MySQLError, match=str(code)):
        database.run(f"SELECT * FROM shop.orders WHERE id > {found[1]} ORDER BY id LIMIT 1")


@pytest.mark.long
def test_dump_when_the_server_ends_whenever_a_row_is_read_then_it_fails_and_leaves_the_server_alone(
    gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_RESTARTS", 1)
    monkeypatch.setattr(reading, "CLOCK_SECONDS", 1.0)
    with server("mysql", tmp_path / "server", skip_stack_trace="") as database:
        prepare(database)
        table = create(database, rows=2000)
        database.run("UPDATE shop.orders SET note = 'damaged' WHERE id = 6000")  # which its plan looks at, too
        damage(database, table, "damaged")
        gateway.sync("shop", table, now=True)
        dump = gateway.dump("shop", "damaged", table)
        with agent_inside(config(tmp_path, gateway, database)):
            ends = ends_until_failed(gateway, database, dump)
            assert dump.failed is not None
            assert commands(dump.failed.remedy) == [["dump", "start", "shop", "shop.orders"]]
            database.run("DROP TABLE shop.orders")
            again = gateway.dump("shop", "again", create(database, rows=100))
            wait_dumped(gateway, again)
            wait_equal(gateway, database, again, ("id",))
    assert dump.plan is not None and len(dump.plan.ranges) == 1
    assert dump.failed is not None and dump.failed.code == "DUMP_RESULT_INVALID"
    assert re.match(r"range 0, rows .* by \(id\): the server ended while they were read", dump.failed.found)
    assert 2 <= ends <= 3  # one that follows another within a second may be taken for the same server


def ends_until_failed(gateway: GatewayDouble, database: Server, dump: Dump) -> int:
    """How often the server ended; it is started each time."""
    ends = 0
    while True:
        gateway.wait(lambda: dump.failed or (database.process and database.process.poll() is not None))
        if dump.failed is not None:
            return ends
        ends += 1
        database.start()


def spoil(database: Server, *tables: Table) -> None:
    """About a row in their middle: an expression over it fails, or the page that it is on is damaged."""
    for name in (".".join(table) for table in tables):
        database.run(f"UPDATE {name} SET note = '{{}}'", f"UPDATE {name} SET note = 'no JSON: spoilt' WHERE id = 1500")
        if database.flavor == "mysql":
            virtual = "JSON GENERATED ALWAYS AS (CAST(note AS JSON)) VIRTUAL"
            database.run(f"ALTER TABLE {name} ADD COLUMN parsed {virtual}, WITHOUT VALIDATION")
    if database.flavor == "mariadb":
        for table in tables:
            damage(database, table, "no JSON: spoilt")


def damage(database: Server, table: Table, text: str) -> None:
    """The pages that hold this text; their checksums say so."""
    assert database.folder is not None
    database.stop()
    file = database.folder / "data" / table[0] / f"{table[1]}.ibd"
    file.write_bytes(file.read_bytes().replace(text.encode(), text.encode().swapcase()))
    database.start()


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


def test_re_read_when_a_session_logs_partial_rows_and_chunks_did_not_help_then_it_is_one_snapshot(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    whole, partial = create(database, table="whole"), create(database, table="partial")
    for table in (whole, partial):
        gateway.sync("shop", table, now=True)
    with agent_inside(config(tmp_path, gateway, database)):
        gateway.wait(lambda: gateway.source("shop").committed)
        database.run(
            "SET SESSION binlog_row_image = 'MINIMAL'",
            "UPDATE shop.partial SET note = 'changed' LIMIT 1",
        )
        gateway.wait(lambda: gateway.rows("shop", partial))
        keys = {}
        for table in (whole, partial):
            for later in (0, 60):  # an order waits only after others of the hour
                dump = gateway.dump("shop", f"{table[1]}-{later}", table, begins_in_seconds=later)
                if later:
                    wait_status(gateway, dump, "it is not its turn")
                    gateway.order("shop", dump, begins_in_seconds=0)  # as one that is told again says what is left
                wait_dumped(gateway, dump)
                assert dump.plan is not None
                keys[dump.dump] = tuple(dump.plan.key)
    assert keys == {"whole-0": ("id",), "whole-60": ("id",), "partial-0": ("id",), "partial-60": ()}
    assert dump.plan is not None
    assert "sessions change binlog_row_image" in dump.plan.warning
