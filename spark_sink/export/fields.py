"""A column of the lake as a field of Debezium's messages: its Kafka Connect type, its semantic type, and its values.

Comes in: the lake's type of a column, and its type in its source's words where the lake knows it. Goes out: a `Field`.
Defaults are those of Debezium's connectors. The table; where nothing else is said, the lake's type alone decides:

============================================  ==========================================================
lake, and source                              field
============================================  ==========================================================
long                                          int64; by its source int16 (tinyint, smallint) or int32
decimal(20,0) of an unsigned bigint           int64; in JSON all digits, also above 9223372036854775807; or Decimal
long, text or decimal(20,0) of bit(n)         boolean (n = 1), else bytes: io.debezium.data.Bits; as many as a
                                              value needs that is of a time when n was larger
long of time                                  int64: io.debezium.time.MicroTime
long of year                                  int32: io.debezium.time.Year
decimal, text of a decimal with a precision   bytes: org.apache.kafka.connect.data.Decimal
text of a decimal without a precision         struct: io.debezium.data.VariableScaleDecimal
float, double                                 float, double; in JSON "NaN", "Infinity" and "-Infinity"
date                                          int32: io.debezium.time.Date
timestamp_ntz of up to 3 digits of a second   int64: io.debezium.time.Timestamp, milliseconds
timestamp_ntz of more, or not known           int64: io.debezium.time.MicroTimestamp
timestamp                                     string: io.debezium.time.ZonedTimestamp, in UTC
binary                                        bytes
binary of a geometry                          struct: io.debezium.data.geometry.Geometry
text of json, xml, uuid, enum, set            string: io.debezium.data.Json, Xml, Uuid, Enum, EnumSet
text                                          string
boolean                                       boolean
============================================  ==========================================================

Bytes are base64 in JSON. `Decimals` says what decimals are instead: a double, or a string with all digits. Avro has
bytes and infinities, but no number above its type: such a value can't be converted (OverflowError), as 300 to a bit;
with `UnsignedBigints.PRECISE` an unsigned bigint is a Decimal.
"""

import base64
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import pyarrow as pa

#: stands for a value of a text or of bytes that the log did not carry
UNAVAILABLE = "__debezium_unavailable_value"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SRID_FLAG = 0x2000_0000
_SOURCE_TYPE = re.compile(r"([^(]*)(?:\((.*)\))?([^)]*)", re.DOTALL)
_DIGITS = re.compile(r"([0-9]{1,4})(?:,(-?[0-9]{1,4}))?")
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_SIGNED = {"tinyint": "int16", "smallint": "int16", "mediumint": "int32", "int": "int32", "integer": "int32"}
_UNSIGNED = {"tinyint": "int16", "smallint": "int32", "mediumint": "int32"}
_TEXTS = {"json": "Json", "jsonb": "Json", "xml": "Xml", "uuid": "Uuid", "enum": "Enum", "set": "EnumSet"}
_DECIMALS = ("decimal", "numeric")
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
#: that a scale has at most; more than any source has
_MOST_PLACES = 2000


#: as `plain` has it
Value = Any


class Decimals(StrEnum):
    """What a decimal becomes; Debezium's decimal.handling.mode."""

    PRECISE = "precise"
    DOUBLE = "double"
    STRING = "string"


class UnsignedBigints(StrEnum):
    """What an unsigned bigint becomes; Debezium's bigint.unsigned.handling.mode."""

    LONG = "long"
    PRECISE = "precise"


@dataclass(frozen=True, slots=True)
class Field:
    #: of Kafka Connect's schemas
    type: str
    #: of a value that is not null, as `plain` has it, what stands in the message; raises ValueError and OverflowError
    #: for what the type can't hold
    convert: Callable[[Value], Any]
    #: the semantic type; '' without one
    name: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    #: of a struct
    fields: tuple[tuple[str, "Field"], ...] = ()
    #: of a value that is not known
    unavailable: str | bytes | None = None

    def schema(self, place: str, *, optional: bool) -> dict[str, Any]:
        """As Kafka Connect's JsonConverter writes it."""
        found: dict[str, Any] = {"type": self.type, "optional": optional}
        if self.fields:
            found["fields"] = [each.schema(name, optional=name == "srid") for name, each in self.fields]
        if self.name:
            found |= {"name": self.name, "version": 1}
        if self.parameters:
            found["parameters"] = dict(self.parameters)
        return {**found, "field": place}


#: of the lake's type, and the source's words for it
FieldOf = Callable[[pa.DataType, str], Field]


def plain(column: pa.ChunkedArray) -> list[Any]:
    """A column's values as `Field.convert` takes them: instants and dates are numbers, float32 its shortest digits."""
    type_ = column.type
    if pa.types.is_timestamp(type_):
        return list(column.cast(pa.int64()).to_pylist())
    if pa.types.is_date32(type_):
        return list(column.cast(pa.int32()).to_pylist())
    return list((column.cast(pa.string()) if pa.types.is_float32(type_) else column).to_pylist())


def field_of(
    type_: pa.DataType,
    source_type: str,
    decimals: Decimals = Decimals.PRECISE,
    bigints: UnsignedBigints = UnsignedBigints.LONG,
) -> Field:
    """With values as JSON has them. `type_`: one of the lake's; `source_type`: '' where it is not known.

    >>> field_of(pa.int64(), "int unsigned").type, field_of(pa.timestamp("us"), "datetime(3)").name
    ('int64', 'io.debezium.time.Timestamp')
    >>> field_of(pa.decimal128(10, 2), "decimal(10,2)").convert(__import__("decimal").Decimal("-1.00"))
    'nA=='
    """
    found = _connect_field(type_, source_type, decimals, bigints)
    convert = found.convert
    if found.type == "bytes":
        unavailable = _base64(found.unavailable) if isinstance(found.unavailable, bytes) else None
        return replace(found, convert=lambda value: _base64(convert(value)), unavailable=unavailable)
    if found.type in ("float", "double"):
        return replace(found, convert=lambda value: _real(convert(value)))
    return replace(found, convert=lambda value: _in_json(convert(value))) if found.fields else found


def avro_field_of(
    type_: pa.DataType,
    source_type: str,
    decimals: Decimals = Decimals.PRECISE,
    bigints: UnsignedBigints = UnsignedBigints.LONG,
) -> Field:
    """The same with values as Avro has them.

    >>> avro_field_of(pa.decimal128(10, 2), "decimal(10,2)").convert(__import__("decimal").Decimal("-1.00"))
    b'\x9c'
    """
    found = _connect_field(type_, source_type, decimals, bigints)
    is_narrow = pa.types.is_decimal(type_) or (pa.types.is_integer(type_) and found.type != "int64")
    if found.convert is not int or not is_narrow:
        return found
    bits = int(found.type.removeprefix("int"))

    def convert(value: Value) -> int:
        number = int(value)
        if not -1 << bits - 1 <= number < 1 << bits - 1:
            raise OverflowError(f"{number.bit_length()} bits")
        return number

    return replace(found, convert=convert)


def _connect_field(type_: pa.DataType, source_type: str, decimals: Decimals, bigints: UnsignedBigints) -> Field:
    """With values as Kafka Connect has them, but a Decimal is its digits."""
    found = _SOURCE_TYPE.fullmatch(source_type)
    word, arguments, rest = (found[1].strip(), found[2] or "", found[3]) if found is not None else ("", "", "")
    name, _, more = word.partition(" ")
    if name == "bit" and not word.endswith("]") and not rest.startswith("["):
        return _bits(type_, 0 if "varying" in more else int(arguments or 1))
    if pa.types.is_integer(type_) or (pa.types.is_decimal(type_) and name in (*_SIGNED, "bigint")):
        if pa.types.is_decimal(type_) and bigints is UnsignedBigints.PRECISE:
            return _decimal(Decimals.PRECISE, type_.precision, type_.scale)
        return _integer(name, is_unsigned="unsigned" in more)
    if pa.types.is_decimal(type_):
        return _decimal(decimals, type_.precision, type_.scale)
    if pa.types.is_string(type_):
        return _text(name, arguments, decimals) if not rest.startswith("[") and "[" not in word else _STRING
    if pa.types.is_binary(type_):
        return _GEOMETRY if name == "geometry" else _BYTES
    if pa.types.is_timestamp(type_):
        return _timestamp(type_.tz is not None, word, arguments, rest)
    return _PLAIN[type_]


def readable(type_: pa.DataType, source_type: str) -> Field:
    """The same for a person: its value is a text.

    >>> readable(pa.int64(), "time").convert(-1_500_000), readable(pa.binary(), "").convert(b"\\x00\\xff")
    ('-00:00:01.5', '0x00ff')
    >>> readable(pa.bool_(), "").convert(True)
    'true'
    """
    if pa.types.is_integer(type_) and re.match(r"time\b", source_type):
        return Field("string", _time_of_day)
    if pa.types.is_timestamp(type_):
        end = "Z" if type_.tz is not None else ""
        return Field("string", lambda value: _instant(value, None).removesuffix("Z") + end)
    if pa.types.is_date32(type_):
        return Field("string", lambda value: (_EPOCH + timedelta(days=value)).date().isoformat())
    if pa.types.is_boolean(type_):
        return Field("string", lambda value: "true" if value else "false")
    return Field("string", (lambda value: f"0x{value.hex()}") if pa.types.is_binary(type_) else str)


def native(type_: pa.DataType, source_type: str) -> Field:
    """The same for Python: its value is one of Python's types, and its `type` the source's.

    >>> native(pa.int64(), "time").convert(-1_500_000), native(pa.date32(), "date").convert(1)
    (datetime.timedelta(days=-1, seconds=86398, microseconds=500000), datetime.date(1970, 1, 2))
    """
    if pa.types.is_integer(type_) and re.match(r"time\b", source_type):
        return Field(source_type, lambda value: timedelta(microseconds=value))
    if pa.types.is_timestamp(type_):
        epoch = _EPOCH if type_.tz is not None else _EPOCH.replace(tzinfo=None)
        return Field(source_type, lambda value: epoch + timedelta(microseconds=value))
    if pa.types.is_date32(type_):
        return Field(source_type, lambda value: (_EPOCH + timedelta(days=value)).date())
    return Field(source_type, float if pa.types.is_float32(type_) else lambda value: value)


def _time_of_day(at_us: int) -> str:
    seconds, microseconds = divmod(abs(at_us), 1_000_000)
    fraction = f".{microseconds:06}".rstrip("0").rstrip(".")
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{'-' if at_us < 0 else ''}{hours:02}:{minutes:02}:{seconds % 60:02}{fraction}"


def _integer(name: str, *, is_unsigned: bool) -> Field:
    if name == "time":
        return Field("int64", int, "io.debezium.time.MicroTime")
    if name == "year":
        return Field("int32", int, "io.debezium.time.Year")
    return Field((_UNSIGNED if is_unsigned else _SIGNED).get(name, "int64"), int)


