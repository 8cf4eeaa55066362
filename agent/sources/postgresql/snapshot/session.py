"""A worker's session at a server: ordinary statements by pg8000, and large results read by the compiled core.

Comes in: a `ServerConfig`. Goes out: rows of statements, and the session's `Wire` around one large result. In the hand
of one thread but for `interrupt`.
"""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from pg8000.exceptions import DatabaseError, InterfaceError

from agent.errors import SourceError
from agent.sources.postgresql.config import ServerConfig
from agent.sources.postgresql.server.connection import Connection, Facts, Row, connect, facts_of, rows, server_errors
from agent.sources.postgresql.server.wire import Wire, cancel

log = logging.getLogger("menura.dump")

#: from then on a server may end transactions that take long, as that of a whole table does
_TRANSACTION_TIMEOUT_VERSION = 170000
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


def end_on_server(connection: Connection, server: ServerConfig, source: str) -> None:
    """After the connection was interrupted: a statement that sends nothing would go on there."""
    try:
        cancel(connection, server, source)
    except SourceError as failed:
        fields = {"source": source, "found": type(failed).__name__}
        log.info("the server may go on with a read that was cancelled", extra={"fields": fields})


class Session:
    def __init__(self, server: ServerConfig, source: str) -> None:
        """Raises a `SourceError`."""
        self.server = server
        self._source = source
        self.connection = connect(server, source)
        self._timeout = self.connection.socket.gettimeout()
        try:
            with server_errors("preparing a session for dumps", server, source):
                self.facts: Facts = facts_of(self.connection, source)
                if self.facts.version >= _TRANSACTION_TIMEOUT_VERSION:
                    rows(self.connection, "SET transaction_timeout = 0")
        except BaseException:
            self.connection.close()
            raise
        self.wire = Wire(self.connection, server, source)
        self._is_lent = False
        self._blocks()

    def rows(self, statement: str, **parameters: object) -> list[Row]:
        """Inside `server_errors`."""
        return rows(self.connection, statement, **parameters)

    def columns(self, statement: str) -> list[tuple[str, int, int, int]]:
        """Of the rows that a statement has: name, type, modifier, table; inside `server_errors`."""
        rows(self.connection, statement)
        found = self.connection.columns or ()
        return [(str(one["name"]), one["type_oid"], one["type_modifier"], one["table_oid"]) for one in found]

    def errors(self, doing: str, grant: str = "", on: str = "") -> AbstractContextManager[None]:
        return server_errors(doing, self.server, self._source, grant, on)

    @contextmanager
    def transaction(self, snapshot: str = "") -> Iterator[None]:
        """What reads, all at one moment: that of its first statement, or of an exported snapshot."""
        with self.errors("beginning to read"):
            self.rows(_BEGIN)
        try:
            if snapshot:
                with self.errors("beginning to read at a snapshot"):
                    self.rows(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            yield
        finally:
            self._end()

    @contextmanager
    def lent(self) -> Iterator[Wire]:
        """The session's bytes, for one statement; whoever leaves before its end has closed the session."""
        self._is_lent = True
        self.connection.socket.setblocking(False)
        yield self.wire
        self._is_lent = False
        self._blocks()

    def interrupt(self) -> None:
        """End what another thread waits for, at once."""
        self.wire.interrupt()

    def end_on_server(self) -> None:
        """After `interrupt`."""
        end_on_server(self.connection, self.server, self._source)

    def close(self) -> None:
        """Safe whatever state it is in."""
        self.wire.close()

    def _blocks(self) -> None:
        self.connection.socket.settimeout(self._timeout)

    def _end(self) -> None:
        """The transaction. A session that can't (rows were left unread, it broke) is closed, which ends it too."""
        if self._is_lent:
            self.close()
            return
        try:
            self.rows("ROLLBACK")
        except (DatabaseError, InterfaceError, OSError):
            with suppress(OSError):
                self.close()
