"""What an event says of a table's columns, in the lake's terms.

Comes in: a `CutEvent` with columns. Goes out: their `LandedShape`, which columns were renamed, and what rows from
before the event hold in the added ones. Pure. Raises `TableStopped`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from menura.change_batch import ABSENT, UNREPRESENTABLE
from menura.landing import LandedColumn
from menura.naming import lake_column

from spark_sink.errors import EventUnreadable
from spark_sink.lake_schema import METADATA_TYPES, format_type
from spark_sink.landed_file import LandedShape, check_names
from spark_sink.work import CutEvent, TableId

_DATE = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?")
_TIME = re.compile(r"(-?)(\d{1,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")


@dataclass(frozen=True, slots=True)
class Fill:
    """What rows from before hold in an added column."""

    value: pa.Scalar
    #: the server's text, where the value is one that the column's type can't hold
    unrepresentable: str | None = None
    is_unknown: bool = False


@dataclass(frozen=True, slots=True)
class EventColumns:
    shape: LandedShape
    #: the lake's name before, by the casefolded name after
    renamed: Mapping[str, str]
    #: by the casefolded name
    added: Mapping[str, Fill]
    #: the source's names, by the casefolded lake name
    source_names: Mapping[str, str]


def event_columns(table: TableId, seen: CutEvent) -> EventColumns | None:
    """The columns after an event; None where it does not tell them."""
    columns = seen.event.columns
    if not columns:
        return None
    names = tuple(lake_column(column.name) for column in columns)
    own = [pa.field(name, format_type(column.arrow_format)) for name, column in zip(names, columns, strict=True)]
    tail = [pa.field(UNREPRESENTABLE, pa.string()), pa.field(ABSENT, pa.string())]
    schema = pa.schema([*(pa.field(name, type_) for name, type_ in METADATA_TYPES.items()), *own, *tail])
    check_names(table, seen.cut, schema.names)
    keys = sorted((column.key, name) for name, column in zip(names, columns, strict=True) if column.key)
    shape = LandedShape(schema, names, tuple(name for _, name in keys))
    folded = [name.casefold() for name in names]
    return EventColumns(
        shape,
        {
            name: lake_column(column.renamed_from)
            for name, column in zip(folded, columns, strict=True)
            if column.renamed_from and lake_column(column.renamed_from).casefold() != name
        },
        {name: _fill(table, seen, column) for name, column in zip(folded, columns, strict=True) if column.earlier_rows},
        {name: column.name for name, column in zip(folded, columns, strict=True)},
    )


def _fill(table: TableId, seen: CutEvent, column: LandedColumn) -> Fill:
    type_ = format_type(column.arrow_format)
    nothing = pa.scalar(None, type_)
    if column.earlier_rows != "text":
        return Fill(nothing, is_unknown=column.earlier_rows != "null")
    text = column.earlier_text
    try:
        if pa.types.is_temporal(type_):
            return _fill_date(text, type_)
        return Fill(read_value(text, type_, column.source_type))
    except (pa.ArrowException, ValueError) as unreadable:
        raise EventUnreadable(
            "following a change of the table's definition",
            f"what rows from before hold in column {column.name} is no {column.source_type}",
            data="The table stays at its last version; other tables go on",
            remedy="Report this as a bug; to go on now, move the table's folder in the lake away and sync it anew",
            **table.where(seen.cut),
        ) from unreadable


def _fill_date(text: str, type_: pa.DataType) -> Fill:
    """A date, or what looks like one and is in no calendar."""
    if _DATE.fullmatch(text) is None:
        raise ValueError("no date")
    try:
        if not text.startswith("0000"):
            return Fill(read_value(text, type_, ""))
    except pa.ArrowInvalid:
        pass  # a zero part, a 30th of February: kept as the server's text
    return Fill(pa.scalar(None, type_), unrepresentable=text)


def read_value(text: str, type_: pa.DataType, source_type: str) -> pa.Scalar:
    """A value from the server's text: binary as UTF-8, BIT as its digits, an instant in UTC.

    Raises ArrowInvalid or ValueError. Whole numbers of microseconds stand for a TIME:

    >>> read_value("-00:00:01.5", pa.int64(), "time(1)")
    <pyarrow.Int64Scalar: -1500000>
    """
    if re.match(r"time\b", source_type):
        return pa.scalar(_time_us(text), type_)
    if pa.types.is_binary(type_):
        return pa.scalar(text.encode(), type_)
    if pa.types.is_timestamp(type_):
        return pa.scalar(text).cast(pa.timestamp("us")).cast(type_)
    return pa.scalar(text).cast(type_)


def _time_us(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("no time")
    sign, hours, minutes, seconds, fraction = found.groups()
    value = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return -value if sign else value
