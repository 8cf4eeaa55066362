from libc.stdint cimport int32_t, uint8_t

from agent.sources.mysql.native cimport result_plan as compiled
from agent.columnar.column cimport Buffer
from agent.columnar.selected_rows cimport SelectedRows
from agent.sources.mysql.native.packets cimport Packets


cdef class ResultReader(SelectedRows):
    cdef readonly compiled.ResultPlan plan
    cdef bint deprecate_eof
    cdef Packets packets
    cdef int stage
    cdef int32_t fields
    cdef int32_t described
    cdef list packets_of_definitions
    cdef bytes last_error
    cdef int32_t failed_column
    # of the last row: the bound columns, still in `packets`
    cdef const uint8_t* bounds
    cdef size_t bounds_size
    cdef const uint8_t* bound_nulls
    # and where they are kept: each as in the row
    cdef Buffer kept_bounds
    cdef Buffer kept_nulls

    cdef int run(self) noexcept nogil
    cdef int read_payload(self, const uint8_t* at, size_t size) noexcept nogil
    cdef int read_count(self, const uint8_t* at, size_t size) noexcept nogil
    cdef int read_definition(self, const uint8_t* at, size_t size) noexcept nogil
    cdef bint keep_definition(self, const uint8_t* at, size_t size) noexcept with gil
    cdef bint keep_error(self, const uint8_t* at, size_t size) noexcept with gil
    cdef int read_end(self, const uint8_t* at, size_t size) noexcept nogil
    cdef int read_row(self, const uint8_t* at, size_t size) noexcept nogil
    cdef int read_values(self, const uint8_t* nulls, const uint8_t* at, const uint8_t* end) noexcept nogil
    cdef bint keep_last(self) noexcept nogil
    cdef int refuse(self, const char* why) noexcept nogil
