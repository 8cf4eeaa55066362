"""Which table each task is at, for the driver to read once a worker was killed: a file of each task on this machine.

Comes in: a folder of a job's own. A task writes the table that it begins with, and takes the file away when it ends. So
after a kill there are files of the killed task and of those that Spark has not ended yet.
"""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from spark_sink.work import TableId

logger = logging.getLogger("menura.sink")


@contextmanager
def job_folder(*, is_wanted: bool) -> Iterator[str]:
    """Of a job's own; '': none is wanted, or this machine has no room for one."""
    if not is_wanted:
        yield ""
        return
    try:
        made = TemporaryDirectory(prefix="menura-at-work-", ignore_cleanup_errors=True)
    except OSError as failed:
        logger.warning("tasks do not say at which tables they are error=%s", type(failed).__name__)
        yield ""
        return
    with made as folder:
        yield folder


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
    """Of tasks that have not ended; none where one of them does not say at which it is, or the folder is gone."""
    found = set()
    try:
        paths = list(Path(folder).iterdir()) if folder else []
    except OSError:
        return frozenset()
    for path in paths:
        with suppress(FileNotFoundError):  # its task has just ended
            try:
                found.add(TableId(*json.loads(path.read_text())))
            except ValueError:
                return frozenset()
    return frozenset(found)
