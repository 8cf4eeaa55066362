"""Encoding: a table's collected rows to the two byte strings of a ChangeBatch.

Comes in: a `TableBatch` of Arrow columns, or a dump's `SnapshotRows`. Goes out: two Arrow IPC streams, or one, each a
zstd frame, and their sizes before compression. Nothing is durable here.
"""

import sys
from dataclasses import dataclass

from agent.mysql.dump.results import SnapshotRows
from agent.native import ipc
from agent.native.decoder import ArrowColumns, TableBatch

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESSION_LEVEL = 1


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    rows: bytes
    transactions: bytes
    #: sizes before compression
    rows_bytes: int
    transactions_bytes: int


def encode(batch: TableBatch) -> EncodedBatch:
    """The rows and the transactions of a batch as they travel."""
    rows, rows_bytes = _encode_stream(batch.rows)
    transactions, transactions_bytes = _encode_stream(batch.transactions)
    return EncodedBatch(rows, transactions, rows_bytes, transactions_bytes)


@dataclass(frozen=True, slots=True)
class Encoded:
    rows: bytes
    #: before compression
    rows_bytes: int


def encode_snapshot(rows: SnapshotRows) -> Encoded:
    """Rows of a dump as they travel."""
    return Encoded(*_encode_stream(rows.columns))


def _encode_stream(columns: ArrowColumns) -> tuple[bytes, int]:
    stream = ipc.encode(columns)
    return zstd.compress(stream, COMPRESSION_LEVEL), len(stream)
