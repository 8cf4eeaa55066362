"""Column buffers: the memory that values are appended to and that an Arrow array is made of.

Rows are numbered from 0 within a batch. Room for fixed-width values, offsets and validity bits is made for many
rows at a time (`grow_column`), so that appending a value checks only the room of variable-length text. A
function that can't get memory says so by its result and leaves the column as it was.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset


cdef extern from *:
    """
    /* As memcpy; short texts are most of a table's, and copied without a call. */
    static inline void menura_copy_text(uint8_t *into, const void *text, size_t size) {
        const uint8_t *from = (const uint8_t *)text;
        uint64_t first[2], last[2];
        if (size > 32 || size < 8) {
            memcpy(into, from, size);
        } else if (size >= 16) {
            memcpy(first, from, 16);
            memcpy(last, from + size - 16, 16);
            memcpy(into, first, 16);
            memcpy(into + size - 16, last, 16);
        } else {
            memcpy(first, from, 8);
            memcpy(last, from + size - 8, 8);
            memcpy(into, first, 8);
            memcpy(into + size - 8, last, 8);
        }
    }
    """
    void copy_text "menura_copy_text"(uint8_t* into, const void* text, size_t size) nogil

cdef enum:
    BITS = -1


cdef struct Buffer:
    uint8_t* data
    size_t size
    size_t capacity


cdef struct Column:
    # fixed-width values; or int32 offsets into `text`, one more than rows
    Buffer values
    Buffer text
    # a bit per row, least significant first, 1: there is a value; empty as long as there are no nulls
    Buffer validity
    int64_t nulls
    # bytes of a value; 0: variable length; BITS: a bit per row, as in `validity`
    int32_t width


# What a value's decoder knows about the row it belongs to, and where it says why it failed.
cdef struct Row:
    size_t number
    Column* unrepresentable
    bint has_unrepresentable
    # of all variable-length columns of the batch
    size_t text_bytes
    char failure[160]


cdef inline bint reserve(Buffer* buffer, size_t more) noexcept nogil:
    """Make room for `more` bytes behind `size`."""
    cdef size_t wanted = buffer.size + more
    if wanted <= buffer.capacity:
        return True
    cdef size_t capacity = buffer.capacity + buffer.capacity // 2
    if capacity < wanted:
        capacity = wanted
    if capacity < 256:
        capacity = 256
    cdef void* data = realloc(buffer.data, capacity)
    if data == NULL:
        return False
    buffer.data = <uint8_t*> data
    buffer.capacity = capacity
    return True


cdef inline void release(Buffer* buffer) noexcept nogil:
    free(buffer.data)
    memset(buffer, 0, sizeof(Buffer))


cdef inline bint resize(Buffer* buffer, size_t capacity) noexcept nogil:
    """Exactly this capacity, or more when it is larger already."""
    cdef void* data
    if capacity <= buffer.capacity:
        return True
    data = realloc(buffer.data, capacity)
    if data == NULL:
        return False
    buffer.data = <uint8_t*> data
    buffer.capacity = capacity
    return True


cdef inline size_t values_bytes(int32_t width, size_t rows) noexcept nogil:
    """Bytes of fixed-width values."""
    return rows * width if width > 0 else (rows + 7) // 8


cdef inline bint grow_column(Column* column, size_t rows, size_t capacity_rows) noexcept nogil:
    """Room for `capacity_rows` rows, where `rows` are there."""
    cdef bint is_new = column.values.data == NULL
    if column.width:
        return resize(&column.values, values_bytes(column.width, capacity_rows)) and (
            grow_validity(column, capacity_rows)
        )
    if not resize(&column.values, (capacity_rows + 1) * sizeof(int32_t)):
        return False
    if is_new:
        (<int32_t*> column.values.data)[0] = 0
    return grow_validity(column, capacity_rows)


cdef inline bint grow_validity(Column* column, size_t capacity_rows) noexcept nogil:
    """Validity bits that are there keep up with the rows; new ones are 0."""
    cdef size_t before = column.validity.capacity, wanted = (capacity_rows + 7) // 8
    if before == 0 or wanted <= before:
        return True
    if not resize(&column.validity, wanted):
        return False
    memset(column.validity.data + before, 0, wanted - before)
    return True


cdef inline bint begin_validity(Column* column, size_t rows, size_t capacity_rows) noexcept nogil:
    """The first null: all rows before it have values."""
    cdef size_t size = (capacity_rows + 7) // 8, full = rows // 8
    if column.validity.data != NULL:
        return True
    if not resize(&column.validity, size):
        return False
    memset(column.validity.data, 0xFF, full)
    memset(column.validity.data + full, 0, size - full)
    if rows % 8:
        column.validity.data[full] = <uint8_t> ((1 << (rows % 8)) - 1)
    return True


cdef inline void mark_valid(Column* column, size_t row) noexcept nogil:
    if column.validity.data != NULL:
        column.validity.data[row >> 3] |= <uint8_t> (1 << (row & 7))


cdef inline void put_bit(Column* column, size_t row, bint bit) noexcept nogil:
    """The value of a column of bits; what is behind it in its byte is of no row yet."""
    cdef uint8_t below = <uint8_t> ((1 << (row & 7)) - 1)
    column.values.data[row >> 3] = (column.values.data[row >> 3] & below) | <uint8_t> (bit << (row & 7))


cdef inline bint append_null(Column* column, size_t row, size_t capacity_rows) noexcept nogil:
    if column.validity.data == NULL and not begin_validity(column, row, capacity_rows):
        return False
    column.nulls += 1
    if column.width > 0:
        memset(column.values.data + row * column.width, 0, column.width)
    elif column.width == BITS:
        put_bit(column, row, False)
    else:
        (<int32_t*> column.values.data)[row + 1] = <int32_t> column.text.size
    return True


cdef inline bint append_text(Column* column, Row* row, const void* text, size_t size) noexcept nogil:
    """Bytes of the row's value: may be called several times before `end_text`."""
    if size > INT32_MAX - column.text.size or not reserve(&column.text, size):
        return False
    if size:  # else there may be no memory yet
        copy_text(column.text.data + column.text.size, text, size)
        column.text.size += size
        row.text_bytes += size
    return True


cdef inline void end_text(Column* column, size_t row) noexcept nogil:
    (<int32_t*> column.values.data)[row + 1] = <int32_t> column.text.size


cdef inline void truncate_column(Column* column, size_t rows, size_t from_rows) noexcept nogil:
    """Forget rows `rows` to `from_rows` - 1, of which the last may be half written."""
    cdef size_t row
    if column.values.data == NULL:
        return
    if not column.width:
        column.text.size = (<int32_t*> column.values.data)[rows]
    if column.validity.data == NULL:
        return
    column.nulls = 0
    for row in range(rows, from_rows):
        column.validity.data[row >> 3] &= <uint8_t> ~(1 << (row & 7))
    for row in range(rows):
        column.nulls += not (column.validity.data[row >> 3] >> (row & 7)) & 1


cdef inline void release_column(Column* column) noexcept nogil:
    release(&column.values)
    release(&column.text)
    release(&column.validity)
    column.nulls = 0
