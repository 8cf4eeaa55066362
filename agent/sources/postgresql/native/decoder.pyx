"""The pgoutput decoder: bytes of the replication connection in, column buffers out; it knows no socket.

`decode` runs without the GIL over all that was received and returns for what Python must decide. Nothing is durable
here; what was not yet taken is lost with the decoder and read again.

::

    CopyData    d   XLogData or a keepalive; other messages end the stream or are stepped over (`frames`)
    XLogData    w   8 where the data begin   8 WAL end   8 time   a message of pgoutput
    keepalive   k   8 WAL end   8 time   1 whether an answer is wanted

    Begin       B   8 where the commit record begins   8 commit time   4 xid
    Commit      C   1 flags   8 where the record begins   8 where it ends   8 commit time
    Insert      I   4 relation   N tuple
    Update      U   4 relation   K or O tuple, where there is an old one   N tuple
    Delete      D   4 relation   K or O tuple

Times are microseconds since 2000-01-01. All other messages are Python's.

Source: PostgreSQL's manual, "Streaming Replication Protocol" and "Logical Replication Message Formats".
"""

from enum import IntEnum

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, realloc

from agent.sources.postgresql.native cimport plan as compiled
from agent.columnar.batch cimport MOST_BATCH_BYTES, Batch, add_transaction, batch_bytes, truncate_batch
from agent.columnar.collector cimport (
    DELETE, INSERT, UPDATE_POSTIMAGE, UPDATE_PREIMAGE, RowCollector, holds, is_full, knows_transaction, row_appended,
    transaction_ended
)
from agent.columnar.received cimport Received, free_space, make_room, release_received, shrink, take_in
from agent.sources.postgresql.native.frames cimport (
    BROKEN, WHOLE, Found, Frame, be32, be64, consume, error_fields, find_frame
)
from agent.sources.postgresql.native.plan cimport Plan
from agent.sources.postgresql.native.relations cimport Relation, Relations, drop_relation, find_relation, put_relation
from agent.sources.postgresql.native.tuples cimport Fields, append_tuple, open_tuple, skip_tuple

from agent.columnar.collector import TableBatch
from agent.sources.postgresql.native.plan import PlannedColumn, TablePlan

__all__ = ["DecodeError", "Message", "PgoutputDecoder", "PlannedColumn", "Reason", "TableBatch", "TablePlan"]


class Reason(IntEnum):
    """Why `PgoutputDecoder.decode` returned."""

    NEED_BYTES = 0
    MESSAGE = 1
    BATCH_FULL = 2
    TRANSACTION_END = 3
    TRANSACTION_BEGIN = 4
    KEEPALIVE = 5
    ERROR = 6
    END_OF_STREAM = 7


cdef tuple REASONS = tuple(Reason)

# What a step of the loop leads to: go on, fail, or a Reason.
cdef enum Step:
    FAILED = -2
    GO_ON = -1
    NEED_BYTES = 0
    MESSAGE = 1
    BATCH_FULL = 2
    TRANSACTION_END = 3
    TRANSACTION_BEGIN = 4
    KEEPALIVE = 5
    ERROR = 6
    END_OF_STREAM = 7

cdef enum:
    WAL_HEAD_BYTES = 25
    KEEPALIVE_BYTES = 18
    BEGIN_BYTES = 20
    COMMIT_BYTES = 25
    MOST_POSITION_BYTES = 24
    # of a message: rows are taken before more is received
    LARGE_MESSAGE_BYTES = 4 << 20

cdef int64_t EPOCH_US = 946684800 * <int64_t> 1000000


class DecodeError(Exception):
    """Bytes that can't be read; where is in the attributes. The text holds no value."""

    def __init__(self, message, kind="", lsn=0, relation_oid=0, column=""):
        super().__init__(message)
        self.kind = kind
        self.lsn = lsn
        self.relation_oid = relation_oid
        self.column = column


cdef class Message:
    """A message of pgoutput that Python handles."""

    cdef readonly str kind
    cdef readonly bytes body
    cdef readonly uint64_t lsn


# A transaction that has finished.
cdef struct Finished:
    uint32_t xid
    uint64_t commit_lsn
    uint64_t end_lsn


