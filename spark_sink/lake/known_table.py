"""A small Delta table in a folder, written as one Parquet file and one entry of the log, and remembered until the next.

delta-rs reads each entry since the last checkpoint when it opens a table, and plans a query for each write; of a small
table both cost many times what its rows do. Comes in: a table that delta-rs has opened (`look`). Goes out: its
commits, and at the worker's next batch the table without its log (`recall`), where the log still ends with the entry
that this process left (`remember`). Durable at each commit: the Parquet file, then the entry, which is linked under its
number where no other has it. So who is first wins, and a kill leaves a file that no version names. What a table's
protocol or properties ask of its writers beyond that is delta-rs's (`look` gives None), and so are object stores.
"""

import json
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from menura.stores.address import is_local
from menura.stores.options import delta_options

from spark_sink.landed.lake_schema import fit

#: that a process remembers; 8 kB each with 13 columns and 8 files
MOST_TABLES = 8192
#: of a remembered table
MOST_COLUMNS, MOST_FILES = 64, 8
#: of a write; a larger one is delta-rs's, which needs no copy of it in memory
MOST_ROWS, MOST_BYTES = 20_000, 16 << 20
STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
#: what a table may ask of its writers; delta-rs names all but the first when it changes a property
_FEATURES = frozenset({"timestampNtz", "appendOnly", "invariants", "variantType"})
_PROPERTIES = frozenset(
    {
        STATISTICS_PROPERTY,
        "delta.checkpointInterval",  # `retention` writes them
        "delta.logRetentionDuration",
        "delta.deletedFileRetentionDuration",
    }
)
PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")
_READ_ROWS = 1024
_LONGEST_TEXT = 32
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class File:
    name: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Known:
    """A table at a version."""

    version: int
    #: inode, size and time of the log's entry of that version: another copy of the table has others
    entry: tuple[int, int, int]
    uri: str
    schema: pa.Schema
    configuration: Mapping[str, str]
    #: of the applications that were asked for
    transactions: Mapping[str, int | None]
    #: of all files
    size_bytes: int
    #: None: more than are remembered, so rows can be appended alone
    files: tuple[File, ...] | None


#: by folder; a table is here, or in the hands of who has recalled it
_remembered: dict[str, Known] = {}


