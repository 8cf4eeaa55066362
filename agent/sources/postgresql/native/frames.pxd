"""Messages of the frontend/backend protocol: bytes as they were received in, whole messages out.

::

    1 kind   4 length, of itself and of what follows   body

Numbers are big-endian, as in all that the messages hold.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

from agent.columnar.received cimport MOST_BYTES, Received

cdef extern from *:
    uint16_t swap16 "__builtin_bswap16"(uint16_t number) nogil
    uint32_t swap32 "__builtin_bswap32"(uint32_t number) nogil
    uint64_t swap64 "__builtin_bswap64"(uint64_t number) nogil

cdef enum:
    FRAME_BYTES = 5


cdef struct Frame:
    uint8_t kind
    const uint8_t* body
    size_t size


cdef enum Found:
    BROKEN = -1
    INCOMPLETE = 0
    WHOLE = 1


cdef inline uint16_t be16(const uint8_t* at) noexcept nogil:
    cdef uint16_t number
    memcpy(&number, at, 2)
    return swap16(number)


cdef inline uint32_t be32(const uint8_t* at) noexcept nogil:
    cdef uint32_t number
    memcpy(&number, at, 4)
    return swap32(number)


cdef inline uint64_t be64(const uint8_t* at) noexcept nogil:
    cdef uint64_t number
    memcpy(&number, at, 8)
    return swap64(number)


cdef inline Found find_frame(const Received* received, Frame* frame) noexcept nogil:
    """The first message that is not consumed."""
    cdef const uint8_t* at = received.data + received.begin
    cdef size_t there = received.end - received.begin, length
    if there < FRAME_BYTES:
        return INCOMPLETE
    length = be32(at + 1)
    if length < 4 or length >= MOST_BYTES:
        return BROKEN
    if there - 1 < length:
        return INCOMPLETE
    frame.kind = at[0]
    frame.body = at + FRAME_BYTES
    frame.size = length - 4
    return WHOLE


cdef inline void consume(Received* received, const Frame* frame) noexcept nogil:
    received.begin += FRAME_BYTES + frame.size


cdef inline dict error_fields(const uint8_t* at, size_t size):
    """An ErrorResponse: letters, each with a text that ends with a zero byte; a zero byte at the end."""
    cdef bytes whole = at[:size]
    fields = {}
    for part in whole.split(b"\0"):
        if part:
            fields[chr(part[0])] = part[1:].decode("utf-8", "replace")
    return fields
