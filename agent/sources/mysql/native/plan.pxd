from libc.stdint cimport int32_t, int64_t

from agent.columnar.table_rows cimport Rows, TableRows
from agent.columnar.values cimport Text
from agent.sources.mysql.native.values cimport Value


cdef enum:
    # the server's limit
    MOST_COLUMNS = 4096


# The part of a TablePlan that the loop without the GIL uses.
cdef struct Plan:
    Value* values
    int32_t column_count
    # of them in MySQL's binary JSON
    int32_t json_columns
    Rows* rows
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


cdef class PlannedColumn:
    cdef readonly object column
    cdef readonly int binlog_type
    cdef readonly int metadata
    cdef readonly bint sent
    cdef readonly bint computed


cdef class TablePlan(TableRows):
    cdef readonly tuple columns
    cdef Plan plan

    cdef int compile(self) except -1
    cdef int begin_plan(self, head) except -1
    cdef int compile_column(self, PlannedColumn planned, Value* value) except -1
    cdef Text* keep_texts(self, size_t count) except NULL
    cdef int keep_labels(self, tuple labels, Value* value) except -1
    cdef int keep_codec(self, column, Value* value) except -1


# Kinds of a followed table's changes.
cdef struct Changes:
    bint deleted
    bint updated
    # such a change is an error: a table that follows it stops before it
    bint stops_at_delete
    bint stops_at_update


cdef class FollowedTable:
    cdef Changes changes
