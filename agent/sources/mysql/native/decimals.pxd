"""NEWDECIMAL as row events and binary JSON hold it (strings/decimal.cc, decimal2bin).

::

    digits before the point, then digits after it, each in groups of 9 digits in 4 bytes, big-endian; the group
    that is not full (the first before the point, the last after it) takes

        digits  0 1 2 3 4 5 6 7 8 9
        bytes   0 1 1 2 2 3 3 4 4 4

    The first bit is inverted, so that it is 1 for positive numbers; a negative number has all bits inverted.

For example decimal(4,2) -1.25 is digits 01 | 25: bytes 1, 25, negative 0x7E 0xE6.
"""

from libc.stdint cimport UINT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from agent.columnar.column cimport Column, Row, append_text, end_text, mark_valid
from agent.columnar.decimals cimport uint128
from agent.columnar.values cimport fail
from agent.sources.mysql.native.values cimport Value, be32

cdef extern from *:
    """
    static const uint8_t menura_decimal_bytes[10] = {0, 1, 1, 2, 2, 3, 3, 4, 4, 4};
    static const uint32_t menura_decimal_powers[10] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000,
                                                       1000000000};
    """
    const uint8_t decimal_bytes "menura_decimal_bytes"[10]
    const uint32_t decimal_powers "menura_decimal_powers"[10]


cdef inline int decimal_size(int precision, int scale) noexcept nogil:
    """Bytes of a decimal(precision, scale)."""
    cdef int whole = precision - scale
    return whole // 9 * 4 + decimal_bytes[whole % 9] + scale // 9 * 4 + decimal_bytes[scale % 9]


cdef inline int64_t decimal_group(const uint8_t* at, int digits, uint8_t first, uint8_t inverted) noexcept nogil:
    """A group of `digits` digits; `first` and `inverted` are XORed to the first byte and to all. -1: too large."""
    cdef int size = decimal_bytes[digits]
    cdef uint32_t group = at[0] ^ first ^ inverted
    if size == 4:
        group = be32(at) ^ (<uint32_t> first << 24) ^ <uint32_t> 0x01010101 * inverted
    else:
        if size >= 2:
            group = (group << 8) | (at[1] ^ inverted)
        if size == 3:
            group = (group << 8) | (at[2] ^ inverted)
    return group if group < decimal_powers[digits] else -1


cdef inline int group_digits(int done, int whole, int precision) noexcept nogil:
    """Digits of the group that comes after `done` digits."""
    if done < whole:
        return (whole - done) % 9 if (whole - done) % 9 else 9
    return 9 if precision - done >= 9 else precision - done


cdef inline int decode_decimal(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    """decimal128: the number without its point as a two's complement of 16 bytes."""
    cdef int whole = value.precision - value.scale, digits, done = 0
    cdef uint8_t inverted = 0 if at[0] & 0x80 else 0xFF, first = 0x80
    cdef uint128 number = 0
    cdef uint64_t small = 0
    # Halves that are read back as a whole right after they were written have the processor wait: small ones stay two.
    cdef uint64_t* halves = <uint64_t*> (column.values.data + row.number * 16)
    cdef int64_t group
    while done < value.precision:
        digits = group_digits(done, whole, value.precision)
        group = decimal_group(at, digits, first, inverted)
        if group < 0:
            return fail(row, b"a decimal with a group of digits that is too large")
        at += decimal_bytes[digits]
        first = 0
        done += digits
        if value.precision <= 18:
            small = small * decimal_powers[digits] + <uint64_t> group
        else:
            number = number * decimal_powers[digits] + <uint128> group
    if value.precision <= 18:
        halves[0] = 0 - small if inverted else small
        halves[1] = UINT64_MAX if inverted and small else 0
    else:
        number = ~number + 1 if inverted else number
        memcpy(halves, &number, 16)
    mark_valid(column, row.number)
    return 0


cdef inline int print_decimal(const uint8_t* at, int precision, int scale, char* text) noexcept nogil:
    """The server's text, at most 68 characters; returns its length, -1 for bytes that are no decimal."""
    cdef int whole = precision - scale, size = 0, digits, i, printed = 0
    cdef uint8_t inverted = 0 if at[0] & 0x80 else 0xFF, first = 0x80
    cdef char all_digits[96]
    cdef int64_t group
    cdef bint is_zero = True
    while printed < precision:
        digits = group_digits(printed, whole, precision)
        group = decimal_group(at, digits, first, inverted)
        if group < 0:
            return -1
        at += decimal_bytes[digits]
        first = 0
        is_zero = is_zero and group == 0
        for i in range(digits - 1, -1, -1):
            all_digits[printed + i] = <char> (48 + group % 10)
            group //= 10
        printed += digits
    if inverted and not is_zero:
        text[size] = 45
        size += 1
    i = 0
    while i < whole - 1 and all_digits[i] == 48:
        i += 1
    if whole == 0:
        text[size] = 48
        size += 1
    memcpy(text + size, all_digits + i, whole - i)
    size += whole - i
    if scale:
        text[size] = 46
        memcpy(text + size + 1, all_digits + whole, scale)
        size += 1 + scale
    return size


cdef inline int decode_decimal_text(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    cdef char text[96]
    cdef int size = print_decimal(at, value.precision, value.scale, text)
    if size < 0:
        return fail(row, b"a decimal with a group of digits that is too large")
    if not append_text(column, row, text, size):
        return fail(row, b"out of memory")
    end_text(column, row.number)
    mark_valid(column, row.number)
    return 0
