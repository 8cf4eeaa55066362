"""Definitions of tables as information_schema describes them now.

Comes in: a connection, which is left with its time zone at UTC, and names. Goes out: `TableDefinition`s, or `Column`s.
What it says is only true for the log's rows while no DDL stands between them and now.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from pymysql.connections import Connection

from agent.filter import Filter, Verdict
from agent.sources.mysql.ddl import hidden
from agent.sources.mysql.ddl.charset_texts import is_shown_surely
from agent.sources.mysql.ddl.derived import names_in, unsent
from agent.sources.mysql.ddl.expressions import digest
from agent.sources.mysql.ddl.identifiers import SYSTEM_DATABASES
from agent.sources.mysql.ddl.keys import ENGINES_OF_HASHES
from agent.sources.mysql.ddl.literals import real_text
from agent.sources.mysql.ddl.model import (
    NOT_FIXED,
    NUMBER_KINDS,
    ColumnDefinition,
    Default,
    KeyDefinition,
    Server,
    Table,
    TableDefinition,
    Unsure,
)
from agent.sources.mysql.ddl.types import MOST_BYTES
from agent.sources.mysql.server.connection import Facts, Row, rows
from agent.sources.mysql.server.transaction_precise import has_precise_hidden_period
from agent.sources.mysql.types import BINARY_KINDS, INTEGER_KINDS, ColumnType, Kind

_COLUMNS = """
    SELECT table_schema, table_name, column_name, data_type, column_type, is_nullable = 'YES', character_set_name,
           character_maximum_length, numeric_precision, numeric_scale, datetime_precision, column_default, extra,
           generation_expression, column_key
    FROM information_schema.columns WHERE {where} ORDER BY table_schema, table_name, ordinal_position
"""
_KEYS = """
    SELECT table_schema, table_name, index_name, column_name, sub_part, index_type, non_unique = 0
    FROM information_schema.statistics WHERE (non_unique = 0 OR {all}) AND {where}
    ORDER BY table_schema, table_name, index_name, seq_in_index
"""
_TABLES = """
    SELECT table_schema, table_name, table_type, character_set_name, engine FROM information_schema.tables
    LEFT JOIN information_schema.collation_character_set_applicability ON {collation} = table_collation
    WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED', 'SEQUENCE') AND {where}
"""
_DATABASES = "SELECT schema_name, default_character_set_name FROM information_schema.schemata"
#: MariaDB's collations of any charset stand there with their charset before them
_COLLATION = {False: "collation_name", True: "full_collation_name"}
_NAMES_PER_QUERY = 500
#: of types whose length is their name's: text and blob, and a point in a key
_SIZES = {name.lower(): most_bytes for name, most_bytes in MOST_BYTES.items()} | {"point": 25}

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
#: numeric_precision is one too small for an unsigned decimal of before 5.0
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)", re.IGNORECASE)
#: MySQL's own name
_SHAPES = {"geomcollection": "GEOMETRYCOLLECTION"}
_ELEMENTS = re.compile(r"vector\((\d+)\)", re.IGNORECASE)
_ELEMENT_BYTES = 4
_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_LISTED = re.compile(rf"\w+\({_LABEL.pattern}(?:,{_LABEL.pattern})*\)", re.DOTALL)
_ESCAPE = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPED = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}
_PLAIN_LITERAL = re.compile(r"-?[0-9.]+(?:e[+-]?[0-9]+)?")


class ColumnUnknown(ValueError):
    """A column of a type that has no kind; says which."""


def read_databases(connection: "Connection[Any]") -> dict[str, str]:
    """Each database's default charset."""
    return {str(name): str(charset) for name, charset in rows(connection, _DATABASES)}


