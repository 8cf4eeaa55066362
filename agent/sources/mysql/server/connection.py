"""Connections to a MySQL or MariaDB server, and what kind of server it is.

Comes in: a `ServerConfig`. Goes out: an authenticated PyMySQL connection (TLS, caching_sha2_password,
mysql_native_password), whose socket the replication stream takes over, and the server's `Facts`. Errors of
PyMySQL become ours here, by their code, never by their text.
"""

import ssl
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CR, ER

from agent.errors import (
    SourceAccessDenied,
    SourceConnectionLost,
    SourceError,
    SourceFailed,
    SourceGrantMissing,
    SourceLoginUnsafe,
    SourceTlsFailed,
    SourceUnreachable,
    SourceVersionUnsupported,
)
from agent.server_words import SERVER_WORDS
from agent.sources.mysql.config import ServerConfig, TlsMode

Flavor = Literal["mysql", "mariadb"]
Row = tuple[Any, ...]

CONNECT_TIMEOUT_SECONDS = 8.0
READ_TIMEOUT_SECONDS = 60.0

OLDEST_MYSQL = (8, 0)
OLDEST_MARIADB = (10, 5)

#: So that information_schema says all: without a server's own limit, and with the keys that MySQL adds to tables; what
#: stands in the comment is read by MySQL 8.0.30 and later alone.
_SESSION = (
    "SET SESSION sql_select_limit = 18446744073709551615"
    " /*!80030 , SESSION show_gipk_in_create_table_and_information_schema = ON */"
)

# Server codes that PyMySQL has no name for.
_ER_ACCESS_DENIED_NO_PASSWORD = 1698
_ER_SPECIFIC_ACCESS_DENIED = 1227
_ER_HOST_NOT_PRIVILEGED = 1130
_ER_SECURE_TRANSPORT_REQUIRED = 3159
_ER_ACCOUNT_LOCKED = (3118, 4151)
_ER_MUST_CHANGE_PASSWORD = (1820, 1862)
_ER_AUTH_PLUGIN_UNKNOWN = (1251, 2059)

