"""From a ChangeBatch's bytes to landed rows; every byte is taken for hostile until it is checked.

Comes in: the two zstd frames of a ChangeBatch. Goes out: one Arrow record batch with the landed columns of
`menura.change_batch`. Work is per batch and in Arrow, never per row. Knows neither sessions nor files.

The order of the checks matters: sizes before anything is allocated, columns before any row is read, and
`validate(full=True)` before any other kernel touches the rows, since Arrow's kernels trust their buffers.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
from menura.change_batch import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP_US,
    GSN,
    MAX_BATCH_BYTES,
    METADATA_KEY,
    METADATA_SOURCE_TYPE,
    POSITION,
    RESERVED_NAMES,
    TRANSACTION,
    TRANSACTION_ID,
    UNREPRESENTABLE,
    ChangeType,
)
from menura.v1.mysql_binlog_pb2 import ChangeBatch

from gateway.errors import BatchColumns, BatchInvalid, BatchTooLarge, GatewayError, OutOfSequence

_SCHEMA_ID = re.compile(r"[0-9a-f]{16}")
MAX_NAME_CHARS = 256
MAX_COLUMNS = 4096 + 4  # the server's own limit, and ours beside them

_ROW_HEAD = ((CHANGE_TYPE, pa.int8()), (GSN, pa.int64()), (TRANSACTION, pa.int32()))
_TRANSACTIONS = ((TRANSACTION_ID, pa.int64()), (COMMIT_TIMESTAMP_US, pa.int64()), (POSITION, pa.string()))
_CHANGE_TYPES = pa.array([kind.name for kind in ChangeType])
#: what `menura.types.arrow_format` can give, beside decimal128
_COLUMN_TYPES = frozenset(
    {
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32()),
        *(pa.timestamp("us"), pa.timestamp("us", "UTC")),
    }
)


@dataclass(frozen=True, slots=True)
class LandedBatch:
    database: str
    table: str
    schema_id: str
    #: the landed columns; owns its buffers
    rows: pa.RecordBatch
    first_gsn: int
    last_gsn: int
    #: rows that were left out, being at or below the committed number
    resent_rows: int


def check_sizes(message: ChangeBatch) -> None:
    """Refuse what must not even be decompressed; cheap enough for the event loop."""
    where = {"database": message.table.database[:MAX_NAME_CHARS], "table": message.table.table[:MAX_NAME_CHARS]}
    announced = message.rows_bytes + message.transactions_bytes
    if announced > MAX_BATCH_BYTES:
        raise BatchTooLarge(
            "reading a change batch", f"{announced} bytes, at most {MAX_BATCH_BYTES} are allowed", **where
        )
    for name in (message.table.database, message.table.table):
        if not 0 < len(name) <= MAX_NAME_CHARS or "\0" in name:
            raise BatchInvalid("reading a change batch", f"a table's name of {len(name)} characters", **where)
    if not _SCHEMA_ID.fullmatch(message.schema_id):
        raise BatchInvalid("reading a change batch", "a schema_id that is not 16 hex digits", **where)
    if message.row_count < 1 or not 0 < message.first_gsn <= message.last_gsn:
        raise BatchInvalid(
            "reading a change batch",
            f"{message.row_count} rows numbered {message.first_gsn} to {message.last_gsn}",
            **where,
        )


def read_batch(message: ChangeBatch, after_gsn: int) -> LandedBatch | None:
    """The rows of a batch above `after_gsn`, as they land; None when there is none.

    Runs in a worker thread. `check_sizes` has passed. Raises a `StreamError`, whatever the bytes are.
    """
    where = {"database": message.table.database, "table": message.table.table}
    try:
        rows = _read_stream(message.rows, message.rows_bytes, _check_row_columns)
        transactions = _read_stream(message.transactions, message.transactions_bytes, _check_transaction_columns)
        _check_numbers(message, rows, transactions)
        landed = _land(rows, transactions)
    except GatewayError as refused:
        refused.database, refused.table = where["database"], where["table"]
        raise
    except (pa.ArrowException, OSError, ValueError, IndexError, KeyError, MemoryError, struct.error) as broken:
        # Arrow's messages may quote values: the kind of failure is all that may be told
        raise BatchInvalid(
            "reading a change batch",
            f"bytes that are no valid Arrow data ({type(broken).__name__})",
            remedy="Upgrade the agent and the gateway to one version",
            **where,
        ) from broken
    resent_rows = 0
    first_gsn = message.first_gsn
    if first_gsn <= after_gsn:
        landed = landed.filter(pc.greater(landed.column(GSN), after_gsn))
        resent_rows = message.row_count - landed.num_rows
        if landed.num_rows == 0:
            return None
        first_gsn = landed.column(GSN)[0].as_py()
    return LandedBatch(
        where["database"], where["table"], message.schema_id, landed, first_gsn, message.last_gsn, resent_rows
    )


def _read_stream(frame: bytes, size_bytes: int, check_columns: Callable[[pa.Schema], None]) -> pa.RecordBatch:
    """One Arrow IPC stream of exactly one record batch without buffer compression, validated in full."""
    data = pa.decompress(frame, decompressed_size=size_bytes, codec="zstd")
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
    batch.validate(full=True)
    return batch


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


def _check_row_columns(schema: pa.Schema) -> None:
    if len(schema) > MAX_COLUMNS:
        raise BatchColumns("reading a change batch", f"{len(schema)} columns")
    names, types = schema.names, schema.types
    if tuple(zip(names[:3], types[:3], strict=True)) != _ROW_HEAD or (names[-1], types[-1]) != (
        UNREPRESENTABLE,
        pa.string(),
    ):
        raise BatchColumns("reading a change batch", "columns that are not those of menura.change_batch")
    own = names[3:-1]
    if not own or len(set(own)) != len(own):
        raise BatchColumns("reading a change batch", f"{len(own)} columns of the table, each needs a name of its own")
    for field in (schema.field(index) for index in range(3, len(schema) - 1)):
        if not 0 < len(field.name) <= MAX_NAME_CHARS or field.name.lower() in RESERVED_NAMES:
            raise BatchColumns("reading a change batch", "a column of the table with a reserved or impossible name")
        if field.type not in _COLUMN_TYPES and not pa.types.is_decimal128(field.type):
            raise BatchColumns("reading a change batch", f"a column of type {field.type}, which no source type has")
        if set(field.metadata or ()) - {METADATA_SOURCE_TYPE.encode(), METADATA_KEY.encode()}:
            raise BatchColumns("reading a change batch", "a column with metadata that is not the contract's")


def _check_transaction_columns(schema: pa.Schema) -> None:
    if tuple(zip(schema.names, schema.types, strict=True)) != _TRANSACTIONS:
        raise BatchColumns("reading a change batch", "transaction columns that are not those of menura.change_batch")


def _check_numbers(message: ChangeBatch, rows: pa.RecordBatch, transactions: pa.RecordBatch) -> None:
    if rows.num_rows != message.row_count:
        raise BatchInvalid("reading a change batch", f"{rows.num_rows} rows, announced {message.row_count}")
    columns = [*(rows.column(name) for name, _ in _ROW_HEAD), *transactions.columns]
    if any(column.null_count for column in columns):
        raise BatchInvalid("reading a change batch", "nulls in a column that can have none")
    gsn = rows.column(GSN)
    if gsn[0].as_py() != message.first_gsn or gsn[-1].as_py() != message.last_gsn:
        raise BatchInvalid("reading a change batch", "row numbers other than announced")
    if pc.any(pc.less_equal(gsn.slice(1), gsn.slice(0, len(gsn) - 1))).as_py():
        raise OutOfSequence("reading a change batch", "row numbers that do not grow")


def _land(rows: pa.RecordBatch, transactions: pa.RecordBatch) -> pa.RecordBatch:
    """The landed columns; an index out of range raises IndexError or ArrowInvalid."""
    of_row = rows.column(TRANSACTION)
    # Not `of_row` itself as index: Parquet's dictionary pages need each position once.
    positions = transactions.column(POSITION).dictionary_encode()
    head = {
        CHANGE_TYPE: pa.DictionaryArray.from_arrays(rows.column(CHANGE_TYPE), _CHANGE_TYPES),
        GSN: rows.column(GSN),
        TRANSACTION_ID: transactions.column(TRANSACTION_ID).take(of_row),
        COMMIT_TIMESTAMP_US: transactions.column(COMMIT_TIMESTAMP_US).take(of_row),
        POSITION: pa.DictionaryArray.from_arrays(positions.indices.take(of_row), positions.dictionary),
    }
    fields = [pa.field(name, column.type, nullable=False) for name, column in head.items()]
    fields += [rows.schema.field(index) for index in range(len(_ROW_HEAD), len(rows.schema))]
    return pa.RecordBatch.from_arrays([*head.values(), *rows.columns[len(_ROW_HEAD) :]], schema=pa.schema(fields))