def read_definitions(
    connection: "Connection[Any]",
    tables: Iterable[Table] | None,
    server: Server,
    *,
    labels_as_shown: bool = False,
    filter_: Filter | None = None,
) -> dict[Table, TableDefinition | Unsure]:
    """Of those that are there and may be seen; None: all but the server's own.

    Views are none; their columns never stand in the log. Both servers show '?' for a character of a label that utf8mb3
    lacks, and nowhere the label itself: with `labels_as_shown` that is kept, else the table is `Unsure`. A column that
    `filter_` ignores may be of any type: it is shown as a blob, and its values are never read.
    """
    rows(connection, "SET time_zone = '+00:00'")  # MariaDB shows the default of a TIMESTAMP in it
    if tables is None:
        where, hidden_names = "table_schema NOT IN %s", (tuple(sorted(SYSTEM_DATABASES)),)
        return _read(connection, where, hidden_names, server.mariadb, labels_as_shown, filter_)
    found: dict[Table, TableDefinition | Unsure] = {}
    wanted = list(tables)
    for start in range(0, len(wanted), _NAMES_PER_QUERY):
        some = wanted[start : start + _NAMES_PER_QUERY]
        where = " OR ".join(["(table_schema = %s AND table_name = %s)"] * len(some))
        names = [part for table in some for part in table]
        found |= _read(connection, f"({where})", names, server.mariadb, labels_as_shown, filter_)
    return found


def verdicts_on(
    connection: "Connection[Any]", filter_: Filter, tables: Iterable[Table], facts: Facts
) -> dict[Table, Verdict]:
    """The filter's verdicts, with generated columns that are not sent; inside `server_errors`."""
    verdicts = {table: filter_.verdict(*table) for table in tables}
    unlogged = filter_.findings.unlogged
    ignoring = [table for table, verdict in verdicts.items() if verdict.keeps_columns or table in unlogged]
    server = Server(facts.flavor == "mariadb", (0, 0, 0))
    for table, found in read_definitions(connection, ignoring, server, labels_as_shown=True, filter_=filter_).items():
        if isinstance(found, TableDefinition):
            verdicts[table] = unsent(filter_, table, found)
    return verdicts


def _read(
    connection: "Connection[Any]",
    where: str,
    arguments: Sequence[object],
    mariadb: bool,
    labels_as_shown: bool,
    filter_: Filter | None,
) -> dict[Table, TableDefinition | Unsure]:
    columns: dict[Table, list[ColumnDefinition]] = {}
    expressions: dict[Table, dict[str, str]] = {}
    unsure: dict[Table, Unsure] = {}
    period_ends: dict[Table, str] = {}
    with_key: set[Table] = set()
    for row in rows(connection, _COLUMNS.format(where=where), arguments):
        table = (str(row[0]), str(row[1]))
        try:
            columns.setdefault(table, []).append(_column(table, row[2:], mariadb, labels_as_shown, filter_))
        except ColumnUnknown as unknown:
            unsure[table] = Unsure(table, str(unknown))
        expressions.setdefault(table, {})[str(row[2])] = str(row[13] or row[11] or "")
        if str(row[13] or "").upper() == "ROW END":
            period_ends[table] = str(row[2])
        if row[14]:
            with_key.add(table)
    keys: dict[Table, dict[str, list[Row]]] = {}
    for row in rows(connection, _KEYS.format(where=where, all="TRUE" if mariadb else "FALSE"), arguments):
        keys.setdefault((str(row[0]), str(row[1])), {}).setdefault(str(row[2]), []).append(row)
    found: dict[Table, TableDefinition | Unsure] = {}
    for database, name, kind, charset, engine in rows(
        connection, _TABLES.format(where=where, collation=_COLLATION[mariadb]), arguments
    ):
        table = (str(database), str(name))
        has_period = kind == "SYSTEM VERSIONED" and table not in period_ends
        of_table = keys.get(table, {})
        if mariadb and table in with_key and not of_table:  # a MERGE of tables that are not there
            unsure[table] = Unsure(table, "its keys are not shown, as if it could not be opened")
        primary_key = [str(row[3]) for row in of_table.pop("PRIMARY", [])]
        if mariadb:
            in_memory = str(engine).upper() in ENGINES_OF_HASHES
            of_others = tuple(_key(name, key, in_memory) for name, key in of_table.items())
            precise = has_period and has_precise_hidden_period(connection, table)
            more = hidden.period_columns(precise=precise) if has_period else ()
            more += hidden.hash_columns(sum(key.hashed for key in of_others))
        else:
            more, of_others = (), ()
        if has_period and primary_key:
            primary_key.append(hidden.ROW_END)
        found[table] = TableDefinition(
            _with_reads(columns.get(table, ()), expressions.get(table, {})) + more,
            tuple(primary_key),
            str(charset or ""),
            of_others,
            str(engine or "").upper() if mariadb else "",
        )
    return found | {table: why for table, why in unsure.items() if table in found}


