"""Who writes into an SQLite file from this process: one after the other, in the order in which they came.

SQLite has one writer at a time, and whoever waits looks again after up to 0.1 s: among several that write all the time
one may wait for long, and a commit of the gateway's with it. Here each waits for those before it alone. Writers of
other processes are SQLite's to order, in what is left of a writer's time. Nothing is durable.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class TurnTimeout(Exception):
    """Those before it took too long. In SQLite's words, which say the same of another process's writer."""

    def __init__(self) -> None:
        super().__init__("database is locked")


@dataclass(slots=True, eq=False)
class Writers:
    #: that one waits in all, for its turn and then for the file
    seconds: float
    _lock: threading.Lock = field(default_factory=threading.Lock)
    #: of those that wait, and first of the one whose turn it is; each is released when its turn comes
    _turns: "deque[threading.Lock]" = field(default_factory=deque)

    @property
    def count(self) -> int:
        """How many write or wait."""
        return len(self._turns)

    @contextmanager
    def turn(self) -> Iterator[float]:
        """How many seconds are left to wait for the file. Raises `TurnTimeout`."""
        mine, deadline = threading.Lock(), time.monotonic() + self.seconds
        try:
            with self._lock:
                if self._turns:
                    mine.acquire()  # the one before releases it
                self._turns.append(mine)
            if not mine.acquire(timeout=self.seconds):
                raise TurnTimeout
            yield max(0.0, deadline - time.monotonic())
        finally:
            with self._lock:
                self._leave(mine)

    def _leave(self, mine: threading.Lock) -> None:
        if mine not in self._turns:  # an interrupt came before it had a place
            return
        was_first = self._turns[0] is mine
        self._turns.remove(mine)
        if was_first and self._turns:
            self._turns[0].release()
