r"""bytea as the server prints it with bytea_output = hex: \x and two digits a byte."""

from libc.stdint cimport int8_t, uint8_t

from agent.columnar.column cimport Column, Row, end_text, mark_valid, reserve
from agent.columnar.values cimport fail

cdef extern from *:
    """
    #define MENURA_HEX_16(x) x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x
    static const int8_t menura_hex_digits[256] = {
        MENURA_HEX_16(-1), MENURA_HEX_16(-1), MENURA_HEX_16(-1),
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -1, -1, -1, -1, -1,
        -1, 10, 11, 12, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, MENURA_HEX_16(-1),
        -1, 10, 11, 12, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, MENURA_HEX_16(-1),
        MENURA_HEX_16(-1), MENURA_HEX_16(-1), MENURA_HEX_16(-1), MENURA_HEX_16(-1), MENURA_HEX_16(-1),
        MENURA_HEX_16(-1), MENURA_HEX_16(-1), MENURA_HEX_16(-1)};
    """
    const int8_t hex_digits "menura_hex_digits"[256]


cdef inline int decode_bytes(Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    cdef size_t count, i
    cdef uint8_t* to
    cdef int8_t high, low, wrong = 0
    if size < 2 or at[0] != 92 or at[1] != 120 or size % 2:
        return fail(row, b"a bytea that is not printed in hexadecimal digits")
    count = size // 2 - 1
    if count > 0x7FFFFFFF - column.text.size or not reserve(&column.text, count):
        return fail(row, b"out of memory, or more than 2 GiB in one column of a batch")
    to = column.text.data + column.text.size
    at += 2
    for i in range(count):
        high, low = hex_digits[at[2 * i]], hex_digits[at[2 * i + 1]]
        wrong |= high | low
        to[i] = <uint8_t> ((high << 4) | low)
    if wrong < 0:
        return fail(row, b"a bytea that is not printed in hexadecimal digits")
    column.text.size += count
    row.text_bytes += count
    end_text(column, row.number)
    mark_valid(column, row.number)
    return 0
