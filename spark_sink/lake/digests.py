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

The lake's values are compared in the lake's types. Where the source's type is narrower, a column is brought to it only
if that loses nothing; if it does, the rows are not the source's.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN, TRANSACTION_ID, UNREPRESENTABLE, ChangeType, source_column
from menura.landing import LandedChunk, LandedDigest
from menura.naming import lake_column
from menura.row_hash import HashedRows

from spark_sink.lake.delta_table import quoted, scan, schema_of
from spark_sink.lake.tail import Rows, rows_of
from spark_sink.landed.lake_schema import format_type
from spark_sink.landed.landed_file import OWN_PREFIX
from spark_sink.work import TableId

#: what one hash takes at once
PIECE_ROWS = 65_536
WRAP = 1 << 64

#: of a leaf of which every choice is tried
MOST_TRANSACTIONS = 20

_UNKNOWN = "_menura_unknown"
_UNCLEAR = "rows changed in the meantime, and which of the transactions were seen can't be told"
_LACKING = "rows of the lake lack values that no change has brought yet"
_KINDS = ", ".join(f"'{kind}'" for kind in ChangeType.__members__)

Key = tuple[int, ...]
#: rows, and the sums of both hashes modulo 2^64
Sums = tuple[int, int, int]
#: of one transaction, by leaf; None: the log lacks values from before it
Effect = dict[int, Sums | None]
NOTHING: Sums = (0, 0, 0)


class Verdict(StrEnum):
    EQUAL = "equal"
    DIFFERS = "differs"
    #: it had to be given up
    VOID = "void"
    #: the lake or the log does not have all that would tell
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DifferingLeaf:
    """Keys above `lower` up to and with `upper`; empty: without bound."""

    lower: Key
    upper: Key
    source_rows: int
    lake_rows: int


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    reason: str = ""
    lake_rows: int = 0
    leaves: tuple[DifferingLeaf, ...] = ()


class Incomparable(Exception):
    """Says why nothing can be told of the chunk."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the lake's rows are hashed as the source's were."""

    digest: LandedDigest
    lower: Key
    upper: Key

    @property
    def names(self) -> list[str]:
        """The lake's, in the order of the digest's columns."""
        return [
            name if name == UNREPRESENTABLE else lake_column(source_column(name)) for name, _ in self.digest.columns
        ]

    @property
    def key(self) -> list[str]:
        return [lake_column(source_column(name)) for name in self.digest.key]

    @property
    def bounds(self) -> list[Key]:
        """Where leaves end, but the last."""
        return [leaf.upper for leaf in self.digest.leaves[:-1]]

    def leaf_bounds(self, leaf: int) -> tuple[Key, Key]:
        ends = [self.lower, *self.bounds, self.upper]
        return ends[leaf], ends[leaf + 1]


def compare(
    table: TableId, chunk: LandedChunk, last_gsn: int, current: DeltaTable | None, changelog: DeltaTable | None
) -> Finding:
    """`last_gsn`: of the cut that named the chunk, at whose end the tables are opened; None: there is none yet."""
    assert chunk.digest is not None
    try:
        key_columns = len(chunk.digest.key)
        plan = _Plan(chunk.digest, key_of(chunk.lower, key_columns), key_of(chunk.upper, key_columns))
        rows = rows_of(table, current, changelog) if current is not None else None
        return _Comparison(plan, chunk.gsn, last_gsn, rows, changelog).finding()
    except Incomparable as why:
        return Finding(Verdict.UNKNOWN, str(why))


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


