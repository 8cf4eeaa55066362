"""Dumps from real servers whose connection, login or table goes in the middle, or is another one then."""

from contextlib import suppress
from pathlib import Path

import pymysql
import pytest
from menura.roles import Role
from menura.v1 import snapshot_pb2

from tests.agent.dump_ledger import Dump
from tests.agent.dumping import (
    SLOW,
    Writers,
    agent_inside,
    config,
    create,
    database,
    dumped,
    gateway,
    running,
    selected,
    wait_dumped,
    wait_equal,
    wait_rows,
)
from tests.agent.gateway_double import GatewayDouble
from tests.servers import Server

__all__ = ["database", "gateway", "running"]


@pytest.mark.parametrize("broken", [Role.CATALOG, Role.CHANGES])
def test_dump_when_a_stream_breaks_then_it_goes_on_from_the_ledger(
    database: Server, gateway: GatewayDouble, tmp_path: Path, broken: Role
) -> None:
    table = create(database, rows=2000)
    gateway.sync("shop", table, now=True)
    ledger = gateway.source("shop").ledger
    with agent_inside(config(tmp_path, gateway, database)), Writers(database, "shop.orders", 4, most_id=8000):
        dump = gateway.dump("shop", "broken", table, limits=snapshot_pb2.DumpLimits(rows_per_second=1500))
        for chunks in (3, 8, 12):
            gateway.wait(lambda least=chunks: len(ledger.chunks) > least)
            gateway.drop("shop", broken)
        wait_dumped(gateway, dump)
    # `selected` follows in the other tests; here every key counts once per life
    assert len({chunk.number for chunk in ledger.chunks}) == len(ledger.chunks)
    assert not dump.remaining


def test_dump_when_its_connections_are_killed_then_chunks_are_read_again(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(database, rows=2000)
    gateway.sync("shop", table, dump="killed")
    dump = gateway.dump("shop", "killed", table, limits=SLOW)
    with agent_inside(config(tmp_path, gateway, database)):
        gateway.wait(lambda: gateway.source("shop").ledger.received_rows)
        kill_reads_until(gateway, database, dump, "broke")
        gateway.order("shop", dump, limits=snapshot_pb2.DumpLimits())
        wait_dumped(gateway, dump)
        assert dumped(gateway, dump, ("id",)) == selected(database, table, ("id",))


def kill_reads_until(gateway: GatewayDouble, database: Server, dump: Dump, told: str) -> None:
    """Ends the agent's connections again and again, but those that read the log, until a status has these words."""
    reads = "SELECT id FROM information_schema.processlist WHERE user = 'menura' AND command NOT LIKE 'Binlog Dump%'"

    def is_told() -> bool:
        for (thread,) in database.run(reads):
            with suppress(pymysql.err.OperationalError):  # it has gone by itself
                database.run(f"KILL {thread}")
        return any(told in status.reason for status in dump.statuses)

    gateway.wait(is_told)


def test_dump_when_transactions_are_prepared_around_it_then_their_rows_come_with_their_commits(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    keyed, keyless = create(database, rows=2000), create(database, "KEY (id)", table="keyless")
    prepare_xa(database, "before", 3)
    gateway.sync("shop", keyed, now=True)
    gateway.sync("shop", keyless, dump="keyless")
    with agent_inside(config(tmp_path, gateway, database)):
        dumps = [
            gateway.dump("shop", "keyed", keyed, limits=SLOW),
            gateway.dump("shop", "keyless", keyless),
        ]
        gateway.wait(lambda: any(chunk.dump == "keyed" for chunk in gateway.source("shop").ledger.chunks))
        prepare_xa(database, "between", 6)
        database.run("XA COMMIT 'before'")
        gateway.order("shop", dumps[0], limits=snapshot_pb2.DumpLimits())
        for dump in dumps:
            wait_dumped(gateway, dump)
        database.run("XA COMMIT 'between'")
        wait_equal(gateway, database, dumps[0], ("id",))
        wait_equal(gateway, database, dumps[1], ("id", "note"))


def prepare_xa(database: Server, name: str, first: int) -> None:
    """Changes of both tables that nobody sees before they are committed; their session ends."""
    statements = [
        statement
        for table in ("orders", "keyless")
        for statement in (
            f"INSERT INTO {table} VALUES ({first + 1}, '{name}', 'new')",
            f"UPDATE {table} SET note = '{name}' WHERE id = {first + 300}",
            f"DELETE FROM {table} WHERE id = {first + 600}",
        )
    ]
    database.prepare_xa(f"'{name}'", *statements, database="shop")


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE shop.orders ADD extra INT NOT NULL DEFAULT 7, ALGORITHM=COPY",
        "TRUNCATE TABLE shop.orders",
        "ALTER TABLE shop.orders MODIFY note VARCHAR(80)",
    ],
)
def test_dump_when_its_table_is_changed_in_the_middle_then_chunks_from_before_are_read_again(
    database: Server, gateway: GatewayDouble, tmp_path: Path, statement: str
) -> None:
    table = create(database, rows=2000)
    gateway.sync("shop", table, dump="altered")
    dump = gateway.dump("shop", "altered", table, limits=SLOW)
    ledger = gateway.source("shop").ledger
    with (
        agent_inside(config(tmp_path, gateway, database)),
        Writers(database, "shop.orders", 5, most_id=8000) as writers,
    ):
        gateway.wait(lambda: len(ledger.chunks) > 1)
        database.run(statement)
        gateway.order("shop", dump, limits=snapshot_pb2.DumpLimits())
        wait_dumped(gateway, dump)
        writers.stop()
        wait_rows(gateway, database, dump, ("id",))
    # after the statement only chunks of the new definition
    event = next(e for cut in gateway.source("shop").committed for e in cut.events if not e.dump)
    names = [set(chunk.rows[0]) for chunk in ledger.chunks if chunk.rows and chunk.gsn > event.gsn]
    assert all(("extra" in name) == ("extra" in statement) for name in names)


