"""A table, or a view, as an input of a view: its rows at a boundary, and what changed since an earlier one.

Comes in: versions of its two Delta tables. Goes out: rows by key, all rows, and of each key that changed the row before
and after. Nothing is written.

Changes are read from the changelog, and only where they say all: rows of dumps, a TRUNCATE, other columns, a repair or
a changelog that was shortened have the view compared as a whole (`Irregular`).
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from menura.change_batch import CHANGE_TYPE, GSN, TRANSACTION_ID, ChangeType
from menura.views.definition import Column, InputName, Shape

from spark_sink.errors import SinkError
from spark_sink.lake.changelog_retention import read_kept
from spark_sink.lake.delta_table import Layout, quoted, read_layout, scan, schema_of
from spark_sink.lake.key_bounds import key_bounds
from spark_sink.lake.logged_changes import TRUNCATE, LoggedChanges
from spark_sink.lake.net_effect import DELETED, in_order
from spark_sink.lake.partial_rows import has_partial
from spark_sink.lake.tail import Rows, progress_of, rows_of
from spark_sink.landed.lake_schema import format_of
from spark_sink.landed.landed_file import OWN_PREFIX
from spark_sink.reading import opened_versions, rows_of_versions
from spark_sink.views.engine import engine
from spark_sink.views.queries import same_key
from spark_sink.work import TableId

#: of one table between two versions of a view; beyond, the view is compared as a whole
MOST_CHANGES = 1_000_000
_ORDER = "_order"
#: what commits say of dumps and repairs, whose rows are no changes
_MARKS = ("chunks", "dump", "dump/end", "repair", "repair/end")


class Irregular(Exception):
    """Changes alone do not say what became of the table; says why."""


@dataclass(frozen=True, slots=True)
class InputAt:
    """An input's versions at a boundary."""

    name: InputName
    table: TableId
    changelog_version: int
    current_version: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Where an input was when a version of a view was made."""

    gsn: int
    #: a digest of its columns and dumps
    state: int
    changelog_version: int
    current_version: int


@dataclass(frozen=True, slots=True)
class Slice:
    """What became of a table: the keys that changed, their rows before and after."""

    keys: pa.Table
    old: pa.Table
    new: pa.Table


class OpenInput:
    """An input at its versions, opened."""

    def __init__(self, lake: str, at: InputAt) -> None:
        self.at = at
        self._lake = lake
        self.changelog, self.current = opened_versions(lake, at.table, at.changelog_version, at.current_version)
        self.layout: Layout = read_layout(self.current)
        self.schema = schema_of(self.current)
        self._slices: dict[tuple[int, tuple[str, ...]], Slice] = {}

    @cached_property
    def rows(self) -> Rows:
        return rows_of(self.at.table, self.current, self.changelog)

    @cached_property
    def merged_rows(self) -> int:
        """How many the current state has without its tail; 0 where its files do not say."""
        return int(pc.sum(pa.table(self.current.get_add_actions())["num_records"]).as_py() or 0)

    @property
    def identity(self) -> str:
        """Of the two Delta tables, which others that are made in their place do not have."""
        return f"{self.changelog.metadata().id} {self.current.metadata().id}"

    @cached_property
    def shape(self) -> Shape:
        return shape_of(self.schema, self.layout)

    @cached_property
    def key(self) -> list[str]:
        return list(self.shape.key)

    @cached_property
    def mark(self) -> Mark:
        application = self.at.table.application
        said = [self.current.transaction_version(f"{application}/{name}") for name in _MARKS]
        facts = (self.layout.columns, self.layout.key, self.layout.row_end, [str(f) for f in self.schema], said)
        digest = hashlib.sha256(repr(facts).encode()).digest()
        return Mark(
            progress_of(self.at.table, self.current, self.changelog).gsn,
            int.from_bytes(digest[:7], "big"),
            self.at.changelog_version,
            self.at.current_version,
        )

    def all_rows(
        self, columns: Sequence[str], skipping: str = "TRUE", only: Callable[[pa.Table], pa.Table] | None = None
    ) -> pa.RecordBatchReader:
        """Each row's columns, to be read once; with what `Rows.tables` leaves out."""
        return reader_of(self.rows, columns, skipping, only)

    def with_keys(self, keys: pa.Table, columns: Sequence[str], on: Sequence[str]) -> pa.Table:
        """The rows whose columns `on` have one of these keys, which are called likewise; null is no key."""
        return rows_with_keys(self.rows, keys, columns, on)

    def changes(self, before: Mark, columns: Sequence[str]) -> Slice:
        """What changed since; raises `Irregular`."""
        of = (before.gsn, tuple(columns))
        if of not in self._slices:
            self._slices[of] = self._changes(before, columns)
        return self._slices[of]

    def _changes(self, before: Mark, columns: Sequence[str]) -> Slice:
        if self.mark.state != before.state:
            raise Irregular("its definition changed, or a dump or a repair brought rows")
        if self.mark.gsn < before.gsn:
            raise Irregular("it is another copy, and not as far")
        schema = pa.schema([self.schema.field(name) for name in columns])
        nothing = schema.empty_table()
        if self.mark.gsn == before.gsn:
            return Slice(nothing.select(self.key), nothing, nothing)
        self._check(before.gsn)
        logged = LoggedChanges(self.changelog, self.layout, self.schema, self.mark.gsn)
        rows = logged.all_rows(before.gsn)
        keys = rows.select(self.key).group_by(self.key).aggregate([])
        if has_partial(rows):
            return Slice(keys, self._before(before, keys, columns), rows_with_keys(self.rows, keys, columns, self.key))
        ordered = in_order(rows)
        numbered = ordered.select(self.key).append_column(_ORDER, pa.arange(0, ordered.num_rows, 1))
        ends = numbered.group_by(self.key).aggregate([(_ORDER, "min"), (_ORDER, "max")])
        first, last = (ordered.take(ends[f"{_ORDER}_{end}"]) for end in ("min", "max"))
        old = first.filter(first[DELETED]).select(list(columns)).cast(schema)
        new = last.filter(pc.invert(last[DELETED])).select(list(columns)).cast(schema)
        return Slice(keys, old, new)

    def _check(self, above_gsn: int) -> None:
        if above_gsn + 1 < read_kept(self.changelog).begins_gsn:
            raise Irregular("its changelog was shortened")
        others = (
            f"({quoted(CHANGE_TYPE)} IN ('{TRUNCATE}', '{ChangeType.snapshot.name}') OR {quoted(TRANSACTION_ID)} <= 0)"
        )
        query = (
            f"SELECT count(*) AS found, count(*) FILTER (WHERE {others}) AS others FROM t"  # noqa: S608  (constants)
            f" WHERE {quoted(GSN)} > {above_gsn} AND {quoted(GSN)} <= {self.mark.gsn}"
        )
        (counted,) = scan(self.changelog, query).read_all().to_pylist()
        if counted["others"]:
            raise Irregular("it was emptied, or rows were read again")
        if counted["found"] > MOST_CHANGES:
            raise Irregular("it has very many changes")

    def _before(self, before: Mark, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        try:
            rows = rows_of_versions(self._lake, self.at.table, before.changelog_version, before.current_version)
            return rows_with_keys(rows, keys, columns, self.key)
        except (SinkError, DeltaError, OSError, pa.ArrowException) as gone:  # Arrow says so in the midst of a scan
            raise Irregular("rows came without all values, and the version before can't be read") from gone


def reader_of(
    held: Rows, columns: Sequence[str], skipping: str = "TRUE", only: Callable[[pa.Table], pa.Table] | None = None
) -> pa.RecordBatchReader:
    """Rows of a table, to be read once; with what `Rows.tables` leaves out."""
    schema = pa.schema([held.schema.field(name) for name in columns])
    batches = (batch for rows in held.tables(columns, skipping, only=only) for batch in rows.to_batches())
    return pa.RecordBatchReader.from_batches(schema, batches)


def rows_with_keys(
    held: Rows, keys: pa.Table, columns: Sequence[str], on: Sequence[str], *, null_is_key: bool = False
) -> pa.Table:
    """The rows whose columns `on` have one of these keys, which are called likewise."""
    chosen = [*columns, *(name for name in on if name not in columns)]
    schema = pa.schema([held.schema.field(name) for name in chosen])
    if not keys.num_rows:
        return schema.empty_table().select(list(columns))
    skipping = key_bounds(keys, on).condition({field.name: field for field in held.schema})
    first = keys[on[0]].combine_chunks()

    def near(rows: pa.Table) -> pa.Table:
        return rows.filter(pc.is_in(rows[on[0]], first, skip_nulls=not null_is_key))

    found = pa.concat_tables([schema.empty_table(), *held.tables(chosen, skipping, only=near)])
    return _semi_joined(found, keys, on).select(list(columns))


def having_keys(rows: pa.Table, keys: pa.Table, on: Sequence[str]) -> pa.Table:
    """Those of a few rows; null is no key."""
    whole = keys.drop_null()
    return _semi_joined(rows.filter(pc.is_in(rows[on[0]], whole[on[0]].combine_chunks())), whole, on)


def first_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Of rows of one key the first."""
    numbered = rows.select(list(key)).append_column(_ORDER, pa.arange(0, rows.num_rows, 1))
    return rows.take(numbered.group_by(list(key)).aggregate([(_ORDER, "min")])[f"{_ORDER}_min"])


def _semi_joined(rows: pa.Table, keys: pa.Table, on: Sequence[str]) -> pa.Table:
    """Of rows whose first column has one of the keys' values."""
    if len(on) == 1:
        return rows
    with engine() as sql:
        sql.put("r", rows)
        sql.put("k", keys)
        return sql.table(f"SELECT r.* FROM r SEMI JOIN k ON {same_key('r', 'k', on)}").cast(rows.schema)  # noqa: S608


def shape_of(held: pa.Schema, layout: Layout) -> Shape:
    """The columns that a view may use, in the lake's names."""
    names = {field.name.lower(): field for field in held}
    own = [names[name.lower()] for name in layout.columns if name.lower() in names]
    shown = [field for field in own if not field.name.startswith(OWN_PREFIX)]
    columns = tuple(Column(field.name, format_of(field.type)) for field in shown)
    return Shape(columns, tuple(names[name.lower()].name for name in layout.key))
