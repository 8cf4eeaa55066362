"""How far a dump is and when it may end: pure arithmetic over what the ledger and the agent say.

Rows that a dump will have been are never known before its end: the server's statistics are off by half at times. So
the ranges that are done count as a sample of those that are not; where nothing is known, nothing is said.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    #: committed, and read but not committed
    rows: int
    uncommitted_rows: int
    estimated_rows: int | None
    #: of the plan; 0 for a table that is read in one snapshot
    ranges: int
    ranges_done: int
    rows_of_done_ranges: int

    @property
    def read_rows(self) -> int:
        return self.rows + self.uncommitted_rows


def expected_rows(progress: Progress) -> int | None:
    """What the dump may have been at its end, at least what was read; None while nothing tells.

    >>> expected_rows(Progress(150, 0, 1_000, ranges=4, ranges_done=1, rows_of_done_ranges=100))
    400
    >>> expected_rows(Progress(1_200, 0, 1_000, ranges=0, ranges_done=0, rows_of_done_ranges=0)) is None
    True
    """
    if progress.ranges_done:
        # An even split of the key: what is left of it may be as dense as what is done.
        per_range = progress.rows_of_done_ranges / progress.ranges_done
        expected = progress.rows_of_done_ranges + round(per_range * (progress.ranges - progress.ranges_done))
    elif progress.estimated_rows is not None:
        expected = progress.estimated_rows
    else:
        return None
    if expected < progress.read_rows:  # the statistics were wrong; only ranges say how much is left then
        return progress.read_rows if progress.ranges_done else None
    return expected


def percent(progress: Progress) -> float | None:
    """Of a dump that is not done: never 100.

    >>> percent(Progress(500, 0, 1_000, ranges=4, ranges_done=0, rows_of_done_ranges=0))
    50.0
    """
    expected = expected_rows(progress)
    if expected is None:
        return None
    return min(99.9, round(100 * progress.read_rows / expected, 1)) if expected else 0.0


def seconds_left(progress: Progress, rows_per_second: float | None) -> float | None:
    """At this speed.

    >>> seconds_left(Progress(500, 0, 1_000, ranges=4, ranges_done=0, rows_of_done_ranges=0), 100.0)
    5.0
    """
    expected = expected_rows(progress)
    if expected is None or not rows_per_second:
        return None
    return (expected - progress.read_rows) / rows_per_second
