"""Row images that lack columns, or that hold JSON columns as changes only.

A table's column is in an image if its bit in the event's bitmap says so; null bits are of those columns alone. What an
after image lacks has not changed: it is taken from its before image. What neither has is absent (`_absent`).

::

    per image:  null bitmap, a bit per column that is there; then the values that are not null
    PARTIAL_UPDATE_ROWS, after image:  value options, a length-encoded number (1: partial JSON); if so a bit per JSON
                column of the table, whether its value is a list of changes; then as above
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset

from agent.columnar.batch cimport HEAD_COLUMNS, Batch, note_absent, truncate_batch
from agent.columnar.column cimport Column, Row, append_null
from agent.columnar.table_rows cimport finish_row, start_row
from agent.columnar.values cimport MOST_VALUE_BYTES, fail
from agent.sources.mysql.native.inner cimport read_length
from agent.sources.mysql.native.json_diff cimport decode_json_diff
from agent.sources.mysql.native.plan cimport Plan
from agent.sources.mysql.native.rows cimport decode_value, find_value
from agent.sources.mysql.native.values cimport Value

cdef enum:
    PARTIAL_JSON_UPDATES = 1
    # a bit for each of MOST_COLUMNS
    MOST_ABSENT_BYTES = 512


# How the rows of one event are laid out: its before (or only) image and its after image.
cdef struct Layout:
    # bits of the columns that are there, in so many bytes of null bits
    const uint8_t* present[2]
    size_t null_bytes[2]
    # all columns are there, and all values as a whole
    bint is_whole[2]
    # after images begin with value options
    bint has_options


cdef enum Presence:
    BROKEN_VALUE = -1
    ABSENT_VALUE = 0
    NULL_VALUE = 1
    HAS_VALUE = 2


# An image that is read column by column.
cdef struct Image:
    const uint8_t* present
    const uint8_t* nulls
    # bits of the JSON columns whose values are changes; NULL: none
    const uint8_t* partial
    int32_t passed
    int32_t passed_json
    # the next value
    const uint8_t* at
    const uint8_t* end
    # the value at hand
    const uint8_t* value
    size_t size
    bint is_diff


cdef inline bint has_bit(const uint8_t* bits, int32_t number) noexcept nogil:
    return bits[number >> 3] >> (number & 7) & 1


cdef inline size_t count_bits(const uint8_t* bits, int32_t size) noexcept nogil:
    cdef size_t count = 0
    cdef int32_t i
    for i in range(size):
        count += has_bit(bits, i)
    return count


cdef inline bint open_image(
    Image* image, const Plan* plan, const Layout* layout, bint is_after, const uint8_t* at, const uint8_t* end, Row* row
) noexcept nogil:
    cdef uint64_t options = 0
    cdef size_t partial_bytes
    memset(image, 0, sizeof(Image))
    image.present = layout.present[is_after]
    image.end = end
    if is_after and layout.has_options:
        if not read_length(&at, end, &options):
            fail(row, b"a row that ends inside its value options")
            return False
        if options & ~<uint64_t> PARTIAL_JSON_UPDATES:
            fail(row, b"a row with value options that are not known")
            return False
    if options:
        partial_bytes = (plan.json_columns + 7) // 8
        if <size_t> (end - at) < partial_bytes:
            fail(row, b"a row that ends inside its value options")
            return False
        image.partial = at
        at += partial_bytes
    if <size_t> (end - at) < layout.null_bytes[is_after]:
        fail(row, b"a row that ends inside its null bitmap")
        return False
    image.nulls = at
    image.at = at + layout.null_bytes[is_after]
    return True


cdef inline Presence next_value(Image* image, const Value* value, int32_t number, Row* row) noexcept nogil:
    """What the image has of a column: columns must be asked for in order."""
    image.is_diff = False
    if value.is_json:
        image.is_diff = image.partial != NULL and has_bit(image.partial, image.passed_json)
        image.passed_json += 1
    if not has_bit(image.present, number):
        return ABSENT_VALUE
    image.passed += 1
    if has_bit(image.nulls, image.passed - 1):
        return NULL_VALUE
    if not find_value(value, &image.at, image.end, &image.size):
        fail(row, b"a row that ends inside a value")
        return BROKEN_VALUE
    image.value = image.at
    image.at += image.size
    return HAS_VALUE


cdef inline int decode_next(
    const Value* value, Column* column, Row* row, Image* image, Presence before, Image* before_image
) noexcept nogil:
    """The value at hand into its column; as `decode_value`."""
    if image.size > MOST_VALUE_BYTES or (before == HAS_VALUE and before_image.size > MOST_VALUE_BYTES):
        return fail(row, b"a value larger than 240 MiB, which no batch can hold")
    if not image.is_diff:
        return decode_value(value, column, row, image.value, image.size)
    if before != HAS_VALUE:
        return fail(
            row,
            b"changes of a JSON value that the log does not hold: set binlog_row_image to FULL or"
            b" binlog_row_value_options to ''",
        )
    return decode_json_diff(column, row, before_image.value, before_image.size, image.value, image.size)


cdef inline const uint8_t* append_image(
    Plan* plan, int8_t change_type, int64_t gsn, const Layout* layout, const uint8_t* before_at, const uint8_t* at,
    const uint8_t* end, Row* row, int32_t* failed
) noexcept nogil:
    """As rows.append_row; `before_at` is the before image of an after image, else NULL."""
    cdef Batch* batch = &plan.rows.batch
    cdef Column* column = batch.columns + HEAD_COLUMNS
    cdef bint is_after = before_at != NULL, has_absent = False
    cdef size_t text_bytes = batch.text_bytes
    cdef uint8_t[MOST_ABSENT_BYTES] absent
    cdef Image image, before
    cdef Image* source
    cdef Presence found, found_before = ABSENT_VALUE
    cdef int outcome
    cdef int32_t i, sent = 0
    failed[0] = -1
    if not start_row(plan.rows, row):
        return NULL
    if not open_image(&image, plan, layout, is_after, at, end, row) or (
        is_after and not open_image(&before, plan, layout, False, before_at, end, row)
    ):
        return NULL
    memset(absent, 0, sizeof(absent))
    for i in range(plan.column_count):
        failed[0] = i
        source = &image
        found = next_value(&image, plan.values + i, i, row)
        if is_after:
            found_before = next_value(&before, plan.values + i, i, row)
        outcome = -1 if found == BROKEN_VALUE or found_before == BROKEN_VALUE else 0
        if outcome == 0 and plan.values[i].sent:
            if found == ABSENT_VALUE and found_before != ABSENT_VALUE:
                source, found = &before, found_before
            if found == HAS_VALUE:
                outcome = decode_next(plan.values + i, column, row, source, found_before, &before)
            else:
                outcome = 1
            if found == ABSENT_VALUE:
                has_absent = True
                absent[sent >> 3] |= <uint8_t> (1 << (sent & 7))
            if outcome > 0 and not append_null(column, row.number, batch.capacity_rows):
                outcome = fail(row, b"out of memory")
            column += 1
            sent += 1
        if outcome < 0:
            truncate_batch(batch, row.number, row.number + 1, text_bytes)
            return NULL
    if has_absent and not note_absent(batch, row, absent, (sent + 7) // 8):
        fail(row, b"out of memory")
        truncate_batch(batch, row.number, row.number + 1, text_bytes)
        return NULL
    return image.at if finish_row(batch, change_type, gsn, row, text_bytes) else NULL
