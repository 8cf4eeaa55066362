"""How this process's memory behaves: set once at the start, and given back after each large batch.

The bound for one stream: 192 MiB and five of its largest batch, which is a row where rows are of many MiB. The batch is
there up to three times as gRPC receives it (slices, a bytearray, bytes); then as its frame and as Arrow; then as Arrow,
and in the Parquet writer as encoded values, page and compressed page. A stream reads nothing behind a large batch
before that has landed; the fifth is the next message, of which gRPC takes as much as its window has room for.

The bound for several: large batches are landed one at a time, and no stream reads while `backlog.MAX_BYTES` wait. So
beside the four, gRPC's two further copies and what waits, each stream that sends has one message on its way. gRPC ends
it at `menura.change_batch.MAX_BATCH_BYTES` and 2 MiB, also where an agent sends without credit. What gathers of small
batches until their cut ends is `landing.parquet.MAX_GATHERED_BYTES` a source. Text in `_unrepresentable` is beyond the
bound: the Parquet writer keeps its least and greatest value until the file's end.
"""

import pyarrow as pa
from menura import allocator

#: a large batch has as much as it travels, or before compression; what agents make of small rows is below
LARGE_FRAME_BYTES = 8 << 20
LARGE_ROWS_BYTES = 20 << 20

#: larger blocks go back to the kernel when they are freed; the C library would keep ever larger ones
_KEPT_BLOCK_BYTES = 8 << 20
#: free memory at the heap's end that is kept
_KEPT_FREE_BYTES = 32 << 20


def settle() -> None:
    """Call before the first thread starts."""
    allocator.keep(_KEPT_BLOCK_BYTES, _KEPT_FREE_BYTES)


def give_back() -> None:
    """What is free goes back to the kernel, Arrow's and the C library's."""
    pa.default_memory_pool().release_unused()
    allocator.trim()
