"""TABLE_MAP events: which table the rows that follow belong to, and what its columns are in the log.

Pure: an event's body in, a frozen `TableMap` out. A body that is too short or contradicts itself raises
`TableMapError`. What the server leaves out at `binlog_row_metadata=MINIMAL` is None. Knows neither files nor
positions; `column_types` says what a column is.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.sources.mysql.log import constants as binlog

MOST_COLUMNS = 4096

_INTEGER_TYPES = frozenset(
    {
        *(binlog.MYSQL_TYPE_TINY, binlog.MYSQL_TYPE_SHORT, binlog.MYSQL_TYPE_INT24, binlog.MYSQL_TYPE_LONG),
        binlog.MYSQL_TYPE_LONGLONG,
    }
)
_LABELLED_TYPES = frozenset({binlog.MYSQL_TYPE_ENUM, binlog.MYSQL_TYPE_SET})

#: columns that have a bit in SIGNEDNESS
_NUMERIC = frozenset(
    {
        *_INTEGER_TYPES,
        *(binlog.MYSQL_TYPE_FLOAT, binlog.MYSQL_TYPE_DOUBLE, binlog.MYSQL_TYPE_NEWDECIMAL, binlog.MYSQL_TYPE_YEAR),
    }
)
#: columns that have a collation in DEFAULT_CHARSET and COLUMN_CHARSET
_CHARACTER = frozenset(
    {
        *(binlog.MYSQL_TYPE_STRING, binlog.MYSQL_TYPE_VARCHAR, binlog.MYSQL_TYPE_VAR_STRING, binlog.MYSQL_TYPE_BLOB),
        *(binlog.MYSQL_TYPE_BLOB_COMPRESSED, binlog.MYSQL_TYPE_VARCHAR_COMPRESSED, binlog.MYSQL_TYPE_VECTOR),
    }
)
#: MariaDB's geometries have one too, which says nothing
_MARIADB_CHARACTER = _CHARACTER | {binlog.MYSQL_TYPE_GEOMETRY}

#: bytes of metadata of a type; none for the others
_METADATA_BYTES = {
    binlog.MYSQL_TYPE_FLOAT: 1,
    binlog.MYSQL_TYPE_DOUBLE: 1,
    binlog.MYSQL_TYPE_BLOB: 1,
    binlog.MYSQL_TYPE_BLOB_COMPRESSED: 1,
    binlog.MYSQL_TYPE_GEOMETRY: 1,
    binlog.MYSQL_TYPE_VECTOR: 1,
    binlog.MYSQL_TYPE_JSON: 1,
    binlog.MYSQL_TYPE_TIME2: 1,
    binlog.MYSQL_TYPE_DATETIME2: 1,
    binlog.MYSQL_TYPE_TIMESTAMP2: 1,
    binlog.MYSQL_TYPE_BIT: 2,
    binlog.MYSQL_TYPE_VARCHAR: 2,
    binlog.MYSQL_TYPE_VAR_STRING: 2,
    binlog.MYSQL_TYPE_VARCHAR_COMPRESSED: 2,
    binlog.MYSQL_TYPE_NEWDECIMAL: 2,
    binlog.MYSQL_TYPE_STRING: 2,
}
#: the real types of a STRING
_STRING_TYPES = _LABELLED_TYPES | {binlog.MYSQL_TYPE_STRING, binlog.MYSQL_TYPE_VAR_STRING}
_WITHOUT_METADATA = frozenset(
    {
        *_INTEGER_TYPES,
        *(binlog.MYSQL_TYPE_NULL, binlog.MYSQL_TYPE_DATE, binlog.MYSQL_TYPE_NEWDATE, binlog.MYSQL_TYPE_YEAR),
        *(binlog.MYSQL_TYPE_TIMESTAMP, binlog.MYSQL_TYPE_DATETIME, binlog.MYSQL_TYPE_TIME, binlog.MYSQL_TYPE_DECIMAL),
    }
)

# optional metadata: Optional_metadata_field_type
_SIGNEDNESS = 1
_DEFAULT_CHARSET = 2
_COLUMN_CHARSET = 3
_COLUMN_NAME = 4
_SET_STR_VALUE = 5
_ENUM_STR_VALUE = 6
_SIMPLE_PRIMARY_KEY = 8
_PRIMARY_KEY_WITH_PREFIX = 9
_ENUM_AND_SET_DEFAULT_CHARSET = 10
_ENUM_AND_SET_COLUMN_CHARSET = 11
_COLUMN_VISIBILITY = 12


class TableMapError(ValueError):
    """The body can't be that of a TABLE_MAP event."""


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """A column as the log has it. None: the server did not say."""

    #: the real type: ENUM and SET are not STRING here
    type: int
    #: fraction digits, bytes of a length, most bytes of a string; decimal: precision + 256 * scale;
    #: bit: bits % 8 + 256 * bytes; ENUM and SET: bytes of a value
    metadata: int
    nullable: bool
    name: str | None = None
    unsigned: bool | None = None
    collation_id: int | None = None
    #: ENUM and SET: in the column's charset
    labels: tuple[bytes, ...] | None = None
    visible: bool | None = None


