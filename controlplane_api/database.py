"""The control plane's database: SQLite embedded, PostgreSQL in production, brought to the newest revision when opened.

Comes in: a URL. Goes out: short transactions, `read` or `write`. A write on SQLite takes the write lock at its
beginning, so that two writers wait for each other (`BUSY_SECONDS` in all), those of a process in order (`writers`), and
none fails halfway. On PostgreSQL no statement waits longer than that for a lock, and a process that stands still in a
transaction is cut off after `IDLE_SECONDS`, so that others get what it holds. A kill between two statements leaves the
database as it was before the transaction, migrations included.

A failure is one of two. `DatabaseUnavailable` is transient: the connection, a lock, a full disk, a missing grant or
table; the same transaction may succeed later. `DatabaseRefused` is permanent: the database refuses these values, and
will whenever they come (`is_permanent`).
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    NotSupportedError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from controlplane_api import revisions
from controlplane_api.errors import DatabaseError, DatabaseRefused, DatabaseUnavailable, DatabaseUnsupported
from controlplane_api.writers import TurnTimeout, Writers

BUSY_SECONDS = 20
BUSY_LOOK_SECONDS = 0.02
#: of a transaction, between two statements
IDLE_SECONDS = 120
#: of files
PRIVATE = 0o600
#: rows looked up by name in one statement; SQLite takes 32,766 parameters
LOOKUP_ROWS = 5_000
#: on SQLite, of a transaction that writes: how long it may still wait for the file
_WRITE_SECONDS = "menura_write_seconds"
#: classes of SQLSTATE that say the same again whenever it is tried: features, cardinality, data, integrity, limits
_PERMANENT_SQLSTATES = ("0A", "21", "22", "23", "54")
_LOCK_NOT_AVAILABLE = "55P03"


@dataclass(frozen=True, slots=True)
class Database:
    engine: Engine
    _writers: Writers = field(default_factory=lambda: Writers(BUSY_SECONDS))

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads; raises `DatabaseUnavailable` or `DatabaseRefused`."""
        with self._transaction(write=False) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that writes: all of it, or, after any exception, nothing.

        Raises `DatabaseUnavailable` or `DatabaseRefused`.
        """
        with self._transaction(write=True) as connection:
            yield connection

    def prepare(self) -> None:
        """For its migration. Raises `DatabaseUnavailable` or `DatabaseRefused`."""
        try:
            revisions.prepare(self.engine)
        except (StatementError, PoolTimeout) as failure:
            raise _failure(self.shown_url, failure) from failure

    @property
    def file(self) -> Path | None:
        """Of SQLite."""
        name = self.engine.url.database
        return Path(name).absolute() if self.engine.dialect.name == "sqlite" and name else None

    @property
    def shown_url(self) -> str:
        """Without its password, which may also stand behind its question mark."""
        return self.engine.url.set(query={}).render_as_string(hide_password=True)

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Connection]:
        try:
            with (
                self._writers.turn() if write and self.engine.dialect.name == "sqlite" else nullcontext() as seconds,
                self.engine.connect().execution_options(**{_WRITE_SECONDS: seconds}) as connection,
                connection.begin(),
            ):
                yield connection
        except (StatementError, PoolTimeout, TurnTimeout, OverflowError) as failure:
            raise _failure(self.shown_url, failure) from failure


def is_permanent(failure: BaseException) -> bool:
    """Whether a statement that failed so fails whenever it is repeated.

    SQLite's driver raises OverflowError for a number beyond 64 bits; what SQLAlchemy can't make a value of is a
    StatementError of its own.
    """
    if not isinstance(failure, DBAPIError):
        return isinstance(failure, StatementError | OverflowError)
    if failure.connection_invalidated:
        return False
    sqlstate = getattr(failure.orig, "sqlstate", None) or ""
    return isinstance(failure, DataError | IntegrityError | NotSupportedError) or sqlstate[:2] in _PERMANENT_SQLSTATES


def bound_lock_waits(connection: Connection, seconds: float) -> None:
    """From here to the end of the transaction, or of its savepoint, no statement waits longer for a lock.

    It fails then, as `is_lock_timeout` knows. SQLite locks its file, at the beginning.
    """
    if connection.dialect.name == "postgresql":
        most = f"{max(1, int(seconds * 1000))}ms"
        connection.execute(text("SELECT set_config('lock_timeout', :most, true)"), {"most": most})


def read_one_moment(connection: Connection) -> None:
    """All that the transaction reads is of one moment, and it locks nothing; first in it. SQLite reads so by itself."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))


