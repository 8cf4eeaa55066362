"""How this process's memory behaves: set once at the start, before any data.

A batch of several MiB is made, compressed and dropped some times a second. The C library's default hands such
blocks back to the kernel at once and gets them anew, zeroed page by page, which cost more CPU than decoding;
here freed blocks are kept for the next batch. Python's cyclic collector walks everything that was imported,
again and again, for cycles that batches don't have; what exists at the start is left out of it.
"""

import ctypes
import gc

#: of malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

#: blocks below are reused; a larger one is a rare batch and goes back to the kernel
KEPT_BLOCK_BYTES = 32 << 20
#: free memory at the heap's end that is kept
KEPT_FREE_BYTES = 48 << 20
COLLECT_EVERY_OBJECTS = 50_000


def settle() -> None:
    """Call when everything is imported; without glibc only the collector is set."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
        libc.mallopt(_M_ARENA_MAX, 2)
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY_OBJECTS)
