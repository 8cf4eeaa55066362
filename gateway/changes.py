"""When to look at the registry again: as soon as it tells of a change, and by the clock.

Comes in: that the database told something, where it can. Goes out: a wake-up for whoever follows generations or
standings; each then asks for the whole of what it follows, so one that was missed is made good by the next look.
"""

import asyncio
import logging
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from gateway.registry import Registry, RegistryUnavailable, WaitForChange
from gateway.tasks import finish

logger = logging.getLogger(__name__)

#: a thread that listens looks so often whether it shall end
WAIT_SECONDS = 0.5
#: many changes that come together are looked at once
SPACING_SECONDS = 0.05
#: after a look so many times as long as it took: thousands of agents that come or change one by one are no reason to
#: look all the time
SPACING_LOOKS = 4
#: until it is listened again where the database was away
RETRY_SECONDS = 1.0
#: looks by the clock are so much rarer while the database tells of changes
RARER = 10


@dataclass(slots=True)
class Changes:
    registry: Registry
    poll_seconds: float
    #: of changes
    _number: int = 0
    _told: asyncio.Event = field(default_factory=asyncio.Event)
    _is_listening: bool = False

    async def next(self, seen: int, look_seconds: float = 0.0) -> int:
        """Wait until it is time for a look; what it returned before the last look is `seen` now, at first 0.

        `look_seconds`: for how long the last look lasted.
        """
        await asyncio.sleep(min(max(SPACING_SECONDS, SPACING_LOOKS * look_seconds), self.poll_seconds))
        with suppress(TimeoutError):
            async with asyncio.timeout(self.clock_seconds):
                while self._number == seen:
                    await self._told.wait()
        return self._number

    @property
    def clock_seconds(self) -> float:
        """Between two looks when nothing is told."""
        return self.poll_seconds * (RARER if self._is_listening else 1)

    def note(self) -> None:
        """Something may be new: a look is due."""
        self._number += 1
        self._told.set()
        self._told = asyncio.Event()

    async def run(self) -> None:
        """Listen until cancelled."""
        stopping, loop = threading.Event(), asyncio.get_running_loop()
        listening = asyncio.create_task(asyncio.to_thread(self._listen, stopping, loop))
        try:
            await asyncio.shield(listening)
            await asyncio.Event().wait()  # nobody tells anything: looks are by the clock
        finally:
            stopping.set()
            await finish(listening)

    def _listen(self, stopping: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
        changes = self.registry.changes()
        if changes is None:
            return
        with changes as wait:
            while not stopping.is_set():
                is_new = _heard(wait)
                loop.call_soon_threadsafe(self._heard, is_new)
                if is_new is not False:
                    stopping.wait(SPACING_SECONDS if is_new else RETRY_SECONDS)

    def _heard(self, is_new: bool | None) -> None:
        self._is_listening = is_new is not None
        if is_new:
            self.note()


def _heard(wait: WaitForChange) -> bool | None:
    """None: the database is away, which those say who ask it."""
    try:
        return wait(WAIT_SECONDS)
    except RegistryUnavailable as unavailable:
        logger.debug("changes are not told: %s", unavailable)
        return None
