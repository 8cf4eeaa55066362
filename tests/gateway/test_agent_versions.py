"""Control_Config: what an agent says of its software is recorded; agents of the version before stream on."""

import asyncio
import threading
from collections.abc import Collection
from pathlib import Path

import pytest
from menura.protocol import LEAST_PROTOCOL_VERSION
from menura.v1.config_pb2 import EffectiveVersion, PackageRequest
from menura.v1.error_pb2 import Error
from sqlalchemy import select

from controlplane_api.models import AgentVersion
from gateway.registry import AgentName, VersionSeen
from tests.gateway.harness import running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import commit_cut, eventually, scripted_agent
from tests.gateway.sql_registry import open_registry

AGENT = ("acme", "agent-1")


class HeldRegistry(MemoryRegistry):
    """Its first writes of a version wait, each until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = threading.Semaphore(0)
        self.looks = 0
        self.written: list[str] = []

    def version_orders(self, names: Collection[AgentName]) -> dict[AgentName, int]:
        self.looks += 1
        return super().version_orders(names)

    def record_version(self, name: AgentName, seen: VersionSeen, at_us: int) -> bool:
        if seen.state == "RUNNING":
            self.may_write.acquire()
        self.written.append(seen.state)
        return super().record_version(name, seen, at_us)


def test_version_when_an_agent_says_it_then_the_last_one_stands_in_the_database(tmp_path: Path) -> None:
    database, registry = open_registry(tmp_path / "control.db")

    def recorded() -> list[tuple[str, str, str, str, int]]:
        with database.read() as connection:
            row = AgentVersion
            statement = select(row.version, row.format, row.machine, row.state, row.downloaded_bytes)
            return [tuple(each) for each in connection.execute(statement)]

    def problem() -> str:
        with database.read() as connection:
            return (connection.execute(select(AgentVersion.problem)).scalar() or {}).get("code", "")

    async def scenario() -> None:
        async with running_gateway(tmp_path / "landing", registry) as address, scripted_agent(address) as agent:
            control = await agent.open("Control_Config")
            await control.expect("desired_sources")
            await control.send(
                effective_version=EffectiveVersion(
                    version="0.1.0", format="deb", machine="x86_64", state=EffectiveVersion.RUNNING
                )
            )
            await eventually("it to be recorded", lambda: recorded() == [("0.1.0", "deb", "x86_64", "RUNNING", 0)])
            await control.send(
                effective_version=EffectiveVersion(
                    version="0.1.0",
                    format="deb",
                    machine="x86_64",
                    state=EffectiveVersion.REFUSED,
                    downloaded_bytes=2**64 - 1,
                    error=Error(code="UPGRADES_OFF", doing="upgrading", found="no key is there"),
                )
            )
            await eventually("the refusal to be there", lambda: problem() == "UPGRADES_OFF")
            assert recorded() == [("0.1.0", "deb", "x86_64", "REFUSED", 2**63 - 1)]

    asyncio.run(scenario())
    database.close()


def test_version_when_its_write_is_slow_then_what_is_said_next_is_written_after_it(tmp_path: Path) -> None:
    registry = HeldRegistry()

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address) as agent:
            control = await agent.open("Control_Config")
            await control.expect("desired_sources")
            await control.send(effective_version=EffectiveVersion(version="1", state=EffectiveVersion.RUNNING))
            looks = registry.looks
            await eventually("looks that find it not recorded", lambda: registry.looks > looks + 5)
            registry.may_write.release()
            await eventually("its one write", lambda: registry.written)
            await control.send(effective_version=EffectiveVersion(version="1", state=EffectiveVersion.REFUSED))
            await eventually("the next write", lambda: "REFUSED" in registry.written)
            registry.may_write.release(5)  # for writes that would come again

    asyncio.run(scenario())
    assert registry.written == ["RUNNING", "REFUSED"]


def test_package_when_none_is_desired_then_the_request_is_refused_and_the_stream_goes_on(tmp_path: Path) -> None:
    registry = MemoryRegistry()

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address) as agent:
            control = await agent.open("Control_Config")
            await control.expect("desired_sources")
            await control.send(package_request=PackageRequest(sha256="0" * 64, offset=0))
            assert (await control.expect("error")).code == "PACKAGE_NOT_DESIRED"
            await control.send(effective_version=EffectiveVersion(version="1", state=EffectiveVersion.RUNNING))
            await eventually("the stream to be read on", lambda: AGENT in registry.versions)

    asyncio.run(scenario())


@pytest.mark.parametrize("state", [0, 99])
def test_version_when_its_state_is_none_then_the_stream_ends_and_nothing_is_recorded(
    tmp_path: Path, state: EffectiveVersion.State
) -> None:
    registry = MemoryRegistry()

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address) as agent:
            control = await agent.open("Control_Config")
            await control.expect("desired_sources")
            await control.send(effective_version=EffectiveVersion(version="1", state=state))
            assert (await control.expect_error()).code == "PAYLOAD_INVALID"
        assert registry.versions == {}

    asyncio.run(scenario())


def test_agent_when_it_speaks_the_protocol_before_then_its_rows_are_committed(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            control = await agent.open("Control_Config", protocol=LEAST_PROTOCOL_VERSION)
            await control.expect("desired_state")
            stream = await agent.open("MySQLBinlog", "shop", protocol=LEAST_PROTOCOL_VERSION)
            replicate = await stream.expect("replicate")
            await stream.wait_credit()
            await commit_cut(stream, replicate, 1, [1])

    asyncio.run(scenario())
    assert len(registry.entries) == 1