def test_dump_when_the_stream_is_behind_and_meets_an_older_life_of_its_table_then_it_goes_on(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    for rows in (50, 80, 2000):
        database.run("DROP TABLE IF EXISTS shop.orders")
        table = create(database, rows=rows)
    gateway.cut_bytes = 1  # each transaction is a cut, which takes a while
    gateway.sync("shop", table, oldest=True)
    dump = gateway.dump("shop", "behind", table)
    with agent_inside(config(tmp_path, gateway, database)):
        with Writers(database, "shop.orders", 8, most_id=8000):
            wait_dumped(gateway, dump)
        wait_equal(gateway, database, dump, ("id",))


@pytest.mark.parametrize("statement", ["DROP TABLE shop.orders", "RENAME TABLE shop.orders TO shop.older"])
def test_dump_when_its_table_goes_then_it_fails_and_other_dumps_go_on(
    database: Server, gateway: GatewayDouble, tmp_path: Path, statement: str
) -> None:
    table, other = create(database, rows=2000), create(database, table="items")
    gateway.sync("shop", table, other, now=True)
    dump = gateway.dump("shop", "gone", table, limits=SLOW)
    kept = gateway.dump("shop", "kept", other)
    with agent_inside(config(tmp_path, gateway, database)):
        gateway.wait(lambda: gateway.source("shop").ledger.received_rows)
        database.run(statement)
        gateway.wait(lambda: dump.failed)
        wait_dumped(gateway, kept)
    assert dump.failed is not None and dump.failed.code == "DUMP_TABLE_GONE"
    assert dumped(gateway, kept, ("id",)) == selected(database, other, ("id",))


def test_dump_when_the_order_of_its_key_changes_then_it_fails_and_says_so(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(database, "PRIMARY KEY (name, id)", rows=2000)
    gateway.sync("shop", table, now=True)
    dump = gateway.dump("shop", "order", table, limits=SLOW)
    with agent_inside(config(tmp_path, gateway, database)):
        gateway.wait(lambda: gateway.source("shop").ledger.chunks)
        database.run(
            "ALTER TABLE shop.orders MODIFY name VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
        )
        gateway.wait(lambda: dump.failed)
    assert dump.failed is not None and dump.failed.code == "DUMP_KEY_CHANGED"


@pytest.mark.parametrize("running", ["mysql"], indirect=True)
def test_dump_when_the_server_refuses_its_login_then_it_waits_and_goes_on_when_it_does_not(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(database, rows=2000)
    gateway.sync("shop", table, now=True)
    dump = gateway.dump("shop", "locked", table, limits=SLOW)
    with agent_inside(config(tmp_path, gateway, database)):
        gateway.wait(lambda: gateway.source("shop").ledger.received_rows)
        database.run("ALTER USER 'menura'@'%' IDENTIFIED BY 'another'")
        kill_reads_until(gateway, database, dump, "refused this user")
        database.run("ALTER USER 'menura'@'%' IDENTIFIED BY 'menura-secret'")
        gateway.order("shop", dump, limits=snapshot_pb2.DumpLimits())
        wait_dumped(gateway, dump)
        assert dumped(gateway, dump, ("id",)) == selected(database, table, ("id",))
