"""Whether a process lives, and whether it can do its work now: what /livez, /readyz and gRPC's health service answer.

Comes in: the beats of a loop, and what the parts of a process say of themselves. Goes out: reasons, none where all is
well. Nothing is durable. A process that does not live is to be started anew; one that is not ready waits for something
and goes on by itself. A reason names the part and never what an agent has said.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

BEAT_SECONDS = 1.0
#: a loop that has not come round for so long stands still
STILL_SECONDS = 30.0

Reasons = Callable[[], Sequence[str]]


class Pulse:
    """Of a loop that must always come round soon: beaten by it, looked at from any other thread.

    >>> at = 0.0
    >>> pulse = Pulse("the loop", clock=lambda: at)
    >>> pulse.beat()
    >>> at = 31.0
    >>> pulse.stopped()
    ['the loop has stood still for 31 s']
    >>> with pulse.excused():
    ...     pulse.stopped()
    []
    """

    def __init__(
        self, what: str, still_seconds: float = STILL_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._still_seconds = still_seconds
        self._clock = clock
        #: None: it has not begun, or may take as long as it does
        self._at: float | None = None

    def beat(self) -> None:
        self._at = self._clock()

    def rest(self) -> None:
        """Until the next beat it may take as long as it does."""
        self._at = None

    @contextmanager
    def excused(self) -> Iterator[None]:
        """What the loop does meanwhile has no limit."""
        self.rest()
        try:
            yield
        finally:
            self.beat()

    def stopped(self) -> list[str]:
        """Why the loop counts as hanging."""
        at = self._at
        still = 0.0 if at is None else self._clock() - at
        return [f"{self._what} has stood still for {still:.0f} s"] if still > self._still_seconds else []

    async def run(self) -> None:
        """Beat on the event loop until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(BEAT_SECONDS)


def _nothing() -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class Health:
    #: why the process is to be started anew
    lifeless: Reasons = _nothing
    #: why it can't do its work now
    unready: Reasons = _nothing


class Readiness:
    """What keeps a process from its work, by part. Safe from any thread: each change is one of a dict's own.

    >>> ready = Readiness({"log": "the cut log is not read yet"})
    >>> ready.waits("database", "the database is away")
    >>> ready.goes_on("log")
    >>> ready.reasons()
    ['the database is away']
    """

    def __init__(self, waiting: Mapping[str, str] | None = None) -> None:
        self._waiting = {part: (why, math.inf) for part, why in (waiting or {}).items()}

    def waits(self, part: str, why: str, seconds: float = math.inf) -> None:
        """`seconds`: after which it counts as over."""
        self._waiting[part] = (why, time.monotonic() + seconds)

    def goes_on(self, part: str) -> None:
        self._waiting.pop(part, None)

    def reasons(self) -> list[str]:
        now = time.monotonic()
        return [why for why, until in list(self._waiting.values()) if now < until]
