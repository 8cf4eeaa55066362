"""A chunk of a verification as the digest of its rows: the rows stay at their host.

Comes in: batches of a chunk, as a source's `TableReader` gives them, behind the filter. Goes out: a `Digest`: of each
leaf how many rows it has, and the sums of their hashes. Nothing is durable: a chunk that no cut names is read again.

Where the key begins with columns that the lake orders as the source does (`menura.key_values`), a leaf is a range of
these (`ChunkDigest`). They come in rising order, which is checked row by row. Rows that are equal in them are in one
leaf, and in one chunk. A leaf whose last value is too long to be a bound goes on, at most to its chunk's end. Any other
table is read in one snapshot, and a leaf is a bucket of its keys' hashes, or of its rows' where it has no key
(`BucketDigest`): that needs no order.

What differed is read again (`FocusDigest`): rows that the order's focus names, by smaller buckets, or one by one where
they are few. Of these alone the key is sent, and of each column a hash, by which the lake tells what differs.
"""

from collections.abc import Iterator, Sequence

from menura.bounds import MAX_KEY_COLUMNS
from menura.change_batch import landed_column
from menura.key_texts import key_text
from menura.key_values import MOST_END_BYTES, Key, is_key, read, written
from menura.row_hash import HashedRows
from menura.v1 import snapshot_pb2

from agent.columnar.arrow import ArrowColumns
from agent.columnar.encode import SnapshotRows

LEAF_ROWS = 16_384
#: leads the key of a plan by which a verification reads the table in one snapshot
IN_ONE_SNAPSHOT = "*"
#: buckets have rows of about this number, and are at most 2 to the power of these bits
LEAST_BUCKET_ROWS = 64
MOST_BITS = 12
#: how much smaller buckets are when they are read again
FINER_BITS = 8
WHOLE_HASH_BITS = 64
#: rows are told one by one as long as they are no more, and have no more values
MOST_ROW_VALUES = 16_384
MOST_ROWS = 2_048


class KeyUnordered(Exception):
    """The lake would not find the leaves of such a key; says why, without a value."""


def key_in_one_snapshot(key: Sequence[str]) -> list[str]:
    """The key of such a plan; `key`: unique columns, none where there are none."""
    return [IN_ONE_SNAPSHOT, *key] if len(key) < MAX_KEY_COLUMNS else [IN_ONE_SNAPSHOT]


def is_in_one_snapshot(plan_key: Sequence[str]) -> bool:
    return plan_key[:1] == [IN_ONE_SNAPSHOT]


class ChunkDigest:
    """Of one chunk, batch by batch; leaves are ranges."""

    def __init__(self, key: Sequence[str], kinds: Sequence[str], above: Key, leaf_rows: int | None = None) -> None:
        """`kinds`: of the key's first columns, by which its ranges go; `above`: where the chunk begins."""
        self._key = tuple(map(landed_column, key[: len(kinds)]))
        self._is_whole = len(kinds) == len(key)
        self._kinds = tuple(kinds)
        self._leaf_rows = leaf_rows or LEAF_ROWS
        self._columns: tuple[tuple[str, str], ...] = ()
        self._above = above
        #: of the last row
        self._before: Key = ()
        self._leaves: list[snapshot_pb2.Leaf] = []

    def add(self, rows: SnapshotRows) -> int:
        """Hash them; how many they are. Columns of ours are released. Raises `KeyUnordered`."""
        if rows.row_count:
            self._add(HashedRows(rows.columns))
        _release(rows)
        return rows.row_count

    def _add(self, hashed: HashedRows) -> None:
        self._columns = hashed.columns
        places = _places(self._columns, self._key)
        first, last = (_key_values(hashed, places, row) for row in (0, hashed.length - 1))
        rises = first > self._before or (first == self._before and not self._is_whole)
        if not rises or first <= self._above or not hashed.ascends(places, self._is_whole):
            raise KeyUnordered("its index does not rise with the values of its columns")
        begin = 0
        if first == self._before:
            begin = hashed.last_equal(places, 0) + 1
            _count_in(self._leaves[-1], hashed.sums(0, begin))
        self._before = last
        while begin < hashed.length:
            leaf = self._leaf()
            end = min(hashed.length, begin + self._leaf_rows - leaf.rows % self._leaf_rows)
            end = hashed.last_equal(places, end - 1) + 1
            _count_in(leaf, hashed.sums(begin, end))
            upper = _key_values(hashed, places, end - 1)
            leaf.up_to[:] = written(upper) if is_key(self._kinds, upper, MOST_END_BYTES) else ()
            begin = end

    def _leaf(self) -> snapshot_pb2.Leaf:
        """That the next row is of. One that would end with a value that no bound has goes on."""
        last = self._leaves[-1] if self._leaves else None
        if last is not None and (last.rows < self._leaf_rows or not last.up_to):
            return last
        self._leaves.append(snapshot_pb2.Leaf())
        return self._leaves[-1]

    def message(self, up_to: Key) -> snapshot_pb2.Digest:
        """Once all of the chunk's rows are there, up to where it ends; a chunk without rows is one leaf."""
        leaves = self._leaves or [snapshot_pb2.Leaf()]
        del leaves[-1].up_to[:]
        return snapshot_pb2.Digest(
            columns=_hashed_columns(self._columns),
            key=self._key,
            leaves=leaves,
            kinds=self._kinds,
            above=written(self._above),
            up_to=written(up_to),
        )


