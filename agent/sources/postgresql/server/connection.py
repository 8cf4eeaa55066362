"""Connections to a PostgreSQL server, and what kind of server it is.

Comes in: a `ServerConfig`. Goes out: an authenticated session for ordinary statements (pg8000's: SCRAM, certificate;
MD5 and the password itself only where it is certain who gets them), whose socket `wire` takes over, and the server's
`Facts`. All sessions have the same settings, so that a value has one text wherever it is read. Errors of pg8000 become
ours here, by SQLSTATE, never by their text.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from socket import AF_UNIX, socket
from typing import Any

import pg8000.native
import scramp
from pg8000.exceptions import DatabaseError, InterfaceError

from agent.config_entries import is_this_host
from agent.errors import (
    SourceAccessDenied,
    SourceConnectionLost,
    SourceError,
    SourceFailed,
    SourceGrantMissing,
    SourceLoginUnsafe,
    SourceVersionUnsupported,
    StateFolderUnusable,
)
from agent.server_words import SERVER_WORDS
from agent.sources.postgresql.config import ServerConfig, TlsMode
from agent.sources.postgresql.errors import SourceDatabaseMissing
from agent.sources.postgresql.positions import WalPosition
from agent.sources.postgresql.server import sockets
from agent.sources.postgresql.server.quoting import quoted

Row = tuple[Any, ...]

OLDEST_VERSION = 140000
#: of all sessions of ours, as pg_stat_activity shows them
APPLICATION_NAME = "menura"
#: a statement that takes longer is ended by the server
STATEMENT_TIMEOUT_SECONDS = 60.0
#: so long a statement waits for a lock
LOCK_TIMEOUT_SECONDS = 5.0
#: beyond the server's own limit a server that says nothing is gone
READ_TIMEOUT_SECONDS = STATEMENT_TIMEOUT_SECONDS + 15.0

#: In which texts values are written; alike in all sessions, so the stream's values and those of dumps are the same.
_FORMS = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmlbinary": "base64",
    "standard_conforming_strings": "on",
    # names of types, tables and functions in values are written with their schema
    "search_path": "pg_catalog",
}
_LIMITS = {
    # a row that a policy hides is an error, not a row less
    "row_security": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "default_transaction_read_only": "on",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "600s",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    # a client that is gone without a word frees its slot and its locks
    "tcp_keepalives_idle": f"{sockets.KEEPALIVE_IDLE_SECONDS}s",
    "tcp_keepalives_interval": f"{sockets.KEEPALIVE_INTERVAL_SECONDS}s",
    "tcp_keepalives_count": str(sockets.KEEPALIVE_COUNT),
}

#: of a database whose server neither knows nor checks what its bytes mean
WITHOUT_ENCODING = "SQL_ASCII"

# SQLSTATEs, by the names of the server's errcodes.txt.
INVALID_PASSWORD = "28P01"  # noqa: S105
INVALID_AUTHORIZATION_SPECIFICATION = "28000"
INVALID_CATALOG_NAME = "3D000"
INSUFFICIENT_PRIVILEGE = "42501"
UNDEFINED_COLUMN = "42703"
UNDEFINED_OBJECT = "42704"
UNDEFINED_TABLE = "42P01"
DUPLICATE_OBJECT = "42710"
CONFIGURATION_LIMIT_EXCEEDED = "53400"
OBJECT_NOT_IN_PREREQUISITE_STATE = "55000"
OBJECT_IN_USE = "55006"
LOCK_NOT_AVAILABLE = "55P03"
QUERY_CANCELED = "57014"
ADMIN_SHUTDOWN = "57P01"
CRASH_SHUTDOWN = "57P02"
CANNOT_CONNECT_NOW = "57P03"
IDLE_SESSION_TIMEOUT = "57P05"
UNDEFINED_FILE = "58P01"
FEATURE_NOT_SUPPORTED = "0A000"

_CONNECTION_LOST = frozenset({ADMIN_SHUTDOWN, CRASH_SHUTDOWN, IDLE_SESSION_TIMEOUT})
_CLASS_CONNECTION_EXCEPTION = "08"
#: its messages quote values
_CLASS_DATA_EXCEPTION = "22"
_OK, _CLEARTEXT_PASSWORD, _MD5_PASSWORD, _SASL, _SASL_CONTINUE = 0, 3, 5, 10, 11
_AUTHENTICATIONS = {
    2: "Kerberos V5", 6: "SCM credentials", 7: "GSSAPI", 8: "GSSAPI", 9: "SSPI"
}  # fmt: skip


class _LoginUnsafe(InterfaceError):  # type: ignore[misc]
    """The server asks for the password in a form that shows it, or does not prove that it knows it."""


class _LoginUnsupported(InterfaceError):  # type: ignore[misc]
    """The server asks for a way to log in that is not known here."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says about itself, and about the database."""

    #: e.g. 150018
    version: int
    #: e.g. "15.18 (Debian 15.18-0+deb12u1)"
    version_text: str
    #: system identifier, decimal; a standby has that of its primary
    system: str
    timeline: int
    database_oid: int
    is_standby: bool
    encoding: str
    #: when the server's process began, in seconds since the epoch
    started: float

    def position(self, lsn: int) -> WalPosition:
        """A place in this server's log."""
        return WalPosition(lsn, self.system, self.timeline, self.database_oid)

    def same_log(self, other: "Facts") -> bool:
        """Whether they are one server, or a standby and its primary."""
        return (self.system, self.database_oid) == (other.system, other.database_oid)


