from libc.stdint cimport int64_t

from agent.columnar cimport arrow as exported
from agent.columnar.batch cimport Batch
from agent.columnar.column cimport Row
from agent.columnar.table_rows cimport Rows, TableRows

cdef enum:
    # with more collected than this, a large message is not taken into the same batches
    LEAST_PENDING_BYTES = 1 << 20


# What a row is: menura.change_batch.ChangeType.
cdef enum:
    INSERT = 0
    UPDATE_PREIMAGE = 1
    UPDATE_POSTIMAGE = 2
    DELETE = 3


cdef class TableBatch:
    cdef readonly TableRows plan
    cdef readonly int64_t row_count
    cdef readonly int64_t first_gsn
    cdef readonly int64_t last_gsn
    cdef readonly bint is_partial
    cdef readonly exported.ArrowColumns rows
    cdef readonly exported.ArrowColumns transactions


cdef class RowCollector:
    cdef public bint stop_at_transaction_end
    cdef public bint stop_at_transaction_begin
    cdef size_t batch_rows
    cdef size_t most_pending_bytes
    # the TableRows that have rows
    cdef list pending
    cdef size_t pending_size
    cdef int64_t pending_row_count
    # of the next row
    cdef int64_t gsn
    # rows below it were given out
    cdef int64_t taken_gsn
    cdef int64_t transaction_id
    cdef int64_t row_count
    cdef int64_t transaction_count
    cdef int64_t timed_transactions
    cdef int64_t first_commit_us
    cdef int64_t last_commit_us
    # the row that is appended, and why it can't be
    cdef Row row

    cdef int collect_into(self, size_t batch_rows, size_t pending_bytes, int64_t gsn, int64_t transaction_id) except -1
    cdef bint hold(self, Rows* rows) noexcept with gil
    cdef void forget_rows(self, int64_t first_gsn)


cdef inline bint is_full(RowCollector self, const Batch* batch, size_t left) noexcept nogil:
    """Whether rows have to be taken before the next one, of at most `left` bytes: a large one is alone."""
    return self.pending_row_count > 0 and (
        batch.rows >= self.batch_rows
        or self.pending_size >= self.most_pending_bytes
        or (self.pending_size >= LEAST_PENDING_BYTES and self.pending_size + left > self.most_pending_bytes)
    )


cdef inline bint holds(RowCollector self, Rows* rows) noexcept nogil:
    """Rows of this table are taken with the next batches; False: no memory."""
    return rows.is_pending or self.hold(rows)


cdef inline bint knows_transaction(RowCollector self, const Batch* batch) noexcept nogil:
    """Whether the batch has rows of the current transaction; else `add_transaction` comes before a row."""
    return batch.transaction_count and batch.last_transaction_id == self.transaction_id


cdef inline void row_appended(RowCollector self, size_t more_bytes) noexcept nogil:
    self.pending_size += more_bytes
    self.gsn += 1
    self.row_count += 1
    self.pending_row_count += 1


cdef inline void transaction_ended(RowCollector self, int64_t commit_us) noexcept nogil:
    if self.timed_transactions == 0:
        self.first_commit_us = commit_us
    self.last_commit_us = commit_us
    self.timed_transactions += 1
    self.transaction_count += 1
    self.transaction_id += 1
