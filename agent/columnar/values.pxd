"""What the decoders of values share, whatever source they are of.

A decoder gets bytes whose presence has been checked. It returns 0 when it has appended a value, 1 when the
value is to become null, -1 when the bytes can't be read; then `Row.failure` says why, without any value.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy

from agent.columnar.column cimport Column, Row, append_text, end_text, mark_valid


cdef extern from *:
    """
    #define MENURA_ABOVE_ASCII 0x8080808080808080ull

    /* Of eight bytes as they stand in memory: the number of the first that is not ASCII; 8: all are. */
    static inline size_t menura_first_above_ascii(uint64_t eight) {
        eight &= MENURA_ABOVE_ASCII;
        if (!eight) return 8;
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        return (size_t)__builtin_ctzll(eight) >> 3;
    #else
        return (size_t)__builtin_clzll(eight) >> 3;
    #endif
    }
    """
    const uint64_t ABOVE_ASCII "MENURA_ABOVE_ASCII"
    size_t first_above_ascii "menura_first_above_ascii"(uint64_t eight) nogil

cdef enum:
    # A longer value can't be in any batch.
    MOST_VALUE_BYTES = 240 << 20


# A piece of text in UTF-8.
cdef struct Text:
    const char* text
    size_t size


cdef inline int fail(Row* row, const char* why) noexcept nogil:
    snprintf(row.failure, sizeof(row.failure), b"%s", why)
    return -1


cdef inline int append_value(Column* column, Row* row, const void* text, size_t size) noexcept nogil:
    if not append_text(column, row, text, size):
        return fail(row, b"out of memory, or more than 2 GiB in one column of a batch")
    end_text(column, row.number)
    mark_valid(column, row.number)
    return 0


cdef inline bint begin_unrepresentable(const Text* key, Row* row) noexcept nogil:
    """A member of the row's JSON object, up to its text; `key` is the column's name as a JSON string."""
    cdef Column* column = row.unrepresentable
    cdef bint done = append_text(column, row, b"," if row.has_unrepresentable else b"{", 1)
    row.has_unrepresentable = True
    return done and append_text(column, row, key.text, key.size) and append_text(column, row, b":\"", 2)


cdef inline int unrepresentable(const Text* key, Row* row, const char* text, size_t size) noexcept nogil:
    """Note a value that its type can't hold: `"NAME":"TEXT"`; the text needs no escapes."""
    cdef bint done = begin_unrepresentable(key, row) and append_text(row.unrepresentable, row, text, size)
    return 1 if done and append_text(row.unrepresentable, row, b"\"", 1) else fail(row, b"out of memory")


cdef inline int invalid_bytes(const Text* key, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    """Note bytes that are no value of their type: `"NAME":"0xE4F6"`."""
    cdef char digits[512]
    cdef size_t done = 0, chunk, i
    if size > MOST_VALUE_BYTES // 2:
        return fail(row, b"an invalid text larger than 120 MiB, which no batch can hold in hexadecimal digits")
    if not begin_unrepresentable(key, row) or not append_text(row.unrepresentable, row, b"0x", 2):
        return fail(row, b"out of memory")
    while done < size:
        chunk = size - done if size - done < sizeof(digits) // 2 else sizeof(digits) // 2
        for i in range(chunk):
            digits[2 * i] = hex_digit(at[done + i] >> 4)
            digits[2 * i + 1] = hex_digit(at[done + i] & 15)
        if not append_text(row.unrepresentable, row, digits, 2 * chunk):
            return fail(row, b"out of memory")
        done += chunk
    return 1 if append_text(row.unrepresentable, row, b"\"", 1) else fail(row, b"out of memory")


cdef inline char hex_digit(int number) noexcept nogil:
    return <char> (number + (48 if number < 10 else 55))


cdef inline size_t ascii_prefix(const uint8_t* at, size_t size) noexcept nogil:
    """How many bytes from the beginning are ASCII."""
    cdef size_t i = 0
    cdef uint64_t eight
    while i + 8 <= size:
        memcpy(&eight, at + i, 8)
        if eight & ABOVE_ASCII:
            return i + first_above_ascii(eight)
        i += 8
    if i == size:
        return size
    if size >= 8:  # the last eight bytes, of which those before i are ASCII
        memcpy(&eight, at + size - 8, 8)
        return size - 8 + first_above_ascii(eight)
    while i < size and at[i] < 0x80:
        i += 1
    return i


cdef inline bint is_continuation(uint8_t byte) noexcept nogil:
    return (byte & 0xC0) == 0x80


cdef inline bint is_utf8(const uint8_t* at, size_t size, bint four_bytes) noexcept nogil:
    """Well-formed UTF-8 as RFC 3629 has it; `four_bytes` False: none beyond U+FFFF."""
    cdef size_t i = ascii_prefix(at, size)
    cdef uint8_t lead
    while i < size:
        lead = at[i]
        if lead < 0x80:
            i += 1 + ascii_prefix(at + i + 1, size - i - 1)
        elif 0xC2 <= lead <= 0xDF:
            if size - i < 2 or not is_continuation(at[i + 1]):
                return False
            i += 2
        elif 0xE0 <= lead <= 0xEF:
            if size - i < 3 or not is_continuation(at[i + 1]) or not is_continuation(at[i + 2]):
                return False
            if (lead == 0xE0 and at[i + 1] < 0xA0) or (lead == 0xED and at[i + 1] > 0x9F):
                return False
            i += 3
        elif 0xF0 <= lead <= 0xF4 and four_bytes:
            if size - i < 4 or not is_continuation(at[i + 1]) or not is_continuation(at[i + 2]):
                return False
            if not is_continuation(at[i + 3]):
                return False
            if (lead == 0xF0 and at[i + 1] < 0x90) or (lead == 0xF4 and at[i + 1] > 0x8F):
                return False
            i += 4
        else:
            return False
    return True


cdef inline int decode_utf8(
    const Text* key, Column* column, Row* row, const uint8_t* at, size_t size, bint four_bytes
) noexcept nogil:
    if not is_utf8(at, size, four_bytes):
        return invalid_bytes(key, row, at, size)
    return append_value(column, row, at, size)
