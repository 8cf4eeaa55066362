"""What a result set says of its columns, and whether that is what the table's definition says.

Comes in: the payloads of column definition packets. Goes out: a `ResultColumn`, and in words where it differs. A table
that was altered between the reading of its definition and the SELECT is noticed here.

::

    catalog   schema   table   original table   name   original name: each a length and bytes
    1 length of the rest: 12   2 collation   4 length   1 type   2 flags   1 decimals   2 unused

Source: MySQL's internals, "Column Definition Packet".
"""

import struct
from dataclasses import dataclass

from agent.sources.mysql.columns import Column
from agent.sources.mysql.log import constants
from agent.sources.mysql.log.charsets import CharsetUnknown, charset_of_collation
from agent.sources.mysql.types import INTEGER_KINDS, ColumnType, Kind

_FIXED = struct.Struct("<HIBHB")
_TEXTS = 6
_UNSIGNED_FLAG = 32

_NUMBERED = (constants.MYSQL_TYPE_LONGLONG,)
_TYPES = {
    Kind.TINYINT: (constants.MYSQL_TYPE_TINY,),
    Kind.SMALLINT: (constants.MYSQL_TYPE_SHORT,),
    Kind.MEDIUMINT: (constants.MYSQL_TYPE_INT24,),
    Kind.INT: (constants.MYSQL_TYPE_LONG,),
    Kind.BIGINT: (constants.MYSQL_TYPE_LONGLONG,),
    Kind.DECIMAL: (constants.MYSQL_TYPE_NEWDECIMAL, constants.MYSQL_TYPE_DECIMAL),
    Kind.FLOAT: (constants.MYSQL_TYPE_FLOAT,),
    Kind.DOUBLE: (constants.MYSQL_TYPE_DOUBLE,),
    Kind.CHAR: (constants.MYSQL_TYPE_STRING,),
    Kind.VARCHAR: (constants.MYSQL_TYPE_VAR_STRING,),
    Kind.TEXT: (constants.MYSQL_TYPE_BLOB,),
    Kind.BINARY: (constants.MYSQL_TYPE_STRING,),
    Kind.VARBINARY: (constants.MYSQL_TYPE_VAR_STRING,),
    Kind.BLOB: (constants.MYSQL_TYPE_BLOB,),
    Kind.DATE: (constants.MYSQL_TYPE_DATE,),
    Kind.TIME: (constants.MYSQL_TYPE_TIME,),
    Kind.DATETIME: (constants.MYSQL_TYPE_DATETIME,),
    Kind.TIMESTAMP: (constants.MYSQL_TYPE_TIMESTAMP,),
    Kind.YEAR: _NUMBERED,
    Kind.ENUM: _NUMBERED,
    Kind.SET: _NUMBERED,
    Kind.BIT: (constants.MYSQL_TYPE_BIT,),
    Kind.JSON: (constants.MYSQL_TYPE_JSON, constants.MYSQL_TYPE_BLOB),
    Kind.GEOMETRY: (constants.MYSQL_TYPE_GEOMETRY,),
    Kind.VECTOR: (constants.MYSQL_TYPE_VECTOR, constants.MYSQL_TYPE_VAR_STRING),
    Kind.INET4: (constants.MYSQL_TYPE_STRING,),
    Kind.INET6: (constants.MYSQL_TYPE_STRING,),
    Kind.UUID: (constants.MYSQL_TYPE_STRING,),
}
#: of what comes as a length and bytes, whatever the bytes are
COUNTED_TYPES = frozenset(
    {
        *(constants.MYSQL_TYPE_VARCHAR, constants.MYSQL_TYPE_VAR_STRING, constants.MYSQL_TYPE_STRING),
        *(constants.MYSQL_TYPE_TINY_BLOB, constants.MYSQL_TYPE_BLOB, constants.MYSQL_TYPE_MEDIUM_BLOB),
        constants.MYSQL_TYPE_LONG_BLOB,
    }
)
_BINARY_CHARSET = "binary"
_BINARY_KINDS = (Kind.BINARY, Kind.VARBINARY, Kind.BLOB)


