"""Columns as an Arrow IPC stream, written once from where they were decoded to.

Comes in: `ArrowColumns`. Goes out: the stream's bytes: the schema, one record batch, the end. Values and offsets of
more than one byte are split, and texts of one length where some of them are much smaller so when they are compressed;
the schema says which (menura.change_batch).

A message (arrow.apache.org/docs/format/Columnar.html)::

    FFFFFFFF   4 size of the metadata   metadata   body: the columns' buffers, each padded to 8 bytes

The metadata are a flatbuffer (github.com/apache/arrow, format/Message.fbs). Those of a record batch have one shape but
for the two lists at their end, so they are written here; a schema's are nanoarrow's.
"""

import io
from functools import lru_cache
from struct import Struct

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from agent.columnar.arrow cimport ArrowColumns
from agent.columnar.column cimport BITS, Column, values_bytes
from agent.columnar.compression import compress

from menura.change_batch import LAYOUT_SPLIT, METADATA_LAYOUT, METADATA_SPLIT_TEXTS

cdef extern from "byte_stream_split.h" nogil:
    void menura_split(const uint8_t* values, uint8_t* split, size_t count, int width)
    void menura_split_texts(const uint8_t* values, uint8_t* split, size_t count, size_t width)

# A flatbuffer's table begins with its distance from its vtable: the sizes of both, and where in the table each field
# stands. All other offsets count from their own place.
HEAD = Struct(
    "<IIi"  # FFFFFFFF, size of the metadata; the root, from here on
    "6HiiqhBx"  # vtable and table of Message: version, header_type, header, bodyLength
    "5H2xiiqii"  # of RecordBatch: length, nodes, buffers; behind it the number of nodes
)
NODE = Struct("<qq")  # FieldNode: length, null_count
BUFFER = Struct("<qq")  # Buffer: offset, length
BUFFER_COUNT = Struct("<4xi")
METADATA_VERSION_5 = 4
RECORD_BATCH = 3
CONTINUATION = 0xFFFFFFFF
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
cdef enum:
    END_OF_STREAM_BYTES = 8
    # Texts are tried on one row of so many, in batches that have so many rows; longer ones gain little.
    SAMPLED_OF = 32
    MOST_SAMPLED = 1024
    LEAST_ROWS = 4096
    LONGEST_SPLIT = 64

# Schemas of tables that are written to in turn; one of 4,096 columns takes some hundred KiB.
MOST_SCHEMAS = 64


cdef inline int64_t padded(int64_t size) noexcept nogil:
    return (size + 7) & ~7


def encode(ArrowColumns columns not None, compression):
    """The stream's bytes, laid out for a `Compression`."""
    cdef list nodes = [], buffers = []
    cdef int64_t sizes[3]
    cdef int64_t body = 0
    cdef int64_t rows = columns.length
    cdef int i, part, count = len(columns.fields)
    cdef bytes head, stream
    cdef uint8_t* at
    cdef bytearray widths = bytearray(count)
    cdef uint8_t* width = widths
    for i in range(count):
        width[i] = split_width(columns.columns + i, rows, compression)
        buffer_sizes(columns.columns + i, rows, sizes)
        nodes.append(NODE.pack(rows, columns.columns[i].nulls))
        for part in range(2 if columns.columns[i].width else 3):
            buffers.append(BUFFER.pack(body, sizes[part]))
            body += padded(sizes[part])
    split_texts = ",".join([str(i) for i in range(count) if width[i]])
    head = schema_message(tuple(columns.fields), split_texts) + record_batch_head(rows, body, nodes, buffers)
    stream = PyBytes_FromStringAndSize(NULL, len(head) + body + END_OF_STREAM_BYTES)
    at = <uint8_t*> PyBytes_AS_STRING(stream)
    memcpy(at, PyBytes_AS_STRING(head), len(head))
    at += len(head)
    with nogil:
        for i in range(count):
            at = write_column(columns.columns + i, rows, width[i], at)
    memcpy(at, PyBytes_AS_STRING(END_OF_STREAM), END_OF_STREAM_BYTES)
    return stream


