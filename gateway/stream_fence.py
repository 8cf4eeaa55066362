"""One landing stream per source: fences an older stream of a source off before a newer one begins."""

import asyncio
from typing import Protocol

from gateway.errors import StreamSuperseded
from gateway.registry import SourceKey


class LandingStream(Protocol):
    #: set when a newer stream of the source came
    superseded: asyncio.Event


class StreamFence:
    """One landing stream per source: a newer one asks the older one to leave and waits until it has."""

    def __init__(self) -> None:
        self._newest: dict[SourceKey, LandingStream] = {}
        self._locks: dict[SourceKey, asyncio.Lock] = {}

    async def enter(self, key: SourceKey, stream: LandingStream) -> None:
        older = self._newest.get(key)
        if older is not None:
            older.superseded.set()
        self._newest[key] = stream
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            await lock.acquire()
        except asyncio.CancelledError:
            if self._newest.get(key) is stream:
                del self._newest[key]
            raise
        if stream.superseded.is_set():
            lock.release()
            raise superseded(key)

    def leave(self, key: SourceKey, stream: LandingStream) -> None:
        self._locks[key].release()
        if self._newest.get(key) is stream:
            del self._newest[key]
            del self._locks[key]


def superseded(key: SourceKey) -> StreamSuperseded:
    return StreamSuperseded(
        "landing a source",
        "a newer stream of it was opened",
        data="The newer stream reads again from the last committed position",
        source=str(key),
    )
