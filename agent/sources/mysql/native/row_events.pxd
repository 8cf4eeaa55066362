from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from agent.columnar.collector cimport RowCollector
from agent.sources.mysql.native.images cimport Layout
from agent.sources.mysql.native.plan cimport Plan
from agent.sources.mysql.native.tables cimport Table, Tables
from agent.sources.mysql.native.transactions cimport MOST_FILE_BYTES, Transaction


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
    INJECTED = 7


cdef enum:
    # of one statement; with more, those beyond count as changed in silence
    MOST_CASCADING = 256


# Of the event that is read. For one inside of another, `log_pos` is that of the outer one: it has no place in the file.
# It counts beyond 4 GiB, which the log's own does not.
cdef struct Header:
    uint32_t timestamp
    uint8_t type
    uint32_t server_id
    uint64_t log_pos
    uint32_t flags


cdef class RowsReader(RowCollector):
    cdef bint mariadb
    cdef Header header
    cdef Tables tables
    # what the tables point to: {table id: (body, plan)}
    cdef dict kept
    cdef uint64_t statement
    # tables that this statement has announced and that foreign keys may change in silence
    cdef uint64_t cascading[MOST_CASCADING]
    cdef size_t cascading_count
    # `Table.key` of the one table of which this statement deleted, or updated, rows; SEVERAL; or 0
    cdef uint64_t deleted_from
    cdef uint64_t updated_in
    cdef Transaction transaction
    cdef char file[MOST_FILE_BYTES]
    # a rows event that was left for a full batch: where its next row begins, whether that is an after image, and where
    # its before image is
    cdef size_t resume_at
    cdef bint resume_after
    cdef size_t resume_before
    # of that event's body: where its first row begins, and what is still needed
    cdef size_t resume_first
    cdef size_t resume_needs
    # the statement that MariaDB annotated last, whether it is an UPDATE or INSERT, and the tables announced since
    cdef uint64_t annotated_statement
    cdef bint annotated_update
    cdef uint64_t annotated_tables
    # rows that MariaDB compressed, while they are read
    cdef bytes inflated
    # changes with foreign_key_checks=0: (plan, number of the first, a number above the last); the plans that go on so
    cdef list unchecked
    cdef list unchecked_plans
    # how many those are
    cdef size_t unchecked_count
    # where the failing row is
    cdef int64_t failed_table_id
    cdef int32_t failed_column
    # what failed is that rows are missing, or the text of their statement, which this stream does not have, or values
    # of generated columns: bits of the columns that are there; NULL: it is not that
    cdef bint are_rows_missing
    cdef bint is_annotation_missing
    cdef const uint8_t* lacks_generated
    cdef public bint annotated

    cdef int fail(self, const char* why) noexcept nogil
    cdef bint note_checks(self, Plan* plan, bint are_off) noexcept with gil
    cdef int end_unchecked(self) except -1
    cdef void expect_rows(self, const Table* table) noexcept nogil
    cdef bint may_lack_rows(self, const Table* table) noexcept nogil
    cdef void begin_statement(self) noexcept nogil
    cdef int end_statement(self) noexcept nogil
    cdef int read_rows(self, const uint8_t* body, size_t size, int kind) noexcept nogil
    cdef int read_planned_rows(self, Plan* plan, const uint8_t* body, size_t size, int kind) noexcept nogil
    cdef bint may_be_replace(self, const Plan* plan, const Layout* layout) noexcept nogil
    cdef bint lacks_generated_values(self, const Plan* plan, const Layout* layout) noexcept nogil
    cdef int append_inflated(
        self, Plan* plan, const Layout* layout, const uint8_t* compressed, size_t size, int kind
    ) noexcept with gil
    cdef int append_rows(
        self, Plan* plan, const Layout* layout, const uint8_t* rows, size_t start, size_t size, int kind
    ) noexcept nogil
    cdef int leave(self, const Layout* layout, size_t first, size_t at, size_t before, bint is_after) noexcept nogil
    cdef bint begin_row(self, Plan* plan) noexcept nogil
