"""Digests of an index's rows, by which it is compared with the lake: counts and sums by ranges of keys.

A key's place is the first 63 bits of its digest; a row's digest has 64 bits. Places are divided into 2^bits ranges by
their upper bits, at most 31 of them, so that each engine can count by ranges. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from spark_sink.search.entries import Reached

PLACE_BITS = 63
MODULUS = 1 << 64

#: how many rows, the sum of their keys' places, the sum of their digests, both modulo `MODULUS`
Sums = tuple[int, int, int]
NO_ROWS: Sums = (0, 0, 0)


class DigestedIndex(Protocol):
    """An index as it was when it was opened. Each raises `SearchIndexFailed`."""

    @property
    def reached(self) -> Reached: ...

    @property
    def rows(self) -> int: ...

    def sums(self, bits: int) -> Sequence[Sums]:
        """Of each of the 2^bits ranges."""

    def pairs(self, which: int, bits: int) -> Iterator[tuple[int, int]]:
        """Of each row of a range its key's place and its digest, which is signed."""


def place_of(key: str) -> int:
    """Where a key is among all of them: evenly from 0 to 2^63."""
    return int(key[:16], 16) >> 1


def range_of(place: int, bits: int) -> int:
    """
    >>> range_of(1 << 62, 0), range_of(1 << 62, 1), range_of((1 << 63) - 1, 2)
    (0, 1, 3)
    """
    return place >> (PLACE_BITS - bits)


def bounds(which: int, bits: int) -> tuple[int, int]:
    """Places of a range, both included."""
    return which << (PLACE_BITS - bits), ((which + 1) << (PLACE_BITS - bits)) - 1


def plus(held: Sums, place: int, row: int) -> Sums:
    return held[0] + 1, (held[1] + place) % MODULUS, (held[2] + row) % MODULUS


def sums_of(pairs: Iterable[tuple[int, int]]) -> Sums:
    found = NO_ROWS
    for place, row in pairs:
        found = plus(found, place, row)
    return found
