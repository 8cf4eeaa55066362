"""The hash of a row, the same over a source's columns and over the lake's: Spark SQL's `xxhash64` of canonical columns.

Comes in: an Arrow struct array by its PyCapsule protocol, of the types of `menura.types`. Goes out: two hashes of each
row, or their sums modulo 2^64 for each leaf, which is any set of rows; and what tells rows apart: the hash of a key's
columns, their values as texts. Sums don't depend on the order of rows, and
they can be added. Nothing is durable.

A row's hashes are what Spark SQL says of the columns in the lake's types (`menura.types.lake_format`)::

    xxhash64(WORDS, COLUMNS)        xxhash64(7L, WORDS, COLUMNS)

WORDS say which columns have a value, since `xxhash64` passes over NULL: a long for each 64 columns, whose bit i is 1
where column i of them is not NULL. A word that is 0, as are all words behind it, is NULL: columns that are NULL in all
rows, added at the end, change no hash. Two hashes make 128 bits: different rows of equal sums are no concern.

=================  =====================================
integers, L too    a long; uint64 as decimal(20,0)
d:p,s              to 18 digits its unscaled long, beyond its bytes
f, g               the bits, of one NaN, and -0.0 as 0.0
u, z               the bytes
tdD, b             an int
ts                 a long of microseconds
=================  =====================================

The arrays are those of this process (the agent's core, pyarrow): their lengths are not hostile.
"""

from datetime import date, datetime, timedelta
from decimal import Context, Decimal

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset
from menura.arrow_c_data cimport ArrowArray, ArrowSchema

cdef extern from "xxh64.h" nogil:
    uint64_t menura_hash_int(uint32_t value, uint64_t seed)
    uint64_t menura_hash_long(uint64_t value, uint64_t seed)
    uint64_t menura_hash_bytes(const uint8_t* at, uint64_t size, uint64_t seed)
    uint64_t menura_hash_decimal(const uint8_t* little, uint64_t seed)

#: of Spark SQL's `xxhash64`, and the literal that leads the second hash
FIRST_SEED = 42
SECOND_LITERAL = 7

cdef enum:
    # rows that are hashed column by column, so that their hashes stay near
    BLOCK_ROWS = 512
    MOST_KEY_COLUMNS = 64
    LONG_DIGITS = 18

cdef enum Form:
    FORM_INT8
    FORM_UINT8
    FORM_INT16
    FORM_UINT16
    FORM_INT32
    FORM_UINT32
    FORM_INT64
    FORM_UINT64
    FORM_FLOAT
    FORM_DOUBLE
    FORM_BYTES
    FORM_DATE
    FORM_BOOL
    FORM_SHORT_DECIMAL
    FORM_LONG_DECIMAL

DIGITS = Context(prec=76)
_DAY = date(1970, 1, 1)
_MOMENT = datetime(1970, 1, 1)

_FORMS = {
    "c": FORM_INT8, "C": FORM_UINT8, "s": FORM_INT16, "S": FORM_UINT16, "i": FORM_INT32, "I": FORM_UINT32,
    "l": FORM_INT64, "L": FORM_UINT64, "f": FORM_FLOAT, "g": FORM_DOUBLE, "u": FORM_BYTES, "z": FORM_BYTES,
    "tdD": FORM_DATE, "tsu:": FORM_INT64, "tsu:UTC": FORM_INT64, "b": FORM_BOOL,
}

cdef struct Hashed:
    # one column
    Form form
    const uint8_t* validity
    const uint8_t* values
    const uint8_t* text
    int64_t offset


cdef int form_of(str format_) except -1:
    if format_ in _FORMS:
        return _FORMS[format_]
    digits = format_[2:].split(",")
    if not format_.startswith("d:") or len(digits) != 2:
        raise ValueError(f"no row hash of a column of the Arrow format {format_!r}")
    return FORM_SHORT_DECIMAL if int(digits[0]) <= LONG_DIGITS else FORM_LONG_DECIMAL


