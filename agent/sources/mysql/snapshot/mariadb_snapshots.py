"""Watermarks on MariaDB; what they are: see `snapshots`.

A transaction is in gtid_binlog_pos before it is visible, so that is high, never low. The binlog_snapshot_* status of a
consistent snapshot is exact, but in file and offset: their GTIDs cost the server a walk through that file. So the low
watermark of a chunk is a gtid_binlog_pos that was read before an end of the log which a snapshot has reached since.

Here the server writes the log that is streamed; for any other server see `mariadb_other_server`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.connections import Connection

from agent.errors import DumpSnapshotFailed
from agent.sources.mysql.ddl.model import Table
from agent.sources.mysql.positions import BinlogPosition, MariadbGtids
from agent.sources.mysql.server.connection import is_grant_missing, rows, server_errors
from agent.sources.mysql.snapshot.server import DumpServer
from agent.sources.mysql.snapshot.transactional import BEGIN, DOING, NOTHING_LOST, check_engine, end

#: for what is in the log and not visible yet; longer: semi-synchronous replication waits for a replica
SETTLE_SECONDS = 1.0
PAUSE_SECONDS = 0.002


class MariadbLog:
    """A server that writes the log itself."""

    def __init__(self, connection: "Connection[Any]", server: DumpServer) -> None:
        self._connection = connection
        self._server = server

    @contextmanager
    def chunk(self, table: Table) -> Iterator[BinlogPosition]:
        del table  # what a snapshot has reached is visible in each
        with server_errors(DOING, self._server.config, self._server.source, "BINLOG MONITOR"):
            low = self._settled()
        yield low

    @contextmanager
    def whole(self, table: Table) -> Iterator[BinlogPosition]:
        try:
            with server_errors(DOING, self._server.config, self._server.source, "SELECT"):
                check_engine(self._connection, table, self._server)
                rows(self._connection, BEGIN)
                position = self.of_snapshot()
            yield position
        finally:
            end(self._connection)

    def high(self) -> BinlogPosition:
        with server_errors("reading the end of the binary log", self._server.config, self._server.source):
            return BinlogPosition(self._logged())

    def of_snapshot(self) -> BinlogPosition:
        """Exactly what the consistent snapshot that has just begun on the connection shows; inside `server_errors`."""
        return self._with_gtids(self._snapshot())

    def _settled(self) -> BinlogPosition:
        """What was logged a moment ago, once it is visible."""
        logged = self._logged()
        log_end = self._log_end()
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            rows(self._connection, BEGIN)
            reached = self._snapshot()
            if log_end is not None and reached.covers(log_end):
                rows(self._connection, "COMMIT")
                return BinlogPosition(logged)
            if log_end is None or time.monotonic() >= deadline:
                position = self._with_gtids(reached)
                rows(self._connection, "COMMIT")
                return position
            rows(self._connection, "COMMIT")
            time.sleep(PAUSE_SECONDS)

    def _logged(self) -> MariadbGtids:
        return MariadbGtids.parse(str(rows(self._connection, "SELECT @@GLOBAL.gtid_binlog_pos")[0][0]))

    def _log_end(self) -> BinlogPosition | None:
        """In file and offset; None: this user may not see it."""
        try:
            (status,) = rows(self._connection, "SHOW MASTER STATUS")
        except pymysql.err.MySQLError as refused:
            if not is_grant_missing(refused):
                raise
            return None
        return BinlogPosition(file=str(status[0]), offset=int(status[1]))

    def _snapshot(self) -> BinlogPosition:
        """Of the consistent snapshot that has just begun, in file and offset."""
        found = {
            str(name).lower(): value for name, value in rows(self._connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")
        }
        return BinlogPosition(file=str(found["binlog_snapshot_file"]), offset=int(found["binlog_snapshot_position"]))

    def _with_gtids(self, position: BinlogPosition) -> BinlogPosition:
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
        return BinlogPosition(MariadbGtids.parse(text), "", position.file, position.offset)
