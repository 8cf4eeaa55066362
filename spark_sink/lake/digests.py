"""A chunk of a verification, compared with the lake: whether its leaves are what the current state holds.

Comes in: a chunk's digest, and the table's current state, with its tail, at the Delta versions that end with the cut
which named the chunk (H). Goes out: a `Finding`. Nothing is written.

The source's rows were read at one moment between the chunk's number G and H. So the sums of the current state at H are
compared first; then the changes between are taken back, transaction by transaction down to G, until the sums of all
leaves are those of the source at one of these moments. Where none fits, each leaf is looked at by itself. A source may
show transactions in another order than its log has them (a commit may be in the log before others see it): a leaf
differs only if no choice of the transactions that changed it leads to the source's sums. Else it is unknown, and so is
a leaf that very many transactions have changed, or one of which the log lacks the values before it, or with rows that
lack values.

The lake's values are compared in the source's types. A row with a value that these don't hold is not the source's.

Leaves that differ are read again, in another chunk, until each is a row (`leaves.WHOLE_HASH_BITS`): then what differs
is named by its key, and by its columns where both sides have the row and nothing has changed it in the meantime.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN, TRANSACTION_ID, ChangeType, source_column
from menura.key_texts import key_text
from menura.key_values import Key
from menura.landing import LandedChunk

from spark_sink.lake.delta_table import quoted, scan, schema_of
from spark_sink.lake.leaves import (
    WHOLE_HASH_BITS,
    BucketLeaves,
    Hashing,
    Incomparable,
    RangeLeaves,
    former_key,
    kinds_of,
)
from spark_sink.lake.tail import Rows, rows_of
from spark_sink.landed.landed_file import OWN_PREFIX
from spark_sink.work import TableId

#: what one hash takes at once
PIECE_ROWS = 65_536
WRAP = 1 << 64

#: of a leaf of which every choice is tried
MOST_TRANSACTIONS = 20
#: of a chunk, since it was read; all of them are in memory
MOST_CHANGES = 2_000_000

_UNKNOWN = "_menura_unknown"
_UNCLEAR = "rows changed in the meantime, and which of the transactions were seen can't be told"
_LACKING = "rows of the lake lack values that no change has brought yet"
SUSPECTED = "leaves of it differ, and which of their rows do is to be read"
_KINDS = ", ".join(f"'{kind}'" for kind in ChangeType.__members__)

#: rows, and the sums of both hashes modulo 2^64
Sums = tuple[int, int, int]
#: of one transaction, by leaf; None: the log lacks values from before it
Effect = dict[int, Sums | None]
NOTHING: Sums = (0, 0, 0)


class Verdict(StrEnum):
    EQUAL = "equal"
    #: rows of it do, in two readings of the source
    DIFFERS = "differs"
    #: it had to be given up
    VOID = "void"
    #: the lake or the log does not have all that would tell; with leaves: they differ, and their rows are to be read
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DifferingLeaf:
    """Keys above `lower` up to and with `upper`, empty: without bound; or with `bits` those of a bucket."""

    lower: Key
    upper: Key
    source_rows: int
    lake_rows: int
    bits: int = 0
    bucket: int = 0
    #: of the bounds
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DifferingRow:
    """A row that only one side has, or that they have more or less often or with other values."""

    #: its key's values as texts, a JSON array; '' of a table without a key
    key: str
    #: of its key, or of all of it where there is none
    hash: int
    source_rows: int
    lake_rows: int
    #: that differ; none where one side lacks the row, or where that can't be told
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    reason: str = ""
    lake_rows: int = 0
    leaves: tuple[DifferingLeaf, ...] = ()
    rows: tuple[DifferingRow, ...] = ()
    #: leaves that are equal for certain, also where others are not
    equal_leaves: int = 0
    #: ranges that are not, by their leaves; none where it is not equal: all of the chunk
    unproven: tuple[DifferingLeaf, ...] = ()


def compare(
    table: TableId, chunk: LandedChunk, last_gsn: int, current: DeltaTable | None, changelog: DeltaTable | None
) -> Finding:
    """`last_gsn`: of the cut that named the chunk, at whose end the tables are opened; None: there is none yet."""
    try:
        leaves = leaves_of(chunk)
        rows = rows_of(table, current, changelog) if current is not None else None
        return _Comparison(leaves, chunk.gsn, last_gsn, rows, changelog).finding()
    except Incomparable as why:
        return Finding(Verdict.UNKNOWN, str(why))


def leaves_of(chunk: LandedChunk) -> RangeLeaves | BucketLeaves:
    """Raises `Incomparable`."""
    assert chunk.digest is not None
    hashing = Hashing(chunk.digest)
    if chunk.digest.bits:
        return BucketLeaves(hashing)
    digest, columns = chunk.digest, len(chunk.digest.key)
    if digest.kinds:
        return RangeLeaves(hashing, digest.above, digest.up_to, digest.kinds)
    ends = former_key(chunk.lower, columns), former_key(chunk.upper, columns)
    return RangeLeaves(hashing, *ends, kinds_of((), columns))


@dataclass(slots=True)
class _Seen:
    """A row of the lake, where leaves are rows."""

    key: str
    columns: tuple[int, ...]


@dataclass(slots=True)
class _Comparison:
    leaves: RangeLeaves | BucketLeaves
    gsn: int
    last_gsn: int
    #: of the current state, with its tail
    rows: Rows | None
    changelog: DeltaTable | None
    #: by leaf
    _seen: dict[int, _Seen] = field(default_factory=dict)

    @property
    def hashing(self) -> Hashing:
        return self.leaves.hashing

    def finding(self) -> Finding:
        held, lacking = self._held()
        changes = self._changes() if self._source(len(held)) != held else None
        effects = self._effects(changes) if changes is not None else []
        source = self._source(self.leaves.count)
        held += _nothing(self.leaves.count - len(held))
        lake_rows = sum(rows for rows, _, _ in held)
        pairs = enumerate(zip(held, source, strict=True))
        differences = {leaf: _minus(ours, theirs) for leaf, (ours, theirs) in pairs if ours != theirs}
        if _are_of_one_moment(differences, effects):
            return Finding(Verdict.EQUAL, lake_rows=lake_rows, equal_leaves=len(source))
        unproven = differences.keys() | {leaf for effect in effects for leaf in effect}
        equal = len(source) - len(unproven)
        certain = [
            leaf
            for leaf, difference in differences.items()
            if leaf not in lacking and not _may_make_up(difference, [each[leaf] for each in effects if leaf in each])
        ]
        if self._is_misplaced(lacking, effects):
            certain = []
        if not certain:
            why = _LACKING if lacking.issuperset(differences) else _UNCLEAR
            return Finding(Verdict.UNKNOWN, why, lake_rows, equal_leaves=equal, unproven=self._ranges(unproven, held))
        if self.hashing.digest.bits >= WHOLE_HASH_BITS:
            changed = {leaf for each in effects for leaf in each}
            rows = tuple(self._row(leaf, source[leaf][0], held[leaf][0], leaf in changed) for leaf in certain)
            return Finding(Verdict.DIFFERS, "rows differ", lake_rows, rows=rows, equal_leaves=equal)
        leaves = tuple(self._leaf(leaf, source[leaf][0], held[leaf][0]) for leaf in certain)
        ranges = self._ranges(unproven, held)
        return Finding(Verdict.UNKNOWN, SUSPECTED, lake_rows, leaves, equal_leaves=equal, unproven=ranges)

    def _ranges(self, leaves: Iterable[int], held: Sequence[Sums]) -> tuple[DifferingLeaf, ...]:
        """None where leaves are buckets."""
        if not isinstance(self.leaves, RangeLeaves):
            return ()
        source = self._source(len(held))
        return tuple(self._leaf(leaf, source[leaf][0], held[leaf][0]) for leaf in sorted(leaves))

    def _is_misplaced(self, lacking: set[int], effects: Sequence[Effect]) -> bool:
        """Rows that are known by all of their values, and lack some, may be of any leaf."""
        has_key = not self.hashing.digest.bits or self.hashing.digest.key
        return not has_key and (bool(lacking) or any(None in each.values() for each in effects))

    def _source(self, count: int) -> list[Sums]:
        """Of each leaf, with those that only the lake has."""
        digest = self.hashing.digest
        source = [(leaf.rows, leaf.first_sum % WRAP, leaf.second_sum % WRAP) for leaf in digest.leaves]
        return source + _nothing(count - len(source))

    def _leaf(self, leaf: int, source_rows: int, lake_rows: int) -> DifferingLeaf:
        if isinstance(self.leaves, RangeLeaves):
            return DifferingLeaf(*self.leaves.bounds_of(leaf), source_rows, lake_rows, kinds=self.leaves.kinds)
        return DifferingLeaf((), (), source_rows, lake_rows, self.hashing.digest.bits, self.leaves.buckets[leaf])

    def _row(self, leaf: int, source_rows: int, lake_rows: int, has_changed: bool) -> DifferingRow:
        assert isinstance(self.leaves, BucketLeaves)
        digest, seen = self.hashing.digest, self._seen.get(leaf)
        said = digest.leaves[leaf] if leaf < len(digest.leaves) else None
        key = said.key if said is not None else seen.key if seen is not None else ""
        columns: list[str] = []
        if said is not None and seen is not None and said.columns and not has_changed:
            pairs = zip(digest.columns, said.columns, seen.columns, strict=True)
            columns = [source_column(name) for (name, _), theirs, ours in pairs if theirs != ours]
        return DifferingRow(key, self.leaves.buckets[leaf], source_rows, lake_rows, tuple(columns))

    def _held(self) -> tuple[list[Sums], set[int]]:
        """The current state's sums by leaf, and the leaves with rows that lack values."""
        sums = _nothing(self.leaves.count)
        lacking: set[int] = set()
        if self.rows is None:
            return sums, lacking
        names = [name for name in self.rows.schema.names if not name.startswith(OWN_PREFIX)]
        for found in _pieces(self.rows.tables(names, self.leaves.condition(self.rows.schema))):
            rows = self.leaves.chosen(found)  # a tail's rows are any
            leaves = self.leaves.of(rows)
            sums = _added(sums, self._sums(rows, leaves, self.leaves.count))
            if ABSENT in rows.column_names:
                lacking.update(leaves.filter(rows[ABSENT].is_valid()).to_pylist())
            self._see(rows, leaves)
        return sums, lacking

    def _see(self, rows: pa.Table, leaves: pa.ChunkedArray) -> None:
        digest = self.hashing.digest
        if digest.bits < WHOLE_HASH_BITS or not digest.key or not rows.num_rows or not digest.columns:
            return
        hashed, _ = self.hashing.columns(rows)
        places = self.hashing.key_places()
        for row, leaf in enumerate(leaves.to_pylist()):
            self._seen[leaf] = _Seen(key_text(hashed, places, row), tuple(hashed.column_hashes(row)))

    def _effects(self, changes: pa.Table) -> list[Effect]:
        """What each transaction did to the sums of its leaves, in the log's order."""
        of_rows = self.leaves.of(changes).to_pylist()
        runs = groupby(enumerate(changes[TRANSACTION_ID].to_pylist()), key=lambda place: place[1])
        places: dict[tuple[int, int], int] = {}
        numbers = [
            places.setdefault((run, of_rows[at]), len(places)) for run, (_, rows) in enumerate(runs) for at, _ in rows
        ]
        groups = pa.chunked_array([pa.array(numbers, pa.int32())])
        sums = _nothing(len(places))
        came = pc.is_in(changes[CHANGE_TYPE], pa.array([ChangeType.insert.name, ChangeType.update_postimage.name]))
        for chosen, sign in ((came, 1), (pc.invert(came), -1)):
            sums = _added(sums, self._sums(changes.filter(chosen), groups.filter(chosen), len(places)), sign)
        unknown = set(groups.filter(changes[_UNKNOWN]).to_pylist())
        effects: list[Effect] = [{} for _ in {run for run, _ in places}]
        for (run, leaf), place in places.items():
            effects[run][leaf] = sums[place] if place not in unknown else None
        return effects

    def _changes(self) -> pa.Table | None:
        """Of the chunk's keys above its number, in order. Of other keys' changes the numbers of preimages alone are
        read: they tell whether an update's values before it are known, also where they had another key.
        """
        if self.changelog is None:
            return None
        between = (
            f"{quoted(GSN)} > {self.gsn} AND {quoted(GSN)} <= {self.last_gsn}"
            f" AND {quoted(CHANGE_TYPE)} <> '{ChangeType.snapshot.name}'"
        )
        condition = self.leaves.condition(schema_of(self.changelog))
        found = self._logged("*", f"{between} AND ({condition}) LIMIT {MOST_CHANGES + 1}")
        if found.num_rows > MOST_CHANGES:
            raise Incomparable(f"it changed more than {MOST_CHANGES} times while it was read")
        removed = self._logged(quoted(GSN), f"{between} AND {quoted(CHANGE_TYPE)} NOT IN ({_KINDS}) LIMIT 1")
        if removed.num_rows:
            raise Incomparable("all rows of the table were removed in the meantime")
        is_before = f"{quoted(CHANGE_TYPE)} = '{ChangeType.update_preimage.name}'"
        before = self._logged(quoted(GSN), f"{between} AND {is_before}")[GSN]
        if any(found[name].null_count for name in self.hashing.key):
            raise Incomparable("the log lacks keys of rows that changed in the meantime")
        return self.leaves.chosen(_judged(found.sort_by(GSN), before))

    def _logged(self, columns: str, condition: str) -> pa.Table:
        assert self.changelog is not None
        return scan(self.changelog, f"SELECT {columns} FROM t WHERE {condition}").read_all()  # noqa: S608  (numbers)

    def _sums(self, rows: pa.Table, groups: pa.ChunkedArray, count: int) -> list[Sums]:
        """Of each of `count` groups; `groups`: that of each row."""
        if not rows.num_rows or not self.hashing.digest.columns:
            # a chunk without rows does not say what its columns would be: that there are rows is enough
            counted = _counted(groups.combine_chunks()) if rows.num_rows else {}
            return [(counted.get(group, 0), 0, 0) for group in range(count)]
        hashed, inexact = self.hashing.columns(rows)
        of_rows = groups.combine_chunks()
        numbers = of_rows.buffers()[1].slice(of_rows.offset * 4, rows.num_rows * 4)
        sums = hashed.sums_of(numbers, count)
        if inexact is None:
            return sums
        lost = _counted(of_rows.filter(inexact))
        return [
            (rows, (first + lost.get(group, 0)) % WRAP, second % WRAP)
            for group, (rows, first, second) in enumerate(sums)
        ]