class Connection(pg8000.native.Connection):  # type: ignore[misc]
    """A session of one thread. Its statements commit by themselves; they run in text by the simple protocol."""

    def __init__(self, server: ServerConfig, connected: socket, *, replication: bool, settings: dict[str, str]) -> None:
        self._server, self._awaits_proof = server, False
        super().__init__(
            user=server.user,
            host=server.host,
            database=server.database,
            password=server.password.reveal(),
            sock=connected,
            ssl_context=False,
            application_name=APPLICATION_NAME,
            replication="database" if replication else None,
            startup_params=settings,
        )

    @property
    def socket(self) -> socket:
        found: socket = self._usock
        return found

    @property
    def backend(self) -> tuple[int, bytes]:
        """Process id and secret key, by which a statement can be cancelled."""
        key: bytes = self._backend_key_data
        return int(struct.unpack_from("!i", key)[0]), key[4:]

    def handle_AUTHENTICATION_REQUEST(self, data: bytes, context: object) -> None:
        (code,) = struct.unpack_from("!i", data)
        if code in _AUTHENTICATIONS:
            raise _LoginUnsupported(_AUTHENTICATIONS[code])
        is_local = self._usock.family == AF_UNIX
        is_proven = is_local or self._server.tls.mode in (TlsMode.VERIFY_CA, TlsMode.VERIFY_FULL)
        if code == _CLEARTEXT_PASSWORD and not is_proven:
            raise _LoginUnsafe("asks for the password itself")
        if code == _MD5_PASSWORD and not is_proven and not is_this_host(self._server.host):
            raise _LoginUnsafe("asks for the password by MD5, from which it can be guessed")
        if code == _OK and self._awaits_proof:
            raise _LoginUnsafe("skips its part of SCRAM, the proof that it knows the password")
        self._awaits_proof = code in (_SASL, _SASL_CONTINUE)
        super().handle_AUTHENTICATION_REQUEST(data, context)

    def take_bytes_as_they_are(self) -> None:
        """Of a database without an encoding, whose text may be no UTF-8: else the server ends a statement, or the
        stream, at the first such value. Names are UTF-8 all the same. Raises pg8000's errors."""
        self.execute_simple(f"SET client_encoding = '{WITHOUT_ENCODING}'")
        self._client_encoding = "utf8"

    def close(self) -> None:
        """Also of a session that has failed; more than once does no harm."""
        if self._usock is not None:
            with suppress(OSError, InterfaceError, ValueError):
                super().close()


