"""Rows of a SELECT: bytes of a prepared statement's result set in, column buffers out; it knows no socket.

::

    a packet each   1 column count (length-encoded)   its definitions   EOF, unless CLIENT_DEPRECATE_EOF
                    rows   EOF, or OK in its place; ERR at any time
    a row           0x00   null bitmap, a bit per column from the third bit on   the values that are not null
    a value         numbers as `mysql.schema.column_types` has them in the log; or a length and bytes: text, and
                    those of `result_values`
    a length        1 byte below 251; 252, 253 or 254 and then 2, 3 or 8 bytes

Source: MySQL's internals, "Binary Protocol Resultset". Values go through the routines that read row events, into the
columns of a table and behind them `_unrepresentable`. Nothing is durable here.
"""

from enum import IntEnum

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.string cimport memcpy

from agent.sources.mysql.native cimport result_plan as compiled
from agent.columnar.column cimport Column, Row, append_null, release, reserve
from agent.columnar.received cimport free_space, release_received, take_in
from agent.columnar.selected_rows cimport IS_BROKEN, IS_LEFT, IS_THERE, Fits, SelectedRows, is_batch_full
from agent.columnar.values cimport MOST_VALUE_BYTES, fail
from agent.sources.mysql.native.packets cimport consume, find_payload, make_room, shrink
from agent.sources.mysql.native.plan cimport Plan
from agent.sources.mysql.native.result_values cimport (
    decode_result_bit, decode_result_date, decode_result_datetime, decode_result_decimal, decode_result_time,
    decode_result_timestamp, decode_result_year
)
from agent.sources.mysql.native.rows cimport decode_value
from agent.sources.mysql.native.values cimport (
    READS_RESULT_BIT, READS_RESULT_DATE, READS_RESULT_DATETIME, READS_RESULT_DECIMAL, READS_RESULT_TIME,
    READS_RESULT_TIMESTAMP, READS_RESULT_YEAR, Value, le16, le24, le64
)

from agent.sources.mysql.native.plan import UnsupportedColumn
from agent.sources.mysql.native.result_plan import ResultPlan

__all__ = ["ResultError", "ResultPlan", "ResultReader", "ResultReason", "UnsupportedColumn"]


class ResultReason(IntEnum):
    """Why `ResultReader.read` returned."""

    NEED_BYTES = 0
    DEFINED = 1
    BATCH_FULL = 2
    END = 3
    ERROR_PACKET = 4


cdef tuple REASONS = tuple(ResultReason)

# What a step leads to: go on, fail, or a ResultReason.
cdef enum Step:
    FAILED = -2
    GO_ON = -1
    NEED_BYTES = 0
    DEFINED = 1
    BATCH_FULL = 2
    END = 3
    ERROR_PACKET = 4

# What comes next.
cdef enum Stage:
    STAGE_COUNT
    STAGE_DEFINITIONS
    STAGE_DEFINITIONS_END
    STAGE_ROWS
    STAGE_OVER

cdef enum:
    OK_HEADER = 0x00
    LOCAL_FILE_HEADER = 0xFB
    EOF_HEADER = 0xFE
    ERR_HEADER = 0xFF
    EOF_BYTES = 5
    LEAST_OK_BYTES = 7
    LEAST_ERR_BYTES = 9
    # an OK packet's text of the session's state comes behind what matters here
    MOST_END_BYTES = 0xFFFFFF
    SERVER_MORE_RESULTS_EXISTS = 8
    MOST_DEFINITION_BYTES = 1 << 16
    MOST_ERROR_BYTES = 1 << 16


class ResultError(Exception):
    """Bytes that can't be read; `column` is the table's, '' where it is none. The message holds no value."""

    def __init__(self, message, column=""):
        super().__init__(message)
        self.column = column


