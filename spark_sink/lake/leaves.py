"""Which leaf of a verification's digest a row of the lake belongs to: ranges of a key, or buckets of a hash.

Comes in: a digest and the bounds of its chunk, rows of the lake. Goes out: which rows are the digest's, and of each
the number of its leaf. Of ranges these are as many as the digest has; of buckets those that only the lake has follow
behind them. Nothing is written.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from menura.change_batch import UNREPRESENTABLE, source_column
from menura.landed_digest import LandedDigest, LandedRange
from menura.naming import lake_column
from menura.row_hash import HashedRows

from spark_sink.lake.delta_table import quoted
from spark_sink.landed.lake_schema import format_type

WHOLE_HASH_BITS = 64

Key = tuple[int, ...]


class Incomparable(Exception):
    """Says why nothing can be told of the chunk."""


class Leaves(Protocol):
    def condition(self, schema: pa.Schema) -> str:
        """SQL that leaves out rows which are not the digest's; raises `Incomparable`."""

    def chosen(self, rows: pa.Table) -> pa.Table:
        """Those that are the digest's."""

    def of(self, rows: pa.Table) -> pa.ChunkedArray:
        """Of each of them the number of its leaf, as int32."""

    @property
    def count(self) -> int:
        """Of leaves that are known so far."""


@dataclass(frozen=True, slots=True)
class Hashing:
    """How the lake's rows are hashed as the source's were."""

    digest: LandedDigest

    @property
    def key(self) -> list[str]:
        return [lake_column(source_column(name)) for name in self.digest.key]

    def columns(self, rows: pa.Table) -> tuple[HashedRows, pa.Array | None]:
        """In the digest's types; and which rows have values that these can't hold, None where none has."""
        arrays, inexact = [], None
        for name, format_ in self.digest.columns:
            lake_name = name if name == UNREPRESENTABLE else lake_column(source_column(name))
            values, lost = _canonical(rows, lake_name, format_)
            arrays.append(values)
            if lost is not None:
                inexact = lost if inexact is None else pc.or_(inexact, lost)
        batch = pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in self.digest.columns])
        return HashedRows(batch), inexact

    def key_places(self) -> list[int]:
        names = [name for name, _ in self.digest.columns]
        return [names.index(name) for name in self.digest.key] if self.digest.key else list(range(len(names)))


@dataclass(frozen=True, slots=True)
class RangeLeaves:
    """Each ends with a key of integers; the chunk's own bounds are around them."""

    hashing: Hashing
    lower: Key
    upper: Key

    @property
    def bounds(self) -> list[Key]:
        """Where leaves end, but the last."""
        return [leaf.upper for leaf in self.hashing.digest.leaves[:-1]]

    @property
    def count(self) -> int:
        return len(self.hashing.digest.leaves)

    def bounds_of(self, leaf: int) -> tuple[Key, Key]:
        ends = [self.lower, *self.bounds, self.upper]
        return ends[leaf], ends[leaf + 1]

    def condition(self, schema: pa.Schema) -> str:
        return range_condition(self.hashing.key, [(self.lower, self.upper)], schema)

    def chosen(self, rows: pa.Table) -> pa.Table:
        inside = in_range(rows, self.hashing.key, self.lower, self.upper)
        return rows if pc.all(inside, min_count=0).as_py() else rows.filter(inside)

    def of(self, rows: pa.Table) -> pa.ChunkedArray:
        """Of each row how many leaves end below its key."""
        key = self.hashing.key
        ends = pc.min_max(rows[key[0]]).as_py()
        if ends["min"] is None:
            return pa.chunked_array([pa.array([], pa.int32())])
        # of rows that are near to each other most bounds are on one side
        below = sum(bound[0] < ends["min"] for bound in self.bounds)
        found: pa.ChunkedArray = pa.chunked_array([pa.repeat(pa.scalar(below, pa.int32()), rows.num_rows)])
        for bound in self.bounds:
            if ends["min"] <= bound[0] <= ends["max"]:
                found = pc.add(found, is_above(rows, key, bound).cast(pa.int32()))
        return found


@dataclass(slots=True)
class BucketLeaves:
    """Each is of keys, or of rows where there is no key, whose hashes have the same lowest bits."""

    hashing: Hashing
    #: by their number
    buckets: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.buckets = [leaf.upper[0] for leaf in self.hashing.digest.leaves]

    @property
    def count(self) -> int:
        return len(self.buckets)

    @property
    def _ranges(self) -> tuple[LandedRange, ...]:
        within = self.hashing.digest.within
        return within.ranges if within is not None else ()

    def condition(self, schema: pa.Schema) -> str:
        ranges = [(each.above, each.up_to) for each in self._ranges]
        return range_condition(self.hashing.key, ranges, schema) if ranges else "TRUE"

    def chosen(self, rows: pa.Table) -> pa.Table:
        inside: pa.ChunkedArray | None = None
        for each in self._ranges:
            found = in_range(rows, self.hashing.key, each.above, each.up_to)
            inside = found if inside is None else pc.or_(inside, found)
        rows = rows if inside is None else rows.filter(inside)
        within = self.hashing.digest.within
        if within is None or not within.buckets or not rows.num_rows:
            return rows
        buckets = pc.bit_wise_and(self._hashes(rows), _mask(within.bits))
        return rows.filter(pc.is_in(buckets, pa.array(within.buckets, pa.int64())))

    def of(self, rows: pa.Table) -> pa.ChunkedArray:
        buckets = pc.bit_wise_and(self._hashes(rows), _mask(self.hashing.digest.bits))
        found = pc.index_in(buckets, pa.array(self.buckets, pa.int64()))
        if found.null_count:
            more = buckets.filter(found.is_null()).unique().to_pylist()
            self.buckets += more
            found = pc.index_in(buckets, pa.array(self.buckets, pa.int64()))
        return pa.chunked_array([found])

    def _hashes(self, rows: pa.Table) -> pa.Array:
        if not self.hashing.digest.columns:  # a table without rows does not say what its columns would be
            return pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
        hashed, _ = self.hashing.columns(rows)
        data = hashed.key_hashes(self.hashing.key_places())
        return pa.Array.from_buffers(pa.int64(), rows.num_rows, [None, pa.py_buffer(data)])


