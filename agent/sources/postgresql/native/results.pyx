"""Rows of a SELECT: bytes of the answer to a Query message in, column buffers out; it knows no socket.

::

    RowDescription     T   2 number of columns   what they are called
    DataRow            D   2 number of columns   per column: 4 length, text; a length of -1: NULL
    CommandComplete    C   at the end of a statement
    ErrorResponse      E   in its place
    ReadyForQuery      Z   the end of the answer

Values go through the routines that read pgoutput's tuples, into the columns of a table and behind them
`_unrepresentable`. Nothing is durable here.

Source: PostgreSQL's manual, "Message Formats".
"""

from enum import IntEnum

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcpy

from agent.sources.postgresql.native cimport plan as compiled
from agent.columnar.column cimport Buffer, Column, append_null, release, reserve
from agent.columnar.received cimport Received, free_space, make_room, release_received, shrink, take_in
from agent.columnar.selected_rows cimport IS_BROKEN, IS_LEFT, IS_THERE, Fits, SelectedRows, is_batch_full
from agent.columnar.values cimport MOST_VALUE_BYTES, fail
from agent.sources.postgresql.native.frames cimport (
    BROKEN, WHOLE, Found, Frame, be16, be32, consume, error_fields, find_frame
)
from agent.sources.postgresql.native.plan cimport Plan
from agent.sources.postgresql.native.values cimport decode_value

from agent.sources.postgresql.native.plan import RowsPlan

__all__ = ["ResultError", "ResultReason", "RowsDecoder", "RowsPlan"]


class ResultReason(IntEnum):
    """Why `RowsDecoder.decode` returned."""

    NEED_BYTES = 0
    BATCH_FULL = 1
    ERROR = 2
    COMPLETE = 3


cdef tuple REASONS = tuple(ResultReason)

# What a step leads to: go on, fail, or a ResultReason.
cdef enum Step:
    FAILED = -2
    GO_ON = -1
    NEED_BYTES = 0
    BATCH_FULL = 1
    ERROR = 2
    COMPLETE = 3

# What comes next.
cdef enum Stage:
    STAGE_DESCRIPTION
    STAGE_ROWS
    STAGE_READY
    STAGE_OVER

cdef uint32_t NULL_LENGTH = 0xFFFFFFFF


class ResultError(Exception):
    """Bytes that can't be read; `column` is the table's, '' where it is none. The message holds no value."""

    def __init__(self, message, column=""):
        super().__init__(message)
        self.column = column


