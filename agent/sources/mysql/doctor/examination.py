"""Asks a source's servers what `checks` judge. Changes nothing on them."""

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pymysql
from menura.doctor import Check, Finding
from pymysql.connections import Connection

from agent.config_entries import is_this_host
from agent.doctor.source_doctor import reachable, unreachable
from agent.errors import SourceError
from agent.settings import SourceConfig
from agent.sources.mysql.config import MysqlConfig, ServerConfig
from agent.sources.mysql.ddl.identifiers import SYSTEM_DATABASES
from agent.sources.mysql.doctor.checks import ServerFacts, checks
from agent.sources.mysql.doctor.grants import FLAVORS, least_grants, privileges
from agent.sources.mysql.server.connection import account_of, connect, facts_of, is_grant_missing, rows, server_errors
from agent.sources.mysql.server.replication import identity_of
from agent.sources.mysql.server.server_log import status_statement
from agent.sources.mysql.server.transaction_precise import precise_tables
from agent.table_positions import Table

__all__ = ["examine", "flavors", "grants"]

flavors = FLAVORS
DOING = "examining the server"
#: of a server that describes the tables and gives their rows, where another one's log is read
_OF_CLIENT = {
    "version", "grant-select", "grant-replica-lag", "grants-too-many", "keys", "engines", "connections", "encrypted",
    "server-certificate", "clock",
}  # fmt: skip
_TABLES = """
    SELECT c.table_schema, c.table_name, MAX(c.column_key = 'PRI'), MAX(e.transactions = 'YES')
    FROM information_schema.columns AS c
    JOIN information_schema.tables AS t ON t.table_schema = c.table_schema AND t.table_name = c.table_name
    LEFT JOIN information_schema.engines AS e ON e.engine = t.engine
    WHERE t.table_type = 'BASE TABLE' AND c.table_schema NOT IN %s GROUP BY 1, 2 ORDER BY 1, 2
"""


def grants(flavor: str, user: str, host: str, database: str, names: Sequence[str]) -> list[str]:
    """`names`: databases whose rows may be read; none: all."""
    return least_grants(flavor, user, host or "%", names or ([database] if database else []))


def examine(tenant: str, agent: str, source: SourceConfig) -> list[Finding]:
    assert isinstance(source, MysqlConfig)  # of `configure`
    replica_id = identity_of(tenant, agent, source.name, source.server_id).server_id
    found = _of_server(source, source.binlog, replica_id, checks.all)
    if source.client != source.binlog:
        found += _of_server(source, source.client, replica_id, [one for one in checks.all if one.name in _OF_CLIENT])
    return found


def _of_server(
    source: MysqlConfig, server: ServerConfig, replica_id: int, wanted: Iterable[Check[ServerFacts]]
) -> list[Finding]:
    part = f"source {source.name}, {server.section}"
    try:
        facts = gather(source, server, replica_id)
    except SourceError as error:
        return unreachable(part, error, wanted)
    return [reachable(part, server.address), *(check.of(part, facts) for check in wanted)]


def gather(source: MysqlConfig, server: ServerConfig, replica_id: int) -> ServerFacts:
    """Raises a `SourceError`."""
    account = account_of(server, source.name)
    with closing(connect(server, source.name)) as connection, server_errors(DOING, server, source.name):
        facts = facts_of(connection, source.name)
        status: dict[str, Any] = dict(rows(connection, "SHOW SESSION STATUS"))
        tables = [(str(a), str(b), bool(c), bool(d)) for a, b, c, d in rows(connection, _TABLES, (_SYSTEM,))]
        allowed = [row for row in tables if source.filter.verdict(row[0], row[1]).allowed]
        numbers = facts.version.partition("-")[0].split(".")
        end = _or_none(connection, status_statement(facts))
        replica = "SHOW ALL SLAVES STATUS" if facts.flavor == "mariadb" else _replica_statement(numbers)
        applied = _or_none(connection, replica)
        return ServerFacts(
            flavor=facts.flavor,
            version=(int(numbers[0]), int(numbers[1])),
            variables={str(name): str(value) for name, value in rows(connection, "SHOW GLOBAL VARIABLES")},
            privileges=privileges(str(row[0]) for row in rows(connection, "SHOW GRANTS")),
            account=account,
            replica_id=replica_id,
            skew_us=_skew_us(connection),
            is_replica=None if applied is None else bool(applied),
            logged_databases=None if end is None else ",".join(str(row[2] or "") for row in end),
            ignored_databases=None if end is None else ",".join(str(row[3] or "") for row in end),
            keyless_tables=_named(row[:2] for row in allowed if not row[2]),
            untransactional_tables=_named(row[:2] for row in allowed if not row[3]),
            precise_tables=tuple(precise_tables(connection)) if facts.flavor == "mariadb" else (),
            connections=int(status.get("Threads_connected") or 0) or None,
            cipher=str(status.get("Ssl_cipher") or ""),
            certificate_days=_days_left(str(status.get("Ssl_server_not_after") or "")),
            is_this_host=is_this_host(server.host),
            setting=f"sources.{source.name}.{server.section}",
        )


_SYSTEM = sorted(SYSTEM_DATABASES)


def _named(tables: Iterable[Table]) -> tuple[Table, ...]:
    return tuple(tables)


def _replica_statement(numbers: Sequence[str]) -> str:
    return "SHOW REPLICA STATUS" if tuple(map(int, numbers[:3])) >= (8, 0, 22) else "SHOW SLAVE STATUS"


def _or_none(connection: "Connection[Any]", statement: str) -> list[tuple[Any, ...]] | None:
    """None: this user may not ask."""
    try:
        return rows(connection, statement)
    except pymysql.err.MySQLError as refused:
        if not is_grant_missing(refused):
            raise
        return None


def _skew_us(connection: "Connection[Any]") -> int:
    """The server's clock less the middle of the time that the question took."""
    before = time.time_ns() // 1000
    ((server_us,),) = rows(connection, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)")
    return int(server_us) - (before + time.time_ns() // 1000) // 2


def _days_left(until: str) -> int | None:
    """Of an instant as the server's TLS library writes it; None: it says none.

    >>> _days_left("Jan  1 00:00:00 2000 GMT") < 0, _days_left("")
    (True, None)
    """
    try:
        end = datetime.strptime(until, "%b %d %H:%M:%S %Y %Z").replace(tzinfo=UTC)
    except ValueError:
        return None
    return (end - datetime.now(UTC)).days