def _counted(groups: pa.Array) -> dict[int, int]:
    return {each["values"]: each["counts"] for each in pc.value_counts(groups).to_pylist()}


def _judged(changes: pa.Table, before: pa.ChunkedArray) -> pa.Table:
    """With a column that says where the values before or after a change are not known. `before`: preimages' numbers."""
    kinds, gsns, before = changes[CHANGE_TYPE], changes[GSN], before.combine_chunks()
    # an update's two images have numbers that follow each other, or the one of the parent's change that caused it
    has_before = pc.or_(pc.is_in(gsns, before), pc.is_in(pc.subtract(gsns, 1), before))
    unknown = pc.and_(pc.equal(kinds, ChangeType.update_postimage.name), pc.invert(has_before))
    if ABSENT in changes.column_names:
        unknown = pc.or_(unknown, changes[ABSENT].is_valid())
    return changes.append_column(_UNKNOWN, unknown)


def _pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """In parts of a size that is hashed at once."""
    for whole in tables:
        for at in range(0, whole.num_rows, PIECE_ROWS):
            yield whole.slice(at, PIECE_ROWS)


def _nothing(groups: int) -> list[Sums]:
    return [NOTHING] * groups


def _plus(one: Sums, other: Sums, sign: int = 1) -> Sums:
    return one[0] + sign * other[0], (one[1] + sign * other[1]) % WRAP, (one[2] + sign * other[2]) % WRAP


