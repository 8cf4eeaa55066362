"""Bytes as they were received, and not yet read: memory of one connection.

It grows with the bytes that have come, never with a length that was only announced, and is given back once they
are consumed.
"""

from cpython.buffer cimport PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove

cdef enum:
    LEAST_FREE_BYTES = 64 << 10
    # Small enough to stay in the processor's cache between receiving and decoding.
    RESTING_BYTES = 1 << 20
    # The largest message of any server (1 GiB), and what its frame adds to it.
    MOST_BYTES = (1 << 30) + (64 << 20)


cdef struct Received:
    uint8_t* data
    size_t capacity
    # received and not yet consumed: data[begin:end]
    size_t begin
    size_t end


cdef inline bint make_room(Received* r, bint is_read) noexcept nogil:
    """At least LEAST_FREE_BYTES behind `end`, for which what is there may move to the front. `is_read`: a message of it
    is being read, and goes on. False: no memory, or a message beyond MOST_BYTES."""
    cdef size_t capacity = r.capacity
    cdef void* data
    if r.begin == r.end:
        r.begin = r.end = 0
    elif r.begin and r.capacity - r.end < r.capacity // 2:
        memmove(r.data, r.data + r.begin, r.end - r.begin)
        r.end -= r.begin
        r.begin = 0
    if r.end == 0 or (r.begin == 0 and r.end <= RESTING_BYTES // 2 and not is_read):
        capacity = RESTING_BYTES
    elif r.capacity - r.end < LEAST_FREE_BYTES:
        capacity = r.capacity * 2
    if capacity == r.capacity:
        return True
    if r.end >= MOST_BYTES:
        return False
    data = realloc(r.data, capacity)
    if data == NULL:
        return False
    r.data = <uint8_t*> data
    r.capacity = capacity
    return True


cdef inline object free_space(Received* r):
    """What `make_room` has made, as a memoryview that is invalid after the next call."""
    return PyMemoryView_FromMemory(<char*> r.data + r.end, r.capacity - r.end, PyBUF_WRITE)


cdef inline int take_in(Received* r, size_t size) except -1:
    """So many bytes were written into `free_space`."""
    if size > r.capacity - r.end:
        raise ValueError("more bytes received than there was room for")
    r.end += size
    return 0


cdef inline void shrink(Received* r) noexcept nogil:
    """Give back what a large message needed, once it is consumed."""
    cdef void* data
    if r.capacity <= RESTING_BYTES or r.end - r.begin > RESTING_BYTES // 2:
        return
    memmove(r.data, r.data + r.begin, r.end - r.begin)
    r.end -= r.begin
    r.begin = 0
    data = realloc(r.data, RESTING_BYTES)
    if data != NULL:
        r.data = <uint8_t*> data
        r.capacity = RESTING_BYTES


cdef inline void release_received(Received* r) noexcept nogil:
    free(r.data)
    r.data = NULL
