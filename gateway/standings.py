"""Which agents may have streams: looked up when the first stream comes, then as often as desired states are.

Comes in: the names of agents that have a stream, with their certificates where they have some. Goes out: an error as
soon as the database does not know the agent with that key any more. While the database is away what is known stays, and
nobody new is admitted. Nothing is durable.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from gateway.changes import Changes
from gateway.identity import Identity, check_standing, check_without_certificate
from gateway.metrics import GatewayMetrics
from gateway.registry import AgentName, RegistryUnavailable, Standing
from gateway.shares import FairThreads
from gateway.tasks import ask_registry

logger = logging.getLogger(__name__)

Ask = Callable[[Sequence[AgentName]], dict[AgentName, Standing]]


class Standings:
    def __init__(self, ask: Ask, changes: Changes, metrics: GatewayMetrics, asking: FairThreads) -> None:
        self._ask = ask
        self._asking = asking
        self._looks = changes
        self._metrics = metrics
        self._followers: Counter[AgentName] = Counter()
        self._current: dict[AgentName, Standing | None] = {}
        #: set with the next change of what is known of an agent: streams wait by the thousand
        self._changes: dict[AgentName, asyncio.Event] = {}
        #: there while a stream waits for the first look
        self._first_looks: WeakValueDictionary[AgentName, asyncio.Lock] = WeakValueDictionary()
        self._away = False

    @asynccontextmanager
    async def admitted(self, name: AgentName, identity: Identity | None) -> AsyncIterator[None]:
        """While a stream of the agent is open; raises an `IdentityRefused`, or `RegistryAway`."""
        self._followers[name] += 1
        try:
            async with self._first_looks.setdefault(name, asyncio.Lock()):  # an agent's streams come together
                if name not in self._current:
                    found = await ask_registry(self._asking, name, self._ask, [name])
                    self._current.setdefault(name, found.get(name))
            self._check(name, identity)
            yield
        finally:
            self._followers[name] -= 1
            if not self._followers[name]:
                del self._followers[name]
                self._current.pop(name, None)
                self._changes.pop(name, None)

    async def refused(self, name: AgentName, identity: Identity | None) -> None:
        """Wait until an admitted agent is no longer; raises why."""
        while True:
            self._check(name, identity)
            await self.changed(name)

    def sources(self, name: AgentName) -> frozenset[str]:
        """Those that are an admitted agent's own."""
        standing = self._current.get(name)
        return frozenset() if standing is None else standing.sources

    async def changed(self, name: AgentName) -> None:
        """Wait until something else is known of an admitted agent."""
        await self._changes.setdefault(name, asyncio.Event()).wait()

    async def run(self) -> None:
        """Poll until cancelled."""
        seen, look_seconds = 0, 0.0
        while True:
            seen = await self._looks.next(seen, look_seconds)
            began = time.monotonic()
            if self._followers:
                await self._poll(list(self._followers))
            look_seconds = time.monotonic() - began

    def _check(self, name: AgentName, identity: Identity | None) -> None:
        if identity is None:
            check_without_certificate(name, self._current[name])
        else:
            check_standing(identity, self._current[name])

    async def _poll(self, names: list[AgentName]) -> None:
        try:
            found = await asyncio.to_thread(self._ask, names)
        except RegistryUnavailable as unavailable:
            self._metrics.menura_registry_failures_total += 1
            if not self._away:
                logger.warning("registry is away, agents stay as they are: %s", unavailable)
            self._away = True
        else:
            self._away = False
            for name in names:
                if name in self._followers and found.get(name) != self._current.get(name):
                    self._current[name] = found.get(name)
                    self._changes.pop(name, asyncio.Event()).set()