def key_of(bound: str, columns: int) -> Key:
    """The numbers of a bound as a source writes it, without how it is ordered; none without a bound.

    >>> key_of('["7","-9","#ab12"]', 2), key_of("", 2)
    ((7, -9), ())
    """
    try:
        found = tuple(int(text) for text in json.loads(bound)[:columns]) if bound else ()
    except (ValueError, TypeError) as wrong:
        raise Incomparable("a bound of the chunk is no key of integers") from wrong
    if found and len(found) != columns:
        raise Incomparable("a bound of the chunk has other columns than its key")
    return found


def range_condition(key: Sequence[str], ranges: Sequence[tuple[Key, Key]], schema: pa.Schema) -> str:
    """SQL for keys in any of the ranges. Raises `Incomparable` where the lake does not order them as numbers."""
    for name in key:
        type_ = schema.field(name).type if name in schema.names else None
        if type_ is None or not (pa.types.is_integer(type_) or (pa.types.is_decimal(type_) and type_.scale == 0)):
            raise Incomparable(f"the lake's column {name}, of the key, is no integer")
    return " OR ".join(f"({_between(key, lower, upper)})" for lower, upper in ranges)


def _between(key: Sequence[str], lower: Key, upper: Key) -> str:
    parts = [_above(key, lower)] if lower else []
    parts += [f"NOT {_above(key, upper)}"] if upper else []
    return " AND ".join(parts) or "TRUE"


def _above(key: Sequence[str], bound: Key) -> str:
    """SQL: the key is greater.

    >>> _above(["a", "b"], (1, 2))
    '("a" > 1 OR ("a" = 1 AND ("b" > 2)))'
    """
    name, number = quoted(key[0]), bound[0]
    if len(key) == 1:
        return f"({name} > {number})"
    return f"({name} > {number} OR ({name} = {number} AND {_above(key[1:], bound[1:])}))"


def in_range(rows: pa.Table, key: Sequence[str], lower: Key, upper: Key) -> pa.ChunkedArray:
    inside: pa.ChunkedArray = rows[key[0]].is_valid()
    if lower:
        inside = pc.and_(inside, is_above(rows, key, lower))
    if upper:
        inside = pc.and_(inside, pc.invert(is_above(rows, key, upper)))
    return inside


def is_above(rows: pa.Table, key: Sequence[str], bound: Key) -> pa.ChunkedArray:
    found: pa.ChunkedArray | None = None
    for name, number in reversed(list(zip(key, bound, strict=True))):
        limit = pa.scalar(number, rows[name].type)
        greater, equal = pc.greater(rows[name], limit), pc.equal(rows[name], limit)
        found = greater if found is None else pc.or_(greater, pc.and_(equal, found))
    assert found is not None
    return found


def _mask(bits: int) -> pa.Scalar:
    return pa.scalar(-1 if bits >= WHOLE_HASH_BITS else (1 << bits) - 1, pa.int64())


def _canonical(rows: pa.Table, name: str, format_: str) -> tuple[pa.Array, pa.Array | None]:
    """A column's values in the type in which the source's were hashed; and of which rows that does not hold them."""
    type_ = format_type(format_)
    held = {found.lower(): found for found in rows.column_names}.get(name.lower())
    if held is None:
        return pa.nulls(rows.num_rows, type_), None
    values = rows[held].combine_chunks()
    if values.type == type_:
        return values, None
    try:
        narrowed = values.cast(type_, safe=False)
        back = narrowed.cast(values.type, safe=False)
    except pa.ArrowException:
        return _narrowed_each(values, type_)
    same = pc.or_(pc.equal(back, values).fill_null(False), pc.and_(values.is_null(), narrowed.is_null()))
    if pa.types.is_floating(values.type):
        same = pc.or_(same, pc.and_(pc.is_nan(values), pc.is_nan(narrowed)).fill_null(False))
    return narrowed, None if pc.all(same, min_count=0).as_py() else pc.invert(same)


def _narrowed_each(values: pa.Array, type_: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Where one of them does not fit at all."""
    kept: list[object] = []
    lost = []
    for value in values:
        try:
            kept.append(pa.scalar(value.as_py(), type_).as_py())
            lost.append(False)
        except (pa.ArrowException, ValueError, OverflowError):
            kept.append(None)
            lost.append(True)
    return pa.array(kept, type_), pa.array(lost, pa.bool_())
