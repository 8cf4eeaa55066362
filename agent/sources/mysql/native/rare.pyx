"""Types that few tables have, out of the row loop's way; MariaDB's COMPRESSED columns among them.

::

    COMPRESSED   1 byte: bits 4..7 method (0: as it was; 8: zlib), 3: no zlib header, 0..2: bytes of the length
                 big-endian: length of what was compressed; the compressed bytes.  An empty value has no byte at all.

Source: sql/field_comp.cc. What was compressed is then text or bytes like any other.
"""

import zlib

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t

from agent.columnar.column cimport Column, Row
from agent.columnar.values cimport MOST_VALUE_BYTES, append_value, decode_utf8, fail
from agent.sources.mysql.native.codecs cimport decode_by_codec
from agent.sources.mysql.native.geometry cimport decode_geometry
from agent.sources.mysql.native.network cimport decode_inet4, decode_inet6, decode_uuid
from agent.sources.mysql.native.old_types cimport (
    be_bytes, decode_old_datetime, decode_old_decimal, decode_old_time, decode_old_timestamp
)
from agent.sources.mysql.native.text cimport decode_ascii, decode_single_byte
from agent.sources.mysql.native.values cimport (
    READS_ASCII, READS_CODEC, READS_COMPRESSED, READS_GEOMETRY, READS_INET4, READS_INET6, READS_OLD_DATETIME,
    READS_OLD_DECIMAL, READS_OLD_TIME, READS_OLD_TIMESTAMP, READS_SINGLE_BYTE, READS_UTF8MB3, READS_UTF8MB4, READS_UUID,
    Value
)

cdef enum:
    METHOD_PLAIN = 0
    METHOD_ZLIB = 8
    RAW_DEFLATE = 0x08


cdef int decode_rare(const Value* value, Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    if value.reads == READS_GEOMETRY:
        return decode_geometry(value, column, row, at, size)
    elif value.reads == READS_UUID:
        return decode_uuid(value, column, row, at, size)
    elif value.reads == READS_INET6:
        return decode_inet6(value, column, row, at, size)
    elif value.reads == READS_INET4:
        return decode_inet4(value, column, row, at, size)
    elif value.reads == READS_COMPRESSED:
        return decode_compressed(value, column, row, at, size)
    elif value.reads == READS_OLD_TIME:
        return decode_old_time(value, column, row, at)
    elif value.reads == READS_OLD_DATETIME:
        return decode_old_datetime(value, column, row, at)
    elif value.reads == READS_OLD_TIMESTAMP:
        return decode_old_timestamp(value, column, row, at)
    elif value.reads == READS_OLD_DECIMAL:
        return decode_old_decimal(value, column, row, at, size)
    return fail(row, b"a type without a decoder")


cdef int decode_compressed(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    cdef int method, length_bytes
    cdef uint64_t length
    if size == 0:
        return decode_plain(value, column, row, at, 0)
    method, length_bytes = at[0] >> 4, at[0] & 0x07
    if method == METHOD_PLAIN:
        return decode_plain(value, column, row, at + 1, size - 1)
    if method != METHOD_ZLIB or size - 1 < <size_t> length_bytes:
        return fail(row, b"a compressed value of an unknown method, or one that ends in its head")
    length = be_bytes(at + 1, length_bytes)
    if length > MOST_VALUE_BYTES:
        return fail(row, b"a compressed value larger than 240 MiB, which no batch can hold")
    with gil:
        return inflate(
            value, column, row, at + 1 + length_bytes, size - 1 - length_bytes, length, at[0] & RAW_DEFLATE
        )


cdef int inflate(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size, uint64_t length, bint raw
) noexcept:
    cdef bytes plain
    try:
        stream = zlib.decompressobj(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS)
        plain = stream.decompress(PyBytes_FromStringAndSize(<const char*> at, size), length + 1)
        if <uint64_t> len(plain) != length or not stream.eof:
            return fail(row, b"a compressed value that is not as long as it says")
    except zlib.error:
        return fail(row, b"a compressed value that is damaged")
    except MemoryError:
        return fail(row, b"out of memory")
    return decode_plain(value, column, row, <const uint8_t*> PyBytes_AS_STRING(plain), len(plain))


cdef int decode_plain(const Value* value, Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    if value.compressed == READS_UTF8MB4:
        return decode_utf8(&value.key, column, row, at, size, True)
    elif value.compressed == READS_UTF8MB3:
        return decode_utf8(&value.key, column, row, at, size, False)
    elif value.compressed == READS_ASCII:
        return decode_ascii(value, column, row, at, size)
    elif value.compressed == READS_SINGLE_BYTE:
        return decode_single_byte(value, column, row, at, size)
    elif value.compressed == READS_CODEC:
        return decode_by_codec(value, column, row, at, size)
    return append_value(column, row, at, size)
