"""Heartbeats of many agents, written together."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from menura.v1.config_pb2 import Heartbeat, SourceStatus

from gateway.heartbeats import Heartbeats
from gateway.metrics import GatewayMetrics
from gateway.presence import MAX_HELLO_SOURCES
from gateway.registry import HeartbeatSeen, RegistryUnavailable, SourceHealth
from gateway.shares import FairThreads, Turns
from gateway.tasks import Reports
from tests.gateway.harness import running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import eventually, scripted_agent


def beat(agent: int, sources: int = 1, at_us: int = 1) -> HeartbeatSeen:
    health = [SourceHealth(f"s{number}", "", "", None, 0, 0, 0, 0, 0) for number in range(sources)]
    return HeartbeatSeen("acme", f"agent-{agent}", 1, 1, health, at_us)


def test_interval_when_a_gateway_has_more_agents_then_those_that_are_there_hear_of_a_longer_one_and_of_a_shorter_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.heartbeats.MOST_A_SECOND", 1)
    registry = MemoryRegistry()

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            beats = await agent.open("Control_Heartbeat")
            assert (await beats.expect("hello_ack")).heartbeat_interval_ms == 1_000

            async def interval_ms() -> int:
                await beats.send(heartbeat=Heartbeat(sources=[SourceStatus(source="shop")]))
                return int((await beats.expect("heartbeat_ack")).heartbeat_interval_ms)

            assert await interval_ms() == 1_000
            async with AsyncExitStack() as others:
                for number in range(6):
                    other = scripted_agent(address, tenant="globex", agent=f"agent-{number}")
                    await others.enter_async_context(other)
                    assert await interval_ms() == min(1_000 * (number + 2), 5_000)
                while not any(seen.interval_ms == 5_000 for seen in registry.heartbeats):
                    await interval_ms()
            while await interval_ms() != 1_000:
                pass

    asyncio.run(scenario())


def test_a_heartbeat_when_it_has_more_sources_than_an_agent_may_have_then_its_stream_ends_and_others_go_on(
    tmp_path: Path,
) -> None:
    """All that it said was looked at in one step of the event loop."""

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, MemoryRegistry()) as address,
            scripted_agent(address, "shop") as hostile,
            scripted_agent(address, "shop", tenant="globex") as honest,
        ):
            beats = await honest.open("Control_Heartbeat")
            for count, answer in ((MAX_HELLO_SOURCES, "heartbeat_ack"), (MAX_HELLO_SOURCES + 1, "error")):
                stream = await hostile.open("Control_Heartbeat")
                await stream.send(heartbeat=Heartbeat(sources=[SourceStatus(source="shop")] * count))
                said = await stream.expect(answer)
            assert (said.code, said.found) == ("PAYLOAD_INVALID", "1001 sources, at most 1000")
            await beats.send(heartbeat=Heartbeat())
            await beats.expect("heartbeat_ack")

    asyncio.run(scenario())


def test_heartbeats_when_many_agents_send_some_then_the_newest_of_each_is_written_in_few_pieces() -> None:
    written: list[Sequence[HeartbeatSeen]] = []
    refused: list[Sequence[HeartbeatSeen]] = []

    def record(beats: Sequence[HeartbeatSeen]) -> None:
        if not refused:
            refused.append(beats)
            raise RegistryUnavailable("away")
        written.append(beats)

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as threads:
            heartbeats = Heartbeats(Reports(GatewayMetrics(), FairThreads(threads, Turns())), record, 0.01)
            heartbeats.tell(beat(0))
            running = asyncio.create_task(heartbeats.run())
            await eventually("the registry to be away once", lambda: refused)
            for agent in range(1_000):  # without a pause, so that all are there at the next writing
                heartbeats.tell(beat(agent))
                heartbeats.tell(beat(agent, at_us=2))
            heartbeats.tell(beat(1_000, sources=2_000))
            heartbeats.tell(beat(1_001))
            await heartbeats.forget(("acme", "agent-1001"))
            await eventually("all to be written", lambda: sum(map(len, written)) >= 1_001)
            running.cancel()

    asyncio.run(scenario())
    assert [len(piece) for piece in written] == [250] * 4 + [1]
    assert {found.at_us for piece in written[:4] for found in piece} == {2}


def test_an_agent_when_it_is_forgotten_then_waits_for_its_own_heartbeat_alone_and_none_is_written_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.heartbeats.PIECE_ROWS", 4)
    begun, go_on = threading.Event(), threading.Event()
    written: list[str] = []

    def record(beats: Sequence[HeartbeatSeen]) -> None:
        begun.set()
        assert go_on.wait(60)
        written.extend(seen.agent for seen in beats)

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as threads:
            heartbeats = Heartbeats(Reports(GatewayMetrics(), FairThreads(threads, Turns())), record, 0.01)
            for agent in range(4):
                heartbeats.tell(beat(agent))
            running = asyncio.create_task(heartbeats.run())
            await eventually("the first piece to be in writing", begun.is_set)
            heartbeats.tell(beat(4))
            heartbeats.tell(beat(5))
            try:
                async with asyncio.timeout(60):
                    for other in (3, 4, 6):  # of the next piece, of the next interval, of none
                        await heartbeats.forget(("acme", f"agent-{other}"))
                own = asyncio.create_task(heartbeats.forget(("acme", "agent-0")))
                for _ in range(10):
                    await asyncio.sleep(0)
                assert not own.done()
            finally:
                go_on.set()
            await own
            assert "agent-0" in written
            await eventually("the others to be written", lambda: "agent-5" in written)
            running.cancel()

    asyncio.run(scenario())
    assert written == ["agent-0", "agent-1", "agent-2", "agent-5"]
