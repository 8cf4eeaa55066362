"""How the rows of one table are read: compiled once per version of its TABLE_MAP.

Comes in: the columns in the order of the row events, their types and metadata in the log, and which of them are
sent. Goes out: a `Plan` for the loop without the GIL. A type that can't be read raises `UnsupportedColumn`; a column
that is not sent is only stepped over, which needs no more than the size of its values.
"""

import json

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from agent.columnar.values cimport Text
from agent.sources.mysql.native.decimals cimport decimal_size
from agent.sources.mysql.native.values cimport (
    READS_1_BYTE, READS_2_BYTES, READS_4_BYTES, READS_8_BYTES, READS_ASCII, READS_BINARY, READS_BIT, READS_BYTES,
    READS_CODEC, READS_COMPRESSED, READS_DATE, READS_DATETIME, READS_DECIMAL, READS_DECIMAL_TEXT, READS_ENUM,
    READS_GEOMETRY, READS_INET4, READS_INET6, READS_JSON, READS_MEDIUM_SIGNED, READS_MEDIUM_UNSIGNED,
    READS_OLD_DATETIME, READS_OLD_DECIMAL, READS_OLD_TIME, READS_OLD_TIMESTAMP, READS_SET, READS_SINGLE_BYTE,
    READS_TIME, READS_TIMESTAMP, READS_UTF8MB3, READS_UTF8MB4, READS_UUID, READS_YEAR, Value
)

from menura.change_batch import WIRE_ROW_COLUMNS
from menura.types import MAX_DECIMAL128_PRECISION
from agent.columnar.table_rows import described
from agent.sources.mysql.failures import WHOLE_ROWS
from agent.sources.mysql.types import INTEGER_KINDS, Kind, arrow_format, invalid_label_bytes

from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.log.charsets import CharsetUnknown, Way, codec_of
from agent.sources.mysql.schema.column_types import FIXED_BINARY_BYTES

_COMPRESSED_TYPES = (binlog.MYSQL_TYPE_VARCHAR_COMPRESSED, binlog.MYSQL_TYPE_BLOB_COMPRESSED)
_VARIABLE_TYPES = (
    binlog.MYSQL_TYPE_VARCHAR, binlog.MYSQL_TYPE_VAR_STRING, binlog.MYSQL_TYPE_VARCHAR_COMPRESSED
)
_BLOB_TYPES = (binlog.MYSQL_TYPE_BLOB, binlog.MYSQL_TYPE_BLOB_COMPRESSED)
# kind: the types that the log has for it
_TYPES = {
    Kind.TINYINT: (binlog.MYSQL_TYPE_TINY,),
    Kind.SMALLINT: (binlog.MYSQL_TYPE_SHORT,),
    Kind.MEDIUMINT: (binlog.MYSQL_TYPE_INT24,),
    Kind.INT: (binlog.MYSQL_TYPE_LONG,),
    Kind.BIGINT: (binlog.MYSQL_TYPE_LONGLONG,),
    Kind.DECIMAL: (binlog.MYSQL_TYPE_NEWDECIMAL, binlog.MYSQL_TYPE_DECIMAL),
    Kind.FLOAT: (binlog.MYSQL_TYPE_FLOAT,),
    Kind.DOUBLE: (binlog.MYSQL_TYPE_DOUBLE,),
    Kind.CHAR: (binlog.MYSQL_TYPE_STRING,),
    Kind.VARCHAR: _VARIABLE_TYPES,
    Kind.TEXT: _BLOB_TYPES,
    Kind.BINARY: (binlog.MYSQL_TYPE_STRING,),
    Kind.VARBINARY: _VARIABLE_TYPES,
    Kind.BLOB: _BLOB_TYPES,
    Kind.DATE: (binlog.MYSQL_TYPE_DATE, binlog.MYSQL_TYPE_NEWDATE),
    Kind.TIME: (binlog.MYSQL_TYPE_TIME2, binlog.MYSQL_TYPE_TIME),
    Kind.DATETIME: (binlog.MYSQL_TYPE_DATETIME2, binlog.MYSQL_TYPE_DATETIME),
    Kind.TIMESTAMP: (binlog.MYSQL_TYPE_TIMESTAMP2, binlog.MYSQL_TYPE_TIMESTAMP),
    Kind.YEAR: (binlog.MYSQL_TYPE_YEAR,),
    Kind.ENUM: (binlog.MYSQL_TYPE_ENUM,),
    Kind.SET: (binlog.MYSQL_TYPE_SET,),
    Kind.BIT: (binlog.MYSQL_TYPE_BIT,),
    Kind.JSON: (binlog.MYSQL_TYPE_JSON, *_BLOB_TYPES),
    Kind.GEOMETRY: (binlog.MYSQL_TYPE_GEOMETRY,),
    Kind.VECTOR: (binlog.MYSQL_TYPE_VECTOR, binlog.MYSQL_TYPE_VARCHAR),
    Kind.INET4: (binlog.MYSQL_TYPE_STRING,),
    Kind.INET6: (binlog.MYSQL_TYPE_STRING,),
    Kind.UUID: (binlog.MYSQL_TYPE_STRING,),
}

