"""The Parquet files of chunks that are being read: a chunk's rows in one file, in several where it is large.

Comes in: the batches of many chunks, interleaved. Goes out: a chunk's files when it has ended. Runs in worker threads,
one call at a time for a stream.

Batches of a chunk gather in memory until they make a row group. What is in memory holds its sender's credit; above
`MAX_GATHERED_BYTES`, or half the credit there is, the largest chunks are written. So a chunk of any size, as a whole
table is, passes through a bounded memory.

No file's name is ever used twice, whatever numbers an agent gives to its chunks: each stream has a word of its own in
them. So nothing here can touch what a committed cut names. Durable: what `finish` returned. A kill leaves files that no
entry names.
"""

import secrets
from collections.abc import Collection
from dataclasses import dataclass, field

import pyarrow as pa
from menura.landing import LandedFile, chunk_path
from menura.stores.store import Store

from gateway.errors import NOTHING_LOST, BatchColumns
from gateway.landing.gathered import Gathered
from gateway.landing.parquet_file import ROW_GROUP_BYTES, ParquetFile
from gateway.registry import SourceKey
from gateway.wire.snapshot_batch import SnapshotRows

MAX_GATHERED_BYTES = 64 << 20
#: a file is closed when it is larger; a reader takes a file at a time
MAX_FILE_BYTES = 128 << 20

ChunkKey = tuple[str, int]


@dataclass(slots=True, eq=False)
class _Chunk:
    dump: str
    chunk: int
    database: str
    table: str
    schema_id: str
    schema: pa.Schema
    rows: int = 0
    gathered: list[pa.RecordBatch] = field(default_factory=list)
    gathered_bytes: int = 0
    credit_bytes: int = 0
    open_file: ParquetFile | None = None
    closed: list[LandedFile] = field(default_factory=list)


class ChunkFiles:
    """Of one stream's chunks, each from its first batch until it is pending."""

    def __init__(self, storage: Store, key: SourceKey, max_credit_bytes: int, gathered: Gathered) -> None:
        """`max_credit_bytes` of the sender's credit may be held by what is in memory, `gathered` bounds that of all."""
        self._storage = storage
        self._key = key
        self._max_credit_bytes = max_credit_bytes
        self._gathered = gathered
        self._word = secrets.token_hex(4)
        self._chunks: dict[ChunkKey, _Chunk] = {}
        self._gathered_bytes = 0
        self._credit_bytes = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def rows(self, dump: str, chunk: int) -> int:
        known = self._chunks.get((dump, chunk))
        return known.rows if known is not None else 0

    def add(self, batch: SnapshotRows, credit_bytes: int) -> int:
        """Take a batch; returns the bytes of credit whose rows have left memory. Raises OSError."""
        chunk = self._chunks.get((batch.dump, batch.chunk))
        if chunk is None:
            chunk = self._chunks[batch.dump, batch.chunk] = _Chunk(
                batch.dump, batch.chunk, batch.database, batch.table, batch.schema_id, batch.rows.schema
            )
        if batch.schema_id != chunk.schema_id or not chunk.schema.equals(batch.rows.schema, check_metadata=True):
            raise BatchColumns(
                "landing a chunk of a dump",
                f"other columns than before in chunk {batch.chunk}",
                data=NOTHING_LOST,
                database=batch.database,
                table=batch.table,
            )
        size_bytes = batch.rows.nbytes
        chunk.rows += batch.rows.num_rows
        chunk.gathered.append(batch.rows)
        chunk.gathered_bytes += size_bytes
        chunk.credit_bytes += credit_bytes
        self._hold(size_bytes)
        self._credit_bytes += credit_bytes
        released = self._write(chunk) if chunk.gathered_bytes >= ROW_GROUP_BYTES else 0
        most_bytes = min(MAX_GATHERED_BYTES, self._gathered.share_bytes())
        if self._gathered_bytes > most_bytes or self._credit_bytes > self._max_credit_bytes:
            released += self._write_largest(most_bytes // 2)
        return released

    def finish(self, dump: str, chunk: int) -> tuple[tuple[LandedFile, ...], int]:
        """Write, close and make durable; the files and the credit that was still held. Raises OSError.

        They stay this object's, to be discarded with it, until `release`.
        """
        known = self._chunks.get((dump, chunk))
        if known is None:
            return (), 0
        released = self._write(known) if known.gathered else 0
        if known.open_file is not None:
            self._close(known, known.open_file)
        self._storage.make_durable(file.path for file in known.closed)
        return tuple(known.closed), released

    def release(self, dump: str, chunk: int) -> None:
        """The finished chunk has another owner now."""
        self._chunks.pop((dump, chunk), None)

    def discard(self, dump: str, chunk: int) -> int:
        """Delete what there is of a chunk; returns the credit that was held."""
        known = self._chunks.pop((dump, chunk), None)
        if known is None:
            return 0
        if known.open_file is not None:
            known.open_file.discard()
        discard_files(self._storage, known.closed)
        self._hold(-known.gathered_bytes)
        self._credit_bytes -= known.credit_bytes
        return known.credit_bytes

    def discard_others(self, dumps: Collection[str]) -> int:
        """Delete the chunks of all dumps but these; returns the credit that was held."""
        return sum(self.discard(*key) for key in list(self._chunks) if key[0] not in dumps)

    def _hold(self, by_bytes: int) -> None:
        self._gathered_bytes += by_bytes
        self._gathered.change(by_bytes)

    def _write_largest(self, left_bytes: int) -> int:
        released = 0
        for chunk in sorted(self._chunks.values(), key=lambda chunk: chunk.gathered_bytes, reverse=True):
            if self._gathered_bytes <= left_bytes and self._credit_bytes <= self._max_credit_bytes // 2:
                break
            if chunk.gathered:
                released += self._write(chunk)
        return released

    def _write(self, chunk: _Chunk) -> int:
        """Write what was gathered as one row group; returns the credit that this frees."""
        file = chunk.open_file or self._create(chunk)
        file.write(chunk.gathered)
        released = chunk.credit_bytes
        self._hold(-chunk.gathered_bytes)
        self._credit_bytes -= chunk.credit_bytes
        chunk.gathered, chunk.gathered_bytes, chunk.credit_bytes = [], 0, 0
        if file.written_bytes > MAX_FILE_BYTES:
            self._close(chunk, file)
        return released

    def _create(self, chunk: _Chunk) -> ParquetFile:
        tenant, source = self._key.tenant, self._key.source
        path = chunk_path(
            tenant, source, chunk.database, chunk.table, chunk.dump, chunk.chunk, chunk.schema_id, self._word
        )
        if chunk.closed:
            path = f"{path.removesuffix('.parquet')}-{len(chunk.closed)}.parquet"
        chunk.open_file = ParquetFile(self._storage, path, chunk.schema)
        return chunk.open_file

    def _close(self, chunk: _Chunk, file: ParquetFile) -> None:
        size_bytes = file.close()
        chunk.closed.append(
            LandedFile(
                chunk.database,
                chunk.table,
                chunk.schema_id,
                file.path,
                file.rows,
                size_bytes,
                first_gsn=0,  # known when a cut names the chunk
                last_gsn=0,
                dump=chunk.dump,
                chunk=chunk.chunk,
                plain_bytes=file.plain_bytes,
            )
        )
        chunk.open_file = None


def discard_files(storage: Store, files: Collection[LandedFile]) -> None:
    """Delete closed files that no entry names."""
    for file in files:
        storage.discard(file.path, None)
