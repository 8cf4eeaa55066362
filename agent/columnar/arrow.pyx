"""Column buffers as an Arrow struct array, without a copy: the Arrow C data interface and its PyCapsule protocol.

https://arrow.apache.org/docs/format/CDataInterface.html. An exported array keeps the rows that it points into
alive until its consumer releases it; a child that was moved out of its parent does so by itself.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from menura.arrow_c_data cimport ARROW_FLAG_NULLABLE, ArrowArray, ArrowSchema

from agent.columnar.batch cimport Batch, empty_batch, held_bytes, release_batch
from agent.columnar.column cimport Column


# What an exported array's `private_data` points to: its buffers, its children, and whom they belong to.
cdef struct ArrayParts:
    const void* buffers[3]
    ArrowArray** children
    void* owner


# what an empty variable-length column's offsets are
cdef int32_t NO_OFFSETS[1]
NO_OFFSETS[0] = 0


cdef enum:
    # of all tables together, so that many keep little
    MOST_SPARE_BYTES = 24 << 20
    # the memory of few large rows is given back
    MOST_SPARE_ROW_BYTES = 64 << 10
    MOST_SPARE_ROWS = 16

cdef size_t spare_bytes = 0


@cython.no_gc_clear  # `owner` must outlive the use of `spare`
cdef class CollectedRows:
    """Owns the memory of a batch that was taken, and gives it back to its table: new memory costs page faults."""

    def __dealloc__(self):
        global spare_bytes
        cdef size_t size = held_bytes(&self.batch)
        cdef bint is_large = size > MOST_SPARE_ROW_BYTES * (self.batch.rows + MOST_SPARE_ROWS)
        if is_large or self.spare == NULL or self.spare.columns != NULL or spare_bytes + size > MOST_SPARE_BYTES:
            release_batch(&self.batch)
            return
        empty_batch(&self.batch)
        self.spare[0] = self.batch
        spare_bytes += size


cdef bint take_spare(Batch* batch, Batch* spare) noexcept:
    """Make the spare memory, if there is any, the empty batch of its table."""
    global spare_bytes
    if spare.columns == NULL:
        return False
    spare_bytes -= held_bytes(spare)
    batch[0] = spare[0]
    memset(spare, 0, sizeof(Batch))
    return True


cdef void drop_spare(Batch* spare) noexcept:
    global spare_bytes
    spare_bytes -= held_bytes(spare)
    release_batch(spare)


cdef class ArrowColumns:
    """Some columns of the taken rows as one Arrow struct array."""

    def release(self):
        """Let go of the rows, which nobody reads any more; what is left has no columns."""
        self.columns = NULL
        self.length = 0
        self.fields = []
        self.owner = None

    def __arrow_c_schema__(self):
        cdef ArrowSchema* schema = <ArrowSchema*> calloc(1, sizeof(ArrowSchema))
        if schema == NULL:
            raise MemoryError
        capsule = PyCapsule_New(schema, b"arrow_schema", drop_schema)
        fill_schema(schema, (b"+s", b"", None, False), self.fields)
        return capsule

    def __arrow_c_array__(self, requested_schema=None):
        cdef ArrowArray* array = <ArrowArray*> calloc(1, sizeof(ArrowArray))
        cdef int64_t i
        if array == NULL:
            raise MemoryError
        capsule = PyCapsule_New(array, b"arrow_array", drop_array)
        begin_array(array, self.owner, self.length, 1, len(self.fields))
        for i in range(array.n_children):
            fill_column(array.children[i], self.owner, self.columns + i, self.length)
        return self.__arrow_c_schema__(), capsule


def field(str name, str format_, bint nullable, dict metadata=None):
    """What an exported schema says of a column: (format, name, metadata, nullable), encoded."""
    encoded = None
    if metadata:
        encoded = len(metadata).to_bytes(4, "little")
        for text in (text for pair in metadata.items() for text in pair):
            encoded += len(text.encode()).to_bytes(4, "little") + text.encode()
    return format_.encode(), name.encode(), encoded, nullable


cdef int fill_schema(ArrowSchema* schema, tuple described, list children) except -1:
    """`private_data` is the tuple that the strings belong to."""
    format_, name, metadata, nullable = described
    schema.release = release_schema
    schema.private_data = <void*> described
    Py_INCREF(described)
    schema.format = PyBytes_AS_STRING(format_)
    schema.name = PyBytes_AS_STRING(name)
    schema.metadata = NULL if metadata is None else PyBytes_AS_STRING(metadata)
    schema.flags = ARROW_FLAG_NULLABLE if nullable else 0
    if not children:
        return 0
    schema.children = <ArrowSchema**> calloc(len(children), sizeof(ArrowSchema*))
    if schema.children == NULL:
        raise MemoryError
    schema.n_children = len(children)
    for i, child in enumerate(children):
        schema.children[i] = <ArrowSchema*> calloc(1, sizeof(ArrowSchema))
        if schema.children[i] == NULL:
            raise MemoryError
        fill_schema(schema.children[i], child, [])
    return 0


cdef void release_schema(ArrowSchema* schema) noexcept nogil:
    cdef int64_t i
    for i in range(schema.n_children):
        if schema.children[i] != NULL and schema.children[i].release != NULL:
            schema.children[i].release(schema.children[i])
        free(schema.children[i])
    free(schema.children)
    schema.release = NULL
    with gil:
        Py_DECREF(<object> schema.private_data)


cdef int begin_array(ArrowArray* array, object owner, int64_t length, int64_t buffers, int64_t children) except -1:
    cdef ArrayParts* parts = <ArrayParts*> calloc(1, sizeof(ArrayParts))
    cdef int64_t i
    if parts == NULL:
        raise MemoryError
    parts.owner = <void*> owner
    Py_INCREF(owner)
    array.private_data = parts
    array.release = release_array
    array.length = length
    array.n_buffers = buffers
    array.buffers = parts.buffers
    if not children:
        return 0
    array.children = parts.children = <ArrowArray**> calloc(children, sizeof(ArrowArray*))
    if parts.children == NULL:
        raise MemoryError
    array.n_children = children
    for i in range(children):
        parts.children[i] = <ArrowArray*> calloc(1, sizeof(ArrowArray))
        if parts.children[i] == NULL:
            raise MemoryError
    return 0


cdef int fill_column(ArrowArray* array, object owner, Column* column, int64_t length) except -1:
    begin_array(array, owner, length, 2 if column.width else 3, 0)
    array.null_count = column.nulls
    array.buffers[0] = column.validity.data if column.nulls else NULL
    array.buffers[1] = column.values.data
    if not column.width:
        if column.values.data == NULL:
            array.buffers[1] = NO_OFFSETS
        array.buffers[2] = column.text.data
    return 0


cdef void release_array(ArrowArray* array) noexcept nogil:
    cdef ArrayParts* parts = <ArrayParts*> array.private_data
    cdef int64_t i
    for i in range(array.n_children):
        if parts.children[i] != NULL and parts.children[i].release != NULL:
            parts.children[i].release(parts.children[i])
        free(parts.children[i])
    free(parts.children)
    array.release = NULL
    with gil:
        Py_DECREF(<object> parts.owner)
    free(parts)


cdef void drop_schema(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*> PyCapsule_GetPointer(capsule, b"arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void drop_array(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*> PyCapsule_GetPointer(capsule, b"arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)
