"""Which table each task is at, for the driver to read once a worker was killed: a file of each task on this machine.

Comes in: a folder of a job's own. A task writes the table that it begins with, and takes the file away when it ends. So
after a kill there are files of the killed task and of those that Spark has not ended yet.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from uuid import uuid4

from spark_sink.work import TableId


@contextmanager
def told_at_work(folder: str) -> Iterator[Callable[[TableId], object]]:
    """Of a task; it calls what this gives for each table. `folder`: '' for none."""
    if not folder:
        yield lambda _: None
        return
    mark = Path(folder, uuid4().hex)

    def begins(table: TableId) -> None:
        with suppress(OSError):  # a full disk leaves an empty file, which says nothing
            mark.write_text(json.dumps(astuple(table)))

    try:
        yield begins
    finally:
        with suppress(OSError):
            mark.unlink(missing_ok=True)


def tables_at_work(folder: str) -> frozenset[TableId]:
    """Of tasks that have not ended; none where one of them does not say at which it is."""
    found = set()
    for path in Path(folder).iterdir():
        with suppress(FileNotFoundError):  # its task has just ended
            try:
                found.add(TableId(*json.loads(path.read_text())))
            except ValueError:
                return frozenset()
    return frozenset(found)
