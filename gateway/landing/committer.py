"""Group commit: one task puts the complete cuts of all sources into the cut log.

Comes in: complete cuts, whose data files are durable. Goes out: for each its log entry's number, or why it failed.

While one commit runs, the next cuts gather; so the rate of entries follows the storage and not the number of
sources. The order within a commit is: log entry, registry, acknowledgement. The registry is tried until it
answers, so the log is never more than one entry ahead of it, and a stream that opens reads the newest position
there; while it is away, commits wait, credits run out and agents stop reading: nothing is lost, nothing is
acknowledged that a restart could not find. A kill between log entry and registry is healed by `CutLog.recover`.
What the registry refuses for good is not tried again: the cut is in the log, its source is quarantined, and its stream
ends with SOURCE_QUARANTINED, while the other cuts of the entry are acknowledged.

The committer is also the last fence: it lets a cut pass only if it is the next of its source, under the newest
epoch that began here, and while the lease is valid.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from menura.errors import MenuraError
from menura.instants import now_us
from menura.landing import LandedCut, LogEntry
from menura.naming import quarantine_of

from gateway.errors import (
    NOTHING_LOST,
    GatewayError,
    LeaseLost,
    LogEntryTaken,
    LogUnsettled,
    SourceQuarantined,
    StreamSuperseded,
)
from gateway.landing.cut_log import CutLog, EntryTaken
from gateway.metrics import GatewayMetrics
from gateway.registry import Registry, RegistryUnavailable, SourceKey

logger = logging.getLogger(__name__)

T = TypeVar("T")

REGISTRY_RETRY_SECONDS = 0.25
#: table events and chunks of one entry, as far as they come in several cuts; a reader takes entries of a limited size
MAX_ENTRY_EVENTS_BYTES = 64 << 20


@dataclass(slots=True, eq=False)
class CompleteCut:
    """A cut whose files are durable; `outcome` becomes its log entry's number."""

    key: SourceKey
    landed: LandedCut
    #: what its table events and chunks take of the entry
    events_bytes: int
    lease_is_valid: Callable[[], bool]
    outcome: asyncio.Future[int]

    def is_committed(self) -> bool:
        return self.outcome.done() and not self.outcome.cancelled() and self.outcome.exception() is None

    def is_dropped(self) -> bool:
        """Whether no log entry can name its files, now or later."""
        if not self.outcome.done():
            return False
        if self.outcome.cancelled():
            return True
        failure = self.outcome.exception()
        return isinstance(failure, MenuraError) and not isinstance(failure, LogUnsettled | SourceQuarantined)


@dataclass(slots=True)
class _Expected:
    epoch: int
    cut: int
    gsn: int


