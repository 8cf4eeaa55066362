from libc.stdint cimport uint8_t

from agent.columnar.column cimport Column, Row
from agent.sources.mysql.native.values cimport Value

cdef int decode_rare(const Value* value, Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil
