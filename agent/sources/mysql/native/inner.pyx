"""Events inside of something else: of a compressed transaction, or given back by Python; back to back, without packets.

Comes in: the bytes that hold them, compressed or not, which stay where they are. Goes out: one whole event after the
other, each with its header and without a checksum. What is compressed is decompressed a portion at a time, under the
GIL once per portion; memory grows only with an event that has really come, up to the largest that a server may write.

::

    TRANSACTION_PAYLOAD_EVENT   fields: type, length, value, each a length-encoded number; 0 ends them; then the payload
        1 payload's size   2 compression (0 zstd, 255 none)   3 size of the events
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset

from agent.columnar.received cimport MOST_BYTES
from agent.sources.mysql.native.values cimport le16, le24, le32, le64

from agent.columnar.compression import zstd

cdef enum:
    HEADER_BYTES = 19
    # taken out of the source at once
    PORTION_BYTES = 1 << 20
    # what an emptied buffer may keep
    RESTING_BYTES = 4 << 20

# The largest window of the server's compression levels: what a frame may make us remember.
cdef object ZstdDecompressor = zstd.ZstdDecompressor
cdef object ZstdError = zstd.ZstdError
cdef dict DECOMPRESSION = {zstd.DecompressionParameter.window_log_max: 27}


cdef class InnerEvents:
    """One such source at a time; `source` in its methods is what the offsets of `open_...` count from."""

    def __dealloc__(self):
        free(self.data)

    cdef bint open_zstd(self, uint8_t outer_type, size_t at, size_t end, uint64_t announced) noexcept with gil:
        try:
            self.decompressor = ZstdDecompressor(options=DECOMPRESSION)
        except MemoryError:
            return False
        self.open_plain(outer_type, at, end)
        self.announced = announced
        return True

    cdef void open_plain(self, uint8_t outer_type, size_t at, size_t end) noexcept nogil:
        self.is_open = True
        self.outer_type = outer_type
        self.source_at, self.source_end = at, end
        self.announced = end - at
        self.taken = 0
        self.begin = self.end = 0

    cdef void close(self) noexcept with gil:
        self.is_open = False
        self.decompressor = None

    cdef Found find(self, const uint8_t* source) noexcept nogil:
        """Whether a whole event is there; the same one again until `pass_event`."""
        cdef Found found
        while True:
            self.event = self.data + self.begin
            if self.end - self.begin >= HEADER_BYTES:
                self.event_size = le32(self.event + 9)
                if self.event_size < HEADER_BYTES:
                    return self.broken(b"an event shorter than its header")
                if self.event_size > MOST_BYTES:
                    return self.broken(b"an event larger than the server may write")
                if self.event_size <= self.end - self.begin:
                    return WHOLE_EVENT
            if not self.make_room():
                return self.broken(b"out of memory")
            found = self.take(source)
            if found == BROKEN:
                return BROKEN
            if found == ENDED:
                if self.begin != self.end:
                    return self.broken(b"events that end inside of one")
                return ENDED

    cdef void pass_event(self) noexcept nogil:
        self.begin += self.event_size

    cdef bint make_room(self) noexcept nogil:
        """For one more portion behind `end`."""
        cdef size_t capacity = self.capacity
        cdef void* data
        if self.begin == self.end:
            self.begin = self.end = 0
            if capacity > RESTING_BYTES:
                free(self.data)
                self.data = NULL
                self.capacity = capacity = 0
        elif self.begin >= capacity // 2:
            memmove(self.data, self.data + self.begin, self.end - self.begin)
            self.end -= self.begin
            self.begin = 0
        if capacity - self.end >= PORTION_BYTES:
            return True
        capacity = capacity * 2 if capacity else PORTION_BYTES
        data = realloc(self.data, capacity)
        if data == NULL:
            return False
        self.data = <uint8_t*> data
        self.capacity = capacity
        return True

    cdef Found take(self, const uint8_t* source) noexcept nogil:
        """The next portion of the source; ENDED: there is none."""
        cdef size_t size
        if self.decompressor is not None:
            return self.decompress(source)
        size = self.source_end - self.source_at
        if size == 0:
            return ENDED
        if size > PORTION_BYTES:
            size = PORTION_BYTES
        memcpy(self.data + self.end, source + self.source_at, size)
        self.source_at += size
        self.end += size
        return WHOLE_EVENT

    cdef Found decompress(self, const uint8_t* source) noexcept with gil:
        cdef size_t size
        cdef bytes portion, events
        try:
            while not self.decompressor.eof:
                size = 0
                if self.decompressor.needs_input:
                    size = min(self.source_end - self.source_at, <size_t> PORTION_BYTES)
                    if size == 0:
                        return self.broken(b"a zstd frame that ends too early")
                portion = PyBytes_FromStringAndSize(<const char*> source + self.source_at, size)
                self.source_at += size
                events = self.decompressor.decompress(portion, PORTION_BYTES)
                size = PyBytes_GET_SIZE(events)
                if size:
                    memcpy(self.data + self.end, PyBytes_AS_STRING(events), size)
                    self.end += size
                    self.taken += size
                    if self.taken > self.announced:
                        return self.broken(b"more decompressed bytes than were announced")
                    return WHOLE_EVENT
            if self.source_at != self.source_end or self.decompressor.unused_data:
                return self.broken(b"bytes behind the end of a zstd frame")
        except ZstdError:
            return self.broken(b"bytes that zstd can't decompress")
        except MemoryError:
            return self.broken(b"out of memory")
        if self.taken != self.announced:
            return self.broken(b"fewer decompressed bytes than were announced")
        return ENDED

    cdef Found broken(self, const char* why) noexcept nogil:
        self.failure = why
        return BROKEN


cdef bint read_length(const uint8_t** at, const uint8_t* end, uint64_t* number) noexcept nogil:
    """A length-encoded number: up to 250 itself; 252, 253, 254: 2, 3, 8 bytes follow."""
    cdef const uint8_t* here = at[0]
    cdef size_t size
    if here == end or here[0] == 251 or here[0] == 255:
        return False
    size = 0 if here[0] < 251 else 2 if here[0] == 252 else 3 if here[0] == 253 else 8
    if <size_t> (end - here) <= size:
        return False
    if size == 0:
        number[0] = here[0]
    elif size == 2:
        number[0] = le16(here + 1)
    elif size == 3:
        number[0] = le24(here + 1)
    else:
        number[0] = le64(here + 1)
    at[0] = here + 1 + size
    return True


cdef const char* read_payload_head(const uint8_t* body, size_t size, PayloadHead* head) noexcept nogil:
    """NULL, or why it can't be read."""
    cdef const uint8_t* at = body
    cdef const uint8_t* end = body + size
    cdef const uint8_t* value
    cdef uint64_t kind, length, number
    cdef bint has_size = False, has_compression = False
    memset(head, 0, sizeof(PayloadHead))
    while True:
        if not read_length(&at, end, &kind):
            return b"a compressed transaction that ends inside of its fields"
        if kind == 0:
            break
        if not read_length(&at, end, &length) or length > <uint64_t> (end - at):
            return b"a compressed transaction that ends inside of its fields"
        value = at
        if not read_length(&at, value + length, &number) or at != value + length:
            return b"a field of a compressed transaction that is no number"
        if kind == 1:
            head.payload_size = number
            has_size = True
        elif kind == 2:
            head.compression = number
            has_compression = True
        elif kind == 3:
            head.uncompressed_size = number
            head.has_uncompressed_size = True
        else:
            return b"a compressed transaction with a field that is not known"
    if not has_size or not has_compression:
        return b"a compressed transaction without its size or its compression"
    if head.compression != COMPRESSION_ZSTD and head.compression != COMPRESSION_NONE:
        return b"a transaction in a compression that is not known"
    if head.compression == COMPRESSION_ZSTD and not head.has_uncompressed_size:
        return b"a compressed transaction that does not say how large it is"
    if head.payload_size != <uint64_t> (end - at):
        return b"a compressed transaction of another size than it says"
    head.payload_at = at - body
    return NULL
