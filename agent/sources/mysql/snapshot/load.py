"""How busy the dump's server is, for the throttle: two status statements, over a connection of its own."""

from collections.abc import Callable
from typing import Any

import pymysql
from pymysql.connections import Connection

from agent.snapshot.throttle import Load
from agent.sources.mysql.config import MysqlConfig, ServerConfig
from agent.sources.mysql.server.connection import Facts, connect, grant_missing, is_grant_missing, rows, server_errors

_DOING = "asking how busy the dump's server is"
_LAG_GRANTS = {"mysql": "REPLICATION CLIENT", "mariadb": "REPLICA MONITOR"}
#: since which MySQL replicas are called so
_REPLICA_STATUS_SINCE = (8, 0, 22)


class LoadReader:
    """Call from one thread at a time."""

    def __init__(
        self,
        connect: Callable[[], "Connection[Any]"],
        server: ServerConfig,
        source: str,
        facts: Facts,
        *,
        lag: bool,
        lag_is_asked_for: bool,
    ) -> None:
        """`lag`: look at it; `lag_is_asked_for`: a user who may not see it is then an error."""
        self._connect = connect
        self._server = server
        self._source = source
        self._facts = facts
        self._sees_lag = lag
        self._lag_is_asked_for = lag_is_asked_for
        self._connection: Connection[Any] | None = None

    def __call__(self) -> Load:
        """Raises a `SourceError`; the next call connects anew then."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            with server_errors(_DOING, self._server, self._source):
                return self._read(self._connection)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()

    def _read(self, connection: "Connection[Any]") -> Load:
        ((_, running),) = rows(connection, "SHOW GLOBAL STATUS LIKE 'Threads\\_running'")
        lags = self._lags(connection) if self._sees_lag else []
        known = [lag for lag in lags if lag is not None]
        return Load(max(0, int(running) - 1), bool(lags), max(known) if lags and len(known) == len(lags) else None)

    def _lags(self, connection: "Connection[Any]") -> list[int | None]:
        """One per source of the server."""
        with connection.cursor() as cursor:
            try:
                cursor.execute(_lag_statement(self._facts))
            except pymysql.err.MySQLError as refused:
                if not is_grant_missing(refused):
                    raise
                if self._lag_is_asked_for:
                    raise self._lag_grant_missing() from refused
                self._sees_lag = False
                return []
            names = [str(column[0]).lower() for column in cursor.description or ()]
            at = next(n for n, name in enumerate(names) if name in ("seconds_behind_source", "seconds_behind_master"))
            return [None if row[at] is None else int(row[at]) for row in cursor.fetchall()]

    def _lag_grant_missing(self) -> Exception:
        found = f"sources.{self._source}.dump.max_replica_lag_seconds is set, and this user may not see the lag"
        return grant_missing(_DOING, self._server, self._source, _LAG_GRANTS[self._facts.flavor], found)


def load_reader(source: MysqlConfig, facts: Facts) -> LoadReader:
    """Of the dump's server, which `facts` are of."""
    lag = source.dump.max_replica_lag_seconds
    return LoadReader(
        lambda: connect(source.client, source.name),
        source.client,
        source.name,
        facts,
        lag=lag != 0,
        lag_is_asked_for=lag is not None,
    )


def _lag_statement(facts: Facts) -> str:
    if facts.flavor == "mariadb":
        return "SHOW ALL SLAVES STATUS"
    numbers = tuple(int(number) for number in facts.version.partition("-")[0].split(".")[:3])
    return "SHOW REPLICA STATUS" if numbers >= _REPLICA_STATUS_SINCE else "SHOW SLAVE STATUS"
