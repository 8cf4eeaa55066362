"""A transaction that holds a row which all tenants need: what it delays, and how operators hear of it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from menura.v1.config_pb2 import Heartbeat, SourceStatus
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from controlplane_api import database as databases
from controlplane_api.database import Database, existing_database
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.metrics import GatewayMetrics
from gateway.registry import SourceKey
from tests.controlplane_api.facts import KEY, LANDING, cut, entry, file
from tests.gateway.harness import landed_gsns, running_gateway
from tests.gateway.scripted_agent import (
    AgentStream,
    change_batch,
    commit_cut,
    cut_end,
    eventually,
    rows_batch,
    scripted_agent,
)
from tests.gateway.sql_registry import want

OTHER = SourceKey("globex", "shop")
LEASE_SECONDS = 3


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.needs_setup)])
def kind(request: pytest.FixtureRequest) -> str:
    """SQLite has one writer."""
    return str(request.param)


@contextmanager
def held(database: Database, table: str) -> Iterator[int]:
    """Somebody has left a session open that holds the table's rows; its process."""
    operator = create_engine(database.engine.url, connect_args={"application_name": "somebody's\npsql"})
    try:
        with operator.connect() as connection:
            assert connection.execute(text(f"SELECT 1 FROM {table} FOR UPDATE")).all()
            yield int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())
            connection.rollback()
    finally:
        operator.dispose()


def number(database: Database, statement: str) -> int:
    with database.read() as connection:
        return int(connection.execute(text(statement)).scalar_one())


def lease_us(database: Database) -> int:
    return number(database, "SELECT expires_at_us FROM gateway")


async def heartbeats_go_on(database: Database, heartbeats: AgentStream) -> None:
    told_us = "SELECT COALESCE(MAX(at_us), 0) FROM source_health"
    before_us = number(database, told_us)
    while number(database, told_us) == before_us:
        await heartbeats.send(heartbeat=Heartbeat(sources=[SourceStatus(source="shop")]))
        await heartbeats.expect("heartbeat_ack")


def test_commits_when_somebody_holds_the_landings_row_then_he_is_named_and_leases_and_heartbeats_go_on(
    database: Database, registry: SqlRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = GatewayMetrics()
    for key in (KEY, OTHER):
        want(database, key, "orders")

    async def scenario() -> None:
        async with (
            running_gateway(
                tmp_path, registry, metrics, lease_seconds=LEASE_SECONDS, heartbeat_interval_ms=100
            ) as address,
            scripted_agent(address, "shop") as agent,
            scripted_agent(address, "shop", tenant="globex") as neighbour,
        ):
            streams = [await each.open_binlog("shop") for each in (agent, neighbour)]
            for stream, run in streams:
                await commit_cut(stream, run, 1, [1])
            heartbeats = await agent.open("Control_Heartbeat")
            with held(database, "landing") as pid:
                for stream, run in streams:
                    await stream.send_batch(change_batch(run, 2, "orders", rows_batch([2])))
                    await stream.send(cut_end=cut_end(run, 2, 2))
                await eventually("it to be said", lambda: "commits of all sources wait for a lock" in caplog.text)
                assert f"process {pid} of user menura, application somebody's?psql, from 127.0.0.1" in caplog.text
                assert metrics.menura_log_waits_for_database == 1
                leased_us = lease_us(database)
                await eventually("the lease to be renewed", lambda: lease_us(database) > leased_us)
                await heartbeats_go_on(database, heartbeats)
                assert (registry.committed(KEY).cut, registry.committed(OTHER).cut) == (1, 1)
            for stream, _ in streams:
                while (await stream.expect("cut_committed")).cut < 2:
                    pass
            assert metrics.menura_log_waits_for_database == 0

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == [1, 1, 2, 2]


def test_leases_when_somebody_holds_the_gateways_row_then_he_is_named_and_commits_and_heartbeats_go_on(
    database: Database, registry: SqlRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    want(database, KEY, "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, lease_seconds=LEASE_SECONDS, heartbeat_interval_ms=100) as address,
            scripted_agent(address, "shop") as agent,
        ):
            stream, run = await agent.open_binlog("shop")
            heartbeats = await agent.open("Control_Heartbeat")
            with held(database, "gateway") as pid:
                await eventually("it to be said", lambda: "renewals of leases wait for a lock" in caplog.text)
                assert f"process {pid} of user menura" in caplog.text
                assert pid in {holder.process for holder in registry.lock_holders()}
                await eventually("the lease to be over", lambda: lease_us(database) < number(database, NOW_US))
                await commit_cut(stream, run, 1, [1])
                await heartbeats_go_on(database, heartbeats)
                stream, run = await agent.open_binlog("shop")  # a run that begins
                await commit_cut(stream, run, 2, [2])
            await eventually("the lease to be renewed", lambda: lease_us(database) > number(database, NOW_US))

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == [1, 2]


NOW_US = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"


def test_commits_when_a_process_of_ours_stands_still_in_a_transaction_then_the_database_ends_it(
    database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    want(database, KEY, "orders")
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders"))))
    monkeypatch.setattr(databases, "IDLE_SECONDS", 1)
    stopped = existing_database(database.engine.url.render_as_string(hide_password=False))
    try:
        with pytest.raises(DBAPIError), stopped.engine.connect() as connection:
            connection.execute(text("SELECT 1 FROM landing FOR UPDATE"))
            registry.apply_entry(LANDING, entry(2, cut(2, file("orders"))))
            assert registry.committed(KEY).cut == 2
            connection.execute(text("SELECT 1"))
    finally:
        stopped.close()
