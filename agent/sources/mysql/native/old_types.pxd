"""Types that servers no longer create, but still write for tables that came with them through upgrades.

::

    TIME        3 bytes, little-endian, signed: hours * 10000 + minutes * 100 + seconds
    DATETIME    8 bytes, little-endian: year ... seconds as the decimal digits YYYYMMDDhhmmss
    TIMESTAMP   4 bytes, little-endian: seconds since the epoch
    DECIMAL     ASCII: spaces, sign, digits, point, digits; one byte for a point, one for the sign of a signed one

MariaDB's with a fraction of f digits, big-endian, x / 10^(6 - f) of microseconds (sql/field.cc, Field_time_hires):

    TIME(f)       3 4 4 5 5 5 6 bytes for f = 0..6: time + 838:59:59 + 1 second
    DATETIME(f)   5 6 6 7 7 7 8 bytes: (((((year * 13 + month) * 32 + day) * 24 + hours) * 60 + minutes) * 60 + seconds)
    TIMESTAMP(f)  4 bytes: seconds; 0 1 1 2 2 3 3 bytes: fraction

How many digits a column has stands in its definition alone.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from agent.columnar.column cimport Column, Row, append_text, end_text, mark_valid
from agent.columnar.decimals cimport uint128
from agent.columnar.values cimport fail, unrepresentable
from agent.sources.mysql.native.temporal cimport append_datetime, append_timestamp
from agent.sources.mysql.native.values cimport Value, be32, le24, le32, le64

cdef extern from *:
    """
    static const int64_t menura_powers_of_ten[7] = {1, 10, 100, 1000, 10000, 100000, 1000000};
    """
    const int64_t powers_of_ten "menura_powers_of_ten"[7]

cdef enum:
    # 839 hours
    TIME_ZERO_SECONDS = 3020400
    MOST_DECIMAL128_DIGITS = 38


cdef inline uint64_t be_bytes(const uint8_t* at, int size) noexcept nogil:
    """A big-endian number of up to 8 bytes."""
    cdef uint64_t number = 0
    cdef int i
    for i in range(size):
        number = (number << 8) | at[i]
    return number


cdef inline int decode_old_time(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    """Signed microseconds."""
    cdef int64_t unit, time, clock
    cdef bint is_negative
    if value.digits:
        unit = powers_of_ten[6 - value.digits]
        time = <int64_t> be_bytes(at, value.size) - TIME_ZERO_SECONDS * powers_of_ten[value.digits]
        time *= unit
        if time <= -<int64_t> TIME_ZERO_SECONDS * 1000000 or time >= <int64_t> TIME_ZERO_SECONDS * 1000000:
            return fail(row, b"a time beyond 838:59:59")
    else:
        clock = le24(at)
        is_negative = clock >= 0x800000
        if is_negative:
            clock = 0x1000000 - clock
        if clock > 8385959 or clock // 100 % 100 > 59 or clock % 100 > 59:
            return fail(row, b"a time beyond 838:59:59")
        time = (clock // 10000 * 3600 + clock // 100 % 100 * 60 + clock % 100) * 1000000
        if is_negative:
            time = -time
    (<int64_t*> column.values.data)[row.number] = time
    mark_valid(column, row.number)
    return 0


cdef inline int decode_old_datetime(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    cdef uint64_t packed, clock
    cdef int micros = 0, year, month, day
    if value.digits:
        packed = be_bytes(at, value.size)
        micros = <int> (packed % powers_of_ten[value.digits] * powers_of_ten[6 - value.digits])
        packed //= powers_of_ten[value.digits]
        clock = packed % 86400
        packed //= 86400
        day = packed % 32
        packed //= 32
        month = packed % 13
        packed //= 13
    else:
        packed = le64(at)
        clock = packed % 1000000
        if clock // 10000 > 23 or clock // 100 % 100 > 59 or clock % 100 > 59:
            return fail(row, b"a datetime beyond 23:59:59")
        clock = clock // 10000 * 3600 + clock // 100 % 100 * 60 + clock % 100
        packed //= 1000000
        day = packed % 100
        packed //= 100
        month = packed % 100
        packed //= 100
    if packed > 9999 or month > 12 or day > 31:
        return fail(row, b"a datetime beyond year 9999, month 12 or day 31")
    year = <int> packed
    return append_datetime(value, column, row, year, month, day, <int64_t> clock, micros)


cdef inline int decode_old_timestamp(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    cdef uint64_t fraction
    if not value.digits:
        return append_timestamp(value, column, row, le32(at), 0)
    fraction = be_bytes(at + 4, value.size - 4)
    if fraction >= <uint64_t> powers_of_ten[value.digits]:
        return fail(row, b"a fraction of a second above 1")
    return append_timestamp(value, column, row, be32(at), <int> (fraction * powers_of_ten[6 - value.digits]))


cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return 48 <= byte <= 57


cdef inline bint is_old_decimal(const uint8_t* at, size_t size, size_t scale) noexcept nogil:
    """Digits, the last `scale` of them after a point."""
    cdef size_t i
    if size < (scale + 1 if scale else 1) or (scale and at[size - scale - 1] != 46):
        return False
    for i in range(size):
        if not (is_digit(at[i]) or (scale and i == size - scale - 1)):
            return False
    return True


cdef inline int decode_old_decimal(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    """Its column's decimal128, or the text of one with more digits.

    A positive number may use the sign's place for one digit more than its column has; it is unrepresentable.
    """
    cdef size_t scale = <size_t> value.scale, whole, i
    cdef const uint8_t* end = at + size
    cdef bint is_negative = False
    while at < end and at[0] == 32:
        at += 1
    if at < end and (at[0] == 45 or at[0] == 43):
        is_negative = at[0] == 45
        at += 1
    if not is_old_decimal(at, end - at, scale):
        return fail(row, b"a decimal that is no number")
    whole = end - at - (scale + 1 if scale else 0)
    while whole and at[0] == 48:
        at += 1
        whole -= 1
    if whole + scale > <size_t> value.precision:
        return unrepresentable(&value.key, row, <const char*> at, end - at)
    if value.precision > MOST_DECIMAL128_DIGITS:
        return append_old_decimal(column, row, at, end, whole, is_negative)
    cdef uint128 number = 0
    for i in range(<size_t> (end - at)):
        if at[i] != 46:
            number = number * 10 + <uint128> (at[i] - 48)
    if is_negative:
        number = ~number + 1
    memcpy(column.values.data + row.number * 16, &number, 16)
    mark_valid(column, row.number)
    return 0


cdef inline int append_old_decimal(
    Column* column, Row* row, const uint8_t* at, const uint8_t* end, size_t whole, bint is_negative
) noexcept nogil:
    """The text of a decimal of more than 38 digits, without the zeros before it."""
    cdef bint done = True, is_zero = True
    cdef size_t i
    for i in range(<size_t> (end - at)):
        is_zero = is_zero and (at[i] == 48 or at[i] == 46)
    if is_negative and not is_zero:
        done = append_text(column, row, b"-", 1)
    if whole == 0:
        done = done and append_text(column, row, b"0", 1)
    if not done or not append_text(column, row, at, end - at):
        return fail(row, b"out of memory, or more than 2 GiB in one column of a batch")
    end_text(column, row.number)
    mark_valid(column, row.number)
    return 0
