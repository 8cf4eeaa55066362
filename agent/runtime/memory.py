"""How this process's memory behaves: set once at the start, before any data.

A batch of several MiB is made, compressed and dropped some times a second. The C library's default hands such
blocks back to the kernel at once and gets them anew, zeroed page by page, which cost more CPU than decoding;
here freed blocks are kept for the next batch. Python's cyclic collector walks everything that was imported,
again and again, for cycles that batches don't have; what exists at the start is left out of it.
"""

import gc

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
