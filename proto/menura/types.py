"""The type mapping: one table from a source's column to Arrow and to the lake.

Used by the agent (which builds Arrow arrays), the lake (which creates tables) and the documentation: `FORMS` is that
table, agent/TYPES.md prints it. A value has one form, whichever way it came: from a row event or from a SELECT.

*Unrepresentable* values: what the column's type can't hold. The typed column is then null and the row's
`_unrepresentable` column holds the value, as a JSON object by column name; NULL has no entry there, so nothing is lost
and no real value stands for another:

- a zero date, a date with a zero part, a year 0: the server's text, ``{"shipped":"0000-00-00"}``;
- text whose bytes are invalid in the column's charset, and bytes of a geometry column that are no geometry: the bytes
  as the server holds them, ``{"note":"0xE4F6"}``.
"""

import re
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """A source's column type, without its parameters."""

    TINYINT = "tinyint"
    SMALLINT = "smallint"
    MEDIUMINT = "mediumint"
    INT = "int"
    BIGINT = "bigint"
    DECIMAL = "decimal"
    FLOAT = "float"
    DOUBLE = "double"
    CHAR = "char"
    VARCHAR = "varchar"
    TEXT = "text"
    BINARY = "binary"
    VARBINARY = "varbinary"
    BLOB = "blob"
    DATE = "date"
    TIME = "time"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    YEAR = "year"
    ENUM = "enum"
    SET = "set"
    BIT = "bit"
    JSON = "json"
    GEOMETRY = "geometry"
    VECTOR = "vector"
    INET4 = "inet4"
    INET6 = "inet6"
    UUID = "uuid"


INTEGER_KINDS = frozenset({Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT, Kind.BIGINT})
BINARY_KINDS = frozenset({Kind.BINARY, Kind.VARBINARY, Kind.BLOB, Kind.GEOMETRY, Kind.VECTOR})
FRACTIONAL_TIME_KINDS = frozenset({Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP})

