"""What MariaDB's `log_bin_compress` makes of a statement or of an event's rows (sql/log_event.cc, binlog_buf_compress).

::

    1 head: 0x80 | algorithm << 4 (0: zlib) | bytes of the length   1 to 4 length, big-endian   zlib stream

Memory grows with what really comes, not with the length that is announced; both must be the same in the end.
"""

import zlib

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t

from agent.columnar.received cimport MOST_BYTES


cdef bytes inflate(const uint8_t* at, size_t size, const char** why):
    """The bytes, or None and why."""
    cdef uint64_t announced = 0
    cdef size_t length_bytes, i
    if size < 1 or not at[0] & 0x80:
        why[0] = b"compressed bytes without their head"
        return None
    if at[0] >> 4 & 7 != 0:
        why[0] = b"a compression that is not known"
        return None
    length_bytes = at[0] & 0xF
    if not 1 <= length_bytes <= 4 or size - 1 < length_bytes:
        why[0] = b"compressed bytes without their length"
        return None
    for i in range(length_bytes):
        announced = announced << 8 | at[1 + i]
    if announced == 0 or announced > MOST_BYTES:
        why[0] = b"compressed bytes of an impossible length"
        return None
    try:
        stream = zlib.decompressobj()
        whole = stream.decompress(
            PyBytes_FromStringAndSize(<const char*> at + 1 + length_bytes, size - 1 - length_bytes), announced
        )
    except zlib.error:
        why[0] = b"bytes that zlib can't decompress"
        return None
    except MemoryError:
        why[0] = b"out of memory"
        return None
    # Output may stop at the announced size before the stream's checksum was read.
    if <uint64_t> len(whole) != announced or not ends_here(stream):
        why[0] = b"compressed bytes of another length than they say"
        return None
    return whole


cdef bint ends_here(stream):
    """No byte comes any more, and none is left over."""
    try:
        return (stream.eof or not stream.decompress(stream.unconsumed_tail, 1)) and stream.eof and not (
            stream.unused_data
        )
    except zlib.error:
        return False
