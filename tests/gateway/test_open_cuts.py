"""The clock of an open cut runs while its agent could be heard, and at no other time."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.streams import replication
from tests.gateway.harness import landed_gsns, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import change_batch, cut_end, eventually, rows_batch, scripted_agent

#: long enough for an agent's answer here, whatever else runs
OPEN_CUT_SECONDS = 4.0
LARGE_ROWS = 4_000


class SlowLanding:
    """Batches of many rows are not landed before `free` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.came = threading.Event(), threading.Event()
        self._land = replication._land_in_files
        monkeypatch.setattr(replication, "_land_in_files", self.land)

    def land(self, batch: Any, *arguments: Any) -> tuple[int, int]:
        if batch.row_count == LARGE_ROWS:
            self.came.set()
            self.free.wait()
        return self._land(batch, *arguments)


async def stays(waiting: "asyncio.Task[Any]", seconds: float) -> None:
    """It waits for so long: neither what it waits for nor an error has come."""
    done, _ = await asyncio.wait({waiting}, timeout=seconds)
    assert not done, waiting


@pytest.fixture
def landing(monkeypatch: pytest.MonkeyPatch) -> SlowLanding:
    return SlowLanding(monkeypatch)


@pytest.fixture
def registry() -> MemoryRegistry:
    registry = MemoryRegistry()
    for source in ("shop", "crm"):
        registry.want("acme", source, "orders")
    return registry


def test_open_cut_when_the_gateway_does_not_read_its_stream_then_its_agent_is_not_taken_for_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, landing: SlowLanding, registry: MemoryRegistry
) -> None:
    """The budget of rows is full: the end of the cut, which the agent has sent, waits to be read."""
    monkeypatch.setattr("gateway.backlog.MAX_ROWS_BYTES", 64 << 10)

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, open_cut_seconds=OPEN_CUT_SECONDS) as address,
            scripted_agent(address, "shop", "crm") as agent,
        ):
            crm, crm_run = await agent.open_binlog("crm")
            shop, run = await agent.open_binlog("shop")
            try:
                large = rows_batch(range(1, LARGE_ROWS + 1), note="x" * 100)
                await crm.send_batch(change_batch(crm_run, 1, "orders", large))
                await eventually("the budget to be full", landing.came.is_set)
                await shop.send_batch(change_batch(run, 1, "orders", rows_batch([1])))  # was being read already
                await shop.send(cut_end=cut_end(run, 1, 1))
                committed = asyncio.create_task(shop.expect("cut_committed"))
                await stays(committed, 2 * OPEN_CUT_SECONDS)
            finally:
                landing.free.set()
            await committed

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == [1]


def test_open_cut_when_its_agent_waits_for_credit_then_it_has_its_time_from_then_on(
    tmp_path: Path, landing: SlowLanding, registry: MemoryRegistry
) -> None:
    async def scenario() -> None:
        async with (
            running_gateway(
                tmp_path, registry, open_cut_seconds=OPEN_CUT_SECONDS, credit_window_bytes=64 << 10
            ) as address,
            scripted_agent(address, "shop") as agent,
        ):
            shop, run = await agent.open_binlog("shop")
            try:
                await shop.send_batch(change_batch(run, 1, "orders", rows_batch([1])))
                large = rows_batch(range(2, LARGE_ROWS + 2), note="x" * 100)
                await shop.send_batch(change_batch(run, 1, "orders", large))
                assert shop.credit < 0
                await eventually("it to be landed", landing.came.is_set)
                credit = asyncio.create_task(shop.wait_credit())
                await stays(credit, 1.5 * OPEN_CUT_SECONDS)
            finally:
                landing.free.set()
            await credit
            committed = asyncio.create_task(shop.expect("cut_committed"))
            await stays(committed, OPEN_CUT_SECONDS / 3)  # in which the gateway looks again
            await shop.send(cut_end=cut_end(run, 1, LARGE_ROWS + 1))
            await committed

    asyncio.run(scenario())
    assert len(landed_gsns(tmp_path)) == LARGE_ROWS + 1
