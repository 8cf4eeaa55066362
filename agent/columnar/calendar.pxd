"""Dates of the Gregorian calendar, years 1 to 9999: what all types of the lake hold."""

from libc.stdint cimport int32_t


cdef inline int days_in_month(int year, int month) noexcept nogil:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


cdef inline bint is_calendar_date(int year, int month, int day) noexcept nogil:
    return year >= 1 and year <= 9999 and month >= 1 and month <= 12 and day >= 1 and (
        day <= 28 or day <= days_in_month(year, month)
    )


cdef inline int32_t days_since_epoch(int year, int month, int day) noexcept nogil:
    """Days since 1970-01-01 of a Gregorian date (H. Hinnant, chrono-compatible low-level date algorithms)."""
    cdef int y = year - (month <= 2)
    cdef int era = y // 400
    cdef int year_of_era = y - era * 400
    cdef int day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468
