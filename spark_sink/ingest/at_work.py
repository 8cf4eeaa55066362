"""Which tables Spark's Python processes are at, so that of a process that was killed its table is known.

Comes in: a table, before a task writes it. Goes out: a file of the process in the job's folder, on this machine's own
disk, with the table; it goes once the table is written. What a killed process leaves says where to look first, and no
more than that (`isolation`): a file that is not there, or that is half written, costs time alone. A cluster's processes
have no folder in common, and none for this.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from spark_sink.work import TableId


@contextmanager
def folder_of_job(master: str) -> Iterator[str]:
    """For one job; '' where its processes are elsewhere."""
    if not master.startswith("local"):
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="menura-at-work-", ignore_cleanup_errors=True) as folder:
        yield folder


@contextmanager
def at_work(folder: str, table: TableId) -> Iterator[None]:
    """The process is at the table."""
    mark = Path(folder, str(os.getpid())) if folder else None
    if mark is not None:
        with suppress(OSError):  # a full disk: the table itself will say so
            mark.write_text(json.dumps(asdict(table)))
    try:
        yield
    finally:
        if mark is not None:
            with suppress(OSError):
                mark.unlink(missing_ok=True)


def suspects(folder: str) -> set[TableId]:
    """The tables that processes of the job were at when it ended."""
    found = set()
    for mark in Path(folder).iterdir() if folder else ():
        with suppress(OSError, ValueError, TypeError):
            found.add(TableId(**json.loads(mark.read_text())))
    return found
