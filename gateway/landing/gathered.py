"""One budget of the process for rows that gather in memory before they are written.

Comes in: what each cut and each stream of chunks holds, from any worker thread. Goes out: how much one of them may
hold: as much as is still free, so that one alone may have half of the budget, the next one half of what is left, and
none is ever refused. Each has at least `LEAST_BYTES`, with which it goes on, in smaller row groups, while others hold
the rest: rows of a cut that its agent leaves open stay until it ends, or its deadline comes.
"""

import threading
from dataclasses import dataclass, field

MAX_BYTES = 96 << 20
LEAST_BYTES = 256 << 10


@dataclass(slots=True)
class Gathered:
    max_bytes: int = MAX_BYTES
    _held_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def change(self, by_bytes: int) -> None:
        with self._lock:
            self._held_bytes += by_bytes

    def share_bytes(self) -> int:
        """What one that asks now may hold."""
        return max(LEAST_BYTES, self.max_bytes - self._held_bytes)
