"""From a SnapshotBatch's bytes to a dump's rows; every byte is taken for hostile until it is checked.

Comes in: the compressed frame of a SnapshotBatch. Goes out: one Arrow record batch as it lands, the table's columns and
`_unrepresentable`. Work is per batch and in Arrow, never per row. The order of the checks is that of
`change_batch`, and what a schema_id stands for is checked against the columns that came.
"""

from dataclasses import dataclass

import pyarrow as pa
from menura.bounds import MAX_NUMBER
from menura.change_batch import (
    MAX_BATCH_BYTES,
    MAX_TABLE_COLUMNS,
    METADATA_DEFAULT,
    METADATA_KEY,
    METADATA_SOURCE_TYPE,
    UNREPRESENTABLE,
)
from menura.schema import schema_id
from menura.v1.snapshot_pb2 import SnapshotBatch

from gateway.errors import BatchColumns, BatchInvalid, BatchTooLarge, GatewayError
from gateway.wire.arrow import read_stream
from gateway.wire.change_batch import BROKEN_ARROW, SCHEMA_ID, check_table_columns
from gateway.wire.message import Frames

DOING = "reading rows of a dump"


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    dump: str
    chunk: int
    database: str
    table: str
    schema_id: str
    #: owns its buffers
    rows: pa.RecordBatch


def check_sizes(message: SnapshotBatch) -> None:
    """Refuse what must not even be decompressed; cheap enough for the event loop."""
    if message.rows_bytes > MAX_BATCH_BYTES:
        raise BatchTooLarge(DOING, f"{message.rows_bytes} bytes, at most {MAX_BATCH_BYTES} are allowed")
    if not SCHEMA_ID.fullmatch(message.schema_id):
        raise BatchInvalid(DOING, "a schema_id that is not 16 hex digits")
    if message.chunk > MAX_NUMBER:
        raise BatchInvalid(DOING, f"chunk {message.chunk}")
    if message.row_count < 1:
        raise BatchInvalid(DOING, "a batch without rows")


def read_rows(message: SnapshotBatch, frames: Frames) -> SnapshotRows:
    """The rows of a batch as they land.

    Runs in a worker thread. `check_sizes` and the check of the table's name have passed. Takes the frame. Raises a
    `StreamError`, whatever the bytes are.
    """
    database, table = message.table.database, message.table.table
    try:
        rows = read_stream(frames.take_rows(), message.rows_bytes, _check_columns)
        if rows.num_rows != message.row_count:
            raise BatchInvalid(DOING, f"{rows.num_rows} rows, announced {message.row_count}")
        if _schema_id(rows.schema) != message.schema_id:
            raise BatchColumns(DOING, "columns that are not those of their schema_id")
    except GatewayError as refused:
        refused.doing, refused.database, refused.table = DOING, database, table
        raise
    except BROKEN_ARROW as broken:
        # Arrow's messages may quote values: the kind of failure is all that may be told
        raise BatchInvalid(
            DOING,
            f"bytes that are no valid Arrow data ({type(broken).__name__})",
            remedy="Upgrade the agent and the gateway to one version",
            database=database,
            table=table,
        ) from broken
    return SnapshotRows(message.dump, message.chunk, database, table, message.schema_id, rows)


def _check_columns(schema: pa.Schema) -> None:
    fields = list(schema)
    if not fields or (fields[-1].name, fields[-1].type) != (UNREPRESENTABLE, pa.string()):
        raise BatchColumns(DOING, f"a last column other than {UNREPRESENTABLE}")
    check_table_columns(fields[:-1])


def _schema_id(schema: pa.Schema) -> str:
    """`menura.schema.schema_id` of columns as they describe themselves."""
    facts = []
    for field in list(schema)[:-1]:
        said = {name.decode(): value.decode() for name, value in (field.metadata or {}).items()}
        key = said.get(METADATA_KEY, "0")
        if not key.isascii() or not key.isdigit() or int(key) > MAX_TABLE_COLUMNS:
            raise BatchColumns(DOING, "a column whose place in the key is no number")
        facts.append((field.name, said.get(METADATA_SOURCE_TYPE, ""), int(key), said.get(METADATA_DEFAULT, "")))
    return schema_id(facts)
