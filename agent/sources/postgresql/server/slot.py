"""Replication slots: which there are, and how one is made.

A slot keeps the server's WAL from where its reader is, in bounds that the server's owner sets.
"""

from contextlib import closing
from dataclasses import dataclass

from pg8000.exceptions import DatabaseError, InterfaceError

from agent.errors import SourceError, SourceFailed, SourceVersionUnsupported
from agent.sources.postgresql.config import ServerConfig
from agent.sources.postgresql.errors import SlotsExhausted, WalLevelNotLogical
from agent.sources.postgresql.positions import parse_lsn
from agent.sources.postgresql.server.connection import (
    CONFIGURATION_LIMIT_EXCEEDED,
    FEATURE_NOT_SUPPORTED,
    INSUFFICIENT_PRIVILEGE,
    LOCK_NOT_AVAILABLE,
    OBJECT_NOT_IN_PREREQUISITE_STATE,
    QUERY_CANCELED,
    Connection,
    connect,
    facts_of,
    replication_missing,
    rows,
    server_error,
    server_errors,
    setting,
    sqlstate,
)
from agent.sources.postgresql.server.quoting import quoted

PLUGIN = "pgoutput"
#: a new slot waits so long for each transaction that runs
CREATION_SECONDS = 60.0
_FAILOVER_VERSION = 170000
_OPTIONS_VERSION = 150000
WAL_LEVEL_REMEDY = (
    "Run on the server: ALTER SYSTEM SET wal_level = 'logical'; and restart it; on Amazon RDS set"
    " rds.logical_replication = 1 in its parameter group, on Google Cloud SQL the flag cloudsql.logical_decoding = on"
)


@dataclass(frozen=True, slots=True)
class Slot:
    name: str
    #: empty: of physical replication
    plugin: str
    database: str
    #: from where the server keeps WAL; None: it keeps none
    restart_lsn: int | None
    #: what lies before it is not sent again
    confirmed_flush_lsn: int | None
    #: of the server's process that sends its changes
    active_pid: int | None
    #: reserved, extended, unreserved or lost
    wal_status: str
    #: WAL that may still be written before the slot loses some; None: there is no bound
    safe_wal_bytes: int | None
    #: in the server's words; empty where it says none
    invalidation_reason: str = ""

    @property
    def is_lost(self) -> bool:
        return self.wal_status == "lost" or bool(self.invalidation_reason) or self.confirmed_flush_lsn is None


_FIND = """
SELECT slot_name::text, coalesce(plugin::text, ''), coalesce(database::text, ''), restart_lsn::text,
       confirmed_flush_lsn::text, active_pid, coalesce(wal_status, ''), safe_wal_size,
       coalesce(to_jsonb(s) ->> 'invalidation_reason',
                CASE WHEN to_jsonb(s) ->> 'conflicting' = 'true' THEN 'conflict with recovery' END, '')
  FROM pg_replication_slots s WHERE slot_name = :name
"""


def find_slot(connection: Connection, name: str) -> Slot | None:
    """Whatever its database; inside `server_errors`."""
    found = rows(connection, _FIND, name=name)
    if not found:
        return None
    name, plugin, database, restart, confirmed, pid, status, safe, reason = found[0]
    return Slot(
        name,
        plugin,
        database,
        parse_lsn(restart) if restart else None,
        parse_lsn(confirmed) if confirmed else None,
        pid,
        status,
        None if safe is None else int(safe),
        reason,
    )


def create_slot(server: ServerConfig, source: str, name: str) -> int:
    """Make it; the LSN from which it has all changes. Waits for transactions that run; raises a `SourceError`."""
    doing = f"making the replication slot {name}"
    with closing(connect(server, source)) as ordinary:
        with server_errors(doing, server, source):
            facts = facts_of(ordinary, source)
        with closing(connect(server, source, replication=True, lock_seconds=CREATION_SECONDS)) as connection:
            # of each transaction; on a standby until its primary tells which ones run
            connection.socket.settimeout(4 * CREATION_SECONDS)
            try:
                made = rows(connection, _creation(name, facts.version, is_standby=facts.is_standby))
            except (DatabaseError, InterfaceError, OSError) as failed:
                raise _creation_error(failed, doing, server, source, ordinary) from failed
    return parse_lsn(str(made[0][1]))


