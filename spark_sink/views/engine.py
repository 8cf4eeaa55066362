"""The SQL engine of views, DuckDB: one connection per piece of work, in memory, with Arrow in and out.

Building a view and following changes use the same engine and the same text (`menura.views.expressions`), so they agree
on every value. It has one thread, a bound of memory beyond which it writes to a scratch folder, which has one too, and
no way to a file, a network or an extension, whatever a view's text says.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import duckdb
import pyarrow as pa
from menura.stores.reasons import reason_of
from menura.stores.store import StoreFailed
from menura.views.terms import quoted

from spark_sink.errors import ViewNotComputed
from spark_sink.views.query_main import BATCH_BYTES, BATCH_ROWS, parts_of
from spark_sink.views.scratch import scratch_folder

MEMORY_BYTES = 1 << 30
#: of what is written to the scratch folder
SCRATCH_BYTES = 64 << 30
#: that the engine itself has at once: it gives no fewer without having them all
_VECTOR_ROWS = 2048
_SETTINGS = {
    "threads": "1",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "preserve_insertion_order": "false",
    "python_enable_replacements": "false",
}


class Engine:
    """Tables by name, and SQL over them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, room: str) -> None:
        """`room`: what an error says that it has."""
        self._connection = connection
        self._room = room
        #: why rows that somebody has put could not be read
        self._unread: Exception | None = None

    def put(self, name: str, rows: pa.Table | pa.RecordBatchReader) -> None:
        """Know rows under this name; a reader can be read once.

        A reader that fails has the query that reads it fail likewise, but for Arrow's errors: an OSError.
        """
        if isinstance(rows, pa.RecordBatchReader):
            rows = pa.RecordBatchReader.from_batches(rows.schema, self._noting(rows))
        self._connection.register(name, rows)

    def keep(self, name: str, query: str) -> None:
        """Know the result of a query under this name; it may be written to the scratch folder."""
        with self._computing():
            self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {quoted(name)} AS {query}")

    def table(self, query: str) -> pa.Table:
        """Raises `ViewNotComputed`; OSError, DeltaError where rows can't be read."""
        with self._computing():
            return plain(self._connection.sql(query).to_arrow_table())

    def reader(self, query: str) -> Iterator[pa.RecordBatch]:
        """The same in batches, none with more than `BATCH_ROWS`, nor `BATCH_BYTES` unless one row has more."""
        with self._computing():
            for batches in _gathered(self._connection.sql(query).to_arrow_reader(_VECTOR_ROWS)):
                yield from plain(pa.Table.from_batches(batches)).combine_chunks().to_batches()

    def _noting(self, rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """The engine's own error does not say which one it had."""
        try:
            yield from rows
        except Exception as failed:
            self._unread = failed
            raise

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """An error's text may hold values: it stays here, but for its class."""
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as failed:
            unread, self._unread = self._unread, None
            if isinstance(unread, pa.ArrowException):  # delta-rs's scans say so of their store
                raise StoreFailed(reason_of(unread), "reading rows") from unread
            if unread is not None:
                raise unread from failed
            if not isinstance(failed, duckdb.Error):
                raise
            raise _not_computed(failed, self._room) from failed

    def number(self, query: str) -> int:
        return int(self.table(query).column(0)[0].as_py() or 0)


@contextmanager
def engine(memory_bytes: int = MEMORY_BYTES, scratch_bytes: int = SCRATCH_BYTES) -> Iterator[Engine]:
    with scratch_folder() as (scratch, _):
        settings: dict[str, str | bool | int | float | list[str]] = {
            **_SETTINGS,
            "memory_limit": f"{memory_bytes >> 20}MiB",
            "temp_directory": scratch,
            "max_temp_directory_size": f"{scratch_bytes >> 20}MiB",
        }
        connection = duckdb.connect(":memory:", config=settings)
        try:
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            room = f"{memory_bytes >> 20} MiB of memory at once, or than {scratch_bytes >> 20} MiB on disk"
            yield Engine(connection, room)
        finally:
            connection.close()


def _not_computed(failed: duckdb.Error, room: str) -> ViewNotComputed:
    kind = type(failed).__name__
    found = f"the engine says {kind}" + (": a value is beyond its type" if kind in _BEYOND else "")
    if isinstance(failed, duckdb.OutOfMemoryException):
        found = f"it needs more than {room}"
    return ViewNotComputed(
        "computing a view's rows",
        found,
        data="The view stays at its last version; tables and other views go on",
        remedy="Change the view's text, e.g. cast to a wider type, or mend the row in its source",
    )


_BEYOND = ("OutOfRangeException", "ConversionException")


def plain(rows: pa.Table) -> pa.Table:
    """In the lake's types: the engine's times have a time zone of the session, whose instant is the same."""
    fields = [field.with_type(_plain(field.type)) for field in rows.schema]
    return rows.cast(pa.schema(fields))


def _plain(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return pa.timestamp("us", "UTC")
    return {
        pa.large_string(): pa.string(),
        pa.string_view(): pa.string(),
        pa.binary_view(): pa.binary(),
        pa.large_binary(): pa.binary(),
    }.get(type_, type_)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Batches that are to be one."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for part in (part for batch in batches for part in parts_of(batch, BATCH_BYTES)):
        if held and (rows + part.num_rows > BATCH_ROWS or size_bytes + part.nbytes > BATCH_BYTES):
            yield held
            held, rows, size_bytes = [], 0, 0
        held.append(part)
        rows, size_bytes = rows + part.num_rows, size_bytes + part.nbytes
    if held:
        yield held


def put_all(sql: Engine, tables: Mapping[str, pa.Table | pa.RecordBatchReader]) -> None:
    for name, rows in tables.items():
        sql.put(name, rows)
