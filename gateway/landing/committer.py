"""Group commit: one task puts the complete cuts of all sources into the cut log.

Comes in: complete cuts, whose data files are durable, and fences of sources that this gateway takes over. Goes out: for
each its log entry's number, or why it failed.

While one commit runs, the next cuts gather; so the rate of entries follows the storage and not the number of
sources. The order within a commit is: log entry, registry, acknowledgement. The registry is tried until it
answers, so the log is never more than one entry ahead of it, and a stream that opens reads the newest position
there; while it is away, commits wait, credits run out and agents stop reading: nothing is lost, nothing is
acknowledged that a restart could not find. A kill between log entry and registry is healed by `CutLog.recover`, or by
another gateway that catches up. A gateway that stops between them leaves the files of its cuts, since the entry names
them. What the registry refuses for good is not tried again: the cut is in the log, its
source is quarantined, and its stream ends with SOURCE_QUARANTINED, while the other cuts of the entry are acknowledged.
Where another transaction of the database holds what a source's cuts change, its stream ends with SOURCE_BLOCKED, and
none of it begins before those cuts are applied.

The committer is also the fence between gateways. A cut passes only if it is the next of its source and the log shows no
higher epoch than its own. Where another gateway has written the next entry, the committer catches up with the log and
looks at its cuts again: those of sources that are still its own go into a later entry, and their streams see nothing
of it. So what the log says decides, and no clock: a put that comes late collides with what was written meanwhile.
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
from menura.health import Readiness
from menura.instants import now_us
from menura.landing import LandedCut, LandedFence, LogEntry
from menura.naming import quarantine_of

from gateway.errors import (
    NOTHING_LOST,
    GatewayError,
    LandingFailed,
    LeaseLost,
    LogUnsettled,
    SourceBlocked,
    SourceQuarantined,
    StreamSuperseded,
)
from gateway.landing.cut_log import CutLog, EntryTaken
from gateway.lock_waits import told_when_locked
from gateway.metrics import GatewayMetrics
from gateway.registry import HeldBack, Logged, Registry, RegistryUnavailable, SourceKey

logger = logging.getLogger(__name__)

T = TypeVar("T")

REGISTRY_RETRY_SECONDS = 0.25
#: table events and chunks of one entry, as far as they come in several cuts; a reader takes entries of a limited size
MAX_ENTRY_EVENTS_BYTES = 64 << 20

#: after a commit that failed; agents who are kept away would bring none that succeeds
UNREADY_SECONDS = 60.0
#: parts of the gateway's readiness
_LANDING, _DATABASE = "landing", "database"


@dataclass(slots=True, eq=False)
class CompleteCut:
    """A cut whose files are durable; `outcome` becomes its log entry's number."""

    key: SourceKey
    landed: LandedCut
    #: what its table events and chunks take of the entry
    events_bytes: int
    outcome: asyncio.Future[int]
    #: a put was begun of an entry with it: the log may have it, whatever the gateway still hears of that
    may_be_logged: bool = False

    def is_committed(self) -> bool:
        return self.outcome.done() and not self.outcome.cancelled() and self.outcome.exception() is None

    def is_dropped(self) -> bool:
        """Whether no log entry can name its files, now or later."""
        if not self.outcome.done():
            return False
        if self.outcome.cancelled():
            return not self.may_be_logged
        failure = self.outcome.exception()
        return isinstance(failure, MenuraError) and not isinstance(
            failure, LogUnsettled | SourceBlocked | SourceQuarantined
        )


@dataclass(slots=True, eq=False)
class _Fence:
    landed: LandedFence
    outcome: asyncio.Future[int]


@dataclass(slots=True)
class _Expected:
    """Of a source that has a stream here."""

    #: of the run whose cuts pass; 0: none does
    epoch: int = 0
    cut: int = 0
    gsn: int = 0
    #: the highest that the log has shown since the stream was opened
    logged_epoch: int = 0


