"""What all streams of a gateway share, and a stream's blocking work in the threads of it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
from menura.stores.store import Store

from gateway.audit import Audit
from gateway.backlog import Backlog
from gateway.changes import Changes
from gateway.config import GatewayConfig
from gateway.errors import NOTHING_LOST, LandingFailed
from gateway.heartbeats import Heartbeats
from gateway.identity import Authority
from gateway.landing.chunks import PendingChunks
from gateway.landing.committer import Committer
from gateway.landing.gathered import Gathered
from gateway.lease import GatewayLease
from gateway.log_lines import LogLines
from gateway.loop_turns import Owner
from gateway.memory import give_back
from gateway.metrics import GatewayMetrics
from gateway.packages import Packages
from gateway.quotas import Quotas
from gateway.reconciliation import Generations
from gateway.registry import AgentName, ConfigurationDigests, Registry, SourceKey
from gateway.shares import FairThreads, Turns
from gateway.standings import Standings
from gateway.stream_fence import StreamFence
from gateway.tasks import Reports, ask_registry, finish
from gateway.wire.message import Frames

logger = logging.getLogger(__name__)

_CHECK = "Check the landing's free space and permissions; it is tried again by itself"

T = TypeVar("T")


@dataclass(slots=True)
class LandingHealth:
    """What of a source could not land when it was tried last: its registry entry says so until all of it can."""

    _failing: dict[SourceKey, set[str]] = field(default_factory=dict)

    def fails(self, key: SourceKey, what: str) -> None:
        self._failing.setdefault(key, set()).add(what)

    def recovered(self, key: SourceKey, what: str) -> bool:
        """True when nothing else of the source fails."""
        failing = self._failing.get(key)
        if failing is None or what not in failing:
            return False
        failing.discard(what)
        if failing:
            return False
        del self._failing[key]
        return True


@dataclass(frozen=True, slots=True)
class LandingParts:
    config: GatewayConfig
    registry: Registry
    #: renews agents' certificates; None without a CA of ours
    authority: Authority | None
    #: which agents may have streams
    standings: Standings
    audit: Audit
    storage: Store
    committer: Committer
    lease: GatewayLease
    #: of what runs begin and end with
    runs: FairThreads
    #: of what streams ask else, and wait for
    asking: FairThreads
    #: of desired tables, and of desired dumps
    changes: Changes
    generations: Generations[SourceKey, int]
    dump_generations: Generations[SourceKey, int]
    #: of the sources that are configured for agents
    configurations: Generations[AgentName, ConfigurationDigests]
    #: of what agents shall run
    orders: Generations[AgentName, int]
    packages: Packages
    metrics: GatewayMetrics
    reports: Reports
    heartbeats: Heartbeats
    landing: FairThreads
    pending_chunks: PendingChunks
    backlog: Backlog = field(default_factory=Backlog)
    gathered: Gathered = field(default_factory=Gathered)
    fence: StreamFence = field(default_factory=StreamFence)
    client_fence: StreamFence = field(default_factory=StreamFence)
    health: LandingHealth = field(default_factory=LandingHealth)
    log_lines: LogLines = field(default_factory=LogLines)
    #: cartographies are stored one at a time: each may take a thread of the reports' for minutes
    cartographies: Turns = field(default_factory=Turns)
    quotas: Quotas = field(default_factory=Quotas)

    def tasks(self) -> Iterator[Coroutine[Any, Any, None]]:
        """What of them runs for as long as the gateway does."""
        yield self.committer.run()
        yield self.lease.run()
        for generations in (self.generations, self.dump_generations, self.configurations, self.orders):
            yield generations.run()
        yield self.standings.run()
        yield self.heartbeats.run()

    async def ask(self, owner: Owner, call: Callable[..., T], *arguments: object) -> T:
        """A short call of the registry in a turn of the owner's. Raises `RegistryAway` or `ReportRefused`."""
        return await ask_registry(self.asking, owner, call, *arguments)


@dataclass(slots=True)
class LandingJobs:
    """Blocking work of one stream, one call at a time; what the storage refuses ends the stream for a while."""

    threads: FairThreads
    metrics: GatewayMetrics
    key: SourceKey
    owner: AgentName
    doing: str
    _running: "asyncio.Future[Any] | None" = None
    #: nobody waits for it any more, since its stream has ended
    _is_left: bool = False

    async def run(self, work: Callable[[], T]) -> T:
        """Raises `LandingFailed`. Cancelled, it goes on in its thread: see `settle`."""
        job = await self.threads.start(self.owner, work)
        self._running = job
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            self._is_left = True
            raise
        except (OSError, pa.ArrowException) as failed:
            self.metrics.menura_landing_failures_total += 1
            reason = failed.strerror if isinstance(failed, OSError) else None
            raise LandingFailed(
                self.doing,
                f"{type(failed).__name__} {reason or ''}".strip(),
                data=NOTHING_LOST,
                remedy=_CHECK,
                source=str(self.key),
            ) from failed

    async def run_batch(self, turns: Turns, frames: Frames, work: Callable[[], T]) -> T:
        """The same with a batch; a large one has its turn, and the memory that it used is given back."""
        if not frames.is_large:
            return await self.run(work)

        def work_and_give_back() -> T:
            try:
                return work()
            finally:
                give_back()

        async with turns.of(self.owner):
            try:
                return await self.run(work_and_give_back)
            finally:
                await finish(self.settle())

    async def settle(self) -> None:
        """Wait until nothing runs any more."""
        if self._running is not None:
            await asyncio.wait({self._running})
            failed, is_left, self._is_left = self._running.exception(), self._is_left, False
            if failed is not None and is_left:
                self.metrics.menura_landing_failures_total += 1
                said = (self.doing, self.key, failed, NOTHING_LOST, _CHECK)
                logger.warning("%s of %s failed behind the end of its stream: %s. %s. %s", *said)
