"""Dates and times from the server's text with datestyle = ISO.

::

    date                        YYYY-MM-DD
    time                        HH:MM:SS[.f], up to 24:00:00
    timestamp                   YYYY-MM-DD HH:MM:SS[.f]
    timestamp with time zone    the same and +HH[:MM[:SS]] or -HH..., the session's: UTC is +00

    f                           1 to 6 digits

A year above 9999 has more digits, one before year 1 ends in BC, and there are infinity and -infinity: they are null,
and their text goes to the row's `_unrepresentable`.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from agent.columnar.calendar cimport days_since_epoch, is_calendar_date
from agent.columnar.column cimport Column, Row, mark_valid
from agent.columnar.values cimport Text, fail, unrepresentable

cdef enum:
    DATE_BYTES = 10
    CLOCK_BYTES = 8
    # a year of seven digits, a fraction, a time zone, and BC
    MOST_TEMPORAL_BYTES = 48

cdef extern from *:
    """
    static const int32_t menura_fraction_units[7] = {0, 100000, 10000, 1000, 100, 10, 1};
    """
    const int32_t fraction_units "menura_fraction_units"[7]


cdef inline int two_digits(const uint8_t* at) noexcept nogil:
    """Their number; below 0: they are none. All such are far below, so that sums of several are too."""
    cdef uint8_t tens = <uint8_t> (at[0] - 48), ones = <uint8_t> (at[1] - 48)
    return tens * 10 + ones if tens <= 9 and ones <= 9 else -100000


cdef inline bint read_day(const uint8_t* at, int32_t* day) noexcept nogil:
    """Days since 1970-01-01 of the DATE_BYTES of a date; False: they are none of the calendar."""
    cdef int year = two_digits(at) * 100 + two_digits(at + 2)
    cdef int month = two_digits(at + 5), day_of_month = two_digits(at + 8)
    if at[4] != 45 or at[7] != 45 or not is_calendar_date(year, month, day_of_month):
        return False
    day[0] = days_since_epoch(year, month, day_of_month)
    return True


cdef inline bint read_clock(const uint8_t** at, const uint8_t* end, int64_t* micros) noexcept nogil:
    """Move behind a time of day and its fraction; False: there is none."""
    cdef const uint8_t* here = at[0]
    cdef int hour, minute, second, digits = 0
    cdef int32_t fraction = 0
    cdef uint8_t digit
    if end - here < CLOCK_BYTES or here[2] != 58 or here[5] != 58:
        return False
    hour, minute, second = two_digits(here), two_digits(here + 3), two_digits(here + 6)
    if hour < 0 or hour > 24 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return False
    here += CLOCK_BYTES
    if here < end and here[0] == 46:
        here += 1
        while here < end and digits < 7:
            digit = <uint8_t> (here[0] - 48)
            if digit > 9:
                break
            fraction = fraction * 10 + digit
            digits += 1
            here += 1
        if digits == 0 or digits > 6:
            return False
    micros[0] = (hour * 3600 + minute * 60 + second) * <int64_t> 1000000 + fraction * fraction_units[digits]
    at[0] = here
    return micros[0] <= 86400 * <int64_t> 1000000


cdef inline bint read_zone(const uint8_t** at, const uint8_t* end, int64_t* seconds) noexcept nogil:
    """Move behind a time zone: how far its clocks are ahead of UTC."""
    cdef const uint8_t* here = at[0]
    cdef int part, sign, units = 3600
    if end - here < 3 or (here[0] != 43 and here[0] != 45):
        return False
    sign = 1 if here[0] == 43 else -1
    seconds[0] = 0
    while units and end - here >= 3:
        part = two_digits(here + 1)
        if part < 0 or part > 59 or (units < 3600 and here[0] != 58):
            return False
        seconds[0] += sign * part * units
        units //= 60
        here += 3
    at[0] = here
    return True


cdef inline bint is_beyond(const uint8_t* at, size_t size) noexcept nogil:
    """Infinity, or a date with signs of its own: the text needs no escapes in JSON."""
    cdef size_t i
    if (size == 8 and memcmp(at, b"infinity", 8) == 0) or (size == 9 and memcmp(at, b"-infinity", 9) == 0):
        return True
    if size < DATE_BYTES or size > MOST_TEMPORAL_BYTES:
        return False
    if at[4] == 45 and memcmp(at + size - 3, b" BC", 3) != 0:
        return False  # four digits of a year are of this calendar
    for i in range(size):
        # digits - . : + and space, BC at the end
        if not (45 <= at[i] <= 58 and at[i] != 47 or at[i] == 43 or at[i] == 32 or (
            i + 2 >= size and (at[i] == 66 or at[i] == 67)
        )):
            return False
    return True


cdef inline int decode_date(const Text* key, Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    cdef int32_t day
    if size == DATE_BYTES and read_day(at, &day):
        (<int32_t*> column.values.data)[row.number] = day
        mark_valid(column, row.number)
        return 0
    if is_beyond(at, size):
        return unrepresentable(key, row, <const char*> at, size)
    return fail(row, b"a date that is none")


cdef inline int decode_timestamp(
    const Text* key, Column* column, Row* row, const uint8_t* at, size_t size, bint has_zone
) noexcept nogil:
    cdef const uint8_t* here = at + DATE_BYTES + 1
    cdef const uint8_t* end = at + size
    cdef int64_t micros, zone = 0
    cdef int32_t day
    if size >= DATE_BYTES + 1 + CLOCK_BYTES and at[DATE_BYTES] == 32 and read_day(at, &day) and (
        read_clock(&here, end, &micros) and (not has_zone or read_zone(&here, end, &zone)) and here == end
    ):
        micros += (day * <int64_t> 86400 - zone) * 1000000
        (<int64_t*> column.values.data)[row.number] = micros
        mark_valid(column, row.number)
        return 0
    if is_beyond(at, size):
        return unrepresentable(key, row, <const char*> at, size)
    return fail(row, b"a timestamp that is none")


cdef inline int decode_time(Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    """Microseconds of the day."""
    cdef const uint8_t* here = at
    cdef int64_t micros
    if not read_clock(&here, at + size, &micros) or here != at + size:
        return fail(row, b"a time of day that is none")
    (<int64_t*> column.values.data)[row.number] = micros
    mark_valid(column, row.number)
    return 0
