"""What one hostile agent holds of the gateway, over real gRPC: others commit and report meanwhile."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from menura.message_parts import PART_BYTES, in_parts
from menura.v1.catalog_pb2 import Cartography, TableCard
from menura.v1.config_pb2 import EffectiveState, Heartbeat, SourceStatus, TableName, TableState
from menura.v1.stream_pb2 import MessagePart, StreamResponse

from gateway.metrics import GatewayMetrics
from gateway.registry import SourceKey, TableSeen
from tests.gateway.harness import landed_gsns, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import (
    OPTIONS,
    AgentStream,
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


#: so that the client's gRPC takes 4 KiB at most before it is read: what is sent until then is what these tests cost
SMALL_WINDOW = (*OPTIONS, ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4_096))


async def commit_without_reading(agent: ScriptedAgent, source: str, log: pytest.LogCaptureFixture) -> AgentStream:
    """A stream of changes until the gateway gives it up; its call stays open."""
    stream, run = await agent.open_binlog(source)

    def is_given_up() -> bool:
        return "AGENT_NOT_READING" in log.text

    async def send() -> None:
        """The last message may wait: the gateway reads no further, and the agent nothing."""
        for cut in itertools.takewhile(lambda _: not is_given_up(), itertools.count(1)):
            gsns = range(50 * cut - 49, 50 * cut + 1)
            await stream.send(change_batch=change_batch(run, cut, "orders", rows_batch(gsns, note="x" * 100)))
            await stream.send(cut_end=cut_end(run, cut, gsns[-1]))

    sending = asyncio.create_task(send())
    sending.add_done_callback(lambda task: task.cancelled() or task.exception())  # its call ends while it waits
    await eventually("the gateway to give the stream up", is_given_up)
    return stream


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
    monkeypatch.setattr("tests.gateway.scripted_agent.OPTIONS", SMALL_WINDOW)

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry) as address,
            scripted_agent(address, *SOURCES) as hostile,
            scripted_agent(address, "shop", tenant="globex") as honest,
        ):
            await commit_without_reading(hostile, SOURCES[0], caplog)
            await commit_and_report(honest, registry)

    with caplog.at_level("WARNING"):
        asyncio.run(scenario())
    assert registry.committed(HONEST).last_gsn == 3_999


@asynccontextmanager
async def ended_unread(
    landing: Path, registry: WaitingForItsDatabase, caplog: pytest.LogCaptureFixture, **settings: int
) -> AsyncIterator[tuple[ScriptedAgent, AgentStream]]:
    """An agent, and its stream that the gateway has ended while the agent reads nothing of it."""
    metrics = GatewayMetrics()
    async with (
        running_gateway(landing, registry, metrics, **settings) as address,
        scripted_agent(address, *SOURCES) as agent,
    ):
        unread = await commit_without_reading(agent, SOURCES[0], caplog)
        await eventually("the gateway to be done with it", lambda: metrics.menura_session_open_streams == 1)
        yield agent, unread


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little waits for an agent that does not read, and not for long."""
    monkeypatch.setattr("gateway.stream.MAX_POSTED", 64)
    monkeypatch.setattr("gateway.stream.FAIL_SECONDS", 0.2)
    monkeypatch.setattr("tests.gateway.scripted_agent.OPTIONS", SMALL_WINDOW)


