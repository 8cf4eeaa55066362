from libc.stdint cimport int8_t, int32_t, int64_t

from agent.columnar.batch cimport FIRST_ROWS, Batch, grow_rows, truncate_batch
from agent.columnar.column cimport Row, append_null
from agent.columnar.values cimport Text, append_value, fail


# The rows of one table in one form, as the loops without the GIL append to them.
cdef struct Rows:
    Batch batch
    # memory of a batch that was sent, for the next one; no columns: none
    Batch spare
    # of the batch's columns, as `begin_batch` takes them
    int32_t* widths
    int32_t batch_columns
    # room for so many rows is made at once: as many as the last batch had
    size_t expected_rows
    bint active
    # a collector holds a reference
    bint is_pending
    # number of the last row that is not in the batch any more
    int64_t taken_gsn
    # the TableRows itself
    void* owner


cdef class TableRows:
    cdef readonly str database
    cdef readonly str table
    cdef readonly str schema_id
    cdef Rows rows
    # what the compiled form of the columns points to
    cdef list kept
    # Arrow name, format and metadata of the batch's columns, as bytes
    cdef list fields
    # the same and _absent
    cdef list fields_with_absent
    # a reader of a SELECT appends to the batch
    cdef bint is_read

    cdef int begin(self, head, sent, str whole_rows=*) except -1
    cdef Text keep_text(self, str text)
    cdef int take_batch(self, Batch* taken, size_t most_rows) except -1


cdef inline bint start_row(Rows* rows, Row* row) noexcept nogil:
    """Room for one more row; False: no memory."""
    cdef Batch* batch = &rows.batch
    if batch.rows == batch.capacity_rows and not grow_rows(
        batch, batch.capacity_rows * 2 if batch.capacity_rows else rows.expected_rows
    ):
        fail(row, b"out of memory")
        return False
    row.number = batch.rows
    row.text_bytes = batch.text_bytes
    row.unrepresentable = batch.columns + batch.column_count - 1
    row.has_unrepresentable = False
    return True


cdef inline bint end_row(Batch* batch, Row* row) noexcept nogil:
    """Close the row's `_unrepresentable`: null in most rows."""
    if not row.has_unrepresentable:
        return append_null(row.unrepresentable, row.number, batch.capacity_rows)
    return append_value(row.unrepresentable, row, b"}", 1) == 0


cdef inline bint finish_row(Batch* batch, int8_t change_type, int64_t gsn, Row* row, size_t text_bytes) noexcept nogil:
    """All of the row's values are there. False: no memory, and the batch is as before, with its `text_bytes`."""
    cdef size_t number = row.number
    if not end_row(batch, row):
        fail(row, b"out of memory")
        truncate_batch(batch, number, number + 1, text_bytes)
        return False
    (<int8_t*> batch.columns[0].values.data)[number] = change_type
    (<int64_t*> batch.columns[1].values.data)[number] = gsn
    (<int32_t*> batch.columns[2].values.data)[number] = <int32_t> batch.transaction_count - 1
    if number == 0:
        batch.first_gsn = gsn
    batch.last_gsn = gsn
    batch.text_bytes = row.text_bytes
    batch.rows = number + 1
    return True
