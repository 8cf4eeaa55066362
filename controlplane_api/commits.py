"""Whether anything was committed to the database since the last look, by the least that it can be asked.

SQLite counts for each connection what others have committed. PostgreSQL names the transactions that a snapshot sees:
another one was begun or ended where these are others.
"""

from contextlib import closing
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from controlplane_api.database import Database, failure_words
from controlplane_api.errors import DatabaseUnavailable

_SNAPSHOT = text("SELECT pg_current_snapshot()::text")


class Commits:
    """Used by one thread at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        #: of SQLite, which is asked on the same one each time
        self._connection: Any = None

    def mark(self) -> str:
        """Another one after each commit, and sometimes without one. Raises `DatabaseError`."""
        if self._database.file is None:
            with self._database.read() as connection:
                return str(connection.execute(_SNAPSHOT).scalar_one())
        try:
            if self._connection is None:
                self._connection = self._database.engine.raw_connection()
            with closing(self._connection.cursor()) as cursor:
                return f"{id(self._connection)} {cursor.execute('PRAGMA data_version').fetchone()[0]}"
        except (DBAPIError, self._database.engine.dialect.loaded_dbapi.Error) as broken:
            self.close()
            raise DatabaseUnavailable(
                f"asking the database {self._database.shown_url} whether anything was committed",
                failure_words(broken),
                data="Nothing was written.",
                remedy="Check that it is there, runs, and takes this user; see --database.",
            ) from broken

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
