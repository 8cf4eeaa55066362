"""The types of MySQL and MariaDB, and what each is on its way (`menura.types`).

`FORMS` is the whole table, agent/TYPES.md prints it.
"""

from dataclasses import dataclass
from enum import StrEnum

from menura.types import MAX_DECIMAL128_PRECISION


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
