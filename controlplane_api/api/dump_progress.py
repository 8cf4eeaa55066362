"""How far a dump is and when it may end: pure arithmetic over what the ledger and the agent say.

Only what a cut has committed counts. Rows that a dump will have been are never known before its end: the server's
statistics are off by half at times, or stale. So a range that is done is a sample of those that are not; of one that is
not, the part of its key space that is done says how many rows all of it may have, where the key is a number. Only where
neither tells anything the statistics count, until more rows came than they know of; after that nothing is said.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

#: of a range's key space; less is no sample
LEAST_COVERED = 0.02


@dataclass(frozen=True, slots=True)
class RangePart:
    rows: int
    #: of its key space; 1.0: done; None: not known
    covered: float | None

    @property
    def expected_rows(self) -> float | None:
        if self.covered is None or self.covered < LEAST_COVERED:
            return None
        return self.rows / self.covered


@dataclass(frozen=True, slots=True)
class Progress:
    #: committed
    rows: int
    #: of the server's statistics
    estimated_rows: int | None
    #: of the plan; none for a table that is read in one snapshot
    ranges: Sequence[RangePart] = ()


def covered(lower: str, upper: str, reached: str, least: float | None, greatest: float | None) -> float | None:
    """Which part of a range's keys lies below `reached`, if they are spread evenly; None: that can't be told.

    Bounds are those of menura.v1.DumpRange; `least` and `greatest` are numbers in the key's first column.

    >>> covered("", '["300"]', '["150"]', least=100.0, greatest=900.0)
    0.25
    >>> covered("", "", "", least=100.0, greatest=900.0), covered('["1"]', '["2"]', '["1"]', None, None)
    (0.0, None)
    """
    if least is None or greatest is None:
        return None
    begin, end = _first_number(lower, least), _first_number(upper, greatest)
    at = _first_number(reached, begin)
    if begin is None or end is None or at is None or begin == end:
        return None
    return min(1.0, max(0.0, (at - begin) / (end - begin)))


def _first_number(bound: str, without: float | None) -> float | None:
    if not bound:
        return without
    try:
        return float(json.loads(bound)[0])
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):  # an agent wrote it: it may be anything
        return None


def expected_rows(progress: Progress) -> int | None:
    """What the dump may have been at its end; None while nothing tells.

    >>> expected_rows(Progress(150, 1_000, [RangePart(100, 1.0), RangePart(50, None)]))
    200
    >>> expected_rows(Progress(60, 0, [RangePart(60, 0.3)])), expected_rows(Progress(60, 0, [RangePart(60, None)]))
    (200, None)
    """
    known = [rows for part in progress.ranges if (rows := part.expected_rows) is not None]
    if known:
        typical = sum(known) / len(known)  # the plan cuts the key into ranges of about as many rows
        return round(
            sum(
                max(part.rows, typical) if part.expected_rows is None else part.expected_rows
                for part in progress.ranges
            )
        )
    if progress.estimated_rows is not None and progress.estimated_rows > progress.rows:
        return progress.estimated_rows
    return None


def percent(progress: Progress) -> float | None:
    """Of a dump that is not done: never 100.

    >>> percent(Progress(500, 1_000)), percent(Progress(1_200, 1_000))
    (50.0, None)
    """
    expected = expected_rows(progress)
    if expected is None:
        return None
    return min(99.9, round(100 * progress.rows / expected, 1)) if expected else 0.0


def seconds_left(progress: Progress, rows_per_second: float | None) -> float | None:
    """At this speed.

    >>> seconds_left(Progress(500, 1_000), 100.0)
    5.0
    """
    expected = expected_rows(progress)
    if expected is None or not rows_per_second:
        return None
    return (expected - progress.rows) / rows_per_second