class BucketDigest:
    """Of a whole table, batch by batch; leaves are buckets, as many as its rows make sense of."""

    def __init__(self, key: Sequence[str], most_bits: int = MOST_BITS) -> None:
        self._key = tuple(map(landed_column, key))
        self._columns: tuple[tuple[str, str], ...] = ()
        self._bits = most_bits
        self._sums = [(0, 0, 0)] * (1 << most_bits)

    def add(self, rows: SnapshotRows) -> None:
        """Hash them; columns of ours are released. Raises `KeyUnordered`."""
        if rows.row_count:
            hashed = HashedRows(rows.columns)
            self._columns = hashed.columns
            buckets = hashed.key_buckets(_key_places(self._columns, self._key), self._bits)
            pairs = zip(self._sums, hashed.sums_of(buckets, len(self._sums)), strict=True)
            self._sums = [_plus(held, more) if more[0] else held for held, more in pairs]
        _release(rows)

    def message(self) -> snapshot_pb2.Digest:
        """Once all of the table's rows are there."""
        rows = sum(count for count, _, _ in self._sums)
        while self._bits > 1 and rows < LEAST_BUCKET_ROWS << self._bits:
            self._bits -= 1
            half = 1 << self._bits
            self._sums = [_plus(self._sums[bucket], self._sums[bucket + half]) for bucket in range(half)]
        leaves = [_leaf(bucket, sums) for bucket, sums in enumerate(self._sums) if sums[0]]
        columns = _hashed_columns(self._columns)
        return snapshot_pb2.Digest(columns=columns, key=self._key, leaves=leaves, bits=self._bits)


