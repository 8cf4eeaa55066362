"""What dumps meet outside a laboratory: a silent network, few privileges, a busy server."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, tzinfo
from pathlib import Path

import pymysql
import pytest
from menura.v1 import snapshot_pb2

from agent.runtime import session
from agent.snapshot import throttle
from agent.sources.mysql import replicator
from agent.sources.mysql.server import connection
from agent.sources.mysql.snapshot import results
from tests.agent.dumping import (
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
    wait_status,
)
from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import client, write_config
from tests.servers import Server
from tests.silent_network import SilentNetwork
from tests.stack import wait_for

__all__ = ["database", "gateway", "running"]

Limits = snapshot_pb2.DumpLimits
Status = snapshot_pb2.DumpStatus


@pytest.mark.long
def test_dump_when_the_network_falls_silent_then_the_agent_notices_and_goes_on_at_the_ledger(
    database: Server, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (
        (connection, "READ_TIMEOUT_SECONDS"),
        (results, "READ_TIMEOUT_SECONDS"),
        (replicator, "SILENCE_SECONDS"),
    ):
        assert getattr(module, name) <= 60
        monkeypatch.setattr(module, name, 4.0)
    shorter = {
        "grpc.keepalive_time_ms": 2_000,
        "grpc.keepalive_timeout_ms": 2_000,
        "grpc.http2.ping_timeout_ms": 2_000,
        "grpc.min_reconnect_backoff_ms": 2_000,
    }
    assert shorter.keys() <= dict(session._CHANNEL_OPTIONS).keys()
    monkeypatch.setattr(session, "_CHANNEL_OPTIONS", tuple((dict(session._CHANNEL_OPTIONS) | shorter).items()))
    table = create(database, rows=4000)
    gateway.sync("shop", table, now=True)
    ledger = gateway.source("shop").ledger
    networks = [SilentNetwork("127.0.0.1", port) for port in (database.port, database.port, gateway.port)]
    rows, log, way = networks
    source = {"client": client(database, port=rows.port), "binlog": client(database, port=log.port)}
    dump = gateway.dump("shop", "silent", table, limits=Limits(rows_per_second=100))
    with agent_inside(write_config(tmp_path, f"127.0.0.1:{way.port}", {"shop": source})):
        gateway.wait(lambda: ledger.chunks)
        # how the gateway's way is watched does not depend on the server
        for number, network in enumerate(networks[:2] if database.flavor == "mysql" else networks):
            network.silence()
            begun = network.connections
            database.run(
                f"UPDATE shop.orders SET note = 'silent {number}' WHERE id % 7 = {number}",
                f"DELETE FROM shop.orders WHERE id % 11 = {number}",
            )
            if network is rows:
                wait_status(gateway, dump, "broke")
            gateway.wait(lambda of=network, before=begun: of.connections > before)
            network.heal()
        gateway.order("shop", dump, limits=Limits())
        wait_dumped(gateway, dump)
        wait_equal(gateway, database, dump, ("id",))
    for network in networks:
        network.close()
    assert len({chunk.number for chunk in ledger.chunks}) == len(ledger.chunks)


def test_dump_when_the_user_may_only_replicate_and_read_its_tables_then_it_is_done(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    keyed, keyless = create(database), create(database, "KEY (id)", table="keyless")
    database.run(
        "DROP USER IF EXISTS 'few'@'%'",
        "CREATE USER 'few'@'%' IDENTIFIED BY 'few'",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'few'@'%'",
        "GRANT SELECT ON shop.orders TO 'few'@'%'",
        "GRANT SELECT ON shop.keyless TO 'few'@'%'",
    )
    gateway.sync("shop", keyed, now=True)
    gateway.sync("shop", keyless, dump="keyless")
    source = {"client": client(database, user="few", password="few")}
    with agent_inside(write_config(tmp_path, gateway.address, {"shop": source})):
        with Writers(database, "shop.orders", 10, most_id=4000, threads=1):
            dumps = [gateway.dump("shop", "keyed", keyed), gateway.dump("shop", "keyless", keyless)]
            for dump in dumps:
                wait_dumped(gateway, dump)
        wait_equal(gateway, database, dumps[0], ("id",))
        wait_equal(gateway, database, dumps[1], ("id", "note"))


class Wall(datetime):
    """The throttle's clock: what the test says."""

    at = datetime(2026, 3, 28, 21, 59, 59, tzinfo=UTC)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return cls.at


def test_dump_when_its_window_is_closed_the_server_is_busy_and_bytes_are_limited_then_it_waits_for_each_and_says_so(
    database: Server, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "datetime", Wall)
    limit = 12_000
    settings = {"windows": ["22:00-06:00 UTC"], "max_threads_running": 12, "max_bytes_per_second": limit}
    table = create(database, rows=2000)
    gateway.sync("shop", table, now=True)
    dump = gateway.dump("shop", "throttled", table)
    ledger = gateway.source("shop").ledger
    with agent_inside(config(tmp_path, gateway, database, dump=settings)), sleepers(database, 16) as wake:
        told = wait_status(gateway, dump, "sources.shop.dump.windows: the next one opens at 2026-03-28 22:00 UTC")
        assert (told.state, told.held) == (Status.WAITING, Status.WINDOW)
        monkeypatch.setattr(Wall, "at", datetime(2026, 3, 28, 22, 0, 1, tzinfo=UTC))
        told = wait_status(
            gateway, dump, "threads run on the server, sources.shop.dump.max_threads_running is 12, since 22:00"
        )
        assert (told.state, told.held) == (Status.WAITING, Status.SERVER_BUSY) and not ledger.received_rows
        began = time.monotonic()
        wake()
        assert wait_status(gateway, dump, f"sources.shop.dump.max_bytes_per_second is {limit}").state == Status.READING
        wait_dumped(gateway, dump)
        seconds = time.monotonic() - began
    read = sum(chunk.end.source_bytes for chunk in ledger.chunks)
    assert read > 2 * limit
    assert read <= limit * (seconds + throttle.BURST_SECONDS)
    assert dumped(gateway, dump, ("id",)) == selected(database, table, ("id",))


@contextmanager
def sleepers(database: Server, count: int) -> Iterator[Callable[[], None]]:
    """So many threads run on the server until they are woken."""

    asleep = "SELECT id FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'"

    def sleep() -> None:
        with suppress(pymysql.err.OperationalError):
            database.run("SELECT SLEEP(300) /* sleeper */")

    def wake() -> None:
        for (number,) in database.run(asleep):
            with suppress(pymysql.err.OperationalError):  # it has woken by itself
                database.run(f"KILL {number}")

    threads = [threading.Thread(target=sleep) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        wait_for("all to sleep", lambda: len(database.run(asleep)) == count)
        yield wake
    finally:
        while any(thread.is_alive() for thread in threads):
            wake()
            time.sleep(0.05)
