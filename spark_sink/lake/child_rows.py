"""The rows of a child that its parents' changes may concern: in the lake, in the batch, in a dump's chunks.

Comes in: the child's current state, its landed parts of the batch, and the values that its keys look for. Goes out: a
`Pool` of whole rows, in the current state's columns, and the few columns of them that keys know of. What can't be
concerned is left out by Arrow; Python meets the rest alone. A row too many does no harm.

Cost: the lake's rows are looked through once for their keys' columns, and read whole where they are concerned.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from menura.change_batch import (
    ABSENT,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP_US,
    GSN,
    POSITION,
    TRANSACTION_ID,
    UNREPRESENTABLE,
    ChangeType,
)

from spark_sink.lake.current_rows import living, match_columns, read_rows
from spark_sink.lake.delta_table import Layout, quoted, scan, schema_of
from spark_sink.lake.foreign_keys import FollowedKey, comparable
from spark_sink.lake.key_bounds import key_bounds
from spark_sink.lake.net_effect import DELETED, KEY_TEXT
from spark_sink.lake.partial_rows import AbsentColumns, row_keys
from spark_sink.lake.schema_change import derive
from spark_sink.lake.steps import fit_current, part_layout
from spark_sink.landed.lake_schema import METADATA_TYPES, fit
from spark_sink.landed.landed_file import LandedPart

#: of a landed row, beside its columns
FACTS = (TRANSACTION_ID, COMMIT_TIMESTAMP_US, POSITION)

Wanted = Sequence[tuple[FollowedKey, list[pa.ChunkedArray]]]


@dataclass(frozen=True, slots=True)
class Columns:
    """The child's columns that keys know of, by the current state's names."""

    #: of the current state, with `KEY_TEXT`
    held: pa.Schema
    layout: Layout
    #: what tells its rows apart
    match: tuple[str, ...]
    #: all that keys know of, the match's first
    known: tuple[str, ...]

    def place(self, name: str) -> int:
        return next(place for place, found in enumerate(self.known) if found.lower() == name.lower())

    @property
    def narrow(self) -> pa.Schema:
        """Of `held`: what is known, and what says more of a row."""
        names = list(dict.fromkeys([*self.known, UNREPRESENTABLE, ABSENT, GSN, KEY_TEXT]))
        return pa.schema([self.held.field(name) for name in names])


def columns_of(held: pa.Schema, layout: Layout, keys: Sequence[FollowedKey], itself: Sequence[FollowedKey]) -> Columns:
    """Raises KeyError where the child has no such column. `itself`: keys that refer to their own table."""
    if KEY_TEXT not in held.names:
        held = held.append(pa.field(KEY_TEXT, pa.string()))
    names = {name.lower(): name for name in held.names}
    match = match_columns(held, layout.key)
    known = [*match]
    known += [names[column.lower()] for key in keys for column in key.columns]
    known += [names[column.lower()] for key in itself for column in key.parent_columns]
    return Columns(held, layout, tuple(match), tuple(dict.fromkeys(known)))


class BaseRows:
    """Rows of the current state, and those of chunks that are to come there."""

    def __init__(self, current: DeltaTable | None, columns: Columns, beside: Sequence[pa.Table]) -> None:
        """`beside`: the known columns of rows that come to be there."""
        self._current = current
        self._columns = columns
        self._beside = [rows.select(columns.known) for rows in beside]
        #: all of them, where they are looked through again and again
        self._kept: pa.Table | None = None

    def keep(self) -> None:
        """Look them up once and remember what keys know of."""
        found = list(self._scan("TRUE"))
        schema = pa.schema([self._columns.held.field(name) for name in self._columns.known])
        self._kept = pa.concat_tables([schema.empty_table(), *found])

    def concerned(self, wanted: Wanted) -> pa.Table:
        """The known columns of those that refer to one of these values, and maybe of some more."""
        nothing = pa.schema([self._columns.held.field(name) for name in self._columns.known]).empty_table()
        scanned = [self._kept] if self._kept is not None else self._scan(self._bounds(wanted))
        found = (rows.filter(refers(rows, wanted)) for rows in (*scanned, *self._beside))
        return pa.concat_tables([nothing, *found])

    def unknown(self, wanted: Wanted, from_gsn: int) -> pa.Table:
        """The known columns of the lake's rows with this number or a higher one that lack columns of these keys."""
        found = [pa.schema([self._columns.held.field(name) for name in self._columns.known]).empty_table()]
        condition = f"{quoted(ABSENT)} IS NOT NULL AND {quoted(GSN)} >= {from_gsn}"
        if self._current is not None and ABSENT in schema_of(self._current).names:
            found += [
                rows.filter(lacks(rows, wanted)).select(found[0].column_names) for rows in self._scan(condition, ABSENT)
            ]
        return pa.concat_tables(found)

    def all_of(self, name: str) -> pa.ChunkedArray:
        """A key's column of all rows."""
        column = actual(self._columns.known, name)
        scanned = [self._kept] if self._kept is not None else self._scan("TRUE")
        found = [rows[column] for rows in (*scanned, *self._beside)]
        type_ = self._columns.held.field(column).type
        return pa.chunked_array([chunk for values in found for chunk in values.chunks], type_)

    def whole(self, keys: pa.Table) -> pa.Table:
        """Those with the identity of one of these rows, in the held columns."""
        nothing = self._columns.held.empty_table()
        if self._current is None or not keys.num_rows:
            return nothing
        there = set(schema_of(self._current).names)
        match = [name for name in self._columns.match if name in there]
        found = read_rows(self._current, match, set(row_keys(keys, match)), 0)
        return derive(fit(found, self._columns.held), self._columns.layout) if found.num_rows else nothing

    def _bounds(self, wanted: Wanted) -> str:
        """A condition that skips files."""
        if self._current is None:
            return "FALSE"
        fields = {found.name: found for found in schema_of(self._current)}
        terms = []
        for key, values in wanted:
            name = actual(self._columns.known, key.columns[0])
            if any(how is not None for how in key.comparisons) or name not in fields:
                return "TRUE"
            if len(values[0]):
                terms.append(f"({key_bounds(pa.table({name: values[0]}), [name]).condition(fields)})")
        return " OR ".join(terms) or "FALSE"

    def _scan(self, condition: str, *more: str) -> Iterator[pa.Table]:
        """`more`: columns beside the known ones."""
        if self._current is None:
            return
        there = set(schema_of(self._current).names)
        wanted = [*self._columns.known, *more]
        names = [name for name in wanted if name in there]
        schema = pa.schema([self._columns.held.field(name) for name in wanted])
        chosen = ", ".join(map(quoted, names))
        rows = f"({condition}) AND {living(schema_of(self._current))}"
        for batch in scan(self._current, f"SELECT {chosen} FROM t WHERE {rows}"):  # noqa: S608  (quoted names)
            yield fit(pa.table(batch), schema)


