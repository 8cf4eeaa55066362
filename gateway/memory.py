"""How this process's memory behaves: set once at the start, and given back after each large batch.

The bound for one stream: 192 MiB and five of its largest batch, which is a row where rows are of many MiB. The batch is
there as its parts come; then as its frame and as Arrow; then as Arrow, and in the Parquet writer as encoded values,
page and compressed page. A stream reads nothing behind a large batch before that has landed; the fifth
is the next message, of which gRPC takes as much as its window has room for.

The bound for several: large batches are landed one at a time. `backlog.MAX_ROWS_BYTES` of rows wait, by their size
before compression, and one batch more. On their way are `backlog.MAX_PARTS_BYTES` of parts, one message of each tenant
more, and of each stream one gRPC message, which is on disk soon if there is no room for it (`gateway.spool`). What
gathers of small batches until their cut ends is `landing.gathered.MAX_BYTES` for all sources. Messages beside rows are
weighed before they are parsed, and count eightfold within `backlog.MAX_REPORTS_BYTES`. Text in `_unrepresentable` is
beyond the bound: the Parquet writer keeps its least and greatest value until the file's end.
"""

import gc

import pyarrow as pa
from menura import allocator

#: a large batch has as much as it travels, or before compression; what agents make of small rows is below
LARGE_FRAME_BYTES = 8 << 20
LARGE_ROWS_BYTES = 20 << 20

#: larger blocks go back to the kernel when they are freed; the C library would keep ever larger ones
_KEPT_BLOCK_BYTES = 8 << 20
#: free memory at the heap's end that is kept
_KEPT_FREE_BYTES = 32 << 20
#: made before Python's cyclic collector looks at those, while nothing else runs: some 10 ms, where many streams have
#: ended. One look in ten is at what was left, too. One in a thousand is at all objects, with 2,000 agents for a second.
_COLLECT_EVERY_OBJECTS, _LOOKS_AT_NEW, _LOOKS_AT_LEFT = 5_000, 10, 100


def settle() -> None:
    """Call when everything is imported, before the first thread starts."""
    allocator.keep(_KEPT_BLOCK_BYTES, _KEPT_FREE_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY_OBJECTS, _LOOKS_AT_NEW, _LOOKS_AT_LEFT)


def give_back() -> None:
    """What is free goes back to the kernel, Arrow's and the C library's."""
    pa.default_memory_pool().release_unused()
    allocator.trim()
