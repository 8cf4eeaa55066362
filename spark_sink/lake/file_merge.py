"""The merge of a large table's tail in steps, none of which changes the table: file by file, beside batches.

`merge_tail` is one commit of one task, and others wait for all of it. Here the same rows are written by many small
tasks, from one version of the current state and one of the changelog. Comes in: these versions. Goes out: first the
plan, with what the tail does to rows (the effect) in files of its own; then which files have such rows; then new files
in their place, in which each row stands where it stood. Rows that are new come behind those of the smallest file, so
that files do not become more and smaller. No reader sees any of it before a commit names it (`merge_commit`).

Files carry the version that they are for. A kill leaves files without a version. Tasks remove none: one that lives on
beside its next attempt would take what that one has written. What asks more of a commit than ours has (`is_plain`),
e.g. Delta's change feed, is merged as a small table is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from menura.stores.address import is_local
from menura.stores.options import delta_options

from spark_sink.lake.delta_table import open_table, read_progress, schema_of
from spark_sink.lake.known_table import PLAIN_NAME, is_plain
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
READ_ROWS = 1 << 18
#: of files that no version names
EFFECT_PREFIX = "merge-effect-"


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
    prefix: str
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

    def new_rows(self, found: bytes) -> bool:
        """Whether it puts rows that files do not have; `found`: which they have."""
        return any(put & ~held for put, held in zip(self.puts, found, strict=True))


class Unplanned(StrEnum):
    #: the current state is at another version
    MOVED = "moved"
    #: nothing waits
    MERGED = "merged"
    #: it is merged as a small table is
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Looked:
    """Files that have rows of the effect, each with the numbers of rows of its row groups."""

    files: tuple[tuple[HeldFile, tuple[int, ...]], ...]
    #: which rows of the effect they have, a bit each
    found: bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Row groups of a file, to be written anew."""

    file: HeldFile | None
    first_group: int = 0
    #: behind the last; None: to the file's end
    end_group: int | None = None
    #: the rows that no file has come behind it: which of the effect files have; None: not here
    found: bytes | None = None


@dataclass(frozen=True, slots=True)
class PreparedMerge:
    plan: MergePlan
    removed: tuple[HeldFile, ...]
    added: tuple[DataFile, ...]


def files_prefix(version: int) -> str:
    """Of files for this version of the current state."""
    return f"merged-{version:020d}-"


def plan_merge(lake: str, table: TableId, recorded: Recorded, version: int, waiting: Waiting) -> MergePlan | Unplanned:
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
    if is_floating or not set(effect.column_names).issuperset(wanted.names):
        return Unplanned.WHOLE
    prefix = files_prefix(version + 1)
    writer = FilesWriter(folder, EFFECT_PREFIX)
    writer.add(effect.select(wanted.names).cast(wanted))
    reached = tail.progress
    basis = Basis(identity(current), version, identity(changelog), reached.cut, reached.gsn)
    held = tuple(each.file for each in files)
    small = [each for each in held if each.size_bytes < FULL_BYTES]
    return MergePlan(
        table,
        basis,
        prefix,
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


def look(lake: str, plan: MergePlan, files: Sequence[HeldFile]) -> Looked:
    """Raises OSError, ArrowException."""
    opened = _Opened.of(lake, plan)
    found = pa.repeat(pa.scalar(value=False), opened.effect.num_rows)
    touched = []
    for each in files:
        keys = pa.schema([opened.schema.field(name) for name in plan.match])
        with pq.ParquetFile(opened.store.open(each.name)) as parquet:
            wanted = {name.lower() for name in plan.match}
            names = [name for name in parquet.schema_arrow.names if name.lower() in wanted]
            groups = [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]
            is_touched = False
            for batch in parquet.iter_batches(READ_ROWS, columns=names, use_threads=False):
                places = opened.places(fit(pa.Table.from_batches([batch]), keys))
                is_touched |= places.null_count < len(places)
                found = _with(found, places)
            if is_touched:
                touched.append((each, tuple(groups)))
    return Looked(tuple(touched), to_bits(found))


def write_piece(lake: str, plan: MergePlan, piece: Piece) -> tuple[DataFile, ...]:
    """Raises OSError, ArrowException."""
    opened = _Opened.of(lake, plan)
    writer = FilesWriter(opened.folder, plan.prefix, opened.statistics_columns)
    if piece.file is not None:
        with pq.ParquetFile(opened.store.open(piece.file.name)) as parquet:
            end = parquet.num_row_groups if piece.end_group is None else piece.end_group
            groups = range(piece.first_group, end)
            for batch in parquet.iter_batches(READ_ROWS, row_groups=list(groups), use_threads=False):
                writer.add(opened.merged(fit(pa.Table.from_batches([batch]), opened.schema)))
    if piece.found is not None:
        found = of_bits(piece.found, opened.effect.num_rows)
        is_new = pc.invert(pc.or_(found, opened.effect[DELETED].combine_chunks()))
        writer.add(opened.effect.filter(is_new).select(opened.schema.names))
    return writer.end()


@dataclass(frozen=True, slots=True)
class _Opened:
    """A plan in a task."""

    folder: str
    store: Any
    schema: pa.Schema
    statistics_columns: str
    effect: pa.Table
    match: Sequence[str]

    @classmethod
    def of(cls, lake: str, plan: MergePlan) -> "_Opened":
        folder = current_folder(lake, plan.table)
        version = plan.basis.current_version
        current = DeltaTable(folder, version=version, storage_options=delta_options(folder))
        schema = schema_of(current)
        wanted = _effect_schema(schema)
        effect = pa.Table.from_batches(read_files(folder, plan.effect, wanted), wanted).combine_chunks()
        return cls(folder, open_storage(folder), schema, statistics_columns(current), effect, plan.match)

    def places(self, rows: pa.Table) -> pa.Array:
        """Which row of the effect each of these is; null: none."""
        first, *others = self.match
        values = self.effect[first].combine_chunks()
        if not others:
            return pc.index_in(rows[first].combine_chunks(), values)
        near = pc.is_in(rows[first].combine_chunks(), values)
        keys = key_bytes(rows.filter(near), self.match).combine_chunks()
        found = pc.index_in(keys, key_bytes(self.effect, self.match).combine_chunks())
        return pc.replace_with_mask(pa.nulls(rows.num_rows, pa.int32()), near, found)

    def merged(self, rows: pa.Table) -> pa.Table:
        """These rows as the effect has them, each in its place."""
        places = self.places(rows)
        if places.null_count == len(places):
            return rows
        both = pa.concat_tables([rows, self.effect.select(self.schema.names)])
        taken = pc.coalesce(pc.add(places.cast(pa.int64()), rows.num_rows), pa.arange(0, rows.num_rows, 1))
        is_gone = pc.fill_null(self.effect[DELETED].combine_chunks().take(places), fill_value=False)
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
