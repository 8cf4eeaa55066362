from libc.stdint cimport int32_t

from agent.columnar.table_rows cimport Rows, TableRows
from agent.sources.postgresql.native.values cimport Value


cdef enum:
    # the server's limit
    MOST_COLUMNS = 1600


# The part of a compiled table that the loops without the GIL use.
cdef struct Plan:
    Value* values
    int32_t column_count
    Rows* rows


cdef class PlannedColumn:
    cdef readonly object column
    cdef readonly bint sent
    cdef readonly bint identity


cdef class CompiledColumns(TableRows):
    cdef Plan plan

    cdef int compile(self, planned, head) except -1


cdef class TablePlan(CompiledColumns):
    cdef readonly tuple columns


cdef class RowsPlan(CompiledColumns):
    cdef readonly tuple columns
    cdef readonly int32_t key_count
