"""The rows of one table in one form: what its columns are called, and the batch that they are collected in.

A source's compiled form of a table, which knows how values are read, is a subclass.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from agent.columnar.arrow cimport drop_spare, take_spare
from agent.columnar.batch cimport FIRST_ROWS, Batch, begin_batch, release_batch
from agent.columnar.column cimport BITS
from agent.columnar.values cimport Text

from menura.change_batch import (
    ABSENT, METADATA_DEFAULT, METADATA_KEY, METADATA_ROW_END, METADATA_SOURCE_TYPE, METADATA_WHOLE_ROWS,
    UNREPRESENTABLE, landed_column
)

from agent.columnar.arrow import field

_WIDTHS = {
    "c": 1, "C": 1, "s": 2, "S": 2, "i": 4, "I": 4, "l": 8, "L": 8, "f": 4, "g": 8, "tdD": 4, "u": 0, "z": 0, "b": BITS
}
_DECIMAL_WIDTH = 16
_TIMESTAMP_WIDTH = 8


cdef class TableRows:
    """The batch of one table's rows in one form."""

    def __dealloc__(self):
        release_batch(&self.rows.batch)
        drop_spare(&self.rows.spare)
        free(self.rows.widths)

    @property
    def active(self):
        """False: rows are stepped over, e.g. while the table is ahead of the stream."""
        return self.rows.active

    @active.setter
    def active(self, bint active):
        self.rows.active = active

    @property
    def last_gsn(self):
        """Number of the last row; 0 before the first."""
        return self.rows.batch.last_gsn if self.rows.batch.rows else self.rows.taken_gsn

    cdef int begin(self, head, sent, str whole_rows="") except -1:
        """The batch's columns: `head` (names and Arrow formats), `sent` (names, formats and metadata), and
        _unrepresentable; `whole_rows` is `METADATA_WHOLE_ROWS`, where the source has such a text."""
        cdef int32_t i
        formats = [format_ for _, format_ in head]
        formats += [format_ for _, format_, _ in sent]
        formats.append("u")
        self.kept = []
        self.rows.owner = <void*> self
        self.rows.active = True
        self.rows.expected_rows = FIRST_ROWS
        self.rows.batch_columns = <int32_t> len(formats)
        self.rows.widths = <int32_t*> calloc(self.rows.batch_columns, sizeof(int32_t))
        if self.rows.widths == NULL:
            raise MemoryError
        for i in range(self.rows.batch_columns):
            self.rows.widths[i] = _width(formats[i])
        self.fields = [field(name, format_, False) for name, format_ in head]
        self.fields += [field(name, format_, True, facts) for name, format_, facts in sent]
        self.fields.append(field(UNREPRESENTABLE, "u", True))
        facts = {METADATA_WHOLE_ROWS: whole_rows} if whole_rows else None
        self.fields_with_absent = [*self.fields, field(ABSENT, "z", True, facts)]
        if not begin_batch(&self.rows.batch, self.rows.widths, self.rows.batch_columns):
            raise MemoryError
        return 0

    cdef Text keep_text(self, str text):
        """In UTF-8, for as long as this lives."""
        cdef Text kept
        encoded = text.encode()
        self.kept.append(encoded)
        kept.text = PyBytes_AS_STRING(encoded)
        kept.size = len(encoded)
        return kept

    cdef int take_batch(self, Batch* taken, size_t most_rows) except -1:
        """Move the rows to `taken` and begin a new batch."""
        taken[0] = self.rows.batch
        if taken.rows:
            self.rows.taken_gsn = taken.last_gsn
        memset(&self.rows.batch, 0, sizeof(Batch))
        self.rows.expected_rows = min(max(taken.rows, <size_t> FIRST_ROWS), most_rows)
        if not take_spare(&self.rows.batch, &self.rows.spare):
            if not begin_batch(&self.rows.batch, self.rows.widths, self.rows.batch_columns):
                raise MemoryError
        return 0


def described(column, str format_, bint row_end=False):
    """Name, Arrow format and metadata of a table's column on the way; `column` is any source's."""
    facts = {METADATA_SOURCE_TYPE: str(column.type)}
    if column.key:
        facts[METADATA_KEY] = str(column.key)
    if row_end:
        facts[METADATA_ROW_END] = "1"
    if column.default:
        facts[METADATA_DEFAULT] = column.default
    return landed_column(column.name), format_, facts


def _width(format_):
    if format_.startswith("d:"):
        return _DECIMAL_WIDTH
    return _TIMESTAMP_WIDTH if format_.startswith("ts") else _WIDTHS[format_]
