"""A store that takes one tenant's files slowly, or not at all, keeps no other tenant's cuts from being landed."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from menura.stores.local import LocalStore

from gateway.threads import of_tenant, with_spare
from tests.gateway.harness import read_log, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import change_batch, commit_cut, cut_end, eventually, rows_batch, scripted_agent

SOURCES = [f"shop{number}" for number in range(6)]


class Stalled:
    """Files of one tenant are begun no sooner than `free` is set."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.begun: list[str] = []

    def wait(self, path: str) -> None:
        if path.startswith("data/acme/"):
            self.begun.append(path)
            self.free.wait()


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stalled]:
    store, create = Stalled(), LocalStore.create

    def waiting(own: LocalStore, path: str) -> Any:
        store.wait(path)
        return create(own, path)

    monkeypatch.setattr(LocalStore, "create", waiting)
    yield store
    store.free.set()


@pytest.mark.parametrize("landing_threads", [1, 2])
def test_landing_when_a_store_stalls_on_all_that_one_tenant_may_put_then_another_tenants_cuts_are_committed(
    tmp_path: Path, stalled: Stalled, landing_threads: int
) -> None:
    registry = MemoryRegistry()
    for source in SOURCES:
        registry.want("acme", source, "orders")
    registry.want("globex", "crm", "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, landing_threads=landing_threads) as address,
            scripted_agent(address, *SOURCES) as slow,
            scripted_agent(address, "crm", tenant="globex") as other,
        ):
            crm, crm_run = await other.open_binlog("crm")
            streams = [(await slow.open_binlog(source)) for source in SOURCES]
            try:
                for stream, run in streams:
                    await stream.send_batch(change_batch(run, 1, "orders", rows_batch(range(1, 11))))
                    await stream.send(cut_end=cut_end(run, 1, 10))
                # one tenant alone has as many threads as there are for one: as before there was a bound
                await eventually("its puts to stall", lambda: len(stalled.begun) == landing_threads)
                for cut in (1, 2):
                    await commit_cut(crm, crm_run, cut, range(cut * 10, cut * 10 + 5))
                assert len(stalled.begun) == landing_threads
            finally:
                stalled.free.set()
            for stream, _ in streams:
                await stream.expect("cut_committed")

    asyncio.run(scenario())
    committed = [cut.tenant for entry in read_log(tmp_path) for cut in entry.cuts]
    assert committed[:2] == ["globex"] * 2 and sorted(committed[2:]) == ["acme"] * len(SOURCES)


@pytest.mark.parametrize("count", range(1, 40))
def test_threads_when_there_are_spare_ones_then_a_tenant_alone_has_all_that_were_asked_for(count: int) -> None:
    assert of_tenant(with_spare(count)) == count < with_spare(count)
