"""MySQL's packets: bytes as they were received in, whole payloads out.

::

    3 length   1 sequence   payload; one of 0xFFFFFF bytes is continued by the next packet, up to a shorter one

A payload of one packet is read where it lies. The parts of a continued one are moved together as they come,
each byte once. Memory grows with the bytes that have come, never with a length that was only announced, and is given
back once they are consumed.
"""

from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

from agent.sources.mysql.native.values cimport le24

cdef extern from "sys/mman.h" nogil:
    int madvise(void* address, size_t size, int advice)
    int MADV_DONTNEED

cdef enum:
    CONTINUED = 0xFFFFFF
    LEAST_FREE_BYTES = 64 << 10
    # Small enough to stay in the processor's cache between receiving and decoding.
    RESTING_BYTES = 1 << 20
    # Whole pages on every machine.
    PAGES_BYTES = 64 << 10
    # The server's largest packet (max_allowed_packet) and what an event adds to it.
    MOST_BYTES = (1 << 30) + (64 << 20)


cdef struct Packets:
    uint8_t* data
    size_t capacity
    # received and not yet consumed: data[begin:end]
    size_t begin
    size_t end
    # the first payload is whole: `size` bytes from data[begin + 4], and `next` is the next packet's header
    bint is_whole
    size_t size
    # it is being put together from packets: so far up to data[joined]
    bint is_continued
    size_t joined
    size_t next


cdef inline bint make_room(Packets* p) noexcept nogil:
    """At least LEAST_FREE_BYTES behind `end`; False: no memory, or a payload beyond MOST_BYTES."""
    cdef size_t capacity = p.capacity
    cdef void* data
    if p.begin == p.end:
        p.begin = p.end = 0
    elif p.begin and p.capacity - p.end < p.capacity // 2:
        memmove(p.data, p.data + p.begin, p.end - p.begin)
        p.joined = p.joined - p.begin if p.is_continued else 0
        p.next = p.next - p.begin if p.is_continued or p.is_whole else 0
        p.end -= p.begin
        p.begin = 0
    if p.end == 0 or (p.begin == 0 and p.end <= RESTING_BYTES // 2 and not p.is_continued and not p.is_whole):
        capacity = RESTING_BYTES
    elif p.capacity - p.end < LEAST_FREE_BYTES:
        capacity = p.capacity * 2
    if capacity == p.capacity:
        return True
    if p.end >= MOST_BYTES:
        return False
    data = realloc(p.data, capacity)
    if data == NULL:
        return False
    p.data = <uint8_t*> data
    p.capacity = capacity
    return True


cdef inline bint find_payload(Packets* p) noexcept nogil:
    """Whether the first payload is there as a whole; it stays until `consume`."""
    cdef size_t length
    if p.is_whole:
        return True
    if not p.is_continued:
        if p.end - p.begin < 4:
            return False
        length = le24(p.data + p.begin)
        if p.end - p.begin - 4 < length:
            return False
        p.size = length
        p.joined = p.next = p.begin + 4 + length
        p.is_whole = length < CONTINUED
        p.is_continued = not p.is_whole
    while not p.is_whole:
        if p.end - p.next < 4:
            return False
        length = le24(p.data + p.next)
        if p.end - p.next - 4 < length:
            return False
        memmove(p.data + p.joined, p.data + p.next + 4, length)
        p.joined += length
        p.size += length
        p.next += 4 + length
        p.is_whole = length < CONTINUED
    return True


cdef inline void consume(Packets* p) noexcept nogil:
    p.begin = p.next
    p.is_whole = p.is_continued = False


cdef inline void shrink(Packets* p) noexcept nogil:
    """Give back what a large payload needed, once it is consumed."""
    cdef void* data
    if p.capacity <= RESTING_BYTES or p.is_continued or p.is_whole or p.end - p.begin > RESTING_BYTES // 2:
        return
    memmove(p.data, p.data + p.begin, p.end - p.begin)
    p.end -= p.begin
    p.begin = 0
    data = realloc(p.data, RESTING_BYTES)
    if data != NULL:
        p.data = <uint8_t*> data
        p.capacity = RESTING_BYTES


cdef inline void give_back(uint8_t* begin, uint8_t* end) noexcept nogil:
    """The pages between go back to the kernel, where there are many: their bytes are read no more."""
    cdef size_t first = (<size_t> begin + PAGES_BYTES - 1) // PAGES_BYTES * PAGES_BYTES
    cdef size_t last = <size_t> end // PAGES_BYTES * PAGES_BYTES
    if last > first and last - first >= RESTING_BYTES:
        madvise(<void*> first, last - first, MADV_DONTNEED)


cdef inline void release_packets(Packets* p) noexcept nogil:
    free(p.data)
    p.data = NULL
