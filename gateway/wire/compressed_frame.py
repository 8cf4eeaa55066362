"""A compressed frame from an agent, to the bytes that it was made of.

Comes in: an LZ4 or a zstd frame, known by its first bytes, and the size that it is to have. Goes out: so many bytes, no
more and no fewer; never more memory than that is taken, whatever the frame says of itself.
"""

import lz4.frame
import pyarrow as pa

from gateway.errors import BatchInvalid
from gateway.wire.message import Frame

#: of lz4's doc/lz4_Frame_format.md; all else is taken for zstd, which refuses what it is not
_LZ4_MAGIC = b"\x04\x22\x4d\x18"


def decompressed(frame: Frame, size_bytes: int) -> pa.Buffer:
    """Raises BatchInvalid; what Arrow raises for a frame of zstd that it can't read: OSError, MemoryError."""
    if frame[: len(_LZ4_MAGIC)] != _LZ4_MAGIC:
        return pa.decompress(frame, decompressed_size=size_bytes, codec="zstd")
    # Not by Arrow: of a frame of fewer bytes it leaves the rest of the buffer as that memory was.
    reader = lz4.frame.LZ4FrameDecompressor()
    try:
        data = reader.decompress(frame, max_length=size_bytes + 1)
    except RuntimeError as malformed:
        raise BatchInvalid("reading a change batch", "bytes that LZ4 can't decompress") from malformed
    if len(data) != size_bytes or not reader.eof or reader.unused_data:
        raise BatchInvalid("reading a change batch", f"other than one LZ4 frame of {size_bytes} bytes")
    return pa.py_buffer(data)
