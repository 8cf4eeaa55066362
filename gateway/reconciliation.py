"""Desired state by level: notices that a source's generation moved and lets its streams send it whole.

One task asks the registry for the generations of all sources that somebody follows; a missed change is seen at
the next look, since what counts is the generation and not the event. Tables have generations, dumps have theirs, and
what is configured for an agent has digests.
"""

import asyncio
import logging
import time
from collections import defaultdict
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
        #: by what is followed, what is set when its generation moves: streams wait by the thousand, each for its own
        self._followers: defaultdict[Key, list[asyncio.Event]] = defaultdict(list)
        self._current: dict[Key, Generation] = {}
        self._away = False

    @contextmanager
    def following(self, key: Key, moved: asyncio.Event) -> Iterator[None]:
        """While inside, its generation is asked for; `moved` is set with the first answer and with each other one."""
        self._followers[key].append(moved)
        if key in self._current:
            moved.set()
        else:
            self._changes.note()
        try:
            yield
        finally:
            self._followers[key].remove(moved)
            if not self._followers[key]:
                del self._followers[key]
                self._current.pop(key, None)

    def current(self, key: Key) -> Generation | None:
        """The generation of what is followed; None before the first answer."""
        return self._current.get(key)

    async def run(self) -> None:
        """Poll until cancelled."""
        seen = 0
        while True:
            began = time.monotonic()
            if self._followers:
                await self._poll(list(self._followers))
            seen = await self._changes.next(seen, time.monotonic() - began)

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
            for key in keys:
                self._take(key, found.get(key))

    def _take(self, key: Key, found: Generation | None) -> None:
        """What the registry says of it now, None: nothing. Nobody may follow it any more."""
        if key not in self._followers or found == self._current.get(key):
            return
        if found is None:
            del self._current[key]
        else:
            self._current[key] = found
        for moved in self._followers[key]:
            moved.set()
