"""The merge of a large table's tail in steps, none of which changes the table: file by file, beside batches.

`merge_tail` is one commit of one task, and others wait for all of it. Here the same rows are written by many small
tasks, from one version of the current state and one of the changelog. Comes in: these versions. Goes out: first the
plan, with what the tail does to rows (the effect) in files of its own; then which files have such rows; then new files
in their place, in which each row stands where it stood. Rows that are new come behind those of the smallest file, so
that files do not become more and smaller. No reader sees any of it before a commit names it (`merge_commit`).

A task reads a range of a file's rows, some megabytes of them at once, whatever rows are. Each file is noted before it
is written (`merge_record`), which is how what a kill leaves is found again. Tasks remove none: one that lives on beside
its next attempt would take what that one has written. What asks more of a commit than ours has (`is_plain`), e.g.
Delta's change feed, is merged as a small table is, and so is an effect that is too large for a task.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from errno import EBADMSG
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from menura.stores.address import is_local
from menura.stores.options import delta_options

from spark_sink.lake.delta_table import open_table, read_progress, schema_of
from spark_sink.lake.known_table import PLAIN_NAME, is_plain
from spark_sink.lake.merge_record import MergeRecord
from spark_sink.lake.net_effect import DELETED, key_bytes
from spark_sink.lake.recorded import Recorded
from spark_sink.lake.table_folders import table_folder
from spark_sink.lake.tail import Waiting, read_tail, tail_effect
from spark_sink.lake.uncommitted_files import DataFile, FilesWriter, read_files, statistics_columns
from spark_sink.landed.lake_schema import fit
from spark_sink.landed.storage import open_storage
from spark_sink.work import CHANGELOG, CURRENT, TableId

#: a smaller file takes new rows in
FULL_BYTES = 16 << 20
#: of a file, in memory at once; a footer does not tell what repeated values have, so few rows are decoded together
READ_ROWS, READ_BYTES, DECODED_ROWS = 1 << 18, 32 << 20, 1 << 13
#: of an effect, which each step has in memory
EFFECT_BYTES = 256 << 20
EFFECT_PREFIX = "effect-"


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file of the current state."""

    name: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Basis:
    """What a merge is made from: it counts where the table is still this one, at this version."""

    current_id: str
    current_version: int
    changelog_id: str
    #: up to where the current state is once it is committed
    cut: int
    gsn: int


@dataclass(frozen=True, slots=True)
class MergePlan:
    table: TableId
    basis: Basis
    record: MergeRecord
    #: the current state's
    schema: pa.Schema
    statistics_columns: str
    #: rows to put and to take away, as `merge_effect` has them
    effect: tuple[DataFile, ...]
    #: the columns that tell rows apart
    match: tuple[str, ...]
    #: files that may have such rows
    files: tuple[HeldFile, ...]
    #: that takes new rows in
    smallest: HeldFile | None
    #: rows that the effect puts, a bit each
    puts: bytes

    def new_rows(self, found: bytes) -> int:
        """How many rows it puts that files do not have; `found`: which they have."""
        return sum((put & ~held).bit_count() for put, held in zip(self.puts, found, strict=True))


class Unplanned(StrEnum):
    #: the current state is at another version
    MOVED = "moved"
    #: nothing waits
    MERGED = "merged"
    #: it is merged as a small table is
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Rows:
    """Of a file, by their places."""

    file: HeldFile
    first: int
    #: behind the last
    end: int


@dataclass(frozen=True, slots=True)
class Looked:
    """Files that have rows of the effect, each with the bytes of all of its rows before compression."""

    files: tuple[tuple[HeldFile, int], ...]
    #: which rows of the effect they have, a bit each
    found: bytes


