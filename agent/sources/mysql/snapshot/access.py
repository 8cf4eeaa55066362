"""A worker's way to the dump's server: its connection, what the server is, and how its reads stand to the log.

Comes in: the source's configuration and how its stream keeps positions. Goes out: `Access`es, one per worker. Each can
be ended from another thread at once, which the server then hears of on a connection of its own.
"""

import logging
import socket
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from agent.errors import SourceError
from agent.positions import PositionKind
from agent.sources.mysql.config import MysqlConfig
from agent.sources.mysql.ddl.model import Server, TableDefinition, Unsure
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind, MariadbGtids, MysqlGtids
from agent.sources.mysql.schema.schema_reader import server_of
from agent.sources.mysql.server.connection import Facts, connect, facts_of, rows, server_code, server_errors, variable
from agent.sources.mysql.server.information_schema import read_definitions
from agent.sources.mysql.server.quoting import quoted
from agent.sources.mysql.server.server_log import ServerLog
from agent.sources.mysql.snapshot.keys import with_promoted_key
from agent.sources.mysql.snapshot.server import DumpServer, LogServer, is_same_server
from agent.sources.mysql.snapshot.snapshots import SelectPositions, select_positions
from agent.sources.mysql.snapshot.statements import prepare
from agent.table_positions import Table

log = logging.getLogger("menura.dump")

DOING = "reading a table's definition"
_NOT_THERE = frozenset({ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR})


@dataclass(frozen=True, slots=True)
class StreamedLog:
    """The log that the table's changes are read from, as its server is set."""

    #: that of the server that rows are read from
    is_here: bool
    #: binlog_row_metadata is FULL: what it names as tables' primary keys counts
    describes: bool
    row_image: str

    @property
    def is_partial(self) -> bool:
        """Changes lack columns that they did not change."""
        return self.row_image in ("MINIMAL", "NOBLOB")


@dataclass(frozen=True, slots=True)
class Access:
    """In the hand of one thread, but for `interrupt`."""

    config: MysqlConfig
    connection: "Connection[Any]"
    facts: Facts
    #: how the server reads statements
    reads: Server
    position_kind: BinlogPositionKind
    server: DumpServer
    positions: SelectPositions
    log: StreamedLog
    #: when the server was started, to some seconds
    started: float

    @classmethod
    def open(cls, config: MysqlConfig, position_kind: PositionKind) -> "Access":
        """Raises a `SourceError`, and `DumpServerUnrelated`."""
        assert isinstance(position_kind, BinlogPositionKind)
        connection = connect(config.client, config.name)
        try:
            with server_errors("preparing a connection for dumps", config.client, config.name):
                facts = facts_of(connection, config.name)
                reads = server_of(connection, facts)
                prepare(connection, facts)
                started = time.time() - int(rows(connection, "SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1])
            log = _streamed_log(config, connection, facts)
            server = DumpServer(
                config.client,
                config.name,
                facts,
                position_kind,
                log.is_here,
                lambda: connect(config.client, config.name),
                LogServer(config.binlog, config.name, lambda: connect(config.binlog, config.name)),
            )
            positions = select_positions(connection, server)
            return cls(config, connection, facts, reads, position_kind, server, positions, log, started)
        except BaseException:
            connection.close()
            raise

    def definition(self, table: Table) -> TableDefinition | Unsure | None:
        """How it looks now; None: it is not there."""
        with server_errors(DOING, self.config.client, self.config.name, "SELECT"):
            found = read_definitions(
                self.connection, [table], self.reads, labels_as_shown=True, filter_=self.config.filter
            ).get(table)
            if self.log.describes and isinstance(found, TableDefinition):
                found = with_promoted_key(self.connection, table, found)
        # what this user may not read is not shown to it either, be it columns or the table
        return found if self.hold(table) else None

    def hold(self, table: Table) -> bool:
        """Keep its definition as it is until the transaction ends; raises where not all columns may be read.

        False: it is not there.
        """
        with server_errors(DOING, self.config.client, self.config.name, "SELECT", quoted(table)):
            try:
                rows(self.connection, f"SELECT * FROM {quoted(table)} LIMIT 0")  # noqa: S608  (quoted)
            except pymysql.err.MySQLError as refused:
                if server_code(refused) not in _NOT_THERE:
                    raise
                return False
        return True

    def in_the_log(self, position: BinlogPosition) -> BinlogPosition:
        """What of `position`, just read, is in the log that is streamed.

        A replica may have transactions of its own, or of further sources, which the stream never reads.
        """
        if self.server.has_the_log:
            return position
        server = self.config.binlog
        with closing(connect(server, self.config.name)) as connection:
            with server_errors("asking what the source has executed", server, self.config.name):
                facts = facts_of(connection, self.config.name)
            end = ServerLog(connection, server, self.config.name, facts, self.position_kind).end()
        if isinstance(position.gtids, MysqlGtids) and isinstance(end.gtids, MysqlGtids):
            return BinlogPosition(position.gtids.meet(end.gtids), facts.server_uuid)
        assert isinstance(position.gtids, MariadbGtids)
        assert isinstance(end.gtids, MariadbGtids)
        return BinlogPosition(position.gtids.meet(end.gtids), facts.server_uuid)

    def interrupt(self) -> None:
        """End what another thread waits for on the connection, at once."""
        stream: socket.socket | None = self.connection._sock  # type: ignore[attr-defined]
        if stream is None:
            return
        try:
            socket.socket.shutdown(stream, socket.SHUT_RDWR)  # that of TLS would touch what the other thread reads
        except OSError:  # it is over
            return

    def end_on_server(self) -> None:
        """After `interrupt`: a statement that sends nothing would go on there."""
        thread = int(self.connection.thread_id())  # type: ignore[no-untyped-call]
        try:
            with closing(connect(self.config.client, self.config.name)) as other:
                # behind a proxy the number may be another's connection
                if any(
                    (row[0], row[1]) == (thread, self.config.client.user) for row in rows(other, "SHOW PROCESSLIST")
                ):
                    rows(other, f"KILL {thread}")
        except (SourceError, pymysql.err.MySQLError) as failed:
            fields = {"source": self.config.name, "thread": thread, "found": type(failed).__name__}
            log.info("the server may go on with a read that was cancelled", extra={"fields": fields})

    def close(self) -> None:
        """Safe whatever state the connections are in."""
        self.server.log.close()
        if self.connection.open:
            self.connection._force_close()  # type: ignore[attr-defined]  # it may wait for an answer


def _streamed_log(config: MysqlConfig, connection: "Connection[Any]", facts: Facts) -> StreamedLog:
    doing = "comparing the dump's server with the log's"
    if config.client == config.binlog:
        with server_errors(doing, config.binlog, config.name):
            return _log_of(connection, is_here=True)
    with closing(connect(config.binlog, config.name)) as other, server_errors(doing, config.binlog, config.name):
        same = facts_of(other, config.name).flavor == facts.flavor and is_same_server(connection, other, facts)
        return _log_of(other, is_here=same)


def _log_of(connection: "Connection[Any]", *, is_here: bool) -> StreamedLog:
    metadata = (variable(connection, "binlog_row_metadata") or "").upper()
    return StreamedLog(is_here, metadata == "FULL", (variable(connection, "binlog_row_image") or "FULL").upper())
