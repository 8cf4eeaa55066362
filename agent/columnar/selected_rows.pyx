"""Rows of a SELECT are collected: what all readers of result sets have in common.

A batch is full with so many rows or about so many bytes; a row that is larger is a batch of its own.
"""

cimport cython
from libc.stdint cimport int32_t

from agent.columnar cimport arrow as exported
from agent.columnar.arrow cimport CollectedRows
from agent.columnar.batch cimport MOST_BATCH_BYTES, Batch, batch_bytes, empty_batch
from agent.columnar.column cimport truncate_column
from agent.columnar.table_rows cimport TableRows, end_row, start_row
from agent.columnar.values cimport fail


@cython.no_gc_clear  # `table` must outlive the use of its batch
cdef class SelectedRows:
    """Appends to the batch of a table, which is of one reader at a time."""

    def __dealloc__(self):
        if self.table is not None:
            if self.table.rows.batch.columns != NULL:
                empty_batch(&self.table.rows.batch)
            self.table.is_read = False

    cdef int collect_into(self, TableRows table, size_t batch_rows, size_t most_batch_bytes) except -1:
        if table.is_read:
            raise ValueError("another reader appends to this plan's rows")
        table.is_read = True
        self.table = table
        self.batch_rows = max(batch_rows, <size_t> 1)
        self.most_batch_bytes = most_batch_bytes
        return 0

    cdef bint begin_row(self) noexcept nogil:
        """Room for one more row; False: no memory."""
        return start_row(&self.table.rows, &self.row)

    cdef Fits finish_row(self) noexcept nogil:
        """All of the row's values are there. Where they are not to stay, the batch is as before: for want of memory, or
        since it has to be taken first."""
        cdef Batch* batch = &self.table.rows.batch
        cdef size_t text_bytes = batch.text_bytes
        if not end_row(batch, &self.row):
            fail(&self.row, b"out of memory")
            self.drop_row()
            return IS_BROKEN
        batch.text_bytes = self.row.text_bytes
        batch.rows += 1
        if batch_bytes(batch) > MOST_BATCH_BYTES:
            batch.rows -= 1
            batch.text_bytes = text_bytes
            self.drop_row()
            if batch.rows:
                return IS_LEFT
            fail(&self.row, b"a row larger than 250 MiB, which no batch can hold")
            return IS_BROKEN
        self.rows += 1
        return IS_THERE

    cdef void drop_row(self) noexcept nogil:
        """Forget the row behind the batch's last, of which some columns may be there."""
        cdef Batch* batch = &self.table.rows.batch
        cdef int32_t i
        for i in range(batch.column_count):
            truncate_column(&batch.columns[i], batch.rows, batch.rows + 1)

    @property
    def batch_row_count(self):
        return self.table.rows.batch.rows

    cdef exported.ArrowColumns take_columns(self):
        """The rows so far as Arrow columns; a new batch begins."""
        cdef CollectedRows collected = CollectedRows.__new__(CollectedRows)
        cdef exported.ArrowColumns columns = exported.ArrowColumns.__new__(exported.ArrowColumns)
        self.table.take_batch(&collected.batch, self.batch_rows)
        collected.spare = &self.table.rows.spare
        collected.owner = self.table
        columns.owner = collected
        columns.fields = self.table.fields
        columns.columns = collected.batch.columns
        columns.length = collected.batch.rows
        return columns
