"""A table's columns as information_schema describes them now: for servers whose table maps don't say it.

Comes in: a connection and a table's name. Goes out: `Column`s. What it says is only true for the log's rows
while no DDL stands between them and now; `schema` checks each table map against it.
"""

import re
from typing import Any

from menura.schema import Column
from menura.types import ColumnType, Kind
from pymysql.connections import Connection

from agent.mysql.connection import rows

_COLUMNS = """
    SELECT column_name, data_type, column_type, is_nullable = 'YES', character_set_name, character_octet_length,
           numeric_precision, numeric_scale, datetime_precision
    FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""
_KEY = """
    SELECT column_name, seq_in_index FROM information_schema.statistics
    WHERE table_schema = %s AND table_name = %s AND index_name = 'PRIMARY'
"""

_KINDS = {
    "tinyint": Kind.TINYINT,
    "smallint": Kind.SMALLINT,
    "mediumint": Kind.MEDIUMINT,
    "int": Kind.INT,
    "bigint": Kind.BIGINT,
    "decimal": Kind.DECIMAL,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "char": Kind.CHAR,
    "varchar": Kind.VARCHAR,
    "tinytext": Kind.TEXT,
    "text": Kind.TEXT,
    "mediumtext": Kind.TEXT,
    "longtext": Kind.TEXT,
    "binary": Kind.BINARY,
    "varbinary": Kind.VARBINARY,
    "tinyblob": Kind.BLOB,
    "blob": Kind.BLOB,
    "mediumblob": Kind.BLOB,
    "longblob": Kind.BLOB,
    "date": Kind.DATE,
    "time": Kind.TIME,
    "datetime": Kind.DATETIME,
    "timestamp": Kind.TIMESTAMP,
    "year": Kind.YEAR,
    "enum": Kind.ENUM,
    "set": Kind.SET,
    "bit": Kind.BIT,
    "json": Kind.JSON,
    "geometry": Kind.GEOMETRY,
    "point": Kind.GEOMETRY,
    "linestring": Kind.GEOMETRY,
    "polygon": Kind.GEOMETRY,
    "multipoint": Kind.GEOMETRY,
    "multilinestring": Kind.GEOMETRY,
    "multipolygon": Kind.GEOMETRY,
    "geomcollection": Kind.GEOMETRY,
    "geometrycollection": Kind.GEOMETRY,
    "vector": Kind.VECTOR,
    "inet4": Kind.INET4,
    "inet6": Kind.INET6,
    "uuid": Kind.UUID,
}
_LABEL = re.compile(r"'((?:[^']|'')*)'")


class ColumnUnknown(ValueError):
    """A column of a type that has no kind; says which."""


def read_columns(connection: "Connection[Any]", database: str, table: str) -> tuple[Column, ...]:
    """The columns in their order, empty when the table is not there (or not shown); raises `ColumnUnknown`."""
    key = {str(name): int(place) for name, place in rows(connection, _KEY, (database, table))}
    return tuple(
        Column(str(row[0]), _column_type(row), nullable=bool(row[3]), key=key.get(str(row[0]), 0))
        for row in rows(connection, _COLUMNS, (database, table))
    )


def _column_type(row: tuple[Any, ...]) -> ColumnType:
    name, data_type, column_type, _, charset, octets, precision, scale, fraction = row
    kind = _KINDS.get(str(data_type).lower())
    text = column_type.decode() if isinstance(column_type, bytes) else str(column_type)
    if kind is None:
        raise ColumnUnknown(f"column {name} is of type {data_type}")
    unsigned = " unsigned" in text.lower()
    if kind is Kind.DECIMAL:
        return ColumnType(kind, unsigned, precision=int(precision), scale=int(scale))
    if kind is Kind.BIT:
        return ColumnType(kind, precision=int(precision))
    if kind in (Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP):
        return ColumnType(kind, precision=int(fraction or 0))
    if kind is Kind.BINARY:
        return ColumnType(kind, length_bytes=int(octets))
    if kind in (Kind.ENUM, Kind.SET):
        labels = tuple(label.replace("''", "'") for label in _LABEL.findall(text))
        return ColumnType(kind, charset=str(charset), labels=labels)
    if kind in (Kind.CHAR, Kind.VARCHAR, Kind.TEXT):
        return ColumnType(kind, charset=str(charset))
    return ColumnType(kind, unsigned)