def date_text(days):
    """A date, or days since 1970 where no calendar of Python's has it."""
    try:
        return (_DAY + timedelta(days=days)).isoformat()
    except OverflowError:
        return f"{days} days"


def moment_text(microseconds):
    try:
        return (_MOMENT + timedelta(microseconds=microseconds)).isoformat(" ")
    except OverflowError:
        return f"{microseconds} us"


@cython.final
@cython.no_gc_clear  # the capsules must outlive the use of what they hold
cdef class HashedRows:
    """Columns whose rows are to be hashed. ValueError: a column of another type."""

    cdef object _schema, _array
    cdef list _described
    cdef Hashed* _columns
    cdef int _count
    cdef readonly int64_t length

    def __cinit__(self, columns):
        self._schema, self._array = columns.__arrow_c_array__()
        self._described = []
        cdef ArrowSchema* schema = <ArrowSchema*> PyCapsule_GetPointer(self._schema, b"arrow_schema")
        cdef ArrowArray* array = <ArrowArray*> PyCapsule_GetPointer(self._array, b"arrow_array")
        cdef ArrowArray* child
        cdef int i
        if schema.format[0] != b"+" or schema.format[1] != b"s" or schema.n_children != array.n_children:
            raise ValueError("row hashes are of a struct array")
        self._count = <int> schema.n_children
        self._columns = <Hashed*> calloc(self._count + 1, sizeof(Hashed))
        if self._columns == NULL:
            raise MemoryError
        for i in range(self._count):
            child = array.children[i]
            self._columns[i].form = <Form> form_of(schema.children[i].format.decode())
            self._columns[i].validity = <const uint8_t*> (child.buffers[0] if child.null_count else NULL)
            self._columns[i].values = <const uint8_t*> child.buffers[1]
            self._columns[i].text = <const uint8_t*> (child.buffers[2] if child.n_buffers > 2 else NULL)
            self._columns[i].offset = child.offset + array.offset
            self._described.append((schema.children[i].name.decode(), schema.children[i].format.decode()))
        self.length = array.length

    @property
    def columns(self):
        """Names and Arrow C format strings."""
        return tuple(self._described)

    def key_values(self, columns, int64_t row):
        """The values of these columns (by place) in a row, as in `menura.key_values`. ValueError: one has none."""
        if not 0 <= row < self.length:
            raise ValueError("a row that is not there")
        return tuple([self._key_value(column, row) for column in columns])

    def last_equal(self, columns, int64_t row):
        """The last row from this one on that is equal to it in these columns (by place), without one between."""
        cdef int places[MOST_KEY_COLUMNS]
        cdef int count = self._places(columns, places)
        if not 0 <= row < self.length:
            raise ValueError("a row that is not there")
        with nogil:
            while row + 1 < self.length and compared(self._columns, places, count, row + 1) == 0:
                row += 1
        return row

    def ascends(self, columns, bint is_whole=True):
        """Whether each row has a greater key, of these columns, than the one before; where they are not the whole key:
        or an equal one. None has a NULL there."""
        cdef int places[MOST_KEY_COLUMNS]
        cdef int count = self._places(columns, places)
        cdef int least = 1 if is_whole else 0
        cdef bint is_greater = True
        cdef int64_t row
        with nogil:
            for row in range(1, self.length):
                if compared(self._columns, places, count, row) < least:
                    is_greater = False
                    break
        return is_greater

    cdef int _places(self, columns, int* places) except -1:
        cdef int count = len(columns)
        if not 0 < count <= MOST_KEY_COLUMNS:
            raise ValueError(f"a key of {count} columns")
        for i, column in enumerate(columns):
            if self.length:
                self._key_value(column, 0)
            places[i] = column
        return count

    cdef object _key_value(self, int column, int64_t row):
        if not 0 <= column < self._count:
            raise ValueError(f"column {column} of {self._count}")
        cdef Hashed* of = &self._columns[column]
        cdef int64_t at = of.offset + row
        cdef const int32_t* offsets = <const int32_t*> of.values
        name = self._described[column][0]
        if of.form == FORM_FLOAT or of.form == FORM_DOUBLE or of.form == FORM_BOOL:
            raise ValueError(f"column {name} is of a type without an order of ranges")
        if not is_valid(of, row):
            raise ValueError(f"a value of column {name} can't be represented")
        if of.form == FORM_BYTES:
            return (<const char*> of.text)[offsets[at]:offsets[at + 1]].hex()
        if of.form == FORM_DATE:
            return (<const int32_t*> of.values)[at]
        if of.form == FORM_SHORT_DECIMAL or of.form == FORM_LONG_DECIMAL:
            return int.from_bytes((<const char*> of.values)[at * 16:at * 16 + 16], "little", signed=True)
        if of.form == FORM_UINT64:
            return (<const uint64_t*> of.values)[at]
        return <int64_t> long_of(of.form, of.values, at)

    def __dealloc__(self):
        free(self._columns)

    def hashes(self):
        """Both hashes of each row, as two buffers of int64."""
        first, second = bytearray(self.length * 8), bytearray(self.length * 8)
        cdef uint8_t* firsts = first
        cdef uint8_t* seconds = second
        cdef int64_t at = 0
        cdef int64_t rows
        cdef uint64_t hashed[2][BLOCK_ROWS]
        cdef uint64_t words[BLOCK_ROWS]
        with nogil:
            while at < self.length:
                rows = min(<int64_t> BLOCK_ROWS, self.length - at)
                self._hash(at, rows, hashed, words)
                memcpy(firsts + at * 8, hashed[0], rows * 8)
                memcpy(seconds + at * 8, hashed[1], rows * 8)
                at += rows
        return first, second

    def key_hashes(self, columns):
        """Of each row the hash of these columns (by place), which passes over NULL, as a buffer of int64."""
        found = bytearray(self.length * 8)
        cdef uint8_t* hashes = found
        cdef int64_t at = 0
        cdef int64_t rows, i
        cdef int place
        cdef uint64_t hashed[2][BLOCK_ROWS]
        places_of_all = list(columns)
        for column in places_of_all:
            if not 0 <= column < self._count:
                raise ValueError(f"column {column} of {self._count}")
        while at < self.length:
            rows = min(<int64_t> BLOCK_ROWS, self.length - at)
            for i in range(rows):
                hashed[0][i] = FIRST
            for column in places_of_all:
                place = column
                with nogil:
                    hash_column(&self._columns[place], at, rows, hashed[0], hashed[1])
            memcpy(hashes + at * 8, hashed[0], rows * 8)
            at += rows
        return found

    def key_buckets(self, columns, int bits):
        """Of each row the lowest `bits` (0 to 30) of that hash, as a buffer of int32, which `sums_of` takes."""
        if not 0 <= bits <= 30:
            raise ValueError(f"buckets of {bits} bits")
        hashes = self.key_hashes(columns)
        found = bytearray(self.length * 4)
        cdef const uint8_t* of_rows = hashes
        cdef uint8_t* into = found
        cdef uint32_t mask = (<uint32_t> 1 << bits) - 1
        cdef uint32_t bucket
        cdef uint64_t hash_
        cdef int64_t row
        for row in range(self.length):
            memcpy(&hash_, of_rows + row * 8, 8)
            bucket = <uint32_t> hash_ & mask
            memcpy(into + row * 4, &bucket, 4)
        return found

    def column_hashes(self, int64_t row):
        """The lowest 32 bits of the hash of each column's value in a row; 0 for NULL."""
        cdef uint64_t hashed[2][1]
        cdef int at
        if not 0 <= row < self.length:
            raise ValueError("a row that is not there")
        found = []
        for at in range(self._count):
            hashed[0][0] = FIRST
            if is_valid(&self._columns[at], row):
                hash_column(&self._columns[at], row, 1, hashed[0], hashed[1])
                found.append(<uint32_t> hashed[0][0])
            else:
                found.append(0)
        return found

    def texts(self, columns, int64_t row):
        """The values of these columns (by place) in a row as texts, the same for the same values; None for NULL."""
        if not 0 <= row < self.length:
            raise ValueError("a row that is not there")
        return tuple([self._text(column, row) for column in columns])

    cdef object _text(self, int column, int64_t row):
        if not 0 <= column < self._count:
            raise ValueError(f"column {column} of {self._count}")
        cdef Hashed* of = &self._columns[column]
        cdef int64_t at = of.offset + row
        cdef const int32_t* offsets = <const int32_t*> of.values
        format_ = self._described[column][1]
        if not is_valid(of, row):
            return None
        if of.form == FORM_BYTES:
            value = (<const char*> of.text)[offsets[at]:offsets[at + 1]]
            return value.decode() if format_ == "u" else value.hex()
        if of.form == FORM_UINT64:
            return str((<const uint64_t*> of.values)[at])
        if of.form == FORM_FLOAT:
            return repr((<const float*> of.values)[at])
        if of.form == FORM_DOUBLE:
            return repr((<const double*> of.values)[at])
        if of.form == FORM_BOOL:
            return "true" if of.values[at >> 3] >> (at & 7) & 1 else "false"
        if of.form == FORM_DATE:
            return date_text((<const int32_t*> of.values)[at])
        if of.form == FORM_SHORT_DECIMAL or of.form == FORM_LONG_DECIMAL:
            unscaled = int.from_bytes((<const char*> of.values)[at * 16:at * 16 + 16], "little", signed=True)
            return str(Decimal(unscaled).scaleb(-int(format_[2:].split(",")[1]), DIGITS))
        number = <int64_t> long_of(of.form, of.values, at)
        return moment_text(number) if format_.startswith("ts") else str(number)

    def sums(self, int64_t begin=0, int64_t end=-1):
        """How many rows there are from `begin` on, before `end`, and the sums of both hashes as int64."""
        cdef uint64_t hashed[2][BLOCK_ROWS]
        cdef uint64_t words[BLOCK_ROWS]
        cdef uint64_t first = 0, second = 0
        cdef int64_t at = begin
        cdef int64_t rows, i
        end = self.length if end < 0 else end
        if not 0 <= begin <= end <= self.length:
            raise ValueError("rows that are not there")
        with nogil:
            while at < end:
                rows = min(<int64_t> BLOCK_ROWS, end - at)
                self._hash(at, rows, hashed, words)
                for i in range(rows):
                    first += hashed[0][i]
                    second += hashed[1][i]
                at += rows
        return end - begin, <int64_t> first, <int64_t> second

    def sums_of(self, leaves not None, int64_t count):
        """The same of each of `count` leaves; `leaves`: a buffer of int32, the leaf of each row."""
        cdef uint64_t hashed[2][BLOCK_ROWS]
        cdef uint64_t words[BLOCK_ROWS]
        cdef Py_buffer numbers
        cdef const int32_t* leaf_of
        cdef int64_t at = 0
        cdef int64_t rows, i
        cdef int32_t leaf = 0
        cdef bint is_known = True
        cdef uint64_t* sums
        PyObject_GetBuffer(leaves, &numbers, PyBUF_SIMPLE)
        sums = <uint64_t*> calloc(count * 3 + 1, 8)
        try:
            if sums == NULL:
                raise MemoryError
            if numbers.len != self.length * 4:
                raise ValueError("a leaf for each row is asked for")
            leaf_of = <const int32_t*> numbers.buf
            with nogil:
                while at < self.length and is_known:
                    rows = min(<int64_t> BLOCK_ROWS, self.length - at)
                    self._hash(at, rows, hashed, words)
                    for i in range(rows):
                        leaf = leaf_of[at + i]
                        if not 0 <= leaf < count:
                            is_known = False
                            break
                        sums[leaf * 3] += 1
                        sums[leaf * 3 + 1] += hashed[0][i]
                        sums[leaf * 3 + 2] += hashed[1][i]
                    at += rows
            if not is_known:
                raise ValueError(f"leaf {leaf} of {count}")
            return [(<int64_t> sums[i * 3], <int64_t> sums[i * 3 + 1], <int64_t> sums[i * 3 + 2])
                    for i in range(count)]
        finally:
            free(sums)
            PyBuffer_Release(&numbers)

    cdef void _hash(self, int64_t begin, int64_t rows, uint64_t hashed[2][BLOCK_ROWS], uint64_t* words) noexcept nogil:
        """The hashes of no more than a block's rows."""
        cdef uint64_t second = menura_hash_long(SECOND_WORD, FIRST)
        cdef int64_t i
        cdef int at
        for i in range(rows):
            hashed[0][i] = FIRST
            hashed[1][i] = second
        at = 0
        while at < self._count:
            self._hash_words(at, begin, rows, hashed, words)
            at += 64
        for at in range(self._count):
            hash_column(&self._columns[at], begin, rows, hashed[0], hashed[1])

    cdef void _hash_words(
        self, int first, int64_t begin, int64_t rows, uint64_t hashed[2][BLOCK_ROWS], uint64_t* words
    ) noexcept nogil:
        """Which of 64 columns have values; nothing of rows where none has, nor any behind them."""
        cdef int64_t i
        cdef int at
        cdef int end = min(first + 64, self._count)
        memset(words, 0, rows * 8)
        for at in range(first, end):
            note_present(&self._columns[at], begin, rows, <uint64_t> 1 << (at - first), words)
        for i in range(rows):
            if words[i] or self._has_value(begin + i, end):
                hashed[0][i] = menura_hash_long(words[i], hashed[0][i])
                hashed[1][i] = menura_hash_long(words[i], hashed[1][i])

    cdef bint _has_value(self, int64_t row, int first) noexcept nogil:
        cdef int at
        for at in range(first, self._count):
            if is_valid(&self._columns[at], row):
                return True
        return False


