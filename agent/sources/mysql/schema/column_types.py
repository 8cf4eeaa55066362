"""A column's type: from a table map alone where that is enough, else with the table's definition.

Pure: a `MappedColumn` and perhaps the definition's `ColumnType` in, a `ColumnType` out. Some columns can't be told
from the log even with binlog_row_metadata=FULL (`needs_definition`); whoever plans a table then brings the type
that its definition has at that position.
"""

from collections.abc import Callable

from agent.sources.mysql.ddl import hidden
from agent.sources.mysql.ddl.model import ColumnDefinition
from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.log.charsets import CHARACTER_BYTES, CharsetUnknown, charset_of_collation, decode_text
from agent.sources.mysql.log.table_map import MappedColumn, TableMap
from agent.sources.mysql.types import ColumnType, Kind, invalid_label

BINARY_COLLATION = 63

_INTEGERS = {
    binlog.MYSQL_TYPE_TINY: Kind.TINYINT,
    binlog.MYSQL_TYPE_SHORT: Kind.SMALLINT,
    binlog.MYSQL_TYPE_INT24: Kind.MEDIUMINT,
    binlog.MYSQL_TYPE_LONG: Kind.INT,
    binlog.MYSQL_TYPE_LONGLONG: Kind.BIGINT,
}
_REALS = {binlog.MYSQL_TYPE_FLOAT: Kind.FLOAT, binlog.MYSQL_TYPE_DOUBLE: Kind.DOUBLE}
_FRACTIONAL = {
    binlog.MYSQL_TYPE_TIME2: Kind.TIME,
    binlog.MYSQL_TYPE_DATETIME2: Kind.DATETIME,
    binlog.MYSQL_TYPE_TIMESTAMP2: Kind.TIMESTAMP,
}
#: before MySQL 5.6, and MariaDB's with mysql56_temporal_format=OFF: only MariaDB's have a fraction, and the log does
#: not say of how many digits
_OLD_TEMPORALS = {
    binlog.MYSQL_TYPE_TIME: Kind.TIME,
    binlog.MYSQL_TYPE_DATETIME: Kind.DATETIME,
    binlog.MYSQL_TYPE_TIMESTAMP: Kind.TIMESTAMP,
}
_PLAIN = {
    binlog.MYSQL_TYPE_DATE: Kind.DATE,
    binlog.MYSQL_TYPE_NEWDATE: Kind.DATE,
    binlog.MYSQL_TYPE_YEAR: Kind.YEAR,
    binlog.MYSQL_TYPE_JSON: Kind.JSON,
    binlog.MYSQL_TYPE_GEOMETRY: Kind.GEOMETRY,
    binlog.MYSQL_TYPE_VECTOR: Kind.VECTOR,
}
_STRINGS = {
    binlog.MYSQL_TYPE_STRING: (Kind.CHAR, Kind.BINARY),
    binlog.MYSQL_TYPE_VARCHAR: (Kind.VARCHAR, Kind.VARBINARY),
    binlog.MYSQL_TYPE_VAR_STRING: (Kind.VARCHAR, Kind.VARBINARY),
    binlog.MYSQL_TYPE_VARCHAR_COMPRESSED: (Kind.VARCHAR, Kind.VARBINARY),
    binlog.MYSQL_TYPE_BLOB: (Kind.TEXT, Kind.BLOB),
    binlog.MYSQL_TYPE_BLOB_COMPRESSED: (Kind.TEXT, Kind.BLOB),
}
_LABELLED = {binlog.MYSQL_TYPE_ENUM: Kind.ENUM, binlog.MYSQL_TYPE_SET: Kind.SET}

#: MariaDB's log has these as BINARY of their size
FIXED_BINARY_BYTES = {Kind.INET4: 4, Kind.INET6: 16, Kind.UUID: 16}


class ColumnTypeUnknown(ValueError):
    """A column's type can't be told from the log, or this version has no form for it."""


def needs_definition(column: MappedColumn, *, mariadb: bool) -> bool:
    """Does the log leave open what the column is, so that the table's definition is needed?

    >>> needs_definition(MappedColumn(binlog.MYSQL_TYPE_STRING, 16, True, collation_id=63), mariadb=True)
    True
    """
    if column.name is None or not size_is_logged(column, mariadb=mariadb):
        return True
    return mariadb and (_may_be_fixed_binary(column) or hidden.may_be_hash(column.name))


def may_be_versioned(table_map: TableMap, *, mariadb: bool) -> bool:
    """May it be a table with system versioning, of which only the definition tells which column ends a row?

    Its two columns are TIMESTAMP(6) NOT NULL, and the key, where there is one, ends with the second. Tables whose
    columns have numbers of transactions instead look like too many others.
    """
    ends = {
        place
        for place, column in enumerate(table_map.columns)
        if (column.type, column.metadata, column.nullable) == (binlog.MYSQL_TYPE_TIMESTAMP2, 6, False)
    }
    key = table_map.primary_key
    return mariadb and len(ends) > 1 and (not key or key[-1][0] in ends)


def size_is_logged(column: MappedColumn, *, mariadb: bool) -> bool:
    """Can the column's values be stepped over with what the log says alone?"""
    if column.type == binlog.MYSQL_TYPE_DECIMAL:
        return False
    return not (mariadb and column.type in _OLD_TEMPORALS)