@dataclass(slots=True)
class Committer:
    log: CutLog
    registry: Registry
    landing: str
    spacing_seconds: float
    metrics: GatewayMetrics
    readiness: Readiness
    #: of commits and of what runs begin with alone: reports, however slow, take none of them
    threads: Executor
    _gathered: list[CompleteCut] = field(default_factory=list)
    _committing: list[CompleteCut] = field(default_factory=list)
    _fences: list[_Fence] = field(default_factory=list)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _expected: dict[SourceKey, _Expected] = field(default_factory=dict)

    def watch(self, key: SourceKey) -> None:
        """Before a source is assigned to this gateway, until it is withdrawn: what the log says of it is noticed."""
        self._expected[key] = _Expected()

    async def fence(self, key: SourceKey, epoch: int) -> None:
        """Put a fence into the log; after it the source has no cut of a lower epoch. Raises what a commit raises."""
        fence = _Fence(LandedFence(key.tenant, key.source, epoch), asyncio.get_running_loop().create_future())
        self._fences.append(fence)
        self._wake.set()
        await fence.outcome

    def begin(self, key: SourceKey, epoch: int, last_cut: int, last_gsn: int) -> None:
        """From now on the source's cuts come under this epoch and follow this cut. Raises `LeaseLost`."""
        expected = self._expected[key]
        if expected.logged_epoch > epoch:
            raise taken_over(key, expected.logged_epoch)
        expected.epoch, expected.cut, expected.gsn = epoch, last_cut + 1, last_gsn

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
        under_way = [cut.outcome for cut in self._committing if cut.key == key and not cut.outcome.done()]
        if under_way:
            await asyncio.wait(under_way)
        self._expected.pop(key, None)

    async def run(self) -> None:
        """Commit until cancelled. Ends only by a failure that no retry can heal, which ends the gateway."""
        fences: list[_Fence] = []
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._committing = self._take()
                fences, self._fences = self._fences, []
                await self._commit(fences)
                self._committing, fences = [], []
                await asyncio.sleep(self.spacing_seconds)
        finally:
            cuts = (*self._committing, *self._gathered)
            for outcome in [each.outcome for each in cuts] + [each.outcome for each in (*fences, *self._fences)]:
                outcome.cancel()

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

    def _admitted(self, cuts: list[CompleteCut]) -> list[CompleteCut]:
        """Those that may stand in the next entry, as far as the log is read; the others fail."""
        after: dict[SourceKey, LandedCut] = {}
        admitted = []
        for cut in cuts:
            landed, last, expected = cut.landed, after.get(cut.key), self._expected[cut.key]
            number, gsn = (last.cut + 1, last.last_gsn) if last is not None else (expected.cut, expected.gsn)
            if expected.epoch and expected.logged_epoch > landed.epoch:
                refused: GatewayError = taken_over(cut.key, expected.logged_epoch)
            elif landed.epoch != expected.epoch or landed.cut != number or landed.last_gsn < gsn:
                found = f"cut {landed.cut} of epoch {landed.epoch}; cut {number} of epoch {expected.epoch} is next"
                refused = StreamSuperseded("committing a cut", found, data=NOTHING_LOST, source=str(cut.key))
            else:
                after[cut.key] = landed
                admitted.append(cut)
                continue
            expected.epoch = 0
            cut.outcome.set_exception(refused)
        return admitted

    def _admitted_fences(self, fences: list[_Fence]) -> list[_Fence]:
        """Those above what the log shows; the others fail."""
        admitted = []
        for fence in fences:
            landed = fence.landed
            key = SourceKey(landed.tenant, landed.source)
            expected = self._expected.get(key)
            if fence.outcome.done():
                continue
            if expected is None or expected.logged_epoch >= landed.epoch:
                fence.outcome.set_exception(taken_over(key, expected.logged_epoch if expected else landed.epoch))
                continue
            admitted.append(fence)
        return admitted

    def _follow(self, entry: LogEntry) -> None:
        """Every entry passes here once, in order, whoever wrote it, but for those that `_skip` replaces."""
        for fence in entry.fences:
            self._follow_source(SourceKey(fence.tenant, fence.source), Logged(fence.epoch))
        for cut in entry.cuts:
            self._follow_source(SourceKey(cut.tenant, cut.source), Logged(cut.epoch, cut.cut, cut.last_gsn))

    def _follow_source(self, key: SourceKey, logged: Logged) -> None:
        expected = self._expected.get(key)
        if expected is None:
            return
        expected.logged_epoch = max(expected.logged_epoch, logged.epoch)
        if logged.cut >= expected.cut:
            expected.cut, expected.gsn = logged.cut + 1, logged.last_gsn
        if logged.is_held_back:
            expected.epoch = 0

    async def _commit(self, fences: list[_Fence]) -> None:
        started = time.monotonic_ns()
        cuts = self._committing
        while True:
            cuts, fences = self._admitted(cuts), self._admitted_fences(fences)
            if not cuts and not fences:
                return
            landed, fenced = [cut.landed for cut in cuts], [fence.landed for fence in fences]
            for cut in cuts:
                cut.may_be_logged = True
            try:
                entry = await self._in_thread(partial(self.log.append, landed, now_us(), fenced))
                break
            except EntryTaken:
                self.metrics.menura_log_conflicts_total += 1
                failed = await self._catch_up()
            except LandingFailed as refused:
                failed = refused
            if failed is not None:
                self._fail(cuts, fences, failed)
                return
        self._follow(entry)
        held = await self._apply(entry)
        self.readiness.goes_on(_LANDING)
        self.metrics.menura_log_entries_total += 1
        self.metrics.menura_log_last_entry_timestamp_seconds = time.time()
        self.metrics.menura_log_commit_us_total += (time.monotonic_ns() - started) // 1000
        for fence in fences:
            if not fence.outcome.done():
                self._fenced(fence, entry, held)
        for cut in cuts:
            self._committed(cut, entry, held)

    def _fenced(self, fence: _Fence, entry: LogEntry, held: HeldBack) -> None:
        key = SourceKey(fence.landed.tenant, fence.landed.source)
        if key in held.blocked:
            fence.outcome.set_exception(blocked(key, f"its fence in entry {entry.entry}"))
        else:
            fence.outcome.set_result(entry.entry)

    def _committed(self, cut: CompleteCut, entry: LogEntry, held: HeldBack) -> None:
        found = f"cut {cut.landed.cut}, entry {entry.entry}"
        if cut.key in held.quarantined | held.blocked:
            self._expected[cut.key].epoch = 0
            is_blocked = cut.key in held.blocked
            cut.outcome.set_exception(blocked(cut.key, found) if is_blocked else quarantined(cut.key, found))
            return
        self.metrics.menura_landing_cuts_total += 1
        self.metrics.menura_landing_files_total += len(cut.landed.files)
        self.metrics.menura_landing_committed_rows_total += sum(file.rows for file in cut.landed.files)
        self.metrics.menura_landing_file_bytes_total += sum(file.bytes for file in cut.landed.files)
        cut.outcome.set_result(entry.entry)

    async def _catch_up(self) -> LandingFailed | None:
        """Come to the log's end: over what the registry has followed already at once, then entry by entry.

        Returns why it was not reached.
        """
        before = self.log.next_entry
        await self._skip()
        try:
            while (entry := await self._in_thread(self.log.read_next)) is not None:
                self._follow(entry)
                await self._apply(entry)
        except LandingFailed as failed:
            return failed
        logger.debug("cut log has entries of others: next_entry=%d before=%d", self.log.next_entry, before)
        return None

    async def _skip(self) -> None:
        asked: list[SourceKey] | None = None
        while asked is None or not self._expected.keys() <= set(asked):  # a stream that has opened meanwhile counts too
            asked = list(self._expected)
            followed = await self._until_answered(partial(self.registry.followed, self.landing, asked))
        if followed.applied_entry >= self.log.next_entry:
            self.log.skip_to(followed.applied_entry + 1)
            for key, logged in followed.sources.items():
                self._follow_source(key, logged)

    def _fail(self, cuts: list[CompleteCut], fences: list[_Fence], failure: GatewayError) -> None:
        logger.warning("commit of %d cuts failed: %s", len(cuts), failure)
        self.metrics.menura_landing_failures_total += 1
        self.readiness.waits(_LANDING, f"a commit has failed: {failure.code}", UNREADY_SECONDS)
        for cut in cuts:
            self._expected[cut.key].epoch = 0  # nothing passes before the source begins again
            cut.outcome.set_exception(failure)
        for fence in fences:
            if not fence.outcome.done():
                fence.outcome.set_exception(failure)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)

    async def _apply(self, entry: LogEntry) -> HeldBack:
        return await self._until_answered(partial(self.registry.apply_entry, self.landing, entry))

    async def _until_answered(self, ask: Callable[[], T]) -> T:
        away = False
        while True:
            try:
                answer = await told_when_locked(
                    self._in_thread(ask),
                    self.registry.lock_holders,
                    "commits of all sources",
                    partial(self._waits, "the database is slow or locked, commits wait"),
                )
            except RegistryUnavailable as unavailable:
                self.metrics.menura_registry_failures_total += 1
                self._waits("the database is away, commits wait")
                if not away:
                    logger.warning("registry is away, commits wait: %s", unavailable)
                away = True
                await asyncio.sleep(REGISTRY_RETRY_SECONDS)
            else:
                self.readiness.goes_on(_DATABASE)
                self.metrics.menura_log_waits_for_database = 0
                if away:
                    logger.warning("registry is back")
                return answer

    def _waits(self, why: str) -> None:
        self.readiness.waits(_DATABASE, why)
        self.metrics.menura_log_waits_for_database = 1


def taken_over(key: SourceKey, epoch: int) -> LeaseLost:
    return LeaseLost(
        "landing a source",
        f"another gateway has taken it over, under epoch {epoch}",
        data=NOTHING_LOST,
        remedy="The agent opens its streams again; two agents must not have one source",
        source=str(key),
    )


def quarantined(key: SourceKey, found: str) -> SourceQuarantined:
    return SourceQuarantined(
        "committing a source's cuts",
        found,
        data="It is committed, and nothing more of the source lands before somebody ends the quarantine",
        remedy=f"See why: {quarantine_of(key.source)}",
        source=str(key),
    )


def blocked(key: SourceKey, found: str) -> SourceBlocked:
    return SourceBlocked(
        "applying a source's committed cuts",
        f"another transaction of the control plane's database holds a row that they change ({found})",
        data="They are committed, and are applied as soon as that transaction ends; other sources go on",
        remedy="It goes on by itself; end a transaction there that stays open (docs/failures.md says how to find it)",
        source=str(key),
    )
