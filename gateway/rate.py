"""How much of something may happen in a while: a bucket that fills by itself, up to a burst. Of the event loop."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Rate:
    per_second: float
    burst: float
    clock: Callable[[], float] = time.monotonic
    _level: float = field(init=False)
    _filled_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._level, self._filled_at = self.burst, self.clock()

    def try_take(self, amount: float = 1) -> bool:
        """False when there is not so much now."""
        self._fill()
        if self._level < amount:
            return False
        self._level -= amount
        return True

    def put_back(self, amount: float = 1) -> None:
        """Of what was taken and not used."""
        self._level = min(self.burst, self._level + amount)

    async def take(self, amount: float) -> None:
        """Take it in any case, and wait until the bucket would have had it."""
        self._fill()
        self._level -= amount
        if self._level < 0:
            await asyncio.sleep(-self._level / self.per_second)

    def _fill(self) -> None:
        now = self.clock()
        self._level = min(self.burst, self._level + (now - self._filled_at) * self.per_second)
        self._filled_at = now
