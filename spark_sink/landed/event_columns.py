"""What an event says of a table's columns, in the lake's terms.

Comes in: a `CutEvent` with columns. Goes out: their `LandedShape`, which columns were renamed, and what rows from
before the event hold in the added ones. Pure. Raises `TableStopped`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from menura.change_batch import ABSENT, UNREPRESENTABLE
from menura.landing import LandedColumn
from menura.naming import lake_column

from spark_sink.errors import EventUnreadable
from spark_sink.landed.default_values import DefaultValue, former_value, nothing, read_literal, unrepresentable
from spark_sink.landed.lake_schema import METADATA_TYPES, format_type
from spark_sink.landed.landed_file import LandedShape, check_names
from spark_sink.work import CutEvent, TableId


@dataclass(frozen=True, slots=True)
class EventColumns:
    shape: LandedShape
    #: the lake's name before, by the lower-case name after
    renamed: Mapping[str, str]
    #: by the lower-case name
    added: Mapping[str, DefaultValue]
    #: the source's names, by the lower-case lake name
    source_names: Mapping[str, str]


def event_columns(table: TableId, seen: CutEvent) -> EventColumns | None:
    """The columns after an event; None where it does not tell them."""
    columns = seen.event.columns
    if not columns:
        return None
    names = tuple(lake_column(column.name) for column in columns)
    own = [pa.field(name, _type_of(table, seen, column)) for name, column in zip(names, columns, strict=True)]
    tail = [pa.field(UNREPRESENTABLE, pa.string()), pa.field(ABSENT, pa.string())]
    schema = pa.schema([*(pa.field(name, type_) for name, type_ in METADATA_TYPES.items()), *own, *tail])
    check_names(table, seen.cut, schema.names)
    row_end = next((name for name, column in zip(names, columns, strict=True) if column.row_end), "")
    keys = sorted((column.key, name) for name, column in zip(names, columns, strict=True) if column.key)
    key = tuple(name for _, name in keys if name != row_end)
    source_types = tuple(column.source_type for column in columns)
    shape = LandedShape(schema, names, key, {}, row_end, source_types=source_types)
    folded = [name.lower() for name in names]
    return EventColumns(
        shape,
        {
            name: lake_column(column.renamed_from)
            for name, column in zip(folded, columns, strict=True)
            if column.renamed_from and lake_column(column.renamed_from).lower() != name
        },
        {
            name: _earlier_value(table, seen, column)
            for name, column in zip(folded, columns, strict=True)
            if column.earlier_rows
        },
        {name: column.name for name, column in zip(folded, columns, strict=True)},
    )


def _type_of(table: TableId, seen: CutEvent, column: LandedColumn) -> pa.DataType:
    try:
        return format_type(column.arrow_format)
    except KeyError as unknown:
        raise EventUnreadable(
            "following a change of the table's definition",
            f"column {column.name} has the type {column.arrow_format}, which this version does not know",
            data="The table stays at its last version; other tables go on",
            remedy="Upgrade the sink to at least the gateway's version, then start it again",
            **table.where(seen.cut),
        ) from unknown


def _earlier_value(table: TableId, seen: CutEvent, column: LandedColumn) -> DefaultValue:
    """Of rows from before the event."""
    type_, text = format_type(column.arrow_format), column.earlier_text
    try:
        match column.earlier_rows:
            case "literal":
                return read_literal(text, type_)
            case "unrepresentable":
                return unrepresentable(text, type_)
            case "text":
                return former_value(text, type_, column.source_type)
            case said:
                return nothing(type_, is_unknown=said != "null")
    except (pa.ArrowException, ValueError) as unreadable:
        raise EventUnreadable(
            "following a change of the table's definition",
            f"what rows from before hold in column {column.name} is no {column.source_type}",
            data="The table stays at its last version; other tables go on",
            remedy=f"Report this as a bug; to go on now, run: {table.resync}",
            **table.where(seen.cut),
        ) from unreadable
