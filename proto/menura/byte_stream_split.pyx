"""Values whose bytes travel apart become whole again: byte_stream_split.h draws the layout.

Both sides of the wire share that header: the agent's core splits (agent.columnar.ipc), whoever reads joins with this.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "byte_stream_split.h" nogil:
    void menura_join(const uint8_t* split, uint8_t* values, size_t count, int width)
    void menura_join_texts(const uint8_t* split, uint8_t* values, size_t count, size_t width)

#: bytes of the values that are split
WIDTHS = frozenset({2, 4, 8, 16})


def join(split not None, values not None, int width):
    """Fill the buffer `values` with values of `width` bytes, which stand split in as many bytes.

    ValueError: the bytes are not whole values.
    """
    cdef Py_buffer source, target
    PyObject_GetBuffer(split, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(values, &target, PyBUF_WRITABLE)
        try:
            if width not in WIDTHS or source.len != target.len or source.len % width:
                raise ValueError("bytes that are not whole values of a width that is split")
            with nogil:
                menura_join(<const uint8_t*> source.buf, <uint8_t*> target.buf, source.len // width, width)
        finally:
            PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&source)


def join_texts(offsets not None, split not None, values not None):
    """Fill the buffer `values` with texts of one length, which stand split in as many bytes.

    `offsets`: where each of them begins and the last one ends, 4 bytes each. ValueError: they tell another length.
    """
    cdef Py_buffer ends, source, target
    cdef int64_t width
    PyObject_GetBuffer(offsets, &ends, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(split, &source, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(values, &target, PyBUF_WRITABLE)
            try:
                width = one_width(<const int32_t*> ends.buf, ends.len // 4 - 1)
                if width < 1 or source.len != target.len or source.len != width * (ends.len // 4 - 1):
                    raise ValueError("texts that are split, but not of one length")
                with nogil:
                    menura_join_texts(<const uint8_t*> source.buf, <uint8_t*> target.buf, ends.len // 4 - 1, width)
            finally:
                PyBuffer_Release(&target)
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&ends)


cdef int64_t one_width(const int32_t* offsets, int64_t count) noexcept nogil:
    """The length of all texts; 0: there is none, or they have several."""
    cdef int64_t i, width
    if count < 1 or offsets[0]:
        return 0
    width = offsets[1]
    for i in range(count):
        if <int64_t> offsets[i + 1] - offsets[i] != width:
            return 0
    return width
