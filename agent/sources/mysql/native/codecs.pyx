"""Charsets of several bytes per character, other than UTF-8: through Python's codecs, a value at a time.

The one place of the row loop that takes the GIL; such columns are rare.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t

from agent.columnar.column cimport Column, Row
from agent.columnar.values cimport append_value, fail, invalid_bytes
from agent.sources.mysql.native.values cimport Value


cdef int decode_by_codec(const Value* value, Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil:
    with gil:
        return _decode(value, column, row, at, size)


cdef int _decode(const Value* value, Column* column, Row* row, const uint8_t* at, size_t size) noexcept:
    cdef bytes text
    try:
        text = (<object> value.codec)(PyBytes_FromStringAndSize(<const char*> at, size)).encode()
    except ValueError:  # UnicodeDecodeError, and UnicodeEncodeError for a lone surrogate
        return invalid_bytes(&value.key, row, at, size)
    except MemoryError:
        return fail(row, b"out of memory")
    return append_value(column, row, <const char*> text, len(text))