cdef class ResultReader(SelectedRows):
    """See results.pyi for what each member does."""

    def __init__(
        self, compiled.ResultPlan plan not None, *, bint deprecate_eof, size_t batch_rows, size_t most_batch_bytes
    ):
        self.collect_into(plan, batch_rows, most_batch_bytes)
        self.plan = plan
        self.deprecate_eof = deprecate_eof
        self.fields = plan.plan.column_count + plan.bound_columns
        self.stage = STAGE_COUNT
        self.packets_of_definitions = []
        self.failed_column = -1

    def __dealloc__(self):
        release_received(&self.packets.held)
        release(&self.kept_bounds)
        release(&self.kept_nulls)

    # --- receiving

    def writable(self):
        """Free space, at least 64 KiB, as a memoryview that is invalid after the next call."""
        if not make_room(&self.packets):
            raise ResultError("a row larger than the server may send, or no memory for it")
        return free_space(&self.packets.held)

    def received(self, size_t size):
        """So many bytes were written into `writable()`."""
        take_in(&self.packets.held, size)

    def read(self):
        """Read what was received, up to the next thing that Python must decide; raises `ResultError`."""
        cdef int step
        with nogil:
            step = self.run()
        if step == FAILED:
            column = ""
            if 0 <= self.failed_column < self.plan.plan.column_count:
                column = self.plan.columns[self.failed_column].column.name
            raise ResultError((<bytes> self.row.failure).decode(), column)
        return REASONS[step]

    cdef int refuse(self, const char* why) noexcept nogil:
        fail(&self.row, why)
        return FAILED

    cdef int run(self) noexcept nogil:
        cdef int step = GO_ON
        while step == GO_ON:
            if is_batch_full(self):
                step = BATCH_FULL
            elif not find_payload(&self.packets):
                step = NEED_BYTES
            else:
                step = self.read_payload(self.packets.held.data + self.packets.held.begin + 4, self.packets.size)
                if step != FAILED and step != BATCH_FULL:
                    consume(&self.packets)
        return step if self.keep_last() else self.refuse(b"out of memory")

    cdef int read_payload(self, const uint8_t* at, size_t size) noexcept nogil:
        if size == 0:
            return self.refuse(b"an empty packet in a result set")
        if self.stage == STAGE_OVER:
            return self.refuse(b"a packet behind the end of a result set")
        if at[0] == ERR_HEADER:
            if size < LEAST_ERR_BYTES:
                return self.refuse(b"an ERR packet that is too short")
            self.stage = STAGE_OVER
            return ERROR_PACKET if self.keep_error(at, size) else self.refuse(b"out of memory")
        if self.stage == STAGE_ROWS:
            if at[0] == OK_HEADER:
                return self.read_row(at, size)
            return self.read_end(at, size)
        if self.stage == STAGE_COUNT:
            return self.read_count(at, size)
        if self.stage == STAGE_DEFINITIONS:
            return self.read_definition(at, size)
        if at[0] != EOF_HEADER or size != EOF_BYTES:
            return self.refuse(b"no EOF packet behind the definitions of a result set")
        self.stage = STAGE_ROWS
        return DEFINED

    cdef int read_count(self, const uint8_t* at, size_t size) noexcept nogil:
        cdef uint64_t count
        cdef const uint8_t* end = at + size
        if at[0] == OK_HEADER or at[0] == LOCAL_FILE_HEADER or not read_length(&at, end, &count) or at != end:
            return self.refuse(b"an answer that is no result set")
        if count != <uint64_t> self.fields:
            return self.refuse(b"a result set with another number of columns than the statement has")
        self.stage = STAGE_DEFINITIONS
        return GO_ON

    cdef int read_definition(self, const uint8_t* at, size_t size) noexcept nogil:
        if size > MOST_DEFINITION_BYTES:
            return self.refuse(b"a column's definition larger than 64 KiB")
        if not self.keep_definition(at, size):
            return self.refuse(b"out of memory")
        self.described += 1
        if self.described < self.fields:
            return GO_ON
        self.stage = STAGE_ROWS if self.deprecate_eof else STAGE_DEFINITIONS_END
        return DEFINED if self.deprecate_eof else GO_ON

    cdef bint keep_definition(self, const uint8_t* at, size_t size) noexcept with gil:
        try:
            self.packets_of_definitions.append(PyBytes_FromStringAndSize(<const char*> at, size))
        except MemoryError:
            return False
        return True

    cdef bint keep_error(self, const uint8_t* at, size_t size) noexcept with gil:
        try:
            self.last_error = PyBytes_FromStringAndSize(<const char*> at, min(size, <size_t> MOST_ERROR_BYTES))
        except MemoryError:
            return False
        return True

    cdef int read_end(self, const uint8_t* at, size_t size) noexcept nogil:
        """EOF: 0xFE   2 warnings   2 status; or OK: 0xFE   2 numbers, length-encoded   2 status   the rest."""
        cdef const uint8_t* end = at + size
        cdef const uint8_t* after = at + 1
        cdef uint64_t number
        if at[0] != EOF_HEADER or size >= MOST_END_BYTES:
            return self.refuse(b"a packet that is neither a row nor the end of a result set")
        if not self.deprecate_eof:
            if size != EOF_BYTES:
                return self.refuse(b"an end of a result set of an unknown length")
            after += 2
        elif size < LEAST_OK_BYTES or not read_length(&after, end, &number) or not read_length(&after, end, &number):
            return self.refuse(b"an end of a result set of an unknown length")
        if end - after < 2:
            return self.refuse(b"an end of a result set without a status")
        if le16(after) & SERVER_MORE_RESULTS_EXISTS:
            return self.refuse(b"a result set that another one follows")
        self.stage = STAGE_OVER
        return END

    cdef int read_row(self, const uint8_t* at, size_t size) noexcept nogil:
        """A row that does not fit into the batch stays in `packets`."""
        cdef size_t nulls = (self.fields + 9) // 8, bounds_size = self.bounds_size
        cdef const uint8_t* bounds = self.bounds
        cdef const uint8_t* bound_nulls = self.bound_nulls
        cdef Fits fits = IS_BROKEN
        if size < 1 + nulls:
            return self.refuse(b"a row that ends inside its null bitmap")
        if not self.begin_row():
            return FAILED
        if self.read_values(at + 1, at + 1 + nulls, at + size) < 0:
            self.drop_row()
        else:
            fits = self.finish_row()
        if fits != IS_THERE:
            self.bounds, self.bounds_size, self.bound_nulls = bounds, bounds_size, bound_nulls
            return BATCH_FULL if fits == IS_LEFT else FAILED
        return GO_ON

    cdef int read_values(self, const uint8_t* nulls, const uint8_t* at, const uint8_t* end) noexcept nogil:
        cdef const Plan* plan = &self.plan.plan
        cdef Column* column = plan.rows.batch.columns
        cdef const Value* value
        cdef uint64_t size
        cdef int outcome
        cdef int32_t i
        for i in range(plan.column_count):
            value = plan.values + i
            if is_null(nulls, i):
                outcome = 1
            else:
                self.failed_column = i
                size = value.size
                if value.prefix and not read_length(&at, end, &size):
                    return self.refuse(b"a row that ends inside a value")
                if <uint64_t> (end - at) < size:
                    return self.refuse(b"a row that ends inside a value")
                if size > MOST_VALUE_BYTES:
                    return self.refuse(b"a value larger than 240 MiB, which no batch can hold")
                outcome = decode_field(value, column, &self.row, at, size)
                if outcome < 0:
                    return -1
                at += size
            if outcome and not append_null(column, self.row.number, plan.rows.batch.capacity_rows):
                return self.refuse(b"out of memory")
            column += 1
        self.failed_column = -1
        self.bounds, self.bounds_size, self.bound_nulls = at, end - at, nulls
        for i in range(plan.column_count, self.fields):
            if not is_null(nulls, i):
                if not read_length(&at, end, &size) or <uint64_t> (end - at) < size:
                    return self.refuse(b"a row that ends inside a value")
                at += size
        return 0 if at == end else self.refuse(b"a row that is longer than its values")

    cdef bint keep_last(self) noexcept nogil:
        """Copy what is asked of the last row before its place is used again; False: no memory."""
        cdef size_t nulls = (self.fields + 9) // 8
        if self.bounds == NULL or not self.plan.bound_columns:
            return True
        self.kept_bounds.size = self.kept_nulls.size = 0
        if self.bounds_size > MOST_VALUE_BYTES:
            return False
        if not reserve(&self.kept_bounds, self.bounds_size) or not reserve(&self.kept_nulls, nulls):
            return False
        if self.bounds_size:  # none where all of them are NULL, and then there may be no buffer
            memcpy(self.kept_bounds.data, self.bounds, self.bounds_size)
        memcpy(self.kept_nulls.data, self.bound_nulls, nulls)
        self.kept_bounds.size, self.kept_nulls.size = self.bounds_size, nulls
        self.bounds = NULL
        return True

    # --- what read() stopped at

    @property
    def definitions(self):
        return tuple(self.packets_of_definitions)

    @property
    def error_packet(self):
        return self.last_error

    @property
    def last_row(self):
        cdef const uint8_t* at = self.kept_bounds.data
        cdef uint64_t size
        cdef int32_t i
        if not self.kept_nulls.size:
            return ()
        found = []
        for i in range(self.plan.plan.column_count, self.fields):
            if is_null(self.kept_nulls.data, i):
                found.append(None)
                continue
            read_length(&at, self.kept_bounds.data + self.kept_bounds.size, &size)
            found.append(PyBytes_FromStringAndSize(<const char*> at, size))
            at += size
        return tuple(found)

    def take_rows(self):
        """The rows so far as Arrow columns; the reader begins a new batch."""
        shrink(&self.packets)
        return self.take_columns()


