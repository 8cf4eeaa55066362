"""The gateway's landing as the lake reads it: entries by number, data files by path; horizons alone are listed.

Comes in: an address, an entry's number or a path. Goes out: a `LogEntry`, or an open file. Knows neither
Spark nor Delta, and keeps nothing but the opened store.
"""

from functools import cached_property
from pathlib import Path

import pyarrow as pa
from menura.horizon import HORIZONS_FOLDER, Horizon, HorizonName, decode_horizon, newest_horizon
from menura.landing import (
    IDENTITY_PATH,
    LandingFormatError,
    LandingIdentity,
    LogEntry,
    decode_entry,
    decode_identity,
    entry_path,
    later_numbers,
)
from menura.stores.store import Store

from spark_sink.errors import LogEntryMissing, LogEntryUnreadable, OtherLanding
from spark_sink.landed.storage import open_storage

LARGEST_ENTRY_BYTES = 256 << 20
LARGEST_IDENTITY_BYTES = 4096
LARGEST_HORIZON_BYTES = (1 << 30) - 1


class LandingLog:
    """A landing by its address."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._identity = LandingIdentity()

    def __reduce__(self) -> tuple[type["LandingLog"], tuple[str]]:
        return LandingLog, (self.url,)  # the opened store stays behind

    @cached_property
    def _store(self) -> Store:
        return open_storage(self.url)

    def entry_path(self, entry: int) -> str:
        """Where an entry lies, relative to the landing: that landing.json says, once it is there."""
        if not self._identity.landing:
            self._identity = self._read_identity()
        return entry_path(entry, in_folders=self._identity.in_folders)

    def read_entry(self, entry: int) -> LogEntry | None:
        """Entry number `entry`, or None when it is not written yet. Raises `LogEntryUnreadable`."""
        path = self.entry_path(entry)
        document = self._store.read(path, LARGEST_ENTRY_BYTES + 1)
        if document is None:
            return None
        if len(document) > LARGEST_ENTRY_BYTES:
            raise log_entry_unreadable(entry, f"{path} is no file of at most {LARGEST_ENTRY_BYTES} bytes")
        try:
            decoded = decode_entry(document)
        except LandingFormatError as broken:
            raise log_entry_unreadable(entry, str(broken)) from broken
        if decoded.entry != entry:
            raise log_entry_unreadable(entry, f"{path} says that it is entry {decoded.entry}")
        for cut in decoded.cuts:
            chunks = {(chunk.dump, chunk.chunk) for chunk in cut.chunks}
            for file in cut.files:
                if file.dump and (file.dump, file.chunk) not in chunks:
                    found = f"{path} does not say what chunk {file.chunk} of dump {file.dump} is"
                    raise log_entry_unreadable(entry, found)
        return decoded

    def identity(self) -> str:
        """Which landing it is; '' where it does not say so: an earlier version's, or none yet. Raises OSError."""
        self._identity = self._read_identity()
        return self._identity.landing

    def _read_identity(self) -> LandingIdentity:
        document = self._store.read(IDENTITY_PATH, LARGEST_IDENTITY_BYTES)
        if document is None:
            return LandingIdentity()
        try:
            return decode_identity(document)
        except LandingFormatError as broken:
            raise OtherLanding(
                f"opening the landing {self.url}",
                str(broken),
                data="Nothing was read or written",
                remedy=f"Restore {IDENTITY_PATH} as it was, or upgrade the sink to at least the gateway's version",
            ) from broken

    def horizon(self) -> HorizonName:
        """The newest one; entry 0 where nothing was removed."""
        return newest_horizon(found.path for found in self._store.list(HORIZONS_FOLDER))

    def read_horizon(self, name: HorizonName) -> Horizon:
        """Raises `LogEntryUnreadable`, OSError."""
        document = self._store.read(name.path, LARGEST_HORIZON_BYTES + 1)
        if document is None or len(document) > LARGEST_HORIZON_BYTES:
            raise log_entry_unreadable(name.entry, f"{name.path} is no file of at most {LARGEST_HORIZON_BYTES} bytes")
        try:
            horizon = decode_horizon(document)
        except LandingFormatError as broken:
            raise log_entry_unreadable(name.entry, f"{name.path}: {broken}") from broken
        if (horizon.entry, horizon.landing) != (name.entry, self.identity()):
            words = f"{name.path} calls itself entry {horizon.entry} of landing {horizon.landing}"
            raise log_entry_unreadable(name.entry, words)
        return horizon

    def missing(self, entry: int) -> str:
        """Why entry number `entry`, which is not there, should be; '' where it is not written yet."""
        first_entry = self.horizon().first_entry
        if entry < first_entry:
            return f"it is removed, as are all before entry {first_entry}"
        for number in later_numbers(entry):
            if self.has(number):  # written behind it, or after it meanwhile
                return "" if self.has(entry) else f"it is gone, and entry {number} is there"
        if entry > 1 and not self.has(entry - 1) and not self.has(entry):
            return f"it is not there, nor is entry {entry - 1}, which the lake has"
        return ""

    def written_us(self, entry: int) -> int | None:
        """When an entry was written, by the storage's clock; None when it is not written yet. Raises OSError."""
        found = self._store.find(self.entry_path(entry))
        return found.modified_us if found is not None else None

    def last_entry(self, after: int = 0) -> int:
        """Number of the last entry behind number `after`, as far as there are no gaps; `after` for none."""
        low, high = after, after + 1
        while self.has(high):
            low, high = high, high + (high - after)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.has(middle) else (low, middle)
        return low

    def has(self, entry: int) -> bool:
        """Whether the entry is there."""
        return self._store.find(self.entry_path(entry)) is not None

    def has_data(self, path: str) -> bool:
        """Whether a data file is there, `path` as an entry names it. Raises OSError."""
        return self._store.find(path) is not None

    def open_data(self, path: str) -> pa.NativeFile:
        """A data file, `path` as an entry names it. Raises OSError."""
        return self._store.open(path)


def log_entry_missing(entry: int, found: str, *, is_removed: bool = False) -> LogEntryMissing:
    """`is_removed`: by the gateway's retention."""
    if is_removed:
        return LogEntryMissing(
            f"reading entry {entry} of the cut log",
            found,
            data="The lake stays as it is",
            remedy="Start the sink with a new --lake and --checkpoint: it says of each table which dump it needs. Let"
            " gateways keep more (menura gateway run --keep-landing-hours), or give the sink --api, so that they"
            " wait for it",
        )
    return LogEntryMissing(
        f"reading entry {entry} of the cut log",
        found,
        data="Nothing of it, or of a later entry, was written to the lake",
        remedy=f"Restore {Path(entry_path(entry)).name} in the landing's log, with what else was lost there, and start"
        " the sink again",
    )


def log_entry_unreadable(entry: int, found: str) -> LogEntryUnreadable:
    return LogEntryUnreadable(
        f"reading entry {entry} of the cut log",
        found,
        data="Nothing of it, or of a later entry, was written to the lake",
        remedy="Upgrade the sink to at least the gateway's version, or restore the entry, and start the sink again",
    )
