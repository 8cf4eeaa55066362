"""What all streams of a gateway share, and a stream's blocking work in the threads of it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from gateway.config import GatewayConfig
from gateway.errors import NOTHING_LOST, LandingFailed
from gateway.landing.chunks import ParkedChunks
from gateway.landing.committer import Committer
from gateway.landing.storage import Storage
from gateway.metrics import GatewayMetrics
from gateway.reconciliation import Generations
from gateway.registry import Registry, SourceKey
from gateway.slots import SourceSlots

T = TypeVar("T")


@dataclass(slots=True)
class Troubles:
    """What of a source could not land when it was tried last: its registry entry says so until all of it can."""

    _of: dict[SourceKey, set[str]] = field(default_factory=dict)

    def began(self, key: SourceKey, what: str) -> None:
        self._of.setdefault(key, set()).add(what)

    def ended(self, key: SourceKey, what: str) -> bool:
        """True when it was the last trouble of the source."""
        troubles = self._of.get(key)
        if troubles is None or what not in troubles:
            return False
        troubles.discard(what)
        if troubles:
            return False
        del self._of[key]
        return True


@dataclass(frozen=True, slots=True)
class LandingParts:
    config: GatewayConfig
    registry: Registry
    storage: Storage
    committer: Committer
    #: of desired tables, and of desired dumps
    generations: Generations
    dump_generations: Generations
    metrics: GatewayMetrics
    threads: Executor
    parked: ParkedChunks
    slots: SourceSlots = field(default_factory=SourceSlots)
    client_slots: SourceSlots = field(default_factory=SourceSlots)
    troubles: Troubles = field(default_factory=Troubles)


@dataclass(slots=True)
class LandingJobs:
    """Blocking work of one stream, one call at a time; what the storage refuses ends the stream for a while."""

    threads: Executor
    metrics: GatewayMetrics
    key: SourceKey
    doing: str
    _running: "asyncio.Future[Any] | None" = None

    async def run(self, work: Callable[[], T]) -> T:
        """Raises `LandingFailed`. Cancelled, it goes on in its thread: see `settle`."""
        job = asyncio.get_running_loop().run_in_executor(self.threads, work)
        self._running = job
        try:
            return await asyncio.shield(job)
        except (OSError, pa.ArrowException) as failed:
            self.metrics.menura_landing_failures_total += 1
            reason = failed.strerror if isinstance(failed, OSError) else None
            raise LandingFailed(
                self.doing,
                f"{type(failed).__name__} {reason or ''}".strip(),
                data=NOTHING_LOST,
                remedy="Check the landing's free space and permissions; it is tried again by itself",
                source=str(self.key),
            ) from failed

    async def settle(self) -> None:
        """Wait until nothing runs any more."""
        if self._running is not None:
            await asyncio.wait({self._running})
            self._running.exception()