@lru_cache(maxsize=MOST_SCHEMAS)
def schema_message(tuple fields, str split_texts):
    """The message of columns that are described so (agent.columnar.arrow.field)."""
    from nanoarrow import c_schema
    from nanoarrow.c_array_stream import CArrayStream
    from nanoarrow.ipc import StreamWriter

    cdef ArrowColumns described = ArrowColumns.__new__(ArrowColumns)
    described.fields = list(fields)
    metadata = {METADATA_LAYOUT: LAYOUT_SPLIT}
    if split_texts:
        metadata[METADATA_SPLIT_TEXTS] = split_texts
    schema = c_schema(described).modify(metadata=metadata)
    stream = io.BytesIO()
    writer = StreamWriter.from_writable(stream)
    writer.write_stream(CArrayStream.from_c_arrays([], schema))
    writer.release()  # not closed: that would write the stream's end
    return stream.getvalue()


cdef bytes record_batch_head(int64_t rows, int64_t body, list nodes, list buffers):
    """The record batch's message up to its body."""
    cdef int64_t nodes_bytes = NODE.size * len(nodes)
    metadata_bytes = HEAD.size - 8 + nodes_bytes + BUFFER_COUNT.size + BUFFER.size * len(buffers)
    head = HEAD.pack(
        CONTINUATION, metadata_bytes, 16,
        12, 20, 16, 18, 4, 8, 12, 28, body, METADATA_VERSION_5, RECORD_BATCH,
        10, 20, 8, 4, 16, 12, 16, rows, 12 + nodes_bytes, len(nodes)
    )
    return b"".join([head, *nodes, BUFFER_COUNT.pack(len(buffers)), *buffers])


cdef void buffer_sizes(const Column* column, int64_t rows, int64_t* sizes) noexcept nogil:
    """Bytes of validity, values and text."""
    sizes[0] = (rows + 7) // 8 if column.nulls else 0
    sizes[1] = values_bytes(column.width, rows) if column.width else (rows + 1) * 4
    sizes[2] = column.text.size


cdef uint8_t split_width(const Column* column, int64_t rows, compression) except? 255:
    """The length of a column's texts, if they are to be split; else 0."""
    cdef const int32_t* offsets = <const int32_t*> column.values.data
    cdef int64_t i, sampled, width
    if column.width or column.nulls or rows < LEAST_ROWS or column.text.size % rows:
        return 0
    width = column.text.size // rows
    if not 2 <= width <= LONGEST_SPLIT:
        return 0
    for i in range(rows):
        if offsets[i] != i * width:
            return 0
    sampled = min(rows // SAMPLED_OF, MOST_SAMPLED)
    plain = PyBytes_FromStringAndSize(<char*> column.text.data + (rows - sampled) // 2 * width, sampled * width)
    split = PyBytes_FromStringAndSize(NULL, sampled * width)
    menura_split_texts(<uint8_t*> PyBytes_AS_STRING(plain), <uint8_t*> PyBytes_AS_STRING(split), sampled, width)
    if 4 * len(compress(split, compression)) <= 3 * len(compress(plain, compression)):
        return <uint8_t> width
    return 0


cdef uint8_t* write_column(const Column* column, int64_t rows, uint8_t text_width, uint8_t* at) noexcept nogil:
    """Its buffers; returns where they end. `text_width`: of texts that are split, else 0."""
    cdef int64_t sizes[3]
    buffer_sizes(column, rows, sizes)
    if sizes[0]:
        at = write_bytes(column.validity.data, sizes[0], at)
    if column.width == 1 or column.width == BITS:
        at = write_bytes(column.values.data, sizes[1], at)
    else:
        if column.width:
            menura_split(column.values.data, at, rows, column.width)
        else:
            menura_split(column.values.data, at, rows + 1, 4)
        at = pad(at + sizes[1], sizes[1])
    if text_width:
        menura_split_texts(column.text.data, at, rows, text_width)
        at = pad(at + sizes[2], sizes[2])
    elif sizes[2] and not column.width:
        at = write_bytes(column.text.data, sizes[2], at)
    return at


cdef uint8_t* write_bytes(const uint8_t* data, int64_t size, uint8_t* at) noexcept nogil:
    memcpy(at, data, size)
    return pad(at + size, size)


cdef uint8_t* pad(uint8_t* at, int64_t size) noexcept nogil:
    memset(at, 0, padded(size) - size)
    return at + padded(size) - size
