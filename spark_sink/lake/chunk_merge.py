"""Chunks of a dump into the current state of a keyed table, piece by piece.

Comes in: chunks' files, and the table's changelog, which has every change up to what the current state has. Goes out:
an append of rows whose keys the table lacks, and a MERGE of the rest where there is one; the last commit carries the
step's transactions. A chunk holds what its rows were at a moment after all changes up to its number G. So, of each row:

* its key has no change above G: the row is put, but where the table has it from the stream or a chunk since the dump
  began, and whole: then it is this very row. A repair's row is always put: nothing says how the table's came to differ.
  Before that a key that the table has more than once is left with one row, by a commit of its own;
* it has: those changes decide, and the current state already shows them. Only where one of them lacks values is the
  row the base that they belong on (`chunk_replay`).

Doing a chunk again changes nothing, so a kill between two pieces does no harm. Cost follows the chunk: the changelog is
read above G and the current state within the piece's keys, of both the key and what tells rows' order and wholeness.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from menura.bounds import MAX_NUMBER
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN

from spark_sink.errors import ChunkTooLate
from spark_sink.lake.changelog_retention import read_kept
from spark_sink.lake.chunk_replay import replayed
from spark_sink.lake.current_rows import match_columns, merge_effect
from spark_sink.lake.delta_table import (
    WRITER,
    Transactions,
    append,
    commit_nothing,
    commit_properties,
    compact_when_due,
    dump_began_gsn,
    quoted,
    scan,
    schema_of,
)
from spark_sink.lake.key_bounds import KeyBounds, key_bounds
from spark_sink.lake.logged_changes import TRUNCATE, LoggedChanges, gathered
from spark_sink.lake.net_effect import DELETED, IS_DELETED, in_order, keyed_effect
from spark_sink.lake.steps import Segment, segment_tables
from spark_sink.landed.landed_file import LandedPart
from spark_sink.work import TableId

#: rows of one range that are merged at once
PIECE_ROWS = 500_000

_PLACE = "_menura_place"
_CHANGED = "_menura_changed"
_PARTIAL = "_menura_partial"
_HELD = "_menura_held"
_LACKS = "_menura_lacks"
_SETTLED = "_menura_settled"

Values = Mapping[str, pa.Array | pa.ChunkedArray]


def merge_chunks(
    table: TableId,
    current: DeltaTable,
    changelog: DeltaTable,
    segment: Segment,
    end_gsn: int,
    transactions: Transactions,
) -> None:
    """Merge the segment's chunks; all changes up to `end_gsn` are in both tables. Raises `TableStopped`."""
    _check_kept(table, changelog, segment)
    held = schema_of(current)
    began_gsn = dump_began_gsn(current, table.application)
    match = match_columns(held, segment.layout.key)
    merger = _Merger(current, match, LoggedChanges(changelog, segment.layout, held, end_gsn), began_gsn)
    waiting: pa.Table | None = None
    repairs = any(part.file.chunk is not None and part.file.chunk.repairs for part in segment.parts)
    if repairs:
        merger = replace(merger, began_gsn=MAX_NUMBER)
    for piece in _pieces(table, segment, held):
        if waiting is not None:
            merger.merge(waiting, transactions[:1])  # enough for another writer of the same to fail
            compact_when_due(current)
        if repairs:
            merger.leave_one_of_each(piece, transactions[:1])
        waiting = piece
    if waiting is None:
        commit_nothing(current, transactions)
    else:
        merger.merge(waiting, transactions)


def _check_kept(table: TableId, changelog: DeltaTable, segment: Segment) -> None:
    begins_gsn = read_kept(changelog).begins_gsn
    for part in segment.parts:
        if part.file.chunk is not None and part.file.chunk.gsn + 1 < begins_gsn:
            raise ChunkTooLate(
                "merging a dump's chunk",
                f"{part.file.path} was read at row number {part.file.chunk.gsn}, and the table's changelog has changes"
                f" from {begins_gsn} on",
                data="The table stays at its last version; other tables go on",
                remedy=f"Have the sink keep more of it (--keep-changelog); then run: {table.resync}",
                **table.where(part.file.cut),
            )


