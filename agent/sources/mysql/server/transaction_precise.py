"""Tables with transaction-precise history: MariaDB's system versioning by numbers of transactions, not by time.

Their ROW START and ROW END are BIGINT UNSIGNED. The server knows these numbers only once a transaction commits, so it
logs each change of such a table as a statement, whatever binlog_format is, and the rows are not in the log.

Comes in: names of tables. Goes out: which of them have such a history now, and their period columns. Nothing is
durable. A table without period columns of its own has hidden ones, `row_start` and `row_end`, whose type no catalog
shows: an empty SELECT does. A table that this user may not see is not seen.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER, FIELD_TYPE

from agent.sources.mysql.ddl.hidden import ROW_END
from agent.sources.mysql.server.connection import rows
from agent.sources.mysql.server.quoting import quoted, quoted_name
from agent.table_positions import Table

#: looked at in one question: a statement names a few
MOST_NAMES = 500
_VERSIONED = """
    SELECT table_schema, table_name FROM information_schema.tables
    WHERE table_type = 'SYSTEM VERSIONED' AND table_name IN %s ORDER BY table_schema, table_name
"""
_ALL_VERSIONED = """
    SELECT table_schema, table_name FROM information_schema.tables
    WHERE table_type = 'SYSTEM VERSIONED' ORDER BY table_schema, table_name
"""
_PERIOD = """
    SELECT column_name, data_type FROM information_schema.columns
    WHERE table_schema = %s AND table_name = %s AND generation_expression IN ('ROW START', 'ROW END')
    ORDER BY generation_expression DESC
"""
#: it has no such column, is not there any more, or this user may not read it
_UNSEEN = (
    ER.BAD_FIELD_ERROR,
    ER.NO_SUCH_TABLE,
    ER.BAD_DB_ERROR,
    ER.TABLEACCESS_DENIED_ERROR,
    ER.DBACCESS_DENIED_ERROR,
    ER.COLUMNACCESS_DENIED_ERROR,
)


@dataclass(frozen=True, slots=True)
class PreciseTable:
    table: Table
    #: ROW START and ROW END; empty: they are hidden
    columns: tuple[str, ...]

    def statements(self) -> tuple[str, ...]:
        """Run in one session, they give the table a history by timestamps. Its former versions go.

        >>> for statement in PreciseTable(("d", "t"), ("a", "b")).statements(): print(statement)
        SET SESSION system_versioning_alter_history = 'KEEP'
        ALTER TABLE `d`.`t` DROP COLUMN `a`, DROP COLUMN `b`, DROP PERIOD FOR SYSTEM_TIME, DROP SYSTEM VERSIONING
        ALTER TABLE `d`.`t` ADD SYSTEM VERSIONING
        """
        columns = [f"DROP COLUMN {quoted_name(name)}" for name in self.columns]
        dropped = ", ".join([*columns, *(["DROP PERIOD FOR SYSTEM_TIME"] if columns else []), "DROP SYSTEM VERSIONING"])
        alter = f"ALTER TABLE {quoted(self.table)}"
        keep = "SET SESSION system_versioning_alter_history = 'KEEP'"
        return (keep, f"{alter} {dropped}", f"{alter} ADD SYSTEM VERSIONING")


def precise_tables(connection: "Connection[Any]", names: Collection[str] | None = None) -> list[PreciseTable]:
    """Those of any database with one of these names, in any case of letters; None: all. Inside `server_errors`."""
    if names is None:
        versioned = rows(connection, _ALL_VERSIONED)
    else:
        chosen = sorted(names)[:MOST_NAMES]
        versioned = rows(connection, _VERSIONED, (chosen,)) if chosen else []
    found = (_precise(connection, (str(database), str(table))) for database, table in versioned)
    return [table for table in found if table is not None]


def has_precise_hidden_period(connection: "Connection[Any]", table: Table) -> bool:
    """Of a table with system versioning and hidden period columns: whether they count transactions."""
    with connection.cursor() as cursor:
        try:
            cursor.execute(f"SELECT {ROW_END} FROM {quoted(table)} LIMIT 0")  # noqa: S608  (quoted)
        except pymysql.err.MySQLError as refused:
            if refused.args[0] not in _UNSEEN:
                raise
            return False
        return bool(cursor.description[0][1] == FIELD_TYPE.LONGLONG)


def _precise(connection: "Connection[Any]", table: Table) -> PreciseTable | None:
    period = rows(connection, _PERIOD, table)
    if period:
        is_precise = any(kind == "bigint" for _, kind in period)
        return PreciseTable(table, tuple(str(name) for name, _ in period)) if is_precise else None
    return PreciseTable(table, ()) if has_precise_hidden_period(connection, table) else None