cdef class RowsDecoder(SelectedRows):
    """See results.pyi for what each member does."""

    cdef readonly compiled.RowsPlan plan
    cdef Received bytes_
    cdef Stage stage
    cdef dict last_error
    cdef int32_t failed_column
    cdef readonly long long source_bytes
    # of the last row: the key's texts, still in `bytes_`, and where they are kept: each as in the row
    cdef const uint8_t* key
    cdef size_t key_size
    cdef Buffer kept_key

    def __init__(
        self, compiled.RowsPlan plan not None, *, size_t batch_rows=65536, size_t most_batch_bytes=16 << 20
    ):
        self.collect_into(plan, batch_rows, most_batch_bytes)
        self.plan = plan
        self.stage = STAGE_DESCRIPTION
        self.failed_column = -1

    def __dealloc__(self):
        release_received(&self.bytes_)
        release(&self.kept_key)

    # --- receiving

    def writable(self):
        """Free space, at least 64 KiB, as a memoryview that is invalid after the next call."""
        if not make_room(&self.bytes_, False):
            raise ResultError("a row larger than the server may send, or no memory for it")
        return free_space(&self.bytes_)

    def received(self, size_t size):
        """So many bytes were written into `writable()`."""
        take_in(&self.bytes_, size)

    def decode(self):
        """Read what was received, up to the next thing that Python must decide; raises `ResultError`."""
        cdef int step
        with nogil:
            step = self.run()
        if step == FAILED:
            column = ""
            if 0 <= self.failed_column < len(self.plan.columns):
                column = self.plan.columns[self.failed_column].name
            raise ResultError((<bytes> self.row.failure).decode(), column)
        return REASONS[step]

    cdef int refuse(self, const char* why) noexcept nogil:
        fail(&self.row, why)
        return FAILED

    cdef int run(self) noexcept nogil:
        cdef Frame frame
        cdef Found found
        cdef int step = GO_ON
        while step == GO_ON:
            if is_batch_full(self):
                step = BATCH_FULL
                break
            found = find_frame(&self.bytes_, &frame)
            if found == BROKEN:
                step = self.refuse(b"a message of an impossible length")
            elif found != WHOLE:
                step = NEED_BYTES
            else:
                step = self.read_frame(&frame)
                if step != FAILED and step != BATCH_FULL:
                    consume(&self.bytes_, &frame)
        return step if self.keep_last() else self.refuse(b"out of memory")

    cdef int read_frame(self, const Frame* frame) noexcept nogil:
        if frame.kind == c"N" or frame.kind == c"S" or frame.kind == c"A":
            return GO_ON
        if self.stage == STAGE_OVER:
            return self.refuse(b"a message behind the end of an answer")
        if frame.kind == c"D" and self.stage == STAGE_ROWS:
            return self.read_row(frame)
        if frame.kind == c"E":
            self.stage = STAGE_READY
            return ERROR if self.keep_error(frame) else self.refuse(b"out of memory")
        if frame.kind == c"T" and self.stage == STAGE_DESCRIPTION:
            if frame.size < 2 or be16(frame.body) != self.plan.plan.column_count + self.plan.key_count:
                return self.refuse(b"rows of another number of columns than the statement has")
            self.stage = STAGE_ROWS
            return GO_ON
        if frame.kind == c"C":
            # that of a statement without rows may come before
            if self.stage == STAGE_ROWS:
                self.stage = STAGE_READY
            return GO_ON
        if frame.kind == c"Z" and self.stage == STAGE_READY:
            self.stage = STAGE_OVER
            return COMPLETE
        return self.refuse(b"a message that does not belong to an answer with rows")

    cdef bint keep_error(self, const Frame* frame) noexcept with gil:
        try:
            self.last_error = error_fields(frame.body, frame.size)
        except MemoryError:
            return False
        return True

    cdef int read_row(self, const Frame* frame) noexcept nogil:
        """A row that does not fit into the batch stays in `bytes_`."""
        cdef const uint8_t* key = self.key
        cdef size_t key_size = self.key_size
        cdef Fits fits = IS_BROKEN
        if frame.size < 2 or be16(frame.body) != self.plan.plan.column_count + self.plan.key_count:
            return self.refuse(b"a row of another number of columns than the statement has")
        if not self.begin_row():
            return FAILED
        if self.read_values(frame.body + 2, frame.body + frame.size) < 0:
            self.drop_row()
        else:
            fits = self.finish_row()
        if fits != IS_THERE:
            self.key, self.key_size = key, key_size
            return BATCH_FULL if fits == IS_LEFT else FAILED
        self.source_bytes += frame.size
        return GO_ON

    cdef int read_values(self, const uint8_t* at, const uint8_t* end) noexcept nogil:
        cdef const Plan* plan = &self.plan.plan
        cdef Column* column = plan.rows.batch.columns
        cdef uint32_t size
        cdef int outcome
        cdef int32_t i, _i
        for i in range(plan.column_count):
            self.failed_column = i
            if not find_value(&at, end, &size):
                return self.refuse(b"a row that ends inside a value")
            outcome = 1
            if size != NULL_LENGTH:
                outcome = decode_value(plan.values + i, column, &self.row, at, size)
                if outcome < 0:
                    return -1
                at += size
            if outcome and not append_null(column, self.row.number, plan.rows.batch.capacity_rows):
                return self.refuse(b"out of memory")
            column += 1
        self.failed_column = -1
        self.key, self.key_size = at, end - at
        for _i in range(self.plan.key_count):
            if not find_value(&at, end, &size):
                return self.refuse(b"a row that ends inside a value")
            if size == NULL_LENGTH:
                return self.refuse(b"a row whose key is NULL")
            at += size
        return 0 if at == end else self.refuse(b"a row that is longer than its values")

    cdef bint keep_last(self) noexcept nogil:
        """Copy the key of the last row before its place is used again; False: no memory."""
        if self.key == NULL or not self.plan.key_count:
            return True
        self.kept_key.size = 0
        if self.key_size > MOST_VALUE_BYTES or not reserve(&self.kept_key, self.key_size):
            return False
        memcpy(self.kept_key.data, self.key, self.key_size)
        self.kept_key.size = self.key_size
        self.key = NULL
        return True

    # --- what decode() stopped at

    @property
    def error(self):
        return self.last_error

    @property
    def last_key(self):
        cdef const uint8_t* at = self.kept_key.data
        cdef uint32_t size
        cdef int32_t _i
        if not self.kept_key.size:
            return None
        found = []
        for _i in range(self.plan.key_count):
            size = be32(at)
            found.append(PyBytes_FromStringAndSize(<const char*> at + 4, size))
            at += 4 + size
        return tuple(found)

    def take_rows(self):
        """The rows so far as Arrow columns, and how many they are; the decoder begins a new batch."""
        shrink(&self.bytes_)
        columns = self.take_columns()
        return columns.length, columns


cdef inline bint find_value(const uint8_t** at, const uint8_t* end, uint32_t* size) noexcept nogil:
    """Move `at` behind a length; False: it, or what it tells of, is not there as a whole."""
    if end - at[0] < 4:
        return False
    size[0] = be32(at[0])
    at[0] += 4
    return size[0] == NULL_LENGTH or <size_t> (end - at[0]) >= size[0]
