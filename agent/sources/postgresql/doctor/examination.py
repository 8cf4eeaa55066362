"""Asks a source's servers what `checks` judge, and names the least grants. Changes nothing on a server."""

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from ssl import SSLSocket

from menura.doctor import Check, Finding
from menura.errors import MenuraError

from agent.config_entries import is_this_host
from agent.doctor.source_doctor import reachable, unreachable
from agent.errors import SourceError
from agent.settings import SourceConfig
from agent.sources.postgresql.config import PostgresqlConfig, ServerConfig
from agent.sources.postgresql.doctor.checks import ServerFacts, Transaction, checks
from agent.sources.postgresql.server.checks import advice
from agent.sources.postgresql.server.connection import (
    APPLICATION_NAME,
    Connection,
    connect,
    facts_of,
    rows,
    server_errors,
)
from agent.sources.postgresql.server.quoting import quoted
from agent.sources.postgresql.server.slot import find_slot

__all__ = ["examine", "flavors", "grants"]

flavors = ("postgresql",)
DOING = "examining the server"
#: of a server that describes the tables and gives their rows, where another one's changes are read
_OF_CLIENT = {"version", "standby-feedback", "grants-too-many", "grant-select", "connections", "encrypted", "clock"}
#: rds_replication stands for the attribute on servers that give nobody that
_SERVER = """
    SELECT current_user::text, rolsuper, rolreplication OR EXISTS (
        SELECT 1 FROM pg_roles AS managed WHERE managed.rolname = 'rds_replication'
            AND pg_has_role(current_user, managed.oid, 'MEMBER')),
        (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_stat_replication),
        (SELECT sum(numbackends) FROM pg_stat_database)
    FROM pg_roles WHERE rolname = current_user
"""
#: without pg_read_all_stats those of its own role alone
_OLDEST = """
    SELECT pid, usename::text, application_name, xact_start::text,
        extract(epoch FROM clock_timestamp() - xact_start)::bigint
    FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND xact_start IS NOT NULL AND application_name <> :ours
    ORDER BY xact_start LIMIT 1
"""
_PUBLICATION = """
    SELECT array_remove(ARRAY[CASE WHEN pubinsert THEN 'insert' END, CASE WHEN pubupdate THEN 'update' END,
        CASE WHEN pubdelete THEN 'delete' END, CASE WHEN pubtruncate THEN 'truncate' END], NULL), pubviaroot
    FROM pg_publication WHERE pubname = :name
"""


def grants(flavor: str, user: str, host: str, database: str, names: Sequence[str]) -> list[str]:
    """`names`: schemas; none: public. An administrator runs them in the database, with names for those in capitals.

    `host` is pg_hba.conf's to say.

    >>> grants("postgresql", "menura", "10.0.0.7/32", "shop", [])[-1]
    '-- pg_hba.conf: host shop menura 10.0.0.7/32 scram-sha-256'
    """
    role, source, owner = quoted(user), database or "DATABASE", quoted("OWNER")
    schemas = [quoted(schema) for schema in names or ["public"]]
    lines = [f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD '...';"]
    lines += [f"GRANT CONNECT ON DATABASE {quoted(source)} TO {role};"]
    for schema in schemas:
        lines += [
            f"GRANT USAGE ON SCHEMA {schema} TO {role};",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role};",
            f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema} GRANT SELECT ON TABLES TO {role};",
        ]
    lines += [
        "CREATE PUBLICATION menura WITH (publish_via_partition_root = true);",
        "-- in place of the statements about the publication, so that the agent publishes tables itself:",
        f"--   GRANT {owner} TO {role}; GRANT CREATE ON DATABASE {quoted(source)} TO {role};",
        *(f"ALTER PUBLICATION menura ADD TABLE ONLY {schema}.{quoted('TABLE')};" for schema in schemas),
    ]
    return [*lines, f"-- pg_hba.conf: host {source} {user} {host or 'ADDRESS'} scram-sha-256"]


def examine(tenant: str, agent: str, source: SourceConfig) -> list[Finding]:
    assert isinstance(source, PostgresqlConfig)  # of `configure`
    slot = source.slot_of(tenant, agent)
    found = _of_server(source, source.replication, slot, checks.all)
    if source.client != source.replication:
        found += _of_server(source, source.client, slot, [one for one in checks.all if one.name in _OF_CLIENT])
    return found


def _of_server(
    source: PostgresqlConfig, server: ServerConfig, slot: str, wanted: Iterable[Check[ServerFacts]]
) -> list[Finding]:
    part = f"source {source.name}, {server.section}"
    try:
        facts = gather(source, server, slot)
    except SourceError as error:
        return unreachable(part, error, wanted)
    return [reachable(part, server.address), *(check.of(part, facts) for check in wanted)]


def gather(source: PostgresqlConfig, server: ServerConfig, slot_name: str) -> ServerFacts:
    """Raises a `SourceError`."""
    with closing(connect(server, source.name)) as connection, server_errors(DOING, server, source.name):
        facts = facts_of(connection, source.name)
        ((role, is_super, may_replicate, slots, senders, connections),) = rows(connection, _SERVER)
        oldest = rows(connection, _OLDEST, ours=APPLICATION_NAME)
        slot = find_slot(connection, slot_name)
        published = rows(connection, _PUBLICATION, name=source.publication)
        return ServerFacts(
            version=facts.version,
            version_text=facts.version_text,
            is_standby=facts.is_standby,
            settings=_settings(connection),
            role=str(role),
            is_superuser=bool(is_super),
            may_replicate=bool(may_replicate),
            slots=int(slots),
            senders=int(senders),
            connections=int(connections),
            slot=slot_name,
            slot_status="" if slot is None else slot.wal_status,
            slot_reason="" if slot is None else slot.invalidation_reason,
            publication=source.publication,
            publishes=frozenset(published[0][0]) if published else None,
            via_root=bool(published and published[0][1]),
            findings=_advice(source),
            oldest_transaction=Transaction(*oldest[0]) if oldest else None,
            skew_us=_skew_us(connection),
            is_encrypted=isinstance(connection.socket, SSLSocket),
            is_this_host=is_this_host(server.host),
            setting=f"sources.{source.name}.{server.section}",
        )


def _settings(connection: Connection) -> dict[str, str]:
    return {str(name): str(value) for name, value in rows(connection, "SELECT name, setting FROM pg_settings")}


def _advice(source: PostgresqlConfig) -> list[MenuraError] | None:
    try:
        return advice(source)
    except SourceError:  # one of its two servers says why among the findings
        return None


def _skew_us(connection: Connection) -> int:
    """The server's clock less the middle of the time that the question took."""
    before = time.time_ns() // 1000
    ((server_us,),) = rows(connection, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    return int(server_us) - (before + time.time_ns() // 1000) // 2
