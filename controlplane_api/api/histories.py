"""How each source was of late: lag and throughput by stage, in this process's memory. Pure.

Comes in: every `STEP_SECONDS` what is known of all sources (`history_queries`). Goes out: the points of the last hour,
and of the last day one for each five minutes, in which a lag is the largest one and a rate the mean. What is not known
is absent. Nothing is durable: a restart begins anew, and `since_us` says when this was.

A source takes 16 KB, and up to 8 KB more while a lake is behind it. Those beyond the first `MOST_SOURCES` have no
history, and are told so.
"""

import math
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock

STEP_SECONDS = 10
#: an hour
FINE_POINTS = 360
#: of which one coarse point is made
FINE_OF_COARSE = 30
#: a day
COARSE_POINTS = 288
MOST_SOURCES = 10_000
#: of which the rows up to them are remembered, for lakes that are behind
MOST_CUTS = 60

#: lags of source, landing and lake in seconds; rows a second that were read, have landed, are in the lake
_LAGS, _FIGURES = 3, 6
_UNKNOWN = math.nan


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a source at one moment; None: not known."""

    tenant: str
    source: str
    #: of what the agent has read, behind the end of the log
    lag_us: int | None
    rows_per_second: float | None
    #: all that was read has landed
    has_landed: bool
    #: the last cut, when it was committed, and rows up to it
    cut: int
    committed_at_us: int
    rows: int
    #: of the lake that is the furthest behind
    lake_cut: int | None
    lake_lag_us: int | None


@dataclass(frozen=True, slots=True)
class Points:
    at_us: list[int]
    #: in the order of `_FIGURES`, each as long as `at_us`
    columns: list[list[float | None]]


class _Past:
    """Of one source. Its newest point is that of the newest moment; a source that came later has fewer."""

    __slots__ = ("_at_us", "_caught_up_us", "_cuts", "_lake_before", "_rows_before", "coarse", "fine")

    def __init__(self) -> None:
        self.fine, self.coarse = array("f"), array("f")
        #: when it was looked at last, with the rows that had landed, and that were in the lake
        self._at_us = 0
        self._rows_before: int | None = None
        self._lake_before: int | None = None
        #: when all that was read had landed, as far as it was seen
        self._caught_up_us = 0
        #: cuts with the rows up to them, from the newest one that the lake has
        self._cuts = deque[tuple[int, int]](maxlen=MOST_CUTS)

    def add(self, at_us: int, seen: Seen) -> None:
        lake_rows, elapsed_us = self._lake_rows(seen), at_us - self._at_us
        self.fine.extend(
            (
                _seconds(seen.lag_us),
                _seconds(self._landed_lag_us(at_us, seen)),
                _seconds(seen.lake_lag_us),
                _UNKNOWN if seen.rows_per_second is None else seen.rows_per_second,
                _rate(self._rows_before, seen.rows, elapsed_us),
                _rate(self._lake_before, lake_rows, elapsed_us),
            )
        )
        self._at_us, self._rows_before, self._lake_before = at_us, seen.rows, lake_rows
        del self.fine[: -FINE_POINTS * _FIGURES]

    def thin_out(self) -> None:
        """One coarse point of the newest fine ones."""
        newest = self.fine[-FINE_OF_COARSE * _FIGURES :]
        for figure in range(_FIGURES):
            known = [value for value in newest[figure::_FIGURES] if not math.isnan(value)]
            self.coarse.append(
                _UNKNOWN if not known else max(known) if figure < _LAGS else math.fsum(known) / len(known)
            )
        del self.coarse[: -COARSE_POINTS * _FIGURES]

    def _landed_lag_us(self, at_us: int, seen: Seen) -> int | None:
        """At most: what has not landed was read after the last cut, and after all had landed."""
        if seen.has_landed:
            self._caught_up_us = at_us
        since_us = max(self._caught_up_us, seen.committed_at_us)
        if seen.lag_us is None or not since_us:
            return None
        return seen.lag_us + (0 if seen.has_landed else max(0, at_us - since_us))

    def _lake_rows(self, seen: Seen) -> int | None:
        """Rows up to the newest cut in the lake of which they are known."""
        cuts = self._cuts
        if seen.lake_cut is None:
            cuts.clear()  # nobody follows them
            return None
        if cuts and cuts[-1][0] > seen.cut:
            cuts.clear()  # of another landing
        if not cuts or cuts[-1][0] < seen.cut:
            cuts.append((seen.cut, seen.rows))
        while len(cuts) > 1 and cuts[1][0] <= seen.lake_cut:
            cuts.popleft()
        return cuts[0][1] if cuts[0][0] <= seen.lake_cut else None


class Histories:
    """Of all sources. Thread-safe."""

    def __init__(self, since_us: int) -> None:
        #: when it began
        self.since_us = since_us
        self._lock = Lock()
        self._pasts: dict[tuple[str, str], _Past] = {}
        self._fine_at, self._coarse_at = deque[int](maxlen=FINE_POINTS), deque[int](maxlen=COARSE_POINTS)
        self._taken = 0

    def take(self, at_us: int, seen: Iterable[Seen]) -> None:
        """A point of each source; those that are no more are forgotten."""
        with self._lock:
            known, self._pasts = self._pasts, {}
            self._fine_at.append(at_us)
            self._taken += 1
            is_coarse = self._taken % FINE_OF_COARSE == 0
            if is_coarse:
                self._coarse_at.append(at_us)
            for each in seen:
                past = self._pasts[each.tenant, each.source] = known.get((each.tenant, each.source)) or _Past()
                past.add(at_us, each)
                if is_coarse:
                    past.thin_out()

    def of(self, tenant: str, source: str, *, coarse: bool) -> Points | None:
        """None: no history of it is kept, or it has begun since the last look."""
        with self._lock:
            past = self._pasts.get((tenant, source))
            if past is None:
                return None
            values = (past.coarse if coarse else past.fine)[:]
            at_us = list(self._coarse_at if coarse else self._fine_at)
        number = len(values) // _FIGURES
        return Points(at_us[len(at_us) - number :], [_column(values[figure::_FIGURES]) for figure in range(_FIGURES)])


def _column(values: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(value) else round(value, 3) for value in values]


def _seconds(us: int | None) -> float:
    return _UNKNOWN if us is None else us / 1e6


def _rate(before: int | None, now: int | None, elapsed_us: int) -> float:
    """A second, between two looks."""
    if before is None or now is None or now < before or elapsed_us <= 0:
        return _UNKNOWN
    return (now - before) * 1_000_000 / elapsed_us