def _minus(one: Sums, other: Sums) -> Sums:
    return _plus(one, other, -1)


def _added(to: list[Sums], more: list[Sums], sign: int = 1) -> list[Sums]:
    """`more` may have more."""
    to = to + _nothing(len(more) - len(to))
    return [_plus(one, other, sign) for one, other in zip(to, more, strict=True)]


def _are_of_one_moment(differences: Mapping[int, Sums], effects: Sequence[Effect]) -> bool:
    """Whether the differences are what all transactions from one of them on did."""
    left = dict(differences)
    for effect in reversed(effects):
        if not left or None in effect.values():
            break
        for leaf, of_leaf in effect.items():
            assert of_leaf is not None
            remains = _minus(left.pop(leaf, NOTHING), of_leaf)
            if remains != NOTHING:
                left[leaf] = remains
    return not left


def _may_make_up(difference: Sums, effects: Sequence[Sums | None]) -> bool:
    """Whether the difference may be what some of the transactions did.

    >>> _may_make_up((1, 5, 7), [(1, 5, 7), (0, 1, 1)]), _may_make_up((1, 4, 7), [(1, 5, 7), (0, 1, 1)])
    (True, False)
    """
    known = [effect for effect in effects if effect is not None]
    if len(known) < len(effects) or len(known) > MOST_TRANSACTIONS:
        return True
    half = len(known) // 2
    first = _choices(known[:half])
    return any(_minus(difference, each) in first for each in _choices(known[half:]))


def _choices(effects: Iterable[Sums]) -> set[Sums]:
    """What any of these did together."""
    found: set[Sums] = {NOTHING}
    for effect in effects:
        found |= {_plus(each, effect) for each in found}
    return found
