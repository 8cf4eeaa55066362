"""Bringing a current state to other columns: what a change of the table's definition makes of the rows that it has.

Comes in: the table and its `Definition` after the change, from an event or from the files that follow. Goes out: the
Delta table with these columns; a commit more only where rows change. What a kill interrupts is done again: a
rewritten table carries the change's `txn`, and a step before it changes nothing that a second time would not.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from deltalake import DeltaTable
from menura.change_batch import ABSENT, GSN, UNREPRESENTABLE
from menura.naming import lake_column

from spark_sink.lake.delta_table import (
    WRITER,
    Layout,
    Transactions,
    add_columns,
    commit_nothing,
    empty,
    is_empty,
    layout_of,
    quoted,
    read_layout,
    rewrite,
    schema_of,
    write_layout,
)
from spark_sink.lake.net_effect import COPY, IS_DELETED, KEY_TEXT, ROW_HASH, key_text, row_hash
from spark_sink.lake.table_options import options_of
from spark_sink.landed.default_values import DefaultValue, nothing
from spark_sink.landed.event_columns import EventColumns
from spark_sink.landed.lake_schema import wider
from spark_sink.landed.landed_file import OWN_PREFIX, LandedShape


@dataclass(frozen=True, slots=True)
class Definition:
    """A table's columns, and what rows from before hold in them."""

    layout: Layout
    #: the current state's columns
    schema: pa.Schema
    #: the lake's name before, by the lower-case name after
    renamed: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, DefaultValue] = field(default_factory=dict)
    #: the source's names, by the lower-case lake name; only of an event
    source_names: Mapping[str, str] = field(default_factory=dict)
    #: whether columns that the source has no more keep their values (`schema_policy`)
    keeps: bool = False
    #: other columns that kept values go to, with the lake's names so far
    aside: Mapping[str, str] = field(default_factory=dict)
    #: whether columns that had kept theirs lose them now
    forgets: bool = False


def event_definition(columns: EventColumns) -> Definition:
    # The schema_id is the agent's digest; the next file brings it.
    layout = layout_of("", columns.shape)
    return Definition(layout, current_schema(columns.shape), columns.renamed, columns.added, columns.source_names)


def current_schema(shape: LandedShape) -> pa.Schema:
    """The current state's columns: the table's own, then the sink's."""
    own = [shape.schema.field(name) for name in shape.columns]
    own += [pa.field(UNREPRESENTABLE, pa.string()), pa.field(ABSENT, pa.string()), pa.field(GSN, pa.int64())]
    if not shape.key:
        return pa.schema([*own, pa.field(ROW_HASH, pa.binary()), pa.field(COPY, pa.int64())])
    has_dates = any(pa.types.is_temporal(shape.schema.field(name).type) for name in shape.key)
    return pa.schema([*own, pa.field(KEY_TEXT, pa.string())] if has_dates else own)


def change_schema(current: DeltaTable, definition: Definition, transactions: Transactions = ()) -> None:
    """Follow a definition; commits `transactions`, if there are any.

    A column of a type that can't hold its earlier values is another column under that name: what rows of before hold
    there is unknown, and named in their `_absent`. Where it is in the key, no later change finds these rows any more:
    they stay until a dump ends, which removes what it has not brought.
    """
    before, held = read_layout(current), schema_of(current)
    definition = _resolved(definition, before, held)
    if IS_DELETED in held.names and _is_rekeyed(before, definition):
        current.delete(f"{quoted(IS_DELETED)} IS TRUE", writer_properties=WRITER)  # by the new key they may be any's
    unknown = retyped(held, definition)
    definition = replace(definition, added={**definition.added, **unknown})
    schema = _changed_schema(held, definition)
    if is_empty(current) and (unknown or transactions) and not definition.keeps:
        # Without rows nothing binds it to what it was, be it a table of that name that was dropped.
        empty(current, options_of(current).schema(definition.schema), transactions)
    elif _changes_rows(before, held, schema, definition):
        change = _Change(schema, definition, before.landed_types, Counter())
        rewrite(current, schema, change.rows, transactions)
    else:
        add_columns(current, schema)
        if transactions:
            commit_nothing(current, transactions)
    write_layout(current, definition.layout)


def _is_rekeyed(before: Layout, definition: Definition) -> bool:
    """Whether other columns tell rows apart now, whatever they are called."""
    former = [definition.renamed.get(name.lower(), name).lower() for name in definition.layout.key]
    return former != [name.lower() for name in before.key]


def add_key_text(current: DeltaTable, layout: Layout) -> None:
    """Give a table the column that tells its unrepresentable keys apart."""
    schema = schema_of(current).append(pa.field(KEY_TEXT, pa.string()))
    rewrite(current, schema, lambda rows: derive(rows.append_column(schema.field(KEY_TEXT), _no_text(rows)), layout))


