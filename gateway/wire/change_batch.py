"""From a ChangeBatch's bytes to landed rows; every byte is taken for hostile until it is checked.

Comes in: the two compressed frames of a ChangeBatch. Goes out: one Arrow record batch with the landed columns of
`menura.change_batch`. Work is per batch and in Arrow, never per row. Knows neither sessions nor files.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from menura.bounds import MAX_NAME_CHARS, MAX_NUMBER, clean_text
from menura.change_batch import (
    ABSENT,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP_US,
    GSN,
    MAX_BATCH_BYTES,
    MAX_TABLE_COLUMNS,
    METADATA_DEFAULT,
    METADATA_KEY,
    METADATA_ROW_END,
    METADATA_SOURCE_TYPE,
    METADATA_WHOLE_ROWS,
    POSITION,
    TRANSACTION,
    TRANSACTION_ID,
    UNREPRESENTABLE,
    WIRE_ROW_COLUMNS,
    WIRE_TRANSACTION_COLUMNS,
    ChangeType,
    is_reserved,
)
from menura.row_versions import ROW_END_FORMATS
from menura.types import ARROW_TYPES
from menura.v1.changes_pb2 import ChangeBatch

from gateway.errors import BatchColumns, BatchInvalid, BatchTooLarge, GatewayError, OutOfSequence
from gateway.wire.arrow import read_stream
from gateway.wire.message import Frames

SCHEMA_ID = re.compile(r"[0-9a-f]{16}")

#: what a table's column can have, beside decimal128
_TYPES = {format_: getattr(pa, name)(*takes) for format_, (name, *takes) in ARROW_TYPES.items()}
_COLUMN_TYPES = frozenset(_TYPES.values())
_ROW_HEAD = tuple((name, _TYPES[format_]) for name, format_ in WIRE_ROW_COLUMNS)
_TRANSACTIONS = tuple((name, _TYPES[format_]) for name, format_ in WIRE_TRANSACTION_COLUMNS)
_ROW_TAIL = ((UNREPRESENTABLE, pa.string()), (ABSENT, pa.binary()))
_COLUMN_METADATA = frozenset(
    name.encode() for name in (METADATA_SOURCE_TYPE, METADATA_KEY, METADATA_DEFAULT, METADATA_ROW_END)
)
_ROW_END_TYPES = tuple(_TYPES[format_] for format_ in ROW_END_FORMATS)
MAX_WHOLE_ROWS_CHARS = 1024
_NO_MASKS = pa.array([], pa.binary())
_CHANGE_TYPES = pa.array([kind.name for kind in ChangeType])
#: what hostile bytes make Arrow and the reading of its messages raise
BROKEN_ARROW = (pa.ArrowException, OSError, ValueError, IndexError, KeyError, MemoryError, struct.error)


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
    #: `METADATA_WHOLE_ROWS` of rows that lack values; "": the source has said nothing
    whole_rows: str = ""


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
    if not SCHEMA_ID.fullmatch(message.schema_id):
        raise BatchInvalid("reading a change batch", "a schema_id that is not 16 hex digits", **where)
    if message.row_count < 1 or not 0 < message.first_gsn <= message.last_gsn <= MAX_NUMBER:
        raise BatchInvalid(
            "reading a change batch",
            f"{message.row_count} rows numbered {message.first_gsn} to {message.last_gsn}",
            **where,
        )


def read_batch(message: ChangeBatch, frames: Frames, after_gsn: int) -> LandedBatch | None:
    """The rows of a batch above `after_gsn`, as they land; None when there is none.

    Runs in a worker thread. `check_sizes` has passed. Takes the frames. Raises a `StreamError`, whatever the bytes are.
    """
    where = {"database": message.table.database, "table": message.table.table}
    try:
        # Rows last: both frames may be views of one message, which goes with the last of them.
        transactions = read_stream(frames.take_transactions(), message.transactions_bytes, _check_transaction_columns)
        rows = read_stream(frames.take_rows(), message.rows_bytes, _check_row_columns)
        _check_numbers(message, rows, transactions)
        landed = _land(rows, transactions)
    except GatewayError as refused:
        refused.database, refused.table = where["database"], where["table"]
        raise
    except BROKEN_ARROW as broken:
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
        where["database"],
        where["table"],
        message.schema_id,
        landed,
        first_gsn,
        message.last_gsn,
        resent_rows,
        _whole_rows(rows.schema),
    )


def _own_columns(schema: pa.Schema) -> slice:
    """Where the table's own columns stand; `_absent` at the end is optional."""
    return slice(len(_ROW_HEAD), len(schema) - (2 if schema.names[-1:] == [ABSENT] else 1))


