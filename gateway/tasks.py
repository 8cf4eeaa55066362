"""Running a stream's concerns side by side."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from gateway.errors import NOTHING_LOST, RegistryAway, ReportRefused
from gateway.loop_turns import Owner
from gateway.metrics import GatewayMetrics
from gateway.registry import RegistryRefused, RegistryUnavailable
from gateway.shares import FairThreads

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def run_until_first(*concerns: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, then cancel the others and wait for them; raises what the first one raised."""
    tasks = [asyncio.create_task(concern) for concern in concerns]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if task in done:
            task.result()


async def ask_registry(threads: FairThreads, owner: Owner, call: Callable[..., T], *arguments: object) -> T:
    """A registry call in a turn of the owner's; raises `RegistryAway`, which ends a stream for a while, or
    `ReportRefused`."""
    try:
        return await (await threads.start(owner, partial(call, *arguments)))
    except RegistryUnavailable as unavailable:
        raise RegistryAway(
            "asking the control plane's database",
            str(unavailable),
            data="What is committed stays; nothing is lost",
            remedy="Check the database; it is tried again by itself",
        ) from unavailable
    except RegistryRefused as refused:
        raise ReportRefused("telling the control plane's database", str(refused), data=NOTHING_LOST) from refused


@dataclass(frozen=True, slots=True)
class Reports:
    """What agents say of themselves, on its way to the registry."""

    metrics: GatewayMetrics
    #: reports' own: nothing that a stream waits for waits for these
    threads: FairThreads

    async def tell(self, owner: Owner, call: Callable[[], T]) -> T | None:
        """What the next exchange tells anew: dropped, for None, while the registry is away, or refuses it."""
        try:
            return await (await self.threads.start(owner, call))
        except RegistryUnavailable as unavailable:
            self.metrics.menura_registry_failures_total += 1
            logger.warning("report dropped, registry is away: %s", unavailable)
        except RegistryRefused as refused:
            self.metrics.menura_registry_failures_total += 1
            logger.warning("report dropped, registry refuses it: %s", refused)
        return None


async def in_thread(work: Callable[..., T], *arguments: object) -> T:
    """Run it in one of the process's threads; also where the caller is cancelled, this lasts as long as the work."""
    task = asyncio.create_task(asyncio.to_thread(work, *arguments))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller has it, if it still waits
    try:
        return await asyncio.shield(task)
    finally:
        await finish(_ended(task))


async def _ended(task: "asyncio.Task[Any]") -> None:
    await asyncio.wait({task})


async def finish(work: Awaitable[None]) -> None:
    """Await clean-up to its end, also when the one who waits is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError
