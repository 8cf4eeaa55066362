from libc.stdint cimport int64_t

from agent.native.batch cimport Batch
from agent.native.column cimport Column
from agent.native.plan cimport Plan


cdef class CollectedRows:
    cdef Batch batch
    # the plan that gets the memory back, and the object that it belongs to
    cdef Plan* plan
    cdef object owner


cdef class ArrowColumns:
    cdef CollectedRows owner
    cdef Column* columns
    cdef list fields
    cdef readonly int64_t length


cdef bint take_spare(Plan* plan) noexcept
cdef void drop_spare(Plan* plan) noexcept
