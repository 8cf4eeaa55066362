"""How one column's value is read: the compiled form of a `PlannedColumn`, and what all type families share.

See `agent.columnar.values` for what a decoder of values is given and what it returns.
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from agent.columnar.values cimport Text


# `Value.reads`: which decoder a value goes to
cdef enum Reads:
    # up to READS_8_BYTES: as it stands
    READS_1_BYTE
    READS_2_BYTES
    READS_4_BYTES
    READS_8_BYTES
    READS_MEDIUM_SIGNED
    READS_MEDIUM_UNSIGNED
    READS_DECIMAL
    READS_DECIMAL_TEXT
    READS_DATE
    READS_DATETIME
    READS_TIMESTAMP
    READS_TIME
    READS_YEAR
    READS_ENUM
    READS_SET
    READS_BIT
    READS_UTF8MB4
    READS_UTF8MB3
    READS_ASCII
    READS_SINGLE_BYTE
    READS_CODEC
    READS_BYTES
    READS_BINARY
    READS_JSON
    # rare ones: `rare`
    READS_GEOMETRY
    READS_INET4
    READS_INET6
    READS_UUID
    READS_OLD_DECIMAL
    READS_OLD_TIME
    READS_OLD_DATETIME
    READS_OLD_TIMESTAMP
    READS_COMPRESSED
    # of result sets: `result_values`
    READS_RESULT_DECIMAL
    READS_RESULT_DATE
    READS_RESULT_DATETIME
    READS_RESULT_TIMESTAMP
    READS_RESULT_TIME
    READS_RESULT_BIT
    READS_RESULT_YEAR


cdef struct Value:
    Reads reads
    # False: stepped over
    bint sent
    # may change although MariaDB leaves it out of an after image
    bint computed
    # MySQL's binary JSON
    bint is_json
    # bytes of a value in the event; with a prefix: bytes of its length, and `size` is not used
    int32_t size
    int32_t prefix
    # precision, scale of a decimal; fraction digits of a time
    int32_t precision
    int32_t scale
    int32_t digits
    # BINARY(n): n
    size_t padded
    # ENUM, SET; a label whose bytes are invalid in its charset has no text
    Text* labels
    size_t label_count
    # the labels as they are written inside a JSON string, an invalid one as its bytes; NULL: all are valid
    Text* label_words
    # SET: a bit for each label that is invalid
    uint64_t invalid_labels
    # MariaDB's COMPRESSED: the decoder of what was compressed
    Reads compressed
    # single-byte charsets: per byte its UTF-8 bytes, their count in the lowest byte; 0: no character
    const uint32_t* characters
    # bytes below 0x80 are ASCII in that charset
    bint has_ascii
    # other charsets: a Python callable from bytes to str, owned by the plan
    void* codec
    # the column's name as a JSON string, for `_unrepresentable`
    Text key


cdef inline uint32_t le16(const uint8_t* at) noexcept nogil:
    cdef uint16_t number
    memcpy(&number, at, 2)
    return number


cdef inline uint32_t le24(const uint8_t* at) noexcept nogil:
    return at[0] | (<uint32_t> at[1] << 8) | (<uint32_t> at[2] << 16)


cdef inline uint32_t le32(const uint8_t* at) noexcept nogil:
    cdef uint32_t number
    memcpy(&number, at, 4)
    return number


cdef inline uint64_t le48(const uint8_t* at) noexcept nogil:
    return le32(at) | (<uint64_t> le16(at + 4) << 32)


cdef inline uint64_t le64(const uint8_t* at) noexcept nogil:
    cdef uint64_t number
    memcpy(&number, at, 8)
    return number


cdef inline uint64_t le_bytes(const uint8_t* at, int size) noexcept nogil:
    """A little-endian number of up to 8 bytes."""
    cdef uint64_t number = 0
    memcpy(&number, at, size)
    return number


cdef inline uint32_t be24(const uint8_t* at) noexcept nogil:
    return (<uint32_t> at[0] << 16) | (<uint32_t> at[1] << 8) | at[2]


cdef inline uint32_t be32(const uint8_t* at) noexcept nogil:
    return (<uint32_t> at[0] << 24) | be24(at + 1)


cdef inline uint64_t be40(const uint8_t* at) noexcept nogil:
    return (<uint64_t> at[0] << 32) | be32(at + 1)
