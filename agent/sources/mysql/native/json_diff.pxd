from libc.stdint cimport uint8_t

from agent.columnar.column cimport Column, Row

cdef int decode_json_diff(
    Column* column, Row* row, const uint8_t* before, size_t before_size, const uint8_t* diffs, size_t diffs_size
) noexcept nogil
