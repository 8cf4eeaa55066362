"""A table's columns as a search index has them: what each is good for, and its values in JSON and in filters.

Comes in: the lake's types, and types in their source's words. Goes out: a `Definition`, which an index keeps; a row as
JSON, from which each value comes back as it was; a value of a filter as the index has it. The table:

===============================  =====================================================================================
lake                             in the index
===============================  =====================================================================================
text                             its words; the whole text, for equality and facets
integers, bool, float            the value, for equality, ranges and facets
date, timestamp, time of day     the same, as days or microseconds: no digit of a second is lost
decimal of up to 18 digits       the same, as the number of its smallest unit
decimal of more (uint64 too)     its text, and the same number in two parts
binary                           in results alone
===============================  =====================================================================================

A value that its type can't hold is null in the index, and its text is in results. Pure.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import InvalidOperation
from enum import StrEnum
from typing import Any

import pyarrow as pa

from spark_sink.errors import SearchRefused
from spark_sink.export.fields import Field, Value, readable
from spark_sink.export.rows import Shape

#: of a decimal, that a 64-bit number has
NARROW_DIGITS = 18
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"(-?)(\d+):([0-5]\d):([0-5]\d)(?:\.(\d{1,6}))?")
_INT64 = range(-(1 << 63), 1 << 63)


class Kind(StrEnum):
    TEXT = "text"
    INTEGER = "integer"
    DATE = "date"
    TIMESTAMP = "timestamp"
    INSTANT = "instant"
    TIME = "time"
    DECIMAL = "decimal"
    #: of more digits than a 64-bit number has
    WIDE = "wide decimal"
    FLOAT = "float"
    BOOLEAN = "boolean"
    BINARY = "binary"


#: those whose value is one 64-bit number
NUMBERS = frozenset({Kind.INTEGER, Kind.DATE, Kind.TIMESTAMP, Kind.INSTANT, Kind.TIME, Kind.DECIMAL})
_SHOWN: Mapping[Kind, Callable[[Value], str]] = {
    Kind.DATE: readable(pa.date32(), "").convert,
    Kind.TIMESTAMP: readable(pa.timestamp("us"), "").convert,
    Kind.INSTANT: readable(pa.timestamp("us", "UTC"), "").convert,
    Kind.TIME: readable(pa.int64(), "time").convert,
}


@dataclass(frozen=True, slots=True)
class Column:
    #: the source's
    name: str
    kind: Kind
    #: of a decimal
    scale: int = 0

    def shown(self, value: Value) -> Value:
        """Of a value as `field_of` gives it, what stands in results."""
        if value is None or self.kind not in _SHOWN:
            return value
        try:
            return _SHOWN[self.kind](value)
        except OverflowError:  # of a year that Python does not have
            return value

    def indexed(self, value: Value) -> Value:
        """Of such a value, what the index has: an int for `NUMBERS` and wide decimals."""
        if self.kind in (Kind.DECIMAL, Kind.WIDE):
            return unscaled(value, self.scale)
        return float(value) + 0.0 if self.kind is Kind.FLOAT else value  # one zero

    def of_number(self, number: int) -> str:
        """Of what the index has of a decimal, its text.

        >>> Column("price", Kind.DECIMAL, 2).of_number(-5)
        '-0.05'
        """
        digits = str(abs(number)).rjust(self.scale + 1, "0")
        point = len(digits) - self.scale
        return "-" * (number < 0) + digits[:point] + "." * (self.scale > 0) + digits[point:]

    def parse(self, text: str) -> Value:
        """Of a filter's text, what the index has. Raises `SearchRefused`."""
        try:
            return _PARSE[self.kind](text if self.kind is Kind.TEXT else text.strip(), self.scale)
        except (ValueError, OverflowError, InvalidOperation) as wrong:
            raise SearchRefused(
                "reading a filter",
                f"{self.name}: what it is compared with is no {self.kind} of this column",
                remedy=_FORMS.get(self.kind, "Give a value as results show it"),
            ) from wrong


@dataclass(frozen=True, slots=True)
class Definition:
    """What an index is made for; it is built anew for another one."""

    columns: tuple[Column, ...]
    #: the source's names
    key: tuple[str, ...]

    @classmethod
    def of(cls, shape: Shape) -> "Definition":
        """Of a shape with this module's `field_of`."""
        live = [column for column in shape.columns if column.is_live]
        columns = [
            Column(each.name, Kind(each.field.type), int(each.field.parameters.get("scale", 0))) for each in live
        ]
        return cls(tuple(columns), shape.key)

    def column(self, name: str) -> Column:
        """Raises `SearchRefused`."""
        for column in self.columns:
            if column.name == name:
                return column
        raise SearchRefused(
            "reading a search", "it names a column that the table has not", remedy=f"Choose of: {self._names()}"
        )

    def _names(self) -> str:
        names = [column.name for column in self.columns]
        return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")

    def document(self) -> dict[str, Any]:
        return {"columns": [asdict(column) for column in self.columns], "key": list(self.key)}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "Definition":
        columns = [Column(str(each["name"]), Kind(each["kind"]), int(each["scale"])) for each in document["columns"]]
        return cls(tuple(columns), tuple(map(str, document["key"])))


def field_of(type_: pa.DataType, source_type: str) -> Field:
    """The kind, and a value as JSON has it; see `spark_sink.export.fields.FieldOf`.

    >>> from decimal import Decimal
    >>> str(field_of(pa.decimal128(20, 0), "").type), field_of(pa.decimal128(9, 2), "").convert(Decimal("-1.5"))
    ('wide decimal', '-1.5')
    """
    if pa.types.is_decimal(type_):
        kind = Kind.DECIMAL if type_.precision <= NARROW_DIGITS else Kind.WIDE
        return Field(kind, lambda value: f"{value:f}", parameters={"scale": str(type_.scale)})
    if pa.types.is_timestamp(type_):
        return Field(Kind.TIMESTAMP if type_.tz is None else Kind.INSTANT, int)
    if pa.types.is_integer(type_):
        return Field(Kind.TIME if re.match(r"time\b", source_type) else Kind.INTEGER, int)
    if pa.types.is_floating(type_):
        return Field(Kind.FLOAT, _float)
    if pa.types.is_boolean(type_):
        return Field(Kind.BOOLEAN, bool)
    if pa.types.is_date32(type_):
        return Field(Kind.DATE, int)
    if pa.types.is_binary(type_):
        return Field(Kind.BINARY, lambda value: f"0x{value.hex()}")
    return Field(Kind.TEXT, str)


def unscaled(text: str, scale: int) -> int:
    """How many of its smallest unit a decimal is. Raises ValueError for one of smaller parts.

    >>> unscaled("-1.50", 2), unscaled("18446744073709551615", 0)
    (-150, 18446744073709551615)
    """
    if not re.fullmatch(r"[+-]?\d{1,40}(\.\d{1,40})?", text, re.ASCII):
        raise ValueError("no decimal")
    whole, _, fraction = text.partition(".")
    if fraction[scale:].strip("0"):
        raise ValueError("smaller parts")
    return int(whole + fraction[:scale].ljust(scale, "0"))


def _float(value: Value) -> float | str:
    """JSON has neither NaN nor infinity."""
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _integer(text: str, _: int) -> int:
    if not re.fullmatch(r"[+-]?\d{1,20}", text, re.ASCII) or int(text) not in _INT64:
        raise ValueError("no integer")
    return int(text)


def _narrow(text: str, scale: int) -> int:
    found = unscaled(text, scale)
    if found not in _INT64:
        raise ValueError("too large")
    return found


def _wide(text: str, scale: int) -> int:
    found = unscaled(text, scale)
    if abs(found) >= 10**38:
        raise ValueError("too large")
    return found


def _date(text: str, _: int) -> int:
    return date.fromisoformat(text).toordinal() - _EPOCH.toordinal()


def _timestamp(text: str, _: int) -> int:
    found = datetime.fromisoformat(text)
    if found.tzinfo is not None:
        raise ValueError("with a zone")
    return (found.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def _instant(text: str, _: int) -> int:
    found = datetime.fromisoformat(text)
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _time(text: str, _: int) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("no time")
    seconds = int(found[2]) * 3600 + int(found[3]) * 60 + int(found[4])
    at_us = seconds * 1_000_000 + int((found[5] or "0").ljust(6, "0"))
    return -at_us if found[1] else at_us


def _boolean(text: str, _: int) -> bool:
    if text.lower() not in ("true", "1", "false", "0"):
        raise ValueError("no boolean")
    return text.lower() in ("true", "1")


def _binary(_text: str, _: int) -> Value:
    raise ValueError("not indexed")


_PARSE: Mapping[Kind, Callable[[str, int], Value]] = {
    Kind.TEXT: lambda text, _: text,
    Kind.INTEGER: _integer,
    Kind.DATE: _date,
    Kind.TIMESTAMP: _timestamp,
    Kind.INSTANT: _instant,
    Kind.TIME: _time,
    Kind.DECIMAL: _narrow,
    Kind.WIDE: _wide,
    Kind.FLOAT: lambda text, _: float(text) + 0.0,
    Kind.BOOLEAN: _boolean,
    Kind.BINARY: _binary,
}
_FORMS = {
    Kind.DATE: "Give e.g. 2026-11-27",
    Kind.TIMESTAMP: "Give e.g. '2026-11-27T08:30:00.5', without a zone",
    Kind.INSTANT: "Give e.g. '2026-11-27T08:30:00.5Z'; without a zone it is UTC",
    Kind.TIME: "Give e.g. 08:30:00.5",
    Kind.DECIMAL: "Give a number with no more digits after the point than the column has",
    Kind.WIDE: "Give a number with no more digits after the point than the column has",
    Kind.BOOLEAN: "Give true or false",
    Kind.BINARY: "Binary columns are in results alone; filter by another one",
}