cdef enum:
    FIRST = 42
    SECOND_WORD = 7


cdef inline bint is_valid(const Hashed* column, int64_t row) noexcept nogil:
    cdef int64_t at = column.offset + row
    return column.validity == NULL or column.validity[at >> 3] >> (at & 7) & 1


cdef inline int sign_of(bint is_greater) noexcept nogil:
    return 1 if is_greater else -1


cdef int compared(const Hashed* columns, const int* places, int count, int64_t row) noexcept nogil:
    """1: the row's key is greater than that of the row before; 0: equal; -1: less, or one has a NULL."""
    cdef const Hashed* column
    cdef const int32_t* offsets
    cdef uint64_t now, before
    cdef int64_t at, size, size_before
    cdef int i, found
    for i in range(count):
        column = &columns[places[i]]
        at = column.offset + row
        if not is_valid(column, row) or not is_valid(column, row - 1):
            return -1
        if column.form == FORM_BYTES:
            offsets = <const int32_t*> column.values
            size, size_before = offsets[at + 1] - offsets[at], offsets[at] - offsets[at - 1]
            found = memcmp(column.text + offsets[at], column.text + offsets[at - 1], min(size, size_before))
            if found != 0 or size != size_before:
                return sign_of(found > 0 or (found == 0 and size > size_before))
        elif column.form == FORM_UINT64:
            now, before = (<const uint64_t*> column.values)[at], (<const uint64_t*> column.values)[at - 1]
            if now != before:
                return sign_of(now > before)
        elif column.form == FORM_DATE:
            if (<const int32_t*> column.values)[at] != (<const int32_t*> column.values)[at - 1]:
                return sign_of((<const int32_t*> column.values)[at] > (<const int32_t*> column.values)[at - 1])
        elif column.form == FORM_SHORT_DECIMAL or column.form == FORM_LONG_DECIMAL:
            # the upper halves are signed, the lower ones are not
            now, before = decimal_half(column.values, at, 1), decimal_half(column.values, at - 1, 1)
            if now != before:
                return sign_of(<int64_t> now > <int64_t> before)
            now, before = decimal_half(column.values, at, 0), decimal_half(column.values, at - 1, 0)
            if now != before:
                return sign_of(now > before)
        else:
            now, before = long_of(column.form, column.values, at), long_of(column.form, column.values, at - 1)
            if now != before:
                return sign_of(<int64_t> now > <int64_t> before)
    return 0