_FIXED_SIZES = {
    binlog.MYSQL_TYPE_TINY: 1,
    binlog.MYSQL_TYPE_SHORT: 2,
    binlog.MYSQL_TYPE_INT24: 3,
    binlog.MYSQL_TYPE_LONG: 4,
    binlog.MYSQL_TYPE_LONGLONG: 8,
    binlog.MYSQL_TYPE_FLOAT: 4,
    binlog.MYSQL_TYPE_DOUBLE: 8,
    binlog.MYSQL_TYPE_NULL: 0,
    binlog.MYSQL_TYPE_YEAR: 1,
    binlog.MYSQL_TYPE_DATE: 3,
    binlog.MYSQL_TYPE_NEWDATE: 3,
}
_FRACTIONAL_SIZES = {
    binlog.MYSQL_TYPE_TIME2: 3,
    binlog.MYSQL_TYPE_DATETIME2: 5,
    binlog.MYSQL_TYPE_TIMESTAMP2: 4,
}
# type of before 5.6: its kind, bytes without a fraction, bytes with one by its digits
_OLD_TEMPORALS = {
    binlog.MYSQL_TYPE_TIME: (Kind.TIME, 3, (3, 4, 4, 5, 5, 5, 6)),
    binlog.MYSQL_TYPE_DATETIME: (Kind.DATETIME, 8, (5, 6, 6, 7, 7, 7, 8)),
    binlog.MYSQL_TYPE_TIMESTAMP: (Kind.TIMESTAMP, 4, (4, 5, 5, 6, 6, 7, 7)),
}
_PREFIXED_TYPES = (
    binlog.MYSQL_TYPE_BLOB,
    binlog.MYSQL_TYPE_JSON,
    binlog.MYSQL_TYPE_GEOMETRY,
    binlog.MYSQL_TYPE_VECTOR,
    binlog.MYSQL_TYPE_BLOB_COMPRESSED,
)