def _check_row_columns(schema: pa.Schema) -> None:
    columns = list(zip(schema.names, schema.types, strict=True))
    place = _own_columns(schema)
    tail = columns[place.stop :]
    if tuple(columns[: place.start]) != _ROW_HEAD or tuple(tail) != _ROW_TAIL[: len(tail)]:
        raise BatchColumns("reading a change batch", "columns that are not those of menura.change_batch")
    check_table_columns(list(schema)[place])


def check_table_columns(fields: Sequence[pa.Field]) -> None:
    """The table's own columns; raises `BatchColumns`."""
    names = {field.name for field in fields}
    if not 0 < len(fields) <= MAX_TABLE_COLUMNS or len(names) != len(fields):
        raise BatchColumns(
            "reading a change batch", f"{len(fields)} columns of the table, each needs a name of its own"
        )
    for field in fields:
        if not 0 < len(field.name) <= MAX_NAME_CHARS or is_reserved(field.name):
            raise BatchColumns("reading a change batch", "a column of the table with a reserved or impossible name")
        if field.type not in _COLUMN_TYPES and not pa.types.is_decimal128(field.type):
            raise BatchColumns("reading a change batch", f"a column of type {field.type}, which no source type has")
        if set(field.metadata or ()) - _COLUMN_METADATA:
            raise BatchColumns("reading a change batch", "a column with metadata that is not the contract's")
    row_ends = [field for field in fields if METADATA_ROW_END.encode() in (field.metadata or {})]
    if len(row_ends) > 1 or any(field.type not in _ROW_END_TYPES for field in row_ends):
        raise BatchColumns("reading a change batch", "two columns that end a row, or one that can't")


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


def _landed_absent(rows: pa.RecordBatch) -> pa.DictionaryArray:
    """`_absent` as it lands, checked against the columns: what is absent has no value."""
    if rows.schema.names[-1] != ABSENT:
        return pa.DictionaryArray.from_arrays(pa.nulls(rows.num_rows, pa.int32()), _NO_MASKS)
    absent = rows.column(ABSENT).dictionary_encode()
    masks, of_row = absent.dictionary, absent.indices
    if not len(masks):
        return absent
    columns = rows.columns[_own_columns(rows.schema)]
    if pc.any(pc.not_equal(pc.binary_length(masks), (len(columns) + 7) // 8)).as_py():
        raise BatchInvalid(
            "reading a change batch", f"an {ABSENT} that has not a bit for each of {len(columns)} columns"
        )
    for place in range((len(columns) + 7) // 8):
        octets = _octets(masks, place)
        of_octet = columns[8 * place : 8 * place + 8]
        if pc.any(pc.greater(octets, pa.scalar((1 << len(of_octet)) - 1, pa.uint8()))).as_py():
            raise BatchInvalid("reading a change batch", f"an {ABSENT} with bits beyond the {len(columns)} columns")
        for bit, column in enumerate(of_octet):
            is_set = pc.not_equal(pc.bit_wise_and(octets, pa.scalar(1 << bit, pa.uint8())), pa.scalar(0, pa.uint8()))
            if pc.any(is_set).as_py() and pc.any(pc.and_(is_set.take(of_row), column.is_valid())).as_py():
                raise BatchInvalid("reading a change batch", f"an {ABSENT} column that has a value")
    return absent


def _whole_rows(schema: pa.Schema) -> str:
    """What the source says of rows that lack values, without signs that no database keeps."""
    told = (schema.field(len(schema) - 1).metadata or {}).get(METADATA_WHOLE_ROWS.encode(), b"")
    return clean_text(told.decode(errors="replace"), MAX_WHOLE_ROWS_CHARS)


def _octets(masks: pa.BinaryArray, place: int) -> pa.UInt8Array:
    """Byte `place` of each mask; all are longer, none is null."""
    octets = pc.binary_slice(masks, place, place + 1)
    return pa.UInt8Array.from_buffers(pa.uint8(), len(octets), [None, octets.buffers()[2]], offset=octets.offset)


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
    own = _own_columns(rows.schema)
    absent = _landed_absent(rows)
    fields += [*list(rows.schema)[own], pa.field(UNREPRESENTABLE, pa.string()), pa.field(ABSENT, absent.type)]
    columns = [*head.values(), *rows.columns[own], rows.column(UNREPRESENTABLE), absent]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
