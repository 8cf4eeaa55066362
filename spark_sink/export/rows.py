"""Rows of a table's two Delta tables as values of Debezium's messages.

Comes in: Arrow rows of a changelog or a current state, with the layout that says the table's columns now. Goes out:
`Row`s, whose values stand as JSON has them, by the source's names of columns, without the sink's own. A column that
the table no longer has, or had with another type, is in those rows that hold a value in it. A value that the log did
not carry is Debezium's placeholder in texts and bytes, else null, and named in `Row.absent`; one that its type can't
hold is null, and its text stands in `Row.unrepresentable`. In a key that text stands for the value, so that keys stay
apart. Pure.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from menura.change_batch import (
    ABSENT,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP_US,
    GSN,
    LANDED_COLUMNS,
    POSITION,
    TRANSACTION_ID,
    UNREPRESENTABLE,
)
from menura.naming import name_before

from spark_sink.export.fields import Field, FieldOf, field_of, plain
from spark_sink.lake.delta_table import Layout
from spark_sink.lake.row_versions import current_versions
from spark_sink.landed.landed_file import OWN_PREFIX

Struct = dict[str, Any]
#: kinds of rows, as those of one number count: what takes away, what puts, what a dump saw behind both
PLACES = ("delete", "update_preimage", "truncate", "insert", "update_postimage", "snapshot")


@dataclass(frozen=True, slots=True)
class Column:
    #: the source's
    name: str
    #: the lake's
    lake: str
    field: Field
    #: the table has it now
    is_live: bool


@dataclass(frozen=True, slots=True)
class Row:
    kind: str
    gsn: int
    transaction_id: int
    committed_us: int
    position: str
    #: None: the table has no key
    key: Struct | None
    values: Struct
    #: lake names of the columns beyond those that the table has now
    former: tuple[str, ...]
    absent: tuple[str, ...]
    unrepresentable: Struct

    @property
    def identity(self) -> str:
        """Equal for rows of one key; of a table without one for equal rows."""
        return json.dumps(self.values if self.key is None else self.key, sort_keys=True, default=repr)


@dataclass(frozen=True, slots=True)
class Shape:
    """A table's columns: those that it has now, in order, then former ones."""

    columns: tuple[Column, ...]
    #: the source's names
    key: tuple[str, ...]
    #: the lake's name; see `menura.row_versions`
    row_end: str = ""

    @classmethod
    def of(cls, held: pa.Schema, layout: Layout, fields_of: FieldOf = field_of) -> "Shape":
        words = dict(zip((name.lower() for name in layout.columns), layout.source_types, strict=False))
        fields = {field.name.lower(): field for field in held}
        own = [name.lower() for name in layout.columns if not name.startswith(OWN_PREFIX)]
        live = [fields[name] for name in own if name in fields]
        ours = (*LANDED_COLUMNS, UNREPRESENTABLE, ABSENT)
        former = [
            field
            for field in held
            if field not in live and field.name not in ours and not field.name.startswith(OWN_PREFIX)
        ]
        columns = [_column(field, words.get(field.name.lower(), ""), fields_of, is_live=True) for field in live]
        columns += [_column(field, "", fields_of, is_live=False) for field in former]
        return cls(tuple(columns), tuple(map(unquote, layout.key)), layout.row_end)

    def fields(self, former: Sequence[str] = ()) -> dict[str, Field]:
        """By the source's names; with these former columns."""
        wanted = [column for column in self.columns if column.is_live or column.lake in former]
        return {column.name: column.field for column in wanted}

    def rows(self, found: pa.Table) -> Iterator[Row]:
        """In their order."""
        if self.row_end and CHANGE_TYPE in found.column_names:
            found = current_versions(found, self.row_end)
        columns = [(column, plain(found[column.lake])) for column in self.columns]
        facts = [_facts(found, name) for name in (CHANGE_TYPE, GSN, TRANSACTION_ID, COMMIT_TIMESTAMP_US, POSITION)]
        told = [_facts(found, name) for name in (ABSENT, UNREPRESENTABLE)]
        for place in range(found.num_rows):
            absent, unrepresentable = (json.loads(of[place]) if of[place] else None for of in told)
            of_row = [(column, values[place]) for column, values in columns]
            yield self._row([of[place] for of in facts], of_row, absent or (), unrepresentable or {})

    def _row(
        self,
        facts: Sequence[Any],
        of_row: Sequence[tuple[Column, Any]],
        absent: Sequence[str],
        unrepresentable: Struct,
    ) -> Row:
        values: Struct = {}
        former = []
        for column, value in of_row:
            if column.is_live and value is None:
                values[column.name] = column.field.unavailable if column.lake in absent else None
            elif value is not None:
                try:
                    values[column.name] = column.field.convert(value)
                except (ValueError, OverflowError):  # e.g. a decimal that is NaN, 300 of what is a bit now
                    values[column.name], unrepresentable = None, {**unrepresentable, column.name: str(value)}
                if not column.is_live:
                    former.append(column.lake)
        key = {name: values.get(name) if values.get(name) is not None else unrepresentable.get(name)
               for name in self.key}  # fmt: skip
        names = tuple(unquote(name) for name in absent)
        kind, gsn, transaction, committed_us, position = facts
        known = (kind or "snapshot", gsn, transaction or 0, committed_us or 0, position or "")
        return Row(*known, key if self.key else None, values, tuple(former), names, unrepresentable)


def _column(field: pa.Field, source_type: str, fields_of: FieldOf, *, is_live: bool) -> Column:
    name = field.name if is_live else name_before(field.name)
    return Column(unquote(name), field.name, fields_of(field.type, source_type), is_live)


def _facts(found: pa.Table, name: str) -> Sequence[Any]:
    return found[name].to_pylist() if name in found.column_names else [None] * found.num_rows
