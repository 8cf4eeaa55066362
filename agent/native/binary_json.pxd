from libc.stdint cimport uint8_t

from agent.native.column cimport Column, Row

cdef int decode_json(Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil
