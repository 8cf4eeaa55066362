"""The server's answers about definitions: how tables look now, and where in the log that is.

Comes in: names of tables. Goes out: definitions with a position where they hold. A transaction holds the tables'
metadata locks meanwhile, which let rows be written and keep DDL out; so nothing stands between the definitions and the
position. Nothing is durable.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from agent.filter import Filter
from agent.sources.mysql.config import ServerConfig
from agent.sources.mysql.ddl.model import Server, Table, TableDefinition, Unsure
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind, Run
from agent.sources.mysql.schema.log_scan import Logged, LogScan
from agent.sources.mysql.schema.versions import Unknown
from agent.sources.mysql.server.connection import Facts, connect, rows, server_errors, variable
from agent.sources.mysql.server.continuity import Continuity
from agent.sources.mysql.server.information_schema import read_databases, read_definitions
from agent.sources.mysql.server.replication import ReplicaIdentity
from agent.sources.mysql.server.server_log import ReadTransaction, ServerLog
from agent.sources.mysql.server.transaction_precise import PreciseTable, precise_tables

DOING = "reading definitions of tables"
#: a DDL may hold a table's metadata lock for long; then this is tried again later
LOCK_SECONDS = 5
#: log that is looked through before a stream begins, so that its first change is told with all columns
NEAR_BYTES = 256 << 20

_HIDDEN = frozenset({ER.TABLEACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR})
_MISSING = frozenset({ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR})


@dataclass(frozen=True, slots=True)
class ServerSchemaReader:
    """A connection of its own for each question."""

    source: str
    server: ServerConfig
    facts: Facts
    position_kind: BinlogPositionKind
    replica: ReplicaIdentity
    reads: Server
    #: called now and then; raises when nobody waits for the answer any more
    check: Callable[[], None]
    filter: Filter = field(default_factory=Filter)

    def tables(self, tables: Collection[Table]) -> tuple[Mapping[Table, TableDefinition | Unknown], BinlogPosition]:
        """How they look, and where; those that are not there are left out. Raises a `SourceError`."""
        with closing(connect(self.server, self.source)) as connection:
            while True:
                found, position = self._look(connection, tables)
                missing = [table for table in tables if table not in found]
                # A table that came meanwhile would be taken for one that is not there although the log makes it.
                if not missing or not self._look(connection, missing)[0]:
                    return found, position

    def databases(self) -> Mapping[str, str]:
        """Default charsets. Raises a `SourceError`."""
        with closing(connect(self.server, self.source)) as connection, self._errors():
            return read_databases(connection)

    def precise_tables(self, names: Collection[str]) -> list[PreciseTable]:
        """Those of any database with one of these names whose changes are logged as statements."""
        if not self.reads.mariadb:
            return []
        with closing(connect(self.server, self.source)) as connection, self._errors():
            return precise_tables(connection, names)

    def statements(self, start: BinlogPosition, until: BinlogPosition) -> Iterable[Logged]:
        """What may have changed definitions. Raises a `SourceError`."""
        with closing(connect(self.server, self.source)) as connection:
            Continuity(self._log(connection), self.source).check(start)
        return self._scan().statements(start, until)

    def log_file_begun(self, file: str) -> int | None:
        """When the server began this file, in seconds since the epoch; None: there is none. Raises a `SourceError`."""
        return self._scan().file_begun(file)

    def transactions(self, file: str, domain: int, sequence: int) -> list[Run]:
        """See `LogScan.transactions`. Raises a `SourceError`."""
        return self._scan().transactions(file, domain, sequence)

    def statement_begun(self, after: BinlogPosition, read: ReadTransaction) -> int | None:
        """See `LogReader.statement_begun`. Raises a `SourceError`."""
        return self._scan().statement_begun(after, read)

    def is_near(self, start: BinlogPosition) -> bool:
        """Whether little log stands between `start` and its end. Raises a `SourceError`."""
        with closing(connect(self.server, self.source)) as connection:
            server_log = self._log(connection)
            if start.covers(server_log.end()):
                return True
            size = server_log.bytes_after(start)
        return size is not None and size <= NEAR_BYTES

    def _look(
        self, connection: "Connection[Any]", tables: Collection[Table]
    ) -> tuple[dict[Table, TableDefinition | Unknown], BinlogPosition]:
        with self._errors():
            rows(connection, f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}")
            # Each statement sees what is committed when it begins, not what the first one saw.
            rows(connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            rows(connection, "START TRANSACTION")
        try:
            hidden = {table for table in tables if self._lock(connection, table)}
            position = self._log(connection).end()
            with self._errors():
                shown = [table for table in tables if table not in hidden]
                read = read_definitions(connection, shown, self.reads, filter_=self.filter)
        finally:
            connection.rollback()
        found: dict[Table, TableDefinition | Unknown] = {
            table: Unknown(definition.why) if isinstance(definition, Unsure) else definition
            for table, definition in read.items()
        }
        found |= dict.fromkeys(
            hidden, Unknown("the agent's user may not read it, and the log does not describe columns")
        )
        return found, position

    def _lock(self, connection: "Connection[Any]", table: Table) -> bool:
        """Keep DDL of the table out until the transaction ends; True: this user may not."""
        name = ".".join("`" + part.replace("`", "``") + "`" for part in table)
        with self._errors():
            try:
                rows(connection, f"SELECT 1 FROM {name} LIMIT 0")  # noqa: S608  (quoted above)
            except pymysql.err.MySQLError as refused:
                if refused.args[0] in _HIDDEN:
                    return True
                if refused.args[0] not in _MISSING:
                    raise
        return False

    def _scan(self) -> LogScan:
        return LogScan(self.source, self.server, self.facts, self.position_kind, self.replica, self.reads, self.check)

    def _log(self, connection: "Connection[Any]") -> ServerLog:
        return ServerLog(connection, self.server, self.source, self.facts, self.position_kind)

    def _errors(self) -> Any:  # noqa: ANN401
        return server_errors(DOING, self.server, self.source, "SELECT")


def server_of(connection: "Connection[Any]", facts: Facts) -> Server:
    """How this server reads statements; inside `server_errors`."""
    numbers = [int(number) for number in facts.version.partition("-")[0].split(".")[:3]]
    major, minor, patch = (*numbers, 0, 0)[:3]
    old_mode = variable(connection, "old_mode")
    return Server(
        facts.flavor == "mariadb",
        (major, minor, patch),
        int(variable(connection, "lower_case_table_names") or 0),
        utf8_is_utf8mb3=old_mode is None or "UTF8_IS_UTF8MB3" in old_mode.upper(),
        system_time_zone=variable(connection, "system_time_zone") or "",
    )
