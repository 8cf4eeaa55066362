"""Rows and transactions of a stream are numbered, and rows are collected by table: what all decoders have in common.

Nothing is durable here; what was not yet taken is lost with the decoder and read again.
"""

from libc.stdint cimport int64_t

from agent.columnar cimport arrow as exported
from agent.columnar.arrow cimport CollectedRows
from agent.columnar.batch cimport Batch, batch_bytes, drop_rows_from, fill_absent
from agent.columnar.table_rows cimport Rows, TableRows

from menura.change_batch import WIRE_TRANSACTION_COLUMNS, ChangeType

from agent.columnar.arrow import field

cdef list TRANSACTION_FIELDS = [field(name, format_, False) for name, format_ in WIRE_TRANSACTION_COLUMNS]

assert [member.value for member in list(ChangeType)[:4]] == [INSERT, UPDATE_PREIMAGE, UPDATE_POSTIMAGE, DELETE]


cdef class TableBatch:
    """Rows of one table in one form; both parts follow the Arrow PyCapsule protocol."""


cdef class RowCollector:
    """The collecting half of a decoder; see collector.pyi for what each member does."""

    cdef int collect_into(
        self, size_t batch_rows, size_t pending_bytes, int64_t gsn, int64_t transaction_id
    ) except -1:
        self.batch_rows = batch_rows
        self.most_pending_bytes = pending_bytes
        self.gsn = gsn
        self.transaction_id = transaction_id
        self.pending = []
        return 0

    cdef bint hold(self, Rows* rows) noexcept with gil:
        try:
            self.pending.append(<object> rows.owner)
        except MemoryError:
            return False
        rows.is_pending = True
        return True

    cdef void forget_rows(self, int64_t first_gsn):
        """Rows from this number on, none of which was taken."""
        cdef size_t dropped, before
        cdef Batch* batch
        for table in self.pending:
            batch = &(<TableRows> table).rows.batch
            before = batch_bytes(batch)
            dropped = drop_rows_from(batch, first_gsn)
            self.pending_size += batch_bytes(batch) - before
            self.pending_row_count -= dropped
            self.row_count -= dropped
        self.gsn = first_gsn

    @property
    def pending_rows(self):
        return self.pending_row_count

    @property
    def pending_bytes(self):
        return self.pending_size

    def take_batches(self):
        """The rows so far, a batch per table and form; the decoder begins new ones."""
        taken = [collect(table, self.batch_rows) for table in self.pending]
        self.pending.clear()
        self.pending_size = 0
        self.pending_row_count = 0
        self.taken_gsn = self.gsn
        return [batch for batch in taken if batch.row_count]

    @property
    def next_gsn(self):
        return self.gsn

    def take_gsn(self):
        """A row number for something that is no row."""
        self.gsn += 1
        self.taken_gsn = self.gsn
        return self.gsn - 1

    @property
    def next_transaction_id(self):
        return self.transaction_id

    @property
    def rows(self):
        return self.row_count

    @property
    def transactions(self):
        return self.transaction_count

    def take_times(self):
        times = (self.timed_transactions, self.first_commit_us, self.last_commit_us)
        self.timed_transactions = self.first_commit_us = self.last_commit_us = 0
        return times


cdef TableBatch collect(TableRows table, size_t most_rows):
    """Move a table's rows into a batch of their own."""
    cdef CollectedRows collected = CollectedRows.__new__(CollectedRows)
    cdef TableBatch batch = TableBatch.__new__(TableBatch)
    cdef Batch* rows = &collected.batch
    table.take_batch(rows, most_rows)
    collected.spare = &table.rows.spare
    collected.owner = table
    table.rows.is_pending = False
    batch.plan = table
    batch.row_count = rows.rows
    batch.first_gsn, batch.last_gsn = rows.first_gsn, rows.last_gsn
    batch.is_partial = rows.absent_rows > 0
    if batch.is_partial:
        if not fill_absent(rows, rows.rows):
            raise MemoryError
        batch.rows = arrow_columns(collected, True, table.fields_with_absent)
    else:
        batch.rows = arrow_columns(collected, True, table.fields)
    batch.transactions = arrow_columns(collected, False, TRANSACTION_FIELDS)
    return batch


cdef exported.ArrowColumns arrow_columns(CollectedRows collected, bint is_rows, list fields):
    cdef exported.ArrowColumns columns = exported.ArrowColumns.__new__(exported.ArrowColumns)
    columns.owner = collected
    columns.fields = fields
    columns.columns = collected.batch.columns if is_rows else collected.batch.transactions
    columns.length = collected.batch.rows if is_rows else collected.batch.transaction_count
    return columns