@pytest.mark.usefixtures("impatient")
def test_place_of_a_stream_when_the_gateway_has_ended_it_and_its_agent_does_not_read_then_it_is_taken_until_it_does(
    tmp_path: Path, registry: WaitingForItsDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """gRPC holds what the agent has not read: an agent that opened streams anew had any number of them there."""

    async def scenario() -> None:
        async with ended_unread(tmp_path, registry, caplog, max_streams=2) as (hostile, unread):
            again = await hostile.open("MySQLBinlog", SOURCES[1])
            assert (await again.expect_error(seconds=300)).code == "TOO_MANY_STREAMS"
            await unread.close()
            for _ in range(100):  # gRPC tells the gateway when it hears of it
                again = await hostile.open("MySQLBinlog", SOURCES[1])
                try:
                    await again.expect("hello_ack", seconds=300)
                    break
                except EOFError:
                    await again.close()
            else:
                raise AssertionError("its place was never free")

    with caplog.at_level("WARNING"):
        asyncio.run(scenario())


@pytest.mark.usefixtures("impatient")
def test_stream_when_its_agent_reads_after_the_gateway_has_ended_it_then_hears_why(
    tmp_path: Path, registry: WaitingForItsDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """gRPC can't end a stream beside a message that waits for the agent: it logged a fault, and the agent waited."""

    async def scenario() -> None:
        async with ended_unread(tmp_path, registry, caplog) as (_, unread):
            assert (await unread.expect_error()).code == "AGENT_NOT_READING"

    with caplog.at_level("WARNING"):
        asyncio.run(scenario())
    assert "raised in core" not in caplog.text


def test_heartbeats_when_their_agent_does_not_read_the_answers_then_nothing_of_them_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: WaitingForItsDatabase
) -> None:
    """The share of reports is so small that one heartbeat held would keep the agent's report from being read."""
    monkeypatch.setattr("gateway.backlog.MAX_REPORTS_BYTES", 256 << 10)
    monkeypatch.setattr("gateway.stream.MAX_POSTED", 100_000)
    monkeypatch.setattr("gateway.stream.SEND_SECONDS", 600.0)
    monkeypatch.setattr("tests.gateway.scripted_agent.OPTIONS", SMALL_WINDOW)

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry) as address,
            scripted_agent(address, "shop", tenant="globex") as agent,
        ):
            control = await agent.open("Control_Config")
            await control.expect("desired_state")
            heartbeats = await agent.open("Control_Heartbeat")
            status = SourceStatus(source="shop", read_position="x" * 24_000)

            async def beat() -> None:
                for _ in range(1_500):
                    await heartbeats.send(heartbeat=Heartbeat(sources=[status]))

            beating = asyncio.create_task(beat())
            await asyncio.wait({beating}, timeout=300)
            states = [TableState(table=TableName(database="shop", table=f"table_{number}")) for number in range(1_000)]
            await control.send(effective_state=EffectiveState(source="shop", generation=1, tables=states))
            await eventually("the report", lambda: HONEST in registry.effective, seconds=300)
            assert beating.done()

    asyncio.run(scenario())


def test_parts_when_they_go_on_beyond_their_tenants_share_then_they_have_to_hurry_and_others_have_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: WaitingForItsDatabase
) -> None:
    """A message that stalls for a minute would keep its tenant's others, and what it holds of all, for as long."""
    monkeypatch.setattr("gateway.backlog.MAX_PARTS_BYTES", 4 * PART_BYTES)
    monkeypatch.setattr("gateway.stream.PART_SECONDS", 600.0)
    monkeypatch.setattr("gateway.stream.CROWDED_SECONDS", 0.5)
    registry.free.set()

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry) as address,
            scripted_agent(address, SOURCES[0]) as hostile,
            scripted_agent(address, "shop", tenant="globex") as slow,
        ):
            told = Cartography(source="shop", flavor="mysql", digest=b"x", last=True, tables=tables(10_000))
            catalog = await slow.open("MySQLClient", "shop")
            await catalog.expect("cartography_request")
            catalog.header.sequence += 1
            message = StreamResponse(header=catalog.header, cartography=told).SerializeToString()
            first, *others = in_parts(message)
            await catalog.call.write(first)
            stream = await hostile.open("MySQLClient", SOURCES[0])
            await stream.expect("cartography_request")
            part = MessagePart(whole_bytes=16 * PART_BYTES, data=bytes(PART_BYTES))
            for _ in range(2):
                await stream.call.write(StreamResponse(part=part).SerializeToString())
            error = await stream.expect_error(seconds=300)
            assert (error.code, "nothing for 0.5 s" in error.found) == ("MESSAGE_STALLED", True)
            for rest in others:
                await catalog.call.write(rest)
            await eventually("the tables", lambda: len(registry.cartography.get(HONEST, ())) == 10_000, seconds=300)

    asyncio.run(scenario())
