"""Asks the catalog how a table looks now, when the stream meets a message about it. In the hand of one thread."""

import time
from dataclasses import dataclass

from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.server.connection import Connection, connect, server_errors
from agent.sources.postgresql.server.definitions import TableDefinition, read_definitions
from agent.sources.postgresql.server.partitions import above
from agent.sources.postgresql.stream.looks import read_ends
from agent.table_positions import Table


@dataclass(frozen=True, slots=True)
class Answer:
    #: None: there is no table of this number any more
    definition: TableDefinition | None
    #: the log's end before: what was committed until then is shown
    before_lsn: int
    #: the log's end after: what is shown was committed until then
    after_lsn: int
    #: monotone seconds
    asked_at: float


class CatalogReader:
    """Of the server whose changes are read; makes its connection when it is first asked."""

    def __init__(self, config: PostgresqlConfig) -> None:
        self._config = config
        self._connection: Connection | None = None

    def ask(self, oid: int) -> Answer:
        """Raises a `SourceError`."""
        server, source = self._config.replication, self._config.name
        if self._connection is None:
            self._connection = connect(server, source)
        with server_errors("asking how a table looks", server, source):
            before = read_ends(self._connection)
            found = read_definitions(self._connection, oids=[oid])
            after = read_ends(self._connection)
        return Answer(next(iter(found.values()), None), before.flushed_lsn, after.written_lsn, time.monotonic())

    def above(self, oid: int) -> list[Table]:
        """The tables that this one is a partition of. Raises a `SourceError`."""
        server, source = self._config.replication, self._config.name
        if self._connection is None:
            self._connection = connect(server, source)
        with server_errors("asking of which table one is a partition", server, source):
            return above(self._connection, oid)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