cdef inline bint is_null(const uint8_t* nulls, int32_t field) noexcept nogil:
    return nulls[(field + 2) >> 3] >> ((field + 2) & 7) & 1


cdef inline bint read_length(const uint8_t** at, const uint8_t* end, uint64_t* length) noexcept nogil:
    """Move `at` behind a length-encoded number; False: it is not there as a whole, or is none."""
    cdef const uint8_t* here = at[0]
    cdef int size
    if here >= end:
        return False
    length[0] = here[0]
    size = 1
    if here[0] >= 251:
        size = 3 if here[0] == 252 else 4 if here[0] == 253 else 9
        if here[0] == 251 or here[0] == 255 or end - here < size:
            return False
        length[0] = le16(here + 1) if size == 3 else le24(here + 1) if size == 4 else le64(here + 1)
    at[0] = here + size
    return True


cdef inline int decode_field(
    const Value* value, Column* column, Row* row, const uint8_t* at, size_t size
) noexcept nogil:
    """Dispatch to the type's decoder; `size` bytes are there."""
    if value.reads == READS_RESULT_DECIMAL:
        return decode_result_decimal(value, column, row, at, size)
    elif value.reads == READS_RESULT_DATETIME:
        return decode_result_datetime(value, column, row, at, size)
    elif value.reads == READS_RESULT_TIMESTAMP:
        return decode_result_timestamp(value, column, row, at, size)
    elif value.reads == READS_RESULT_DATE:
        return decode_result_date(value, column, row, at, size)
    elif value.reads == READS_RESULT_TIME:
        return decode_result_time(value, column, row, at, size)
    elif value.reads == READS_RESULT_BIT:
        return decode_result_bit(value, column, row, at, size)
    elif value.reads == READS_RESULT_YEAR:
        return decode_result_year(value, column, row, at)
    return decode_value(value, column, row, at, size)