def _may_be_fixed_binary(column: MappedColumn) -> bool:
    is_binary = column.type == binlog.MYSQL_TYPE_STRING and column.collation_id in (BINARY_COLLATION, None)
    return is_binary and column.metadata in FIXED_BINARY_BYTES.values()


def column_type(column: MappedColumn, *, mariadb: bool, fallback: ColumnType | None = None) -> ColumnType:
    """A column's type as the log tells it, else `fallback`, its type by the table's definition.

    The fallback also tells MariaDB's JSON from the LONGTEXT that it is. Raises `ColumnTypeUnknown`.

    >>> str(column_type(MappedColumn(246, 10 + 256 * 2, True, unsigned=False), mariadb=False))
    'decimal(10,2)'
    """
    if fallback is not None and fallback.kind is Kind.JSON and column.type == binlog.MYSQL_TYPE_BLOB:
        return fallback
    for types, tell in _TELLERS:
        if column.type in types:
            told = tell(column, mariadb)
            if told is not None:
                return told
            if fallback is not None and column.unsigned in (None, fallback.unsigned):
                return fallback
            raise ColumnTypeUnknown("the log does not say enough about it, and its definition is not known")
    raise ColumnTypeUnknown("this version has no form for it")


def _tell_number(column: MappedColumn, mariadb: bool) -> ColumnType | None:
    if column.unsigned is None:
        return None
    if column.type == binlog.MYSQL_TYPE_NEWDECIMAL:
        precision, scale = column.metadata & 0xFF, column.metadata >> 8
        return ColumnType(Kind.DECIMAL, unsigned=column.unsigned, precision=precision, scale=scale)
    return ColumnType(_INTEGERS[column.type], unsigned=column.unsigned)


def _tell_real(column: MappedColumn, mariadb: bool) -> ColumnType | None:
    if column.unsigned is None:
        return None
    return ColumnType(_REALS[column.type], unsigned=column.unsigned)


def _tell_time(column: MappedColumn, mariadb: bool) -> ColumnType | None:
    return ColumnType(_FRACTIONAL[column.type], precision=column.metadata)


def _tell_old_time(column: MappedColumn, mariadb: bool) -> ColumnType | None:
    return None if mariadb else ColumnType(_OLD_TEMPORALS[column.type])


def _tell_plain(column: MappedColumn, mariadb: bool) -> ColumnType | None:
    return ColumnType(_PLAIN[column.type])


def _tell_nothing(column: MappedColumn, mariadb: bool) -> ColumnType | None:
    return None


def _tell_bit(column: MappedColumn, mariadb: bool) -> ColumnType | None:
    return ColumnType(Kind.BIT, precision=(column.metadata >> 8) * 8 + (column.metadata & 0xFF))


def _tell_string(column: MappedColumn, mariadb: bool) -> ColumnType | None:
    text, binary = _STRINGS[column.type]
    if column.collation_id is None or (mariadb and _may_be_fixed_binary(column)):
        return None
    if column.collation_id == BINARY_COLLATION:
        return ColumnType(binary, length_bytes=column.metadata if binary is Kind.BINARY else 0)
    return ColumnType(text, charset=_charset(column.collation_id, mariadb))


def most_bytes_of(defined: ColumnDefinition, logged: MappedColumn) -> int:
    """The metadata that the log should have of a CHAR or VARCHAR; of anything else what it has.

    Columns that have changed places without a statement that was seen often differ in nothing but this.
    """
    kind = defined.type.kind
    if not defined.length or logged.type not in (binlog.MYSQL_TYPE_STRING, binlog.MYSQL_TYPE_VARCHAR):
        return logged.metadata
    if kind is Kind.VARBINARY:
        return defined.length
    if kind not in (Kind.CHAR, Kind.VARCHAR):
        return logged.metadata
    return defined.length * CHARACTER_BYTES[defined.type.charset]


def _tell_labelled(column: MappedColumn, mariadb: bool) -> ColumnType | None:
    if column.collation_id is None or column.labels is None:
        return None
    charset = _charset(column.collation_id, mariadb)
    labels = tuple(_label(charset, label) for label in column.labels)
    return ColumnType(_LABELLED[column.type], charset=charset, labels=labels)


def _label(charset: str, label: bytes) -> str:
    try:
        return decode_text(charset, label)
    except UnicodeDecodeError:
        return invalid_label(label)
    except CharsetUnknown as unknown:
        raise ColumnTypeUnknown(str(unknown)) from unknown


def _charset(collation_id: int, mariadb: bool) -> str:
    try:
        return charset_of_collation(collation_id, mariadb=mariadb)
    except CharsetUnknown as unknown:
        raise ColumnTypeUnknown(str(unknown)) from unknown


_TELLERS: tuple[tuple[frozenset[int], Callable[[MappedColumn, bool], ColumnType | None]], ...] = (
    (frozenset({*_INTEGERS, binlog.MYSQL_TYPE_NEWDECIMAL}), _tell_number),
    (frozenset(_REALS), _tell_real),
    (frozenset(_FRACTIONAL), _tell_time),
    (frozenset(_OLD_TEMPORALS), _tell_old_time),
    (frozenset({binlog.MYSQL_TYPE_DECIMAL}), _tell_nothing),
    (frozenset(_PLAIN), _tell_plain),
    (frozenset({binlog.MYSQL_TYPE_BIT}), _tell_bit),
    (frozenset(_STRINGS), _tell_string),
    (frozenset(_LABELLED), _tell_labelled),
)
