"""The rows of one table that are being collected: columns, and beside them the transactions they belong to."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from agent.columnar.column cimport (
    Column, Row, append_null, append_text, end_text, grow_column, mark_valid, release, release_column, truncate_column,
    values_bytes
)

cdef enum:
    # Columns before the table's own: _change_type, _gsn, _transaction.
    HEAD_COLUMNS = 3
    TRANSACTION_COLUMNS = 3
    FIRST_ROWS = 16
    # What one batch may hold: menura.change_batch.MAX_BATCH_BYTES less what its own stream's head and padding take.
    MOST_BATCH_BYTES = 250 << 20


cdef struct Batch:
    # head, the table's sent columns, _unrepresentable; behind them, not counted, _absent
    Column* columns
    int32_t column_count
    # rows up to the last that lacks a column: _absent has so many, and is not sent while there are none
    size_t absent_rows
    # bytes that a row takes in fixed-width columns and offsets
    size_t row_bytes
    size_t text_bytes
    size_t rows
    size_t capacity_rows
    int64_t first_gsn
    int64_t last_gsn
    Column transactions[TRANSACTION_COLUMNS]
    size_t transaction_count
    size_t transaction_capacity
    int64_t last_transaction_id


cdef inline size_t batch_bytes(const Batch* batch) noexcept nogil:
    return batch.rows * batch.row_bytes + batch.text_bytes


cdef inline bint begin_batch(Batch* batch, const int32_t* widths, int32_t column_count) noexcept nogil:
    """An empty batch; `widths` are of its columns (`Column.width`)."""
    cdef int32_t i
    memset(batch, 0, sizeof(Batch))
    batch.columns = <Column*> calloc(column_count + 1, sizeof(Column))
    if batch.columns == NULL:
        return False
    batch.column_count = column_count
    for i in range(column_count):
        batch.columns[i].width = widths[i]
        batch.row_bytes += values_bytes(widths[i], 1) if widths[i] else sizeof(int32_t)
    batch.transactions[0].width = batch.transactions[1].width = sizeof(int64_t)
    return True


cdef inline bint grow_rows(Batch* batch, size_t capacity_rows) noexcept nogil:
    cdef int32_t i
    for i in range(batch.column_count):
        if not grow_column(&batch.columns[i], batch.rows, capacity_rows):
            return False
    batch.capacity_rows = capacity_rows
    return True


cdef inline bint add_transaction(
    Batch* batch, int64_t transaction_id, int64_t commit_timestamp_us, const char* position, size_t position_size
) noexcept nogil:
    """Rows that follow belong to this one."""
    cdef size_t number = batch.transaction_count
    cdef size_t capacity = batch.transaction_capacity
    cdef Row row
    cdef int i
    if number == capacity:
        capacity = capacity * 2 if capacity else FIRST_ROWS
        for i in range(TRANSACTION_COLUMNS):
            if not grow_column(&batch.transactions[i], number, capacity):
                return False
        batch.transaction_capacity = capacity
    row.text_bytes = 0
    (<int64_t*> batch.transactions[0].values.data)[number] = transaction_id
    (<int64_t*> batch.transactions[1].values.data)[number] = commit_timestamp_us
    if not append_text(&batch.transactions[2], &row, position, position_size):
        return False
    end_text(&batch.transactions[2], number)
    batch.text_bytes += position_size + 20
    batch.transaction_count = number + 1
    batch.last_transaction_id = transaction_id
    return True


cdef inline bint fill_absent(Batch* batch, size_t rows) noexcept nogil:
    """Note that the rows up to here have all columns, where nothing is noted yet; False: no memory."""
    cdef Column* column = batch.columns + batch.column_count
    if not grow_column(column, batch.absent_rows, batch.capacity_rows):
        return False
    while batch.absent_rows < rows:
        if not append_null(column, batch.absent_rows, batch.capacity_rows):
            return False
        batch.absent_rows += 1
    return True


cdef inline bint note_absent(Batch* batch, Row* row, const uint8_t* bits, size_t size) noexcept nogil:
    """Note which columns the row lacks; False: no memory."""
    cdef Column* column = batch.columns + batch.column_count
    if not fill_absent(batch, row.number) or not append_text(column, row, bits, size):
        return False
    end_text(column, row.number)
    mark_valid(column, row.number)
    batch.absent_rows = row.number + 1
    return True


cdef inline void truncate_batch(Batch* batch, size_t rows, size_t from_rows, size_t text_bytes) noexcept nogil:
    """Back to `rows` rows, when from_rows - 1 is the last that has been begun."""
    cdef int32_t i
    for i in range(HEAD_COLUMNS, batch.column_count):
        truncate_column(&batch.columns[i], rows, from_rows)
    if batch.absent_rows > rows:
        truncate_column(batch.columns + batch.column_count, rows, batch.absent_rows)
        batch.absent_rows = rows
    batch.rows = rows
    batch.text_bytes = text_bytes


cdef inline size_t drop_rows_from(Batch* batch, int64_t first_gsn) noexcept nogil:
    """Forget the rows from this number on, and transactions that have no other; returns how many rows those were."""
    cdef const int64_t* numbers = <const int64_t*> batch.columns[1].values.data
    cdef const int32_t* transactions = <const int32_t*> batch.columns[2].values.data
    cdef const int32_t* ends = <const int32_t*> batch.transactions[2].values.data
    cdef size_t rows = batch.rows, before = batch.rows, text_bytes = batch.text_bytes
    cdef size_t transaction_count, absent_bytes = batch.columns[batch.column_count].text.size
    cdef int32_t i
    while rows and numbers[rows - 1] >= first_gsn:
        rows -= 1
    if rows == before:
        return 0
    for i in range(HEAD_COLUMNS, batch.column_count):
        if not batch.columns[i].width and batch.columns[i].values.data != NULL:
            text_bytes -= batch.columns[i].text.size - (<const int32_t*> batch.columns[i].values.data)[rows]
    transaction_count = transactions[rows - 1] + 1 if rows else 0
    if transaction_count < batch.transaction_count:
        text_bytes -= batch.transactions[2].text.size - ends[transaction_count]
        text_bytes -= 20 * (batch.transaction_count - transaction_count)
        batch.transactions[2].text.size = ends[transaction_count]
        batch.transaction_count = transaction_count
        if transaction_count:
            batch.last_transaction_id = (<const int64_t*> batch.transactions[0].values.data)[transaction_count - 1]
    truncate_batch(batch, rows, before, text_bytes)
    batch.text_bytes -= absent_bytes - batch.columns[batch.column_count].text.size
    if rows:
        batch.last_gsn = numbers[rows - 1]
    return before - rows


cdef inline void empty_batch(Batch* batch) noexcept nogil:
    """No rows, but the memory of those that were there."""
    cdef int32_t i
    for i in range(batch.column_count):
        batch.columns[i].text.size = 0
        batch.columns[i].nulls = 0
        release(&batch.columns[i].validity)
    release_column(batch.columns + batch.column_count)
    batch.absent_rows = 0
    batch.transactions[2].text.size = 0
    batch.rows = batch.text_bytes = batch.transaction_count = 0


cdef inline size_t held_bytes(const Batch* batch) noexcept nogil:
    """Memory of the batch, used or not."""
    cdef size_t size = 0
    cdef int32_t i
    if batch.columns == NULL:
        return 0
    for i in range(batch.column_count + 1):
        size += batch.columns[i].values.capacity + batch.columns[i].text.capacity
    for i in range(TRANSACTION_COLUMNS):
        size += batch.transactions[i].values.capacity + batch.transactions[i].text.capacity
    return size


cdef inline void release_batch(Batch* batch) noexcept nogil:
    cdef int32_t i
    if batch.columns != NULL:
        for i in range(batch.column_count + 1):
            release_column(&batch.columns[i])
        free(batch.columns)
    for i in range(TRANSACTION_COLUMNS):
        release_column(&batch.transactions[i])
    memset(batch, 0, sizeof(Batch))