def connect(
    server: ServerConfig,
    source: str,
    *,
    replication: bool = False,
    statement_seconds: float = STATEMENT_TIMEOUT_SECONDS,
    lock_seconds: float = LOCK_TIMEOUT_SECONDS,
    settings: dict[str, str] | None = None,
) -> Connection:
    """A session in which each statement commits by itself; raises a `SourceError`. The caller closes it.

    `replication`: it takes the commands of the replication protocol too. `settings`: further ones of the session.
    """
    connected = sockets.open_socket(server, source)
    limits = {
        "statement_timeout": f"{round(statement_seconds * 1000)}ms",
        "lock_timeout": f"{round(lock_seconds * 1000)}ms",
    }
    try:
        connection = Connection(
            server,
            connected,
            replication=replication,
            settings={**_FORMS, **_LIMITS, **limits, **(settings or {})},
        )
    except _LoginUnsafe as unsafe:
        connected.close()
        raise _login_unsafe(unsafe, server, source) from unsafe
    except _LoginUnsupported as unsupported:
        connected.close()
        raise _access_denied(server, source, f"the server asks for a login by {unsupported}") from unsupported
    except scramp.ScramException as failed:
        connected.close()
        raise _access_denied(server, source, "the login by SCRAM failed") from failed
    except DatabaseError as refused:
        connected.close()
        raise _connect_error(refused, server, source, replication=replication) from refused
    except (InterfaceError, OSError) as failed:
        connected.close()
        raise sockets.unreachable(server, source, "the server closed the connection") from failed
    except (LookupError, ValueError, struct.error) as unreadable:
        connected.close()
        raise sockets.unreachable(server, source, "what answers there is no PostgreSQL server") from unreadable
    except BaseException:
        connected.close()
        raise
    connected.settimeout(statement_seconds + READ_TIMEOUT_SECONDS - STATEMENT_TIMEOUT_SECONDS)
    if connection.parameter_statuses.get("server_encoding") == WITHOUT_ENCODING:
        try:
            connection.take_bytes_as_they_are()
        except BaseException:
            connection.close()
            raise
    return connection


def _login_unsafe(unsafe: _LoginUnsafe, server: ServerConfig, source: str) -> SourceLoginUnsafe:
    where = f"sources.{source}.{server.section}"
    return SourceLoginUnsafe(
        sockets.connecting(server),
        f"what answers there {unsafe}",
        data="The password was not sent, and nothing was read",
        remedy=f"If it is the server, write scram-sha-256 into its pg_hba.conf and run on it: SET password_encryption ="
        f" 'scram-sha-256'; ALTER ROLE {quoted(server.user)} PASSWORD '...'; or set {where}.tls: {{mode: verify-full,"
        f" ca: FILE}} to the CA that signed its certificate. Else correct {where}.host and port. Restart the agent",
        source=source,
    )


def _access_denied(server: ServerConfig, source: str, found: str, remedy: str = "") -> SourceAccessDenied:
    where = f"sources.{source}.{server.section}"
    return SourceAccessDenied(
        sockets.connecting(server),
        found,
        data="Nothing was read",
        remedy=remedy
        or f"Correct {where}.user and password and restart the agent, or run on the server:"
        f" ALTER ROLE {quoted(server.user)} LOGIN PASSWORD '...'",
        source=source,
    )


