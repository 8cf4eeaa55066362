"""A process that computes one query over tables that it is given, and can do nothing else.

Comes in, on standard input: a line of JSON with the query and bounds, then each table as an Arrow IPC stream. Goes out,
on standard output: a line of JSON, {"rows": n} or {"error": CLASS}, and after rows these as an Arrow IPC stream, in
messages of a bounded size. It is run from its source (`query_process`), without an environment, in a folder of its own
for what memory does not hold, and imports nothing of this package, which may import of it. It ends when its input
does: whoever started it has gone then.

The query is text that `menura.views.query_plan` has written. Should it ever be more, the engine has no way to a file,
an extension or a setting, and the process has neither credentials nor more memory, time or disk than its bounds.
"""

import json
import os
import resource
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
import pyarrow as pa

#: beside the engine's: of the interpreter, of libraries, and of rows as Arrow has them
OTHER_MEMORY_BYTES = 3 << 30
_NICENESS = 10
#: behind its bound of a core's time: there the kernel kills without saying why
_MORE_SECONDS = 5
#: of a batch that has more rows than one
BATCH_ROWS, BATCH_BYTES = 65_536, 16 << 20
#: functions that give the bytes of values which have no fixed size
_SIZES = {"VARCHAR": "strlen", "BLOB": "octet_length"}


def main(scratch: Path) -> None:
    given, gives = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is no answer
    task = json.loads(given.readline())
    _limit(task)
    connection = _engine(task, scratch)
    for name in task["tables"]:
        reader = pa.ipc.open_stream(given)
        connection.register("given", reader)
        connection.execute(f'CREATE TABLE "{name}" AS SELECT * FROM given')  # noqa: S608  (our own name)
        connection.unregister("given")
    threading.Thread(target=_end_with, args=(given, scratch), daemon=True).start()
    try:
        connection.execute("SET lock_configuration = true")
        most = f"LIMIT {task['most_rows'] + 1}"  # no more are computed than tell that there are too many
        connection.execute(f"CREATE TEMP TABLE found AS SELECT * FROM ({task['sql']}) {most}")  # noqa: S608
        rows, size, wrong = _measured(connection, task)
    except (duckdb.Error, MemoryError) as failed:
        _say(gives, {"error": type(failed).__name__})
        return
    if wrong:
        _say(gives, {"error": wrong})
        return
    _say(gives, {"rows": rows})
    of_batch = min(BATCH_ROWS, max(1, BATCH_BYTES * rows // max(1, size)))
    found = connection.sql("SELECT * FROM found").to_arrow_reader(of_batch)
    with pa.ipc.new_stream(gives, found.schema) as writer:
        for batch in found:
            for part in parts_of(batch, BATCH_BYTES):
                writer.write_batch(part)
    gives.flush()


def parts_of(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Its rows in their order, in batches of a row, or of no more bytes."""
    if batch.num_rows <= 1 or batch.nbytes <= most_bytes:
        yield batch
        return
    half = batch.num_rows // 2
    yield from parts_of(batch.slice(0, half), most_bytes)
    yield from parts_of(batch.slice(half), most_bytes)


def _measured(connection: duckdb.DuckDBPyConnection, task: dict[str, Any]) -> tuple[int, int, str]:
    """How many rows there are, how many bytes, and which bound they are beyond."""
    types = connection.execute("SELECT column_name, column_type FROM (DESCRIBE found)").fetchall()
    names = [(name.replace('"', '""'), type_) for name, type_ in types]
    sizes = [f'coalesce({_SIZES[type_]}("{name}"), 0)' for name, type_ in names if type_ in _SIZES]
    fixed = 16 * len(names)
    row = " + ".join([str(fixed), *sizes])
    query = f"SELECT count(*), coalesce(max({row}), 0), CAST(coalesce(sum({row}), 0) AS BIGINT) FROM found"  # noqa: S608
    rows, largest, size = connection.execute(query).fetchall()[0]
    if rows > task["most_rows"]:
        return rows, size, "TooManyRows"
    if largest > task["row_bytes"]:
        return rows, size, "RowTooLarge"
    return rows, size, "TooManyBytes" if size > task["result_bytes"] else ""


def _engine(task: dict[str, Any], scratch: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": "1",
            "memory_limit": f"{task['memory_bytes'] >> 20}MiB",
            "temp_directory": str(scratch),
            "max_temp_directory_size": f"{task['scratch_bytes'] >> 20}MiB",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "preserve_insertion_order": "false",
            "python_enable_replacements": "false",
        },
    )
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET enable_external_access = false")
    return connection


def _limit(task: dict[str, Any]) -> None:
    os.nice(_NICENESS)
    for kind, most, more in (
        (resource.RLIMIT_AS, task["memory_bytes"] + OTHER_MEMORY_BYTES, 0),
        (resource.RLIMIT_CPU, task["seconds"], _MORE_SECONDS),
        (resource.RLIMIT_FSIZE, task["scratch_bytes"], 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(kind, (most, most + more))


def _end_with(given: BinaryIO, scratch: Path) -> None:
    """End once there is no more to be read, at whatever the process is, and whether its folder is still there or not.

    The folder of a task of Spark whose worker was killed has nobody else who removes it.
    """
    try:
        given.read(1)
        shutil.rmtree(scratch, ignore_errors=True)
    finally:
        os._exit(1)


def _say(gives: BinaryIO, words: dict[str, Any]) -> None:
    gives.write(json.dumps(words).encode() + b"\n")
    gives.flush()


if __name__ == "__main__":
    own = Path.cwd()
    try:
        main(own)
    finally:  # whoever started it may have gone, and its input ended
        shutil.rmtree(own, ignore_errors=True)