def is_lock_timeout(failure: BaseException | None) -> bool:
    """Whether a statement, or what it was for, failed since another transaction holds a lock."""
    while failure is not None:
        if getattr(getattr(failure, "orig", None), "sqlstate", None) == _LOCK_NOT_AVAILABLE:
            return True
        failure = failure.__cause__
    return False


def open_database(url: str) -> Database:
    """Connect and upgrade to the newest revision; several processes may do so at the same time.

    `url` is ``sqlite:///FILE`` or ``postgresql://USER:PASSWORD@HOST:PORT/DATABASE``.
    Raises `DatabaseUnsupported`, `DatabaseUnavailable` or `DatabaseTooNew`.
    """
    database = Database(_engine(url))
    if database.file is not None:
        _keep_private(database.file)
    try:
        with database.read() as connection:
            is_newest = revisions.is_newest(connection)
        if not is_newest:
            database.prepare()
            with database.write() as connection:
                revisions.bring_to_newest(connection)
    except DatabaseError:
        database.close()
        raise
    return database


def _keep_private(file: Path) -> None:
    """Its owner alone reads it, and what SQLite makes beside it with the file's mode: keys of rows are in them.

    Where it is somebody else's, or can't be made, SQLite says what that means. One that is there is not opened: closing
    it would drop the locks that this process has on it.
    """
    with suppress(OSError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE))
    with suppress(OSError):
        for there in (file, *file.parent.glob(f"{file.name}-[ws]*")):  # also of a former version
            there.chmod(PRIVATE)


def existing_database(url: str) -> Database:
    """Connect to what is there, whatever its revision; nothing is made or upgraded.

    Raises `DatabaseUnsupported`, `DatabaseUnavailable`.
    """
    engine = _engine(url)
    if engine.dialect.name == "sqlite" and not Path(str(engine.url.database)).is_file():
        raise DatabaseUnavailable(
            f"opening the database {url}",
            f"there is no file {engine.url.database}",
            remedy="Correct --database, or start the API, which makes it.",
        )
    return Database(engine)


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise DatabaseUnsupported(
                "opening the database",
                f"the URL begins with {parsed.drivername}",
                remedy="Use sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
            )
        return _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _postgresql(parsed)
    except (ArgumentError, NoSuchModuleError, ValueError) as broken:
        raise DatabaseUnsupported(
            "opening the database",
            "its URL can't be read",
            remedy="Use sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
        ) from broken
    except ModuleNotFoundError as missing:
        raise DatabaseUnsupported(
            "opening the database",
            f"the package {missing.name} is not installed",
            remedy="Install menura[postgresql].",
        ) from missing


def _postgresql(url: URL) -> Engine:
    engine = create_engine(
        url,
        pool_pre_ping=True,
        pool_size=10,
        max_overflow=30,
        connect_args={"connect_timeout": 10, "fallback_application_name": "menura"},
    )
    event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _prepare_postgresql(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    """By a statement: poolers in between refuse options of a connection's start."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(f"SET lock_timeout = '{BUSY_SECONDS}s'")
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
    connection.commit()


def _sqlite(url: URL) -> Engine:
    if not url.database or url.database == ":memory:":
        raise DatabaseUnsupported(
            "opening the database",
            "SQLite in memory can't be shared by gateway and API",
            remedy="Name a file: sqlite:///FILE.",
        )
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # `_begin_sqlite` begins, nobody else
    with closing(connection.cursor()) as cursor:
        _write_ahead(cursor)
        cursor.execute("PRAGMA foreign_keys=ON")


def _write_ahead(cursor: DBAPICursor) -> None:
    """The file keeps that mode. SQLite does not wait by itself where several connections begin it at once."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as locked:
            if locked.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(BUSY_LOOK_SECONDS)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    seconds = connection.get_execution_options().get(_WRITE_SECONDS)
    if seconds is None:
        connection.exec_driver_sql("BEGIN")
        return
    connection.exec_driver_sql(f"PRAGMA busy_timeout={int(seconds * 1000)}")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")


def failure_words(failure: BaseException) -> str:
    """The driver's own words: SQLAlchemy's would add the statement with its values."""
    words = str(failure.orig if isinstance(failure, StatementError) else failure).strip()
    return words.splitlines()[0] if words else type(failure).__name__


def _failure(url: str, failure: StatementError | PoolTimeout | TurnTimeout | OverflowError) -> DatabaseError:
    if is_permanent(failure):
        return DatabaseRefused(
            f"using the database {url}",
            f"it refuses a value ({failure_words(failure)})",
            data="Nothing was written.",
            remedy="Report it, with what was being done.",
        )
    return DatabaseUnavailable(
        f"using the database {url}",
        failure_words(failure),
        data="Nothing was written.",
        remedy="Check that it is there, runs, and takes this user; see --database.",
    )
