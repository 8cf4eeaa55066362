"""Values as result sets of the binary protocol hold them, where that is not as row events do (sql/protocol_classic.cc).

::

    DATE                  nothing, or 2 year   1 month   1 day
    DATETIME, TIMESTAMP   the same; also with 1 hour   1 minute   1 second; also with 4 microseconds
    TIME                  nothing, or 1 negative   4 days   1 hours   1 minutes   1 seconds; also with 4 microseconds
    DECIMAL               ASCII: sign, digits, point, digits
    BIT(n)                (n + 7) / 8 bytes, big-endian
    YEAR                  8 bytes: selected as a number, of four digits whatever the column shows

What is left out at the end is zero. A TIMESTAMP is in the session's time zone, which is UTC here.
"""

from libc.stdint cimport int16_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from agent.columnar.calendar cimport days_since_epoch, is_calendar_date
from agent.columnar.column cimport Column, Row, mark_valid
from agent.columnar.values cimport fail
from agent.sources.mysql.native.numbers cimport decode_bit
from agent.sources.mysql.native.old_types cimport decode_old_decimal
from agent.sources.mysql.native.temporal cimport append_date, append_datetime, append_timestamp
from agent.sources.mysql.native.values cimport Value, le16, le32, le64

cdef enum:
    # more could overflow what such a decimal is counted in
    MOST_QUICK_DIGITS = 18


cdef struct Moment:
    int year
    int month
    int day
    # of the day
    int64_t seconds
    int micros


cdef inline bint read_moment(Moment* moment, const uint8_t* at, size_t size) noexcept nogil:
    """False: its length is none of the four, or a part is beyond what any server has."""
    moment.year = moment.month = moment.day = moment.micros = 0
    moment.seconds = 0
    if size != 0 and size != 4 and size != 7 and size != 11:
        return False
    if size >= 4:
        moment.year, moment.month, moment.day = <int> le16(at), at[2], at[3]
    if size >= 7:
        if at[4] > 23 or at[5] > 59 or at[6] > 59:
            return False
        moment.seconds = at[4] * 3600 + at[5] * 60 + at[6]
    if size == 11:
        if le32(at + 7) > 999999:
            return False
        moment.micros = <int> le32(at + 7)
    return moment.year <= 9999 and moment.month <= 12 and moment.day <= 31


cdef inline int decode_result_date(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    cdef Moment moment
    if size > 4 or not read_moment(&moment, at, size):
        return fail(row, b"a date of impossible parts")
    return append_date(value, column, row, moment.year, moment.month, moment.day)


cdef inline int decode_result_datetime(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    cdef Moment moment
    if not read_moment(&moment, at, size):
        return fail(row, b"a datetime of impossible parts")
    return append_datetime(
        value, column, row, moment.year, moment.month, moment.day, moment.seconds, moment.micros
    )


cdef inline int decode_result_timestamp(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    cdef Moment moment
    cdef int64_t seconds = 0
    if not read_moment(&moment, at, size):
        return fail(row, b"a timestamp of impossible parts")
    if is_calendar_date(moment.year, moment.month, moment.day):
        seconds = days_since_epoch(moment.year, moment.month, moment.day) * <int64_t> 86400 + moment.seconds
        if seconds < 0:
            return fail(row, b"a timestamp before 1970")
    elif moment.year or moment.month or moment.day or moment.seconds or moment.micros:
        return fail(row, b"a timestamp of a date that no calendar has")
    return append_timestamp(value, column, row, seconds, moment.micros)


cdef inline int decode_result_time(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    """Signed microseconds."""
    cdef int64_t hours, clock = 0
    if size != 0 and size != 8 and size != 12:
        return fail(row, b"a time of an unknown length")
    if size:
        hours = le32(at + 1) * <int64_t> 24 + at[5]
        if hours > 838 or at[6] > 59 or at[7] > 59 or (size == 12 and le32(at + 8) > 999999):
            return fail(row, b"a time beyond 838:59:59")
        clock = (hours * 3600 + at[6] * 60 + at[7]) * 1000000 + (<int64_t> le32(at + 8) if size == 12 else 0)
        if at[0]:
            clock = -clock
    (<int64_t*> column.values.data)[row.number] = clock
    mark_valid(column, row.number)
    return 0


cdef inline int decode_result_decimal(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    """decimal128, or the text of one with more than 38 digits."""
    cdef size_t scale = <size_t> value.scale, first, most, point, i
    cdef int64_t number = 0, high
    cdef uint8_t digit
    first = 1 if size and at[0] == 45 else 0
    most = <size_t> value.precision + (1 if scale else 0)
    if value.precision > MOST_QUICK_DIGITS or size - first > most or size - first < scale + 1:
        return decode_old_decimal(value, column, row, at, size)
    point = size - scale - 1 if scale else size
    for i in range(first, size):
        digit = <uint8_t> (at[i] - 48)
        if digit <= 9 and i != point:
            number = number * 10 + digit
        elif i != point or at[i] != 46:
            return decode_old_decimal(value, column, row, at, size)
    if first:
        number = -number
    high = number >> 63
    memcpy(column.values.data + row.number * 16, &number, 8)
    memcpy(column.values.data + row.number * 16 + 8, &high, 8)
    mark_valid(column, row.number)
    return 0


cdef inline int decode_result_year(
    const Value* value, Column* column, Row* row, const uint8_t* at
) noexcept nogil:
    """1900 is how MariaDB's YEAR() gives the year 0000 of a YEAR(2)."""
    cdef uint64_t year = le64(at)
    if year != 0 and (year < 1900 or year > 2155):
        return fail(row, b"a year before 1901 or after 2155")
    (<int16_t*> column.values.data)[row.number] = 0 if year == 1900 else <int16_t> year
    mark_valid(column, row.number)
    return 0


cdef inline int decode_result_bit(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    if size != <size_t> value.size:
        return fail(row, b"a bit value of another length than its column")
    return decode_bit(value, column, row, at)
