"""Who may open streams, and how many: what a stream passes before anything is done for it.

Comes in: a stream of which nothing is known but its connection, and whose certificate that has shown. Goes out: a place
for it, or an error that says what is full. Nothing is durable, nothing waits for a database. On the event loop alone.

- A stream whose connection has a certificate has its place before anything is read from it, others with their Hello.
  It has it until gRPC is done with it, which may wait for the agent to read. An agent may have so many places. Those of
  one tenant leave a ninth of all to the others.
- Before its Hello a stream costs what gRPC holds of one message, `menura.message_parts.MAX_GRPC_BYTES`. So many streams
  of the process read their Hello at a time, in shares of tenants and agents; the others are not read from until then.
  Each has `HELLO_SECONDS` from its turn on.

gRPC itself bounds the streams of a connection and of the process (`gateway.server`).
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from gateway.errors import TooManyStreams
from gateway.registry import AgentName
from gateway.shares import Shares

HELLO_SECONDS = 10.0
#: streams that read their Hello at a time
MAX_READING = 256
#: of one tenant's agent: two, and two for each of its sources
MAX_STREAMS_OF_AGENT = 2_048
#: a tenant may have so many times what is free
TENANT_FACTOR = 8


@dataclass(slots=True)
class Admission:
    max_streams: int
    hello_seconds: float = HELLO_SECONDS
    _reading: Shares = field(default_factory=lambda: Shares(MAX_READING))
    _streams: Counter[AgentName] = field(default_factory=Counter)
    _of_tenant: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def reading_hello(self, owner: AgentName) -> AsyncIterator[None]:
        """A turn to read a Hello, which is to come within `hello_seconds`."""
        await self._reading.room(owner)
        self._reading.change(owner, 1)
        try:
            yield
        finally:
            self._reading.change(owner, -1)

    def place(self, name: AgentName, context: grpc.aio.ServicerContext) -> None:
        """For a stream of the agent, until its RPC is over. Raises `TooManyStreams`."""
        tenant, agent = name
        if self._streams[name] >= MAX_STREAMS_OF_AGENT:
            raise _too_many(f"{self._streams[name]} streams of agent {agent} are open", MAX_STREAMS_OF_AGENT)
        free = self.max_streams - self._of_tenant.total()
        if self._of_tenant[tenant] >= TENANT_FACTOR * free:
            raise _too_many(f"{self._of_tenant[tenant]} streams of tenant {tenant} are open", TENANT_FACTOR * free)
        self._count(name, 1)
        context.add_done_callback(lambda _: self._count(name, -1))

    def _count(self, name: AgentName, by: int) -> None:
        self._streams[name] += by
        self._of_tenant[name[0]] += by
        if not self._streams[name]:
            del self._streams[name]
        if not self._of_tenant[name[0]]:
            del self._of_tenant[name[0]]


def _too_many(found: str, most: int) -> TooManyStreams:
    return TooManyStreams(
        "opening a stream",
        f"{found}, at most {most} may be",
        data="The open ones go on",
        remedy="Give each agent fewer sources, or some agents to another gateway over the same database",
    )