_COPIES = {1: READS_1_BYTE, 2: READS_2_BYTES, 4: READS_4_BYTES, 8: READS_8_BYTES}
_TEMPORAL_READS = {
    Kind.DATE: READS_DATE,
    Kind.DATETIME: READS_DATETIME,
    Kind.TIMESTAMP: READS_TIMESTAMP,
    Kind.TIME: READS_TIME,
    Kind.YEAR: READS_YEAR,
}
_OLD_READS = {
    binlog.MYSQL_TYPE_DECIMAL: READS_OLD_DECIMAL,
    binlog.MYSQL_TYPE_TIME: READS_OLD_TIME,
    binlog.MYSQL_TYPE_DATETIME: READS_OLD_DATETIME,
    binlog.MYSQL_TYPE_TIMESTAMP: READS_OLD_TIMESTAMP,
}
_SIMPLE_READS = {
    Kind.ENUM: READS_ENUM,
    Kind.SET: READS_SET,
    Kind.BIT: READS_BIT,
    Kind.BINARY: READS_BINARY,
    Kind.GEOMETRY: READS_GEOMETRY,
    Kind.INET4: READS_INET4,
    Kind.INET6: READS_INET6,
    Kind.UUID: READS_UUID,
}
_WAY_READS = {
    Way.UTF8MB4: READS_UTF8MB4,
    Way.UTF8MB3: READS_UTF8MB3,
    Way.ASCII: READS_ASCII,
    Way.BINARY: READS_BYTES,
    Way.SINGLE_BYTE: READS_SINGLE_BYTE,
    Way.PYTHON: READS_CODEC,
}


class UnsupportedColumn(Exception):
    """A column whose values can't be read; `column` is its name."""

    def __init__(self, column, found):
        self.column = column
        super().__init__(f"column {column}: {found}")


cdef class PlannedColumn:
    """One column as the log has it. `metadata` is that of the TABLE_MAP, as `mysql.log.table_map` gives it."""

    def __init__(self, column, int binlog_type, int metadata, bint sent, bint computed=False):
        self.column = column
        self.binlog_type = binlog_type
        self.metadata = metadata
        self.sent = sent
        self.computed = computed


cdef class FollowedTable:
    """A table that others follow by foreign keys: how its rows were changed, but for foreign_key_checks=0."""

    def take_changes(self):
        taken = bool(self.changes.deleted), bool(self.changes.updated)
        self.changes.deleted = self.changes.updated = False
        return taken

    def stop_at(self, bint deletes, bint updates):
        self.changes.stops_at_delete = deletes
        self.changes.stops_at_update = updates