def refers(rows: pa.Table, wanted: Wanted) -> pa.Array:
    """Of each row: whether it may refer to one of these values by one of the keys."""
    terms = []
    for key, values in wanted:
        sides = [
            pc.is_in(comparable(rows[actual(rows.column_names, name)], how), value.combine_chunks())
            for name, how, value in zip(key.columns, key.comparisons, values, strict=True)
        ]
        terms.append(reduce(pc.and_, sides))
    return pc.fill_null(reduce(pc.or_, terms), False).combine_chunks()


def lacks(rows: pa.Table, wanted: Wanted) -> pa.Array:
    """Of each row: whether it lacks columns of one of the keys that look for values."""
    found = pa.repeat(pa.scalar(False), rows.num_rows)
    if rows[ABSENT].null_count == rows.num_rows:
        return found
    absent = AbsentColumns(rows[ABSENT])
    for key, values in wanted:
        of_columns = [absent.lacks(name) for name in key.columns] if len(values[0]) else []
        found = reduce(pc.or_, (flags for flags in of_columns if flags is not None), found)
    return found


def actual(names: Iterable[str], name: str) -> str:
    return next(found for found in names if found.lower() == name.lower())


class OwnRows:
    """The child's own rows of the batch: changes, and rows of chunks."""

    def __init__(self, parts: Sequence[LandedPart], columns: Columns, above_gsn: int, chunks_after: int) -> None:
        self._columns = columns
        self._above_gsn = above_gsn
        self._changes = [part for part in parts if not part.file.is_range]
        #: those that are not in the lake yet
        self.chunks = [part for part in parts if part.file.is_range and part.file.cut > chunks_after]

    def known(self) -> pa.Table:
        """Of all changes, the known columns and what says more of a row."""
        found = [self._fitted(part, rows, self._columns.narrow) for part in self._changes for rows in part.tables()]
        names = [*found[0].column_names] if found else [*self._columns.narrow.names, CHANGE_TYPE, DELETED]
        empty = pa.schema([*self._columns.narrow, pa.field(CHANGE_TYPE, pa.string()), pa.field(DELETED, pa.bool_())])
        return pa.concat_tables([empty.empty_table().select(names), *found]).sort_by(GSN)

    def whole(self, gsns: pa.Array) -> pa.Table:
        """Changes with these numbers in the held columns, with `_change_type` and `FACTS`."""
        fields = [pa.field(name, METADATA_TYPES[name]) for name in (CHANGE_TYPE, *FACTS)]
        found = [pa.schema([*self._columns.held, *fields]).empty_table()]
        for part in self._changes:
            for rows in part.tables():
                near = rows.filter(pc.is_in(rows[GSN], gsns))
                fitted = fit_current(near, part_layout(part), self._columns.held)
                for name in FACTS:
                    fitted = fitted.append_column(pa.field(name, METADATA_TYPES[name]), near[name])
                found.append(fitted.select(found[0].column_names))
        return pa.concat_tables(found).sort_by(GSN)

    def known_of_chunk(self, part: LandedPart) -> pa.Table:
        """As `known`, of a chunk's rows."""
        empty = pa.schema([self._columns.held.field(name) for name in self._columns.known]).empty_table()
        fitted = (self._fitted(part, rows, self._columns.narrow, is_chunk=True) for rows in part.tables())
        return pa.concat_tables([empty, *(rows.select(empty.column_names) for rows in fitted)])

    def of_chunk(self, part: LandedPart, known: pa.Table, wanted: Wanted) -> pa.Table:
        """A chunk's rows that may be concerned, in the held columns; `known`: what `known_of_chunk` gave."""
        chosen, place = refers(known, wanted), 0
        found = [self._columns.held.empty_table()]
        for rows in part.tables():
            near = rows.filter(chosen.slice(place, rows.num_rows))
            place += rows.num_rows
            if near.num_rows:
                fitted = fit_current(near, part_layout(part), self._columns.held)
                found.append(fitted.select(self._columns.held.names))
        return pa.concat_tables(found)

    def _fitted(self, part: LandedPart, rows: pa.Table, schema: pa.Schema, *, is_chunk: bool = False) -> pa.Table:
        new = rows if is_chunk else rows.filter(pc.field(GSN) > self._above_gsn)
        return fit_current(new, part_layout(part), schema)