cdef inline uint64_t decimal_half(const uint8_t* values, int64_t at, int which) noexcept nogil:
    cdef uint64_t half
    memcpy(&half, values + at * 16 + which * 8, 8)
    return half


cdef void note_present(const Hashed* column, int64_t begin, int64_t rows, uint64_t bit, uint64_t* words) noexcept nogil:
    cdef int64_t i
    if column.validity == NULL:
        for i in range(rows):
            words[i] |= bit
        return
    for i in range(rows):
        if is_valid(column, begin + i):
            words[i] |= bit


cdef inline uint32_t float_bits(const uint8_t* values, int64_t at) noexcept nogil:
    cdef float value
    cdef uint32_t bits
    memcpy(&value, values + at * 4, 4)
    if value == 0:
        return 0
    if value != value:
        return 0x7FC00000
    memcpy(&bits, &value, 4)
    return bits


cdef inline uint64_t double_bits(const uint8_t* values, int64_t at) noexcept nogil:
    cdef double value
    cdef uint64_t bits
    memcpy(&value, values + at * 8, 8)
    if value == 0:
        return 0
    if value != value:
        return <uint64_t> 0x7FF8 << 48
    memcpy(&bits, &value, 8)
    return bits


cdef void hash_column(
    const Hashed* column, int64_t begin, int64_t rows, uint64_t* first, uint64_t* second
) noexcept nogil:
    """Chain the column's values into both hashes of these rows."""
    cdef const uint8_t* values = column.values
    cdef const int32_t* offsets = <const int32_t*> column.values
    cdef const uint8_t* text
    cdef uint8_t unscaled[16]
    cdef int64_t i, at
    cdef uint64_t size
    cdef uint64_t word = 0
    cdef uint32_t small
    for i in range(rows):
        if column.validity != NULL and not is_valid(column, begin + i):
            continue
        at = column.offset + begin + i
        if column.form == FORM_BYTES:
            size = <uint64_t> (offsets[at + 1] - offsets[at])
            text = column.text + offsets[at]
            first[i] = menura_hash_bytes(text, size, first[i])
            second[i] = menura_hash_bytes(text, size, second[i])
            continue
        if column.form == FORM_LONG_DECIMAL or column.form == FORM_UINT64:
            if column.form == FORM_UINT64:
                memset(unscaled, 0, 16)
                memcpy(unscaled, values + at * 8, 8)
            else:
                memcpy(unscaled, values + at * 16, 16)
            first[i] = menura_hash_decimal(unscaled, first[i])
            second[i] = menura_hash_decimal(unscaled, second[i])
            continue
        if column.form == FORM_FLOAT or column.form == FORM_DATE or column.form == FORM_BOOL:
            if column.form == FORM_FLOAT:
                small = float_bits(values, at)
            elif column.form == FORM_DATE:
                small = (<const uint32_t*> values)[at]
            else:
                small = values[at >> 3] >> (at & 7) & 1
            first[i] = menura_hash_int(small, first[i])
            second[i] = menura_hash_int(small, second[i])
            continue
        word = long_of(column.form, values, at)
        first[i] = menura_hash_long(word, first[i])
        second[i] = menura_hash_long(word, second[i])


cdef inline uint64_t long_of(Form form, const uint8_t* values, int64_t at) noexcept nogil:
    if form == FORM_INT64:
        return (<const uint64_t*> values)[at]
    if form == FORM_INT32:
        return <uint64_t> <int64_t> (<const int32_t*> values)[at]
    if form == FORM_UINT32:
        return (<const uint32_t*> values)[at]
    if form == FORM_INT16:
        return <uint64_t> <int64_t> (<const int16_t*> values)[at]
    if form == FORM_UINT16:
        return (<const uint16_t*> values)[at]
    if form == FORM_INT8:
        return <uint64_t> <int64_t> (<const int8_t*> values)[at]
    if form == FORM_UINT8:
        return values[at]
    if form == FORM_DOUBLE:
        return double_bits(values, at)
    return (<const uint64_t*> values)[at * 2]  # the low half of a decimal that a long holds