cdef class TablePlan:
    """Compiled columns of one table version, and the batch that its rows are collected in."""

    def __init__(self, str database, str table, str schema_id, columns):
        self.database = database
        self.table = table
        self.schema_id = schema_id
        self.columns = tuple(columns)
        if not 0 < len(self.columns) <= MOST_COLUMNS:
            raise UnsupportedColumn("", f"{len(self.columns)} columns, a table has 1 to {MOST_COLUMNS}")
        self.compile()

    def __dealloc__(self):
        free(self.plan.values)

    def follow(self, bint deletes, bint updates, bint itself, bint tells=False):
        self.plan.follows_deletes = deletes
        self.plan.follows_updates = updates
        self.plan.follows_itself = itself
        self.plan.tells_missing = tells

    def take_missing(self):
        taken = bool(self.plan.lacks_rows)
        self.plan.lacks_rows = False
        return taken

    cdef int compile(self) except -1:
        cdef int32_t i
        self.begin_plan(WIRE_ROW_COLUMNS)
        for i in range(self.plan.column_count):
            self.compile_column(self.columns[i], &self.plan.values[i])
        return 0

    cdef int begin_plan(self, head) except -1:
        """The batch's columns: `head` (names and Arrow formats), those that are sent, _unrepresentable."""
        sent = [planned.column for planned in self.columns if planned.sent]
        described_columns = [described(column, arrow_format(column.type), column.row_end) for column in sent]
        self.begin(head, described_columns, WHOLE_ROWS)
        self.plan.rows = &self.rows
        self.plan.column_count = <int32_t> len(self.columns)
        self.plan.values = <Value*> calloc(len(self.columns), sizeof(Value))
        if self.plan.values == NULL:
            raise MemoryError
        return 0

    cdef int compile_column(self, PlannedColumn planned, Value* value) except -1:
        column, type_ = planned.column, planned.column.type
        memset(value, 0, sizeof(Value))
        value.size, value.prefix = _size(planned)
        value.sent = planned.sent
        value.computed = planned.computed
        value.is_json = planned.binlog_type == binlog.MYSQL_TYPE_JSON
        self.plan.json_columns += value.is_json
        if not planned.sent:
            return 0
        if planned.binlog_type not in _TYPES.get(type_.kind, ()):
            raise UnsupportedColumn(column.name, f"{type_} is of type {planned.binlog_type} in the log")
        _check_metadata(planned)
        value.precision, value.scale = type_.precision, type_.scale
        value.digits = type_.precision
        value.padded = FIXED_BINARY_BYTES.get(type_.kind, type_.length_bytes)
        if planned.binlog_type == binlog.MYSQL_TYPE_VAR_STRING:
            value.padded = planned.metadata
        value.reads = _reads(planned)
        if type_.kind in (Kind.CHAR, Kind.VARCHAR, Kind.TEXT):
            self.keep_codec(column, value)
        if type_.kind in (Kind.ENUM, Kind.SET):
            self.keep_labels(type_.labels, value)
        if planned.binlog_type in _COMPRESSED_TYPES:
            value.compressed, value.reads = value.reads, READS_COMPRESSED
        value.key = self.keep_text(json.dumps(column.name, ensure_ascii=False))
        return 0

    cdef int keep_labels(self, tuple labels, Value* value) except -1:
        invalid = [invalid_label_bytes(label) for label in labels]
        value.labels = self.keep_texts(len(labels))
        value.label_count = len(labels)
        if any(raw is not None for raw in invalid):
            value.label_words = self.keep_texts(len(labels))
        for i, (label, raw) in enumerate(zip(labels, invalid)):
            if raw is None:
                value.labels[i] = self.keep_text(label)
            elif i < 64:
                value.invalid_labels |= <uint64_t> 1 << <int> i
            if value.label_words != NULL:
                quoted = json.dumps(label if raw is None else f"0x{raw.hex().upper()}", ensure_ascii=False)
                word = quoted[1 : len(quoted) - 1]
                value.label_words[i] = self.keep_text(word)
        return 0

    cdef Text* keep_texts(self, size_t count) except NULL:
        memory = bytes(sizeof(Text) * count)
        self.kept.append(memory)
        return <Text*> PyBytes_AS_STRING(memory)

    cdef int keep_codec(self, column, Value* value) except -1:
        try:
            codec = codec_of(column.type.charset)
        except CharsetUnknown as unknown:
            raise UnsupportedColumn(column.name, str(unknown)) from unknown
        self.kept.append(codec)
        value.reads = _WAY_READS[codec.way]
        if codec.way is Way.SINGLE_BYTE:
            value.has_ascii = codec.has_ascii
            value.characters = <const uint32_t*> PyBytes_AS_STRING(codec.characters)
        elif codec.way is Way.PYTHON:
            value.codec = <void*> codec.decode
        return 0


def _size(PlannedColumn planned):
    """(bytes of a value, bytes of its length prefix), of which one is 0."""
    cdef int type_ = planned.binlog_type, metadata = planned.metadata
    if type_ in _FIXED_SIZES:
        return _FIXED_SIZES[type_], 0
    if type_ in _OLD_TEMPORALS:
        kind, size, fractional = _OLD_TEMPORALS[type_]
        if planned.column.type.kind is kind and 0 <= planned.column.type.precision <= 6:
            return fractional[planned.column.type.precision] if planned.column.type.precision else size, 0
    if type_ == binlog.MYSQL_TYPE_DECIMAL and planned.column.type.kind is Kind.DECIMAL:
        return _old_decimal_size(planned.column.type), 0
    if type_ in _FRACTIONAL_SIZES and 0 <= metadata <= 6:
        return _FRACTIONAL_SIZES[type_] + (metadata + 1) // 2, 0
    if type_ in (binlog.MYSQL_TYPE_VARCHAR, binlog.MYSQL_TYPE_VAR_STRING, binlog.MYSQL_TYPE_STRING) or (
        type_ == binlog.MYSQL_TYPE_VARCHAR_COMPRESSED
    ):
        return 0, 1 if metadata < 256 else 2
    if type_ in _PREFIXED_TYPES and 1 <= metadata <= 4:
        return 0, metadata
    if type_ in (binlog.MYSQL_TYPE_ENUM, binlog.MYSQL_TYPE_SET) and 1 <= metadata <= 8:
        return metadata, 0
    if type_ == binlog.MYSQL_TYPE_BIT and 0 < _bits(metadata) <= 64:
        return (_bits(metadata) + 7) // 8, 0
    if type_ == binlog.MYSQL_TYPE_NEWDECIMAL and 0 < metadata & 0xFF <= 65 and metadata >> 8 <= metadata & 0xFF:
        return decimal_size(metadata & 0xFF, metadata >> 8), 0
    raise UnsupportedColumn(planned.column.name, f"type {type_} of the log with metadata {metadata} is not known")


