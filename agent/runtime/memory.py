"""How this process's memory behaves: set once at the start, before any data.

A batch of several MiB is made, compressed and dropped some times a second. The C library's default hands such
blocks back to the kernel at once and gets them anew, zeroed page by page, which cost more CPU than decoding;
here freed blocks are kept for the next batch. Python's cyclic collector walks everything that was imported,
again and again, for cycles that batches don't have; what exists at the start is left out of it.

An agent that rests gives back the code that only its start, or its last work, has run: more than the half of it.
"""

import gc
from dataclasses import dataclass

from menura import allocator

#: blocks below are reused; a larger one is a rare batch, as of a large row, and goes back to the kernel
KEPT_BLOCK_BYTES = 8 << 20
#: free memory at the heap's end that is kept
KEPT_FREE_BYTES = 48 << 20
COLLECT_EVERY_OBJECTS = 50_000


def settle() -> None:
    """Call when everything is imported."""
    allocator.keep(KEPT_BLOCK_BYTES, KEPT_FREE_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY_OBJECTS)


#: between two looks at whether the agent rests, and of code that came back one by one while it did
LOOK_SECONDS, AGAIN_SECONDS = 10.0, 600.0
#: of one core: an agent that waits for changes of a few sources uses less
RESTING_SHARE = 0.05


@dataclass(slots=True)
class Rest:
    """Looks at the CPU that the process has used. Times are by the monotonic clock."""

    looked_at_seconds: float
    cpu_seconds: float
    #: None: it has worked since
    given_at_seconds: float | None = None

    def is_due(self, now_seconds: float, cpu_seconds: float) -> bool:
        """Whether to give code back now.

        >>> rest = Rest(0.0, 2.0)
        >>> rest.is_due(5.0, 2.0), rest.is_due(10.0, 2.6), rest.is_due(20.0, 2.7), rest.is_due(30.0, 2.7)
        (False, False, True, False)
        >>> rest.is_due(40.0, 9.0), rest.is_due(50.0, 9.0), rest.is_due(640.0, 9.0), rest.is_due(650.0, 9.0)
        (False, True, False, True)
        """
        passed = now_seconds - self.looked_at_seconds
        if passed < LOOK_SECONDS:
            return False
        rests = cpu_seconds - self.cpu_seconds < RESTING_SHARE * passed
        self.looked_at_seconds, self.cpu_seconds = now_seconds, cpu_seconds
        if not rests:
            self.given_at_seconds = None
        elif self.given_at_seconds is None or now_seconds - self.given_at_seconds >= AGAIN_SECONDS:
            self.given_at_seconds = now_seconds
            return True
        return False
