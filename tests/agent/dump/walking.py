"""A table walked by chunks as a worker does it, for the tests of keys, statements and ranges."""

from collections.abc import Iterable
from contextlib import closing

import pymysql

from agent.filter import Verdict
from agent.sources.mysql.ddl.model import Server as DefinitionServer
from agent.sources.mysql.ddl.model import TableDefinition
from agent.sources.mysql.server.connection import facts_of
from agent.sources.mysql.server.information_schema import read_definitions
from agent.sources.mysql.server.quoting import quoted
from agent.sources.mysql.snapshot.keys import Key, keys_of
from agent.sources.mysql.snapshot.statements import bound_of, chunk_statement, prepare
from tests.servers import Server

DATABASE = "d"
ALL = Verdict(allowed=True)


def reading_session(server: Server) -> pymysql.connections.Connection:
    connection = server.connect()
    prepare(connection, facts_of(connection, "shop"))
    return connection


def definition_of(server: Server, table: str) -> TableDefinition:
    with closing(server.connect()) as connection:
        asked = DefinitionServer(server.flavor == "mariadb", (0, 0, 0))
        found = read_definitions(connection, [(DATABASE, table)], asked)[DATABASE, table]
    assert isinstance(found, TableDefinition), found
    return found


def key_of(server: Server, table: str, verdict: Verdict = ALL) -> Key | None:
    """The best one."""
    definition = definition_of(server, table)
    with closing(reading_session(server)) as connection:
        return next(iter(keys_of(connection, (DATABASE, table), definition, verdict)), None)


def walk(
    connection: pymysql.connections.Connection, table: str, key: Key, size: int, lower: str = "", upper: str = ""
) -> list[int]:
    """The column `n` of all rows between, read by chunks of `size`."""
    found: list[int] = []
    with connection.cursor() as cursor:
        while True:
            cursor.execute(chunk_statement((DATABASE, table), ["n"], key, lower, upper, size))
            chunk = cursor.fetchall()
            found += [int(row[0]) for row in chunk]
            if len(chunk) < size:
                return found
            lower = bound_of(key, texts_of(chunk[-1][1:]))


def texts_of(hidden: Iterable[bytes | str]) -> list[bytes]:
    """A row's hidden columns as the compiled reader gives them."""
    return [text if isinstance(text, bytes) else text.encode() for text in hidden]


def index_order(connection: pymysql.connections.Connection, table: str, key: Key) -> list[int]:
    order = ", ".join(f"`{column.name}`{' DESC' * column.descending}" for column in key.columns)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT n FROM {quoted((DATABASE, table))} FORCE INDEX (`{key.index}`) ORDER BY {order}")
        return [int(row[0]) for row in cursor.fetchall()]
