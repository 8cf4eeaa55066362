"""The type mapping: one table from a source's column to Arrow and to the lake.

Used by the agent (which builds Arrow arrays), the lake (which creates tables) and the
documentation. A value has one form, whichever way it came.

====================  ======================  ===============  ==================================================
source type           Arrow (wire, landing)   lake (Delta)     remarks
====================  ======================  ===============  ==================================================
tinyint .. int        int8, int16, int32      long             wide from the start: INT to BIGINT changes nothing
same, unsigned        uint8, uint16, uint32   long
bigint                int64                   long
bigint unsigned       uint64                  decimal(20,0)    18446744073709551615 stays itself
decimal(p<=38,s)      decimal128(p,s)         decimal(p,s)
decimal(p>38,s)       utf8                    string           every digit, full scale, as the server prints it
float                 float32                 float
double                float64                 double
char, varchar, text   utf8                    string           decoded from the column's charset
binary(n)             binary                  binary           padded to n bytes, as the server returns it
varbinary, blob       binary                  binary
date                  date32                  date             see *unrepresentable*
datetime(f)           timestamp[us]           timestamp_ntz    see *unrepresentable*
timestamp(f)          timestamp[us, UTC]      timestamp        see *unrepresentable*
time(f)               int64                   long             signed microseconds; +-838:59:59.999999 fits
year                  int16                   long             0000 is 0
enum                  utf8                    string           the label; the error value is ''
set                   utf8                    string           labels joined by ',', as the server prints them
bit(n<64)             int64                   long
bit(64)               uint64                  decimal(20,0)
json                  utf8                    string           MySQL: the server's own text; MariaDB: as stored
====================  ======================  ===============  ==================================================

*Unrepresentable* values: a zero date, a date with a zero part, a year 0. No calendar has them, so the
typed column is null and the row's `_unrepresentable` column holds the server's text, as a JSON object
by column name: ``{"shipped":"0000-00-00"}``. NULL has no entry there; so nothing is lost and no real
value stands for another.
"""

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


INTEGER_KINDS = frozenset({Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT, Kind.BIGINT})
TEXT_KINDS = frozenset({Kind.CHAR, Kind.VARCHAR, Kind.TEXT, Kind.ENUM, Kind.SET})
BINARY_KINDS = frozenset({Kind.BINARY, Kind.VARBINARY, Kind.BLOB})
FRACTIONAL_TIME_KINDS = frozenset({Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP})

MAX_DECIMAL128_PRECISION = 38


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
    #: enum and set: the labels in order
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
            name += "(" + ",".join("'" + label.replace("'", "''") + "'" for label in self.labels) + ")"
        if self.unsigned:
            name += " unsigned"
        if self.charset:
            name += f" charset {self.charset}"
        return name


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


def lake_format(format_: str) -> str:
    """The lake's type of a landed column, both as Arrow C format strings.

    >>> lake_format("C"), lake_format("L"), lake_format("u")
    ('l', 'd:20,0', 'u')
    """
    if format_ in ("c", "C", "s", "S", "i", "I"):
        return "l"
    return "d:20,0" if format_ == "L" else format_
