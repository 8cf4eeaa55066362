"""An Arrow IPC stream as it travels, to a record batch; every byte is taken for hostile until it is checked.

Comes in: a compressed frame, the size that it is to have before compression, and a check of its schema. Goes out: one
record batch, valid in full, with the values of a split stream (`menura.change_batch`) joined. Knows no column's
meaning.

The order of the checks matters: sizes before anything is allocated, columns before any row is read, and
`validate(full=True)` before any other kernel touches the rows, since Arrow's kernels trust their buffers.
"""

import struct
from collections.abc import Callable
from itertools import islice

import pyarrow as pa
from menura.byte_stream_split import WIDTHS, join, join_texts
from menura.change_batch import LAYOUT_SPLIT, METADATA_LAYOUT, METADATA_SPLIT_TEXTS

from gateway.errors import BatchInvalid
from gateway.wire.compressed_frame import decompressed
from gateway.wire.message import Frame

_LAYOUT = METADATA_LAYOUT.encode()
_OFFSET_BYTES = 4
#: validity, offsets, text
_BUFFERS_OF_TEXT = 3


def read_stream(frame: Frame, size_bytes: int, check_columns: Callable[[pa.Schema], None]) -> pa.RecordBatch:
    """One Arrow IPC stream of exactly one record batch without buffer compression, validated in full.

    Raises BatchInvalid, what `check_columns` raises, and what Arrow raises for bytes that it can't read:
    ArrowException, OSError, ValueError, IndexError, KeyError, MemoryError, struct.error.
    """
    data = decompressed(frame, size_bytes)
    del frame  # of many MiB: nobody else has it, where the caller has taken it out of its `Frames`
    # A list, since a StopIteration must not leave a worker thread: its future would never be done.
    messages = list(islice(pa.ipc.MessageReader.open_stream(data), 3))
    if [message.type for message in messages] != ["schema", "record batch"]:
        raise BatchInvalid("reading a change batch", "an Arrow stream of other than one schema and one record batch")
    head, body = messages
    if _is_compressed(body.metadata.to_pybytes()):
        raise BatchInvalid("reading a change batch", "Arrow buffers with a compression of their own")
    schema = pa.ipc.read_schema(head)
    check_columns(schema)
    batch = pa.ipc.read_record_batch(body, schema)
    layout = (schema.metadata or {}).get(_LAYOUT)
    if layout is not None:
        if layout != LAYOUT_SPLIT.encode():
            raise BatchInvalid(
                "reading a change batch",
                "an Arrow stream in a layout that is not known",
                remedy="Upgrade the agent and the gateway to one version",
            )
        batch = joined(batch)
    batch.validate(full=True)
    return batch


def joined(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch whose values and offsets, and the texts that it names, stand split, with Arrow's own.

    ValueError: buffers that are too short, and names of columns whose texts are not of one length.
    """
    names = (batch.schema.metadata or {}).get(METADATA_SPLIT_TEXTS.encode(), b"")
    split_texts = {int(name) for name in names.split(b",")} if names else set()
    if not split_texts <= {i for i, column in enumerate(batch.columns) if len(column.buffers()) == _BUFFERS_OF_TEXT}:
        raise ValueError("split texts of columns that have none")
    return pa.RecordBatch.from_arrays(
        [_joined_column(column, i in split_texts) for i, column in enumerate(batch.columns)],
        schema=batch.schema.remove_metadata(),
    )


def _joined_column(column: pa.Array, is_split_text: bool) -> pa.Array:
    validity, values, *text = column.buffers()
    rows = len(column)
    width = _OFFSET_BYTES if text else column.type.bit_width // 8  # 0: bits
    if width not in WIDTHS:
        return column
    size = (rows + 1 if text else rows) * width
    if values is None or values.size < size:
        raise ValueError("a buffer that is shorter than its values")
    whole = pa.allocate_buffer(size)
    join(values.slice(0, size), whole, width)
    if is_split_text:
        text = [_joined_texts(whole, *text)]
    # How many nulls there are is counted anew, by the validation: not before the validity's size is checked.
    return pa.Array.from_buffers(column.type, rows, [validity, whole, *text])


def _joined_texts(offsets: pa.Buffer, split: pa.Buffer | None) -> pa.Buffer:
    size = int.from_bytes(offsets[-_OFFSET_BYTES:], "little", signed=True)
    if split is None or not 0 < size <= split.size:
        raise ValueError("texts that are shorter than their offsets say")
    whole = pa.allocate_buffer(size)
    join_texts(offsets, split.slice(0, size), whole)
    return whole


def _is_compressed(metadata: bytes) -> bool:
    """Whether a record batch message names a compression of its own, whose sizes nobody has announced.

    Flatbuffers (github.com/apache/arrow, format/Message.fbs)::

        bytes   root offset u32 -> table: vtable distance i32 | fields ...
                vtable: its size u16 | table size u16 | a field's offset u16 each, 0 where it is absent
        Message.header is field 2, RecordBatch.compression field 3
    """

    def field(table: int, index: int) -> int:
        vtable = table - struct.unpack_from("<i", metadata, table)[0]
        if vtable < 0 or 4 + 2 * index >= struct.unpack_from("<H", metadata, vtable)[0]:
            return 0
        offset: int = struct.unpack_from("<H", metadata, vtable + 4 + 2 * index)[0]
        return table + offset if offset else 0

    header = field(struct.unpack_from("<I", metadata, 0)[0], 2)
    record_batch = header + struct.unpack_from("<I", metadata, header)[0]
    return field(record_batch, 3) != 0
