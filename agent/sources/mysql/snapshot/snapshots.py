"""What a SELECT on the dump's server shows, as positions of the source's log.

Comes in: a connection that reads rows, made ready by `statements.prepare`, for one thread. Goes out: the low watermark
before a chunk's SELECT (each transaction in it is visible to the SELECT), the high watermark after it (each
transaction that it showed is in it), and snapshots whose position is exact. Takes no global lock and needs neither
SUPER nor RELOAD. Nothing is durable; a kill leaves a transaction that only reads, which the server ends.

How each server tells what is visible:

- MySQL with GTIDs: a transaction is in gtid_owned from before its log write, and moves to gtid_executed at once after
  the engine's commit made it visible. So gtid_executed is low; owned and executed, read in this order, are high. Each
  GTID names the server that wrote the transaction, so a replica's own never pass for its source's.
- MySQL without GTIDs: the log's end moves before the commit is visible, so it is high, never low. Who holds a read
  lock on a table knows that each transaction on it is over or has not begun.
- MariaDB: see `mariadb_snapshots` and `mariadb_other_server`.
"""

import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, Protocol

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from agent.errors import DumpServerUnrelated, DumpSnapshotFailed, SourceGrantMissing
from agent.sources.mysql.ddl.model import Table
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind, MysqlGtids
from agent.sources.mysql.server.connection import account_of, is_grant_missing, rows, server_code, server_errors
from agent.sources.mysql.server.quoting import quoted, quoted_name
from agent.sources.mysql.server.server_log import STATUS_GRANT, status_statement
from agent.sources.mysql.snapshot.mariadb_other_server import MariadbOtherServer
from agent.sources.mysql.snapshot.mariadb_snapshots import MariadbLog
from agent.sources.mysql.snapshot.server import DumpServer
from agent.sources.mysql.snapshot.transactional import BEGIN, DOING, NOTHING_LOST, check_engine, end

#: a snapshot that cost a lock serves chunks for so long
KEPT_SECONDS = 20.0
#: two equal readings of gtid_executed around a snapshot
EQUAL_TRIES = 100
PAUSE_SECONDS = 0.005
LOCK_TRIES = 5
#: the least that the server takes; whoever writes to the table waits behind us meanwhile
LOCK_WAIT_SECONDS = 1
_SAVEPOINT = "menura_read"
_OWNER = re.compile(r"(#[0-9]+)+")


class SelectPositions(Protocol):
    """Of one connection."""

    def chunk(self, table: Table) -> AbstractContextManager[BinlogPosition]:
        """Around the SELECT of a chunk: its low watermark."""

    def whole(self, table: Table) -> AbstractContextManager[BinlogPosition]:
        """Around the SELECTs of a whole table: they show exactly what is in this position."""

    def high(self) -> BinlogPosition:
        """Read after a SELECT: has each transaction that it showed."""


def select_positions(connection: "Connection[Any]", server: DumpServer) -> SelectPositions:
    """Raises `DumpServerUnrelated` where positions of this server say nothing about the source's log."""
    if server.facts.flavor == "mariadb":
        if server.position_kind is BinlogPositionKind.MARIADB_GTID:
            return MariadbLog(connection, server) if server.has_the_log else MariadbOtherServer(connection, server)
    elif server.position_kind is BinlogPositionKind.MYSQL_GTID and server.facts.has_gtids:
        return GtidExecuted(connection, server)
    if not server.has_the_log:
        raise DumpServerUnrelated(
            "comparing the dump's server with the source's log",
            f"{server.config.address} is another server than the one whose log is streamed, and without GTIDs its"
            " position can't be told in that log's words",
            data="Nothing was dumped; the stream goes on",
            remedy=f"Set gtid_mode=ON on both, or name the server of sources.{server.source}.binlog in"
            f" sources.{server.source}.client too and restart the agent; then run: menura sync retry"
            f" {server.source} --all",
            source=server.source,
        )
    return Locked(connection, server)


class GtidExecuted:
    """MySQL with GTIDs, primary or replica."""

    def __init__(self, connection: "Connection[Any]", server: DumpServer) -> None:
        self._connection = connection
        self._server = server

    @contextmanager
    def chunk(self, table: Table) -> Iterator[BinlogPosition]:
        del table  # what is executed is visible in each
        with server_errors(DOING, self._server.config, self._server.source):
            low = self._executed()
        yield self._position(low)

    @contextmanager
    def whole(self, table: Table) -> Iterator[BinlogPosition]:
        try:
            with server_errors(DOING, self._server.config, self._server.source, "SELECT"):
                check_engine(self._connection, table, self._server)
                gtids = self._between_equal_readings()
                if gtids is None:
                    with table_lock(table, self._server):
                        rows(self._connection, BEGIN)
                        gtids = self._executed()
            yield self._position(gtids)
        finally:
            end(self._connection)

    def high(self) -> BinlogPosition:
        with server_errors("reading what the server has executed", self._server.config, self._server.source):
            owned = self._owned()
            executed = self._executed()
        return self._position(executed.with_runs((key, *run) for key, runs in owned.intervals.items() for run in runs))

    def _between_equal_readings(self) -> MysqlGtids | None:
        """Begin a snapshot while nothing commits; None: something always did."""
        for _ in range(EQUAL_TRIES):
            before = self._executed()
            rows(self._connection, BEGIN)
            # what is visible and not yet in executed still has its owner
            if not self._owned() and self._executed() == before:
                return before
            rows(self._connection, "ROLLBACK")
            time.sleep(PAUSE_SECONDS)
        return None

    def _executed(self) -> MysqlGtids:
        return MysqlGtids.parse(str(rows(self._connection, "SELECT @@GLOBAL.gtid_executed")[0][0]))

    def _owned(self) -> MysqlGtids:
        """Of transactions that run: 'UUID:7#31,...' with the number of the thread."""
        return MysqlGtids.parse(_OWNER.sub("", str(rows(self._connection, "SELECT @@GLOBAL.gtid_owned")[0][0])))

    def _position(self, gtids: MysqlGtids) -> BinlogPosition:
        return BinlogPosition(gtids, self._server.facts.server_uuid)


