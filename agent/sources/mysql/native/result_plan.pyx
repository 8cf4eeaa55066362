"""How the columns of a SELECT are read: the compiled form of a table's definition, as `plan` has it of a table map."""

import json

from libc.stdint cimport int32_t
from libc.string cimport memset

from agent.sources.mysql.native.plan cimport PlannedColumn, TablePlan
from agent.sources.mysql.native.values cimport (
    READS_1_BYTE, READS_2_BYTES, READS_4_BYTES, READS_8_BYTES, READS_ASCII, READS_BINARY, READS_BYTES, READS_ENUM,
    READS_GEOMETRY, READS_RESULT_BIT, READS_RESULT_DATE, READS_RESULT_DATETIME, READS_RESULT_DECIMAL, READS_RESULT_TIME,
    READS_RESULT_TIMESTAMP, READS_RESULT_YEAR, READS_SET, READS_UTF8MB4, Value
)

from agent.sources.mysql.types import Kind

from agent.sources.mysql.snapshot.result_columns import is_selected_as_text
from agent.sources.mysql.native.plan import UnsupportedColumn

cdef enum:
    MOST_BOUND_COLUMNS = 64

_FIXED = {
    Kind.TINYINT: (READS_1_BYTE, 1),
    Kind.SMALLINT: (READS_2_BYTES, 2),
    Kind.MEDIUMINT: (READS_4_BYTES, 4),
    Kind.INT: (READS_4_BYTES, 4),
    Kind.BIGINT: (READS_8_BYTES, 8),
    Kind.FLOAT: (READS_4_BYTES, 4),
    Kind.DOUBLE: (READS_8_BYTES, 8),
    # selected as numbers
    Kind.YEAR: (READS_RESULT_YEAR, 8),
    Kind.ENUM: (READS_ENUM, 8),
    Kind.SET: (READS_SET, 8),
}
_COUNTED = {
    Kind.DECIMAL: READS_RESULT_DECIMAL,
    Kind.DATE: READS_RESULT_DATE,
    Kind.TIME: READS_RESULT_TIME,
    Kind.DATETIME: READS_RESULT_DATETIME,
    Kind.TIMESTAMP: READS_RESULT_TIMESTAMP,
    Kind.BIT: READS_RESULT_BIT,
    Kind.BINARY: READS_BINARY,
    Kind.VARBINARY: READS_BYTES,
    Kind.BLOB: READS_BYTES,
    Kind.JSON: READS_UTF8MB4,
    Kind.GEOMETRY: READS_GEOMETRY,
    Kind.VECTOR: READS_BYTES,
    Kind.INET4: READS_ASCII,
    Kind.INET6: READS_ASCII,
    Kind.UUID: READS_ASCII,
}
_TEXT = (Kind.CHAR, Kind.VARCHAR, Kind.TEXT)


cdef class ResultPlan(TablePlan):
    """Compiled columns of a SELECT, and the batch that its rows are collected in. See results.pyi."""

    def __init__(self, str database, str table, str schema_id, columns, int32_t bound_columns=0):
        if not 0 <= bound_columns <= MOST_BOUND_COLUMNS:
            raise ValueError(f"{bound_columns} columns of bounds")
        self.bound_columns = bound_columns
        super().__init__(database, table, schema_id, [PlannedColumn(column, 0, 0, True) for column in columns])

    cdef int compile(self) except -1:
        cdef int32_t i
        self.begin_plan(())
        for i in range(self.plan.column_count):
            self.compile_field(self.columns[i].column, &self.plan.values[i])
        return 0

    cdef int compile_field(self, column, Value* value) except -1:
        type_ = column.type
        memset(value, 0, sizeof(Value))
        value.sent = True
        value.precision, value.scale, value.digits = type_.precision, type_.scale, type_.precision
        value.padded = type_.length_bytes
        if type_.kind in _TEXT or is_selected_as_text(type_):
            value.prefix = 1
            self.keep_codec(column, value)
        elif type_.kind in _FIXED:
            value.reads, value.size = _FIXED[type_.kind]
        elif type_.kind in _COUNTED:
            value.reads, value.prefix = _COUNTED[type_.kind], 1
            value.size = (type_.precision + 7) // 8  # of a BIT
        else:
            raise UnsupportedColumn(column.name, f"this version can't read {type_} from a SELECT")
        if type_.labels:
            self.keep_labels(type_.labels, value)
        value.key = self.keep_text(json.dumps(column.name, ensure_ascii=False))
        return 0
