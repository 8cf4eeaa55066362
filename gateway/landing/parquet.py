"""A cut's rows as Parquet files: one file per table and schema version.

Comes in: landed batches, in order. Goes out: the files' entries for the cut log. Runs in worker threads, one
call at a time for a cut.

Small batches of a table gather in memory until they make a row group, so that a thousand tables with a row
each cost a thousand small files and no more. What is in memory holds its sender's credit; above
`MAX_GATHERED_BYTES`, or this cut's share of what the process may gather (`gathered`), the largest tables are
written. A transaction of any size so passes through a bounded memory into open files. Above `MAX_OPEN_FILES` the
file that was longest not written to is closed, and its table goes on in a further file of the same cut
(`...-1.parquet`).

Durable: what `finish` returned. A kill before leaves files that no entry names.
"""

from dataclasses import dataclass, field

import pyarrow as pa
from menura.change_batch import (
    ABSENT,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP_US,
    GSN,
    METADATA_WHOLE_ROWS,
    POSITION,
    TRANSACTION_ID,
)
from menura.landing import LandedFile, data_path
from menura.stores.store import Store

from gateway.errors import BatchColumns, CutTooLarge, OutOfSequence
from gateway.landing.gathered import Gathered
from gateway.landing.parquet_file import ROW_GROUP_BYTES, ParquetFile
from gateway.registry import SourceKey
from gateway.wire.change_batch import LandedBatch

MAX_GATHERED_BYTES = 64 << 20
MAX_OPEN_FILES = 128
#: of a cut: each has at least one file, which the log entry names
MAX_VERSIONS = 100_000

_FEW_VALUES = (CHANGE_TYPE, POSITION, ABSENT)
_GROWING = (GSN, TRANSACTION_ID, COMMIT_TIMESTAMP_US)

TableVersion = tuple[str, str, str]


@dataclass(slots=True, eq=False)
class _Table:
    """One table and schema version of the cut."""

    version: TableVersion
    schema: pa.Schema
    last_gsn: int = 0
    gathered: list[LandedBatch] = field(default_factory=list)
    gathered_bytes: int = 0
    credit_bytes: int = 0
    files: int = 0
    #: `METADATA_WHOLE_ROWS` of the cut's last rows that lack values
    whole_rows: str = ""
    open_file: "_OpenFile | None" = None


@dataclass(slots=True, eq=False)
class _OpenFile:
    parquet: ParquetFile
    first_gsn: int = 0
    last_gsn: int = 0


