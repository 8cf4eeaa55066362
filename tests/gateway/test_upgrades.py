"""Rollouts over agents' own streams: what each is given, how it gets the bytes, and what becomes of it.

The agents are scripted; what they download, and from which gateway, is real.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from menura.protocol import LEAST_PROTOCOL_VERSION
from menura.v1.config_pb2 import AgentPackage, DesiredVersion, EffectiveVersion, PackageRequest
from sqlalchemy import select

from controlplane_api import rollout_turns, rollouts
from controlplane_api.database import Database
from controlplane_api.models import Agent, AgentVersion, Rollout, Tenant
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.rollouts import Group, Order
from gateway import packages
from gateway.registry import SourceKey
from tests.controlplane_api.upgrade_facts import NEW, OLD, add_release, order, package_bytes, states, tenant_id
from tests.gateway.harness import running_gateway
from tests.gateway.scripted_agent import AgentStream, commit_cut, eventually, scripted_agent
from tests.gateway.sql_registry import open_registry, want


@pytest.fixture(autouse=True)
def quick_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_turns, "TURN_US", 20_000)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Database, SqlRegistry]]:
    database, registry = open_registry(tmp_path / "control.db")
    for tenant in ("acme", "globex"):
        for version in (OLD, NEW):
            add_release(database, tenant, version)
    yield database, registry
    database.close()


def start(database: Database, wanted: Order, tenant: str = "acme") -> int:
    with database.write() as connection:
        return rollouts.start(connection, tenant_id(connection, tenant), wanted, "admin", 1)


def rollout_state(database: Database, rollout: int) -> str:
    with database.read() as connection:
        return str(connection.execute(select(Rollout.state).where(Rollout.id == rollout)).scalar_one())


async def download(control: AgentStream, package: AgentPackage) -> bytes:
    data = b""
    while len(data) < package.size_bytes:
        await control.send(package_request=PackageRequest(sha256=package.sha256, offset=len(data)))
        piece = await control.expect("package_piece")
        assert (piece.sha256, piece.offset) == (package.sha256, len(data))
        assert 0 < len(piece.data) <= 128 << 10
        data += piece.data
    assert hashlib.sha256(data).hexdigest() == package.sha256
    return data


@dataclass
class Host:
    """An agent with the updater of its host, by their words; begins anew where its gateway is gone."""

    name: str
    addresses: list[str]
    tenant: str = "acme"
    breaks: bool = False
    version: str = OLD
    got: list[bytes] = field(default_factory=list)
    orders: list[int] = field(default_factory=list)

    async def run(self) -> None:
        word: dict[str, Any] = {"state": EffectiveVersion.RUNNING}
        while True:
            with suppress(grpc.RpcError, EOFError, AssertionError, asyncio.InvalidStateError):
                async with scripted_agent(self.addresses[0], tenant=self.tenant, agent=self.name) as agent:
                    control = await agent.open("Control_Config")
                    await control.expect("desired_sources")
                    word = await self._serve(control, word)
            await asyncio.sleep(0.05)

    async def _serve(self, control: AgentStream, word: dict[str, Any]) -> dict[str, Any]:
        """Until it begins anew with another version; what it says then."""
        await self._say(control, **word)
        while True:
            desired: DesiredVersion = await control.expect("desired_version", 600)
            assert desired.way_back.version == self.version
            self.orders.append(desired.generation)
            await self._say(control, generation=desired.generation, state=EffectiveVersion.DOWNLOADING)
            self.got = [await download(control, one) for one in (desired.package, desired.way_back)]
            await self._say(control, generation=desired.generation, state=EffectiveVersion.INSTALLING)
            if self.breaks:
                return {"generation": desired.generation, "state": EffectiveVersion.ROLLED_BACK}
            self.version = desired.package.version
            return {"generation": desired.generation, "state": EffectiveVersion.RUNNING}

    async def _say(self, control: AgentStream, **word: Any) -> None:
        said = {"version": self.version, "format": "deb", "machine": "x86_64", **word}
        await control.send(effective_version=EffectiveVersion(**said))


@asynccontextmanager
async def running(hosts: list[Host], registry: SqlRegistry, database: Database) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(host.run()) for host in hosts]
    names = {(host.tenant, host.name) for host in hosts}
    try:
        await eventually("all to have said their version", lambda: versions_said(database) >= names)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def versions_said(database: Database) -> set[tuple[str, str]]:
    with database.read() as connection:
        said = select(Tenant.name, Agent.name).join(Agent, Agent.tenant_id == Tenant.id)
        return {(row[0], row[1]) for row in connection.execute(said.join(AgentVersion))}


def test_fleet_when_a_gateway_ends_in_the_middle_then_all_get_the_version_once_over_the_other(
    tmp_path: Path, opened: tuple[Database, SqlRegistry]
) -> None:
    database, registry = opened
    settings = {"rollout_seconds": 0.02, "lease_seconds": 2}

    async def scenario() -> None:
        landing = tmp_path / "landing"
        async with running_gateway(landing, registry, name="one", **settings) as first:
            ended = asyncio.Event()
            second = asyncio.Future[str]()

            async def other() -> None:
                async with running_gateway(landing, SqlRegistry(database), name="two", **settings) as address:
                    second.set_result(address)
                    await ended.wait()

            task = asyncio.create_task(other())
            addresses = [first]
            elsewhere = [await second]
            hosts = [Host(f"db-{n:02}", addresses if n % 2 else elsewhere) for n in range(12)]
            async with running(hosts, registry, database):
                rollout = start(database, order(at_once=3))
                most = 0

                def done() -> int:
                    nonlocal most
                    found = list(states(database, rollout).values())
                    most = max(most, sum(state in ("offered", "downloading", "installing") for state in found))
                    return found.count("done")

                await eventually("some to be done", lambda: done() >= 4)
                elsewhere[0] = first
                ended.set()
                await task
                await eventually("all to be done", lambda: done() == 12, 300)
                await eventually("its end", lambda: rollout_state(database, rollout) == "done")
            assert most <= 3
            assert {host.version for host in hosts} == {NEW}
            assert all(host.got == [package_bytes(NEW, "deb"), package_bytes(OLD, "deb")] for host in hosts)
            assert all(set(host.orders) == {1} for host in hosts)

    asyncio.run(scenario())


def test_canary_when_its_host_rolls_back_then_no_other_agent_is_asked_and_back_is_ordered_over_the_same_path(
    tmp_path: Path, opened: tuple[Database, SqlRegistry]
) -> None:
    database, registry = opened

    async def scenario() -> None:
        async with running_gateway(tmp_path / "landing", registry, rollout_seconds=0.02) as address:
            hosts = [Host(f"db-{n}", [address], breaks=n == 1) for n in range(4)]
            async with running(hosts, registry, database):
                groups = (Group("first", ("db-0",)), Group("second", ("db-1",)), Group("rest", ("*",)))
                rollout = start(database, order(*groups))
                await eventually("it to halt", lambda: rollout_state(database, rollout) == "halted")
                assert states(database, rollout) == {
                    "db-0": "done", "db-1": "failed", "db-2": "waiting", "db-3": "waiting"
                }  # fmt: skip
                with database.write() as connection:
                    back = rollouts.back(connection, tenant_id(connection, "acme"), "admin", 1)
                await eventually("the way back", lambda: rollout_state(database, back) == "done")
                assert hosts[0].version == OLD
                assert [host.orders for host in hosts] == [[1, 2], [1], [], []]

    asyncio.run(scenario())


def test_package_when_an_agent_asks_for_what_is_not_its_own_or_for_ever_then_it_is_refused_and_others_are_served(
    tmp_path: Path, opened: tuple[Database, SqlRegistry], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    database, registry = opened
    monkeypatch.setattr(packages, "MOST_COPIES", 2)

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path / "landing", registry, rollout_seconds=0.02) as address,
            scripted_agent(address, tenant="globex", agent="db-1") as stranger,
            scripted_agent(address, agent="greedy") as agent,
        ):
            foreign = await stranger.open("Control_Config")
            await foreign.expect("desired_sources")
            control = await agent.open("Control_Config")
            said = EffectiveVersion(version=OLD, format="deb", machine="x86_64", state=EffectiveVersion.RUNNING)
            await control.send(effective_version=said)
            await eventually("its version", lambda: ("acme", "greedy") in versions_said(database))
            start(database, order())
            desired = await control.expect("desired_version")
            wanted = PackageRequest(sha256=desired.package.sha256, offset=0)
            await foreign.send(package_request=wanted)
            assert (await foreign.expect("error")).code == "PACKAGE_NOT_DESIRED"
            for sha256, offset in (("0" * 64, 0), (wanted.sha256, desired.package.size_bytes)):
                await control.send(package_request=PackageRequest(sha256=sha256, offset=offset))
                assert (await control.expect("error")).code == "PACKAGE_NOT_DESIRED"
            served = 0
            while True:
                await control.send(package_request=wanted)
                await control._receive()
                message = control.unread.pop()
                if message.WhichOneof("payload") == "error":
                    assert "many times" in message.error.found
                    break
                served += len(message.package_piece.data)
            assert served <= 2 * 600_000 + (128 << 10)
        refused = [line for line in caplog.messages if line.startswith("package refused: acme/greedy")]
        assert len(refused) == 1

    asyncio.run(scenario())


def test_fleet_when_an_agent_is_older_then_it_streams_on_and_is_given_nothing(
    tmp_path: Path, opened: tuple[Database, SqlRegistry]
) -> None:
    database, registry = opened

    async def scenario() -> None:
        want(database, SourceKey("acme", "shop"), "orders")
        async with (
            running_gateway(tmp_path / "landing", registry, rollout_seconds=0.02) as address,
            scripted_agent(address, "shop", agent="agent-1") as older,
        ):
            control = await older.open("Control_Config", protocol=LEAST_PROTOCOL_VERSION)
            await control.expect("desired_state")
            host = Host("db-1", [address])
            async with running([host], registry, database):
                rollout = start(database, order(Group("all", ("*",))))
                await eventually("the other one", lambda: states(database, rollout)["db-1"] == "done")
                await eventually("its end", lambda: rollout_state(database, rollout) == "done")
            assert states(database, rollout)["agent-1"] == "waiting"
            stream = await older.open("MySQLBinlog", "shop", protocol=LEAST_PROTOCOL_VERSION)
            replicate = await stream.expect("replicate")
            await stream.wait_credit()
            await commit_cut(stream, replicate, 1, [1])
            assert not [one for one in control.unread if one.WhichOneof("payload") == "desired_version"]

    asyncio.run(scenario())


def test_order_when_it_is_withdrawn_then_the_agent_is_told_until_it_answers(
    tmp_path: Path, opened: tuple[Database, SqlRegistry]
) -> None:
    database, registry = opened

    async def scenario() -> None:
        said = {"version": OLD, "format": "deb", "machine": "x86_64"}
        async with running_gateway(tmp_path / "landing", registry, rollout_seconds=0.02) as address:
            async with scripted_agent(address, agent="db-1") as agent:
                control = await agent.open("Control_Config")
                await control.send(effective_version=EffectiveVersion(state=EffectiveVersion.RUNNING, **said))
                await eventually("its version", lambda: ("acme", "db-1") in versions_said(database))
                start(database, order())
                desired = await control.expect("desired_version")
                assert (desired.generation, desired.HasField("package")) == (1, True)
                with database.write() as connection:
                    rollouts.pause(connection, tenant_id(connection, "acme"))
                withdrawn = await control.expect("desired_version")
                assert (withdrawn.generation, withdrawn.HasField("package")) == (2, False)
                await control.send(package_request=PackageRequest(sha256=desired.package.sha256, offset=0))
                assert (await control.expect("error")).code == "PACKAGE_NOT_DESIRED"
            async with scripted_agent(address, agent="db-1") as agent:
                control = await agent.open("Control_Config")
                await control.send(effective_version=EffectiveVersion(state=EffectiveVersion.RUNNING, **said))
                again = await control.expect("desired_version")
                assert again == withdrawn
                answer = EffectiveVersion(generation=again.generation, state=EffectiveVersion.RUNNING, **said)
                await control.send(effective_version=answer)
                name = ("acme", "db-1")
                await eventually("its answer", lambda: registry.version_orders([name]) == {name: 0})

    asyncio.run(scenario())
