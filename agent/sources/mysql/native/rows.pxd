"""Rows of a WRITE, UPDATE or DELETE_ROWS event into a table's batch.

::

    per image:  null bitmap, a bit per column, least significant first; then the values that are not null
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from agent.columnar.batch cimport HEAD_COLUMNS, Batch, truncate_batch
from agent.columnar.column cimport Column, Row, append_null, mark_valid
from agent.columnar.table_rows cimport finish_row, start_row
from agent.columnar.values cimport MOST_VALUE_BYTES, append_value, decode_utf8, fail
from agent.sources.mysql.native.binary_json cimport decode_json
from agent.sources.mysql.native.codecs cimport decode_by_codec
from agent.sources.mysql.native.decimals cimport decode_decimal, decode_decimal_text
from agent.sources.mysql.native.numbers cimport decode_bit, decode_medium
from agent.sources.mysql.native.plan cimport Plan
from agent.sources.mysql.native.rare cimport decode_rare
from agent.sources.mysql.native.temporal cimport (
    decode_date, decode_datetime, decode_time, decode_timestamp, decode_year
)
from agent.sources.mysql.native.text cimport decode_ascii, decode_binary, decode_enum, decode_set, decode_single_byte
from agent.sources.mysql.native.values cimport (
    READS_2_BYTES, READS_4_BYTES, READS_8_BYTES, READS_ASCII, READS_BINARY, READS_BIT, READS_BYTES, READS_CODEC,
    READS_DATE, READS_DATETIME, READS_DECIMAL, READS_DECIMAL_TEXT, READS_ENUM, READS_JSON, READS_MEDIUM_SIGNED,
    READS_MEDIUM_UNSIGNED, READS_SET, READS_SINGLE_BYTE, READS_TIME, READS_TIMESTAMP, READS_UTF8MB3, READS_UTF8MB4,
    READS_YEAR, Value, le16, le_bytes
)


cdef inline void copy_value(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    """A value whose bytes are those of its column: of at most `READS_8_BYTES`."""
    if value.reads == READS_4_BYTES:
        memcpy(column.values.data + row.number * 4, at, 4)
    elif value.reads == READS_8_BYTES:
        memcpy(column.values.data + row.number * 8, at, 8)
    elif value.reads == READS_2_BYTES:
        memcpy(column.values.data + row.number * 2, at, 2)
    else:
        column.values.data[row.number] = at[0]
    mark_valid(column, row.number)


cdef inline int decode_value(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    """Dispatch to the type's decoder; `size` bytes are there."""
    if value.reads <= READS_8_BYTES:
        copy_value(value, column, row, at)
        return 0
    if value.reads == READS_UTF8MB4:
        return decode_utf8(&value.key, column, row, at, size, True)
    elif value.reads == READS_BYTES:
        return append_value(column, row, at, size)
    elif value.reads == READS_DECIMAL:
        return decode_decimal(value, column, row, at)
    elif value.reads == READS_DATETIME:
        return decode_datetime(value, column, row, at)
    elif value.reads == READS_TIMESTAMP:
        return decode_timestamp(value, column, row, at)
    elif value.reads == READS_DATE:
        return decode_date(value, column, row, at)
    elif value.reads == READS_SINGLE_BYTE:
        return decode_single_byte(value, column, row, at, size)
    elif value.reads == READS_ASCII:
        return decode_ascii(value, column, row, at, size)
    elif value.reads == READS_UTF8MB3:
        return decode_utf8(&value.key, column, row, at, size, False)
    elif value.reads == READS_MEDIUM_SIGNED or value.reads == READS_MEDIUM_UNSIGNED:
        return decode_medium(value, column, row, at)
    elif value.reads == READS_ENUM:
        return decode_enum(value, column, row, at)
    elif value.reads == READS_JSON:
        return decode_json(column, row, at, size)
    elif value.reads == READS_TIME:
        return decode_time(value, column, row, at)
    elif value.reads == READS_YEAR:
        return decode_year(value, column, row, at)
    elif value.reads == READS_SET:
        return decode_set(value, column, row, at)
    elif value.reads == READS_BIT:
        return decode_bit(value, column, row, at)
    elif value.reads == READS_BINARY:
        return decode_binary(value, column, row, at, size)
    elif value.reads == READS_DECIMAL_TEXT:
        return decode_decimal_text(value, column, row, at)
    elif value.reads == READS_CODEC:
        return decode_by_codec(value, column, row, at, size)
    else:
        return decode_rare(value, column, row, at, size)


cdef inline bint find_value(
    const Value* value, const uint8_t** at, const uint8_t* end, size_t* size
) noexcept nogil:
    """Move `at` behind the value's length, if it has one; False: the value is not there as a whole."""
    size[0] = value.size
    if value.prefix:
        if end - at[0] < value.prefix:
            return False
        if value.prefix == 1:
            size[0] = at[0][0]
        elif value.prefix == 2:
            size[0] = le16(at[0])
        else:
            size[0] = le_bytes(at[0], value.prefix)
        at[0] += value.prefix
    return <size_t> (end - at[0]) >= size[0]


cdef inline const uint8_t* decode_columns(
    const Plan* plan, Batch* batch, Row* row, const uint8_t* nulls, const uint8_t* at, const uint8_t* end,
    int32_t* failed
) noexcept nogil:
    """One image's values; returns where they end, or NULL and the failed column's number."""
    cdef const Value* value
    cdef Column* column = batch.columns + HEAD_COLUMNS
    cdef size_t size
    cdef int outcome
    cdef int32_t i
    for i in range(plan.column_count):
        value = plan.values + i
        if nulls[i >> 3] >> (i & 7) & 1:
            if value.sent:
                if not append_null(column, row.number, batch.capacity_rows):
                    fail(row, b"out of memory")
                    break
                column += 1
            continue
        if not find_value(value, &at, end, &size):
            fail(row, b"a row that ends inside a value")
            break
        if value.sent:
            if size > MOST_VALUE_BYTES:
                fail(row, b"a value larger than 240 MiB, which no batch can hold")
                break
            # Not each of these through a call: in many tables most values are such.
            outcome = 0
            if value.reads <= READS_8_BYTES:
                copy_value(value, column, row, at)
            else:
                outcome = decode_value(value, column, row, at, size)
            if outcome:
                if outcome < 0:
                    break
                if not append_null(column, row.number, batch.capacity_rows):
                    fail(row, b"out of memory")
                    break
            column += 1
        at += size
    else:
        return at
    failed[0] = i
    return NULL


cdef inline const uint8_t* append_row(
    Plan* plan, int8_t change_type, int64_t gsn, const uint8_t* at, const uint8_t* end, Row* row, int32_t* failed
) noexcept nogil:
    """Append one image with all columns; returns where it ends. NULL: it can't be read, and the batch is as before."""
    cdef Batch* batch = &plan.rows.batch
    cdef size_t text_bytes = batch.text_bytes
    cdef size_t bitmap = (plan.column_count + 7) // 8
    cdef const uint8_t* after
    failed[0] = -1
    if not start_row(plan.rows, row):
        return NULL
    if <size_t> (end - at) < bitmap:
        fail(row, b"a row that ends inside its null bitmap")
        return NULL
    after = decode_columns(plan, batch, row, at, at + bitmap, end, failed)
    if after == NULL:
        truncate_batch(batch, row.number, row.number + 1, text_bytes)
        return NULL
    return after if finish_row(batch, change_type, gsn, row, text_bytes) else NULL
