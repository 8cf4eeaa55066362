"""Tuples of pgoutput's messages into a table's batch.

::

    tuple    2 number of columns   per column its kind:
             n: NULL   u: an unchanged value that is stored outside of the row, which the log does not repeat
             t: 4 length, text

An old tuple that is a key has the values of the replica identity's columns alone, and NULL in place of the others.
What an unchanged value is, the old tuple says where it has the column; else it is absent (`_absent`), as is what a key
lacks.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t
from libc.string cimport memset

from agent.columnar.batch cimport HEAD_COLUMNS, Batch, note_absent, truncate_batch
from agent.columnar.column cimport Column, Row, append_null
from agent.columnar.table_rows cimport finish_row, start_row
from agent.columnar.values cimport fail
from agent.sources.postgresql.native.frames cimport be16, be32
from agent.sources.postgresql.native.plan cimport Plan
from agent.sources.postgresql.native.values cimport Value, decode_value

cdef enum:
    # a bit for each of MOST_COLUMNS
    MOST_ABSENT_BYTES = 200
    NULL_FIELD = 110  # n
    UNCHANGED_FIELD = 117  # u
    TEXT_FIELD = 116  # t


# Fields that are read one by one.
cdef struct Fields:
    const uint8_t* at
    const uint8_t* end
    # columns whose fields are passed
    int32_t passed
    # the field at hand; 0: none
    uint8_t kind
    const uint8_t* value
    size_t size
    # it has the values of the replica identity alone
    bint is_key


cdef inline bint open_tuple(
    Fields* fields, const Plan* plan, bint is_key, const uint8_t* at, const uint8_t* end, Row* row
) noexcept nogil:
    if end - at < 2:
        fail(row, b"a tuple that ends inside its number of columns")
        return False
    if be16(at) != plan.column_count:
        fail(row, b"a tuple of another number of columns than its relation")
        return False
    fields.at = at + 2
    fields.end = end
    fields.passed = 0
    fields.is_key = is_key
    return True


cdef inline bint next_field(Fields* fields, Row* row) noexcept nogil:
    """The next column's field; False: it is not there as a whole."""
    cdef size_t there = fields.end - fields.at
    if there < 1:
        fail(row, b"a tuple that ends inside its columns")
        return False
    fields.kind = fields.at[0]
    fields.at += 1
    fields.passed += 1
    if fields.kind == TEXT_FIELD:
        if there < 5 or there - 5 < be32(fields.at):
            fail(row, b"a tuple that ends inside a value")
            return False
        fields.size = be32(fields.at)
        fields.value = fields.at + 4
        fields.at = fields.value + fields.size
        return True
    if fields.kind != NULL_FIELD and fields.kind != UNCHANGED_FIELD:
        fail(row, b"a value of an unknown kind")
        return False
    return True


cdef inline bint skip_tuple(const Plan* plan, const uint8_t** at, const uint8_t* end, Row* row) noexcept nogil:
    """Move behind a tuple."""
    cdef Fields fields
    cdef int32_t _i
    if not open_tuple(&fields, plan, False, at[0], end, row):
        return False
    for _i in range(plan.column_count):
        if not next_field(&fields, row):
            return False
    at[0] = fields.at
    return True


cdef inline const Fields* known_field(
    const Value* value, int32_t number, const Fields* fields, Fields* old, Row* row
) noexcept nogil:
    """The field that has the column's value: the tuple's own, the old tuple's, or one that is UNCHANGED_FIELD: none.

    NULL: the old tuple can't be read. Columns must be asked for in order; `old` is NULL where there is none.
    """
    if fields.kind != UNCHANGED_FIELD or old == NULL or (old.is_key and not value.identity):
        return fields
    while old.passed <= number:
        if not next_field(old, row):
            return NULL
    return old


cdef inline const uint8_t* append_tuple(
    Plan* plan, int8_t change_type, int64_t gsn, bint is_key, const uint8_t* at, const uint8_t* end, Fields* old,
    Row* row, int32_t* failed
) noexcept nogil:
    """Append a tuple as one row; returns where it ends. NULL: it can't be read, and the batch is as before.

    `old`: the opened old tuple of an update, before its first field; NULL: none.
    """
    cdef Batch* batch = &plan.rows.batch
    cdef Column* column = batch.columns + HEAD_COLUMNS
    cdef const Value* value
    cdef const Fields* source
    cdef Fields fields
    cdef size_t text_bytes = batch.text_bytes
    cdef uint8_t[MOST_ABSENT_BYTES] absent
    cdef bint has_absent = False, is_absent
    cdef int32_t i, sent = 0
    cdef int outcome = 0
    failed[0] = -1
    if not open_tuple(&fields, plan, is_key, at, end, row) or not start_row(plan.rows, row):
        return NULL
    for i in range(plan.column_count):
        value = plan.values + i
        if not next_field(&fields, row):
            outcome = -1
            break
        if not value.sent:
            continue
        if fields.kind == TEXT_FIELD and (value.identity or not is_key):
            outcome = decode_value(value, column, row, fields.value, fields.size)
        else:
            outcome = 1
            is_absent = is_key and not value.identity
            if fields.kind == UNCHANGED_FIELD and not is_absent:
                source = known_field(value, i, &fields, old, row)
                if source == NULL:
                    outcome = -1
                elif source.kind == TEXT_FIELD:
                    outcome = decode_value(value, column, row, source.value, source.size)
                is_absent = outcome == 1 and source.kind == UNCHANGED_FIELD
            if is_absent:
                if not has_absent:
                    memset(absent, 0, sizeof(absent))
                has_absent = True
                absent[sent >> 3] |= <uint8_t> (1 << (sent & 7))
        if outcome > 0 and not append_null(column, row.number, batch.capacity_rows):
            outcome = fail(row, b"out of memory")
        if outcome < 0:
            break
        column += 1
        sent += 1
    if outcome >= 0 and has_absent and not note_absent(batch, row, absent, (sent + 7) // 8):
        outcome = fail(row, b"out of memory")
        i = -1
    if outcome < 0:
        failed[0] = i
        truncate_batch(batch, row.number, row.number + 1, text_bytes)
        return NULL
    return fields.at if finish_row(batch, change_type, gsn, row, text_bytes) else NULL
