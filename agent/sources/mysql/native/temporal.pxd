"""Dates and times as row events hold them since MySQL 5.6 and MariaDB 10.1 (sql-common/my_time.cc).

::

    DATE        3 bytes, little-endian: year 15 bits | month 4 | day 5
    TIME2       3 bytes, big-endian, + 0x800000: sign 1 | unused 1 | hours 10 | minutes 6 | seconds 6; fraction
    DATETIME2   5 bytes, big-endian: sign 1 | year * 13 + month 17 | day 5 | hours 5 | minutes 6 | seconds 6; fraction
    TIMESTAMP2  4 bytes, big-endian: seconds since the epoch; fraction
    YEAR        1 byte: year - 1900; 0 is 0000

    fraction    (digits + 1) / 2 bytes, big-endian: hundredths, ten thousandths or microseconds

A date that no calendar has is null and its text goes to the row's `_unrepresentable`.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf

from agent.columnar.calendar cimport days_since_epoch, is_calendar_date
from agent.columnar.column cimport Column, Row, mark_valid
from agent.columnar.values cimport fail, unrepresentable
from agent.sources.mysql.native.values cimport Value, be24, be32, be40

cdef extern from *:
    """
    static const int32_t menura_fraction_unit_us[4] = {0, 10000, 100, 1};
    static const int32_t menura_fraction_end[4] = {1, 100, 10000, 1000000};
    """
    const int32_t fraction_unit_us "menura_fraction_unit_us"[4]
    const int32_t fraction_end "menura_fraction_end"[4]


cdef inline int fraction_us(const uint8_t* at, int size, Row* row) noexcept nogil:
    """Microseconds of the `size` bytes of a fraction; -1 when they can't be one."""
    cdef int32_t fraction
    if size == 0:
        return 0
    if size == 1:
        fraction = at[0]
    elif size == 2:
        fraction = (at[0] << 8) | at[1]
    else:
        fraction = <int32_t> be24(at)
    if fraction >= fraction_end[size]:
        return fail(row, b"a fraction of a second above 1")
    return fraction * fraction_unit_us[size]


cdef inline int append_date_text(
    const Value* value, Row* row, int year, int month, int day, int64_t clock, int micros
) noexcept nogil:
    """The server's text of a date that no calendar has; `clock` is seconds of the day, -1 for a DATE."""
    cdef char text[48]
    cdef int size = snprintf(text, sizeof(text), b"%04d-%02d-%02d", year, month, day)
    if clock >= 0:
        size += snprintf(
            text + size, sizeof(text) - size, b" %02d:%02d:%02d",
            <int> (clock // 3600), <int> (clock // 60 % 60), <int> (clock % 60),
        )
        if value.digits:
            size += snprintf(text + size, sizeof(text) - size, b".%06d", micros) - (6 - value.digits)
    return unrepresentable(&value.key, row, text, size)


cdef inline int append_datetime(
    const Value* value, Column* column, Row* row, int year, int month, int day, int64_t clock, int micros
) noexcept nogil:
    """Parts whose ranges have been checked; `clock` is seconds of the day."""
    if is_calendar_date(year, month, day):
        (<int64_t*> column.values.data)[row.number] = (
            (days_since_epoch(year, month, day) * <int64_t> 86400 + clock) * 1000000 + micros
        )
        mark_valid(column, row.number)
        return 0
    return append_date_text(value, row, year, month, day, clock, micros)


cdef inline int append_timestamp(
    const Value* value, Column* column, Row* row, int64_t seconds, int micros
) noexcept nogil:
    if seconds == 0 and micros == 0:  # the server's zero timestamp, which no real one is
        return append_date_text(value, row, 0, 0, 0, 0, 0)
    (<int64_t*> column.values.data)[row.number] = seconds * 1000000 + micros
    mark_valid(column, row.number)
    return 0


cdef inline int append_date(
    const Value* value, Column* column, Row* row, int year, int month, int day
) noexcept nogil:
    if is_calendar_date(year, month, day):
        (<int32_t*> column.values.data)[row.number] = days_since_epoch(year, month, day)
        mark_valid(column, row.number)
        return 0
    if month > 12 or year > 9999:
        return fail(row, b"a date of month 13 or year 10000 and above")
    return append_date_text(value, row, year, month, day, -1, 0)


cdef inline int decode_date(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    cdef uint32_t packed = at[0] | (at[1] << 8) | (<uint32_t> at[2] << 16)
    return append_date(value, column, row, packed >> 9, (packed >> 5) & 15, packed & 31)


cdef inline int decode_datetime(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    cdef int64_t packed = <int64_t> be40(at) - (<int64_t> 0x80 << 32)
    cdef int micros = fraction_us(at + 5, value.size - 5, row)
    if micros < 0:
        return -1
    if packed < 0:
        return fail(row, b"a negative datetime")
    cdef int year_month = <int> (packed >> 22), day = (packed >> 17) & 31
    cdef int hour = (packed >> 12) & 31, minute = (packed >> 6) & 63, second = packed & 63
    cdef int year = year_month // 13, month = year_month % 13
    if hour > 23 or minute > 59 or second > 59 or year > 9999:
        return fail(row, b"a datetime beyond 23:59:59 or year 9999")
    return append_datetime(value, column, row, year, month, day, hour * 3600 + minute * 60 + second, micros)


cdef inline int decode_timestamp(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    cdef int64_t seconds = be32(at)
    cdef int micros = fraction_us(at + 4, value.size - 4, row)
    if micros < 0:
        return -1
    return append_timestamp(value, column, row, seconds, micros)


cdef inline int decode_time(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    """Signed microseconds. The packed number is negative as a whole, so the fraction of a negative time is too."""
    cdef int size = value.size - 3
    cdef int64_t packed = be24(at), unit = 1
    cdef int64_t fraction, clock
    cdef int i
    for i in range(size):
        packed = (packed << 8) | at[3 + i]
        unit <<= 8
    packed -= <int64_t> 0x800000 * unit
    cdef bint is_negative = packed < 0
    if is_negative:
        packed = -packed
    fraction = packed & (unit - 1)
    clock = packed // unit
    cdef int64_t hour = clock >> 12, minute = (clock >> 6) & 63, second = clock & 63
    if hour > 838 or minute > 59 or second > 59 or fraction >= fraction_end[size]:
        return fail(row, b"a time beyond 838:59:59")
    clock = (hour * 3600 + minute * 60 + second) * 1000000 + fraction * fraction_unit_us[size]
    (<int64_t*> column.values.data)[row.number] = -clock if is_negative else clock
    mark_valid(column, row.number)
    return 0


cdef inline int decode_year(const Value* value, Column* column, Row* row, const uint8_t* at) noexcept nogil:
    (<int16_t*> column.values.data)[row.number] = 1900 + at[0] if at[0] else 0
    mark_valid(column, row.number)
    return 0