class Locked:
    """File and offset of the log's own server: a snapshot that begins while a lock holds writers of the table back."""

    def __init__(self, connection: "Connection[Any]", server: DumpServer) -> None:
        self._connection = connection
        self._server = server
        self._kept: tuple[Table, BinlogPosition, float] | None = None

    @contextmanager
    def chunk(self, table: Table) -> Iterator[BinlogPosition]:
        """Reads several chunks of a table in one snapshot."""
        try:
            if self._kept is None or self._kept[0] != table or time.monotonic() >= self._kept[2]:
                self._kept = None
                end(self._connection)
                self._kept = (table, self._begin(table), time.monotonic() + KEPT_SECONDS)
            yield self._kept[1]
            # lets an ALTER of the table in; the snapshot stays
            with server_errors(DOING, self._server.config, self._server.source):
                rows(self._connection, f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
        except BaseException:
            self._kept = None
            end(self._connection)
            raise

    @contextmanager
    def whole(self, table: Table) -> Iterator[BinlogPosition]:
        self._kept = None
        end(self._connection)
        try:
            yield self._begin(table)
        finally:
            end(self._connection)

    def high(self) -> BinlogPosition:
        with server_errors(
            "asking for the end of the binary log", self._server.config, self._server.source, STATUS_GRANT
        ):
            return self._log_end()

    def _begin(self, table: Table) -> BinlogPosition:
        with server_errors(DOING, self._server.config, self._server.source, STATUS_GRANT):
            check_engine(self._connection, table, self._server)
            with table_lock(table, self._server):
                rows(self._connection, BEGIN)
                position = self._log_end()
            rows(self._connection, f"SAVEPOINT {_SAVEPOINT}")
        return position

    def _log_end(self) -> BinlogPosition:
        (status,) = rows(self._connection, status_statement(self._server.facts))
        return BinlogPosition(None, self._server.facts.server_uuid, str(status[0]), int(status[1]))


@contextmanager
def table_lock(table: Table, server: DumpServer) -> Iterator[None]:
    """A read lock on one table, of milliseconds: begin a snapshot inside. Raises `DumpSnapshotFailed` where others keep
    the table busy, and `SourceGrantMissing`."""
    with closing(server.connect()) as locker:
        rows(locker, f"SET SESSION lock_wait_timeout = {LOCK_WAIT_SECONDS}")
        for left in reversed(range(LOCK_TRIES)):
            try:
                rows(locker, f"LOCK TABLES {quoted(table)} READ")
                break
            except pymysql.err.MySQLError as refused:
                if is_grant_missing(refused):
                    raise _lock_grant_missing(table, server) from refused
                if server_code(refused) != ER.LOCK_WAIT_TIMEOUT:
                    raise
                if not left:
                    raise _kept_busy(table, server) from refused
            time.sleep(LOCK_WAIT_SECONDS)  # those who waited behind us go first
        yield
        rows(locker, "UNLOCK TABLES")


def _lock_grant_missing(table: Table, server: DumpServer) -> SourceGrantMissing:
    return SourceGrantMissing(
        DOING,
        "the server can't tell what a snapshot shows while others write, and this user may not lock the table for a"
        " moment",
        data=NOTHING_LOST,
        remedy=f"Run on the server: GRANT LOCK TABLES ON {quoted_name(table[0])}.*"
        f" TO {account_of(server.config, server.source)};"
        + (" or set gtid_mode=ON there" if server.position_kind is BinlogPositionKind.FILE else ""),
        source=server.source,
        database=table[0],
        table=table[1],
    )


def _kept_busy(table: Table, server: DumpServer) -> DumpSnapshotFailed:
    return DumpSnapshotFailed(
        DOING,
        f"transactions on it kept it busy for {LOCK_TRIES} times {LOCK_WAIT_SECONDS} s",
        data=NOTHING_LOST,
        remedy="It is tried again; end transactions that stay open, XA ones too"
        + (", or set gtid_mode=ON, which needs no lock" if server.position_kind is BinlogPositionKind.FILE else ""),
        source=server.source,
        database=table[0],
        table=table[1],
    )