def _connect_error(refused: DatabaseError, server: ServerConfig, source: str, *, replication: bool) -> SourceError:
    doing, untouched = sockets.connecting(server), "Nothing was read"
    state = sqlstate(refused)
    if state == INVALID_PASSWORD:
        return _access_denied(server, source, f"the server refused this user and password (SQLSTATE {state})")
    if state == INVALID_AUTHORIZATION_SPECIFICATION:
        return _access_denied(
            server,
            source,
            f"the server lets nobody in as this user from here (SQLSTATE {state})",
            f"Add to the server's pg_hba.conf, and reload it: host {server.database} {server.user} ADDRESS"
            f" scram-sha-256; or run on the server: ALTER ROLE {quoted(server.user)} LOGIN; or correct"
            f" sources.{source}.{server.section}.user and tls, and restart the agent",
        )
    if state == INVALID_CATALOG_NAME:
        return SourceDatabaseMissing(
            doing,
            f"the server has no such database (SQLSTATE {state})",
            data=untouched,
            remedy=f"Correct sources.{source}.{server.section}.database and restart the agent",
            source=source,
        )
    if state == INSUFFICIENT_PRIVILEGE and replication:
        return replication_missing(doing, server, source, f"the server refused it (SQLSTATE {state})")
    if state == INSUFFICIENT_PRIVILEGE:
        found = f"the server refused it (SQLSTATE {state})"
        return grant_missing(doing, server, source, "CONNECT", found, f"DATABASE {quoted(server.database)}")
    if state in (CANNOT_CONNECT_NOW, *_CONNECTION_LOST):
        return sockets.unreachable(server, source, "the server is starting or going down")
    return SourceFailed(
        doing,
        f"the server answered with SQLSTATE {state}: {_said(refused)}",
        data=untouched,
        remedy="It is tried again by itself; see the server's log if it repeats",
        source=source,
    )


@contextmanager
def server_errors(doing: str, server: ServerConfig, source: str, grant: str = "", on: str = "") -> Iterator[None]:
    """Turn pg8000's errors of the statements inside into ours; they need the privilege `grant` on `on`."""
    try:
        yield
    except (DatabaseError, InterfaceError, OSError) as failed:
        raise server_error(failed, doing, server, source, grant, on) from failed


def server_error(
    failed: Exception, doing: str, server: ServerConfig, source: str, grant: str = "", on: str = ""
) -> SourceError:
    """One of pg8000's, or of the network, as one of ours; what is the caller's own mistake is raised as it is."""
    if isinstance(failed, InterfaceError) and not is_connection_lost(failed):
        raise failed
    kept = "Nothing is lost: the log is read again"
    state = sqlstate(failed)
    if is_connection_lost(failed):
        return SourceConnectionLost(
            doing,
            f"the connection to {server.address} broke",
            data=kept,
            remedy="It is tried again by itself; see the server's log if it repeats",
            source=source,
        )
    if state == INSUFFICIENT_PRIVILEGE and grant:
        found = f"the server refused it (SQLSTATE {state}): the user lacks {grant} on {on}"
        return grant_missing(doing, server, source, grant, found, on)
    remedy = "It is tried again by itself; see the server's log if it repeats"
    if state == INSUFFICIENT_PRIVILEGE:
        return SourceGrantMissing(
            doing,
            f"the server refused it (SQLSTATE {state}): {_said(failed)}",
            data=kept,
            remedy=f"Give {quoted(server.user)} that privilege on the server",
            source=source,
        )
    return SourceFailed(
        doing,
        f"{server.address} answered with SQLSTATE {state}: {_said(failed)}",
        data=kept,
        remedy=remedy,
        source=source,
    )


def grant_missing(doing: str, server: ServerConfig, source: str, grant: str, found: str, on: str) -> SourceGrantMissing:
    return SourceGrantMissing(
        doing,
        found,
        data="Nothing was read",
        remedy=f"Run on the server: GRANT {grant} ON {on} TO {quoted(server.user)}",
        source=source,
    )


def replication_missing(doing: str, server: ServerConfig, source: str, found: str) -> SourceGrantMissing:
    return SourceGrantMissing(
        doing,
        f"{found}: the user may not replicate",
        data="Nothing was read",
        remedy=f"Run on the server: ALTER ROLE {quoted(server.user)} REPLICATION; on Amazon RDS:"
        f" GRANT rds_replication TO {quoted(server.user)}",
        source=source,
    )


def sqlstate(failed: BaseException | None) -> str:
    """Five signs; empty: the server has not said one."""
    fields = failed.args[0] if isinstance(failed, DatabaseError) and failed.args else None
    return str(fields.get("C", "")) if isinstance(fields, dict) else ""


def is_connection_lost(failed: Exception) -> bool:
    """Of pg8000's own errors those of the network; the others are of who calls it."""
    if isinstance(failed, InterfaceError):
        return isinstance(failed.__cause__, OSError)
    state = sqlstate(failed)
    return (
        not isinstance(failed, DatabaseError)
        or state in _CONNECTION_LOST
        or state.startswith(_CLASS_CONNECTION_EXCEPTION)
    )


