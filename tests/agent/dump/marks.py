"""A reading connection of a server with its watermarks, and the tables that it reads."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from pymysql.connections import Connection

from agent.config_entries import Secret
from agent.sources.mysql.config import ServerConfig
from agent.sources.mysql.server.connection import connect, facts_of
from agent.sources.mysql.server.server_log import natural_position_kind
from agent.sources.mysql.snapshot.server import DumpServer, LogServer, is_same_server
from agent.sources.mysql.snapshot.snapshots import SelectPositions, select_positions
from agent.sources.mysql.snapshot.statements import prepare
from tests.servers import Server

TABLE = ("d", "t")
DEADLINE_SECONDS = 300.0


@contextmanager
def marks_on(
    running: Server, *, log: Server | None = None, user: str = ""
) -> Iterator[tuple[Connection, SelectPositions]]:
    """A reading connection; the stream reads the log of `log`."""
    config = ServerConfig(running.host, user or running.user, running.port, Secret("x" if user else running.password))
    with closing(connect(config, "shop")) as connection:
        facts = facts_of(connection, "shop")
        prepare(connection, facts)
        with closing((log or running).connect()) as of_log:
            same = is_same_server(connection, of_log, facts)
        of_streamed = ServerConfig((log or running).host, "root", (log or running).port, Secret(running.password))
        streamed = LogServer(of_streamed, "shop", lambda: connect(of_streamed, "shop"))
        positions = natural_position_kind(facts)
        found = DumpServer(config, "shop", facts, positions, same, lambda: connect(config, "shop"), streamed)
        with closing(streamed):
            yield connection, select_positions(connection, found)


def ask(connection: Connection, statement: str) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def seen(connection: Connection, table: str = "d.t") -> set[int]:
    return {int(str(row[0])) for row in ask(connection, f"SELECT n FROM {table}")}


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def make_tables(running: Server) -> None:
    running.run(
        "CREATE DATABASE IF NOT EXISTS d",
        "DROP TABLE IF EXISTS d.t",
        "CREATE TABLE d.t (n INT PRIMARY KEY)",
        "DROP TABLE IF EXISTS d.other",
        "CREATE TABLE d.other (n INT PRIMARY KEY)",
        "INSERT INTO d.t VALUES (1)",
    )
