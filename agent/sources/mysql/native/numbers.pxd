"""Integers that do not lie in the event as they lie in memory: MEDIUMINT and BIT.

::

    MEDIUMINT  3 bytes, little-endian
    BIT(n)     (n + 7) / 8 bytes, big-endian
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from agent.columnar.column cimport Column, Row, mark_valid
from agent.columnar.values cimport fail
from agent.sources.mysql.native.values cimport READS_MEDIUM_SIGNED, Value, le24


cdef inline int decode_medium(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    cdef uint32_t number = le24(at)
    if value.reads == READS_MEDIUM_SIGNED and number & 0x800000:
        number |= <uint32_t> 0xFF000000
    (<uint32_t*> column.values.data)[row.number] = number
    mark_valid(column, row.number)
    return 0


cdef inline int decode_bit(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    cdef uint64_t bits = 0
    cdef int32_t i
    for i in range(value.size):
        bits = (bits << 8) | at[i]
    if value.precision < 64 and bits >> value.precision:
        return fail(row, b"a bit value longer than its column")
    (<uint64_t*> column.values.data)[row.number] = bits
    mark_valid(column, row.number)
    return 0
