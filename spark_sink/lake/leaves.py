"""Which leaf of a verification's digest a row of the lake belongs to: ranges of a key, or buckets of a hash.

Comes in: a digest and the bounds of its chunk, rows of the lake. Goes out: which rows are the digest's, and of each
the number of its leaf. Of ranges these are as many as the digest has; of buckets those that only the lake has follow
behind them. Nothing is written.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from menura.change_batch import UNREPRESENTABLE, source_column
from menura.key_values import BINARY, DATE, DATETIME, INSTANT, INTEGER, TEXT, Key, KeyValue, literal, scale_of
from menura.landed_digest import LandedDigest, LandedRange
from menura.naming import lake_column
from menura.row_hash import HashedRows

from spark_sink.lake.delta_table import quoted, text
from spark_sink.landed.lake_schema import format_type

WHOLE_HASH_BITS = 64
_DIGITS = Context(prec=76)


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
    """Each ends with values of the key's first columns; the chunk's own bounds are around them."""

    hashing: Hashing
    lower: Key
    upper: Key
    kinds: tuple[str, ...]

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
        """Rows whose key the lake lacks are in the first chunk: the source has none of them."""
        condition = range_condition(self.hashing.key, self.kinds, [(self.lower, self.upper)], schema)
        return condition if self.lower else f"({condition}) OR {quoted(self.hashing.key[0])} IS NULL"

    def chosen(self, rows: pa.Table) -> pa.Table:
        inside = in_range(rows, self.hashing.key, self.kinds, self.lower, self.upper)
        if not self.lower:
            inside = pc.or_(inside, rows[self.hashing.key[0]].is_null())
        return rows if pc.all(inside, min_count=0).as_py() else rows.filter(inside)

    def of(self, rows: pa.Table) -> pa.ChunkedArray:
        """Of each row how many leaves end below its key."""
        key, kinds = self.hashing.key, self.kinds
        first = rows[key[0]]
        ends = pc.min_max(first)
        if not ends["min"].is_valid:
            return pa.chunked_array([pa.array([0] * rows.num_rows, pa.int32())])
        # of rows that are near to each other most bounds are on one side
        limits = [_scalar(kinds[0], bound[0], first.type) for bound in self.bounds]
        below = 0 if first.null_count else sum(pc.less(limit, ends["min"]).as_py() for limit in limits)
        found: pa.ChunkedArray = pa.chunked_array([pa.repeat(pa.scalar(below, pa.int32()), rows.num_rows)])
        for bound, limit in zip(self.bounds[below:], limits[below:], strict=True):
            if pc.less_equal(limit, ends["max"]).as_py():
                found = pc.add(found, is_above(rows, key, kinds, bound).cast(pa.int32()))
        return found


@dataclass(slots=True)
class BucketLeaves:
    """Each is of keys, or of rows where there is no key, whose hashes have the same lowest bits."""

    hashing: Hashing
    #: by their number
    buckets: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.buckets = [int(leaf.upper[0]) for leaf in self.hashing.digest.leaves]

    @property
    def count(self) -> int:
        return len(self.buckets)

    @property
    def _ranges(self) -> tuple[LandedRange, ...]:
        within = self.hashing.digest.within
        return within.ranges if within is not None else ()

    @property
    def _kinds(self) -> tuple[str, ...]:
        within = self.hashing.digest.within
        return within.kinds if within is not None else ()

    def condition(self, schema: pa.Schema) -> str:
        ranges = [(each.above, each.up_to) for each in self._ranges]
        return range_condition(self.hashing.key, self._kinds, ranges, schema) if ranges else "TRUE"

    def chosen(self, rows: pa.Table) -> pa.Table:
        inside: pa.ChunkedArray | None = None
        for each in self._ranges:
            found = in_range(rows, self.hashing.key, self._kinds, each.above, each.up_to)
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


def kinds_of(kinds: Sequence[str], columns: int) -> tuple[str, ...]:
    """Up to format 12 of the landing keys have none: all of their columns are integers."""
    return tuple(kinds) or (INTEGER,) * columns


def former_key(bound: str, columns: int) -> Key:
    """The numbers of a bound as a source writes it, without how it is ordered; none without a bound.

    >>> former_key('["7","-9","#ab12"]', 2), former_key("", 2)
    ((7, -9), ())
    """
    try:
        found = tuple(int(text) for text in json.loads(bound)[:columns]) if bound else ()
    except (ValueError, TypeError) as wrong:
        raise Incomparable("a bound of the chunk is no key of integers") from wrong
    if found and len(found) != columns:
        raise Incomparable("a bound of the chunk has other columns than its key")
    return found


def range_condition(
    key: Sequence[str], kinds: Sequence[str], ranges: Sequence[tuple[Key, Key]], schema: pa.Schema
) -> str:
    """SQL for keys in any of the ranges, which are of as many of the key's columns as there are kinds. Raises
    `Incomparable` where the lake's columns are of other kinds, or do not hold a bound."""
    types = []
    for name, kind in zip(key, kinds, strict=False):
        type_ = schema.field(name).type if name in schema.names else None
        if type_ is None or not _is_of(kind, type_):
            raise Incomparable(f"the lake's column {name}, of the key, is no {kind}")
        types.append(type_)
    columns = list(zip(key, kinds, types, strict=False))
    return " OR ".join(f"({_between(columns, lower, upper)})" for lower, upper in ranges)


def _is_of(kind: str, type_: pa.DataType) -> bool:
    """Whether the lake's column has values of this kind, each with all of its digits."""
    if pa.types.is_timestamp(type_):
        return type_.unit == "us" and kind == (DATETIME if type_.tz is None else INSTANT)
    if pa.types.is_decimal(type_):
        scale = 0 if kind == INTEGER else scale_of(kind)
        return scale is not None and (type_.scale == 0 if kind == INTEGER else type_.scale >= scale)
    checks = {INTEGER: pa.types.is_integer, DATE: pa.types.is_date, BINARY: _is_bytes, TEXT: _is_text}
    return kind in checks and checks[kind](type_)


def _is_bytes(type_: pa.DataType) -> bool:
    return type_ in (pa.binary(), pa.large_binary(), pa.binary_view())


def _is_text(type_: pa.DataType) -> bool:
    return type_ in (pa.string(), pa.large_string(), pa.string_view())


#: name, kind and the lake's type
_Column = tuple[str, str, pa.DataType]


def _between(columns: Sequence[_Column], lower: Key, upper: Key) -> str:
    parts = [_above(columns, lower)] if lower else []
    parts += [f"NOT {_above(columns, upper)}"] if upper else []
    return " AND ".join(parts) or "TRUE"


def _above(columns: Sequence[_Column], bound: Key) -> str:
    """SQL: the key is greater.

    >>> print(_above([("a", "integer", pa.int64()), ("b", "date", pa.date32())], (1, 0)))
    ("a" > 1 OR ("a" = 1 AND ("b" > CAST('1970-01-01' AS DATE))))
    """
    (name, kind, type_), place = columns[0], quoted(columns[0][0])
    limit = _sql(name, kind, bound[0], type_)
    if len(bound) == 1:
        return f"({place} > {limit})"
    return f"({place} > {limit} OR ({place} = {limit} AND {_above(columns[1:], bound[1:])}))"


def _sql(name: str, kind: str, value: KeyValue, type_: pa.DataType) -> str:
    """The literal of delta-rs's SQL, of the lake's own type: it compares no others where it removes rows."""
    held = _scalar(kind, value, type_, name)
    if pa.types.is_decimal(type_):
        return f"CAST('{held.as_py():f}' AS DECIMAL({type_.precision}, {type_.scale}))"
    if pa.types.is_timestamp(type_):
        zone = "None" if type_.tz is None else f'Some("{type_.tz}")'
        return f"arrow_cast({value}, 'Timestamp(Microsecond, {zone})')"
    if kind == DATE:
        return f"CAST('{literal(kind, value)}' AS DATE)"
    if kind == BINARY:
        return f"X'{value}'"
    return text(literal(kind, value)) if kind == TEXT else str(value)


def _scalar(kind: str, value: KeyValue, type_: pa.DataType, name: str = "") -> pa.Scalar:
    """Raises `Incomparable` where the type does not hold it."""
    if isinstance(value, str):
        return pa.scalar(bytes.fromhex(value).decode() if kind == TEXT else bytes.fromhex(value), type_)
    try:
        if pa.types.is_decimal(type_):
            return pa.scalar(Decimal(value).scaleb(-(scale_of(kind) or 0), _DIGITS), type_)
        return pa.scalar(value, type_)
    except (pa.ArrowException, OverflowError) as wrong:
        raise Incomparable(f"the lake's column {name}, of the key, does not hold a bound") from wrong


def in_range(rows: pa.Table, key: Sequence[str], kinds: Sequence[str], lower: Key, upper: Key) -> pa.ChunkedArray:
    inside: pa.ChunkedArray = rows[key[0]].is_valid()
    if lower:
        inside = pc.and_(inside, is_above(rows, key, kinds, lower))
    if upper:
        inside = pc.and_(inside, pc.invert(is_above(rows, key, kinds, upper)))
    return inside.fill_null(False)


def is_above(rows: pa.Table, key: Sequence[str], kinds: Sequence[str], bound: Key) -> pa.ChunkedArray:
    found: pa.ChunkedArray | None = None
    for name, kind, value in reversed(list(zip(key, kinds, bound, strict=False))):
        limit = _scalar(kind, value, rows[name].type, name)
        greater, equal = pc.greater(rows[name], limit), pc.equal(rows[name], limit)
        found = greater if found is None else pc.or_kleene(greater, pc.and_kleene(equal, found))
    assert found is not None
    return found.fill_null(False)


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
