"""Ranges of a view's driving key, of which each has about as many rows as another.

Comes in: rows of the key's columns. Goes out: ranges of one of these columns that together have each row once: the
first one has all that is less, and null, the last one all that is greater. The column is the one by which rows fall
into the most even ranges; where each column has one value in nearly all rows, there are no ranges. Values are compared
by Arrow, of input and view alike; a scan leaves files and row groups out by wider bounds (`key_bounds`). Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.lake.key_bounds import bounded

#: rows that ranges are chosen by
SAMPLED_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Values from `low` on, below `high`. Without one of these it is open there; without `low` it has null, too."""

    #: of the column in the key
    place: int
    low: pa.Scalar | None
    high: pa.Scalar | None

    def only(self, field: pa.Field) -> Callable[[pa.Table], pa.Table]:
        """Rows that are in it, by the column `field`."""

        def within(rows: pa.Table) -> pa.Table:
            values = rows[field.name].cast(field.type)
            found = pc.is_valid(values) if self.low is not None else pa.repeat(pa.scalar(value=True), len(values))
            if self.low is not None:
                found = pc.and_(found, pc.fill_null(pc.greater_equal(values, self.low), fill_value=False))
            if self.high is not None:
                found = pc.and_(found, pc.fill_null(pc.less(values, self.high), fill_value=True))
            return rows.filter(found)

        return within

    def skipping(self, field: pa.Field) -> str:
        """A condition in delta-rs's SQL that lets a scan leave out what is not in it."""
        return bounded(field, self.low, self.high)


def choose_ranges(rows: Iterable[pa.Table], key: Sequence[str], count: int, most: int) -> tuple[KeyRange, ...]:
    """At most so many ranges of about `count` rows, or none.

    >>> [(each.low, each.high) for each in choose_ranges([pa.table({"id": [5, None, 2, 9]})], ["id"], 4, 2)]
    [(None, <pyarrow.Int64Scalar: 5>), (<pyarrow.Int64Scalar: 5>, None)]
    """
    sample = _sampled(rows, key, max(1, count // SAMPLED_ROWS))
    if sample is None:
        return ()
    chosen: tuple[KeyRange, ...] = ()
    smallest = sample.num_rows
    for place, name in enumerate(key):
        if not _is_ordered(sample.schema.field(name).type):
            continue
        column = pc.drop_null(sample[name].combine_chunks())
        values = column.take(pc.sort_indices(column))
        bounds = _bounds(values, most)
        largest = _largest(values, bounds)
        if len(bounds) and largest < smallest:
            smallest = largest
            ends = [None, *bounds, None]
            chosen = tuple(KeyRange(place, low, high) for low, high in pairwise(ends))
    return chosen


def _sampled(rows: Iterable[pa.Table], key: Sequence[str], step: int) -> pa.Table | None:
    """Each row whose place is a multiple of the step."""
    found: list[pa.Table] = []
    skipped = 0
    for each in rows:
        first = -skipped % step
        if first < each.num_rows:
            found.append(each.select(list(key)).take(pa.arange(first, each.num_rows, step)))
        skipped += each.num_rows
    return pa.concat_tables(found) if found else None


def _is_ordered(type_: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_string, pa.types.is_binary)
    return any(is_kind(type_) for is_kind in (*kinds, pa.types.is_date32, pa.types.is_timestamp))


def _bounds(values: pa.Array, most: int) -> pa.Array:
    """Of values in order: each of the bounds is greater than some value."""
    if not len(values):
        return values
    picked = pc.unique(values.take(pa.array([at * len(values) // most for at in range(1, most)], pa.int64())))
    return picked.filter(pc.greater(picked, values[0]))


def _largest(values: pa.Array, bounds: pa.Array) -> int:
    ends = [0, *(int(pc.sum(pc.less(values, bound)).as_py()) for bound in bounds), len(values)]
    return max(high - low for low, high in pairwise(ends))
