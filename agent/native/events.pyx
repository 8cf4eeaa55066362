"""The loop over received bytes: packets, events, transactions and rows, without the GIL.

It reads by itself what comes once per transaction or row; any other event it hands over as an `Event`. It is the
inner half of `agent.native.decoder`, which says what its members mean to Python.

::

    packet   3 length   1 sequence   0x00   event        (0xFF: error, 0xFE: end of stream)
    event    4 timestamp   1 type   4 server id   4 size   4 end in the file   2 flags   body   4 CRC32, if any
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free
from libc.string cimport memcmp, memset

from agent.native.batch cimport MOST_BATCH_BYTES, Batch, add_transaction, batch_bytes, truncate_batch
from agent.native.packets cimport consume, find_payload, release_packets
from agent.native.plan cimport Plan
from agent.native.rows cimport append_row
from agent.native.tables cimport Table, clear_tables, find_table
from agent.native.transactions cimport (
    ANNOUNCED, OPEN, OUTSIDE, Transaction, add_run, name_position, read_gtid, read_mariadb_gtid, read_tagged_gtid
)
from agent.native.values cimport le16, le32, le48

from menura.change_batch import ChangeType

cdef extern from "crc32.h" nogil:
    void menura_crc32_prepare()
    uint32_t menura_crc32(const uint8_t* bytes_, size_t size)

menura_crc32_prepare()

cdef enum:
    HEADER_BYTES = 19
    CHECKSUM_BYTES = 4
    # tables that are remembered; with more, all are announced to Python again
    MOST_TABLES = 16384
    # the table id of a rows event that only ends a statement
    DUMMY_TABLE_ID = 0xFFFFFF

# Log_event_type; agent.mysql.constants has them all
cdef enum:
    QUERY_EVENT = 2
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
    GTID_TAGGED_LOG_EVENT = 42
    GTID_EVENT = 162

cdef enum:
    STMT_END_F = 1

# menura.change_batch.ChangeType
cdef enum:
    INSERT = 0
    UPDATE_PREIMAGE = 1
    UPDATE_POSTIMAGE = 2
    DELETE = 3

assert [member.value for member in list(ChangeType)[:4]] == [INSERT, UPDATE_PREIMAGE, UPDATE_POSTIMAGE, DELETE]


cdef class Event:
    """An event that Python handles; `body` is without header and checksum."""


cdef class EventReader:
    """State of one stream. Steps return GO_ON, FAILED with the reason in `row.failure`, or what to stop at."""

    def __dealloc__(self):
        release_packets(&self.packets)
        free(self.tables.places)
        free(self.runs.runs)

    cdef int run(self) noexcept nogil:
        cdef int step
        while find_payload(&self.packets):
            self.failed_table_id = -1
            self.failed_column = -1
            step = self.read_payload(self.packets.data + self.packets.begin + 4, self.packets.size)
            if step != FAILED and step != BATCH_FULL:
                consume(&self.packets)
            if step != GO_ON:
                return step
        return NEED_BYTES

    cdef int fail(self, const char* why) noexcept nogil:
        snprintf(self.row.failure, sizeof(self.row.failure), b"%s", why)
        return FAILED

    # --- packets and events

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
        header.log_pos = le32(at + 13)
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

    cdef int dispatch(self, const uint8_t* body, size_t size, size_t event_size) noexcept nogil:
        cdef uint8_t type_ = self.header.type
        if type_ == WRITE_ROWS_EVENT or type_ == WRITE_ROWS_EVENT_V1:
            return self.read_rows(body, size, INSERT)
        if type_ == UPDATE_ROWS_EVENT or type_ == UPDATE_ROWS_EVENT_V1:
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
        return self.hand_over(body, size)

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

    # --- transactions

    cdef int begin_transaction(self, const uint8_t* body, size_t size, size_t event_size) noexcept nogil:
        cdef Transaction* t = &self.transaction
        cdef bint is_standalone = True, is_read
        if t.phase != OUTSIDE:
            return self.fail(b"a transaction that begins before the one before it has ended")
        self.start_transaction(event_size)
        if self.header.type == GTID_EVENT:
            is_read = read_mariadb_gtid(t, body, size, self.header.server_id, &is_standalone)
        elif self.header.type == GTID_TAGGED_LOG_EVENT:
            is_read = read_tagged_gtid(t, body, size)
        else:
            is_read = read_gtid(t, body, size, self.header.type == ANONYMOUS_GTID_LOG_EVENT)
        if not is_read:
            return self.fail(b"a GTID event that is cut off or has no number")
        # MariaDB's GTID is a BEGIN at the same time
        t.phase = ANNOUNCED if is_standalone else OPEN
        if self.tables.count > MOST_TABLES:
            self.drop_tables()
        return TRANSACTION_BEGIN if self.stop_at_transaction_begin else GO_ON

    cdef void start_transaction(self, size_t event_size) noexcept nogil:
        cdef Transaction* t = &self.transaction
        t.has_gtid = False
        t.position_size = 0
        t.commit_timestamp_us = self.header.timestamp * <int64_t> 1000000
        t.begin = self.header.log_pos - event_size if self.header.log_pos > event_size else 0
        memset(&t.origin, 0, sizeof(t.origin))

    cdef int read_query(self, const uint8_t* body, size_t size, size_t event_size) noexcept nogil:
        """4 thread   4 seconds   1 database's length   2 error   2 status' length   status   database, 0   text"""
        cdef size_t text
        if size < 13:
            return self.fail(b"a query event that is too short")
        text = 13 + le16(body + 11) + body[8] + 1
        if text > size:
            return self.fail(b"a query event that ends before its text")
        if size - text == 5 and memcmp(body + text, b"BEGIN", 5) == 0:
            if self.transaction.phase == OUTSIDE:
                self.start_transaction(event_size)
            self.transaction.phase = OPEN
            return GO_ON
        if size - text == 6 and memcmp(body + text, b"COMMIT", 6) == 0:
            return self.end_transaction()
        return self.hand_over(body, size)

    cdef int end_transaction(self) noexcept nogil:
        cdef Transaction* t = &self.transaction
        if t.phase == OUTSIDE:
            return self.fail(b"the end of a transaction that has not begun")
        if t.has_gtid and not add_run(&self.runs, t):
            return self.fail(b"out of memory")
        if self.timed_transactions == 0:
            self.first_commit_us = t.commit_timestamp_us
        self.last_commit_us = t.commit_timestamp_us
        self.timed_transactions += 1
        self.transaction_count += 1
        self.transaction_id += 1
        self.end_offset = self.header.log_pos
        t.phase = OUTSIDE
        t.has_gtid = False
        t.position_size = 0
        self.statement += 1
        return TRANSACTION_END if self.stop_at_transaction_end else GO_ON

    # --- rows

    cdef int read_table_map(self, const uint8_t* body, size_t size) noexcept nogil:
        cdef Table* table
        if size < 8:
            return self.fail(b"a table map that is too short")
        table = find_table(&self.tables, le48(body))
        if table == NULL or table.body_size != size or memcmp(table.body, body, size) != 0:
            return self.hand_over(body, size)
        table.statement = self.statement
        return GO_ON

    cdef int read_rows(self, const uint8_t* body, size_t size, int kind) noexcept nogil:
        """
        6 table id   2 flags   v2: 2 length of itself and of what follows it   number of columns
        columns present (UPDATE: of the before image, of the after image)   rows
        """
        cdef uint64_t table_id
        cdef bint ends_statement
        cdef Table* table
        cdef int step = GO_ON
        if size < 8:
            return self.fail(b"a rows event that is too short")
        table_id = le48(body)
        ends_statement = le16(body + 6) & STMT_END_F
        table = find_table(&self.tables, table_id)
        if table == NULL or table.statement != self.statement:
            if table_id != DUMMY_TABLE_ID:
                self.failed_table_id = <int64_t> table_id
                return self.fail(b"rows of a table that its statement has not announced")
        elif table.plan != NULL and table.plan.active:
            self.failed_table_id = <int64_t> table_id
            step = self.read_planned_rows(table.plan, body, size, kind)
        if step == GO_ON and ends_statement:
            self.statement += 1
        return step

    cdef int read_planned_rows(self, Plan* plan, const uint8_t* body, size_t size, int kind) noexcept nogil:
        cdef size_t at = 8, bitmap = (plan.column_count + 7) // 8
        cdef uint64_t columns
        cdef int _
        if self.transaction.phase == OUTSIDE:
            return self.fail(b"rows outside of a transaction")
        if self.header.type >= WRITE_ROWS_EVENT:
            if size < 10 or le16(body + 8) < 2 or le16(body + 8) > size - 8:
                return self.fail(b"a rows event that is too short")
            at += le16(body + 8)
        if size - at < 3:
            return self.fail(b"a rows event that is too short")
        columns = body[at]
        at += 1
        if columns == 0xFC:
            columns = le16(body + at)
            at += 2
        if columns != <uint64_t> plan.column_count:
            return self.fail(b"rows with another number of columns than their table map")
        for _ in range(2 if kind == UPDATE_PREIMAGE else 1):
            if size - at < bitmap:
                return self.fail(b"a rows event that is too short")
            if not is_complete(body + at, plan.column_count):
                return self.fail(b"rows that lack columns: set binlog_row_image to FULL")
            at += bitmap
        return self.append_rows(plan, body, at, size, kind)

    cdef int append_rows(self, Plan* plan, const uint8_t* body, size_t start, size_t size, int kind) noexcept nogil:
        """All rows of an event, or up to a full batch, after which `resume_at` is where to go on."""
        cdef const uint8_t* at = body + (self.resume_at if self.resume_at else start)
        cdef const uint8_t* end = body + size
        cdef const uint8_t* after
        cdef bint is_after = self.resume_after
        cdef Batch* batch = &plan.batch
        cdef size_t before, text_bytes
        self.resume_at = 0
        self.resume_after = False
        while at < end or is_after:
            if not is_after and self.is_full(batch):
                self.resume_at = at - body
                return BATCH_FULL
            before = batch_bytes(batch)
            if not self.begin_row(plan):
                return self.fail(b"out of memory")
            text_bytes = batch.text_bytes
            after = append_row(plan, kind + is_after, self.gsn, at, end, &self.row, &self.failed_column)
            if after == NULL:
                return FAILED
            if batch_bytes(batch) > MOST_BATCH_BYTES:
                truncate_batch(batch, batch.rows - 1, batch.rows, text_bytes)
                self.pending_size += batch_bytes(batch) - before
                if batch.rows == 0:
                    return self.fail(b"a row larger than 250 MiB, which no batch can hold")
                self.resume_at = at - body
                self.resume_after = is_after
                return BATCH_FULL
            at = after
            self.pending_size += batch_bytes(batch) - before
            self.gsn += 1
            self.row_count += 1
            self.pending_row_count += 1
            is_after = kind == UPDATE_PREIMAGE and not is_after
        return GO_ON

    cdef bint is_full(self, Batch* batch) noexcept nogil:
        return self.pending_row_count > 0 and (
            batch.rows >= self.batch_rows or self.pending_size >= self.most_pending_bytes
        )

    cdef bint begin_row(self, Plan* plan) noexcept nogil:
        """The batch knows the row's transaction, and the decoder the batch."""
        cdef Batch* batch = &plan.batch
        if not plan.is_pending and not self.hold(plan):
            return False
        if batch.transaction_count and batch.last_transaction_id == self.transaction_id:
            return True
        name_position(&self.transaction, self.mariadb, self.file)
        return add_transaction(
            batch, self.transaction_id, self.transaction.commit_timestamp_us, self.transaction.position,
            self.transaction.position_size,
        )

    cdef bint hold(self, Plan* plan) noexcept with gil:
        try:
            self.pending.append(<object> plan.owner)
        except MemoryError:
            return False
        plan.is_pending = True
        return True

    cdef void drop_tables(self) noexcept with gil:
        clear_tables(&self.tables)
        self.kept.clear()


cdef inline bint is_complete(const uint8_t* bitmap, int32_t columns) noexcept nogil:
    """All of the bits of `columns` columns are set."""
    cdef int32_t i
    for i in range(columns // 8):
        if bitmap[i] != 0xFF:
            return False
    return not columns % 8 or (bitmap[columns // 8] | (0xFF << (columns % 8)) & 0xFF) == 0xFF
