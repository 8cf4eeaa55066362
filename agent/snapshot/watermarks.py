"""Committed cuts that a chunk can stand on: up to here a server that has executed the position shows every change.

Pure. An older watermark is as right as a newer one and only makes more work, so old ones are thinned, not dropped: a
replica that lags finds one that it has passed.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from agent.positions import Position
from agent.table_positions import Table

#: of one level: a replica that is a while behind finds a watermark that is older by at most a part of that while
LEVEL_WATERMARKS = 64


@dataclass(frozen=True, slots=True)
class Watermark:
    """The end of a cut."""

    cut: int
    #: the last row number in it
    gsn: int
    position: Position
    #: tables that are past `position`
    ahead: Mapping[Table, Position]

    def is_same(self, other: "Watermark") -> bool:
        """Whether it is the end of the same cut."""
        same_numbers = (self.cut, self.gsn) == (other.cut, other.gsn)
        return same_numbers and self.position.is_comparable(other.position) and self.position.same_place(other.position)

    def of(self, table: Table) -> Position:
        """Up to where the table's changes have numbers up to `gsn`."""
        return self.ahead.get(table, self.position)

    def covers(self, table: Table, high: Position) -> bool:
        """Whether every change of the table up to `high` is in this cut or one before."""
        return _covers(self.position, high) or (table in self.ahead and _covers(self.ahead[table], high))


def _covers(position: Position, other: Position) -> bool:
    """Positions of different logs say nothing of each other: a server behind one name may have been replaced."""
    return position.is_comparable(other) and position.covers(other)


class Watermarks:
    """Of one stream, in the order of their cuts. Each level has twice the distance of the one before it."""

    def __init__(self) -> None:
        self._levels: list[deque[Watermark]] = [deque()]

    def __bool__(self) -> bool:
        return bool(self._levels[0])

    def add(self, watermark: Watermark) -> None:
        for level in self._levels:
            level.append(watermark)
            if len(level) <= LEVEL_WATERMARKS:
                return
            level.popleft()
            watermark = level.popleft()
        self._levels.append(deque([watermark]))

    def newest(self, table: Table, low: Position, least_gsn: int) -> Watermark | None:
        """The newest from `least_gsn` on that a server which has executed `low` has passed."""
        for watermark in (watermark for level in self._levels for watermark in reversed(level)):
            if watermark.gsn < least_gsn:
                return None
            if _covers(low, watermark.of(table)):
                return watermark
        return None

    def has_from(self, least_gsn: int) -> bool:
        newest = self._levels[0]
        return bool(newest) and newest[-1].gsn >= least_gsn
