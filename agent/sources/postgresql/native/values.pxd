"""How one column's value is read from the server's text: the compiled form of a column, and where it goes.

See `agent.columnar.values` for what a decoder of values is given and what it returns.
"""

from libc.stdint cimport int32_t, uint8_t

from agent.columnar.column cimport Column, Row
from agent.columnar.values cimport MOST_VALUE_BYTES, Text, decode_utf8, fail
from agent.sources.postgresql.native.numbers cimport (
    decode_bool, decode_decimal, decode_float4, decode_float8, decode_int2, decode_int4, decode_int8, decode_uint4
)
from agent.sources.postgresql.native.hexadecimal cimport decode_bytes
from agent.sources.postgresql.native.temporal cimport decode_date, decode_time, decode_timestamp


# `Value.reads`: the form of a column's type, `types.Form`.
cdef enum Reads:
    READS_TEXT
    READS_INT4
    READS_INT8
    READS_DECIMAL
    READS_TIMESTAMP
    READS_TIMESTAMPTZ
    READS_DATE
    READS_BOOL
    READS_FLOAT8
    READS_INT2
    READS_FLOAT4
    READS_BYTES
    READS_TIME
    READS_UINT4


cdef struct Value:
    Reads reads
    # False: stepped over
    bint sent
    # an old tuple that is a key has its value
    bint identity
    # of a decimal
    int32_t precision
    int32_t scale
    # the column's name as a JSON string, for `_unrepresentable`
    Text key


cdef inline int decode_value(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    """Dispatch to the form's decoder; `size` bytes are there."""
    if size > MOST_VALUE_BYTES:
        return fail(row, b"a value larger than 240 MiB, which no batch can hold")
    if value.reads == READS_TEXT:
        return decode_utf8(&value.key, column, row, at, size, True)
    elif value.reads == READS_INT4:
        return decode_int4(column, row, at, size)
    elif value.reads == READS_INT8:
        return decode_int8(column, row, at, size)
    elif value.reads == READS_DECIMAL:
        return decode_decimal(&value.key, value.precision, value.scale, column, row, at, size)
    elif value.reads == READS_TIMESTAMP:
        return decode_timestamp(&value.key, column, row, at, size, False)
    elif value.reads == READS_TIMESTAMPTZ:
        return decode_timestamp(&value.key, column, row, at, size, True)
    elif value.reads == READS_DATE:
        return decode_date(&value.key, column, row, at, size)
    elif value.reads == READS_BOOL:
        return decode_bool(column, row, at, size)
    elif value.reads == READS_FLOAT8:
        return decode_float8(column, row, at, size)
    elif value.reads == READS_INT2:
        return decode_int2(column, row, at, size)
    elif value.reads == READS_FLOAT4:
        return decode_float4(column, row, at, size)
    elif value.reads == READS_BYTES:
        return decode_bytes(column, row, at, size)
    elif value.reads == READS_TIME:
        return decode_time(column, row, at, size)
    else:
        return decode_uint4(column, row, at, size)