def _bits(type_: pa.DataType, bits: int) -> Field:
    """`bits` 0: as many as there are."""
    number: Callable[[Any], int] = _of_digits if pa.types.is_string(type_) else int
    if bits == 1:
        return Field("boolean", lambda value: _bit(number(value)))

    def convert(value: Value) -> bytes:
        found = number(value)
        return found.to_bytes((max(bits or len(value), found.bit_length()) + 7) // 8, "little")

    parameters = {"length": str(bits)} if bits else {}
    return Field("bytes", convert, "io.debezium.data.Bits", parameters, unavailable=UNAVAILABLE.encode())


def _bit(number: int) -> bool:
    """Raises OverflowError for what is more than a bit."""
    if number not in (0, 1):
        raise OverflowError(f"{number.bit_length()} bits")
    return number == 1


def _of_digits(text: str) -> int:
    return int(text, 2) if text else 0


def _decimal(decimals: Decimals, precision: int, scale: int) -> Field:
    if decimals is not Decimals.PRECISE:
        return _double_or_text(decimals)
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return Field("bytes", lambda value: _unscaled(f"{value:f}")[0], _DECIMAL, parameters)


def _double_or_text(decimals: Decimals) -> Field:
    is_double = decimals is Decimals.DOUBLE
    return Field("double", float) if is_double else Field("string", lambda value: f"{value}", unavailable=UNAVAILABLE)


def _text(name: str, arguments: str, decimals: Decimals) -> Field:
    if name in _DECIMALS:
        if decimals is not Decimals.PRECISE:
            return _double_or_text(decimals)
        digits = _DIGITS.fullmatch(arguments)
        if digits is None:
            return Field("struct", _of_any_scale, "io.debezium.data.VariableScaleDecimal", {}, _OF_ANY_SCALE)
        scale = int(digits[2] or 0)
        parameters = {"scale": str(scale), "connect.decimal.precision": digits[1]}
        return Field("bytes", lambda value: _of_scale(value, scale), _DECIMAL, parameters)
    if name not in _TEXTS:
        return _STRING
    labels = [label.replace("''", "'") for label in _LABEL.findall(arguments)]
    parameters = {"allowed": ",".join(labels)} if labels else {}
    return Field("string", str, f"io.debezium.data.{_TEXTS[name]}", parameters, unavailable=UNAVAILABLE)


def _timestamp(is_instant: bool, word: str, arguments: str, rest: str) -> Field:
    digits = int(arguments) if arguments.isdigit() else None
    if is_instant:
        # A source that says "with time zone" has as many digits as a value needs, another one those of its column.
        fixed = None if not word or "zone" in f"{word}{rest}" else digits or 0
        return Field("string", lambda value: _instant(value, fixed), "io.debezium.time.ZonedTimestamp")
    if digits is None and word == "datetime":
        digits = 0
    if digits is not None and digits <= 3:
        return Field("int64", lambda value: value // 1000, "io.debezium.time.Timestamp")
    return Field("int64", int, "io.debezium.time.MicroTimestamp")


def _instant(at_us: int, digits: int | None) -> str:
    """`digits` of a second; None: as many as it needs.

    >>> _instant(1_500_000, None), _instant(1_500_000, 3), _instant(-1, 6)
    ('1970-01-01T00:00:01.5Z', '1970-01-01T00:00:01.500Z', '1969-12-31T23:59:59.999999Z')
    """
    found = (_EPOCH + timedelta(microseconds=at_us)).replace(tzinfo=None)
    fraction = f"{found.microsecond:06}"
    fraction = fraction.rstrip("0") if digits is None else fraction[:digits]
    return f"{found.isoformat(timespec='seconds')}{'.' if fraction else ''}{fraction}Z"


def _unscaled(text: str) -> tuple[bytes, int]:
    """A decimal's digits as Java's BigInteger has them, and how many stand after the point.

    Raises ValueError for what has none (NaN).

    >>> [(digits.hex(), scale) for digits, scale in map(_unscaled, ("123.45", "-0.1", "0"))]
    [('3039', 2), ('ff', 1), ('00', 0)]
    """
    whole, _, fraction = text.partition(".")
    return _signed(int(whole + fraction)), len(fraction)


def _of_scale(text: str, scale: int) -> bytes:
    """The digits of a decimal that has so many after the point; with -3 the thousands.

    Raises ValueError for a value that has more.

    >>> _of_scale("1.50", 2).hex(), _of_scale("-12000", -3).hex()
    ('0096', 'f4')
    """
    whole, _, fraction = text.partition(".")
    places = scale - len(fraction)
    if abs(places) > _MOST_PLACES:
        raise ValueError(f"a scale of {scale}")
    number, rest = divmod(int(whole + fraction) * 10 ** max(places, 0), 10 ** max(-places, 0))
    if rest:
        raise ValueError(f"{len(fraction)} digits after the point")
    return _signed(number)


def _signed(number: int) -> bytes:
    size = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def _of_any_scale(text: str) -> dict[str, Any]:
    value, scale = _unscaled(text)
    return {"scale": scale, "value": value}


def _real(number: float) -> float | str:
    """JSON has neither NaN nor infinity."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _in_json(struct: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _base64(value) if isinstance(value, bytes) else value for name, value in struct.items()}


def _geometry(ewkb: bytes) -> dict[str, Any]:
    """The lake's EWKB as WKB and SRID.

    >>> _geometry(bytes.fromhex("0101000020e6100000") + bytes(16))["srid"]
    4326
    """
    order: Any = "little" if ewkb[:1] == b"\x01" else "big"
    kind = int.from_bytes(ewkb[1:5], order)
    if not kind & _SRID_FLAG:
        return {"wkb": ewkb, "srid": None}
    wkb = ewkb[:1] + (kind & ~_SRID_FLAG).to_bytes(4, order) + ewkb[9:]
    return {"wkb": wkb, "srid": int.from_bytes(ewkb[5:9], order)}


_BYTES = Field("bytes", bytes, unavailable=UNAVAILABLE.encode())
_STRING = Field("string", str, unavailable=UNAVAILABLE)
_OF_ANY_SCALE = (("scale", Field("int32", int)), ("value", Field("bytes", bytes)))
_GEOMETRY = Field(
    "struct",
    _geometry,
    "io.debezium.data.geometry.Geometry",
    fields=(("wkb", Field("bytes", bytes)), ("srid", Field("int32", int))),
)
_PLAIN = {
    pa.bool_(): Field("boolean", bool),
    pa.float32(): Field("float", float),
    pa.float64(): Field("double", float),
    pa.date32(): Field("int32", int, "io.debezium.time.Date"),
}