def derive(rows: pa.Table, layout: Layout) -> pa.Table:
    """Fill the sink's own columns, as far as the table has them."""
    names = rows.column_names
    if not layout.key:
        rows = rows.set_column(names.index(ROW_HASH), ROW_HASH, row_hash(rows, own_columns(rows, layout)))
    elif KEY_TEXT in names:
        text = key_text(rows[UNREPRESENTABLE], list(layout.key))
        rows = rows.set_column(names.index(KEY_TEXT), KEY_TEXT, text)
    return rows


def own_columns(rows: pa.Table, layout: Layout) -> list[str]:
    """The columns that are the source's, and still there."""
    live = {name.lower() for name in layout.columns}
    return [name for name in rows.column_names if name.lower() in live]


def is_own(name: str) -> bool:
    """Whether a current state's column is not the source's."""
    return name in (UNREPRESENTABLE, ABSENT, GSN) or name.startswith(OWN_PREFIX)


def _no_text(rows: pa.Table) -> pa.Array:
    return pa.nulls(rows.num_rows, pa.string())


def _resolved(definition: Definition, before: Layout, held: pa.Schema) -> Definition:
    """A column that was renamed from one that the lake lacks holds what nobody knows.

    So does one that an event takes for an old one and the lake lacks: what a server hides no statement adds by name.
    """
    names = {name.lower() for name in held.names}
    lacking = {name for name, old in definition.renamed.items() if old.lower() not in names}
    told = {*definition.added, *definition.renamed, *(name.lower() for name in before.columns)}
    lacking |= definition.source_names.keys() - told
    if not lacking:
        return definition
    types = {name.lower(): definition.schema.field(name).type for name in definition.layout.columns}
    unknown = {name: nothing(types[name], is_unknown=True) for name in lacking}
    renamed = {name: old for name, old in definition.renamed.items() if name not in lacking}
    return replace(definition, renamed=renamed, added={**definition.added, **unknown})


def retyped(held: pa.Schema, definition: Definition) -> dict[str, DefaultValue]:
    """The columns that can't take their earlier rows' values, as added ones, of which nobody knows what those hold."""
    earlier = {found.name.lower(): found for found in held}
    found_types = {}
    for wanted in definition.schema:
        name = wanted.name.lower()
        source = earlier.get(definition.renamed.get(name, name).lower())
        if source is not None and name not in definition.added and wider(source.type, wanted.type) is None:
            found_types[name] = nothing(wanted.type, is_unknown=True)
    return found_types


def _changed_schema(held: pa.Schema, definition: Definition) -> pa.Schema:
    """The columns held and wanted; of those that stay, a type that holds both's values."""
    earlier = {found.name.lower(): found for found in held}
    fields = dict(earlier)
    for name, former in definition.aside.items():
        fields[name.lower()] = pa.field(name, earlier[former.lower()].type)
    for wanted in definition.schema:
        name = wanted.name.lower()
        source = earlier.get(definition.renamed.get(name, name).lower())
        type_: pa.DataType | None = wanted.type
        if source is not None and name not in definition.added:
            type_ = wider(source.type, wanted.type)
            assert type_ is not None  # else it is among the added ones
        fields[name] = pa.field(earlier[name].name if name in earlier else wanted.name, type_)
    return pa.schema(list(fields.values()))


def _changes_rows(before: Layout, held: pa.Schema, schema: pa.Schema, definition: Definition) -> bool:
    earlier = {name.lower() for name in before.columns}
    live = {name.lower() for name in definition.layout.columns}
    is_filled = any(
        fill.value.is_valid or fill.unrepresentable is not None or fill.is_unknown or name in earlier
        for name, fill in definition.added.items()
    )
    is_widened = any(schema.field(found.name).type != found.type for found in held)
    is_rekeyed = before.key != definition.layout.key
    is_respelt = _respells(before, held, definition.layout)
    # A table without a key knows its rows by the values of those that are live.
    is_shortened = bool(earlier - live) and not (definition.keeps and definition.layout.key)
    is_moved = definition.renamed or definition.aside or definition.forgets
    return bool(is_shortened or is_moved or is_filled or is_widened or is_rekeyed or is_respelt)


def _respells(before: Layout, held: pa.Schema, after: Layout) -> bool:
    """Whether numbers that are text here are written otherwise now: with other digits behind the point."""
    texts = {found.name.lower() for found in held if pa.types.is_string(found.type)}
    types = before.landed_types
    return any(
        name in texts and _is_number(landed) and types.get(name, landed) != landed
        for name, landed in after.landed_types.items()
    )


def _is_number(type_: pa.DataType | None) -> bool:
    return type_ is not None and (pa.types.is_decimal(type_) or pa.types.is_integer(type_))