@dataclass(frozen=True, slots=True)
class NewRows:
    """Those of the effect that no file has, by their places among these."""

    #: which of the effect files have, a bit each
    found: bytes
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step writes: rows of a file as they are after the merge, and behind them new ones."""

    rows: Rows | None
    new: NewRows | None = None


@dataclass(frozen=True, slots=True)
class PreparedMerge:
    plan: MergePlan
    removed: tuple[HeldFile, ...]
    added: tuple[DataFile, ...]


def plan_merge(
    lake: str, table: TableId, recorded: Recorded, version: int, waiting: Waiting, preparation: str
) -> MergePlan | Unplanned:
    """Of a table whose changelog is at its recorded version, and its current state at `version`.

    Raises `TableStopped`, OSError, DeltaError.
    """
    folder = current_folder(lake, table)
    current = open_table(folder)
    if current is None or current.version() != version:
        return Unplanned.MOVED
    changelog = recorded_changelog(lake, table, recorded)
    tail = read_tail(changelog, table.application, read_progress(current, table.application))
    if tail is None:
        return Unplanned.MERGED
    files = _files(current)
    if not _is_fit(folder, current, waiting) or files is None:
        return Unplanned.WHOLE
    effect, match = tail_effect(table, current, changelog, tail)
    schema = schema_of(current)
    wanted = _effect_schema(schema)
    is_floating = any(pa.types.is_floating(schema.field(name).type) for name in match)
    if is_floating or effect.nbytes > EFFECT_BYTES or not set(effect.column_names).issuperset(wanted.names):
        return Unplanned.WHOLE
    reached = tail.progress
    basis = Basis(identity(current), version, identity(changelog), reached.cut, reached.gsn)
    record = MergeRecord(lake, preparation, folder.removeprefix(f"{lake}/"), basis.current_id, version + 1)
    writer = FilesWriter(record.own_folder, EFFECT_PREFIX)
    writer.add(effect.select(wanted.names).cast(wanted))
    small = [each.file for each in files if each.file.size_bytes < FULL_BYTES]
    return MergePlan(
        table,
        basis,
        record,
        schema,
        statistics_columns(current),
        writer.end(),
        tuple(match),
        tuple(each.file for each in files if each.may_have(effect, match[0])),
        min(small, key=lambda each: each.size_bytes, default=None),
        to_bits(pc.invert(effect[DELETED].combine_chunks())),
    )


def _is_fit(folder: str, current: DeltaTable, waiting: Waiting) -> bool:
    """Whether it is large, and a commit of ours lacks nothing. Stores have '~' of a folder's name under another one."""
    is_placed = is_local(folder) or "~" not in folder
    return waiting.is_detached(current) and is_placed and is_plain(current)


@dataclass(frozen=True, slots=True)
class _Bounded:
    file: HeldFile
    bounds: Mapping[str, Any]

    def may_have(self, effect: pa.Table, name: str) -> bool:
        """Whether a row of the effect may be among the file's, by a whole number that its key begins with."""
        low, high = self.bounds.get(f"min.{name}"), self.bounds.get(f"max.{name}")
        if not pa.types.is_integer(effect.schema.field(name).type) or low is None or high is None:
            return True
        keys = effect[name]
        is_within = pc.and_(pc.greater_equal(keys, low), pc.less_equal(keys, high))
        return bool(keys.null_count or pc.any(is_within).as_py())


def _files(current: DeltaTable) -> list[_Bounded] | None:
    """None where one has a name, or lacks a number of rows, that no file of ours does."""
    facts = pa.table(current.get_add_actions(flatten=True)).to_pylist()
    found = [_Bounded(HeldFile(each["path"], each["size_bytes"], each["num_records"]), each) for each in facts]
    are_plain = all(PLAIN_NAME.fullmatch(each.file.name) and each.file.rows is not None for each in found)
    return found if are_plain else None


def look(plan: MergePlan, ranges: Sequence[Rows]) -> Looked:
    """Raises OSError, ArrowException."""
    effect = _Effect(plan, plan.match)
    store = open_storage(plan.record.table_folder)
    found = pa.repeat(pa.scalar(value=False), effect.rows.num_rows)
    touched: dict[HeldFile, int] = {}
    for each in ranges:
        with pq.ParquetFile(store.open(each.file.name)) as parquet:
            for rows in read_rows(parquet, each, effect.schema):
                places = effect.places(rows)
                if places.null_count < len(places):
                    touched[each.file] = _plain_bytes(parquet)
                    found = _with(found, places)
    return Looked(tuple(touched.items()), to_bits(found))


def write_piece(plan: MergePlan, piece: Piece) -> tuple[DataFile, ...]:
    """Raises OSError, ArrowException."""
    effect = _Effect(plan, plan.schema.names)
    record = plan.record
    writer = FilesWriter(record.table_folder, record.prefix, plan.statistics_columns, record.note)
    if piece.rows is not None:
        with pq.ParquetFile(open_storage(record.table_folder).open(piece.rows.file.name)) as parquet:
            if parquet.metadata.num_rows != piece.rows.file.rows:  # ranges of it would lack rows
                raise OSError(EBADMSG, "a file of the table has another number of rows than the table's log says")
            for rows in read_rows(parquet, piece.rows, plan.schema):
                writer.add(effect.merged(rows))
    if piece.new is not None:
        found = of_bits(piece.new.found, effect.rows.num_rows)
        is_new = pc.invert(pc.or_(found, effect.is_gone))
        new = effect.rows.filter(is_new).select(plan.schema.names)
        writer.add(new.slice(piece.new.first, piece.new.end - piece.new.first))
    return writer.end()


def read_rows(parquet: pq.ParquetFile, wanted: Rows, schema: pa.Schema) -> Iterator[pa.Table]:
    """Rows in the columns of a schema, `READ_ROWS` or some `READ_BYTES` at once. Raises OSError, ArrowException."""
    gathered: list[pa.Table] = []
    for rows in _decoded(parquet, wanted, schema):
        gathered.append(rows)
        if sum(map(len, gathered)) >= READ_ROWS or sum(each.nbytes for each in gathered) >= READ_BYTES:
            yield pa.concat_tables(gathered)
            gathered = []
    if gathered:
        yield pa.concat_tables(gathered)