def is_selected_as_text(type_: ColumnType) -> bool:
    """Whether an ENUM or SET is: information_schema shows '?' for what is invalid in the labels' charset, and for what
    utf8mb3 lacks."""
    return type_.charset != _BINARY_CHARSET and any("?" in label for label in type_.labels)


class ResultColumnInvalid(ValueError):
    """A packet that is no definition of a column."""


@dataclass(frozen=True, slots=True)
class ResultColumn:
    collation_id: int
    #: in bytes, digits or bits, by type
    length: int
    type: int
    unsigned: bool
    #: digits after the point, or of a fraction of a second
    decimals: int


def parse_result_column(packet: bytes) -> ResultColumn:
    """Raises `ResultColumnInvalid`.

    >>> parse_result_column(bytes.fromhex("03646566 00 00 00 0161 00 0c 3f00 14000000 08 2000 00 0000"))
    ResultColumn(collation_id=63, length=20, type=8, unsigned=True, decimals=0)
    """
    at = 0
    for _ in range(_TEXTS):
        at = _after_text(packet, at)
    if len(packet) - at < 1 + _FIXED.size or packet[at] < _FIXED.size:
        raise ResultColumnInvalid("a column definition that ends too early")
    collation_id, length, type_, flags, decimals = _FIXED.unpack_from(packet, at + 1)
    return ResultColumn(collation_id, length, type_, bool(flags & _UNSIGNED_FLAG), decimals)


def _after_text(packet: bytes, at: int) -> int:
    """Behind a length and its bytes; names are below 64 KiB."""
    size = packet[at] if at < len(packet) else 0
    begin = at + 1
    if size == 252:
        begin, size = at + 3, int.from_bytes(packet[at + 1 : at + 3], "little")
    elif size > 250:
        raise ResultColumnInvalid("a column definition with a name of an impossible length")
    if begin + size > len(packet):
        raise ResultColumnInvalid("a column definition that ends inside of a name")
    return begin + size


def difference(column: Column, found: ResultColumn, *, mariadb: bool) -> str:
    """How the result differs from the definition; '': not at all."""
    type_ = column.type
    types = (constants.MYSQL_TYPE_STRING,) if is_selected_as_text(type_) else _TYPES[type_.kind]
    if found.type not in types:
        return f"{type_} is of type {found.type} in the result"
    if type_.kind in INTEGER_KINDS and found.unsigned != type_.unsigned:
        return f"{type_} is {'' if found.unsigned else 'not '}unsigned in the result"
    expected, shown = _expected(type_, found)
    if expected != shown:
        return f"{type_} is of {shown} in the result"
    charset = _charset(type_)
    if charset:
        try:
            shown_charset = charset_of_collation(found.collation_id, mariadb=mariadb)
        except CharsetUnknown as unknown:
            return str(unknown)
        if shown_charset != charset:
            return f"{type_} is of charset {shown_charset} in the result"
    return ""


def _expected(type_: ColumnType, found: ResultColumn) -> tuple[str, str]:
    """A size by the definition and by the result, in the same words."""
    if type_.kind is Kind.DECIMAL:
        expected = f"decimal({type_.precision},{type_.scale})"
        digits = found.length - (found.decimals > 0) - (not found.unsigned)
        return expected, f"decimal({digits},{found.decimals})"
    if type_.kind is Kind.BIT:
        return f"{type_.precision} bits", f"{found.length} bits"
    if type_.kind is Kind.BINARY:
        return f"{type_.length_bytes} bytes", f"{found.length} bytes"
    if type_.kind in (Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP):
        return f"{type_.precision} digits", f"{found.decimals} digits"
    return "", ""


def _charset(type_: ColumnType) -> str:
    """What the bytes are in; '': that does not matter."""
    if type_.kind in (Kind.CHAR, Kind.VARCHAR, Kind.TEXT) or is_selected_as_text(type_):
        return "utf8mb3" if type_.charset == "utf8" else type_.charset
    return _BINARY_CHARSET if type_.kind in _BINARY_KINDS else ""