def _key(name: str, rows_of_key: list[Row], in_memory: bool) -> KeyDefinition:
    parts = tuple((str(row[3]), int(row[4] or 0)) for row in rows_of_key)
    unique = bool(rows_of_key[0][6])
    return KeyDefinition(name, parts, unique, unique and rows_of_key[0][5] == "HASH" and not in_memory)


def _with_reads(columns: Iterable[ColumnDefinition], expressions: Mapping[str, str]) -> tuple[ColumnDefinition, ...]:
    return tuple(
        replace(column, reads=names_in(expressions[column.name], expressions)) if column.reads_unknown else column
        for column in columns
    )


def _column(table: Table, row: Row, mariadb: bool, labels_as_shown: bool, filter_: Filter | None) -> ColumnDefinition:
    """Raises `ColumnUnknown`."""
    name, default, extra = str(row[0]), row[9], str(row[10]).upper()
    try:
        type_ = _column_type(row, labels_as_shown)
    except ColumnUnknown:
        if filter_ is None or not filter_.verdict(*table).ignores(name):
            raise
        type_ = ColumnType(Kind.BLOB)
    nullable = bool(row[3])
    generated = "GENERATED" in extra.replace("DEFAULT_GENERATED", "")
    kind, text = (Default.NONE, "") if generated else _default(default, type_, extra, mariadb)
    if kind is Default.NONE and nullable and not generated and not mariadb:
        kind = Default.NULL
    is_real = type_.kind in (Kind.FLOAT, Kind.DOUBLE)
    return ColumnDefinition(
        name,
        type_,
        nullable=nullable,
        default=kind,
        default_text=text,
        generated=generated,
        row_end=str(row[11] or "").upper() == "ROW END",
        expression=digest(str(row[11] or "")) if generated else "",
        visible="INVISIBLE" not in extra,
        auto_increment="AUTO_INCREMENT" in extra,
        length=_length(row, type_.kind),
        decimals=None if not is_real else NOT_FIXED if row[7] is None else int(row[7]),
        shape=_SHAPES.get(str(row[1]).lower(), str(row[1]).upper()) if type_.kind is Kind.GEOMETRY else "",
        zerofill="zerofill" in str(row[2]).lower() if type_.kind in NUMBER_KINDS else None,
    )


def _length(row: Row, kind: Kind) -> int:
    """As `ColumnDefinition.length`."""
    if kind in (Kind.CHAR, Kind.VARCHAR, Kind.BINARY, Kind.VARBINARY):
        return int(row[5])
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return 0 if row[7] is None else int(row[6])
    elements = _ELEMENTS.search(str(row[2])) if kind is Kind.VECTOR else None
    return int(elements[1]) * _ELEMENT_BYTES if elements else _SIZES.get(str(row[1]).lower(), 0)


def _default(shown: object, type_: ColumnType, extra: str, mariadb: bool) -> tuple[Default, str]:
    """MySQL shows the value, MariaDB an expression."""
    if shown is None:
        return Default.NONE, ""
    text = str(shown)
    if not mariadb:
        return (Default.EXPRESSION, "") if "DEFAULT_GENERATED" in extra else _literal(text, type_, mariadb)
    if text == "NULL":
        return Default.NULL, ""
    quoted = _LABEL.fullmatch(text)
    if quoted is not None:
        return _literal(_unescaped(quoted[1]), type_, mariadb)
    is_literal = _PLAIN_LITERAL.fullmatch(text) or text.startswith("b'")
    return _literal(text, type_, mariadb) if is_literal else (Default.EXPRESSION, "")


