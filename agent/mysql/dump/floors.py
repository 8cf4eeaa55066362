"""Committed cuts that a chunk can stand on: up to here a server that has executed the position shows every change.

Pure. An older floor is as right as a newer one and only makes more work, so old ones are thinned, not dropped: a
replica that lags finds one that it has passed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.mysql.positions import Position

Table = tuple[str, str]

#: more are thinned: of the older half every second one goes
MOST_FLOORS = 512


@dataclass(frozen=True, slots=True)
class Floor:
    """The end of a cut."""

    cut: int
    #: the last row number in it
    gsn: int
    position: Position
    #: tables that are past `position`
    ahead: Mapping[Table, Position]

    def of(self, table: Table) -> Position:
        """Up to where the table's changes have numbers up to `gsn`."""
        return self.ahead.get(table, self.position)

    def covers(self, table: Table, high: Position) -> bool:
        """Whether every change of the table up to `high` is in this cut or one before."""
        return self.position.covers(high) or (table in self.ahead and self.ahead[table].covers(high))


class Floors:
    """Of one stream, in the order of their cuts."""

    def __init__(self) -> None:
        self._floors: list[Floor] = []

    def add(self, floor: Floor) -> None:
        self._floors.append(floor)
        if len(self._floors) > MOST_FLOORS:
            half = MOST_FLOORS // 2
            self._floors = self._floors[:half:2] + self._floors[half:]

    def newest(self, table: Table, low: Position, least_gsn: int) -> Floor | None:
        """The newest from `least_gsn` on that a server which has executed `low` has passed."""
        for floor in reversed(self._floors):
            if floor.gsn < least_gsn:
                return None
            if low.covers(floor.of(table)):
                return floor
        return None

    def has_from(self, least_gsn: int) -> bool:
        return bool(self._floors) and self._floors[-1].gsn >= least_gsn
