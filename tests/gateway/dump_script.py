"""A source with one table that is being dumped, by script: both streams of its agent, and what it does next."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from menura.v1.changes_pb2 import Replicate
from menura.v1.snapshot_pb2 import DesiredDumps, DumpOrder

from gateway.registry import Registry
from tests.gateway.harness import running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import (
    AgentStream,
    ScriptedAgent,
    chunk_end,
    chunk_ref,
    cut_end,
    dump_plan,
    scripted_agent,
    snapshot_batch,
    snapshot_rows,
    table_event,
)


@dataclass
class DumpScript:
    agent: ScriptedAgent
    source: str
    dump: str
    client: AgentStream
    desired: DesiredDumps
    binlog: AgentStream
    run: Replicate
    cut: int
    gsn: int

    @property
    def order(self) -> DumpOrder:
        return next(order for order in self.desired.dumps if order.dump == self.dump)

    async def end_cut(self, *refs: tuple[int, int], rows: int = 1, settle: bool = True, **changes: Any) -> None:
        """A cut without batches that names chunks as (chunk, gsn)."""
        self.gsn += rows
        changes.setdefault("chunks", [chunk_ref(self.dump, chunk, gsn) for chunk, gsn in refs])
        await self.binlog.send(cut_end=cut_end(self.run, self.cut, self.gsn, **changes))
        self.cut += 1
        while settle and (await self.binlog.expect("cut_committed")).cut < self.cut - 1:
            pass

    async def plan(self, *boundaries: str) -> None:
        """The orders have the plan afterwards."""
        await self.client.send(dump_plan=dump_plan(self.dump, *boundaries))
        while not self.order.HasField("plan"):
            self.desired = await self.client.expect("desired_dumps")

    async def start(self) -> int:
        """Commits DUMP_STARTED; its number."""
        await self.end_cut(events=[table_event(self.gsn + 1, "DUMP_STARTED", dump=self.dump)])
        return self.gsn

    async def send_chunk(
        self, chunk: int, lower: str, upper: str, *batches: Sequence[int], landed: bool = True, **changes: Any
    ) -> None:
        for ids in batches:
            await self.client.send_batch(snapshot_batch(self.dump, chunk, snapshot_rows(ids)))
        rows = sum(map(len, batches))
        await self.client.send(chunk_end=chunk_end(self.dump, chunk, lower, upper, rows, **changes))
        if landed:
            answer = await self.client.expect("chunk_landed")
            assert (answer.dump, answer.chunk) == (self.dump, chunk)

    async def finish(self, started_gsn: int, **changes: Any) -> None:
        facts = {"dump": self.dump, "removes_rows_before_gsn": started_gsn, **changes}
        await self.end_cut(events=[table_event(self.gsn + 1, "DUMPED", **facts)])

    async def until_over(self) -> None:
        """The dump is in the orders no more."""
        while any(order.dump == self.dump for order in self.desired.dumps):
            self.desired = await self.client.expect("desired_dumps")

    async def reopen_client(self) -> None:
        self.client, self.desired = await self.agent.open_client(self.source)

    async def reopen_binlog(self) -> None:
        self.binlog, self.run = await self.agent.open_binlog(self.source)
        self.cut, self.gsn = self.run.next_cut, self.run.next_gsn - 1


async def open_dump(agent: ScriptedAgent, dump: str, source: str = "shop") -> DumpScript:
    client, desired = await agent.open_client(source)
    binlog, run = await agent.open_binlog(source)
    return DumpScript(agent, source, dump, client, desired, binlog, run, run.next_cut, run.next_gsn - 1)


async def open_started(agent: ScriptedAgent, dump: str, *boundaries: str) -> tuple[DumpScript, int]:
    """Planned, with its start committed; that one's number."""
    script = await open_dump(agent, dump)
    await script.plan(*boundaries)
    return script, await script.start()


@asynccontextmanager
async def dump_begun(
    landing: Path, registry: Registry, dump: str, *boundaries: str, **gateway: Any
) -> AsyncIterator[tuple[DumpScript, int]]:
    """At a gateway of its own (`running_gateway`), with one agent, of the source shop."""
    async with running_gateway(landing, registry, **gateway) as address, scripted_agent(address, "shop") as agent:
        yield await open_started(agent, dump, *boundaries)


@pytest.fixture
def registry() -> MemoryRegistry:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders", "items")
    return registry
