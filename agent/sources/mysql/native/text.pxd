"""Text of every charset becomes UTF-8; binary strings stay as they are; labels of ENUM and SET.

Bytes that are no character of the column's charset go to the row's `_unrepresentable`: no other character is put in
their place.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from agent.columnar.column cimport Column, Row, append_text, end_text, mark_valid, reserve
from agent.columnar.values cimport (
    Text, append_value, ascii_prefix, begin_unrepresentable, fail, invalid_bytes, unrepresentable
)
from agent.sources.mysql.native.values cimport Value, le_bytes


cdef inline int decode_ascii(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    if ascii_prefix(at, size) < size:
        return invalid_bytes(&value.key, row, at, size)
    return append_value(column, row, at, size)


cdef inline int decode_single_byte(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    """A charset of one byte per character, through the column's table."""
    cdef size_t i, written = column.text.size
    cdef uint32_t character
    if value.has_ascii and ascii_prefix(at, size) == size:
        return append_value(column, row, at, size)
    if not reserve(&column.text, 3 * size + 4):
        return fail(row, b"out of memory")
    for i in range(size):
        character = value.characters[at[i]]
        if character == 0:
            return invalid_bytes(&value.key, row, at, size)
        # three bytes are written, one to three count
        column.text.data[written] = <uint8_t> (character >> 8)
        column.text.data[written + 1] = <uint8_t> (character >> 16)
        column.text.data[written + 2] = <uint8_t> (character >> 24)
        written += character & 3
    size = written - column.text.size
    if written > 0x7FFFFFFF:
        return fail(row, b"more than 2 GiB in one column of a batch")
    column.text.size = written
    row.text_bytes += size
    end_text(column, row.number)
    mark_valid(column, row.number)
    return 0


cdef inline int decode_binary(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    """BINARY(n): the log leaves out trailing zero bytes."""
    cdef size_t missing
    if size > value.padded:
        return fail(row, b"a binary value longer than its column")
    missing = value.padded - size
    if not reserve(&column.text, value.padded) or not append_text(column, row, at, size):
        return fail(row, b"out of memory, or more than 2 GiB in one column of a batch")
    memset(column.text.data + column.text.size, 0, missing)
    column.text.size += missing
    row.text_bytes += missing
    end_text(column, row.number)
    mark_valid(column, row.number)
    return 0


cdef inline int decode_enum(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    """The label's number from 1; 0 is the error value ''."""
    cdef uint64_t number = le_bytes(at, value.size)
    if number > value.label_count:
        return fail(row, b"the number of an enum label that the column does not have")
    if number == 0:
        return append_value(column, row, b"", 0)
    if value.labels[number - 1].text == NULL:
        return unrepresentable(&value.key, row, value.label_words[number - 1].text, value.label_words[number - 1].size)
    return append_value(column, row, value.labels[number - 1].text, value.labels[number - 1].size)


cdef inline bint append_labels(
    Column* column, Row* row, const Text* labels, size_t count, uint64_t bits
) noexcept nogil:
    """The labels whose bits are set, joined by commas as servers do it: none follows an empty label at the begin."""
    cdef bint is_empty = True
    cdef size_t i
    for i in range(count):
        if bits >> i & 1:
            if not is_empty and not append_text(column, row, b",", 1):
                return False
            if not append_text(column, row, labels[i].text, labels[i].size):
                return False
            is_empty = is_empty and labels[i].size == 0
    return True


cdef inline int decode_set(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    """A bit per label."""
    cdef uint64_t bits = le_bytes(at, value.size)
    cdef Column* words = row.unrepresentable
    if value.label_count < 64 and bits >> value.label_count:
        return fail(row, b"the bit of a set label that the column does not have")
    if bits & value.invalid_labels:
        if begin_unrepresentable(&value.key, row) and (
            append_labels(words, row, value.label_words, value.label_count, bits)
        ):
            return 1 if append_text(words, row, b"\"", 1) else fail(row, b"out of memory")
        return fail(row, b"out of memory")
    if not append_labels(column, row, value.labels, value.label_count, bits):
        return fail(row, b"out of memory, or more than 2 GiB in one column of a batch")
    end_text(column, row.number)
    mark_valid(column, row.number)
    return 0
