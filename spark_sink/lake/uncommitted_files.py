"""Data files of a Delta table, written by several processes before one commit names them all.

Comes in: rows in the table's columns, and a prefix of the work that they belong to. Goes out: files in the table's
folder, each with its statistics, and later the one commit that adds them. Durable are the files, then the commit. Until
then no reader sees them; what a kill leaves is known by its prefix, and is removed by whoever does such work next, or
by the table's cleaning once it is old (`retention`).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction
from menura.instants import now_us
from menura.stores.store import Store

from spark_sink.lake.delta_table import (
    Transactions,
    append,
    commit_properties,
    configuration_of,
    replace_rows,
    schema_of,
)
from spark_sink.lake.known_table import STATISTICS_PROPERTY, statistics
from spark_sink.landed.storage import open_storage

#: of a file, in memory; a MERGE writes each file anew that it touches, so they stay small
MOST_ROWS, MOST_BYTES = 1_000_000, 64 << 20
_READ_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class DataFile:
    """In its table's folder."""

    name: str
    size_bytes: int
    #: as an entry of the log has them
    statistics: str


class FilesWriter:
    """Rows to files of some `MOST_BYTES`. `folder`: the table's; `prefix`: without '/'.

    `note`: is told each name before its file is written.
    """

    def __init__(
        self, folder: str, prefix: str, statistics_columns: str = "", note: Callable[[str], None] | None = None
    ) -> None:
        self._store: Store = open_storage(folder)
        self._prefix = prefix
        self._statistics_columns = statistics_columns
        self._note = note
        self._gathered: list[pa.Table] = []
        self._files: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        """Raises OSError, ArrowException."""
        self._gathered.append(rows)
        if sum(map(len, self._gathered)) >= MOST_ROWS or sum(each.nbytes for each in self._gathered) >= MOST_BYTES:
            self._write()

    def end(self) -> tuple[DataFile, ...]:
        """All files, which survive a power cut from now on. Raises OSError, ArrowException."""
        if self._gathered:
            self._write()
        self._store.make_durable([each.name for each in self._files])
        return tuple(self._files)

    def _write(self) -> None:
        rows = pa.concat_tables(self._gathered)
        self._gathered = []
        if not rows.num_rows:
            return
        name = f"{self._prefix}{uuid4()}.parquet"
        if self._note is not None:
            self._note(name)
        output = self._store.create(name)
        pq.write_table(rows, output, compression="zstd", compression_level=1)
        size_bytes = output.tell()
        output.close()
        found = statistics(rows, self._statistics_columns)
        self._files.append(DataFile(name, size_bytes, json.dumps(found, ensure_ascii=False)))


def statistics_columns(table: DeltaTable) -> str:
    """For `FilesWriter`, those that the table keeps."""
    return configuration_of(table)[STATISTICS_PROPERTY]


def commit_files(
    table: DeltaTable, files: Sequence[DataFile], transactions: Transactions, *, replaces: bool = False
) -> None:
    """Append them in one commit, or put them in place of all; there is one even without files. Raises DeltaError."""
    if not files:
        put = replace_rows if replaces else append
        put(table, schema_of(table).empty_table(), transactions)
        return
    at_ms = now_us() // 1000
    table.create_write_transaction(
        [AddAction(each.name, each.size_bytes, {}, at_ms, True, each.statistics) for each in files],
        "overwrite" if replaces else "append",
        Schema.from_arrow(schema_of(table)),
        commit_properties=commit_properties(*transactions),
    )
    table.update_incremental()


def remove_files(folder: str, is_left: Callable[[str], bool]) -> None:
    """Remove those whose names say that no commit names them, and none will. Raises OSError."""
    store = open_storage(folder)
    store.delete([found.path for found in store.list("") if is_left(found.path)])


def missing_files(folder: str, table: DeltaTable) -> list[str]:
    """Files that the table names at its version, and its folder lacks. Raises OSError."""
    named = pa.table(table.get_add_actions())["path"].to_pylist()
    there = {found.path for found in open_storage(folder).list("")} if named else set()
    return sorted(set(named) - there)


def read_files(folder: str, files: Iterable[DataFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of files that no commit names. Raises OSError, ArrowException."""
    store = open_storage(folder)
    for each in files:
        with pq.ParquetFile(store.open(each.name)) as parquet:
            for batch in parquet.iter_batches(_READ_ROWS, columns=schema.names, use_threads=False):
                yield from pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()