@dataclass(slots=True)
class _Comparison:
    plan: _Plan
    gsn: int
    last_gsn: int
    #: of the current state, with its tail
    rows: Rows | None
    changelog: DeltaTable | None

    def finding(self) -> Finding:
        held, lacking = self._held()
        source = [(leaf.rows, leaf.first_sum % WRAP, leaf.second_sum % WRAP) for leaf in self.plan.digest.leaves]
        lake_rows = sum(rows for rows, _, _ in held)
        pairs = enumerate(zip(held, source, strict=True))
        differences = {leaf: _minus(ours, theirs) for leaf, (ours, theirs) in pairs if ours != theirs}
        changes = self._changes() if differences else None
        effects = self._effects(changes) if changes is not None else []
        if _are_of_one_moment(differences, effects):
            return Finding(Verdict.EQUAL, lake_rows=lake_rows)
        certain = [
            leaf
            for leaf, difference in differences.items()
            if leaf not in lacking and not _may_make_up(difference, [each[leaf] for each in effects if leaf in each])
        ]
        if not certain:
            return Finding(Verdict.UNKNOWN, _LACKING if lacking.issuperset(differences) else _UNCLEAR, lake_rows)
        leaves = tuple(DifferingLeaf(*self.plan.leaf_bounds(leaf), source[leaf][0], held[leaf][0]) for leaf in certain)
        return Finding(Verdict.DIFFERS, "rows differ", lake_rows, leaves)

    def _held(self) -> tuple[list[Sums], set[int]]:
        """The current state's sums by leaf, and the leaves with rows that lack values."""
        sums = _nothing(len(self.plan.digest.leaves))
        lacking: set[int] = set()
        if self.rows is None:
            return sums, lacking
        names = [name for name in self.rows.schema.names if not name.startswith(OWN_PREFIX)]
        for found in _pieces(self.rows.tables(names, self._condition(self.rows.schema))):
            inside = self._in_range(found)  # a tail's rows are of any range
            rows = found if pc.all(inside, min_count=0).as_py() else found.filter(inside)
            leaves = self._leaves_of(rows)
            sums = _added(sums, self._sums(rows, leaves, len(sums)))
            if ABSENT in rows.column_names:
                lacking.update(leaves.filter(rows[ABSENT].is_valid()).to_pylist())
        return sums, lacking

    def _effects(self, changes: pa.Table) -> list[Effect]:
        """What each transaction did to the sums of its leaves, in the log's order."""
        of_rows = self._leaves_of(changes).to_pylist()
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
        condition = self._condition(schema_of(self.changelog))
        found = self._logged("*", f"{between} AND {condition}")
        removed = self._logged(quoted(GSN), f"{between} AND {quoted(CHANGE_TYPE)} NOT IN ({_KINDS}) LIMIT 1")
        if removed.num_rows:
            raise Incomparable("all rows of the table were removed in the meantime")
        is_before = f"{quoted(CHANGE_TYPE)} = '{ChangeType.update_preimage.name}'"
        before = self._logged(quoted(GSN), f"{between} AND {is_before}")[GSN]
        changes = _judged(found.sort_by(GSN), before)
        return changes.filter(self._in_range(changes))

    def _logged(self, columns: str, condition: str) -> pa.Table:
        assert self.changelog is not None
        return scan(self.changelog, f"SELECT {columns} FROM t WHERE {condition}").read_all()  # noqa: S608  (numbers)

    def _in_range(self, rows: pa.Table) -> pa.ChunkedArray:
        inside: pa.ChunkedArray = rows[self.plan.key[0]].is_valid()
        if self.plan.lower:
            inside = pc.and_(inside, self._is_above(rows, self.plan.lower))
        if self.plan.upper:
            inside = pc.and_(inside, pc.invert(self._is_above(rows, self.plan.upper)))
        return inside

    def _is_above(self, rows: pa.Table, bound: Key) -> pa.ChunkedArray:
        is_above: pa.ChunkedArray | None = None
        for name, number in reversed(list(zip(self.plan.key, bound, strict=True))):
            limit = pa.scalar(number, rows[name].type)
            greater, equal = pc.greater(rows[name], limit), pc.equal(rows[name], limit)
            is_above = greater if is_above is None else pc.or_(greater, pc.and_(equal, is_above))
        assert is_above is not None
        return is_above

    def _condition(self, schema: pa.Schema) -> str:
        """SQL for the chunk's keys. Raises `Incomparable` where the lake does not order them as numbers."""
        for name in self.plan.key:
            type_ = schema.field(name).type if name in schema.names else None
            if type_ is None or not (pa.types.is_integer(type_) or (pa.types.is_decimal(type_) and type_.scale == 0)):
                raise Incomparable(f"the lake's column {name}, of the key, is no integer")
        parts = [_above(self.plan.key, self.plan.lower)] if self.plan.lower else []
        parts += [f"NOT {_above(self.plan.key, self.plan.upper)}"] if self.plan.upper else []
        return " AND ".join(parts) or "TRUE"

    def _leaves_of(self, rows: pa.Table) -> pa.ChunkedArray:
        """Of each row how many leaves end below its key."""
        ends = pc.min_max(rows[self.plan.key[0]]).as_py()
        if ends["min"] is None:
            return pa.chunked_array([pa.array([], pa.int32())])
        # of rows that are near to each other most bounds are on one side
        below = sum(bound[0] < ends["min"] for bound in self.plan.bounds)
        found: pa.ChunkedArray = pa.chunked_array([pa.repeat(pa.scalar(below, pa.int32()), rows.num_rows)])
        for bound in self.plan.bounds:
            if ends["min"] <= bound[0] <= ends["max"]:
                found = pc.add(found, self._is_above(rows, bound).cast(pa.int32()))
        return found

    def _sums(self, rows: pa.Table, groups: pa.ChunkedArray, count: int) -> list[Sums]:
        """Of each of `count` groups; `groups`: that of each row."""
        if not rows.num_rows or not self.plan.digest.columns:
            # a chunk without rows does not say what its columns would be: that there are rows is enough
            counts = pc.value_counts(groups.combine_chunks()).to_pylist() if rows.num_rows else []
            counted = {each["values"]: each["counts"] for each in counts}
            return [(counted.get(group, 0), 0, 0) for group in range(count)]
        columns = [
            _canonical(rows, name, format_)
            for name, (_, format_) in zip(self.plan.names, self.plan.digest.columns, strict=True)
        ]
        names = [str(place) for place in range(len(columns))]
        batch = pa.RecordBatch.from_arrays(columns, names=names)
        of_rows = groups.combine_chunks()
        numbers = of_rows.buffers()[1].slice(of_rows.offset * 4, rows.num_rows * 4)
        return HashedRows(batch).sums_of(numbers, count)


