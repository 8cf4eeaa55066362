from libc.stdint cimport int32_t

from agent.sources.mysql.native.plan cimport TablePlan
from agent.sources.mysql.native.values cimport Value


cdef class ResultPlan(TablePlan):
    # columns behind the table's own, of which only the last row's are kept
    cdef readonly int32_t bound_columns

    cdef int compile_field(self, column, Value* value) except -1
