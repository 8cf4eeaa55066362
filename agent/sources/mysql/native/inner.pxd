from libc.stdint cimport uint8_t, uint32_t, uint64_t


# What `find` came to.
cdef enum Found:
    BROKEN = -1
    ENDED = 0
    WHOLE_EVENT = 1


cdef class InnerEvents:
    cdef bint is_open
    # type of the event that these are inside of
    cdef uint8_t outer_type
    # the whole event that `find` found; it stays until `pass_event`
    cdef const uint8_t* event
    cdef size_t event_size
    # why the events are broken
    cdef const char* failure
    # bytes of events that were taken out of the source and are not yet passed: data[begin:end]
    cdef uint8_t* data
    cdef size_t capacity
    cdef size_t begin
    cdef size_t end
    # what is left of the source
    cdef size_t source_at
    cdef size_t source_end
    # of zstd; None: the source holds the events as they are
    cdef object decompressor
    # what must come, and what has come
    cdef uint64_t announced
    cdef uint64_t taken

    cdef bint open_zstd(self, uint8_t outer_type, size_t at, size_t end, uint64_t announced) noexcept with gil
    cdef void open_plain(self, uint8_t outer_type, size_t at, size_t end) noexcept nogil
    cdef void close(self) noexcept with gil
    cdef Found find(self, const uint8_t* source) noexcept nogil
    cdef void pass_event(self) noexcept nogil
    cdef bint make_room(self) noexcept nogil
    cdef Found take(self, const uint8_t* source) noexcept nogil
    cdef Found decompress(self, const uint8_t* source) noexcept with gil
    cdef Found broken(self, const char* why) noexcept nogil


# The fields of a TRANSACTION_PAYLOAD_EVENT.
cdef struct PayloadHead:
    size_t payload_at
    uint64_t payload_size
    uint64_t compression
    uint64_t uncompressed_size
    bint has_uncompressed_size

cdef enum:
    COMPRESSION_ZSTD = 0
    COMPRESSION_NONE = 255

cdef bint read_length(const uint8_t** at, const uint8_t* end, uint64_t* number) noexcept nogil
cdef const char* read_payload_head(const uint8_t* body, size_t size, PayloadHead* head) noexcept nogil
