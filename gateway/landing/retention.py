"""Retention of the landing: entries that every lake has, and their files, are removed behind a horizon.

Comes in: how long landed files are kept, up to where the lakes have the log (`Registry.removable`), the log's first
entry. Goes out: a horizon (`menura.horizon`), then a shorter landing. Runs beside streams and commits, in a thread of
its own, once a minute; several gateways may do it at once.

Durable, in this order: the horizon, written once; then from the first entry on each entry's files, and behind them the
entry; then older horizons are removed. A kill between two of them leaves entries below the newest horizon, which the
next turn of any gateway removes: the last entry below it goes last, so one look tells whether something is left. A data
file goes before its entry, so none is left that no entry names.

A turn that has nothing to do lists the few horizons and reads one or two entries. A horizon costs what all tables cost,
so it is made only when `LEAST_ENTRIES` can go, or when the first entry is an hour overdue.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from menura.horizon import HORIZONS_FOLDER, HorizonName, encode_horizon, horizon_names, newest_horizon
from menura.instants import now_us
from menura.landing import DATA_FOLDER, LogEntry
from menura.stores.store import Store

from gateway.errors import LogUnreadable
from gateway.landing.cut_log import CutLog
from gateway.metrics import GatewayMetrics
from gateway.registry import Registry, RegistryRefused, RegistryUnavailable, Removable

logger = logging.getLogger(__name__)

TURN_SECONDS = 60.0
LEAST_ENTRIES = 1_000
OVERDUE_US = 3_600_000_000
#: from then on a lake that says nothing is named in the gateway's log
SILENT_US = 7 * 24 * 3_600_000_000


@dataclass(slots=True)
class Retention:
    storage: Store
    log: CutLog
    registry: Registry
    keep_us: int
    metrics: GatewayMetrics
    clock_us: Callable[[], int] = now_us
    _stopping: threading.Event = field(default_factory=threading.Event)
    #: what was logged last: once for each change
    _said: str = ""

    async def run(self, seconds: float = TURN_SECONDS) -> None:
        """Turn after turn, until cancelled."""
        try:
            while True:
                try:
                    await asyncio.to_thread(self.turn)
                except (OSError, LogUnreadable, RegistryRefused, RegistryUnavailable) as failed:
                    self._say(f"landed files are not removed, it is tried again: {type(failed).__name__}: {failed}")
                await asyncio.sleep(seconds)
        finally:
            self._stopping.set()

    def turn(self) -> None:
        """Remove what may go. Raises OSError, `LogUnreadable`, `RegistryUnavailable`."""
        newest = self._finish()
        found = self.registry.removable(self.log.landing)
        first_entry = self._due(newest.first_entry, found)
        if first_entry:
            self._put(first_entry)
            self._finish()

    def _finish(self) -> HorizonName:
        """Remove what lies below the newest horizon."""
        names = horizon_names(found.path for found in self.storage.list(HORIZONS_FOLDER))
        newest = names[0] if names else HorizonName()
        if newest.entry and self.log.read(newest.first_entry - 1) is not None:
            begun = time.monotonic()
            first = self._first_there(newest.first_entry)
            for number in range(first, newest.first_entry):
                if self._stopping.is_set():
                    return newest
                self._remove(number)
            logger.info(
                "landing shortened: first_entry=%d entries_removed=%d seconds=%.1f",
                newest.first_entry,
                newest.first_entry - first,
                time.monotonic() - begun,
            )
        if len(names) > 1:
            self.storage.delete([older.path for older in names[1:]])
        return newest

    def _first_there(self, end: int) -> int:
        """The first entry that is left below `end`: they go in the order of their numbers."""
        low, high = 0, end - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.log.read(middle) is not None else (middle, high)
        return high

    def _remove(self, number: int) -> None:
        entry = self.log.read(number)
        if entry is None:  # another gateway was faster
            return
        files = [file for cut in entry.cuts for file in cut.files]
        for file in files:
            if not file.path.startswith(f"{DATA_FOLDER}/") or ".." in file.path.split("/"):
                raise LogUnreadable(
                    f"removing entry {number} of the cut log of {self.log.landing}",
                    "it names a file that is not below data/",
                    data="Nothing of it was removed",
                    remedy="Find out who wrote the entry, and restore it",
                )
        self.storage.delete([file.path for file in files])
        self.storage.delete([self.log.path(number)])
        folders = {file.path.rpartition("/")[0] for file in files if file.dump}
        if self.log.has_folders:
            folders.add(self.log.path(number).rpartition("/")[0])
        for folder in folders:
            self.storage.drop_folder(folder)
        self.metrics.menura_retention_entries_total += 1
        self.metrics.menura_retention_files_total += len(files)
        self.metrics.menura_retention_bytes_total += sum(file.bytes for file in files)

    def _due(self, first: int, found: Removable) -> int:
        """The first entry that stays, where something is to go now; else 0. That of `found` stays for its readers."""
        limit_us = self.clock_us() - self.keep_us
        oldest = self.log.read(first)
        if oldest is None or oldest.committed_at_us > limit_us:
            self._say("")
            return 0
        is_overdue = oldest.committed_at_us <= limit_us - OVERDUE_US
        if found.entry <= first:
            if is_overdue and found.held_by:
                self._held(oldest, found)
            return 0
        self._say("")
        if not is_overdue and not self._is_old(first + LEAST_ENTRIES - 1, found.entry, limit_us):
            return 0
        low, high = first, found.entry
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._is_old(middle, found.entry, limit_us) else (low, middle)
        return low + 1

    def _is_old(self, number: int, end: int, limit_us: int) -> bool:
        entry = self.log.read(number) if number < end else None
        return entry is not None and entry.committed_at_us <= limit_us

    def _put(self, first_entry: int) -> None:
        horizon = self.registry.horizon(self.log.landing, self.log.identity, first_entry, self.clock_us())
        name = HorizonName(horizon.entry, first_entry)
        self.storage.put_if_absent(name.path, encode_horizon(horizon))
        if newest_horizon(found.path for found in self.storage.list(HORIZONS_FOLDER)) < name:
            raise OSError(f"{name.path} was written and is not there")

    def _held(self, oldest: LogEntry, found: Removable) -> None:
        self.metrics.menura_retention_held_turns_total += 1
        now = self.clock_us()
        if found.heard_at_us and now - found.heard_at_us > SILENT_US:
            self.metrics.menura_retention_silent_lake_turns_total += 1
        hours = (now - oldest.committed_at_us) // 3_600_000_000
        words = f"landed files are kept beyond {self.keep_us // 3_600_000_000} hours: {found.held_by}"
        self._say(words, f"the first one is {hours} hours old")

    def _say(self, words: str, more: str = "") -> None:
        if words and words != self._said:
            logger.warning("%s; %s", words, more) if more else logger.warning("%s", words)
        self._said = words