def _literal(text: str, type_: ColumnType, mariadb: bool) -> tuple[Default, str]:
    """As `ColumnDefinition.default_text` has it."""
    kind = type_.kind
    if kind is Kind.BIT:
        return Default.LITERAL, str(int(text.removeprefix("b").strip("'") or "0", 2))
    if kind in BINARY_KINDS or (type_.charset == "binary" and not mariadb):
        return _bytes(text, type_, mariadb)
    if kind is Kind.TIMESTAMP and not mariadb and not text.startswith("0000"):
        return Default.EXPRESSION, ""  # in the time zone of the session that last changed the table
    if kind in INTEGER_KINDS:  # ZEROFILL shows zeros
        return Default.LITERAL, str(int(text))
    if kind is Kind.DECIMAL:
        return Default.LITERAL, f"{Decimal(text):f}"
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return Default.LITERAL, real_text(float(text), kind) or text
    return (Default.LITERAL, text) if is_shown_surely(text, type_.charset or "latin1") else (Default.EXPRESSION, "")


def _bytes(text: str, type_: ColumnType, mariadb: bool) -> tuple[Default, str]:
    """MySQL shows hex up to the first zero byte; MariaDB text, with '?' for what is none."""
    if mariadb or not text.startswith("0x"):
        is_sure = text.isascii() and "?" not in text
        return (Default.LITERAL, text.encode().hex().upper()) if is_sure else (Default.EXPRESSION, "")
    shown = bytes.fromhex(text[2:])
    if type_.labels:
        has_zero = any("\0" in label for label in type_.labels)
        return (Default.EXPRESSION, "") if has_zero else (Default.LITERAL, shown.decode())
    is_whole = len(shown) == type_.length_bytes  # a VARBINARY's length is not in its type
    return (Default.LITERAL, shown.hex().upper()) if is_whole else (Default.EXPRESSION, "")


def _labels(name: str, shown: str, charset: str, as_shown: bool) -> tuple[str, ...]:
    """Raises `ColumnUnknown`."""
    labels = tuple(_unescaped(label) for label in _LABEL.findall(shown))
    # MySQL shows x'E4', MariaDB what the bytes are in UTF-8
    if charset == "binary" and not (shown.isascii() and "?" not in shown and _LISTED.fullmatch(shown)):
        raise ColumnUnknown(f"column {name} has a label of bytes that are no ASCII text")
    if not as_shown and not all(is_shown_surely(label, charset) for label in labels):
        raise ColumnUnknown(f"column {name} has a label with '?', which may stand for another character")
    return labels


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: "'" if found[1] is None else _ESCAPED.get(found[1], found[1]), text)


def _column_type(row: Row, labels_as_shown: bool) -> ColumnType:
    name, data_type, column_type, _, charset, _, precision, _, fraction = row[:9]
    kind = _KINDS.get(str(data_type).lower())
    text = column_type.decode() if isinstance(column_type, bytes) else str(column_type)
    if kind is None:
        raise ColumnUnknown(f"column {name} is of type {data_type}")
    unsigned = " unsigned" in text.lower()
    if kind is Kind.DECIMAL:
        digits = _DECIMAL.match(text)
        if digits is None:
            raise ColumnUnknown(f"column {name} is a decimal without digits: {text}")
        return ColumnType(kind, unsigned, precision=int(digits[1]), scale=int(digits[2]))
    if kind is Kind.BIT:
        return ColumnType(kind, precision=int(precision))
    if kind in (Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP):
        return ColumnType(kind, precision=int(fraction or 0))
    if kind is Kind.BINARY:
        return ColumnType(kind, length_bytes=int(row[5]))
    if kind in (Kind.ENUM, Kind.SET):
        charset = str(charset or "binary")
        return ColumnType(kind, charset=charset, labels=_labels(name, text, charset, labels_as_shown))
    if kind in (Kind.CHAR, Kind.VARCHAR, Kind.TEXT):
        return ColumnType(kind, charset=str(charset))
    return ColumnType(kind, unsigned)