class FocusDigest:
    """Of rows that an order's focus names, batch by batch; leaves are smaller buckets, or rows."""

    def __init__(self, key: Sequence[str], focus: snapshot_pb2.Focus) -> None:
        """Rows that are added are those of the focus's ranges."""
        self._key = tuple(map(landed_column, key))
        self._focus = focus
        self._buckets = frozenset(focus.buckets)
        self._columns: tuple[tuple[str, str], ...] = ()
        self._bits = min(WHOLE_HASH_BITS, (focus.bits or FINER_BITS // 2) + FINER_BITS)
        self._finer: dict[int, snapshot_pb2.Leaf] = {}
        #: by their hash; None: they are too many
        self._rows: dict[int, snapshot_pb2.Leaf] | None = {}

    def add(self, rows: SnapshotRows, focus_range: snapshot_pb2.FocusRange | None = None) -> None:
        """Those of a range, if one is given. Columns of ours are released. Raises `KeyUnordered`."""
        if rows.row_count:
            hashed = HashedRows(rows.columns)
            self._columns = hashed.columns
            for row, hash_ in self._chosen(hashed, focus_range):
                self._add(hashed, row, hash_)
        _release(rows)

    def _chosen(self, hashed: HashedRows, within: snapshot_pb2.FocusRange | None) -> Iterator[tuple[int, int]]:
        """Rows of the focus, and the hashes of their keys."""
        places = _key_places(self._columns, self._key)
        mask = (1 << self._focus.bits) - 1
        kinds = self._focus.kinds
        bounds = (read(kinds, within.above), read(kinds, within.up_to)) if within is not None else ((), ())
        for row, hash_ in enumerate(memoryview(hashed.key_hashes(places)).cast("q")):
            if self._buckets and hash_ & mask not in self._buckets:
                continue
            if within is not None and not _is_between(_key_values(hashed, places[: len(kinds)], row), *bounds):
                continue
            yield row, hash_

    def _add(self, hashed: HashedRows, row: int, hash_: int) -> None:
        sums = hashed.sums(row, row + 1)
        bucket = _signed(hash_ & ((1 << self._bits) - 1))
        _count_in(self._finer.setdefault(bucket, snapshot_pb2.Leaf(upper=[bucket])), sums)
        if self._rows is None:
            return
        leaf = self._rows.get(hash_)
        if leaf is None:
            leaf = self._rows[hash_] = snapshot_pb2.Leaf(upper=[hash_])
            if self._key:
                leaf.key = key_text(hashed, _places(self._columns, self._key), row)
                leaf.columns[:] = hashed.column_hashes(row)
        _count_in(leaf, sums)
        if len(self._rows) > MOST_ROWS or len(self._rows) * len(self._columns) > MOST_ROW_VALUES:
            self._rows = None

    def message(self) -> snapshot_pb2.Digest:
        """Once all rows are there."""
        leaves, bits = (self._finer, self._bits) if self._rows is None else (self._rows, WHOLE_HASH_BITS)
        return snapshot_pb2.Digest(
            columns=_hashed_columns(self._columns),
            key=self._key,
            leaves=leaves.values(),
            bits=bits,
            within=self._focus,
        )


def _is_between(key: Key, above: Key, up_to: Key) -> bool:
    return key > above and (not up_to or key <= up_to)


def _key_values(hashed: HashedRows, places: Sequence[int], row: int) -> Key:
    try:
        return tuple(hashed.key_values(places, row))
    except ValueError as wrong:
        raise KeyUnordered(str(wrong)) from wrong


def _places(columns: Sequence[tuple[str, str]], key: Sequence[str]) -> list[int]:
    names = [name for name, _ in columns]
    missing = [name for name in key if name not in names]
    if missing:
        raise KeyUnordered(f"column {missing[0]} is not sent")
    return [names.index(name) for name in key]


def _key_places(columns: Sequence[tuple[str, str]], key: Sequence[str]) -> list[int]:
    """Of the columns that are hashed to tell rows apart."""
    return _places(columns, key) if key else list(range(len(columns)))


def _hashed_columns(columns: Sequence[tuple[str, str]]) -> list[snapshot_pb2.HashedColumn]:
    return [snapshot_pb2.HashedColumn(name=name, arrow_format=format_) for name, format_ in columns]


def _leaf(bucket: int, sums: tuple[int, int, int]) -> snapshot_pb2.Leaf:
    return snapshot_pb2.Leaf(upper=[bucket], rows=sums[0], first_sum=sums[1], second_sum=sums[2])


def _count_in(leaf: snapshot_pb2.Leaf, sums: tuple[int, int, int]) -> None:
    leaf.rows, leaf.first_sum, leaf.second_sum = _plus((leaf.rows, leaf.first_sum, leaf.second_sum), sums)


def _plus(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    return one[0] + other[0], _signed(one[1] + other[1]), _signed(one[2] + other[2])


def _signed(number: int) -> int:
    """Modulo 2^64, as int64.

    >>> _signed(2**63), _signed(-1)
    (-9223372036854775808, -1)
    """
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _release(rows: SnapshotRows) -> None:
    if isinstance(rows.columns, ArrowColumns):
        rows.columns.release()
