"""The server that a source's rows are read from, and how it stands to the one whose log is streamed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from agent.config import ServerConfig
from agent.mysql.positions import Scheme
from agent.mysql.server.connection import Facts, rows

_WHO = {"mysql": "SELECT @@server_uuid", "mariadb": "SELECT @@server_id, @@hostname, @@port, @@datadir"}


@dataclass(frozen=True, slots=True)
class DumpServer:
    config: ServerConfig
    source: str
    facts: Facts
    #: how positions of the source's log are kept
    scheme: Scheme
    #: the stream reads this server's log (`is_same_server`), not that of another one which it replicates
    has_the_log: bool
    #: a further connection to it
    connect: Callable[[], "Connection[Any]"]


def is_same_server(left: "Connection[Any]", right: "Connection[Any]", facts: Facts) -> bool:
    """Whether both connections ended at one server; inside `server_errors`."""
    return rows(left, _WHO[facts.flavor]) == rows(right, _WHO[facts.flavor])
