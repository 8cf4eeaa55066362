"""Who holds a source when sessions of one agent follow each other, and who stays when two of them are there."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from menura.v1.config_pb2 import Heartbeat

from gateway.errors import DuplicateAgent
from gateway.presence import LIVING_HEARTBEATS, Presence
from gateway.registry import AgentName, GatewayRun, PresentElsewhere
from tests.gateway.harness import running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import OPTIONS, ScriptedAgent, eventually, scripted_agent

SILENT_SECONDS = 0.1


def run(scenario: Callable[[Presence], Awaitable[None]], silent_seconds: float = SILENT_SECONDS) -> None:
    async def main() -> None:
        await scenario(Presence(silent_seconds))

    asyncio.run(main())


def test_hold_when_the_session_was_replaced_then_the_newer_one_gets_the_source() -> None:
    async def scenario(presence: Presence) -> None:
        older = await presence.open("acme", "agent-1", "older")
        assert presence.hold(older, ["shop"]) == ["shop"]
        newer = await presence.open("acme", "agent-1", "newer")
        assert older.replaced.is_set()
        assert presence.hold(older, ["shop"]) == []
        assert presence.hold(newer, ["shop"]) == ["shop"]

    run(scenario)


def test_session_when_it_lives_then_it_stays_and_a_newer_one_of_its_agent_is_refused() -> None:
    async def scenario(presence: Presence) -> None:
        older = await presence.open("acme", "agent-1", "older")
        newer = asyncio.create_task(presence.open("acme", "agent-1", "newer"))
        await asyncio.sleep(0)
        older.heartbeats += LIVING_HEARTBEATS
        with pytest.raises(DuplicateAgent, match="another process is agent agent-1, and lives"):
            await newer
        assert not older.replaced.is_set()
        assert presence.hold(older, ["shop"]) == ["shop"]

    run(scenario, silent_seconds=300)


def test_session_when_its_last_heartbeat_was_on_its_way_then_a_newer_one_replaces_it() -> None:
    async def scenario(presence: Presence) -> None:
        older = await presence.open("acme", "agent-1", "older")
        newer = asyncio.create_task(presence.open("acme", "agent-1", "newer"))
        await asyncio.sleep(0)
        older.heartbeats += 1
        assert (await newer).session == "newer"
        assert older.replaced.is_set()

    run(scenario)


def test_session_when_the_older_one_ends_meanwhile_then_it_opens() -> None:
    async def scenario(presence: Presence) -> None:
        older = await presence.open("acme", "agent-1", "older")
        newer = asyncio.create_task(presence.open("acme", "agent-1", "newer"))
        await asyncio.sleep(0)
        presence.leave(older)
        assert (await newer).session == "newer"
        assert not older.replaced.is_set()

    run(scenario, silent_seconds=300)


def test_copy_of_an_agent_when_the_agent_lives_then_each_stream_of_the_copy_is_refused_and_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """68 replacements in 40 s, and the status said that all was well."""
    monkeypatch.setattr("gateway.presence.ANNOUNCE_SECONDS", 0.1)  # the agent's own session is there
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, heartbeat_interval_ms=60_000) as address,
            scripted_agent(address, "shop") as agent,
        ):
            control = await agent.open("Control_Config")
            await control.expect("desired_state")
            heart = await agent.open("Control_Heartbeat")

            async def beat() -> None:
                while True:
                    await heart.send(heartbeat=Heartbeat())
                    await heart.expect("heartbeat_ack")
                    await asyncio.sleep(0.02)

            beating = asyncio.create_task(beat())
            mine, agent.session = agent.session, "another-process"
            assert (await (await agent.open("Control_Config")).expect_error()).code == "DUPLICATE_AGENT"
            assert (await (await agent.open("MySQLBinlog", "shop")).expect_error()).code == "DUPLICATE_AGENT"
            agent.session = mine
            stream, _ = await agent.open_binlog("shop")
            await eventually("it to be shown", lambda: [problem.code for _, problem in registry.refusals])
            assert {(name, problem.code) for name, problem in registry.refusals} == {
                (("acme", "agent-1"), "DUPLICATE_AGENT")
            }
            beating.cancel()
            await stream.close()

    asyncio.run(scenario())


class Elsewhere(MemoryRegistry):
    """The agent is at a gateway whose lease is neither renewed nor over."""

    asked = 0

    def take_presence(self, name: AgentName, gateway: GatewayRun, session: str) -> int | PresentElsewhere:
        self.asked += 1
        return PresentElsewhere("other", "run", 1)


def test_session_when_it_is_replaced_while_another_gateway_has_its_agent_then_it_waits_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the agent from the newer session, which then ended."""
    monkeypatch.setattr("gateway.server.SILENT_INTERVALS", 1)
    registry = Elsewhere()

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, heartbeat_interval_ms=100) as address,
            grpc.aio.insecure_channel(address, options=OPTIONS) as channel,
        ):
            agent = ScriptedAgent(channel, "acme", "agent-1", ("shop",))
            older = await agent.open("Control_Config")
            await eventually("it to ask for the agent", lambda: registry.asked)
            agent.session = "another-process"
            await agent.open("Control_Config")
            assert (await older.expect_error()).code == "SESSION_REPLACED"

    asyncio.run(scenario())
