"""Desired state by level: notices that a source's generation moved and lets its streams send it whole.

One task asks the registry for the generations of all sources that somebody follows; a missed change is seen at
the next look, since what counts is the generation and not the event. Tables have generations, dumps have theirs, and
what is configured for an agent has digests.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from gateway.changes import Changes
from gateway.metrics import GatewayMetrics
from gateway.registry import RegistryUnavailable

logger = logging.getLogger(__name__)

#: what is followed: a source, an agent; and what is compared of it: a generation, digests
Key = TypeVar("Key")
Generation = TypeVar("Generation")


class Generations(Generic[Key, Generation]):
    def __init__(
        self, ask: Callable[[Sequence[Key]], dict[Key, Generation]], changes: Changes, metrics: GatewayMetrics
    ) -> None:
        self._ask = ask
        self._changes = changes
        self._metrics = metrics
        self._followers: Counter[Key] = Counter()
        self._current: dict[Key, Generation] = {}
        self._polled = asyncio.Event()
        self._away = False

    @contextmanager
    def following(self, key: Key) -> Iterator[None]:
        """While inside, its generation is asked for."""
        self._followers[key] += 1
        if key not in self._current:
            self._changes.note()
        try:
            yield
        finally:
            self._followers[key] -= 1
            if not self._followers[key]:
                del self._followers[key]
                self._current.pop(key, None)

    def current(self, key: Key) -> Generation | None:
        """The generation of what is followed; None before the first answer."""
        return self._current.get(key)

    async def polled(self) -> None:
        """Wait for the next look at the registry."""
        await self._polled.wait()

    async def changed(self, key: Key, known: Generation | None) -> Generation:
        """Wait until the generation of what is followed is another than `known`; returns it."""
        while (current := self._current.get(key)) is None or current == known:
            await self._polled.wait()
        return current

    async def run(self) -> None:
        """Poll until cancelled."""
        seen = 0
        while True:
            if self._followers:
                await self._poll(list(self._followers))
            self._polled.set()
            self._polled = asyncio.Event()
            seen = await self._changes.next(seen)

    async def _poll(self, keys: list[Key]) -> None:
        try:
            found = await asyncio.to_thread(self._ask, keys)
        except RegistryUnavailable as unavailable:
            self._metrics.menura_registry_failures_total += 1
            if not self._away:
                logger.warning("registry is away, desired states stay as they are: %s", unavailable)
            self._away = True
        else:
            self._away = False
            self._current = {key: found[key] for key in self._followers if key in found}
