"""A process that computes one query over tables that it is given, and can do nothing else.

Comes in, on standard input: a line of JSON with the query and bounds, then each table as an Arrow IPC stream. Goes out,
on standard output: a line of JSON, {"rows": n} or {"error": CLASS}, and after rows these as an Arrow IPC stream. It is
run from its source (`query_process`), without an environment, in a folder of its own for what memory does not hold,
and imports nothing of this package. It ends when its input does: whoever started it has gone then.

The query is text that `menura.views.query_plan` has written. Should it ever be more, the engine has no way to a file,
an extension or a setting, and the process has neither credentials nor more memory, time or disk than its bounds.
"""

import json
import os
import resource
import shutil
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
import pyarrow as pa

#: beside the engine's: of the interpreter, of libraries, and of rows as Arrow has them
OTHER_MEMORY_BYTES = 3 << 30
_NICENESS = 10
_BATCH_ROWS = 65_536


def main() -> None:
    given, gives = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is no answer
    task = json.loads(given.readline())
    _limit(task)
    connection = _engine(task)
    for name in task["tables"]:
        reader = pa.ipc.open_stream(given)
        connection.register("given", reader)
        connection.execute(f'CREATE TABLE "{name}" AS SELECT * FROM given')  # noqa: S608  (our own name)
        connection.unregister("given")
    threading.Thread(target=_end_with, args=(given,), daemon=True).start()
    try:
        connection.execute("SET lock_configuration = true")
        connection.execute(f"CREATE TEMP TABLE found AS {task['sql']}")
        rows = connection.execute("SELECT count(*) FROM found").fetchall()[0][0]
    except (duckdb.Error, MemoryError) as failed:
        _say(gives, {"error": type(failed).__name__})
        return
    if rows > task["most_rows"]:
        _say(gives, {"error": "TooManyRows"})
        return
    _say(gives, {"rows": rows})
    found = connection.sql("SELECT * FROM found").to_arrow_reader(_BATCH_ROWS)
    with pa.ipc.new_stream(gives, found.schema) as writer:
        for batch in found:
            writer.write_batch(batch)
    gives.flush()


def _engine(task: dict[str, Any]) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": "1",
            "memory_limit": f"{task['memory_bytes'] >> 20}MiB",
            "temp_directory": str(Path.cwd()),
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
    for kind, most in (
        (resource.RLIMIT_AS, task["memory_bytes"] + OTHER_MEMORY_BYTES),
        (resource.RLIMIT_CPU, task["seconds"]),
        (resource.RLIMIT_FSIZE, task["scratch_bytes"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def _end_with(given: BinaryIO) -> None:
    """End once there is no more to be read, at whatever the process is."""
    given.read(1)
    shutil.rmtree(Path.cwd(), ignore_errors=True)
    os._exit(1)


def _say(gives: BinaryIO, words: dict[str, Any]) -> None:
    gives.write(json.dumps(words).encode() + b"\n")
    gives.flush()


if __name__ == "__main__":
    try:
        main()
    finally:  # whoever started it may have gone, and its input ended
        shutil.rmtree(Path.cwd(), ignore_errors=True)
