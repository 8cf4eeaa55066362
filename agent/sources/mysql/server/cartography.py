"""What exists on a server: databases, tables, columns, keys, engine, estimated rows and size.

Comes in: a client connection. Goes out: a card for each table. Five set-based queries whatever the
number of tables, and the definitions of those with ignored columns; rows are streamed, so that 10,000 tables need
little memory.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from menura.v1 import catalog_pb2, config_pb2
from pymysql.connections import Connection
from pymysql.cursors import SSCursor

from agent.sources.mysql.config import MysqlConfig
from agent.sources.mysql.ddl.identifiers import SYSTEM_DATABASES
from agent.sources.mysql.server.connection import Facts
from agent.sources.mysql.server.information_schema import verdicts_on

_TABLES = """
    SELECT table_schema, table_name, engine, table_rows, data_length + index_length, table_collation
    FROM information_schema.tables WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') AND table_schema NOT IN %s
    ORDER BY table_schema, table_name
"""
_COLUMNS = """
    SELECT table_schema, table_name, column_name, column_type, is_nullable = 'YES', character_set_name,
           extra LIKE '%% GENERATED%%'
    FROM information_schema.columns WHERE table_schema NOT IN %s
    ORDER BY table_schema, table_name, ordinal_position
"""
_KEYS = """
    SELECT table_schema, table_name, index_name, non_unique = 0, column_name
    FROM information_schema.statistics WHERE table_schema NOT IN %s
    ORDER BY table_schema, table_name, index_name, seq_in_index
"""

#: shown to who may read the child, on both flavors; what a key does MariaDB shows to none but its owner
_FOREIGN_KEYS = """
    SELECT table_schema, table_name, constraint_name, column_name, referenced_table_schema, referenced_table_name,
           referenced_column_name
    FROM information_schema.key_column_usage WHERE referenced_table_name IS NOT NULL AND table_schema NOT IN %s
    ORDER BY table_schema, table_name, constraint_name, ordinal_position
"""

_NAMES = """
    SELECT COUNT(*), BIT_XOR(CRC32(CONCAT_WS('.', table_schema, table_name)))
    FROM information_schema.tables WHERE table_schema NOT IN %s
"""

Table = tuple[str, str]
#: another one: tables came, went or were renamed
NamesDigest = tuple[int, int]


def cards(connection: "Connection[Any]", source: MysqlConfig, facts: Facts) -> Iterator[catalog_pb2.TableCard]:
    """Of all tables; statements inside `server_errors`."""
    columns = _columns(connection)
    keys = _keys(connection)
    foreign_keys = _foreign_keys(connection)
    verdicts = verdicts_on(connection, source.filter, list(columns), facts)
    for database, table, engine, estimated_rows, size_bytes, collation in _stream(connection, _TABLES):
        verdict = verdicts.get((database, table)) or source.filter.verdict(database, table)
        card = catalog_pb2.TableCard(
            table=config_pb2.TableName(database=database, table=table),
            engine=engine or "",
            estimated_rows=None if estimated_rows is None else int(estimated_rows),
            size_bytes=None if size_bytes is None else int(size_bytes),
            collation=collation or "",
            columns=columns.pop((database, table), []),
            keys=keys.pop((database, table), []),
            foreign_keys=foreign_keys.pop((database, table), []),
            denied=not verdict.allowed,
        )
        for column in card.columns:
            column.ignored = verdict.ignores(column.name)
        yield card


def names_digest(connection: "Connection[Any]") -> NamesDigest:
    """Of the names of all tables, which costs little: no table is opened; inside `server_errors`."""
    ((count, digest),) = _stream(connection, _NAMES)
    return int(count), int(digest)


def head(source: MysqlConfig, facts: Facts) -> catalog_pb2.Cartography:
    return catalog_pb2.Cartography(
        source=source.name,
        flavor=facts.flavor,
        server_version=facts.version,
        server_identity=facts.server_uuid,
        read_at_us=time.time_ns() // 1000,
    )


def _columns(connection: "Connection[Any]") -> dict[Table, list[catalog_pb2.ColumnCard]]:
    columns: dict[Table, list[catalog_pb2.ColumnCard]] = defaultdict(list)
    for database, table, name, column_type, nullable, charset, generated in _stream(connection, _COLUMNS):
        columns[database, table].append(
            catalog_pb2.ColumnCard(
                name=name,
                column_type=column_type.decode() if isinstance(column_type, bytes) else column_type,
                nullable=bool(nullable),
                charset=charset or "",
                generated=bool(generated),
            )
        )
    return columns


def _keys(connection: "Connection[Any]") -> dict[Table, list[catalog_pb2.KeyCard]]:
    keys: dict[Table, list[catalog_pb2.KeyCard]] = defaultdict(list)
    for database, table, name, unique, column in _stream(connection, _KEYS):
        found = keys[database, table]
        if not found or found[-1].name != name:
            found.append(catalog_pb2.KeyCard(name=name, unique=bool(unique)))
        if column is not None:  # a functional key part has none
            found[-1].columns.append(column)
    return keys


def _foreign_keys(connection: "Connection[Any]") -> dict[Table, list[catalog_pb2.ForeignKeyCard]]:
    found: dict[Table, list[catalog_pb2.ForeignKeyCard]] = defaultdict(list)
    for database, table, name, column, above, parent, parent_column in _stream(connection, _FOREIGN_KEYS):
        keys = found[database, table]
        if not keys or keys[-1].name != name:
            keys.append(
                catalog_pb2.ForeignKeyCard(name=name, parent=config_pb2.TableName(database=above, table=parent))
            )
        keys[-1].columns.append(column)
        keys[-1].parent_columns.append(parent_column)
    return found


def _stream(connection: "Connection[Any]", statement: str) -> Iterator[tuple[Any, ...]]:
    with connection.cursor(SSCursor) as cursor:
        cursor.execute(statement, (sorted(SYSTEM_DATABASES),))
        yield from cursor
