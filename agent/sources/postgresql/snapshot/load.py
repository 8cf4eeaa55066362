"""How busy the dump's server is, for the throttle: one statement, over a connection of its own."""

from agent.snapshot.throttle import Load
from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.server.connection import Connection, connect, rows, server_errors

_DOING = "asking how busy the dump's server is"

#: What other users' sessions do is told to members of pg_monitor alone. A standby that has replayed all that it has
#: received is not behind; without a receiver the time of its last transaction decides; one that is paused replays none.
_LOAD = """
    SELECT (SELECT count(*) FROM pg_stat_activity
            WHERE state = 'active' AND backend_type = 'client backend' AND pid <> pg_backend_pid()),
           is_standby,
           CASE WHEN NOT is_standby THEN NULL
                WHEN pg_get_wal_replay_pause_state() = 'paused' THEN NULL
                WHEN EXISTS (SELECT FROM pg_stat_wal_receiver)
                     AND pg_last_wal_replay_lsn() >= pg_last_wal_receive_lsn() THEN 0
                ELSE ceil(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()))::bigint END
    FROM (SELECT pg_is_in_recovery() AS is_standby) AS server
"""


class LoadReader:
    """Call from one thread at a time."""

    def __init__(self, config: PostgresqlConfig) -> None:
        self._server = config.client
        self._source = config.name
        self._connection: Connection | None = None

    def __call__(self) -> Load:
        """Raises a `SourceError`; the next call connects anew then."""
        try:
            if self._connection is None:
                self._connection = connect(self._server, self._source)
            with server_errors(_DOING, self._server, self._source):
                ((running, is_standby, lag_seconds),) = rows(self._connection, _LOAD)
        except BaseException:
            self.close()
            raise
        return Load(running, is_standby, lag_seconds if lag_seconds is None else max(0, int(lag_seconds)))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __del__(self) -> None:
        """Throttles, which ask, live as long as their source and are not told of its end."""
        self.close()