def drop_slot(server: ServerConfig, source: str, name: str) -> None:
    """Nothing where it is not there; raises a `SourceError`, also where it is in use."""
    doing = f"dropping the replication slot {name}"
    with closing(connect(server, source)) as connection, server_errors(doing, server, source):
        if find_slot(connection, name) is not None:
            rows(connection, "SELECT pg_drop_replication_slot(:name)", name=name)


def _creation(name: str, version: int, *, is_standby: bool) -> str:
    command = f"CREATE_REPLICATION_SLOT {quoted(name)} LOGICAL {PLUGIN}"
    if version < _OPTIONS_VERSION:
        return f"{command} NOEXPORT_SNAPSHOT"
    follows = ", FAILOVER true" if version >= _FAILOVER_VERSION and not is_standby else ""
    return f"{command} (SNAPSHOT 'nothing'{follows})"


def _creation_error(
    failed: Exception, doing: str, server: ServerConfig, source: str, ordinary: Connection
) -> SourceError:
    state = sqlstate(failed)
    if state == INSUFFICIENT_PRIVILEGE:
        return replication_missing(doing, server, source, f"the server refused it (SQLSTATE {state})")
    if state == CONFIGURATION_LIMIT_EXCEEDED:
        return slots_exhausted(doing, server, source)
    if state == FEATURE_NOT_SUPPORTED:
        return standby_unable(doing, server, source)
    with server_errors(doing, server, source):
        if state == OBJECT_NOT_IN_PREREQUISITE_STATE and setting(ordinary, "wal_level") != "logical":
            return wal_level_not_logical(doing, source, setting(ordinary, "wal_level") or "unknown")
        if state in (LOCK_NOT_AVAILABLE, QUERY_CANCELED) or isinstance(failed, TimeoutError):
            return _busy(doing, source, ordinary)
    return server_error(failed, doing, server, source)


def slots_exhausted(doing: str, server: ServerConfig, source: str) -> SlotsExhausted:
    return SlotsExhausted(
        doing,
        f"{server.address} has no room for one more slot",
        data="Nothing was read",
        remedy="Drop a slot that nobody reads: SELECT slot_name FROM pg_replication_slots WHERE NOT active; SELECT"
        " pg_drop_replication_slot('...'); or raise max_replication_slots and restart the server",
        source=source,
    )


def wal_level_not_logical(doing: str, source: str, found: str) -> WalLevelNotLogical:
    return WalLevelNotLogical(
        doing,
        f"wal_level is {found}, expected logical",
        data="Nothing was read",
        remedy=WAL_LEVEL_REMEDY,
        source=source,
    )


def standby_unable(doing: str, server: ServerConfig, source: str) -> SourceVersionUnsupported:
    return SourceVersionUnsupported(
        doing,
        f"{server.address} is a standby of a version before 16, which gives no changes",
        data="Nothing was read",
        remedy=f"Name the primary in sources.{source}.replication, and restart the agent",
        source=source,
    )


_RUNNING = """
SELECT pid, coalesce(date_trunc('second', now() - xact_start)::text, '')
  FROM pg_stat_activity
 WHERE (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) AND pid <> pg_backend_pid()
       AND backend_type = 'client backend'
 ORDER BY xact_start NULLS LAST LIMIT 5
"""


def oldest_transactions(connection: Connection) -> str:
    """Those that this user may see, in words; inside `server_errors`."""
    return ", ".join(f"server process {pid} for {age}" for pid, age in rows(connection, _RUNNING))


def _busy(doing: str, source: str, connection: Connection) -> SourceFailed:
    """It waits for transactions."""
    seen = oldest_transactions(connection)
    return SourceFailed(
        doing,
        f"transactions ran for longer than {CREATION_SECONDS:.0f} s" + (f": {seen}" if seen else ""),
        data="Nothing was read, and no slot is left",
        remedy="It is tried again by itself; end transactions that nobody needs: SELECT pg_terminate_backend(PID)",
        source=source,
    )
