"""Positions in a source's log, as far as they are the same for every source.

Pure values, no I/O. A position stands between two transactions. What one covers has been read; positions are only
partially ordered (of two each may hold what the other lacks), so the question is never "which is later".
"""

from collections.abc import Iterable
from enum import Enum
from functools import reduce
from typing import Protocol, Self, TypeVar

from menura.v1 import changes_pb2


class PositionSyntaxError(ValueError):
    """Text that is no position; says why."""


class PositionsUnordered(ValueError):
    """Positions of different logs, which can't be compared."""


class PositionKind(Enum):
    """How positions on a server are kept; each kind of source has members of its own."""


class Position(Protocol):
    """Of one kind of source. Its text is in the server's own words."""

    def covers(self, other: Self, /) -> bool:
        """Whether all that `other` has read is read here too; raises `PositionsUnordered` for different logs."""

    def is_comparable(self, other: Self, /) -> bool:
        """Whether `covers` can answer."""

    def same_place(self, other: Self, /) -> bool:
        """Whether each covers the other."""

    def meet(self, other: Self, /) -> Self:
        """The greatest position that both cover; raises `PositionsUnordered` where there is none."""

    def is_of(self, kind: PositionKind, /) -> bool:
        """Whether it can be used where positions are kept so."""

    def to_proto(self) -> changes_pb2.Position: ...


P = TypeVar("P", bound=Position)


def least(positions: Iterable[P]) -> P:
    """From where all of them can go on: the greatest position that each of them covers; `positions` is not empty."""
    return reduce(lambda left, right: left.meet(right), positions)
