"""How rows are compressed on their way: LZ4, for the database host's CPU, or zstd, for narrow links.

Goes in: an Arrow stream. Comes out: one frame of either format, whose first bytes tell a reader which it is.
zstd's library is Python's own from 3.14 on and its backport before.
"""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

import lz4.frame
from menura.change_batch import Compression

__all__ = ["compress", "compress_in_pieces", "zstd"]

#: zstd's that costs least
LEVEL = 1
#: blocks may refer to what stands before them, so large ones lose nothing
_LZ4_BLOCK = lz4.frame.BLOCKSIZE_MAX4MB


def compress(stream: bytes, compression: Compression) -> bytes:
    """One frame."""
    if compression is Compression.ZSTD:
        return zstd.compress(stream, LEVEL)
    frame: bytes = lz4.frame.compress(stream, block_size=_LZ4_BLOCK)
    return frame


def compress_in_pieces(stream: bytes, compression: Compression, piece_bytes: int) -> list[bytes]:
    """The same in pieces, made of so much each: of a large stream a whole frame would be there twice for a moment."""
    whole = memoryview(stream)
    inputs = [whole[at : at + piece_bytes] for at in range(0, len(stream), piece_bytes)]
    if compression is Compression.ZSTD:
        zstd_compressor = zstd.ZstdCompressor(LEVEL)
        zstd_compressor.set_pledged_input_size(len(stream))
        return [*map(zstd_compressor.compress, inputs), zstd_compressor.flush()]
    compressor = lz4.frame.LZ4FrameCompressor(block_size=_LZ4_BLOCK)
    return [compressor.begin(len(stream)), *map(compressor.compress, inputs), compressor.flush()]
