from libc.stdint cimport uint8_t

from agent.columnar.column cimport Column, Row


cdef enum:
    # the server's own limit (sql-common/json_syntax_check.h)
    MOST_DEPTH = 100

cdef enum:
    SMALL_OBJECT = 0
    LARGE_OBJECT = 1
    SMALL_ARRAY = 2
    LARGE_ARRAY = 3


cdef struct Printer:
    Column* column
    Row* row
    # entries may share their values: the printed size is bounded, so that hostile bytes can't print for ever
    size_t most_bytes


# An object or an array; `at` is its count.
cdef struct Container:
    const uint8_t* at
    bint is_object
    bint is_large
    size_t width
    size_t count
    # of itself, and of the part before its keys and values
    size_t total
    size_t head


# One of its members: `value` is the first byte behind the type, `value_size` what there is from there.
cdef struct Member:
    const uint8_t* key
    size_t key_size
    uint8_t kind
    const uint8_t* value
    size_t value_size


cdef int decode_json(Column* column, Row* row, const uint8_t* at, size_t size) noexcept nogil
cdef int put(Printer* printer, const void* text, size_t size) noexcept nogil
cdef int print_value(Printer* printer, uint8_t kind, const uint8_t* at, size_t size, int depth) noexcept nogil
cdef int print_quoted(Printer* printer, const uint8_t* at, size_t size) noexcept nogil
cdef bint open_container(Container* container, uint8_t kind, const uint8_t* at, size_t size) noexcept nogil
cdef bint find_member(const Container* container, size_t number, Member* member) noexcept nogil
