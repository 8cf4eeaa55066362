"""Geometries: the server's SRID and WKB become EWKB, which says its SRID itself.

::

    in:   4 SRID   1 byte order, always 1   4 type 1..7   the rest
    out:  1 byte order   4 type | 0x20000000   4 SRID   the same rest

A part of a geometry is plain WKB: 1 byte order, 4 type, the rest. Coordinates are two doubles; counts take 4 bytes.
Source: sql/spatial.h; for EWKB PostGIS's doc/ZMSgeoms.txt.
"""

from libc.stdint cimport uint8_t, uint32_t

from agent.columnar.column cimport Column, Row, append_text, end_text, mark_valid
from agent.columnar.values cimport fail, invalid_bytes
from agent.sources.mysql.native.values cimport Value, le32

cdef enum:
    WKB_POINT = 1
    WKB_LINESTRING = 2
    WKB_POLYGON = 3
    WKB_MULTIPOINT = 4
    WKB_GEOMETRYCOLLECTION = 7
    EWKB_SRID = 0x20000000
    POINT_BYTES = 16
    # Deeper collections than this are left as they are, so that the recursion ends.
    MOST_NESTED = 200


cdef inline const uint8_t* after_points(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Where a counted run of points ends; NULL: it does not."""
    cdef size_t count
    if end - at < 4:
        return NULL
    count = le32(at)
    at += 4
    if <size_t> (end - at) // POINT_BYTES < count:
        return NULL
    return at + count * POINT_BYTES


cdef inline const uint8_t* after_geometry(
    const uint8_t* at, const uint8_t* end, uint32_t expected, int depth
) noexcept nogil:
    """Where a geometry in WKB ends; NULL: it is none. `expected` is its type, 0: any."""
    cdef uint32_t type_, count, part
    if end - at < 5 or at[0] != 1 or depth > MOST_NESTED:
        return NULL
    type_ = le32(at + 1)
    at += 5
    if type_ < WKB_POINT or type_ > WKB_GEOMETRYCOLLECTION or (expected and type_ != expected):
        return NULL
    if type_ == WKB_POINT:
        return at + POINT_BYTES if end - at >= POINT_BYTES else NULL
    if type_ == WKB_LINESTRING:
        return after_points(at, end)
    if end - at < 4:
        return NULL
    count = le32(at)
    at += 4
    part = 0 if type_ == WKB_GEOMETRYCOLLECTION else type_ - WKB_MULTIPOINT + WKB_POINT
    while count and at != NULL:
        at = after_points(at, end) if type_ == WKB_POLYGON else after_geometry(at, end, part, depth + 1)
        count -= 1
    return at


cdef inline int decode_geometry(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    cdef uint32_t type_
    if size < 9 or after_geometry(at + 4, at + size, 0, 0) != at + size:
        return invalid_bytes(&value.key, row, at, size)
    type_ = le32(at + 5) | <uint32_t> EWKB_SRID
    if not (
        append_text(column, row, at + 4, 1)
        and append_text(column, row, &type_, 4)
        and append_text(column, row, at, 4)
        and append_text(column, row, at + 9, size - 9)
    ):
        return fail(row, b"out of memory, or more than 2 GiB in one column of a batch")
    end_text(column, row.number)
    mark_valid(column, row.number)
    return 0