def _decoded(parquet: pq.ParquetFile, wanted: Rows, schema: pa.Schema) -> Iterator[pa.Table]:
    lower = {name.lower() for name in schema.names}
    columns = [name for name in parquet.schema_arrow.names if name.lower() in lower]
    end = 0
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        place, end = end, end + group.num_rows
        if end <= wanted.first or place >= wanted.end:
            continue
        fitting = READ_BYTES * group.num_rows // max(1, group.total_byte_size)
        count = max(1, min(DECODED_ROWS, READ_ROWS, fitting))
        for batch in parquet.iter_batches(count, row_groups=[number], columns=columns, use_threads=False):
            first = max(0, wanted.first - place)
            if (rows := batch.slice(first, max(0, wanted.end - place - first))).num_rows:
                yield fit(pa.Table.from_batches([rows]), schema)
            place += batch.num_rows
            if place >= wanted.end:
                return


def _plain_bytes(parquet: pq.ParquetFile) -> int:
    return sum(parquet.metadata.row_group(number).total_byte_size for number in range(parquet.num_row_groups))


class _Effect:
    """A plan's, in a task."""

    def __init__(self, plan: MergePlan, names: Sequence[str]) -> None:
        self.schema = pa.schema([plan.schema.field(name) for name in names])
        wanted = _effect_schema(self.schema)
        self.rows = pa.Table.from_batches(read_files(plan.record.own_folder, plan.effect, wanted), wanted)
        self.rows = self.rows.combine_chunks()
        self.is_gone = self.rows[DELETED].combine_chunks()
        self._match = plan.match

    @cached_property
    def _first(self) -> pa.Array:
        return self.rows[self._match[0]].combine_chunks()

    @cached_property
    def _keys(self) -> pa.Array:
        return key_bytes(self.rows, self._match).combine_chunks()

    def places(self, rows: pa.Table) -> pa.Array:
        """Which row of the effect each of these is; null: none."""
        first = rows[self._match[0]].combine_chunks()
        if len(self._match) == 1:
            return pc.index_in(first, self._first)
        near = pc.is_in(first, self._first)
        keys = key_bytes(rows.filter(near), self._match).combine_chunks()
        return pc.replace_with_mask(pa.nulls(rows.num_rows, pa.int32()), near, pc.index_in(keys, self._keys))

    def merged(self, rows: pa.Table) -> pa.Table:
        """These rows as the effect has them, each in its place."""
        places = self.places(rows)
        if places.null_count == len(places):
            return rows
        is_changed, changed = places.is_valid(), places.drop_null()
        both = pa.concat_tables([rows, self.rows.select(self.schema.names).take(changed)])
        numbers = pc.add(pc.cumulative_sum(is_changed.cast(pa.int64())), rows.num_rows - 1)
        taken = pc.if_else(is_changed, numbers, pa.arange(0, rows.num_rows, 1))
        is_gone = pa.repeat(pa.scalar(value=False), rows.num_rows)
        is_gone = pc.replace_with_mask(is_gone, is_changed, self.is_gone.take(changed))
        return both.take(taken.filter(pc.invert(is_gone)))


def _with(found: pa.Array, places: pa.Array) -> pa.Array:
    """Also these."""
    if places.null_count == len(places):
        return found
    numbers = pa.arange(0, len(found), 1)
    return pc.or_(found, pc.is_in(numbers, places.drop_null().cast(pa.int64())))


def to_bits(flags: pa.Array) -> bytes:
    """Of flags without nulls.

    >>> of_bits(to_bits(pa.array([True, False, True])), 3).to_pylist()
    [True, False, True]
    """
    count = len(flags)
    plain = pa.concat_arrays([flags, pa.repeat(pa.scalar(value=False), -count % 8)])
    return bytes(plain.buffers()[1] or b"")[: len(plain) // 8]


def of_bits(bits: bytes, count: int) -> pa.BooleanArray:
    return pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bits)])


def _effect_schema(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field(DELETED, pa.bool_()))


def identity(table: DeltaTable) -> str:
    """Of a Delta table; one that was made anew has another."""
    return str(table.metadata().id)


def current_folder(lake: str, table: TableId) -> str:
    return f"{table_folder(lake, table)}/{CURRENT}"


def log_folder(lake: str, table: TableId) -> str:
    return f"{table_folder(lake, table)}/{CHANGELOG}"


def recorded_changelog(lake: str, table: TableId, recorded: Recorded) -> DeltaTable:
    """At its recorded version."""
    folder = log_folder(lake, table)
    return DeltaTable(folder, version=recorded.changelog, storage_options=delta_options(folder))