def _old_decimal_size(type_):
    return type_.precision + (1 if type_.scale else 0) + (0 if type_.unsigned else 1)


def _bits(int metadata):
    return (metadata >> 8) * 8 + (metadata & 0xFF)


def _check_metadata(PlannedColumn planned):
    """The definition and the TABLE_MAP must say the same."""
    type_ = planned.column.type
    expected = found = 0
    if planned.binlog_type in _OLD_READS:
        return  # the log says nothing more
    if type_.kind is Kind.DECIMAL:
        expected, found = (type_.precision, type_.scale), (planned.metadata & 0xFF, planned.metadata >> 8)
    elif type_.kind is Kind.BIT:
        expected, found = type_.precision, _bits(planned.metadata)
    elif type_.kind in (Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP):
        expected, found = type_.precision, planned.metadata
    elif type_.kind is Kind.BINARY:
        expected, found = type_.length_bytes, planned.metadata
    elif type_.kind in FIXED_BINARY_BYTES:
        expected, found = FIXED_BINARY_BYTES[type_.kind], planned.metadata
    elif type_.kind is Kind.FLOAT or type_.kind is Kind.DOUBLE:
        expected, found = 4 if type_.kind is Kind.FLOAT else 8, planned.metadata
    elif type_.kind is Kind.ENUM:
        expected, found = 1 if len(type_.labels) < 256 else 2, planned.metadata
    elif type_.kind is Kind.SET:
        size = (len(type_.labels) + 7) // 8
        expected, found = size if size <= 4 else 8, planned.metadata
    if expected != found:
        raise UnsupportedColumn(planned.column.name, f"{type_} is not what its metadata in the log says ({found})")


def _reads(PlannedColumn planned):
    """The decoder of a column that is sent; text of a charset gets its own later."""
    type_ = planned.column.type
    kind = type_.kind
    if kind is Kind.MEDIUMINT:
        return READS_MEDIUM_UNSIGNED if type_.unsigned else READS_MEDIUM_SIGNED
    if kind in INTEGER_KINDS or kind in (Kind.FLOAT, Kind.DOUBLE):
        return _COPIES[_FIXED_SIZES[planned.binlog_type]]
    if planned.binlog_type in _OLD_READS:
        return _OLD_READS[planned.binlog_type]
    if kind is Kind.DECIMAL:
        return READS_DECIMAL if type_.precision <= MAX_DECIMAL128_PRECISION else READS_DECIMAL_TEXT
    if kind is Kind.JSON:
        return READS_JSON if planned.binlog_type == binlog.MYSQL_TYPE_JSON else READS_UTF8MB4
    if kind in _TEMPORAL_READS:
        return _TEMPORAL_READS[kind]
    if kind is Kind.VARBINARY and planned.binlog_type == binlog.MYSQL_TYPE_VAR_STRING:
        return READS_BINARY  # of before 5.0.3: stored as BINARY
    return _SIMPLE_READS.get(kind, READS_BYTES)
