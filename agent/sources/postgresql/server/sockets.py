"""The way to a PostgreSQL server: TCP or a Unix socket, and TLS by its SSLRequest.

Comes in: a `ServerConfig`. Goes out: a blocking socket on which nothing of the session has been said. It gives pg8000
files that read no further than they are asked to, so that after the login the socket itself can be read.
"""

import socket
import ssl
import struct
from contextlib import suppress
from functools import cache

from agent.errors import SourceError, SourceTlsFailed, SourceUnreachable
from agent.sources.postgresql.config import ServerConfig, TlsMode

CONNECT_TIMEOUT_SECONDS = 8.0
#: a peer that is gone without a word is known after IDLE + COUNT * INTERVAL
KEEPALIVE_IDLE_SECONDS = 15
KEEPALIVE_INTERVAL_SECONDS = 5
KEEPALIVE_COUNT = 3

#: 4 length, 4 code
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)
#: for SO_LINGER: what has not arrived is dropped, and the peer told so
_RESET = struct.pack("ii", 1, 0)
_UNTOUCHED = "Nothing was read"


class _File:
    """A socket as pg8000 uses one. A message is sent whole at its flush."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._unsent = bytearray()

    def read(self, size: int) -> bytes:
        found = self._socket.recv(size)
        if size and not found:
            raise ConnectionError("the server closed the connection")
        return found

    def write(self, data: bytes) -> None:
        self._unsent += data

    def flush(self) -> None:
        unsent, self._unsent = self._unsent, bytearray()
        self._socket.sendall(unsent)


class _PlainSocket(socket.socket):
    def makefile(self, *_: object, **__: object) -> _File:  # type: ignore[override]
        return _File(self)


class _TlsSocket(ssl.SSLSocket):
    def makefile(self, *_: object, **__: object) -> _File:  # type: ignore[override]
        return _File(self)


def open_socket(server: ServerConfig, source: str) -> socket.socket:
    """Connected, with TLS where the configuration says so; raises a `SourceError`. The caller closes it."""
    context = _tls_context(server, source)
    try:
        plain = _connected(server)
    except OSError as failed:
        raise unreachable(server, source, failed.strerror or str(failed)) from failed
    try:
        return _secured(plain, server, source, context)
    except BaseException:
        plain.close()
        raise


def _connected(server: ServerConfig) -> socket.socket:
    if server.host.startswith("/"):
        local = _PlainSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.settimeout(CONNECT_TIMEOUT_SECONDS)
            local.connect(f"{server.host}/.s.PGSQL.{server.port}")
        except BaseException:
            local.close()
            raise
        return local
    found = socket.create_connection((server.host, server.port), CONNECT_TIMEOUT_SECONDS)
    connected = _PlainSocket(found.family, found.type, found.proto, found.detach())
    connected.settimeout(CONNECT_TIMEOUT_SECONDS)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS),
        (socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS),
        (socket.TCP_KEEPCNT, KEEPALIVE_COUNT),
    ):
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
    return connected


def _secured(plain: socket.socket, server: ServerConfig, source: str, context: ssl.SSLContext | None) -> socket.socket:
    if context is None or plain.family == socket.AF_UNIX:
        return plain
    try:
        plain.sendall(_SSL_REQUEST)
        answer = plain.recv(1)
        if answer == b"S":
            return context.wrap_socket(plain, server_hostname=server.host)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as closed:  # no word of TLS: the server goes down
        raise unreachable(server, source, "the server closed the connection") from closed
    except ssl.SSLCertVerificationError as unverified:
        raise _tls_failed(server, source, unverified.verify_message) from unverified
    except ssl.SSLError as failed:
        raise _tls_failed(server, source, failed.reason or type(failed).__name__) from failed
    except OSError as failed:
        raise unreachable(server, source, failed.strerror or str(failed)) from failed
    if not answer:
        raise unreachable(server, source, "the server closed the connection")
    if answer == b"N" and server.tls.mode is TlsMode.PREFER:
        return plain
    if answer == b"N":
        raise _tls_failed(server, source, "the server has none")
    if answer == b"E":
        raise unreachable(server, source, "the server can't begin a session now")
    raise unreachable(server, source, "what answers there is no PostgreSQL server")


@cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.sslsocket_class = _TlsSocket
    return context


def _tls_context(server: ServerConfig, source: str) -> ssl.SSLContext | None:
    """None: without TLS."""
    tls = server.tls
    if tls.mode is TlsMode.DISABLE:
        return None
    is_verified = tls.mode in (TlsMode.VERIFY_CA, TlsMode.VERIFY_FULL)
    if not is_verified and not tls.certificate:
        return _unverified()
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Certificates that a server's owner has made often lack what strict RFC 5280 asks of a CA.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = tls.mode is TlsMode.VERIFY_FULL
        context.sslsocket_class = _TlsSocket
        if is_verified and tls.ca:
            context.load_verify_locations(cafile=tls.ca)
        elif is_verified:
            context.load_default_certs()
        else:
            context.verify_mode = ssl.CERT_NONE
        if tls.certificate:
            context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as broken:
        raise SourceTlsFailed(
            "reading the TLS files of a server",
            f"they can't be used ({type(broken).__name__})",
            data=_UNTOUCHED,
            remedy=f"Give PEM files in sources.{source}.{server.section}.tls: ca, certificate and key; then restart the"
            " agent",
            source=source,
        ) from broken
    return context


def connecting(server: ServerConfig) -> str:
    return f"connecting to database {server.database} at {server.address} as {server.user}"


def unreachable(server: ServerConfig, source: str, why: str) -> SourceError:
    return SourceUnreachable(
        connecting(server),
        f"no answer ({why})",
        data=_UNTOUCHED,
        remedy=f"Start the server, or correct sources.{source}.{server.section}.host and port and restart the agent",
        source=source,
    )


def _tls_failed(server: ServerConfig, source: str, found: str) -> SourceError:
    return SourceTlsFailed(
        connecting(server),
        f"no TLS of mode {server.tls.mode} ({found})",
        data=_UNTOUCHED,
        remedy=f"Set sources.{source}.{server.section}.tls: {{mode: verify-ca, ca: FILE}} to the CA that signed the"
        " server's certificate, and restart the agent; {mode: prefer} in its place takes whoever answers there for"
        " the server",
        source=source,
    )


def interrupt(connected: socket.socket) -> None:
    """End what another thread waits for on it, at once; the socket stays that thread's to close."""
    with suppress(OSError):  # the peer was faster
        socket.socket.shutdown(connected, socket.SHUT_RDWR)  # TLS sockets' own forgets the session under the other


def reset(connected: socket.socket) -> None:
    """Close it and have the server hear of it at its next word, also while it waits with a full window."""
    with suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    with suppress(OSError):
        connected.close()
