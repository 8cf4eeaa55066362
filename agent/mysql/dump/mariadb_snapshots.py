"""Watermarks on MariaDB; what they are: see `snapshots`.

A transaction is in gtid_binlog_pos before it is visible, so that is high, never low. The binlog_snapshot_* status of a
consistent snapshot is exact, but in file and offset: their GTIDs cost the server a walk through that file. So the low
watermark of a chunk is a gtid_binlog_pos that was read before an end of the log which a snapshot has reached since.

On a replica, what it has applied is in mysql.gtid_slave_pos, written in each applied transaction: read in the same
snapshot it is exact. gtid_binlog_pos would be wrong there, since it also counts what was written on the replica.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.connections import Connection

from agent.errors import DumpSnapshotFailed
from agent.mysql.ddl.model import Table
from agent.mysql.dump.server import DumpServer
from agent.mysql.dump.transactional import BEGIN, DOING, NOTHING_LOST, check_engine, end
from agent.mysql.positions import MariadbGtids, Position
from agent.mysql.server.connection import is_grant_missing, rows, server_errors

#: for what is in the log and not visible yet; longer: semi-synchronous replication waits for a replica
SETTLE_SECONDS = 1.0
PAUSE_SECONDS = 0.002
_APPLIED = "SELECT domain_id, server_id, seq_no FROM mysql.gtid_slave_pos ORDER BY sub_id"
_APPLIED_GRANT = ("SELECT", "mysql.gtid_slave_pos")


def follows_another(connection: "Connection[Any]") -> bool:
    """Whether the server has applied another's transactions."""
    return bool(rows(connection, "SELECT @@GLOBAL.gtid_slave_pos")[0][0])


class MariadbLog:
    """A server that writes the log itself."""

    def __init__(self, connection: "Connection[Any]", server: DumpServer) -> None:
        self._connection = connection
        self._server = server

    @contextmanager
    def chunk(self, table: Table) -> Iterator[Position]:
        del table  # what a snapshot has reached is visible in each
        with server_errors(DOING, self._server.config, self._server.source, "BINLOG MONITOR"):
            low = self._settled()
        yield low

    @contextmanager
    def whole(self, table: Table) -> Iterator[Position]:
        try:
            with server_errors(DOING, self._server.config, self._server.source, "SELECT"):
                check_engine(self._connection, table, self._server)
                rows(self._connection, BEGIN)
                position = self._with_gtids(self._snapshot())
            yield position
        finally:
            end(self._connection)

    def high(self) -> Position:
        with server_errors("reading the end of the binary log", self._server.config, self._server.source):
            return Position(self._logged())

    def _settled(self) -> Position:
        """What was logged a moment ago, once it is visible."""
        logged = self._logged()
        log_end = self._log_end()
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            rows(self._connection, BEGIN)
            reached = self._snapshot()
            if log_end is not None and reached.covers(log_end):
                rows(self._connection, "COMMIT")
                return Position(logged)
            if log_end is None or time.monotonic() >= deadline:
                position = self._with_gtids(reached)
                rows(self._connection, "COMMIT")
                return position
            rows(self._connection, "COMMIT")
            time.sleep(PAUSE_SECONDS)

    def _logged(self) -> MariadbGtids:
        return MariadbGtids.parse(str(rows(self._connection, "SELECT @@GLOBAL.gtid_binlog_pos")[0][0]))

    def _log_end(self) -> Position | None:
        """In file and offset; None: this user may not see it."""
        try:
            (status,) = rows(self._connection, "SHOW MASTER STATUS")
        except pymysql.err.MySQLError as refused:
            if not is_grant_missing(refused):
                raise
            return None
        return Position(file=str(status[0]), offset=int(status[1]))

    def _snapshot(self) -> Position:
        """Of the consistent snapshot that has just begun, in file and offset."""
        found = {
            str(name).lower(): value for name, value in rows(self._connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")
        }
        return Position(file=str(found["binlog_snapshot_file"]), offset=int(found["binlog_snapshot_position"]))

    def _with_gtids(self, position: Position) -> Position:
        found = rows(self._connection, "SELECT BINLOG_GTID_POS(%s, %s)", (position.file, position.offset))[0][0]
        if found is None:
            raise DumpSnapshotFailed(
                DOING,
                f"the server has purged or renamed the log {position.file} meanwhile",
                data=NOTHING_LOST,
                remedy="It is tried again",
                source=self._server.source,
            )
        text = found.decode() if isinstance(found, bytes) else str(found)
        return Position(MariadbGtids.parse(text), "", position.file, position.offset)


class MariadbReplica:
    """A server that applies another's transactions."""

    def __init__(self, connection: "Connection[Any]", server: DumpServer) -> None:
        self._connection = connection
        self._server = server

    @contextmanager
    def chunk(self, table: Table) -> Iterator[Position]:
        del table
        with self._snapshot() as position:
            yield position

    @contextmanager
    def whole(self, table: Table) -> Iterator[Position]:
        with server_errors(DOING, self._server.config, self._server.source, *_APPLIED_GRANT):
            check_engine(self._connection, table, self._server)
        with self._snapshot() as position:
            yield position

    def high(self) -> Position:
        """Inside a chunk: its own position, which is exact."""
        with server_errors(
            "reading what the replica has applied", self._server.config, self._server.source, *_APPLIED_GRANT
        ):
            return self._applied()

    @contextmanager
    def _snapshot(self) -> Iterator[Position]:
        try:
            with server_errors(DOING, self._server.config, self._server.source, *_APPLIED_GRANT):
                rows(self._connection, BEGIN)
                position = self._applied()
            yield position
        finally:
            end(self._connection)

    def _applied(self) -> Position:
        applied = (
            (f"{domain}-{server}", int(sequence), int(sequence))
            for domain, server, sequence in rows(self._connection, _APPLIED)
        )
        return Position(MariadbGtids({}).with_runs(applied))
