from libc.stdint cimport int64_t

from agent.columnar.batch cimport Batch
from agent.columnar.column cimport Column


cdef class CollectedRows:
    cdef Batch batch
    # where the memory goes when nobody uses it any more, and the object that this belongs to
    cdef Batch* spare
    cdef object owner


cdef class ArrowColumns:
    cdef CollectedRows owner
    cdef Column* columns
    cdef list fields
    cdef readonly int64_t length


cdef bint take_spare(Batch* batch, Batch* spare) noexcept
cdef void drop_spare(Batch* spare) noexcept
