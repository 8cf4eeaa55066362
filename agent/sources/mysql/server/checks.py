"""Preflight: whether a source's servers are set up so that nothing would be missed.

Comes in: a source's configuration. Goes out: the server's `Facts`, or the error of the first thing that is
wrong, with the statement or the line of my.cnf that puts it right. Changes nothing on the server.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from menura.errors import MenuraError
from pymysql.connections import Connection

from agent.errors import SourceError
from agent.filter import KnownTable
from agent.sources.mysql.config import MysqlConfig
from agent.sources.mysql.ddl.identifiers import SYSTEM_DATABASES
from agent.sources.mysql.errors import BinlogDisabled, BinlogFormatNotRow, BinlogRowValuePartial, ServerIdDuplicate
from agent.sources.mysql.server.connection import Facts, connect, facts_of, grant_missing, rows, server_errors, variable
from agent.sources.mysql.server.information_schema import verdicts_on
from agent.sources.mysql.server.replication import REPLICATION_GRANT, ReplicaIdentity, register
from agent.sources.mysql.server.server_log import STATUS_GRANT, status_statement

READ_NOTHING = "Nothing was read"


def check_client(source: MysqlConfig) -> tuple[Facts, list[MenuraError]]:
    """The server that describes the tables: reachable and readable; and what of the filter does not fit its tables."""
    server = source.client
    with closing(connect(server, source.name)) as connection:
        with server_errors("reading what tables exist", server, source.name, "SELECT"):
            facts = facts_of(connection, source.name)
            sees_tables = bool(_visible_table(connection))
            has_select = bool(
                rows(
                    connection,
                    "SELECT 1 FROM information_schema.user_privileges WHERE privilege_type = 'SELECT' LIMIT 1",
                )
            )
            findings = check_filter(connection, source, facts)
        if not sees_tables and not has_select:
            found = "this user sees no table and lacks SELECT"
            raise grant_missing("reading what tables exist", server, source.name, "SELECT", found)
    return facts, findings


def check_filter(connection: "Connection[Any]", source: MysqlConfig, facts: Facts) -> list[MenuraError]:
    """Deny the tables that the filter's rules don't fit, and say what was found; inside `server_errors`."""
    return [*source.filter.check(_filtered_tables(connection, source, facts), source.name)]


def check_binlog(source: MysqlConfig, replica: ReplicaIdentity) -> Facts:
    """The server whose log is read: row-based with whole rows, and we may read it."""
    with closing(connect(source.binlog, source.name)) as connection:
        facts = check_binlog_on(connection, source, replica)
        with server_errors("registering as a replica", source.binlog, source.name, REPLICATION_GRANT):
            register(connection, replica)
    return facts


def check_binlog_on(connection: "Connection[Any]", source: MysqlConfig, replica: ReplicaIdentity) -> Facts:
    """The same without the registration, which the replication stream makes itself."""
    server = source.binlog
    with server_errors("checking the server's settings", server, source.name):
        facts = facts_of(connection, source.name)
        for setting in _SETTINGS:
            setting.check(connection, source.name)
        _check_partial_json(connection, source.name)
        own_id = int(variable(connection, "server_id") or 0)
    if own_id == replica.server_id:
        raise duplicate_id(source.name, replica, "the server itself has this id")
    with server_errors("asking for the end of the binary log", server, source.name, STATUS_GRANT):
        rows(connection, status_statement(facts))
    return facts


def duplicate_id(source: str, replica: ReplicaIdentity, found: str) -> ServerIdDuplicate:
    return ServerIdDuplicate(
        f"reading the binary log as replica {replica.server_id}",
        found,
        data="The log is read again from the last committed position",
        remedy=f"Set sources.{source}.server_id to a number that no server and no other replica has, and restart"
        " the agent",
        source=source,
    )


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    expected: str
    error: Callable[..., SourceError]
    remedy: str
    #: a server without the variable: True where that means the expected value
    may_be_absent: bool = True

    def check(self, connection: "Connection[Any]", source: str) -> None:
        found = variable(connection, self.name)
        if (found is None and self.may_be_absent) or (found is not None and found.upper() == self.expected):
            return
        raise self.error(
            "checking the server's settings",
            f"{self.name} is {found or 'empty'}, expected {self.expected or 'empty'}",
            data=READ_NOTHING,
            remedy=self.remedy,
            source=source,
        )


LOG_BIN_REMEDY = "Add log_bin=binlog to [mysqld] in my.cnf and restart the server"
_SETTINGS = (
    _Setting("log_bin", "ON", BinlogDisabled, LOG_BIN_REMEDY),
    _Setting(
        "binlog_format",
        "ROW",
        BinlogFormatNotRow,
        "Run on the server: SET GLOBAL binlog_format = 'ROW'; add binlog_format=ROW to [mysqld] in my.cnf and reconnect"
        " its clients",
    ),
)


def _check_partial_json(connection: "Connection[Any]", source: str) -> None:
    """Changes of a JSON value need the value before, which only whole images hold."""
    options = variable(connection, "binlog_row_value_options") or ""
    image = variable(connection, "binlog_row_image") or "FULL"
    if options and image.upper() != "FULL":
        raise BinlogRowValuePartial(
            "checking the server's settings",
            f"binlog_row_value_options is {options} while binlog_row_image is {image}",
            data=READ_NOTHING,
            remedy="Run on the server SET GLOBAL binlog_row_image = 'FULL' or SET GLOBAL binlog_row_value_options = '';"
            " change my.cnf likewise and reconnect its clients",
            source=source,
        )


def _visible_table(connection: "Connection[Any]") -> list[tuple[Any, ...]]:
    statement = "SELECT 1 FROM information_schema.tables WHERE table_schema NOT IN %s LIMIT 1"
    return rows(connection, statement, (sorted(SYSTEM_DATABASES),))


def _filtered_tables(connection: "Connection[Any]", source: MysqlConfig, facts: Facts) -> list[KnownTable]:
    """The tables that the filter's keys may mean."""
    names = source.filter.named()
    if not names:
        return []
    statement = (
        "SELECT table_schema, table_name, column_name, column_key = 'PRI' FROM information_schema.columns"
        " WHERE table_name IN %s AND table_schema NOT IN %s"
    )
    columns: dict[tuple[str, str], list[tuple[str, bool]]] = {}
    for database, table, column, is_key in rows(connection, statement, (sorted(names), sorted(SYSTEM_DATABASES))):
        columns.setdefault((database, table), []).append((column, bool(is_key)))
    verdicts = verdicts_on(connection, source.filter, columns, facts)
    return [
        KnownTable(
            *table,
            (name for name, _ in found),
            _keys(found),
            filter(verdicts[table].ignores, (name for name, _ in found)),
        )
        for table, found in columns.items()
    ]


def _keys(columns: list[tuple[str, bool]]) -> Iterator[str]:
    return (name for name, is_key in columns if is_key)
