"""The cut log: numbered entries without gaps, each written once; what makes landed rows count.

Comes in: the complete cuts of one group commit, whose files are durable, and fences. Goes out: the entry that holds
them. Runs in one worker thread at a time. Several gateways may write one log: who finds the next number taken reads
what others have written (`read_next`) before it writes again, so an entry is always written by one who knows all
entries before it.

Durable: an entry for which `append` returned. The log is the truth; the registry follows it. A kill before
the put leaves files that no entry names; a kill after it leaves the registry one entry behind, and `recover`
applies what is missing at the next start.

A put ends ok, failed or *unknown*; that a file is there already is unknown too until it is read, since what stands
between us and the store may have sent the put twice. Unknown is settled by reading the entry back and, where it is
absent, by putting the same document again. Where that does not settle it either, the cuts fail as `LogUnsettled`;
should the entry appear later, the next append finds it taken, the registry gets it, and every source that it names
begins again from there: so it counts once.
"""

import logging
import time
from collections.abc import Callable, Sequence

from menura.horizon import HORIZONS_FOLDER, Horizon, HorizonName, decode_horizon, newest_horizon
from menura.landing import (
    LandedCut,
    LandedFence,
    LandingFormatError,
    LandingIdentity,
    LogEntry,
    decode_entry,
    encode_entry,
    entry_path,
    later_numbers,
)
from menura.stores.store import OutcomeUnknown, Store

from gateway.errors import NOTHING_LOST, LandingFailed, LogUnreadable, LogUnsettled
from gateway.landing.identity import check_entry, open_landing
from gateway.registry import Held, Registry, SourceKey, sources_of

logger = logging.getLogger(__name__)

SETTLE_ATTEMPTS = 4
SETTLE_SECONDS = 0.1
#: who has not seen the log's end for so long may have slept while entries came and were removed
LOOK_AGAIN_SECONDS = 600.0


class EntryTaken(Exception):
    """The next number holds an entry of another writer, which is to be read first."""