def _as_text(column: pa.ChunkedArray, number: pa.DataType) -> pa.ChunkedArray:
    """Numbers as they are written in this type; as they are where one is none of it, which a dump brings anew."""
    try:
        return column.cast(number).cast(pa.string())
    except pa.ArrowInvalid:
        return column.cast(pa.string())


@dataclass(frozen=True, slots=True)
class _Change:
    """What becomes of each row."""

    schema: pa.Schema
    definition: Definition
    #: as values landed until then, by the lower-case name
    landed_types: Mapping[str, pa.DataType]
    #: of each row hash, over the whole table
    copies: "Counter[bytes]"

    def rows(self, rows: pa.Table) -> pa.Table:
        """Rows of an earlier definition in the columns of the later one."""
        places = {name.lower(): place for place, name in enumerate(rows.column_names)}
        live = {name.lower() for name in self.definition.layout.columns}
        aside = {name.lower(): former.lower() for name, former in self.definition.aside.items()}
        columns = []
        for wanted in self.schema:
            name = wanted.name.lower()
            place = places.get(self.definition.renamed.get(name, name).lower())
            if name in aside:
                columns.append(rows.column(places[aside[name]]))
            elif name in self.definition.added and name in live:
                columns.append(pa.repeat(self.definition.added[name].value.cast(wanted.type), rows.num_rows))
            elif place is not None and (name in live or is_own(wanted.name) or self.definition.keeps):
                columns.append(self._cast(rows.column(place), rows.column_names[place].lower(), wanted))
            else:
                columns.append(pa.nulls(rows.num_rows, wanted.type))
        changed = pa.Table.from_arrays(columns, schema=self.schema)
        for name, change in ((UNREPRESENTABLE, self._unrepresentable), (ABSENT, self._absent)):
            if name in self.schema.names:
                changed = changed.set_column(changed.column_names.index(name), name, _changed(changed[name], change))
        changed = derive(changed, self.definition.layout)
        return changed if self.definition.layout.key else self._counted(changed)

    def _cast(self, column: pa.ChunkedArray, was: str, wanted: pa.Field) -> pa.ChunkedArray:
        """To a type that holds all of its values; the lake's type of a number may have more digits than the source's.

        What becomes text in the source is the text of the number's type there, and what was text here and is a number
        there is the text that later rows have.
        """
        if pa.types.is_string(wanted.type):
            landed = self.definition.layout.landed_types.get(wanted.name.lower())
            number = landed if _is_number(landed) else self.landed_types.get(was)
            if number is not None and _is_number(number) and (_is_number(landed) or _is_number(column.type)):
                return _as_text(column, number)
        return column.cast(wanted.type)

    def _unrepresentable(self, text: str | None) -> str | None:
        values: dict[str, str] = json.loads(text) if text is not None else {}
        kept = {self._name_after(lake_column(name)): (name, value) for name, value in values.items()}
        names = self.definition.source_names
        aside = {name.lower(): name for name in self.definition.aside}
        after = {
            aside.get(place, names.get(place, name)): value
            for place, (name, value) in kept.items()
            if place is not None
        }
        for place, fill in self.definition.added.items():
            if fill.unrepresentable is not None:
                after[names[place]] = fill.unrepresentable
        return json.dumps(after, ensure_ascii=False, separators=(",", ":")) if after else None

    def _absent(self, text: str | None) -> str | None:
        before: list[str] = json.loads(text) if text is not None else []
        after = {place for name in before if (place := self._name_after(name)) is not None}
        after |= {place for place, fill in self.definition.added.items() if fill.is_unknown}
        names = [found.name for found in self.schema if found.name.lower() in after]
        return json.dumps(names, ensure_ascii=False) if names else None

    def _name_after(self, name: str) -> str | None:
        """The lower-case name that a column of earlier rows has now; None where its values are gone."""
        folded = name.lower()
        for after, before in self.definition.renamed.items():
            if before.lower() == folded:
                return after
        for place, former in self.definition.aside.items():
            if former.lower() == folded:
                return place.lower()
        taken = folded in self.definition.added or folded in self.definition.renamed
        if self.definition.keeps and not taken:
            return folded
        live = {name.lower() for name in self.definition.layout.columns}
        return None if taken or folded not in live else folded

    def _counted(self, rows: pa.Table) -> pa.Table:
        numbers = []
        for row in rows[ROW_HASH].to_pylist():
            numbers.append(self.copies[row])
            self.copies[row] += 1
        return rows.set_column(rows.column_names.index(COPY), COPY, pa.array(numbers, pa.int64()))


def _changed(column: pa.ChunkedArray, change: Callable[[str | None], str | None]) -> pa.Array:
    """Each different document once."""
    coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return pa.array([change(text) for text in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)