def _canonical(rows: pa.Table, name: str, format_: str) -> pa.Array:
    """A column's values in the type in which the source's were hashed, if that holds them; else as they are."""
    type_ = format_type(format_)
    held = {found.lower(): found for found in rows.column_names}.get(name.lower())
    if held is None:
        return pa.nulls(rows.num_rows, type_)
    values = rows[held].combine_chunks()
    if values.type == type_:
        return values
    try:
        narrowed = values.cast(type_, safe=False)
        back = narrowed.cast(values.type, safe=False)
    except pa.ArrowException:
        return values
    same = pc.or_(pc.equal(back, values).fill_null(False), pc.and_(values.is_null(), narrowed.is_null()))
    if pa.types.is_floating(values.type):
        same = pc.or_(same, pc.and_(pc.is_nan(values), pc.is_nan(narrowed)).fill_null(False))
    return narrowed if pc.all(same, min_count=0).as_py() else values


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


def _above(key: Sequence[str], bound: Key) -> str:
    """SQL: the key is greater.

    >>> _above(["a", "b"], (1, 2))
    '("a" > 1 OR ("a" = 1 AND ("b" > 2)))'
    """
    name, number = quoted(key[0]), bound[0]
    if len(key) == 1:
        return f"({name} > {number})"
    return f"({name} > {number} OR ({name} = {number} AND {_above(key[1:], bound[1:])}))"


def _nothing(groups: int) -> list[Sums]:
    return [NOTHING] * groups


def _plus(one: Sums, other: Sums, sign: int = 1) -> Sums:
    return one[0] + sign * other[0], (one[1] + sign * other[1]) % WRAP, (one[2] + sign * other[2]) % WRAP


def _minus(one: Sums, other: Sums) -> Sums:
    return _plus(one, other, -1)


def _added(to: list[Sums], more: list[Sums], sign: int = 1) -> list[Sums]:
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