@dataclass(frozen=True, slots=True)
class TableMap:
    table_id: int
    database: str
    table: str
    columns: tuple[MappedColumn, ...]
    #: (column, characters of its prefix; 0: the whole) in the key's order; None: no key, or the server did not say
    primary_key: tuple[tuple[int, int], ...] | None = None


#: how an optional field is read, and which columns it speaks of (None: all)
_Field = tuple[Callable[["_Reader", int], Iterator[dict[str, Any]]], frozenset[int] | None]


class _Reader:
    """Bytes with a place; every read is checked against what is left."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise TableMapError(f"{len(self._data)} bytes, {size} more expected after {self._at}")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def packed(self) -> int:
        """A length-encoded integer."""
        first = self.number(1)
        if first < 251:
            return first
        if first in (251, 255):
            raise TableMapError(f"{first} where a length was expected")
        return self.number({252: 2, 253: 3, 254: 8}[first])

    def text(self) -> bytes:
        return self.take(self.packed())

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)


def parse_table_map(body: bytes, *, mariadb: bool) -> TableMap:
    """What the event says; raises `TableMapError`, for a column of an unknown type too.

    ::

        6 table id   2 flags   1 length, database, 0   1 length, table, 0
        packed: number of columns   1 type each
        packed: length of the metadata; by type (see _METADATA_BYTES)
        a bit per column, least significant first: may be NULL
        optional: 1 field   packed: its length   its value

    A packed number is one byte below 251, or 252, 253, 254 and 2, 3, 8 bytes.
    Source: libs/mysql/binlog/event/rows_event.h.
    """
    reader = _Reader(body)
    table_id, database, table = _head(reader)
    count = reader.packed()
    if not 0 < count <= MOST_COLUMNS:
        raise TableMapError(f"{count} columns, a table has 1 to {MOST_COLUMNS}")
    types = reader.take(count)
    metadata = _Reader(reader.text())
    described = [_with_metadata(number, type_, metadata) for number, type_ in enumerate(types, 1)]
    if metadata:
        raise TableMapError("more metadata than its columns have")
    nullable = list(_bits(reader.take((count + 7) // 8), count, most_significant_first=False))
    columns = [MappedColumn(type_, meta, null) for (type_, meta), null in zip(described, nullable, strict=True)]
    primary_key = _read_optional(reader, columns, _MARIADB_FIELDS if mariadb else _FIELDS)
    return TableMap(table_id, database, table, tuple(columns), primary_key)


def table_of(body: bytes) -> tuple[int, str, str]:
    """Table id, database and table alone: enough for a table whose rows are not wanted."""
    return _head(_Reader(body))


def _head(reader: _Reader) -> tuple[int, str, str]:
    table_id = reader.number(6)
    reader.number(2)
    names = []
    for _ in range(2):
        names.append(reader.take(reader.number(1)))
        if reader.number(1) != 0:
            raise TableMapError("a name that does not end where it should")
    return table_id, _name(names[0]), _name(names[1])


def _name(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as broken:
        raise TableMapError("a name that is not UTF-8") from broken


def _with_metadata(number: int, type_: int, metadata: _Reader) -> tuple[int, int]:
    """The real type of a column and its metadata as one number.

    STRING: 1 real type, 1 length; bits 4 and 5 of the first byte are inverted bits 8 and 9 of the length.
    VAR_STRING, a VARCHAR of before 5.0.3, is stored as a CHAR and has the same.
    """
    if type_ in _WITHOUT_METADATA:
        return type_, 0
    size = _METADATA_BYTES.get(type_)
    if size is None:
        raise TableMapError(f"column number {number} is of type {type_}, which this version does not know")
    if type_ in (binlog.MYSQL_TYPE_STRING, binlog.MYSQL_TYPE_VAR_STRING):
        first, second = metadata.take(2)
        if first | 0x30 not in _STRING_TYPES:
            raise TableMapError(f"column number {number} is a string of type {first | 0x30}")
        return first | 0x30, second | ((first & 0x30) ^ 0x30) << 4
    return type_, metadata.number(size)


def _bits(data: bytes, count: int, *, most_significant_first: bool) -> Iterator[bool]:
    if len(data) < (count + 7) // 8:
        raise TableMapError(f"{len(data)} bytes for the bits of {count} columns")
    for index in range(count):
        shift = 7 - index % 8 if most_significant_first else index % 8
        yield bool(data[index // 8] >> shift & 1)


def _read_optional(
    reader: _Reader, columns: list[MappedColumn], fields: Mapping[int, _Field]
) -> tuple[tuple[int, int], ...] | None:
    """Fill what the optional fields say into `columns`; returns the primary key. What is not known says nothing."""
    primary_key = None
    while reader:
        field = reader.number(1)
        value = _Reader(reader.text())
        if field in (_SIMPLE_PRIMARY_KEY, _PRIMARY_KEY_WITH_PREFIX):
            primary_key = _key(value, len(columns), has_prefix=field == _PRIMARY_KEY_WITH_PREFIX)
        elif field in fields:
            read, types = fields[field]
            chosen = [index for index, column in enumerate(columns) if types is None or column.type in types]
            for index, facts in zip(chosen, read(value, len(chosen)), strict=True):
                columns[index] = replace(columns[index], **facts)
            if value:
                raise TableMapError(f"optional field {field} says more than its {len(chosen)} columns need")
    return primary_key


def _unsigned(value: _Reader, count: int) -> Iterator[dict[str, Any]]:
    return ({"unsigned": flag} for flag in _bits(value.rest(), count, most_significant_first=True))


def _visible(value: _Reader, count: int) -> Iterator[dict[str, Any]]:
    return ({"visible": flag} for flag in _bits(value.rest(), count, most_significant_first=True))


def _names(value: _Reader, count: int) -> Iterator[dict[str, Any]]:
    return ({"name": _name(value.text())} for _ in range(count))


def _labels(value: _Reader, count: int) -> Iterator[dict[str, Any]]:
    return ({"labels": tuple(value.text() for _ in range(value.packed()))} for _ in range(count))


def _collations(value: _Reader, count: int) -> Iterator[dict[str, Any]]:
    return ({"collation_id": value.packed()} for _ in range(count))


def _default_collations(value: _Reader, count: int) -> Iterator[dict[str, Any]]:
    """packed: collation of most; then pairs of column (counted among the chosen) and its collation"""
    default = value.packed()
    others = {}
    while value:
        place = value.packed()
        others[place] = value.packed()
    if any(place >= count for place in others):
        raise TableMapError("the collation of a column that is not there")
    return ({"collation_id": others.get(place, default)} for place in range(count))


_FIELDS: dict[int, _Field] = {
    _SIGNEDNESS: (_unsigned, _NUMERIC),
    _DEFAULT_CHARSET: (_default_collations, _CHARACTER),
    _COLUMN_CHARSET: (_collations, _CHARACTER),
    _COLUMN_NAME: (_names, None),
    _SET_STR_VALUE: (_labels, frozenset({binlog.MYSQL_TYPE_SET})),
    _ENUM_STR_VALUE: (_labels, frozenset({binlog.MYSQL_TYPE_ENUM})),
    _ENUM_AND_SET_DEFAULT_CHARSET: (_default_collations, _LABELLED_TYPES),
    _ENUM_AND_SET_COLUMN_CHARSET: (_collations, _LABELLED_TYPES),
    _COLUMN_VISIBILITY: (_visible, None),
}
_MARIADB_FIELDS = _FIELDS | {
    _SIGNEDNESS: (_unsigned, _NUMERIC | {binlog.MYSQL_TYPE_DECIMAL}),
    _DEFAULT_CHARSET: (_default_collations, _MARIADB_CHARACTER),
    _COLUMN_CHARSET: (_collations, _MARIADB_CHARACTER),
}


def _key(value: _Reader, count: int, *, has_prefix: bool) -> tuple[tuple[int, int], ...]:
    parts = []
    while value:
        index = value.packed()
        if index >= count:
            raise TableMapError("a primary key over a column that is not there")
        parts.append((index, value.packed() if has_prefix else 0))
    return tuple(parts)
