from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from agent.native.batch cimport Batch
from agent.native.column cimport Row
from agent.native.packets cimport Packets
from agent.native.plan cimport Plan
from agent.native.tables cimport Tables
from agent.native.transactions cimport MOST_FILE_BYTES, Runs, Transaction


# What a step of the loop leads to: go on, fail, or a Reason.
cdef enum Step:
    FAILED = -2
    GO_ON = -1
    NEED_BYTES = 0
    EVENT = 1
    BATCH_FULL = 2
    TRANSACTION_END = 3
    TRANSACTION_BEGIN = 4
    ERROR_PACKET = 5
    END_OF_STREAM = 6


cdef struct Header:
    uint32_t timestamp
    uint8_t type
    uint32_t server_id
    uint32_t log_pos
    uint32_t flags


cdef class Event:
    cdef readonly int type
    cdef readonly uint32_t timestamp
    cdef readonly uint32_t server_id
    cdef readonly uint32_t log_pos
    cdef readonly int flags
    cdef readonly bytes body


cdef class EventReader:
    cdef public bint stop_at_transaction_end
    cdef public bint stop_at_transaction_begin
    cdef public bint checksum
    cdef bint mariadb
    cdef size_t batch_rows
    cdef size_t most_pending_bytes
    cdef Packets packets
    cdef Header header
    cdef Tables tables
    # what the tables point to: {table id: (body, plan)}
    cdef dict kept
    cdef uint64_t statement
    cdef Transaction transaction
    cdef Runs runs
    cdef uint64_t end_offset
    cdef char file[MOST_FILE_BYTES]
    # a rows event that was left for a full batch: where its next row begins, and whether that is an after image
    cdef size_t resume_at
    cdef bint resume_after
    cdef list pending
    cdef size_t pending_size
    cdef int64_t pending_row_count
    cdef int64_t gsn
    cdef int64_t transaction_id
    cdef int64_t row_count
    cdef int64_t transaction_count
    cdef int64_t timed_transactions
    cdef int64_t first_commit_us
    cdef int64_t last_commit_us
    cdef Event last_event
    cdef tuple last_error
    # the failing row, and where it is
    cdef Row row
    cdef int64_t failed_table_id
    cdef int32_t failed_column

    cdef int run(self) noexcept nogil
    cdef int fail(self, const char* why) noexcept nogil
    cdef int read_payload(self, const uint8_t* at, size_t size) noexcept nogil
    cdef void keep_error(self, const uint8_t* at, size_t size) noexcept with gil
    cdef int read_event(self, const uint8_t* at, size_t size) noexcept nogil
    cdef int dispatch(self, const uint8_t* body, size_t size, size_t event_size) noexcept nogil
    cdef int hand_over(self, const uint8_t* body, size_t size) noexcept with gil
    cdef int begin_transaction(self, const uint8_t* body, size_t size, size_t event_size) noexcept nogil
    cdef void start_transaction(self, size_t event_size) noexcept nogil
    cdef int read_query(self, const uint8_t* body, size_t size, size_t event_size) noexcept nogil
    cdef int end_transaction(self) noexcept nogil
    cdef int read_table_map(self, const uint8_t* body, size_t size) noexcept nogil
    cdef int read_rows(self, const uint8_t* body, size_t size, int kind) noexcept nogil
    cdef int read_planned_rows(self, Plan* plan, const uint8_t* body, size_t size, int kind) noexcept nogil
    cdef int append_rows(self, Plan* plan, const uint8_t* body, size_t start, size_t size, int kind) noexcept nogil
    cdef bint is_full(self, Batch* batch) noexcept nogil
    cdef bint begin_row(self, Plan* plan) noexcept nogil
    cdef bint hold(self, Plan* plan) noexcept with gil
    cdef void drop_tables(self) noexcept with gil
