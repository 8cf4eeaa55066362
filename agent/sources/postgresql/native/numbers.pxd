"""Numbers and truth values from the server's text.

::

    boolean                    t or f
    integers                   -?digits
    numeric(p,s)               -?digits.digits, s of them after the point; NaN, Infinity, -Infinity
    real, double precision     the shortest text of the number (`floats`)
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from agent.columnar.column cimport Column, Row, mark_valid, put_bit
from agent.columnar.decimals cimport uint128
from agent.columnar.values cimport Text, fail, unrepresentable
from agent.sources.postgresql.native.floats cimport read_double, read_float

cdef enum:
    # so many digits fit into 64 bits whatever they are
    MOST_QUICK_DIGITS = 19
    # and so many into 128
    MOST_DIGITS = 38

cdef extern from *:
    """
    static const uint64_t menura_ten_to_the[20] = {
        1ULL, 10ULL, 100ULL, 1000ULL, 10000ULL, 100000ULL, 1000000ULL, 10000000ULL, 100000000ULL, 1000000000ULL,
        10000000000ULL, 100000000000ULL, 1000000000000ULL, 10000000000000ULL, 100000000000000ULL, 1000000000000000ULL,
        10000000000000000ULL, 100000000000000000ULL, 1000000000000000000ULL, 10000000000000000000ULL};
    """
    const uint64_t ten_to_the "menura_ten_to_the"[20]


cdef inline int decode_bool(Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    if size != 1 or (at[0] != 116 and at[0] != 102):
        return fail(row, b"a boolean that is neither t nor f")
    put_bit(column, row.number, at[0] == 116)
    mark_valid(column, row.number)
    return 0


cdef inline bint read_digits(const uint8_t* at, size_t size, uint64_t* number) noexcept nogil:
    """1 to 19 digits."""
    cdef uint64_t read = 0
    cdef uint8_t digit
    cdef size_t i
    if size == 0 or size > MOST_QUICK_DIGITS:
        return False
    for i in range(size):
        digit = <uint8_t> (at[i] - 48)
        if digit > 9:
            return False
        read = read * 10 + digit
    number[0] = read
    return True


cdef inline bint read_integer(const uint8_t* at, size_t size, uint64_t most, int64_t* number) noexcept nogil:
    """From -most - 1 to most."""
    cdef uint64_t digits
    cdef bint is_negative = size > 0 and at[0] == 45
    if not read_digits(at + is_negative, size - is_negative, &digits) or digits > most + is_negative:
        return False
    number[0] = <int64_t> (0 - digits if is_negative else digits)
    return True


cdef inline int decode_int2(Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    cdef int64_t number
    if not read_integer(at, size, 0x7FFF, &number):
        return fail(row, b"a smallint that is none")
    (<int16_t*> column.values.data)[row.number] = <int16_t> number
    mark_valid(column, row.number)
    return 0


cdef inline int decode_int4(Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    cdef int64_t number
    if not read_integer(at, size, 0x7FFFFFFF, &number):
        return fail(row, b"an integer that is none")
    (<int32_t*> column.values.data)[row.number] = <int32_t> number
    mark_valid(column, row.number)
    return 0


cdef inline int decode_int8(Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    cdef int64_t number
    if not read_integer(at, size, <uint64_t> 0x7FFFFFFFFFFFFFFF, &number):
        return fail(row, b"a bigint that is none")
    (<int64_t*> column.values.data)[row.number] = number
    mark_valid(column, row.number)
    return 0


cdef inline int decode_uint4(Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    cdef uint64_t number
    if not read_digits(at, size, &number) or number >> 32:
        return fail(row, b"a number that is not one of 32 bits without a sign")
    (<uint32_t*> column.values.data)[row.number] = <uint32_t> number
    mark_valid(column, row.number)
    return 0


cdef inline int decode_float8(Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    if not read_double(at, size, &(<double*> column.values.data)[row.number]):
        return fail(row, b"a double precision number that is none")
    mark_valid(column, row.number)
    return 0


cdef inline int decode_float4(Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    if not read_float(at, size, &(<float*> column.values.data)[row.number]):
        return fail(row, b"a real number that is none")
    mark_valid(column, row.number)
    return 0


cdef inline int decode_decimal(
    const Text* key, int32_t precision, int32_t scale, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    """decimal128. The server prints as many digits after the point as the column's type has."""
    cdef size_t first = 1 if size and at[0] == 45 else 0, point = size - scale - 1 if scale else size, i
    cdef uint64_t number = 0, high = 0
    cdef uint8_t digit
    if size <= first + scale or size - first > MOST_QUICK_DIGITS:
        return decode_any_decimal(key, precision, scale, column, row, at, size)
    for i in range(first, size):
        digit = <uint8_t> (at[i] - 48)
        if digit <= 9 and i != point:
            number = number * 10 + digit
        elif i != point or at[i] != 46:
            return decode_any_decimal(key, precision, scale, column, row, at, size)
    if precision < MOST_QUICK_DIGITS and number >= ten_to_the[precision]:
        return unrepresentable(key, row, <const char*> at, size)
    if first and number:
        number = 0 - number
        high = ~<uint64_t> 0
    memcpy(column.values.data + row.number * 16, &number, 8)
    memcpy(column.values.data + row.number * 16 + 8, &high, 8)
    mark_valid(column, row.number)
    return 0


cdef inline int decode_any_decimal(
    const Text* key, int32_t precision, int32_t scale, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    """Of any number of digits, and what is no number: one that the column's type can't hold is unrepresentable."""
    cdef size_t first = 1 if size and at[0] == 45 else 0, i
    cdef int32_t digits = 0, after = 0
    cdef bint has_point = False, has_digits = False, is_held = True
    cdef uint128 number = 0
    cdef uint8_t digit
    if is_special(at, size):
        return unrepresentable(key, row, <const char*> at, size)
    for i in range(first, size):
        digit = <uint8_t> (at[i] - 48)
        if digit <= 9:
            has_digits = True
            if has_point and after == scale:
                is_held = is_held and digit == 0
                continue
            after += has_point
            digits += digits > 0 or digit > 0
            is_held = is_held and digits <= MOST_DIGITS
            if is_held:
                number = number * 10 + <uint128> digit
        elif at[i] == 46 and not has_point:
            has_point = True
        else:
            return fail(row, b"a numeric that is no number")
    if not has_digits:
        return fail(row, b"a numeric that is no number")
    while is_held and after < scale:
        after += 1
        digits += digits > 0
        is_held = digits <= MOST_DIGITS
        if is_held:
            number = number * 10
    if not is_held or digits > precision:
        return unrepresentable(key, row, <const char*> at, size)
    if first:
        number = ~number + 1
    memcpy(column.values.data + row.number * 16, &number, 16)
    mark_valid(column, row.number)
    return 0


cdef inline bint is_special(const uint8_t* at, size_t size) noexcept nogil:
    return (
        (size == 3 and memcmp(at, b"NaN", 3) == 0)
        or (size == 8 and memcmp(at, b"Infinity", 8) == 0)
        or (size == 9 and memcmp(at, b"-Infinity", 9) == 0)
    )