def concerned_changes(changes: pa.Table, identities: pa.Table, columns: Columns, near: pa.Array) -> pa.Array:
    """Numbers of own changes that may concern: `near` says so, or of a row that does, also under another key.

    `identities`: rows that concern already. Identities are compared by their first column, which errs on more rows.
    """
    first = columns.match[0]
    firsts = pa.concat_arrays([identities[first].combine_chunks(), pa.nulls(0, identities.schema.field(first).type)])
    gsns = changes[GSN].combine_chunks()
    is_found = near
    while True:
        firsts = pc.unique(pa.concat_arrays([firsts, changes.filter(is_found)[first].combine_chunks()]))
        found = pc.or_(is_found, pc.is_in(changes[first].combine_chunks(), firsts))
        taken = gsns.filter(found)
        beside = pa.concat_arrays([pc.add(taken, 1), pc.subtract(taken, 1)])
        is_update = pc.is_in(
            changes[CHANGE_TYPE].combine_chunks(),
            pa.array([ChangeType.update_preimage.name, ChangeType.update_postimage.name]),
        )
        found = pc.or_(found, pc.and_(is_update, pc.is_in(gsns, beside)))
        if pc.sum(found).as_py() == pc.sum(is_found).as_py():
            return gsns.filter(found)
        is_found = found