def _said(failed: Exception) -> str:
    """The server's own words, where they can't quote a row's value."""
    fields = failed.args[0] if isinstance(failed, DatabaseError) and failed.args else None
    if not isinstance(fields, dict) or sqlstate(failed).startswith(_CLASS_DATA_EXCEPTION):
        return "see the server's log"
    return SERVER_WORDS.quoted(str(fields.get("M", "")))


def rows(connection: Connection, statement: str, **parameters: object) -> list[Row]:
    """All rows of one statement; `:name` in it stands for a parameter."""
    found = connection.run(statement, **parameters)
    return [tuple(row) for row in found or ()]


@contextmanager
def writing(connection: Connection) -> Iterator[None]:
    """One transaction, in a session that otherwise only reads."""
    rows(connection, "BEGIN READ WRITE")
    try:
        yield
    except DatabaseError as failed:
        if not is_connection_lost(failed):
            rows(connection, "ROLLBACK")
        raise
    except StateFolderUnusable:
        rows(connection, "ROLLBACK")
        raise
    rows(connection, "COMMIT")


def setting(connection: Connection, name: str) -> str | None:
    """A setting as SHOW writes it; None where the server has none of that name, or hides it."""
    found = rows(connection, "SELECT current_setting(:name, true)", name=name)
    return None if found[0][0] is None else str(found[0][0])


def setting_bytes(connection: Connection, name: str) -> int | None:
    """A setting that is an amount of memory or WAL; None: it has no bound, or there is no such setting."""
    found = rows(
        connection, "SELECT setting::bigint, pg_size_bytes('1' || unit) FROM pg_settings WHERE name = :name", name=name
    )
    return None if not found or found[0][0] < 0 else int(found[0][0] * found[0][1])


def setting_seconds(connection: Connection, name: str) -> int | None:
    """A setting that is a time, of a second at least; None: there is no such setting."""
    found = rows(
        connection,
        "SELECT setting::bigint, extract(epoch FROM ('1' || unit)::interval)::bigint FROM pg_settings"
        " WHERE name = :name",
        name=name,
    )
    return int(found[0][0] * found[0][1]) if found else None


_FACTS = """
SELECT current_setting('server_version_num')::int,
       current_setting('server_version'),
       (SELECT system_identifier FROM pg_control_system())::text,
       pg_is_in_recovery(),
       (SELECT timeline_id FROM pg_control_checkpoint()),
       (SELECT coalesce(min_recovery_end_timeline, 0) FROM pg_control_recovery()),
       (SELECT oid FROM pg_database WHERE datname = current_database()),
       current_setting('server_encoding'),
       extract(epoch FROM pg_postmaster_start_time())::float8
"""


def facts_of(connection: Connection, source: str) -> Facts:
    """Which server this is; raises `SourceVersionUnsupported`. Statements inside `server_errors`."""
    version, text, system, is_standby, checkpointed, recovered, oid, encoding, started = rows(connection, _FACTS)[0]
    if version < OLDEST_VERSION:
        raise SourceVersionUnsupported(
            "asking the server for its version",
            f"found {text}, expected PostgreSQL {OLDEST_VERSION // 10000} and later",
            data="Nothing was read",
            remedy="Upgrade the server",
            source=source,
        )
    timeline = max(checkpointed, recovered)
    if not is_standby:  # it is written by the first checkpoint after a promotion, which may take a while
        written = "SELECT pg_walfile_name(pg_current_wal_insert_lsn())"
        timeline = int(str(rows(connection, written)[0][0])[:8], 16)
    return Facts(version, text, system, timeline, oid, is_standby, encoding, started)


def end_of_wal(connection: Connection, facts: Facts) -> str:
    """The LSN up to which changes can be read now: what is flushed, on a standby what is replayed."""
    function = "pg_last_wal_replay_lsn" if facts.is_standby else "pg_current_wal_flush_lsn"
    return str(rows(connection, f"SELECT {function}()")[0][0])
