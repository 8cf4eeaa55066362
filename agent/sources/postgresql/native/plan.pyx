"""How the rows of one table are read: compiled once per version of its Relation message, or for a SELECT.

Comes in: the columns in the order of the tuples, and which of them are sent. Goes out: a `Plan` for the loops without
the GIL. Values are read from text, so that what a column's type is called does not matter here, only its form.
"""

import json

from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free

from agent.sources.postgresql.native.values cimport (
    READS_BOOL, READS_BYTES, READS_DATE, READS_DECIMAL, READS_FLOAT4, READS_FLOAT8, READS_INT2, READS_INT4, READS_INT8,
    READS_TEXT, READS_TIME, READS_TIMESTAMP, READS_TIMESTAMPTZ, READS_UINT4, Value
)

from menura.change_batch import WIRE_ROW_COLUMNS

from agent.columnar.table_rows import described
from agent.sources.postgresql.types import Form, arrow_format

cdef enum:
    MOST_KEY_COLUMNS = 64

_READS = {
    Form.BOOL: READS_BOOL,
    Form.INT2: READS_INT2,
    Form.INT4: READS_INT4,
    Form.INT8: READS_INT8,
    Form.UINT4: READS_UINT4,
    Form.FLOAT4: READS_FLOAT4,
    Form.FLOAT8: READS_FLOAT8,
    Form.DECIMAL: READS_DECIMAL,
    Form.TEXT: READS_TEXT,
    Form.BYTES: READS_BYTES,
    Form.DATE: READS_DATE,
    Form.TIME: READS_TIME,
    Form.TIMESTAMP: READS_TIMESTAMP,
    Form.TIMESTAMPTZ: READS_TIMESTAMPTZ,
}


cdef class PlannedColumn:
    """One column as its Relation has it."""

    def __init__(self, column, bint sent=True, bint identity=False):
        self.column = column
        self.sent = sent
        self.identity = identity


cdef class CompiledColumns(TableRows):
    """Columns, and the batch that their rows are collected in."""

    def __dealloc__(self):
        free(self.plan.values)

    cdef int compile(self, planned, head) except -1:
        cdef int32_t i
        if len(planned) > MOST_COLUMNS:
            raise ValueError(f"{len(planned)} columns, a table has at most {MOST_COLUMNS}")
        self.begin(head, [described(each.column, arrow_format(each.column.type)) for each in planned if each.sent])
        self.plan.rows = &self.rows
        self.plan.column_count = <int32_t> len(planned)
        self.plan.values = <Value*> calloc(len(planned) + 1, sizeof(Value))
        if self.plan.values == NULL:
            raise MemoryError
        for i, each in enumerate(planned):
            value, type_ = &self.plan.values[i], each.column.type
            value.reads = _READS[type_.form]
            value.sent, value.identity = each.sent, each.identity
            value.precision, value.scale = type_.precision, type_.scale
            value.key = self.keep_text(json.dumps(each.column.name, ensure_ascii=False))
        return 0


cdef class TablePlan(CompiledColumns):
    """Compiled columns of one table version. See plan.pyi."""

    def __init__(self, str database, str table, str schema_id, columns):
        self.database = database
        self.table = table
        self.schema_id = schema_id
        self.columns = tuple(columns)
        self.compile(self.columns, WIRE_ROW_COLUMNS)

    @property
    def is_keyed(self):
        return any(planned.sent and planned.column.key for planned in self.columns)


cdef class RowsPlan(CompiledColumns):
    """Compiled columns of a SELECT. See results.pyi."""

    def __init__(self, columns, int32_t key_count=0):
        if not 0 <= key_count <= MOST_KEY_COLUMNS:
            raise ValueError(f"{key_count} columns of a key")
        self.database = self.table = self.schema_id = ""
        self.columns = tuple(columns)
        self.key_count = key_count
        self.compile([PlannedColumn(column) for column in self.columns], ())
