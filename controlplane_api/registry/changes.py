"""Changes as PostgreSQL tells them: one connection of a gateway's that listens, beside those of its pool.

Comes in: notifications, which triggers send (revision 0017). Goes out: that something may be new, no more: who hears it
looks at the tables. What was told while nobody listened is lost; so a connection that is new counts as a change.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from gateway.registry import RegistryUnavailable, WaitForChange

CHANNEL = "menura_changes"


@contextmanager
def listening(engine: Engine) -> Iterator[WaitForChange]:
    """Waits in the thread that calls it; raises `RegistryUnavailable`, and connects anew when it is called again."""
    feed = _Feed(engine)
    try:
        yield feed.wait
    finally:
        feed.close()


class _Feed:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: psycopg's own
        self._connection: Any = None

    def wait(self, seconds: float) -> bool:
        try:
            if self._connection is None:
                self._connect()
                return True
            return any(True for _ in self._connection.notifies(timeout=seconds, stop_after=1))
        except (DBAPIError, self._engine.dialect.loaded_dbapi.Error) as broken:
            self.close()
            raise RegistryUnavailable(f"listening for changes: {type(broken).__name__}") from broken

    def _connect(self) -> None:
        pooled = self._engine.raw_connection()
        self._connection = pooled.driver_connection
        pooled.detach()  # it never goes back into the pool
        self._connection.rollback()
        self._connection.autocommit = True
        self._connection.execute(f"LISTEN {CHANNEL}")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
