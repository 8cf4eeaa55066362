"""The server under what answers HTTP: uvicorn, and a time within which a request must have come.

Comes in: an ASGI application, a socket, a certificate. Goes out: its answers. Nothing is durable. Only who serves HTTP
imports this module: it needs the package uvicorn.

uvicorn closes a connection that says nothing, but lets one go on that sends a byte now and then. Here a request has
`REQUEST_SECONDS` to come whole, from its connection's beginning or the end of the answer before; then the connection is
closed. An answer may take as long as it does; one that goes on and on ends when `STOPPING` of its scope is set.
"""

import asyncio
import socket
import ssl
from collections.abc import Sequence

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 30
#: for requests that still run when it is asked to stop
STOP_SECONDS = 3
#: of a scope: an asyncio.Event that is set once the server is asked to stop
STOPPING = "menura.stopping"


class PromptProtocol(H11Protocol):
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.access_log = False  # its lines have queries, and so the codes of logins
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Time runs while the caller has not sent all of its request."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._end)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


class StoppingServer(uvicorn.Server):
    """Tells its application when it stops: without that it waits for answers that go on, and then cuts them off."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.set()
        await super().shutdown(sockets)


def server_of(
    app: ASGIApp,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    trusted_proxies: Sequence[str] = (),
    most_connections: int | None = None,
) -> uvicorn.Server:
    """A server for `app`, which is run on sockets that are there, or listens on loopback; by HTTPS with `tls`.

    `trusted_proxies`: networks whose X-Forwarded-For says from where a request comes; nobody else's does.
    `most_connections`: those beyond are answered with 503.
    """
    stopping = asyncio.Event()

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, STOPPING: stopping}, receive, send)

    config = uvicorn.Config(
        told,
        port=port,
        http=PromptProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        limit_concurrency=most_connections,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    config.load()
    config.ssl = tls
    return StoppingServer(config, stopping)
