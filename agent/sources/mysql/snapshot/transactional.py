"""Snapshots: whether a table can be read in one, and their end."""

from typing import Any

import pymysql
from menura.naming import dump_anew, sync_resync
from pymysql.connections import Connection

from agent.errors import DumpSnapshotImpossible
from agent.sources.mysql.ddl.model import Table
from agent.sources.mysql.server.connection import rows
from agent.sources.mysql.server.quoting import quoted
from agent.sources.mysql.snapshot.server import DumpServer

BEGIN = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
DOING = "taking a snapshot of a table"
NOTHING_LOST = "Nothing of it was dumped; its stream goes on"
_VERSIONED = "SYSTEM VERSIONED"
_ENGINES = frozenset({"INNODB", "ROCKSDB", "TOKUDB"})


def check_engine(connection: "Connection[Any]", table: Table, server: DumpServer) -> None:
    """Raise `DumpSnapshotImpossible` for an engine that shows others' changes in the middle of a read."""
    statement = "SELECT engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
    found = rows(connection, statement, table)
    engine = str(found[0][0]) if found else ""
    if engine.upper() in _ENGINES:
        return
    raise DumpSnapshotImpossible(
        DOING,
        f"its engine is {engine}, which has no snapshots" if engine else "the server has no such table",
        data=NOTHING_LOST,
        remedy=f"Run on the server: ALTER TABLE {quoted(table)} ENGINE = InnoDB; or give it a primary key with an index"
        f" of type BTREE; then run: {sync_resync(server.source, *table)}"
        if engine
        else f"When the table is there: {dump_anew(server.source, *table)}",
        source=server.source,
        database=table[0],
        table=table[1],
    )


def is_versioned(connection: "Connection[Any]", table: Table) -> bool:
    """Whether MariaDB keeps the rows that the table has had: in its log they are rows like the others."""
    statement = "SELECT table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
    return rows(connection, statement, table) == [(_VERSIONED,)]


def end(connection: "Connection[Any]") -> None:
    """End the transaction. A connection that can't (rows were left unread, it broke) is closed, which ends it too."""
    if not connection.open:
        return
    try:
        connection.rollback()
    except (pymysql.err.MySQLError, OSError):
        connection.close()
