"""The loop over received bytes: packets, events, transactions and rows, without the GIL.

It reads by itself what comes once per transaction or row; any other event it hands over as an `Event`. It is the
inner half of `agent.sources.mysql.native.decoder`, which says what its members mean to Python.

::

    packet   3 length   1 sequence   0x00   event        (0xFF: error, 0xFE: end of stream)
    event    4 timestamp   1 type   4 server id   4 size   4 end in the file   2 flags   body   4 CRC32, if any
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset

from agent.columnar.collector cimport DELETE, INSERT, UPDATE_PREIMAGE, transaction_ended
from agent.columnar.column cimport release, reserve
from agent.sources.mysql.native.annotations cimport begins_with_update
from agent.sources.mysql.native.inflate cimport inflate
from agent.sources.mysql.native.inner cimport (
    BROKEN, COMPRESSION_ZSTD, ENDED, Found, InnerEvents, PayloadHead, read_payload_head
)
from agent.columnar.received cimport release_received
from agent.sources.mysql.native.packets cimport consume, find_payload, give_back
from agent.sources.mysql.native.row_events cimport (
    BATCH_FULL, END_OF_STREAM, ERROR_PACKET, EVENT, FAILED, GO_ON, INJECTED, NEED_BYTES, TRANSACTION_BEGIN,
    TRANSACTION_END, Header
)
from agent.sources.mysql.native.tables cimport Table, clear_tables, find_table
from agent.sources.mysql.native.transactions cimport (
    ANNOUNCED, OPEN, OUTSIDE, Transaction, add_run, read_gtid, read_mariadb_gtid, read_tagged_gtid
)
from agent.sources.mysql.native.values cimport le16, le32, le48

cdef extern from "crc32.h" nogil:
    void menura_crc32_prepare()
    uint32_t menura_crc32(const uint8_t* bytes_, size_t size)

menura_crc32_prepare()

cdef enum:
    HEADER_BYTES = 19
    CHECKSUM_BYTES = 4
    LARGE_EVENT_BYTES = 4 << 20
    # tables that are remembered; with more, all are announced to Python again
    MOST_TABLES = 16384

# Log_event_type; agent.sources.mysql.log.constants has them all
cdef enum:
    QUERY_EVENT = 2
    ROTATE_EVENT = 4
    FORMAT_DESCRIPTION_EVENT = 15
    XID_EVENT = 16
    TABLE_MAP_EVENT = 19
    WRITE_ROWS_EVENT_V1 = 23
    UPDATE_ROWS_EVENT_V1 = 24
    DELETE_ROWS_EVENT_V1 = 25
    WRITE_ROWS_EVENT = 30
    UPDATE_ROWS_EVENT = 31
    DELETE_ROWS_EVENT = 32
    GTID_LOG_EVENT = 33
    ANONYMOUS_GTID_LOG_EVENT = 34
    PARTIAL_UPDATE_ROWS_EVENT = 39
    TRANSACTION_PAYLOAD_EVENT = 40
    GTID_TAGGED_LOG_EVENT = 42
    ANNOTATE_ROWS_EVENT = 160
    GTID_EVENT = 162
    QUERY_COMPRESSED_EVENT = 165
    WRITE_ROWS_COMPRESSED_EVENT_V1 = 166
    DELETE_ROWS_COMPRESSED_EVENT = 171

# of the types from WRITE_ROWS_COMPRESSED_EVENT_V1 on, and again from that of version 2
cdef int[3] COMPRESSED_KINDS
COMPRESSED_KINDS[:] = [INSERT, UPDATE_PREIMAGE, DELETE]


cdef class Event:
    """An event that Python handles; `body` is without header and checksum."""


cdef class EventReader(RowsReader):
    """State of one stream. Steps return GO_ON, FAILED with the reason in `row.failure`, or what to stop at."""

    def __cinit__(self):
        self.payload = InnerEvents()
        self.injected = InnerEvents()

    def __dealloc__(self):
        release_received(&self.packets.held)
        release(&self.kept_events)
        free(self.runs.runs)

    cdef int run(self) noexcept nogil:
        """Read on from the innermost source of events that is open."""
        cdef int step
        while True:
            self.failed_table_id = -1
            self.failed_column = -1
            self.are_rows_missing = self.is_annotation_missing = False
            self.lacks_generated = NULL
            if self.injected.is_open:
                step = self.read_inner(self.injected, self.injected_at)
            elif self.payload.is_open:
                step = self.read_inner(self.payload, self.packets.held.data + self.packets.held.begin + 4)
            elif find_payload(&self.packets):
                step = self.read_packet()
            else:
                return NEED_BYTES
            if step != GO_ON:
                return step
            if self.has_large_rows():
                return BATCH_FULL

    cdef bint has_large_rows(self) noexcept nogil:
        """Whether an event has ended whose rows are taken before more is received."""
        if self.injected.is_open or self.payload.is_open or self.keep_events:
            return False
        return self.packets.size >= LARGE_EVENT_BYTES and self.pending_size >= LARGE_EVENT_BYTES

    # --- packets and events

    cdef int read_packet(self) noexcept nogil:
        """The packet stays until it is decoded, with all events inside of it."""
        cdef int step = self.read_payload(self.packets.held.data + self.packets.held.begin + 4, self.packets.size)
        if step == BATCH_FULL and self.resume_at and not self.payload.is_open:
            self.give_back_rows()
        if step != FAILED and step != BATCH_FULL and not self.payload.is_open:
            consume(&self.packets)
        return step

    cdef void give_back_rows(self) noexcept nogil:
        """The memory of rows that are in the full batch: a large before image need not wait for its after image."""
        cdef uint8_t* body = self.packets.held.data + self.packets.held.begin + 4 + 1 + HEADER_BYTES
        if self.header.type <= PARTIAL_UPDATE_ROWS_EVENT:  # others are inflated elsewhere
            give_back(body + self.resume_first, body + self.resume_needs)

    cdef int read_payload(self, const uint8_t* at, size_t size) noexcept nogil:
        memset(&self.header, 0, sizeof(Header))
        if size == 0:
            return self.fail(b"an empty packet")
        if at[0] == 0:
            return self.read_event(at + 1, size - 1)
        if at[0] == 0xFF:
            self.keep_error(at + 1, size - 1)
            return ERROR_PACKET
        if at[0] == 0xFE and size < 9:
            return END_OF_STREAM
        return self.fail(b"a packet that is neither an event nor an error nor the end")

    cdef void keep_error(self, const uint8_t* at, size_t size) noexcept with gil:
        """2 code, '#', 5 SQL state, message"""
        message = PyBytes_FromStringAndSize(<const char*> at, size)
        code = int.from_bytes(message[:2], "little")
        state = ""
        text = message[2:]
        if text[:1] == b"#":
            state, text = text[1:6].decode("ascii", "replace"), text[6:]
        self.last_error = (code, state, text.decode("utf-8", "replace"))

    cdef int read_event(self, const uint8_t* at, size_t size) noexcept nogil:
        cdef Header* header = &self.header
        cdef size_t body
        cdef bint has_checksum
        if size < HEADER_BYTES:
            return self.fail(b"an event shorter than its header")
        header.timestamp = le32(at)
        header.type = at[4]
        header.server_id = le32(at + 5)
        header.log_pos = self.place_in_file(le32(at + 13))
        header.flags = le16(at + 17)
        if le32(at + 9) != size:
            return self.fail(b"an event whose size is not that of its packet")
        has_checksum = self.checksum
        body = size - HEADER_BYTES
        if header.type == FORMAT_DESCRIPTION_EVENT:
            # always followed by four bytes; they are a checksum if the byte before them says so
            if body < CHECKSUM_BYTES + 1:
                return self.fail(b"a format description that is too short")
            body -= CHECKSUM_BYTES
            has_checksum = at[size - CHECKSUM_BYTES - 1] == 1
        elif has_checksum:
            if body < CHECKSUM_BYTES:
                return self.fail(b"an event shorter than its checksum")
            body -= CHECKSUM_BYTES
        # a rows event that is gone on with was checked before
        if has_checksum and not self.resume_at and (
            menura_crc32(at, size - CHECKSUM_BYTES) != le32(at + size - CHECKSUM_BYTES)
        ):
            return self.fail(b"an event whose checksum is wrong")
        return self.dispatch(at + HEADER_BYTES, body, size)

    cdef uint64_t place_in_file(self, uint32_t log_pos) noexcept nogil:
        """Where an event ends that its file has modulo 4 GiB; 0: it is in no file. No event is larger than 1 GiB."""
        cdef uint64_t wrap = <uint64_t> 1 << 32
        cdef uint64_t end = self.furthest_end // wrap * wrap + log_pos
        if log_pos == 0:
            return 0
        if end + wrap // 2 < self.furthest_end:
            end += wrap
        elif end >= wrap and end - wrap // 2 > self.furthest_end:
            end -= wrap
        self.furthest_end = max(self.furthest_end, end)
        return end

    cdef int dispatch(self, const uint8_t* body, size_t size, size_t event_size) noexcept nogil:
        cdef uint8_t type_ = self.header.type
        if is_of_rows(type_) and not self.injected.is_open:
            self.transaction.statement_timestamp = self.header.timestamp
        if self.keep_events and is_of_rows(type_):
            return self.keep_event(body, size)
        if type_ == WRITE_ROWS_EVENT or type_ == WRITE_ROWS_EVENT_V1:
            return self.read_rows(body, size, INSERT)
        if type_ == UPDATE_ROWS_EVENT or type_ == UPDATE_ROWS_EVENT_V1 or type_ == PARTIAL_UPDATE_ROWS_EVENT:
            return self.read_rows(body, size, UPDATE_PREIMAGE)
        if type_ == DELETE_ROWS_EVENT or type_ == DELETE_ROWS_EVENT_V1:
            return self.read_rows(body, size, DELETE)
        if type_ == TABLE_MAP_EVENT:
            return self.read_table_map(body, size)
        if type_ == XID_EVENT:
            return self.end_transaction()
        if type_ == QUERY_EVENT:
            return self.read_query(body, size, event_size)
        if type_ == GTID_LOG_EVENT or type_ == ANONYMOUS_GTID_LOG_EVENT or type_ == GTID_EVENT or (
            type_ == GTID_TAGGED_LOG_EVENT
        ):
            return self.begin_transaction(body, size, event_size)
        if type_ == ANNOTATE_ROWS_EVENT:
            return self.read_annotation(body, size)
        if type_ == TRANSACTION_PAYLOAD_EVENT:
            return self.open_payload(body, size)
        if QUERY_COMPRESSED_EVENT <= type_ <= DELETE_ROWS_COMPRESSED_EVENT:
            return self.read_compressed(body, size, event_size)
        return self.hand_over(body, size)

    cdef int read_compressed(self, const uint8_t* body, size_t size, size_t event_size) noexcept nogil:
        """MariaDB's compressed events; their types follow one another as those of the plain ones do."""
        if self.header.type == QUERY_COMPRESSED_EVENT:
            return self.read_compressed_query(body, size, event_size)
        return self.read_rows(body, size, COMPRESSED_KINDS[(self.header.type - WRITE_ROWS_COMPRESSED_EVENT_V1) % 3])

    cdef int read_compressed_query(self, const uint8_t* body, size_t size, size_t event_size) noexcept with gil:
        """As a plain QUERY_EVENT, to Python too."""
        cdef const char* why = NULL
        cdef size_t text = query_text(body, size)
        cdef bytes plain
        if text == 0:
            return self.fail(b"a query event that ends before its text")
        plain = inflate(body + text, size - text, &why)
        if plain is None:
            return self.fail(why)
        self.header.type = QUERY_EVENT
        plain = PyBytes_FromStringAndSize(<const char*> body, text) + plain
        return self.read_query(<const uint8_t*> PyBytes_AS_STRING(plain), len(plain), event_size)

    cdef int hand_over(self, const uint8_t* body, size_t size) noexcept with gil:
        cdef Event event
        try:
            event = Event.__new__(Event)
            event.body = PyBytes_FromStringAndSize(<const char*> body, size)
        except MemoryError:
            return self.fail(b"out of memory")
        event.type = self.header.type
        event.timestamp = self.header.timestamp
        event.server_id = self.header.server_id
        event.log_pos = self.header.log_pos
        event.flags = self.header.flags
        self.last_event = event
        return EVENT

    # --- events inside of others

    cdef int open_payload(self, const uint8_t* body, size_t size) noexcept nogil:
        cdef PayloadHead head
        cdef const char* why = read_payload_head(body, size, &head)
        cdef size_t at, end
        if why != NULL:
            return self.fail(why)
        at = body - (self.packets.held.data + self.packets.held.begin + 4) + head.payload_at
        end = at + head.payload_size
        if head.compression == COMPRESSION_ZSTD:
            if not self.payload.open_zstd(TRANSACTION_PAYLOAD_EVENT, at, end, head.uncompressed_size):
                return self.fail(b"out of memory")
        else:
            self.payload.open_plain(TRANSACTION_PAYLOAD_EVENT, at, end)
        return GO_ON

    cdef int read_inner(self, InnerEvents inner, const uint8_t* source) noexcept nogil:
        """The next event of `inner`, or its end."""
        cdef int step
        cdef Found found = inner.find(source)
        if found == BROKEN:
            self.header.type = inner.outer_type
            return self.fail(inner.failure)
        if found == ENDED:
            inner.close()
            if inner is self.injected:
                return INJECTED
            consume(&self.packets)
            return GO_ON
        step = self.read_inner_event(inner.event, inner.event_size)
        if step != FAILED and step != BATCH_FULL:
            inner.pass_event()
        return step

    cdef int read_inner_event(self, const uint8_t* at, size_t size) noexcept nogil:
        cdef Header* header = &self.header
        header.timestamp = le32(at)
        header.type = at[4]
        header.server_id = le32(at + 5)
        header.flags = le16(at + 17)
        if header.type == TRANSACTION_PAYLOAD_EVENT or header.type == FORMAT_DESCRIPTION_EVENT or (
            header.type == ROTATE_EVENT
        ):
            return self.fail(b"an event that can't be inside of another one")
        return self.dispatch(at + HEADER_BYTES, size - HEADER_BYTES, size)

    cdef int keep_event(self, const uint8_t* body, size_t size) noexcept nogil:
        """Append the event without a checksum to those that `take_kept` gives."""
        cdef Header* header = &self.header
        cdef uint32_t event_size = <uint32_t> (HEADER_BYTES + size)
        cdef uint32_t log_pos = <uint32_t> header.log_pos
        cdef uint16_t flags = <uint16_t> header.flags
        cdef uint8_t* at
        if self.kept_events.size and self.kept_events.size + event_size > self.most_pending_bytes:
            return BATCH_FULL
        if not reserve(&self.kept_events, event_size):
            return self.fail(b"out of memory")
        at = self.kept_events.data + self.kept_events.size
        memcpy(at, &header.timestamp, 4)
        at[4] = header.type
        memcpy(at + 5, &header.server_id, 4)
        memcpy(at + 9, &event_size, 4)
        memcpy(at + 13, &log_pos, 4)
        memcpy(at + 17, &flags, 2)
        memcpy(at + HEADER_BYTES, body, size)
        self.kept_events.size += event_size
        return GO_ON

    # --- transactions

    cdef int begin_transaction(self, const uint8_t* body, size_t size, size_t event_size) noexcept nogil:
        cdef Transaction* t = &self.transaction
        cdef bint is_standalone = True, is_prepared = False, is_read
        if t.phase != OUTSIDE:
            return self.fail(b"a transaction that begins before the one before it has ended")
        self.start_transaction(event_size)
        if self.header.type == GTID_EVENT:
            is_read = read_mariadb_gtid(t, body, size, self.header.server_id, &is_standalone, &is_prepared)
        elif self.header.type == GTID_TAGGED_LOG_EVENT:
            is_read = read_tagged_gtid(t, body, size)
        else:
            is_read = read_gtid(t, body, size, self.header.type == ANONYMOUS_GTID_LOG_EVENT)
        if not is_read:
            return self.fail(b"a GTID event that is cut off or has no number")
        # MariaDB's GTID is a BEGIN at the same time, or an XA START
        t.phase = ANNOUNCED if is_standalone or is_prepared else OPEN
        if self.tables.count > MOST_TABLES:
            self.drop_tables()
        if is_prepared:
            return self.hand_over(body, size)
        return TRANSACTION_BEGIN if self.stop_at_transaction_begin else GO_ON

    cdef void start_transaction(self, size_t event_size) noexcept nogil:
        cdef Transaction* t = &self.transaction
        t.has_gtid = False
        t.position_size = 0
        t.commit_timestamp_us = self.header.timestamp * <int64_t> 1000000
        t.begin = self.header.log_pos - event_size if self.header.log_pos > event_size else 0
        t.first_gsn = self.gsn
        t.statement_timestamp = 0
        memset(&t.origin, 0, sizeof(t.origin))

    cdef int read_query(self, const uint8_t* body, size_t size, size_t event_size) noexcept nogil:
        """4 thread   4 seconds   1 database's length   2 error   2 status' length   status   database, 0   text"""
        cdef size_t text = query_text(body, size)
        if text == 0:
            return self.fail(b"a query event that ends before its text")
        if size - text == 5 and memcmp(body + text, b"BEGIN", 5) == 0:
            if self.transaction.phase == OUTSIDE:
                self.start_transaction(event_size)
            self.transaction.phase = OPEN
            return GO_ON
        if size - text == 6 and memcmp(body + text, b"COMMIT", 6) == 0:
            return self.end_transaction()
        self.transaction.statement_timestamp = self.header.timestamp
        return self.hand_over(body, size)

    cdef int end_transaction(self) noexcept nogil:
        cdef Transaction* t = &self.transaction
        if t.phase == OUTSIDE:
            return self.fail(b"the end of a transaction that has not begun")
        if t.has_gtid and not add_run(&self.runs, t):
            return self.fail(b"out of memory")
        if t.has_gtid:
            self.finished_statement = t.statement_timestamp
        transaction_ended(self, t.commit_timestamp_us)
        self.end_offset = self.header.log_pos
        self.forget_transaction()
        return TRANSACTION_END if self.stop_at_transaction_end else GO_ON

    cdef void forget_transaction(self) noexcept nogil:
        self.transaction.phase = OUTSIDE
        self.transaction.has_gtid = False
        self.transaction.position_size = 0
        self.begin_statement()

    # --- tables

    cdef int read_table_map(self, const uint8_t* body, size_t size) noexcept nogil:
        cdef Table* table
        if size < 8:
            return self.fail(b"a table map that is too short")
        self.annotated_tables += 1
        table = find_table(&self.tables, le48(body))
        if table == NULL or table.body_size != size or memcmp(table.body, body, size) != 0:
            return self.hand_over(body, size)
        table.statement = self.statement
        self.expect_rows(table)
        return GO_ON

    cdef int read_annotation(self, const uint8_t* text, size_t size) noexcept nogil:
        """MariaDB's text of the statement whose rows follow."""
        self.annotated_statement = self.statement
        self.annotated_update = begins_with_update(text, size)
        self.annotated_tables = 0
        return GO_ON

    cdef void drop_tables(self) noexcept with gil:
        clear_tables(&self.tables)
        self.kept.clear()


cdef inline bint is_of_rows(uint8_t type_) noexcept nogil:
    """A table map or a rows event, or the text of their statement."""
    return (
        type_ == TABLE_MAP_EVENT or type_ == ANNOTATE_ROWS_EVENT or type_ == PARTIAL_UPDATE_ROWS_EVENT
        or WRITE_ROWS_EVENT_V1 <= type_ <= DELETE_ROWS_EVENT_V1 or WRITE_ROWS_EVENT <= type_ <= DELETE_ROWS_EVENT
        or WRITE_ROWS_COMPRESSED_EVENT_V1 <= type_ <= DELETE_ROWS_COMPRESSED_EVENT
    )


cdef inline size_t query_text(const uint8_t* body, size_t size) noexcept nogil:
    """Where a QUERY_EVENT's text begins; 0: it ends before that."""
    cdef size_t text
    if size < 13:
        return 0
    text = 13 + le16(body + 11) + body[8] + 1
    return text if text <= size else 0
