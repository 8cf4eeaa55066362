"""Who may open streams, and how many: what a stream passes before anything is done for it.

Comes in: a stream of which nothing is known but its connection, then the header of its Hello. Goes out: a place for it,
or an error that says what is full. Nothing is durable, nothing waits for a database. Lives on the event loop alone.

- Before its Hello a stream costs what gRPC holds of one message, `menura.message_parts.MAX_GRPC_BYTES`. So many streams
  of the process, and fewer of each connection, read their Hello at a time; the others are not read from until then.
  Each has `HELLO_SECONDS` from its turn on.
- With its Hello a stream belongs to a tenant's agent, which may have so many streams.

gRPC itself bounds the streams of a connection and of the process (`gateway.server`).
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from gateway.errors import HelloMissing, TooManyStreams

HELLO_SECONDS = 10.0
#: streams that read their Hello at a time
MAX_READING = 256
MAX_READING_OF_CONNECTION = 64
#: of one tenant's agent: two, and two for each of its sources
MAX_STREAMS_OF_AGENT = 2_048


@dataclass(slots=True)
class _Connection:
    reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_READING_OF_CONNECTION))
    streams: int = 0


@dataclass(slots=True)
class Admission:
    hello_seconds: float = HELLO_SECONDS
    _reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_READING))
    _connections: dict[str, _Connection] = field(default_factory=dict)
    _streams: Counter[tuple[str, str]] = field(default_factory=Counter)

    @asynccontextmanager
    async def reading_hello(self, peer: str) -> AsyncIterator[None]:
        """A turn to read a Hello; `peer` is the connection. Raises `HelloMissing` when it does not come in time."""
        connection = self._connections.setdefault(peer, _Connection())
        connection.streams += 1
        try:
            async with connection.reading, self._reading:
                try:
                    async with asyncio.timeout(self.hello_seconds):
                        yield
                except TimeoutError as late:
                    raise HelloMissing("opening a stream", f"no Hello within {self.hello_seconds:g} seconds") from late
        finally:
            connection.streams -= 1
            if not connection.streams:
                del self._connections[peer]

    @contextmanager
    def stream_of(self, tenant: str, agent: str) -> Iterator[None]:
        """While a stream of the agent is open. Raises `TooManyStreams`."""
        key = tenant, agent
        if self._streams[key] >= MAX_STREAMS_OF_AGENT:
            raise TooManyStreams(
                "opening a stream",
                f"{self._streams[key]} streams of agent {agent} are open, at most {MAX_STREAMS_OF_AGENT} may be",
                data="The open ones go on",
                remedy="Give each agent fewer sources",
            )
        self._streams[key] += 1
        try:
            yield
        finally:
            self._streams[key] -= 1
            if not self._streams[key]:
                del self._streams[key]