def _pieces(table: TableId, segment: Segment, held: pa.Schema) -> Iterator[pa.Table]:
    """Rows of chunks that follow each other in one range, none of them empty."""

    def range_of(part: LandedPart) -> int:
        assert part.file.chunk is not None
        return part.file.chunk.range

    for _, run in groupby(sorted(segment.parts, key=range_of), key=range_of):
        waiting: list[pa.Table] = []
        for rows in segment_tables(table, Segment(tuple(run), segment.layout, segment.last_gsn), held):
            if waiting and sum(map(len, waiting)) + len(rows) > PIECE_ROWS:
                yield pa.concat_tables(waiting)
                waiting = []
            if len(rows):
                waiting.append(rows)
        if waiting:
            yield pa.concat_tables(waiting)


@dataclass(frozen=True, slots=True)
class _Merger:
    current: DeltaTable
    match: Sequence[str]
    changes: LoggedChanges
    #: where the dump began: what has a lower number may be stale, and is taken away at its end
    began_gsn: int

    def merge(self, rows: pa.Table, transactions: Transactions) -> None:
        found = self._look_up(rows)
        if found is None:
            self._append(rows, transactions)
            return
        new = rows.take(found.filter(pc.and_(found[_SETTLED], pc.is_null(found[_HELD])))[_PLACE])
        is_older = pc.or_(pc.less(found[_HELD], self.began_gsn), pc.equal(found[_LACKS], 1))
        changed = rows.take(found.filter(pc.and_(found[_SETTLED], is_older))[_PLACE])
        lacking = found.filter(pc.and_(pc.invert(found[_SETTLED]), pc.equal(found[_PARTIAL], 1)))
        if lacking.num_rows:
            based = rows.take(lacking[_PLACE])
            effect = [replayed(same, self.match, gsn, self.changes) for gsn, same in _by_number(based)]
            columns = changed.column_names
            changed = pa.concat_tables([changed, *(rows.select(columns) for rows in effect)])
            changed = keyed_effect(in_order(changed), list(self.match))
        if new.num_rows and changed.num_rows:
            self._append(new, transactions[:1])
            compact_when_due(self.current)
        elif new.num_rows:
            self._append(new, transactions)
        if changed.num_rows:
            merge_effect(self.current, changed, self.match, transactions, key_bounds(changed, self.match))
        elif not new.num_rows:
            commit_nothing(self.current, transactions)

    def leave_one_of_each(self, rows: pa.Table, transactions: Transactions) -> None:
        """Of the keys of these rows that the table has more than once the newest row stays; no commit where none is."""
        held = self._held_keys(rows, key_bounds(rows, self.match))
        counts = held.group_by(list(self.match)).aggregate([(GSN, "count")])
        doubled = counts.filter(pc.greater(counts[f"{GSN}_count"], 1))
        if not doubled.num_rows:
            return
        schema = schema_of(self.current)
        within = key_bounds(doubled, self.match).condition({found.name: found for found in schema})
        found = scan(self.current, f"SELECT * FROM t WHERE {within}").read_all()  # noqa: S608  (own literals)
        newest = found.cast(schema).sort_by([(GSN, "descending")])
        first = newest.append_column(_PLACE, _places(newest)).group_by(list(self.match)).aggregate([(_PLACE, "min")])
        commit = commit_properties(*transactions)
        kept = newest.take(first[f"{_PLACE}_min"])
        write_deltalake(
            self.current, kept, mode="overwrite", predicate=within, writer_properties=WRITER, commit_properties=commit
        )

    def _append(self, rows: pa.Table, transactions: Transactions) -> None:
        append(self.current, rows.drop_columns([DELETED]), transactions)

    def _look_up(self, rows: pa.Table) -> pa.Table | None:
        """Of each key its row's place, whether no change decides over it, else whether one lacks values, and of the row
        that the table holds the number and whether it lacks values. None where there is no change, no row and no key
        twice.
        """
        bounds = key_bounds(rows, self.match)
        changes = self.changes.of_keys(rows, self.match, pc.min(rows[GSN]).as_py(), bounds)
        removed = pc.max(changes.filter(pc.equal(changes[CHANGE_TYPE], TRUNCATE))[GSN]).as_py() or 0
        held = self._held_keys(rows, bounds)
        if not changes.num_rows and not held.num_rows and _ascend(rows, self.match):
            return None
        sides = [
            (rows, {_PLACE: _places(rows)}),
            (changes, {_CHANGED: changes[GSN], _PARTIAL: changes[ABSENT].is_valid().cast(pa.int64())}),
            (held, {_HELD: held[GSN], _LACKS: held[ABSENT].is_valid().cast(pa.int64())}),
        ]
        found = _joined(self.match, sides)
        found = found.filter(found[_PLACE].is_valid()).sort_by(_PLACE)
        found = found.filter(pc.greater_equal(rows[GSN].take(found[_PLACE]), removed))
        is_settled = pc.less_equal(found[_CHANGED].fill_null(0), rows[GSN].take(found[_PLACE]))
        return found.append_column(_SETTLED, is_settled)

    def _held_keys(self, rows: pa.Table, bounds: KeyBounds) -> pa.Table:
        """Key, number and `_absent` of the table's rows whose key begins as one of these rows' does."""
        fields = {found.name: found for found in schema_of(self.current)}
        schema = pa.schema([fields[name] for name in (*self.match, GSN, ABSENT)])
        chosen = ", ".join(map(quoted, schema.names))
        if IS_DELETED in fields:  # its number is below each dump's: the chunk's row is put over it
            number = f"CASE WHEN {quoted(IS_DELETED)} THEN -1 ELSE {quoted(GSN)} END AS {quoted(GSN)}"
            chosen = ", ".join([*map(quoted, self.match), number, quoted(ABSENT)])
        query = f"SELECT {chosen} FROM t WHERE {bounds.condition(fields)}"  # noqa: S608  (quoted names, own literals)
        found = [schema.empty_table()]
        for held in gathered(pa.table(batch) for batch in scan(self.current, query)):
            found.append(held.filter(pc.is_in(held[self.match[0]], rows[self.match[0]].combine_chunks())))
        return pa.concat_tables(found)