class CutFiles:
    """The data files of one cut of one source, from its first batch to its end."""

    def __init__(
        self, storage: Store, key: SourceKey, epoch: int, cut: int, max_credit_bytes: int, gathered: Gathered
    ) -> None:
        """`max_credit_bytes` of senders' credit may be held by what is in memory, `gathered` bounds that of all."""
        self._storage = storage
        self._key = key
        self._epoch = epoch
        self._cut = cut
        self._max_credit_bytes = max_credit_bytes
        self._gathered = gathered
        self._tables: dict[TableVersion, _Table] = {}
        self._open: dict[TableVersion, _Table] = {}  # longest not written to first
        self._finished: list[LandedFile] = []
        self._gathered_bytes = 0
        self._credit_bytes = 0

    def add(self, batch: LandedBatch, credit_bytes: int) -> int:
        """Take a batch; returns the bytes of credit whose rows have left memory. Raises OSError."""
        version = (batch.database, batch.table, batch.schema_id)
        table = self._tables.get(version)
        if table is None:
            if len(self._tables) >= MAX_VERSIONS:
                raise CutTooLarge("landing a change batch", f"more than {MAX_VERSIONS} tables and schema versions")
            table = self._tables[version] = _Table(version, batch.rows.schema)
        elif not table.schema.equals(batch.rows.schema, check_metadata=True):
            raise BatchColumns(
                "landing a change batch",
                f"other columns than before under schema {batch.schema_id}",
                database=batch.database,
                table=batch.table,
            )
        if batch.first_gsn <= table.last_gsn:
            raise OutOfSequence(
                "landing a change batch",
                f"row number {batch.first_gsn} after {table.last_gsn}",
                database=batch.database,
                table=batch.table,
            )
        table.last_gsn = batch.last_gsn
        table.whole_rows = batch.whole_rows or table.whole_rows
        size_bytes = batch.rows.nbytes
        table.gathered.append(batch)
        table.gathered_bytes += size_bytes
        table.credit_bytes += credit_bytes
        self._hold(size_bytes)
        self._credit_bytes += credit_bytes
        released = self._write(table) if table.gathered_bytes >= ROW_GROUP_BYTES else 0
        most_bytes = min(MAX_GATHERED_BYTES, self._gathered.share_bytes())
        if self._gathered_bytes > most_bytes or self._credit_bytes > self._max_credit_bytes:
            released += self._write_largest(most_bytes // 2)
        return released

    def last_gsn(self) -> int:
        """Highest row number of the cut so far; 0 for none."""
        return max((table.last_gsn for table in self._tables.values()), default=0)

    def finish(self) -> tuple[tuple[LandedFile, ...], int]:
        """Write, close and make durable; the files and the credit that was still held. Raises OSError."""
        released = 0
        for table in self._tables.values():
            if table.gathered:
                released += self._write(table)
            if table.open_file is not None:
                self._close(table)
        self._storage.make_durable(file.path for file in self._finished)
        return tuple(self._finished), released

    def discard(self) -> int:
        """Delete what was written; only before an entry could name it. Returns the credit that was held."""
        for table in self._open.values():
            assert table.open_file is not None
            table.open_file.parquet.discard()
        for file in self._finished:
            self._storage.discard(file.path, None)
        self._open.clear()
        self._tables.clear()
        self._finished.clear()
        self._hold(-self._gathered_bytes)
        released, self._credit_bytes = self._credit_bytes, 0
        return released

    def _hold(self, by_bytes: int) -> None:
        self._gathered_bytes += by_bytes
        self._gathered.change(by_bytes)

    def _write_largest(self, left_bytes: int) -> int:
        """Halve what is in memory, largest tables first, so that the small ones can go on gathering."""
        released = 0
        for table in sorted(self._tables.values(), key=lambda table: table.gathered_bytes, reverse=True):
            if self._gathered_bytes <= left_bytes and self._credit_bytes <= self._max_credit_bytes // 2:
                break
            if table.gathered:
                released += self._write(table)
        return released

    def _write(self, table: _Table) -> int:
        """Write what was gathered as one row group; returns the credit that this frees."""
        file = table.open_file or self._create(table)
        self._open[table.version] = self._open.pop(table.version)
        first, last = table.gathered[0], table.gathered[-1]
        file.parquet.write([batch.rows for batch in table.gathered])
        file.first_gsn = file.first_gsn or first.first_gsn
        file.last_gsn = last.last_gsn
        released = table.credit_bytes
        self._hold(-table.gathered_bytes)
        self._credit_bytes -= table.credit_bytes
        table.gathered, table.gathered_bytes, table.credit_bytes = [], 0, 0
        return released

    def _create(self, table: _Table) -> _OpenFile:
        if len(self._open) >= MAX_OPEN_FILES:
            self._close(next(iter(self._open.values())))
        database, name, schema_id = table.version
        path = data_path(self._key.tenant, self._key.source, database, name, self._epoch, self._cut, schema_id)
        if table.files:
            path = f"{path.removesuffix('.parquet')}-{table.files}.parquet"
        table.files += 1
        parquet = ParquetFile(self._storage, path, table.schema, few_values=_FEW_VALUES, growing=_GROWING)
        table.open_file = _OpenFile(parquet)
        self._open[table.version] = table
        return table.open_file

    def _close(self, table: _Table) -> None:
        file = table.open_file
        assert file is not None
        size_bytes = file.parquet.close({METADATA_WHOLE_ROWS: table.whole_rows} if table.whole_rows else {})
        database, name, schema_id = table.version
        self._finished.append(
            LandedFile(
                database,
                name,
                schema_id,
                file.parquet.path,
                file.parquet.rows,
                size_bytes,
                file.first_gsn,
                file.last_gsn,
                plain_bytes=file.parquet.plain_bytes,
            )
        )
        table.open_file = None
        del self._open[table.version]
