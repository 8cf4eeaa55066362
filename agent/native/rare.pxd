from libc.stdint cimport uint8_t

from agent.native.column cimport Column, Row
from agent.native.values cimport Value

cdef int decode_rare(const Value* value, Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil
