"""Who writes into an SQLite file from this process: one after the other, in the order in which they came.

SQLite has one writer at a time, and whoever waits looks again after up to 0.1 s: among several that write all the time
one may wait for long, and a commit of the gateway's with it. Here each waits for those before it alone. Writers of
other processes are SQLite's to order. Nothing is durable.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Writers:
    #: that one waits; after that SQLite says whether the file is free
    seconds: float
    _lock: threading.Lock = field(default_factory=threading.Lock)
    #: of those that wait, and first of the one whose turn it is; each is released when its turn comes
    _turns: "deque[threading.Lock]" = field(default_factory=deque)

    @property
    def count(self) -> int:
        """How many write or wait."""
        return len(self._turns)

    @contextmanager
    def turn(self) -> Iterator[None]:
        mine = threading.Lock()
        with self._lock:
            if self._turns:
                mine.acquire()  # the one before releases it
            self._turns.append(mine)
        try:
            mine.acquire(timeout=self.seconds)
            yield
        finally:
            with self._lock:
                was_first = self._turns[0] is mine
                self._turns.remove(mine)
                if was_first and self._turns:
                    self._turns[0].release()
