"""MariaDB's INET4, INET6 and UUID: the log has them as BINARY of 4 or 16 bytes, without trailing zeros.

The text is the server's (sql/sql_type_inet.cc, plugin/type_uuid): lower-case hexadecimal digits. An INET6's first
longest run of zero words is left out, be it one word; the addresses that hold an IPv4 address end in its form. A
UUID's bytes are in the order of RFC 4122 in the log, in whatever order the engine keeps them.
"""

from libc.stdint cimport uint8_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy, memset

from agent.columnar.column cimport Column, Row
from agent.columnar.values cimport append_value, fail
from agent.sources.mysql.native.values cimport Value

cdef enum:
    MOST_BYTES = 16
    WORDS = 8


cdef inline bint pad_fixed(const Value* value, uint8_t* padded, const uint8_t* at, size_t size) noexcept nogil:
    if size > value.padded or value.padded > MOST_BYTES:
        return False
    memset(padded, 0, MOST_BYTES)
    memcpy(padded, at, size)
    return True


cdef inline int decode_inet4(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    cdef uint8_t address[MOST_BYTES]
    cdef char text[20]
    if not pad_fixed(value, address, at, size):
        return fail(row, b"an address longer than its column")
    size = snprintf(text, sizeof(text), b"%d.%d.%d.%d", address[0], address[1], address[2], address[3])
    return append_value(column, row, text, size)


cdef inline int decode_inet6(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    cdef uint8_t address[MOST_BYTES]
    cdef int words[WORDS]
    cdef char text[64]
    cdef int i, run = 0, gap = -1, gap_words = 0, written = 0, end = WORDS
    if not pad_fixed(value, address, at, size):
        return fail(row, b"an address longer than its column")
    for i in range(WORDS):
        words[i] = (address[2 * i] << 8) | address[2 * i + 1]
        run = 0 if words[i] else run + 1
        if run > gap_words:
            gap, gap_words = i + 1 - run, run
    cdef bint has_ipv4 = gap == 0 and (gap_words == 6 or (gap_words == 5 and words[5] == 0xFFFF))
    if has_ipv4:
        end = 6
    i = 0
    while i < end:
        if i == gap:
            written += snprintf(text + written, sizeof(text) - written, b"::")
            i += gap_words
            continue
        if i and i != gap + gap_words:
            written += snprintf(text + written, sizeof(text) - written, b":")
        written += snprintf(text + written, sizeof(text) - written, b"%x", words[i])
        i += 1
    if has_ipv4:
        if gap_words == 5:
            written += snprintf(text + written, sizeof(text) - written, b":")
        written += snprintf(
            text + written, sizeof(text) - written, b"%d.%d.%d.%d", address[12], address[13], address[14], address[15]
        )
    return append_value(column, row, text, written)


cdef inline int decode_uuid(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    cdef uint8_t uuid[MOST_BYTES]
    cdef char text[40]
    cdef int i, written = 0
    if not pad_fixed(value, uuid, at, size):
        return fail(row, b"a UUID longer than its column")
    for i in range(MOST_BYTES):
        if i == 4 or i == 6 or i == 8 or i == 10:
            text[written] = 45
            written += 1
        written += snprintf(text + written, sizeof(text) - written, b"%02x", uuid[i])
    return append_value(column, row, text, written)