def _seconds_since_boot() -> float:
    """Also those that the machine slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class CutLog:
    def __init__(
        self,
        storage: Store,
        landing: str,
        gateway: str,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = _seconds_since_boot,
    ) -> None:
        self._storage = storage
        self._landing = landing
        self._gateway = gateway
        self._sleep = sleep
        self._clock = clock
        #: when the log's end was seen last, by `clock`
        self._known_at = clock()
        self._next = 1
        self._identity = LandingIdentity()

    @property
    def landing(self) -> str:
        return self._landing

    @property
    def next_entry(self) -> int:
        return self._next

    def recover(self, registry: Registry) -> int:
        """Apply to the registry what it lacks and find the log's end; returns the number of entries applied.

        Raises `OtherLanding`, `LogBehindRegistry`, `LogUnreadable`.
        """
        self._landing, self._identity = open_landing(self._storage, self._landing, registry)
        applied = self._from_horizon(registry, registry.applied_entry(self._landing))
        check_entry(self._storage, self._landing, self._identity, applied)
        self._moved_to(applied + 1)
        while (entry := self.read(self._next)) is not None or self._is_behind():
            if entry is not None:
                registry.apply_entry(self._landing, entry)
                self._next += 1
        return self._next - 1 - applied

    def _from_horizon(self, registry: Registry, applied: int) -> int:
        """What the registry holds, once a horizon stands in for entries that it lacks and that are removed."""
        newest = newest_horizon(found.path for found in self._storage.list(HORIZONS_FOLDER))
        if applied + 1 >= newest.first_entry:
            return applied
        horizon = self._read_horizon(newest, applied)
        registry.apply_horizon(self._landing, horizon)
        logger.warning(
            "the database lacks entries that are removed, goes on from a horizon: first_entry=%d entry=%d before=%d",
            newest.first_entry,
            newest.entry,
            applied,
        )
        return horizon.entry

    def _read_horizon(self, name: HorizonName, applied: int) -> Horizon:
        document = self._storage.read(name.path)
        found = "it is gone"
        if document is not None:
            try:
                horizon = decode_horizon(document)
            except LandingFormatError as broken:
                found = str(broken)
            else:
                if (horizon.entry, horizon.landing) == (name.entry, self._identity.landing):
                    return horizon
                found = f"it calls itself entry {horizon.entry} of landing {horizon.landing}"
        raise LogUnreadable(
            f"reading {name.path} of {self._landing}",
            found,
            data=f"The database holds entry {applied}, and the log begins at entry {name.first_entry}: nothing was"
            " changed",
            remedy="Start the version that wrote it, or restore the file or the database",
        )

    @property
    def identity(self) -> str:
        """The landing's; '' before `recover`."""
        return self._identity.landing

    @property
    def has_folders(self) -> bool:
        """Whether entries lie in folders of a thousand."""
        return self._identity.in_folders

    def path(self, number: int) -> str:
        """Where an entry lies, relative to the landing."""
        return entry_path(number, in_folders=self._identity.in_folders)

    def _is_behind(self) -> bool:
        """Whether the next entry is there: another gateway may be writing. Raises `LogUnreadable` where it is gone.

        An entry behind a missing one would count twice: once it is written, and as what it was.
        """
        for number in later_numbers(self._next):
            if self._storage.read(self.path(number)) is not None:
                if self._storage.read(self.path(self._next)) is None:
                    raise self._unreadable(self._next, f"it is gone, and entry {number} is there")
                return True
        return False

    def reapply(self, registry: Registry, held: Held) -> bool:
        """Apply what is held back of a source in quarantine; False where it is refused again."""
        return self._apply_held(held, registry.apply_held)

    def unblock(self, registry: Registry, held: Held) -> bool:
        """Apply what waits for a lock; False where that is not free yet."""
        return self._apply_held(held, registry.apply_blocked)

    def _apply_held(self, held: Held, apply: Callable[[str, SourceKey, LogEntry], bool]) -> bool:
        for number in range(held.entry, held.last_entry + 1):
            entry = self.read(number)
            if entry is None:
                raise self._unreadable(number, "it is not there")
            is_last = number == held.last_entry
            if (is_last or held.key in sources_of(entry)) and not apply(self._landing, held.key, entry):
                return False
        return True

    def append(self, cuts: Sequence[LandedCut], committed_at_us: int, fences: Sequence[LandedFence] = ()) -> LogEntry:
        """Write the next entry.

        Raises `LandingFailed` when it is not written, `LogUnsettled` when that can't be told, `EntryTaken` when
        another writer was first.
        """
        entry = LogEntry(self._next, self._gateway, committed_at_us, tuple(cuts), tuple(fences), self._identity.landing)
        document = encode_entry(entry)
        reason: OSError | None = None
        for attempt in range(SETTLE_ATTEMPTS):
            if attempt:
                self._sleep(SETTLE_SECONDS * 2**attempt)
            may_be_there = attempt > 0  # as this very document
            try:
                written = self._storage.put_if_absent(self.path(entry.entry), document)
                may_be_there = True
                found = document if written else self._storage.read(self.path(entry.entry))
            except OutcomeUnknown as unknown:
                reason = unknown
                continue
            except OSError as failed:
                if may_be_there:
                    reason = failed
                    continue
                raise _failed(f"writing entry {entry.entry} of the cut log", failed) from failed
            if found == document:
                self._check_not_removed(entry.entry)
                self._moved_to(self._next + 1)
                return entry
            if found is not None:
                raise EntryTaken(f"entry {entry.entry} is there already")
            reason = OSError("it is there and can't be read")
        raise LogUnsettled(
            f"writing entry {entry.entry} of the cut log",
            f"no answer whether it was written ({type(reason).__name__})",
            data=NOTHING_LOST,
            remedy="Check that the landing can be reached; it is tried again by itself",
        ) from reason

    def read_next(self) -> LogEntry | None:
        """The next entry, and the log stands behind it; None where nobody has written it. Raises `LandingFailed`."""
        try:
            entry = self.read(self._next)
        except OSError as failed:
            raise _failed(f"reading entry {self._next} of the cut log", failed) from failed
        self._moved_to(self._next + (entry is not None))
        return entry

    def _moved_to(self, number: int) -> None:
        self._next, self._known_at = number, self._clock()

    def _check_not_removed(self, number: int) -> None:
        """That the entry which was put did not replace a removed one. Raises `EntryTaken`.

        None is removed before it is an hour old; so only who has not seen the log's end for a while looks.
        """
        if self._clock() - self._known_at < LOOK_AGAIN_SECONDS:
            return
        if newest_horizon(found.path for found in self._storage.list(HORIZONS_FOLDER)).first_entry > number:
            self._storage.delete([self.path(number)])
            raise EntryTaken(f"entry {number} was there, and is removed")

    def skip_to(self, number: int) -> None:
        """Go on at this entry: what those before it say is known."""
        self._moved_to(max(self._next, number))

    def read(self, number: int) -> LogEntry | None:
        """An entry; None where there is none. Raises `LogUnreadable`, OSError."""
        document = self._storage.read(self.path(number))
        if document is None:
            return None
        try:
            entry = decode_entry(document)
        except LandingFormatError as broken:
            raise self._unreadable(number, str(broken)) from broken
        if entry.entry != number:
            raise self._unreadable(number, f"it calls itself entry {entry.entry}")
        return entry

    def _unreadable(self, number: int, found: str) -> LogUnreadable:
        return LogUnreadable(
            f"reading entry {number} of the cut log of {self._landing}",
            found,
            data="Nothing is committed before this is settled",
            remedy="Start the version that wrote it, or restore the file",
        )


def _failed(doing: str, failed: OSError) -> LandingFailed:
    return LandingFailed(
        doing,
        f"{type(failed).__name__} {failed.strerror or ''}".strip(),
        data=NOTHING_LOST,
        remedy="Check the landing's free space and permissions; it is tried again by itself",
    )
