from libc.stdint cimport int32_t, int64_t

from agent.columnar.batch cimport Batch
from agent.sources.mysql.native.values cimport Text, Value


cdef enum:
    # the server's limit
    MOST_COLUMNS = 4096


# The part of a TablePlan that the loop without the GIL uses.
cdef struct Plan:
    Value* values
    int32_t column_count
    # of them in MySQL's binary JSON
    int32_t json_columns
    # widths of the batch's columns, as `begin_batch` takes them
    int32_t* widths
    int32_t batch_columns
    # room for so many rows is made at once: as many as the last batch had
    size_t expected_rows
    bint active
    # a foreign key may change its rows, which the server does not log: when a row of another table is deleted, or
    # updated, or when one of its own is deleted
    bint follows_deletes
    bint follows_updates
    bint follows_itself
    # such changes are told of, and fail nothing; whether there were some since they were told of
    bint tells_missing
    bint lacks_rows
    # number of the first of its rows that were changed with foreign_key_checks=0, up to now; 0: there is none
    int64_t unchecked_from
    # its batch has rows, and the decoder holds a reference
    bint is_pending
    Batch batch
    # number of the last row that is not in it any more
    int64_t taken_gsn
    # memory of a batch that was sent, for the next one; no columns: none
    Batch spare
    # the TablePlan itself
    void* owner


cdef class PlannedColumn:
    cdef readonly object column
    cdef readonly int binlog_type
    cdef readonly int metadata
    cdef readonly bint sent
    cdef readonly bint computed


cdef class TablePlan:
    cdef readonly str database
    cdef readonly str table
    cdef readonly str schema_id
    cdef readonly tuple columns
    cdef Plan plan
    # what `plan` points to
    cdef list kept
    # Arrow name, format and metadata of the batch's columns, as bytes
    cdef list fields
    # the same and _absent
    cdef list fields_with_absent

    cdef int compile(self) except -1
    cdef int begin(self, head) except -1
    cdef int compile_column(self, PlannedColumn planned, Value* value) except -1
    cdef Text keep_text(self, str text)
    cdef Text* keep_texts(self, size_t count) except NULL
    cdef int keep_labels(self, tuple labels, Value* value) except -1
    cdef int keep_codec(self, column, Value* value) except -1


# Kinds of a followed table's changes.
cdef struct Changes:
    bint deleted
    bint updated


cdef class FollowedTable:
    cdef Changes changes