class KnownTable(DeltaTable):
    """What is asked beyond `known` is delta-rs's from then on: the table opened at the same version, so that a commit
    of another writer since then conflicts as it does with any open table."""

    def __init__(self, folder: str, known: Known, opened: DeltaTable | None = None) -> None:
        self.folder = folder
        self.known: Known | None = known
        #: at the same version
        self._opened = opened

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (Python's signature)
        if name not in ("_table", "_storage_options") or self.known is None:
            raise AttributeError(name)
        opened = self._opened or DeltaTable(self.folder, self.known.version, storage_options=delta_options(self.folder))
        self._table, self._storage_options = opened._table, opened._storage_options
        self.known = self._opened = None
        return getattr(self, name)

    def version(self) -> int:
        return self.known.version if self.known is not None else super().version()

    @property
    def table_uri(self) -> str:
        return self.known.uri if self.known is not None else super().table_uri

    def transaction_version(self, app_id: str) -> int | None:
        if self.known is not None and app_id in self.known.transactions:
            return self.known.transactions[app_id]
        return super().transaction_version(app_id)

    def write(self, rows: pa.Table, transactions: Sequence[tuple[str, int]], *, replaces: bool) -> bool:
        """Add the rows, or put them in place of all; False where delta-rs must. Raises CommitFailedError, OSError."""
        known = self.known
        if known is None or not rows.schema.equals(known.schema) or (replaces and known.files is None):
            return False
        if rows.num_rows > MOST_ROWS or rows.nbytes > MOST_BYTES:
            return False
        added = [_write_file(self.folder, rows)] if rows.num_rows else []
        actions = [
            _commit_info(replaces=replaces),
            *({"txn": {"appId": name, "version": version}} for name, version in transactions),
            *(_add(file, rows, known.configuration[STATISTICS_PROPERTY]) for file in added),
            *(map(_remove, known.files or ()) if replaces else ()),
        ]
        self.known = replace(
            known,
            version=known.version + 1,
            entry=_put_entry(self.folder, known.version + 1, actions),
            transactions={**known.transactions, **dict(transactions)},
            size_bytes=(0 if replaces else known.size_bytes) + sum(file.size_bytes for file in added),
            files=_few((*(() if replaces else known.files), *added)) if known.files is not None else None,
        )
        self._opened = None
        return True

    def read(self, most_rows: int, most_bytes: int) -> pa.Table | None:
        """All rows in the table's columns; None where files are not known, or have more.

        A file may lack columns, and those of delta-rs have views of texts, which are no texts to Arrow.
        """
        known = self.known
        files = known.files if known is not None else None
        if known is None or not files or sum(file.rows for file in files) > most_rows:
            return None
        tables: list[pa.Table] = []
        for file in files:
            with pq.ParquetFile(Path(self.folder, file.name)) as parquet:
                for batch in parquet.iter_batches(_READ_ROWS, use_threads=False):
                    most_bytes -= batch.nbytes
                    if most_bytes < 0:
                        return None
                    tables.append(fit(pa.Table.from_batches([batch]), known.schema))
        return pa.concat_tables(tables) if tables else None


def recall(folder: str) -> KnownTable | None:
    """The table, where its log ends as this process left it."""
    known = _remembered.pop(folder, None)
    if known is None or _entry(folder, known.version) != known.entry or _entry(folder, known.version + 1) is not None:
        return None
    return KnownTable(folder, known)


def remember(folder: str, table: DeltaTable, applications: Sequence[str]) -> None:
    """Until this process recalls it, with what the commits of these applications said."""
    found = table if isinstance(table, KnownTable) and table.known is not None else look(folder, table, applications)
    known = found.known if found is not None else None
    if known is None or len(known.schema) > MOST_COLUMNS:
        return
    if (
        len(_remembered) >= MOST_TABLES
    ):  # any: tables come in turns, so the oldest would be the next one that is asked for
        _remembered.pop(next(islice(_remembered, random.randrange(len(_remembered)), None)))  # noqa: S311  (no secret)
    _remembered[folder] = known


def look(folder: str, table: DeltaTable, applications: Sequence[str]) -> KnownTable | None:
    """None where a commit of ours could lack what the table asks for."""
    if not is_local(folder) or not is_plain(table):
        return None
    metadata = table.metadata()
    entry = _entry(folder, table.version())
    if entry is None:
        return None
    facts = pa.table(table.get_add_actions()).select(["path", "size_bytes", "num_records"])
    files = tuple(File(*file.values()) for file in facts.slice(0, MOST_FILES + 1).to_pylist())
    are_plain = all(PLAIN_NAME.fullmatch(file.name) and file.rows is not None for file in files)
    known = Known(
        table.version(),
        entry,
        table.table_uri,
        pa.schema(table.schema()),
        dict(metadata.configuration),
        {name: table.transaction_version(name) for name in applications},
        pc.sum(facts["size_bytes"]).as_py() or 0,
        _few(files) if are_plain else None,
    )
    return KnownTable(folder, known, table)


def is_plain(table: DeltaTable) -> bool:
    """Whether a commit of ours lacks nothing that the table asks for."""
    protocol, metadata = table.protocol(), table.metadata()
    asked = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    is_known = protocol.min_writer_version == 2 if not asked else asked <= _FEATURES
    properties = {name for name in metadata.configuration if name.startswith("delta.")}
    if not is_known or not properties <= _PROPERTIES or STATISTICS_PROPERTY not in properties:
        return False
    return not metadata.partition_columns and "delta.invariants" not in table.schema().to_json()


def _few(files: tuple[File, ...]) -> tuple[File, ...] | None:
    return files if len(files) <= MOST_FILES else None


def _entry_path(folder: str, version: int) -> Path:
    return Path(folder, "_delta_log", f"{version:020d}.json")


def _entry(folder: str, version: int) -> tuple[int, int, int] | None:
    try:
        found = _entry_path(folder, version).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _write_file(folder: str, rows: pa.Table) -> File:
    name = f"part-00000-{uuid4()}-c000.zstd.parquet"
    path = Path(folder, name)
    pq.write_table(rows, path, compression="zstd", compression_level=1)
    return File(name, path.stat().st_size, rows.num_rows)


def _put_entry(folder: str, version: int, actions: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
    """Raises CommitFailedError where another has that version."""
    draft = Path(folder, f"commit-{uuid4()}.tmp")  # what a kill leaves of it is removed as a file without a version
    path = _entry_path(folder, version)
    try:
        draft.write_text("".join(json.dumps(action, ensure_ascii=False) + "\n" for action in actions), encoding="utf-8")
        os.link(draft, path)
    except FileExistsError as taken:
        raise CommitFailedError(f"version {version} is another commit's") from taken
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()
    entry = _entry(folder, version)
    if entry is None:
        raise FileNotFoundError(2, "the log's entry is gone that was just written", str(path))
    if _last_checkpoint(folder) >= version:  # the number was free because the log below is gone: no reader looks there
        path.unlink()
        raise CommitFailedError(f"version {version} was another commit's, and a checkpoint has taken its place")
    return entry


def _last_checkpoint(folder: str) -> int:
    """Its version, which stands there before the log below is removed; -1 for none."""
    try:
        return int(json.loads(Path(folder, "_delta_log", "_last_checkpoint").read_bytes())["version"])
    except FileNotFoundError:
        return -1


def _now_ms() -> int:
    return int(time.time() * 1000)


def _commit_info(*, replaces: bool) -> dict[str, Any]:
    parameters = {"mode": "Overwrite" if replaces else "Append"}
    facts = {"timestamp": _now_ms(), "operation": "WRITE", "operationParameters": parameters, "engineInfo": "menura"}
    return {"commitInfo": facts}


def _add(file: File, rows: pa.Table, statistics_columns: str) -> dict[str, Any]:
    facts = {
        "path": file.name,
        "partitionValues": {},
        "size": file.size_bytes,
        "modificationTime": _now_ms(),
        "dataChange": True,
        "stats": json.dumps(statistics(rows, statistics_columns), ensure_ascii=False),
    }
    return {"add": facts}


def _remove(file: File) -> dict[str, Any]:
    facts = {
        "path": file.name,
        "deletionTimestamp": _now_ms(),
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.size_bytes,
    }
    return {"remove": facts}


def statistics(rows: pa.Table, columns: str) -> dict[str, Any]:
    """As a log's entry has them, of the columns that the table's property names; a bound may be wider than the rows."""
    found: dict[str, Any] = {"numRecords": rows.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in columns.strip("`").split("`,`"):
        if name not in rows.column_names:
            continue
        column = rows[name]
        found["nullCount"][name] = column.null_count
        bounds = _bounds(column)
        if bounds is not None:
            found["minValues"][name], found["maxValues"][name] = bounds
    return found


def _bounds(column: pa.ChunkedArray) -> tuple[int | str, int | str] | None:
    """None where there is no value, or one that an entry has no short word for."""
    type_ = column.type
    is_date, is_instant = pa.types.is_date32(type_), pa.types.is_timestamp(type_)
    if not (is_date or is_instant or pa.types.is_int64(type_) or pa.types.is_string(type_)):
        return None
    found = pc.min_max(column.cast(pa.int32() if is_date else pa.int64() if is_instant else type_)).as_py()
    low, high = found["min"], found["max"]
    if low is None or (isinstance(low, str) and max(len(low), len(high)) > _LONGEST_TEXT):
        return None
    if not is_date and not is_instant:
        return low, high
    # Days, or microseconds, of which the log has milliseconds.
    low, high = (low * _DAY_MS, high * _DAY_MS) if is_date else (low // 1000, -(-high // 1000))
    with suppress(OverflowError):
        return _instant_text(low, type_), _instant_text(high, type_)
    return None


def _instant_text(instant_ms: int, type_: pa.DataType) -> str:
    """Raises OverflowError where Python's calendar ends."""
    instant = datetime(1970, 1, 1) + timedelta(milliseconds=instant_ms)  # noqa: DTZ001  (UTC, or none)
    if pa.types.is_date(type_):
        return instant.date().isoformat()
    return instant.isoformat("T" if type_.tz else " ", "milliseconds") + ("Z" if type_.tz else "")