_ACCESS_DENIED = frozenset(
    {
        ER.ACCESS_DENIED_ERROR,
        _ER_ACCESS_DENIED_NO_PASSWORD,
        _ER_HOST_NOT_PRIVILEGED,
        *_ER_ACCOUNT_LOCKED,
        *_ER_MUST_CHANGE_PASSWORD,
        *_ER_AUTH_PLUGIN_UNKNOWN,
    }
)
_GRANT_MISSING = frozenset(
    {ER.DBACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR, _ER_SPECIFIC_ACCESS_DENIED}
)
#: those that prove a password; mysql_clear_password and dialog show it, mysql_old_password shows most of it
_LOGIN_PLUGINS = frozenset({b"caching_sha2_password", b"sha256_password", b"mysql_native_password", b"client_ed25519"})
_PLUGIN_NAME_BYTES = 64
_CONNECTION_LOST = frozenset({CR.CR_SERVER_LOST, CR.CR_SERVER_GONE_ERROR, 0})


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says about itself."""

    flavor: Flavor
    #: as the server prints it, e.g. "10.11.14-MariaDB-0+deb12u2-log"
    version: str
    server_uuid: str
    #: MySQL with gtid_mode=ON, and every MariaDB
    has_gtids: bool
    #: rows that a foreign key's action changes are in the log
    logs_cascades: bool = False


def connect(server: ServerConfig, source: str) -> "Connection[Any]":
    """An autocommitting utf8mb4 connection; raises a `SourceError`. The caller closes it."""
    tls = _tls_context(server, source)
    try:
        return _Connection(
            host=server.host,
            port=server.port,
            user=server.user,
            password=server.password.reveal().encode(),
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            read_timeout=READ_TIMEOUT_SECONDS,
            write_timeout=READ_TIMEOUT_SECONDS,
            ssl=tls,
            ssl_disabled=server.tls.mode is TlsMode.DISABLED,
            program_name="menura",
            init_command=_SESSION,
        )
    except _LoginUnsafe as unsafe:
        raise _login_unsafe(unsafe, server, source) from unsafe
    except pymysql.err.MySQLError as refused:
        raise _connect_error(refused, server, source) from refused


class _LoginUnsafe(Exception):
    """The server asks for the password by a plugin that shows it to whoever answers."""


class _Connection(Connection):
    """PyMySQL makes a context for each connection, which reads every CA of the machine and then verifies nothing; and
    it answers whatever plugin a server asks for."""

    def _create_ssl_ctx(self, wanted: ssl.SSLContext | dict[str, object]) -> ssl.SSLContext:
        return wanted if isinstance(wanted, ssl.SSLContext) else _unverified()

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: object = None) -> Any:  # noqa: ANN401
        """A server asks for another plugin than its greeting named, which PyMySQL answers by known ones alone."""
        if plugin_name not in _LOGIN_PLUGINS:
            raise _LoginUnsafe(plugin_name[:_PLUGIN_NAME_BYTES].decode("ascii", "replace"))
        return super()._process_auth(plugin_name, auth_packet, handler)  # type: ignore[misc]


@cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _tls_context(server: ServerConfig, source: str) -> ssl.SSLContext | None:
    """None leaves it to PyMySQL: TLS where the server has it, unverified."""
    tls = server.tls
    if tls.mode in (TlsMode.DISABLED, TlsMode.PREFERRED):
        return None
    try:
        context = ssl.create_default_context(cafile=tls.ca or None)
        # The certificates that MySQL makes for itself lack what strict RFC 5280 asks of a CA.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = tls.mode is TlsMode.VERIFY_IDENTITY
        if tls.mode is TlsMode.REQUIRED:
            context.verify_mode = ssl.CERT_NONE
        if tls.certificate:
            context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as broken:
        raise SourceTlsFailed(
            "reading the TLS files of a server",
            f"they can't be used ({type(broken).__name__})",
            data="Nothing was read",
            remedy=f"Give PEM files in sources.{source}.{server.section}.tls: ca, certificate and key; then restart the"
            " agent",
            source=source,
        ) from broken
    return context


def _login_unsafe(unsafe: _LoginUnsafe, server: ServerConfig, source: str) -> SourceLoginUnsafe:
    asked = "".join(sign if sign.isprintable() else "?" for sign in str(unsafe))
    return SourceLoginUnsafe(
        f"connecting to {server.address} as {server.user}",
        f"what answers there asks for the password by {asked!r}, which is none of"
        f" {', '.join(sorted(plugin.decode() for plugin in _LOGIN_PLUGINS))}",
        data="The password was not sent, and nothing was read",
        remedy=f"If it is the server, run on it: ALTER USER '{server.user}'@'%' IDENTIFIED WITH"
        " caching_sha2_password BY '...' (MariaDB: IDENTIFIED VIA mysql_native_password USING PASSWORD('...'));"
        f" else correct sources.{source}.{server.section}.host and port, and restart the agent",
        source=source,
    )


def _connect_error(refused: pymysql.err.MySQLError, server: ServerConfig, source: str) -> SourceError:
    doing = f"connecting to {server.address} as {server.user}"
    code = server_code(refused)
    cause = getattr(refused, "original_exception", None) or refused.__context__  # the latter of an answer's read
    untouched = "Nothing was read"
    # a connection that ends in the handshake says nothing about TLS: the server goes down
    is_of_tls = isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    if is_of_tls or code in (CR.CR_SSL_CONNECTION_ERROR, _ER_SECURE_TRANSPORT_REQUIRED):
        found = cause.reason if isinstance(cause, ssl.SSLError) and cause.reason else f"server code {code}"
        if isinstance(cause, ssl.SSLCertVerificationError):
            found = cause.verify_message
        return SourceTlsFailed(
            doing,
            f"no TLS of mode {server.tls.mode} ({found})",
            data=untouched,
            remedy=f"Set sources.{source}.{server.section}.tls: {{mode: verify_ca, ca: FILE}} to the CA that signed the"
            " server's certificate, and restart the agent; {mode: preferred} in its place sends the password to whoever"
            " answers at that address",
            source=source,
        )
    if code in _ACCESS_DENIED:
        return SourceAccessDenied(
            doing,
            f"the server refused this user and password (code {code})",
            data=untouched,
            remedy=f"Correct sources.{source}.{server.section}.user and password and restart the agent, or run on the"
            f" server: ALTER USER '{server.user}'@'%' IDENTIFIED BY '...'",
            source=source,
        )
    if code in (CR.CR_CONN_HOST_ERROR, CR.CR_SERVER_LOST):
        why = f"{cause.strerror or cause}" if isinstance(cause, OSError) else "the server closed the connection"
        return SourceUnreachable(
            doing,
            f"no answer ({why})",
            data=untouched,
            remedy=f"Start the server, or correct sources.{source}.{server.section}.host and port and restart the"
            " agent",
            source=source,
        )
    return SourceFailed(
        doing,
        f"the server answered with code {code}",
        data=untouched,
        remedy="It is tried again by itself; see the server's log if it repeats",
        source=source,
    )


@contextmanager
def server_errors(doing: str, server: ServerConfig, source: str, grant: str = "", on: str = "*.*") -> Iterator[None]:
    """Turn PyMySQL's errors of the statements inside into ours; `grant` is what they need, `on` what."""
    try:
        yield
    except pymysql.err.MySQLError as failed:
        code = server_code(failed)
        if code in _GRANT_MISSING or (code == ER.ACCESS_DENIED_ERROR and grant):
            found = f"the server refused it (code {code}): the user lacks {grant or 'SELECT'} on {on}"
            raise grant_missing(doing, server, source, grant, found, on) from failed
        if is_connection_lost(failed):
            raise SourceConnectionLost(
                doing,
                f"the connection to {server.address} broke",
                data="Nothing is lost: the log is read again",
                remedy="It is tried again by itself; see the server's log if it repeats",
                source=source,
            ) from failed
        text = SERVER_WORDS.quoted(str(failed.args[1]) if len(failed.args) > 1 else "")
        raise SourceFailed(
            doing,
            f"{server.address} answered with code {code}: {text}",
            data="Nothing is lost: the log is read again",
            remedy="It is tried again by itself; see the server's log if it repeats",
            source=source,
        ) from failed


