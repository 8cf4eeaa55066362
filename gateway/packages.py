"""Bytes of the agent's packages, from the database to agents: how many at a time, how fast, and for whom.

Comes in: an agent's request for bytes of a package that it shall run. Goes out: a `PackagePiece`. Bytes that are read
and not yet sent are bounded for the process and shared fairly (`gateway.shares`); threads of its own read them, so that
what streams ask else waits for none of it; and all together are slower than `BYTES_PER_SECOND`, which leaves the
database and the network to commits. Of one order an agent gets `MOST_COPIES` of its packages: one that asks for ever is
refused, and named in the log. Nothing is durable.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.rate import Rate
from gateway.registry import AgentName
from gateway.shares import FairThreads, Shares
from gateway.tasks import ask_registry

#: of a message; fewer at the end of a file
PIECE_BYTES = 128 << 10
#: read, and not yet sent
MOST_BYTES = 16 << 20
BYTES_PER_SECOND, BURST_BYTES = 64 << 20, 16 << 20
MOST_COPIES = 8
#: agents of which is known what they got; those that came last
MOST_KNOWN = 65_536


@dataclass(slots=True)
class Packages:
    threads: FairThreads
    _shares: Shares = field(default_factory=lambda: Shares(MOST_BYTES))
    _rate: Rate = field(default_factory=lambda: Rate(BYTES_PER_SECOND, BURST_BYTES))
    #: generation of the order, and bytes that were sent of its packages
    _sent: "OrderedDict[AgentName, tuple[int, int]]" = field(default_factory=OrderedDict)

    def may_have(self, name: AgentName, generation: int, order_bytes: int) -> bool:
        """Whether the agent may have one more piece of an order whose packages have so many bytes."""
        of, sent_bytes = self._sent.get(name, (generation, 0))
        return of != generation or sent_bytes < MOST_COPIES * order_bytes

    @asynccontextmanager
    async def piece(self, name: AgentName, generation: int, read: Callable[[], bytes]) -> AsyncIterator[bytes]:
        """What `read` gives, which counts until the block ends. Raises `RegistryAway` or `ReportRefused`."""
        await self._shares.room(name)
        self._shares.change(name, PIECE_BYTES)
        try:
            await self._rate.paid()
            data = await ask_registry(self.threads, name, read)
            self._rate.owe(len(data))
            self._count(name, generation, len(data))
            yield data
        finally:
            self._shares.change(name, -PIECE_BYTES)

    def _count(self, name: AgentName, generation: int, size_bytes: int) -> None:
        of, sent_bytes = self._sent.pop(name, (generation, 0))
        self._sent[name] = generation, size_bytes + (sent_bytes if of == generation else 0)
        if len(self._sent) > MOST_KNOWN:
            self._sent.popitem(last=False)