@dataclass(slots=True)
class Committer:
    log: CutLog
    registry: Registry
    landing: str
    spacing_seconds: float
    metrics: GatewayMetrics
    #: of commits and leases alone: reports, however slow, take none of them
    threads: Executor
    _gathered: list[CompleteCut] = field(default_factory=list)
    _committing: list[CompleteCut] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _expected: dict[SourceKey, _Expected] = field(default_factory=dict)

    def begin(self, key: SourceKey, epoch: int, last_cut: int, last_gsn: int) -> None:
        """From now on the source's cuts come under this epoch and follow this cut."""
        self._expected[key] = _Expected(epoch, last_cut + 1, last_gsn)

    def submit(self, cut: CompleteCut) -> None:
        self._gathered.append(cut)
        self._wake.set()

    async def withdraw(self, key: SourceKey) -> None:
        """Drop what a source has gathered; what is being committed is awaited. Outcomes tell which was which.

        Nothing of the source passes before it begins again.
        """
        for cut in [cut for cut in self._gathered if cut.key == key]:
            self._gathered.remove(cut)
            cut.outcome.cancel()
        under_way = [cut.outcome for cut in self._committing if cut.key == key]
        if under_way:
            await asyncio.wait(under_way)
        self._expected.pop(key, None)

    async def run(self) -> None:
        """Commit until cancelled. Ends only by a failure that no retry can heal, which ends the gateway."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._committing = [cut for cut in self._take() if self._admit(cut)]
                if self._committing:
                    await self._commit(self._committing)
                    self._committing = []
                    await asyncio.sleep(self.spacing_seconds)
        finally:
            for cut in (*self._committing, *self._gathered):
                cut.outcome.cancel()

    def _take(self) -> list[CompleteCut]:
        """What one entry can hold of what has gathered."""
        taken, events_bytes = 0, 0
        for cut in self._gathered:
            events_bytes += cut.events_bytes
            if taken and events_bytes > MAX_ENTRY_EVENTS_BYTES:
                self._wake.set()
                break
            taken += 1
        cuts = self._gathered[:taken]
        del self._gathered[:taken]
        return cuts

    def _admit(self, cut: CompleteCut) -> bool:
        landed = cut.landed
        expected = self._expected[cut.key]
        if landed.epoch != expected.epoch or landed.cut != expected.cut or landed.last_gsn < expected.gsn:
            cut.outcome.set_exception(
                StreamSuperseded(
                    "committing a cut",
                    f"cut {landed.cut} of epoch {landed.epoch}; cut {expected.cut} of epoch {expected.epoch} is next",
                    data=NOTHING_LOST,
                    source=str(cut.key),
                )
            )
            return False
        if not cut.lease_is_valid():
            cut.outcome.set_exception(
                LeaseLost(
                    "committing a cut",
                    "the lease ran out before it was renewed",
                    data=NOTHING_LOST,
                    source=str(cut.key),
                )
            )
            return False
        self._follow(cut.key, landed)
        return True

    def _follow(self, key: SourceKey, landed: LandedCut) -> None:
        if key in self._expected:
            self._expected[key].cut = landed.cut + 1
            self._expected[key].gsn = landed.last_gsn

    async def _commit(self, cuts: list[CompleteCut]) -> None:
        started = time.monotonic_ns()
        try:
            append = partial(self.log.append, [cut.landed for cut in cuts], committed_at_us=now_us())
            entry = await self._in_thread(append)
        except EntryTaken as taken:
            logger.warning("cut log entry %d is another writer's, %s", taken.entry.entry, taken.entry.gateway)
            await self._apply(taken.entry)
            failure = LogEntryTaken(
                "writing the cut log",
                f"entry {taken.entry.entry} was written by {taken.entry.gateway} meanwhile",
                data=NOTHING_LOST,
                remedy="Give each gateway a landing of its own",
            )
            self._fail(cuts, failure)
            for landed in taken.entry.cuts:
                self._follow(SourceKey(landed.tenant, landed.source), landed)
            return
        except GatewayError as failed:
            self._fail(cuts, failed)
            return
        held = await self._apply(entry)
        self.metrics.menura_log_entries_total += 1
        self.metrics.menura_log_commit_us_total += (time.monotonic_ns() - started) // 1000
        for cut in cuts:
            if cut.key in held:
                self._expected[cut.key].epoch = 0
                cut.outcome.set_exception(quarantined(cut.key, f"cut {cut.landed.cut}, entry {entry.entry}"))
                continue
            self.metrics.menura_landing_cuts_total += 1
            self.metrics.menura_landing_files_total += len(cut.landed.files)
            self.metrics.menura_landing_committed_rows_total += sum(file.rows for file in cut.landed.files)
            self.metrics.menura_landing_file_bytes_total += sum(file.bytes for file in cut.landed.files)
            cut.outcome.set_result(entry.entry)

    def _fail(self, cuts: list[CompleteCut], failure: GatewayError) -> None:
        logger.warning("commit of %d cuts failed: %s", len(cuts), failure)
        self.metrics.menura_landing_failures_total += 1
        for cut in cuts:
            self._expected[cut.key].epoch = 0  # nothing passes before the source begins again
            cut.outcome.set_exception(failure)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)

    async def _apply(self, entry: LogEntry) -> frozenset[SourceKey]:
        """Sources whose cuts are held back."""
        away = False
        while True:
            try:
                held = await self._in_thread(partial(self.registry.apply_entry, self.landing, entry))
            except RegistryUnavailable as unavailable:
                self.metrics.menura_registry_failures_total += 1
                if not away:
                    logger.warning("registry is away, commits wait: %s", unavailable)
                away = True
                await asyncio.sleep(REGISTRY_RETRY_SECONDS)
            else:
                if away:
                    logger.warning("registry is back")
                return held


def quarantined(key: SourceKey, found: str) -> SourceQuarantined:
    return SourceQuarantined(
        "committing a source's cuts",
        found,
        data="It is committed, and nothing more of the source lands before somebody ends the quarantine",
        remedy=f"See why: {quarantine_of(key.source)}",
        source=str(key),
    )
