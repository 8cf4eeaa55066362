"""What one hostile agent holds of the gateway, over real gRPC: others commit and report meanwhile."""

import asyncio
import itertools
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from menura.v1.catalog_pb2 import Cartography, TableCard
from menura.v1.config_pb2 import EffectiveState, TableName, TableState

from gateway.registry import SourceKey, TableSeen
from tests.gateway.harness import landed_gsns, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import (
    OPTIONS,
    ScriptedAgent,
    change_batch,
    commit_cut,
    cut_end,
    eventually,
    rows_batch,
    scripted_agent,
)

HONEST = SourceKey("globex", "shop")
SOURCES = [f"source-{number}" for number in range(12)]


@pytest.fixture
def registry() -> "WaitingForItsDatabase":
    registry = WaitingForItsDatabase()
    for source in SOURCES:
        registry.want("acme", source, "orders")
    registry.want("globex", "shop", "orders")
    return registry


class WaitingForItsDatabase(MemoryRegistry):
    """Tables of tenant acme are not recorded before `free` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.waiting = 0

    def record_tables(self, key: SourceKey, tables: Sequence[TableSeen], gone: Sequence[tuple[str, str]]) -> None:
        if key.tenant == "acme":
            self.waiting += 1
            self.free.wait()
        super().record_tables(key, tables, gone)


def tables(count: int) -> list[TableCard]:
    return [TableCard(table=TableName(database="shop", table=f"table_{number}")) for number in range(count)]


async def tell_tables(agent: ScriptedAgent, count: int) -> None:
    """On a stream of each source, before the first of them is said."""
    streams = [(source, await agent.open("MySQLClient", source)) for source in SOURCES]
    for _, stream in streams:
        await stream.expect("cartography_request")
    for source, stream in streams:
        await stream.send(cartography=Cartography(source=source, flavor="mysql", tables=tables(count)))


async def commit_and_report(honest: ScriptedAgent, registry: MemoryRegistry) -> None:
    """Rows beyond what is free while others hold their shares, and a report."""
    control = await honest.open("Control_Config")
    await control.expect("desired_state")
    stream, run = await honest.open_binlog("shop")
    await commit_cut(stream, run, 1, [1])
    await stream.send_batch(change_batch(run, 2, "orders", rows_batch(range(2, 4_000), note="x" * 100)))
    await stream.send(cut_end=cut_end(run, 2, 3_999))
    await stream.expect("cut_committed")
    states = [TableState(table=TableName(database="shop", table=f"table_{number}")) for number in range(1_000)]
    await control.send(effective_state=EffectiveState(source="shop", generation=1, tables=states))
    await eventually("the report", lambda: HONEST in registry.effective)


def small_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.backlog.MAX_ROWS_BYTES", 1 << 20)
    monkeypatch.setattr("gateway.backlog.MAX_REPORTS_BYTES", 1 << 20)


def test_reports_when_an_agent_has_told_more_than_its_quota_then_what_it_owes_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: WaitingForItsDatabase
) -> None:
    """D1: each held its message while it waited for its rate, and 40 KB a second stopped the landing of all."""
    small_budgets(monkeypatch)
    monkeypatch.setattr("gateway.quotas.BURST_ROWS", 5_000)
    monkeypatch.setattr("gateway.quotas.ROWS_PER_SECOND", 1)
    registry.free.set()

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry) as address,
            scripted_agent(address, *SOURCES) as hostile,
            scripted_agent(address, "shop", tenant="globex") as honest,
        ):
            await tell_tables(hostile, 2_000)
            await eventually("more than the quota", lambda: sum(map(len, registry.cartography.values())) > 5_000)
            with pytest.raises(TimeoutError):
                await (await hostile.open("MySQLClient", SOURCES[0])).expect("hello_ack", seconds=2)
            await (await hostile.open("Control_Heartbeat")).expect("hello_ack")
            await commit_and_report(honest, registry)

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == list(range(1, 4_000))


def test_reports_when_the_database_is_slow_with_one_tenants_then_others_have_their_turn_and_their_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: WaitingForItsDatabase
) -> None:
    """D2: cartographies that waited for their turn held what all rows needed."""
    small_budgets(monkeypatch)

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry) as address,
            scripted_agent(address, *SOURCES) as hostile,
            scripted_agent(address, "shop", tenant="globex") as honest,
        ):
            try:
                await tell_tables(hostile, 2_000)
                await eventually("the database to be asked", lambda: registry.waiting > 0)
                await commit_and_report(honest, registry)
            finally:
                registry.free.set()

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == list(range(1, 4_000))


def test_landing_when_an_agent_does_not_read_then_its_rows_land_and_its_stream_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    registry: WaitingForItsDatabase,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """D3: the landing waited until the agent took its credit, with all that the agent had sent in memory."""
    small_budgets(monkeypatch)
    monkeypatch.setattr("gateway.stream.MAX_POSTED", 64)
    # so that the client's gRPC takes 64 KiB at most before it is read
    small_window = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_535))
    monkeypatch.setattr("tests.gateway.scripted_agent.OPTIONS", (*OPTIONS, *small_window))

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry) as address,
            scripted_agent(address, *SOURCES) as hostile,
            scripted_agent(address, "shop", tenant="globex") as honest,
        ):
            stream, run = await hostile.open_binlog(SOURCES[0])
            for cut in itertools.count(1):
                gsns = range(50 * cut - 49, 50 * cut + 1)
                batch = change_batch(run, cut, "orders", rows_batch(gsns, note="x" * 100))
                await asyncio.wait_for(stream.send(change_batch=batch), 60)
                await asyncio.wait_for(stream.send(cut_end=cut_end(run, cut, gsns[-1])), 60)
                if "AGENT_NOT_READING" in caplog.text:
                    break
            await commit_and_report(honest, registry)

    with caplog.at_level("WARNING"):
        asyncio.run(scenario())
    assert registry.committed(HONEST).last_gsn == 3_999
