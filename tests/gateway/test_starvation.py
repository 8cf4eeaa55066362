"""Reports that wait for the database, however many, keep no other source from committing and no agent out."""

import asyncio
import os
import sys
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from menura.v1.error_pb2 import Error

from gateway.registry import AgentSeen, Assignment, GatewayRun, Problem, SourceKey
from gateway.threads import ASK_THREADS, COMMIT_THREADS, REPORT_THREADS, RUN_THREADS, SWITCH_SECONDS, of_tenant
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

#: more than an event loop has threads of its own
REPORTS = min(32, (os.cpu_count() or 1) + 4) + 2


class WaitingForItsDatabase(MemoryRegistry):
    """Problems of sources are not recorded before `free` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.waiting = 0

    def record_source_problem(self, key: SourceKey, problem: Problem | None, at_us: int) -> None:
        self.waiting += 1
        self.free.wait()
        super().record_source_problem(key, problem, at_us)


def test_commit_when_reports_of_others_wait_for_the_database_then_it_does_not(tmp_path: Path) -> None:
    registry = WaitingForItsDatabase()
    others = [f"other{number}" for number in range(REPORTS)]
    for source in ("shop", "crm", "late", *others):
        registry.want("acme", source, "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry) as address,
            scripted_agent(address, "shop", "crm", *others) as agent,
        ):
            shop, run = await agent.open_binlog("shop")
            streams: list[Any] = [(await agent.open_binlog(source))[0] for source in others]
            try:
                for stream in streams:
                    await stream.send(error=Error(code="EVENT_UNKNOWN", doing="reading", found="event 99"))
                await eventually("threads of reports to wait", lambda: registry.waiting >= of_tenant(REPORT_THREADS))
                await commit_cut(shop, run, 1, range(1, 11))
                await shop.send_batch(change_batch(run, 2, "orders", rows_batch(range(11, 60_000))))
                await shop.send(cut_end=cut_end(run, 2, 59_999))
                await shop.expect("cut_committed")
                crm, crm_run = await agent.open_binlog("crm")
                await commit_cut(crm, crm_run, 1, range(1, 11))
                async with scripted_agent(address, "late", agent="agent-2") as newcomer:
                    late, late_run = await newcomer.open_binlog("late")
                    await commit_cut(late, late_run, 1, range(1, 11))
                assert not registry.problems
            finally:
                registry.free.set()

    asyncio.run(scenario())
    assert len(landed_gsns(tmp_path)) == 59_999 + 20


def test_threads_when_the_event_loop_computes_then_they_wait_for_the_interpreter_less_than_pythons_own_time(
    tmp_path: Path,
) -> None:
    async def scenario() -> float:
        async with running_gateway(tmp_path, MemoryRegistry()):
            return sys.getswitchinterval()

    assert asyncio.run(scenario()) == pytest.approx(SWITCH_SECONDS)


class LockedSources(MemoryRegistry):
    """Sources of tenant globex are not assigned before `free` is set, as where another transaction holds their rows."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.waiting = 0

    def assign_source(self, key: SourceKey, gateway: GatewayRun, session: str) -> Assignment:
        if key.tenant == "globex":
            self.waiting += 1
            self.free.wait()
        return super().assign_source(key, gateway, session)


def test_commit_when_another_tenants_runs_wait_for_locks_then_it_does_not(tmp_path: Path) -> None:
    registry = LockedSources()
    others = [f"other{number}" for number in range(COMMIT_THREADS + 2)]
    registry.want("acme", "shop", "orders")
    for source in others:
        registry.want("globex", source, "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, lease_seconds=1) as address,
            scripted_agent(address, "shop") as agent,
            scripted_agent(address, *others, tenant="globex") as other,
        ):
            stream, run = await agent.open_binlog("shop")
            try:
                for source in others:
                    await (await other.open("MySQLBinlog", source)).expect("hello_ack")
                await eventually("runs to wait", lambda: registry.waiting >= of_tenant(RUN_THREADS))
                for cut in range(1, 6):
                    await commit_cut(stream, run, cut, [cut])
            finally:
                registry.free.set()

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == [1, 2, 3, 4, 5]


class LockedAgents(MemoryRegistry):
    """Agents of tenant globex are not recorded before `free` is set, as where another transaction holds their rows."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.waiting = 0

    def record_agent(self, agent: AgentSeen) -> None:
        if agent.tenant == "globex":
            self.waiting += 1
            self.free.wait()
        super().record_agent(agent)


def test_agent_when_those_of_another_tenant_wait_for_the_database_then_it_is_admitted_and_hears_what_is_desired(
    tmp_path: Path,
) -> None:
    registry = LockedAgents()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry, lease_seconds=1) as address, AsyncExitStack() as stack:
            stack.callback(registry.free.set)
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=OPTIONS))
            others = [ScriptedAgent(channel, "globex", f"agent-{number}", ()) for number in range(REPORTS)]
            streams = [await other.open("Control_Config") for other in others]
            await eventually("their streams to wait", lambda: registry.waiting >= of_tenant(ASK_THREADS))
            agent = await stack.enter_async_context(scripted_agent(address, "shop"))
            control = await agent.open("Control_Config")
            assert (await control.expect("desired_state", seconds=300)).generation == 1
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, [1])
            registry.want("acme", "shop", "orders", "customers")
            assert (await control.expect("desired_state", seconds=300)).generation == 2
            for waiting in streams:
                await waiting.close()

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == [1]