def _by_number(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    for gsn in rows[GSN].unique().to_pylist():
        yield gsn, rows.filter(pc.equal(rows[GSN], gsn))


def _joined(match: Sequence[str], sides: Sequence[tuple[pa.Table, Values]]) -> pa.Table:
    """Of each key the greatest of each value, null where no side has one; nulls in keys are equal."""
    names = [name for _, values in sides for name in values]
    stacked = []
    for rows, values in sides:
        nothing = pa.nulls(rows.num_rows, pa.int64())
        columns = {name: rows[name] for name in match} | {name: values.get(name, nothing) for name in names}
        stacked.append(pa.table(columns))
    found = pa.concat_tables(stacked).group_by(list(match)).aggregate([(name, "max") for name in names])
    return found.select([f"{name}_max" for name in names]).rename_columns(names)


def _ascend(rows: pa.Table, match: Sequence[str]) -> bool:
    """Whether each key is certainly greater than the one before, as keys in the order of their index mostly are."""
    if any(rows[name].null_count for name in match) or rows.num_rows < 2:
        return bool(rows.num_rows < 2)
    is_greater: pa.Array | pa.ChunkedArray = pa.repeat(pa.scalar(False), rows.num_rows - 1)
    for name in reversed(match):
        before, after = rows[name].slice(0, rows.num_rows - 1), rows[name].slice(1)
        is_greater = pc.or_(pc.greater(after, before), pc.and_(pc.equal(after, before), is_greater))
    return bool(pc.all(is_greater).as_py())


def _places(rows: pa.Table) -> pa.Array:
    return pa.arange(0, rows.num_rows, 1)