MAX_DECIMAL128_PRECISION = 38
_LONG_DIGITS = 19


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A source's column type. What a kind does not use stays at its default.

    >>> str(ColumnType(Kind.DECIMAL, precision=10, scale=2, unsigned=True))
    'decimal(10,2) unsigned'
    """

    kind: Kind
    unsigned: bool = False
    #: decimal: digits in all; datetime, timestamp, time: fractional digits 0..6; bit: bits 1..64
    precision: int = 0
    #: decimal: digits after the point
    scale: int = 0
    #: binary(n): n, the length that a value is padded to, in bytes
    length_bytes: int = 0
    #: the server's charset name ("utf8mb4") for text kinds
    charset: str = ""
    #: enum and set: the labels in order; see `invalid_label`
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        name = self.kind.value
        if self.kind is Kind.DECIMAL:
            name += f"({self.precision},{self.scale})"
        elif self.kind is Kind.BIT or (self.kind in FRACTIONAL_TIME_KINDS and self.precision):
            name += f"({self.precision})"
        elif self.kind is Kind.BINARY:
            name += f"({self.length_bytes})"
        elif self.labels:
            name += "(" + ",".join(map(_printed_label, self.labels)) + ")"
        if self.unsigned:
            name += " unsigned"
        if self.charset:
            name += f" charset {self.charset}"
        return name


#: a character of an invalid label is this and its byte
_INVALID_LABEL = 0xDC00


def invalid_label(label: bytes) -> str:
    """An ENUM's or SET's label whose bytes are invalid in its charset, as `ColumnType.labels` holds it.

    Lone surrogates, which no real label has: it prints as 0x and hex digits, without quotes.
    """
    return "".join(chr(_INVALID_LABEL + byte) for byte in label)


def invalid_label_bytes(label: str) -> bytes | None:
    """The bytes of an invalid label; None: it is a real one.

    >>> invalid_label_bytes(invalid_label(b"\\xe4 ")), invalid_label_bytes("real")
    (b'\\xe4 ', None)
    """
    if not label or not all(0 <= ord(character) - _INVALID_LABEL <= 0xFF for character in label):
        return None
    return bytes(ord(character) - _INVALID_LABEL for character in label)


def _printed_label(label: str) -> str:
    raw = invalid_label_bytes(label)
    return "'" + label.replace("'", "''") + "'" if raw is None else f"0x{raw.hex().upper()}"


#: the types that a column can have beside decimal128: the Arrow C data interface's format string, and Arrow's name with
#: what it takes
ARROW_TYPES: dict[str, tuple[str, ...]] = {
    "c": ("int8",),
    "C": ("uint8",),
    "s": ("int16",),
    "S": ("uint16",),
    "i": ("int32",),
    "I": ("uint32",),
    "l": ("int64",),
    "L": ("uint64",),
    "f": ("float32",),
    "g": ("float64",),
    "u": ("utf8",),
    "z": ("binary",),
    "tdD": ("date32",),
    "tsu:": ("timestamp", "us"),
    "tsu:UTC": ("timestamp", "us", "UTC"),
}
_DECIMAL_FORMAT = re.compile(r"d:([1-9]|[12]\d|3[0-8]),(\d|[12]\d|3[0-8])")

_FIXED_FORMATS = {
    Kind.FLOAT: "f",
    Kind.DOUBLE: "g",
    Kind.CHAR: "u",
    Kind.VARCHAR: "u",
    Kind.TEXT: "u",
    Kind.BINARY: "z",
    Kind.VARBINARY: "z",
    Kind.BLOB: "z",
    Kind.DATE: "tdD",
    Kind.TIME: "l",
    Kind.DATETIME: "tsu:",
    Kind.TIMESTAMP: "tsu:UTC",
    Kind.YEAR: "s",
    Kind.ENUM: "u",
    Kind.SET: "u",
    Kind.JSON: "u",
    Kind.GEOMETRY: "z",
    Kind.VECTOR: "z",
    Kind.INET4: "u",
    Kind.INET6: "u",
    Kind.UUID: "u",
}
_SIGNED_FORMATS = {Kind.TINYINT: "c", Kind.SMALLINT: "s", Kind.MEDIUMINT: "i", Kind.INT: "i", Kind.BIGINT: "l"}


def arrow_format(column_type: ColumnType) -> str:
    """The Arrow C data interface's format string of a column, as on the wire and in landing.

    >>> arrow_format(ColumnType(Kind.BIGINT, unsigned=True))
    'L'
    >>> arrow_format(ColumnType(Kind.DECIMAL, precision=65, scale=30))
    'u'
    """
    kind = column_type.kind
    if kind in INTEGER_KINDS:
        signed = _SIGNED_FORMATS[kind]
        return signed.upper() if column_type.unsigned else signed
    if kind is Kind.DECIMAL:
        if column_type.precision > MAX_DECIMAL128_PRECISION:
            return "u"
        return f"d:{column_type.precision},{column_type.scale}"
    if kind is Kind.BIT:
        return "L" if column_type.precision == 64 else "l"
    return _FIXED_FORMATS[kind]


def decimal_digits(format_: str) -> tuple[int, int] | None:
    """Precision and scale of decimal128's format string; None: it is none.

    >>> decimal_digits("d:10,2"), decimal_digits("d:10,12"), decimal_digits("l")
    ((10, 2), None, None)
    """
    found = _DECIMAL_FORMAT.fullmatch(format_)
    if found is None or int(found[2]) > int(found[1]):
        return None
    return int(found[1]), int(found[2])


def lake_format(format_: str) -> str:
    """The lake's type of a landed column, both as Arrow C format strings.

    >>> lake_format("C"), lake_format("L"), lake_format("u")
    ('l', 'd:20,0', 'u')
    """
    if format_ in ("c", "C", "s", "S", "i", "I"):
        return "l"
    return "d:20,0" if format_ == "L" else format_


def wider_format(lake: str, other: str) -> str | None:
    """The smallest of the lake's types that holds the values of both without loss, all as Arrow C format strings.

    `lake` itself where it does; None: there is none.

    >>> wider_format("l", "d:20,0"), wider_format("u", "l"), wider_format("l", "g")
    ('d:20,0', 'u', None)
    """
    if lake == other:
        return lake
    if {lake, other} == {"f", "g"}:
        return "g"
    digits = [_digits(lake), _digits(other)]
    if "u" in (lake, other) and any(digits):
        return "u"
    if digits[0] is None or digits[1] is None:
        return None
    scale = max(digits[0][1], digits[1][1])
    precision = max(digits[0][0], digits[1][0]) + scale
    return f"d:{precision},{scale}" if precision <= MAX_DECIMAL128_PRECISION else "u"


def _digits(format_: str) -> tuple[int, int] | None:
    """Digits before and after the point."""
    if format_ == "l":
        return _LONG_DIGITS, 0
    digits = decimal_digits(format_)
    if digits is None:
        return None
    precision, scale = digits
    return precision - scale, scale


@dataclass(frozen=True, slots=True)
class Form:
    """How values of some source types are represented: a line of agent/TYPES.md."""

    #: as the server's manual writes them
    source: str
    #: one of each that has an Arrow format of its own
    types: tuple[ColumnType, ...]
    remark: str = ""


def _unsigned(kind: Kind) -> ColumnType:
    return ColumnType(kind, unsigned=True)


_SMALL_KINDS = (Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT)
_UNREPRESENTABLE = "see *unrepresentable*"

FORMS = (
    Form("TINYINT, SMALLINT, MEDIUMINT, INT", tuple(map(ColumnType, _SMALL_KINDS)), "wide in the lake from the start"),
    Form("the same, UNSIGNED", tuple(map(_unsigned, _SMALL_KINDS))),
    Form("BIGINT", (ColumnType(Kind.BIGINT),)),
    Form("BIGINT UNSIGNED", (_unsigned(Kind.BIGINT),), "18446744073709551615 stays itself"),
    Form(
        "DECIMAL(p<=38,s)",
        (ColumnType(Kind.DECIMAL, precision=38, scale=10),),
        "also that of before 5.0, logged as text",
    ),
    Form("DECIMAL(p>38,s)", (ColumnType(Kind.DECIMAL, precision=65, scale=30),), "every digit, as printed"),
    Form("FLOAT", (ColumnType(Kind.FLOAT),), "-0.0 stays itself"),
    Form("DOUBLE", (ColumnType(Kind.DOUBLE),), "-0.0 stays itself"),
    Form(
        "CHAR, VARCHAR, TEXT",
        (ColumnType(Kind.CHAR), ColumnType(Kind.VARCHAR), ColumnType(Kind.TEXT)),
        "decoded from the column's charset, as the server converts it; invalid bytes: see *unrepresentable*",
    ),
    Form("BINARY(n)", (ColumnType(Kind.BINARY),), "padded to n bytes, as the server returns it"),
    Form("VARBINARY, BLOB", (ColumnType(Kind.VARBINARY), ColumnType(Kind.BLOB))),
    Form("DATE", (ColumnType(Kind.DATE),), _UNREPRESENTABLE),
    Form("DATETIME(f)", (ColumnType(Kind.DATETIME),), _UNREPRESENTABLE),
    Form("TIMESTAMP(f)", (ColumnType(Kind.TIMESTAMP),), f"an instant, in no time zone's words; {_UNREPRESENTABLE}"),
    Form("TIME(f)", (ColumnType(Kind.TIME),), "signed microseconds; ±838:59:59.999999 fits"),
    Form("YEAR", (ColumnType(Kind.YEAR),), "0000 is 0"),
    Form("ENUM", (ColumnType(Kind.ENUM),), "the label; the error value is ''"),
    Form("SET", (ColumnType(Kind.SET),), "labels joined by ',', as the server prints them; the empty set is ''"),
    Form("BIT(n<64)", (ColumnType(Kind.BIT, precision=1),)),
    Form("BIT(64)", (ColumnType(Kind.BIT, precision=64),)),
    Form("JSON", (ColumnType(Kind.JSON),), "MySQL: the server's own text; MariaDB: as stored"),
    Form(
        "GEOMETRY and its kinds",
        (ColumnType(Kind.GEOMETRY),),
        "EWKB: WKB with the SRID flagged (0x20000000) in the outer type, also SRID 0; axes as the server stores them;"
        " what is no geometry: see *unrepresentable*",
    ),
    Form("VECTOR", (ColumnType(Kind.VECTOR),), "little-endian float32s, as the server returns them"),
    Form("INET4, INET6", (ColumnType(Kind.INET4), ColumnType(Kind.INET6)), "MariaDB; as the server prints them"),
    Form("UUID", (ColumnType(Kind.UUID),), "MariaDB; as the server prints it"),
)
