"""In which entry of the cut log a row of a source has landed, by its number.

Comes in: a landing, and of some entries that the source has a cut there (the lake's boundaries). Goes out: the entry,
its cut, and the table's files that may have the row. What is searched lies between two of these entries, and is at most
`MOST_ENTRIES` long. An entry below the horizon is gone. Nothing is written.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from menura.landing import LandedCut, LandedFile, LogEntry

from spark_sink.landed.landing_log import LandingLog

#: of one search
MOST_ENTRIES = 4096


class SearchedLongEnough(Exception):
    """Nothing was found among so many entries."""


@dataclass(frozen=True, slots=True)
class LandedPlace:
    entry: LogEntry
    cut: LandedCut
    #: none of a change that the lake has derived from a parent's
    files: tuple[LandedFile, ...]


class CutSearch:
    """The cuts of one source."""

    def __init__(self, log: LandingLog, tenant: str, source: str, known: Iterable[int]) -> None:
        """`known`: entries with a cut of the source."""
        self._log = log
        self.first_entry = log.horizon().first_entry
        self.last_entry = log.last_entry(self.first_entry - 1)
        self._source = (tenant, source)
        self._known = sorted({entry for entry in known if self.first_entry <= entry <= self.last_entry})

    def of_change(self, database: str, table: str, gsn: int) -> LandedPlace | None:
        """Where a change has landed; None: its entry is gone, or not there yet. Raises `SearchedLongEnough`."""
        for entry, cut, is_certain in self._from(gsn):
            found = [file for file in files_of(cut, database, table) if file.first_gsn <= gsn <= file.last_gsn]
            files = tuple(file for file in found if not file.dump)
            return LandedPlace(entry, cut, files) if files or is_certain else None
        return None

    def of_chunk(self, database: str, table: str, gsn: int, read_at_us: int) -> LandedPlace | None:
        """Where a chunk with this number has landed that was read then: with its cut, or a later one."""
        for entry, cut, _ in self._from(gsn):
            of_chunks = {
                (chunk.dump, chunk.chunk)
                for chunk in cut.chunks
                if (chunk.database, chunk.table, chunk.gsn, chunk.read_at_us) == (database, table, gsn, read_at_us)
            }
            if of_chunks:
                found = files_of(cut, database, table)
                return LandedPlace(entry, cut, tuple(file for file in found if (file.dump, file.chunk) in of_chunks))
        return None

    def cuts(self, first: int, last: int) -> Iterator[tuple[LogEntry, LandedCut]]:
        """Those of these entries that are there."""
        for number in range(max(first, self.first_entry), min(last, self.last_entry) + 1):
            entry = self._log.read_entry(number)
            if entry is not None:
                yield from ((entry, cut) for cut in entry.cuts if (cut.tenant, cut.source) == self._source)

    def _from(self, gsn: int) -> Iterator[tuple[LogEntry, LandedCut, bool]]:
        """The cut that has this number, and those after it. False: it may be in one before that is gone."""
        place = bisect_left(self._known, gsn, key=self._last_gsn)
        begin = self._known[place - 1] if place else self.first_entry
        last = begin + MOST_ENTRIES - 1
        is_certain = self.first_entry == 1
        for entry, cut in self.cuts(begin, last):
            if cut.last_gsn >= gsn:
                yield entry, cut, is_certain
            is_certain = True
        if last < self.last_entry:
            raise SearchedLongEnough

    def _last_gsn(self, entry: int) -> int:
        return max((cut.last_gsn for _, cut in self.cuts(entry, entry)), default=0)


def files_of(cut: LandedCut, database: str, table: str) -> list[LandedFile]:
    return [file for file in cut.files if (file.database, file.table) == (database, table)]
