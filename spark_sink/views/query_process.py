"""A query in a process of its own (`query_main`), which is given its tables' rows and has nothing else.

Comes in: the engine's text, and tables by name, each read once. Goes out: rows, or a `ViewNotComputed` which says the
bound or the kind of value that ended it; its text has no values. Nothing is kept: the process's folder goes with it.

The process has no environment, so no credentials; its interpreter takes its code from this text alone. It is killed
once its time is over, and ends by itself beyond its memory, or when this process goes.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import IO

import pyarrow as pa
from menura.stores.reasons import reason_of
from menura.stores.store import StoreFailed

from spark_sink.errors import ViewNotComputed
from spark_sink.views.child_process import started
from spark_sink.views.scratch import scratch_folder

#: what libraries need to do the same everywhere
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
_MOST_LINE_BYTES = 1 << 16
#: of a stream and of a message beside its values
_STREAM_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one query."""

    #: of the engine, which writes more to its folder
    memory_bytes: int = 1 << 30
    scratch_bytes: int = 16 << 30
    #: from its start to its last row, and of a core's time
    seconds: int = 300
    rows: int = 10_000_000
    result_bytes: int = 4 << 30
    row_bytes: int = 128 << 20


BOUNDS = Bounds()


class _Gone(Exception):
    """The process does not go on."""


@contextmanager
def computed(
    sql: str, tables: Mapping[str, pa.RecordBatchReader], bounds: Bounds = BOUNDS
) -> Iterator[pa.RecordBatchReader]:
    """The query's rows, to be read once within this.

    Raises `ViewNotComputed`, also while rows are read; `StoreFailed`, OSError, DeltaError where a table can't be read.
    """
    with scratch_folder() as (scratch, lock):
        command = [sys.executable, "-I", "-c", _source()]
        with started(command, scratch, _ENVIRONMENT, seconds=bounds.seconds, holds=[lock]) as child:
            try:
                _send(child.given, sql, tables, bounds)
                yield _rows(child.gives, bounds)
            except _Gone as gone:
                raise _not_computed(child.ended()) from gone


def _source() -> str:
    return resources.files("spark_sink.views").joinpath("query_main.py").read_text()


def _send(to: IO[bytes], sql: str, tables: Mapping[str, pa.RecordBatchReader], bounds: Bounds) -> None:
    task = {
        "sql": sql,
        "tables": list(tables),
        "memory_bytes": bounds.memory_bytes,
        "scratch_bytes": bounds.scratch_bytes,
        "seconds": bounds.seconds,
        "most_rows": bounds.rows,
        "result_bytes": bounds.result_bytes,
        "row_bytes": bounds.row_bytes,
    }
    with _writing():
        to.write(json.dumps(task).encode() + b"\n")
    for rows in tables.values():
        with _writing():
            writer = pa.ipc.new_stream(to, rows.schema)
        for batch in _read(rows):
            with _writing():
                writer.write_batch(batch)
        with _writing():
            writer.close()
    with _writing():
        to.flush()


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as broken:
        raise _Gone from broken


def _read(rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    try:
        yield from rows
    except pa.ArrowException as failed:  # delta-rs's scans say so of their store
        raise StoreFailed(reason_of(failed), "reading rows") from failed


def _rows(of: IO[bytes], bounds: Bounds) -> pa.RecordBatchReader:
    line = of.readline(_MOST_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise _Gone
    said = json.loads(line)
    if "error" in said:
        raise _not_computed(_REASONS.get(said["error"], f"the engine says {said['error']}").format(**_words(bounds)))
    if not isinstance(said.get("rows"), int) or not 0 <= said["rows"] <= bounds.rows:
        raise _Gone
    try:
        rows = pa.ipc.open_stream(_Bounded(of, bounds))
    except (OSError, pa.ArrowException) as broken:
        raise _Gone from broken
    return pa.RecordBatchReader.from_batches(rows.schema, _counted(rows, said["rows"]))


class _Bounded:
    """The process's answer as a file, of which no part is read, and no memory taken, that is beyond a bound.

    Whoever reads a stream asks for a message's head, and then for as many bytes as that says.
    """

    closed = False

    def __init__(self, of: IO[bytes], bounds: Bounds) -> None:
        self._of = of
        self._bounds = bounds
        self._left = bounds.result_bytes + _STREAM_BYTES

    def read(self, size: int) -> bytes:
        if size > self._bounds.row_bytes + _STREAM_BYTES:
            raise _not_computed(_REASONS["RowTooLarge"].format(**_words(self._bounds)))
        if size > self._left:
            raise _not_computed(_REASONS["TooManyBytes"].format(**_words(self._bounds)))
        self._left -= size
        return self._of.read(size)

    def close(self) -> None:
        """The pipe is closed by who has opened it."""


def _counted(rows: pa.RecordBatchReader, count: int) -> Iterator[pa.RecordBatch]:
    """As many rows as were said: where the process is killed between two batches, the stream just ends."""
    while True:
        try:
            batch = rows.read_next_batch()
            batch.validate()
        except StopIteration:
            if count:
                raise _Gone from None
            return
        except (OSError, pa.ArrowException) as broken:
            raise _Gone from broken
        count -= batch.num_rows
        if count < 0:
            raise _Gone
        yield batch


def _words(bounds: Bounds) -> dict[str, str]:
    return {
        "memory": f"{bounds.memory_bytes >> 20} MiB",
        "scratch": f"{bounds.scratch_bytes >> 20} MiB",
        "rows": f"{bounds.rows:,}",
        "result": f"{bounds.result_bytes >> 20} MiB",
        "row": f"{bounds.row_bytes >> 20} MiB",
    }


_MEMORY = "it needs more than {memory} of memory at once, or than {scratch} on disk"
_REASONS = {
    "OutOfMemoryException": _MEMORY,
    "MemoryError": _MEMORY,
    "TooManyRows": "it has more than {rows} rows",
    "TooManyBytes": "its rows have more than {result}",
    "RowTooLarge": "one of its rows has more than {row}",
    "ConversionException": "a value is beyond its type",
    "OutOfRangeException": "a value is beyond its type",
    "InvalidInputException": "the engine says InvalidInputException, e.g. where a sub-query that stands for a value has"
    " several rows",
}


def _not_computed(found: str) -> ViewNotComputed:
    return ViewNotComputed(
        "recomputing a view",
        found,
        data="The view stays at its last version; tables and other views go on",
        remedy="It is tried again at its next time; have its query read or give less, cast to a wider type, or mend the"
        " row in its source",
    )
