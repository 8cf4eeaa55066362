"""MySQL's packets: bytes as they were received in, whole payloads out.

::

    3 length   1 sequence   payload; one of 0xFFFFFF bytes is continued by the next packet, up to a shorter one

A payload of one packet is read where it lies. The parts of a continued one are moved together as they come,
each byte once.
"""

from libc.stdint cimport uint8_t
from libc.string cimport memmove

from agent.columnar cimport received
from agent.columnar.received cimport RESTING_BYTES, Received
from agent.sources.mysql.native.values cimport le24

cdef extern from "sys/mman.h" nogil:
    int madvise(void* address, size_t size, int advice)
    int MADV_DONTNEED

cdef enum:
    CONTINUED = 0xFFFFFF
    # Whole pages on every machine.
    PAGES_BYTES = 64 << 10


cdef struct Packets:
    Received held
    # the first payload is whole: `size` bytes from data[begin + 4], and `next` is the next packet's header
    bint is_whole
    size_t size
    # it is being put together from packets: so far up to data[joined]
    bint is_continued
    size_t joined
    size_t next


cdef inline bint make_room(Packets* p) noexcept nogil:
    """Room behind what is there; False: no memory, or a payload that is too large."""
    cdef size_t begin = p.held.begin
    cdef bint done = received.make_room(&p.held, p.is_continued or p.is_whole)
    # by so much what is there has moved
    begin -= p.held.begin
    if p.is_continued:
        p.joined -= begin
    if p.is_continued or p.is_whole:
        p.next -= begin
    return done


cdef inline bint find_payload(Packets* p) noexcept nogil:
    """Whether the first payload is there as a whole; it stays until `consume`."""
    cdef size_t length
    if p.is_whole:
        return True
    if not p.is_continued:
        if p.held.end - p.held.begin < 4:
            return False
        length = le24(p.held.data + p.held.begin)
        if p.held.end - p.held.begin - 4 < length:
            return False
        p.size = length
        p.joined = p.next = p.held.begin + 4 + length
        p.is_whole = length < CONTINUED
        p.is_continued = not p.is_whole
    while not p.is_whole:
        if p.held.end - p.next < 4:
            return False
        length = le24(p.held.data + p.next)
        if p.held.end - p.next - 4 < length:
            return False
        memmove(p.held.data + p.joined, p.held.data + p.next + 4, length)
        p.joined += length
        p.size += length
        p.next += 4 + length
        p.is_whole = length < CONTINUED
    return True


cdef inline void consume(Packets* p) noexcept nogil:
    p.held.begin = p.next
    p.is_whole = p.is_continued = False


cdef inline void shrink(Packets* p) noexcept nogil:
    """Give back what a large payload needed, once it is consumed."""
    if not p.is_continued and not p.is_whole:
        received.shrink(&p.held)


cdef inline void give_back(uint8_t* begin, uint8_t* end) noexcept nogil:
    """The pages between go back to the kernel, where there are many: their bytes are read no more."""
    cdef size_t first = (<size_t> begin + PAGES_BYTES - 1) // PAGES_BYTES * PAGES_BYTES
    cdef size_t last = <size_t> end // PAGES_BYTES * PAGES_BYTES
    if last > first and last - first >= RESTING_BYTES:
        madvise(<void*> first, last - first, MADV_DONTNEED)
