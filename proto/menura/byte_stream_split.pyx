"""Values whose bytes travel apart become whole again: byte_stream_split.h draws the layout.

Both sides of the wire share that header: the agent's core splits (agent.columnar.ipc), whoever reads joins with this.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t

cdef extern from "byte_stream_split.h" nogil:
    void menura_join(const uint8_t* split, uint8_t* values, size_t count, int width)

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
