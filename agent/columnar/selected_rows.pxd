from agent.columnar cimport arrow as exported
from agent.columnar.batch cimport batch_bytes
from agent.columnar.column cimport Row
from agent.columnar.table_rows cimport TableRows


# What `SelectedRows.end_row` leads to.
cdef enum Fits:
    IS_BROKEN = -1
    IS_LEFT = 0
    IS_THERE = 1


cdef class SelectedRows:
    cdef TableRows table
    cdef size_t batch_rows
    cdef size_t most_batch_bytes
    # the row that is appended, and why it can't be
    cdef Row row
    cdef readonly long long rows

    cdef int collect_into(self, TableRows table, size_t batch_rows, size_t most_batch_bytes) except -1
    cdef bint begin_row(self) noexcept nogil
    cdef Fits finish_row(self) noexcept nogil
    cdef void drop_row(self) noexcept nogil
    cdef exported.ArrowColumns take_columns(self)


cdef inline bint is_batch_full(SelectedRows self) noexcept nogil:
    return self.table.rows.batch.rows and (
        self.table.rows.batch.rows >= self.batch_rows or batch_bytes(&self.table.rows.batch) >= self.most_batch_bytes
    )
