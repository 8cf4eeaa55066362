"""A chunk of a verification as the digest of its rows: the rows stay at their host.

Comes in: batches of a chunk, as a source's `TableReader` gives them, behind the filter. Goes out: a `Digest`: of each
leaf of some thousand rows its last key, how many rows it has, and the sums of their hashes. Nothing is durable: a chunk
that no cut names is read again.

The lake finds a leaf's rows by the order of its own numbers. So a key must be of integers alone, and come in rising
order, which is checked row by row; any other is refused, since rows would be looked for at a wrong place.
"""

import json
from collections.abc import Sequence

from menura.change_batch import landed_column
from menura.row_hash import HashedRows
from menura.v1 import snapshot_pb2

from agent.columnar.arrow import ArrowColumns
from agent.columnar.encode import SnapshotRows

LEAF_ROWS = 16_384
GREATEST_NUMBER = (1 << 63) - 1


class KeyUnordered(Exception):
    """The lake would not find the leaves of such a key; says why, without a value."""


class ChunkDigest:
    """Of one chunk, batch by batch."""

    def __init__(self, key: Sequence[str], lower: str, leaf_rows: int | None = None) -> None:
        """`lower`: the bound above which the chunk begins."""
        self._key = tuple(map(landed_column, key))
        self._leaf_rows = leaf_rows or LEAF_ROWS
        self._columns: tuple[tuple[str, str], ...] = ()
        self._before = _numbers_of(lower, len(key)) if lower else None
        self._leaves: list[snapshot_pb2.Leaf] = []

    def add(self, rows: SnapshotRows) -> None:
        """Hash them; columns of ours are released. Raises `KeyUnordered`."""
        if rows.row_count:
            self._add(HashedRows(rows.columns))
        if isinstance(rows.columns, ArrowColumns):
            rows.columns.release()

    def _add(self, hashed: HashedRows) -> None:
        self._columns = hashed.columns
        places = self._places()
        try:
            first, last = (hashed.numbers(places, row) for row in (0, hashed.length - 1))
        except ValueError as wrong:
            raise KeyUnordered(str(wrong)) from wrong
        if max(*first, *last) > GREATEST_NUMBER:
            raise KeyUnordered("a key above 9223372036854775807")
        if not hashed.ascends(places) or (self._before is not None and first <= self._before):
            raise KeyUnordered("its index does not rise with the numbers of its columns")
        self._before = last
        begin = 0
        while begin < hashed.length:
            if not self._leaves or self._leaves[-1].rows >= self._leaf_rows:
                self._leaves.append(snapshot_pb2.Leaf())
            leaf = self._leaves[-1]
            end = min(hashed.length, begin + self._leaf_rows - leaf.rows)
            count, first_sum, second_sum = hashed.sums(begin, end)
            leaf.rows += count
            leaf.first_sum = _wrapped(leaf.first_sum + first_sum)
            leaf.second_sum = _wrapped(leaf.second_sum + second_sum)
            leaf.upper[:] = hashed.numbers(places, end - 1)
            begin = end

    def _places(self) -> list[int]:
        names = [name for name, _ in self._columns]
        missing = [name for name in self._key if name not in names]
        if missing:
            raise KeyUnordered(f"column {missing[0]} is not sent")
        return [names.index(name) for name in self._key]

    def message(self) -> snapshot_pb2.Digest:
        """Once all of the chunk's rows are there; a chunk without rows is one leaf."""
        leaves = self._leaves or [snapshot_pb2.Leaf()]
        del leaves[-1].upper[:]
        columns = [snapshot_pb2.HashedColumn(name=name, arrow_format=format_) for name, format_ in self._columns]
        return snapshot_pb2.Digest(columns=columns, key=self._key, leaves=leaves)


def _wrapped(number: int) -> int:
    """Modulo 2^64, as int64.

    >>> _wrapped(2**63), _wrapped(-1)
    (-9223372036854775808, -1)
    """
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _numbers_of(bound: str, columns: int) -> tuple[int, ...]:
    """A bound's numbers; behind them stands how the key is ordered. Raises `KeyUnordered`."""
    try:
        return tuple(int(text) for text in json.loads(bound)[:columns])
    except (ValueError, TypeError) as wrong:
        raise KeyUnordered("its bounds are no integers") from wrong
