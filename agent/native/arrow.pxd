from libc.stdint cimport int64_t

from agent.native.batch cimport Batch
from agent.native.column cimport Column


cdef class CollectedRows:
    cdef Batch batch


cdef class ArrowColumns:
    cdef CollectedRows owner
    cdef Column* columns
    cdef list fields
    cdef readonly int64_t length
