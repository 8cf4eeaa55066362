"""Which transactions hold what others wait for, as an operator would look for them.

Comes in: what PostgreSQL says of its sessions. Goes out: words for each session that others of this database wait for
and that itself waits for none. No statement and no value stands in them. SQLite has one writer, and does not say who.
"""

from menura.errors import printable
from sqlalchemy import Connection, text

from gateway.registry import LockHolder

MAX_HOLDERS = 10
MAX_NAME_CHARS = 64

_HOLDERS = text(
    """
SELECT DISTINCT blocking.pid, a.usename, a.application_name, host(a.client_addr) AS host, a.state,
    to_char(a.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS since
FROM pg_stat_activity waiting
CROSS JOIN LATERAL unnest(pg_blocking_pids(waiting.pid)) AS blocking (pid)
LEFT JOIN pg_stat_activity a ON a.pid = blocking.pid
WHERE waiting.datname = current_database() AND waiting.wait_event_type = 'Lock'
    AND a.wait_event_type IS DISTINCT FROM 'Lock'
ORDER BY blocking.pid LIMIT :most
"""
)


def holders(connection: Connection) -> dict[LockHolder, str]:
    if connection.dialect.name != "postgresql":
        return {}
    return {
        LockHolder(row.pid, row.since or ""): "a prepared transaction (pg_prepared_xacts)"
        if row.pid == 0
        else f"process {row.pid} of user {_shown(row.usename)}, application {_shown(row.application_name)},"
        f" from {row.host or 'this host'}, {row.state or 'active'} in a transaction since {row.since or 'before'}"
        for row in connection.execute(_HOLDERS, {"most": MAX_HOLDERS})
    }


def _shown(name: str | None) -> str:
    return printable((name or "unknown")[:MAX_NAME_CHARS])
