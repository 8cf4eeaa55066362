"""Encoding: a table's collected rows to the two byte strings of a ChangeBatch.

Comes in: a `TableBatch` of columns, or a dump's `SnapshotRows`: our own (`agent.columnar.arrow`), which are written
once and split, or those of any library with Arrow's PyCapsule protocol. Goes out: two Arrow IPC streams, or one, each a
compressed frame, and their sizes before compression. Nothing is durable here.
"""

import io
from dataclasses import dataclass
from typing import Protocol

from menura.change_batch import Compression

from agent.columnar import ipc
from agent.columnar.arrow import ArrowColumns
from agent.columnar.compression import compress, compress_in_pieces

#: more than most batches have: one of a large row, or of many wide ones
LARGE_STREAM_BYTES = 8 << 20
#: of what one call compresses: its result is made in pieces, which are joined where they are sent
PIECE_BYTES = 1 << 20


class Columns(Protocol):
    """An Arrow struct array: arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html.

    Of the types of `menura.types`, and of arrays that begin at offset 0, as no slice does.
    """

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...


class CollectedTable(Protocol):
    """Which table rows are of, and in which form."""

    @property
    def database(self) -> str: ...
    @property
    def table(self) -> str: ...
    @property
    def schema_id(self) -> str: ...


class TableBatch(Protocol):
    """Changed rows of one table, and the transactions that they belong to."""

    @property
    def plan(self) -> CollectedTable: ...
    @property
    def row_count(self) -> int: ...
    @property
    def first_gsn(self) -> int: ...
    @property
    def last_gsn(self) -> int: ...
    @property
    def is_partial(self) -> bool:
        """Some of its rows lack columns: `_absent` names them."""

    @property
    def rows(self) -> Columns: ...
    @property
    def transactions(self) -> Columns: ...


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """Some rows of a table."""

    row_count: int
    schema_id: str
    #: the table's columns, then _unrepresentable
    columns: Columns


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    #: pieces of one frame
    rows: list[bytes]
    transactions: bytes
    #: sizes before compression
    rows_bytes: int
    transactions_bytes: int


def encode(batch: TableBatch, compression: Compression) -> EncodedBatch:
    """The rows and the transactions of a batch as they travel; columns of ours are released on the way."""
    rows, transactions = _stream_of(batch.rows, compression), _stream_of(batch.transactions, compression)
    rows_bytes, transactions_bytes = len(rows), len(transactions)
    compressed = compress(transactions, compression)
    return EncodedBatch(_compressed(rows, compression), compressed, rows_bytes, transactions_bytes)


@dataclass(frozen=True, slots=True)
class Encoded:
    #: pieces of one frame
    rows: list[bytes]
    #: before compression
    rows_bytes: int


def encode_snapshot(rows: SnapshotRows, compression: Compression) -> Encoded:
    """Rows of a dump as they travel; columns of ours are released on the way."""
    stream = _stream_of(rows.columns, compression)
    size = len(stream)
    return Encoded(_compressed(stream, compression), size)


def _stream_of(columns: Columns, compression: Compression) -> bytes:
    if isinstance(columns, ArrowColumns):
        stream = ipc.encode(columns, compression)
        columns.release()
        return stream
    import nanoarrow as na  # noqa: PLC0415  (columns of other libraries alone need it)
    from nanoarrow.ipc import StreamWriter  # noqa: PLC0415

    written = io.BytesIO()
    with StreamWriter.from_writable(written) as writer:
        writer.write_stream(na.c_array_stream(columns))
    return written.getvalue()


def _compressed(stream: bytes, compression: Compression) -> list[bytes]:
    if len(stream) <= LARGE_STREAM_BYTES:
        return [compress(stream, compression)]
    return compress_in_pieces(stream, compression, PIECE_BYTES)