def grant_missing(
    doing: str, server: ServerConfig, source: str, grant: str, found: str, on: str = "*.*"
) -> SourceGrantMissing:
    return SourceGrantMissing(
        doing,
        found,
        data="Nothing was read",
        remedy=f"Run on the server: GRANT {grant or 'SELECT'} ON {on} TO {account_of(server, source)}",
        source=source,
    )


def account_of(server: ServerConfig, source: str) -> str:
    """What GRANT calls the account that a login gets; of any host where it can't be asked."""
    try:
        with closing(connect(server, source)) as connection:
            account = str(rows(connection, "SELECT CURRENT_USER()")[0][0])
    except (SourceError, pymysql.err.MySQLError):
        account = f"{server.user}@%"
    return "@".join("'" + part.replace("'", "''") + "'" for part in account.rsplit("@", 1))


def server_code(failed: pymysql.err.MySQLError) -> int:
    """The server's or client's number of an error; 0: it has none."""
    return failed.args[0] if failed.args and isinstance(failed.args[0], int) else 0


def is_connection_lost(failed: pymysql.err.MySQLError) -> bool:
    return server_code(failed) in _CONNECTION_LOST


def is_grant_missing(failed: pymysql.err.MySQLError) -> bool:
    return server_code(failed) in _GRANT_MISSING or server_code(failed) == ER.ACCESS_DENIED_ERROR


def rows(connection: "Connection[Any]", statement: str, arguments: Sequence[object] = ()) -> list[Row]:
    """All rows of one statement."""
    with connection.cursor() as cursor:
        cursor.execute(statement, arguments or None)
        return cast(list[Row], list(cursor.fetchall()))


def variable(connection: "Connection[Any]", name: str) -> str | None:
    """A global variable as text, upper case for words like ON; None where the server has no such variable."""
    found = rows(connection, "SHOW GLOBAL VARIABLES LIKE %s", (name.replace("_", r"\_"),))
    return str(found[0][1]) if found else None


def facts_of(connection: "Connection[Any]", source: str) -> Facts:
    """Which server this is; raises `SourceVersionUnsupported`. Statements inside `server_errors`."""
    version = str(rows(connection, "SELECT VERSION()")[0][0])
    is_mariadb = "mariadb" in version.lower()
    numbers = version.partition("-")[0].split(".")
    release = (
        (int(numbers[0]), int(numbers[1])) if len(numbers) > 1 and all(n.isdigit() for n in numbers[:2]) else (0, 0)
    )
    if release < (OLDEST_MARIADB if is_mariadb else OLDEST_MYSQL):
        raise SourceVersionUnsupported(
            "asking the server for its version",
            f"found {version}, expected MySQL 8.0 or MariaDB 10.5 and later",
            data="Nothing was read",
            remedy="Upgrade the server, or name a replica of a newer version",
            source=source,
        )
    if is_mariadb:
        return Facts("mariadb", version, "", has_gtids=True)
    gtid_mode = variable(connection, "gtid_mode") or "OFF"
    native_keys = variable(connection, "innodb_native_foreign_keys")  # unknown to servers of before 9.6
    return Facts(
        "mysql",
        version,
        str(variable(connection, "server_uuid") or ""),
        has_gtids=gtid_mode.upper() == "ON",
        logs_cascades=(native_keys or "ON").upper() == "OFF",
    )
