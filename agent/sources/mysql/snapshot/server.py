"""The server that a source's rows are read from, and how it stands to the one whose log is streamed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection

from agent.sources.mysql.config import ServerConfig
from agent.sources.mysql.positions import BinlogPositionKind
from agent.sources.mysql.server.connection import Facts, Row, is_connection_lost, rows, server_errors

_WHO = {"mysql": "SELECT @@server_uuid", "mariadb": "SELECT @@server_id, @@hostname, @@port, @@datadir"}


class LogServer:
    """The server whose log is streamed, where it is another one: asked over a connection that stays open.

    Call from one thread at a time.
    """

    def __init__(self, config: ServerConfig, source: str, connect: Callable[[], "Connection[Any]"]) -> None:
        self._config = config
        self._source = source
        self._connect = connect
        self._connection: Connection[Any] | None = None

    def ask(self, statement: str, doing: str) -> list[Row]:
        """Raises a `SourceError`. A connection that was lost since the last question is made anew."""
        with server_errors(doing, self._config, self._source):
            if self._connection is not None:
                try:
                    return rows(self._connection, statement)
                except pymysql.err.MySQLError as failed:
                    self.close()
                    if not is_connection_lost(failed):
                        raise
            self._connection = self._connect()
            return rows(self._connection, statement)

    def close(self) -> None:
        """Safe whatever state the connection is in."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection._force_close()  # type: ignore[attr-defined]  # a broken one can't say goodbye


@dataclass(frozen=True, slots=True)
class DumpServer:
    config: ServerConfig
    source: str
    facts: Facts
    #: how positions of the source's log are kept
    position_kind: BinlogPositionKind
    #: the stream reads this server's log (`is_same_server`), not that of another one which it replicates
    has_the_log: bool
    #: a further connection to it
    connect: Callable[[], "Connection[Any]"]
    log: LogServer


def is_same_server(left: "Connection[Any]", right: "Connection[Any]", facts: Facts) -> bool:
    """Whether both connections ended at one server; inside `server_errors`."""
    return rows(left, _WHO[facts.flavor]) == rows(right, _WHO[facts.flavor])