cdef class PgoutputDecoder(RowCollector):
    """See decoder.pyi for what each member does."""

    cdef Received bytes_
    cdef Relations relations
    # what the relations point to
    cdef dict plans
    # the message that is read
    cdef uint8_t kind
    cdef uint64_t message_lsn
    cdef uint32_t message_oid
    cdef int32_t failed_column
    # an update whose old tuple is in a batch, and whose new one was left for the next
    cdef bint is_after
    cdef readonly bint in_transaction
    cdef readonly uint32_t transaction_xid
    cdef readonly uint64_t transaction_lsn
    cdef readonly int64_t commit_timestamp_us
    cdef int64_t first_gsn
    cdef char[MOST_POSITION_BYTES] position
    cdef size_t position_size
    cdef readonly uint64_t finished_lsn
    cdef readonly uint64_t server_end_lsn
    cdef Finished* finished
    cdef size_t finished_count
    cdef size_t finished_capacity
    cdef Message last_message
    cdef dict last_error

    def __init__(
        self, *, int64_t next_gsn, int64_t next_transaction_id, size_t batch_rows=65536, size_t pending_bytes=16 << 20
    ):
        self.collect_into(batch_rows, pending_bytes, next_gsn, next_transaction_id)
        self.plans = {}

    def __dealloc__(self):
        release_received(&self.bytes_)
        free(self.relations.relations)
        free(self.finished)

    # --- receiving

    def writable(self):
        """Free space, at least 64 KiB, as a memoryview that is invalid after the next call."""
        if not make_room(&self.bytes_, False):
            raise DecodeError("a message larger than the server may send, or no memory for it")
        return free_space(&self.bytes_)

    def received(self, size_t size):
        """So many bytes were written into `writable()`."""
        take_in(&self.bytes_, size)

    def decode(self):
        """Decode what was received, up to the next thing that Python must decide; raises `DecodeError`."""
        cdef int step
        with nogil:
            step = self.run()
        if step == FAILED:
            raise self.failure()
        return REASONS[step]

    cdef object failure(self):
        cdef compiled.TablePlan plan = self.plans.get(self.message_oid) if self.message_oid else None
        where = column = ""
        if plan is not None:
            where = f"{plan.database}.{plan.table}"
            if 0 <= self.failed_column < len(plan.columns):
                column = plan.columns[self.failed_column].column.name
                where += f", column {column}"
            where += ": "
        kind = chr(self.kind) if self.kind else ""
        return DecodeError(
            where + (<bytes> self.row.failure).decode(), kind, self.message_lsn, self.message_oid, column
        )

    cdef int fail(self, const char* why) noexcept nogil:
        snprintf(self.row.failure, sizeof(self.row.failure), b"%s", why)
        return FAILED

    # --- the loop over what was received

    cdef int run(self) noexcept nogil:
        cdef Frame frame
        cdef Found found
        cdef int step
        while True:
            self.kind = 0
            self.message_lsn = self.message_oid = 0
            self.failed_column = -1
            found = find_frame(&self.bytes_, &frame)
            if found == BROKEN:
                return self.fail(b"a message of an impossible length")
            if found != WHOLE:
                return NEED_BYTES
            step = self.read_frame(&frame)
            if step == FAILED or step == BATCH_FULL:
                return step
            consume(&self.bytes_, &frame)
            if step != GO_ON:
                return step
            if frame.size >= LARGE_MESSAGE_BYTES and self.pending_size >= LARGE_MESSAGE_BYTES:
                return BATCH_FULL

    cdef int read_frame(self, const Frame* frame) noexcept nogil:
        if frame.kind == c"d":
            if frame.size and frame.body[0] == c"w":
                return self.read_wal(frame.body, frame.size)
            if frame.size and frame.body[0] == c"k":
                return self.read_keepalive(frame.body, frame.size)
            return self.fail(b"a copied message that is neither WAL data nor a keepalive")
        if frame.kind == c"N" or frame.kind == c"S" or frame.kind == c"A":
            return GO_ON
        if frame.kind == c"E":
            return ERROR if self.keep_error(frame) else self.fail(b"out of memory")
        if frame.kind == c"c" or frame.kind == c"C" or frame.kind == c"Z":
            return END_OF_STREAM
        self.kind = frame.kind
        return self.fail(b"a message of an unknown kind")

    cdef bint keep_error(self, const Frame* frame) noexcept with gil:
        try:
            self.last_error = error_fields(frame.body, frame.size)
        except MemoryError:
            return False
        return True

    cdef void server_is_at(self, uint64_t lsn) noexcept nogil:
        if lsn > self.server_end_lsn:
            self.server_end_lsn = lsn

    cdef int read_keepalive(self, const uint8_t* at, size_t size) noexcept nogil:
        if size != KEEPALIVE_BYTES:
            return self.fail(b"a keepalive of another length")
        self.server_is_at(be64(at + 1))
        if not self.in_transaction and be64(at + 1) > self.finished_lsn:
            self.finished_lsn = be64(at + 1)
        return KEEPALIVE if at[17] else GO_ON

    cdef int read_wal(self, const uint8_t* at, size_t size) noexcept nogil:
        cdef const uint8_t* body = at + WAL_HEAD_BYTES + 1
        cdef const uint8_t* end = at + size
        if size <= WAL_HEAD_BYTES:
            return self.fail(b"WAL data that end inside their head")
        self.message_lsn = be64(at + 1)
        self.server_is_at(be64(at + 9))
        self.kind = at[WAL_HEAD_BYTES]
        if self.kind == c"I" or self.kind == c"U" or self.kind == c"D":
            return self.read_change(body, end)
        if self.kind == c"B":
            return self.begin_transaction(body, end)
        if self.kind == c"C":
            return self.end_transaction(body, end)
        return self.hand_over(body, end)

    cdef int hand_over(self, const uint8_t* body, const uint8_t* end) noexcept with gil:
        cdef Message message
        if self.kind == c"R":
            if end - body < 4:
                return self.fail(b"a relation that ends inside its number")
            drop_relation(&self.relations, be32(body))
        try:
            message = Message.__new__(Message)
            message.kind = chr(self.kind)
            message.body = PyBytes_FromStringAndSize(<const char*> body, end - body)
        except MemoryError:
            return self.fail(b"out of memory")
        message.lsn = self.message_lsn
        self.last_message = message
        return MESSAGE

    # --- transactions

    cdef int begin_transaction(self, const uint8_t* at, const uint8_t* end) noexcept nogil:
        if end - at != BEGIN_BYTES:
            return self.fail(b"the begin of a transaction of another length")
        if self.in_transaction:
            return self.fail(b"a transaction that begins before the one before it has ended")
        self.in_transaction = True
        self.transaction_lsn = be64(at)
        self.commit_timestamp_us = <int64_t> (be64(at + 8) + <uint64_t> EPOCH_US)
        self.transaction_xid = be32(at + 16)
        self.first_gsn = self.gsn
        self.position_size = snprintf(
            self.position, MOST_POSITION_BYTES, b"%X/%X", <uint32_t> (self.transaction_lsn >> 32),
            <uint32_t> self.transaction_lsn
        )
        return TRANSACTION_BEGIN if self.stop_at_transaction_begin else GO_ON

    cdef int end_transaction(self, const uint8_t* at, const uint8_t* end) noexcept nogil:
        cdef Finished* last
        if end - at != COMMIT_BYTES:
            return self.fail(b"the end of a transaction of another length")
        if not self.in_transaction or be64(at + 1) != self.transaction_lsn:
            return self.fail(b"the end of a transaction that has not begun")
        if self.finished_count == self.finished_capacity and not self.grow_finished():
            return self.fail(b"out of memory")
        last = self.finished + self.finished_count
        last.xid = self.transaction_xid
        last.commit_lsn = self.transaction_lsn
        last.end_lsn = be64(at + 9)
        self.finished_count += 1
        self.finished_lsn = max(self.finished_lsn, last.end_lsn)
        self.in_transaction = False
        transaction_ended(self, self.commit_timestamp_us)
        return TRANSACTION_END if self.stop_at_transaction_end else GO_ON

    cdef bint grow_finished(self) noexcept nogil:
        cdef size_t capacity = self.finished_capacity * 2 if self.finished_capacity else 64
        cdef void* memory = realloc(self.finished, capacity * sizeof(Finished))
        if memory == NULL:
            return False
        self.finished = <Finished*> memory
        self.finished_capacity = capacity
        return True

    # --- rows

    cdef int read_change(self, const uint8_t* at, const uint8_t* end) noexcept nogil:
        cdef Relation* relation
        cdef Plan* plan
        if end - at < 5:
            return self.fail(b"a row that ends before its tuple")
        self.message_oid = be32(at)
        if not self.in_transaction:
            return self.fail(b"a row outside of a transaction")
        relation = find_relation(&self.relations, self.message_oid)
        if relation == NULL:
            return self.fail(b"a row of a relation that was not announced")
        plan = relation.plan
        if plan == NULL or not plan.rows.active:
            return GO_ON
        at += 4
        if self.kind == c"U":
            return self.read_update(plan, at, end)
        if self.kind == c"I":
            if at[0] != c"N":
                return self.fail(b"an inserted row without a new tuple")
            return self.append_last(plan, INSERT, False, at + 1, end, NULL)
        if at[0] != c"K" and at[0] != c"O":
            return self.fail(b"a deleted row without an old tuple")
        return self.append_last(plan, DELETE, at[0] == c"K", at + 1, end, NULL)

    cdef int read_update(self, Plan* plan, const uint8_t* at, const uint8_t* end) noexcept nogil:
        cdef bint is_key = at[0] == c"K", has_old = is_key or at[0] == c"O"
        cdef const uint8_t* old_at = at + 1
        cdef Fields old
        cdef int step
        if has_old:
            at += 1
            if self.is_after:
                if not skip_tuple(plan, &at, end, &self.row):
                    return FAILED
            else:
                step = self.append(plan, UPDATE_PREIMAGE, is_key, &at, end, NULL)
                if step != GO_ON:
                    return step
                self.is_after = True
            if not open_tuple(&old, plan, is_key, old_at, at, &self.row):
                return FAILED
        if at == end or at[0] != c"N":
            return self.fail(b"an updated row without a new tuple")
        step = self.append_last(plan, UPDATE_POSTIMAGE, False, at + 1, end, &old if has_old else NULL)
        if step == GO_ON:
            self.is_after = False
        return step

    cdef int append_last(
        self, Plan* plan, int change_type, bint is_key, const uint8_t* at, const uint8_t* end, Fields* old
    ) noexcept nogil:
        """A tuple that its message ends with."""
        cdef int step = self.append(plan, change_type, is_key, &at, end, old)
        if step == GO_ON and at != end:
            return self.fail(b"a row that is longer than its tuple")
        return step

    cdef int append(
        self, Plan* plan, int change_type, bint is_key, const uint8_t** at, const uint8_t* end, Fields* old
    ) noexcept nogil:
        """Append a tuple and move behind it; BATCH_FULL: the batches have to be taken before."""
        cdef Batch* batch = &plan.rows.batch
        cdef size_t size = end - at[0], bytes_before = batch_bytes(batch), text_bytes
        cdef int64_t last_gsn = batch.last_gsn
        cdef const uint8_t* after
        if is_full(self, batch, size) and (not self.is_after or size >= LARGE_MESSAGE_BYTES):
            return BATCH_FULL
        if not holds(self, plan.rows) or not (knows_transaction(self, batch) or add_transaction(
            batch, self.transaction_id, self.commit_timestamp_us, self.position, self.position_size
        )):
            return self.fail(b"out of memory")
        text_bytes = batch.text_bytes
        after = append_tuple(plan, change_type, self.gsn, is_key, at[0], end, old, &self.row, &self.failed_column)
        if after == NULL:
            return FAILED
        if batch_bytes(batch) > MOST_BATCH_BYTES:
            truncate_batch(batch, batch.rows - 1, batch.rows, text_bytes)
            batch.last_gsn = last_gsn
            self.pending_size += batch_bytes(batch) - bytes_before
            if batch.rows == 0:
                return self.fail(b"a row larger than 250 MiB, which no batch can hold")
            return BATCH_FULL
        row_appended(self, batch_bytes(batch) - bytes_before)
        at[0] = after
        return GO_ON

    # --- what decode() stopped at

    @property
    def message(self):
        return self.last_message

    @property
    def error(self):
        return self.last_error

    # --- tables

    def define(self, uint32_t relation_oid, compiled.TablePlan plan):
        """How the rows of a relation are read."""
        if not put_relation(&self.relations, relation_oid, NULL if plan is None else &plan.plan):
            raise MemoryError
        self.plans[relation_oid] = plan

    # --- transactions and position

    @property
    def transaction_first_gsn(self):
        return self.first_gsn if self.in_transaction else self.gsn

    def take_transactions(self):
        """Transactions that have finished: xid, where the commit record begins and ends."""
        cdef size_t i
        taken = [(self.finished[i].xid, self.finished[i].commit_lsn, self.finished[i].end_lsn)
                 for i in range(self.finished_count)]
        self.finished_count = 0
        return taken

    def drop_rows(self, int64_t first_gsn):
        """Forget the rows from this number on; False where some of them were taken, and then none is forgotten."""
        if first_gsn < self.taken_gsn or self.is_after:
            return first_gsn == self.gsn
        self.forget_rows(first_gsn)
        return True

    # --- batches

    def take_batches(self):
        """The rows so far, a batch per table version; the decoder begins new ones."""
        shrink(&self.bytes_)
        return RowCollector.take_batches(self)
