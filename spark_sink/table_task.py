"""What a Spark task does with its rows of the cut log: one table after the other, an outcome each.

A fault of one table is its outcome, never the task's end, so that other tables go on.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import TypeVar

from deltalake.exceptions import CommitFailedError
from pyspark.sql import Row

from spark_sink.errors import LakeStorageFailed, TableStopped, TableUnexpected
from spark_sink.landing_log import LandingLog
from spark_sink.table_writer import apply_files
from spark_sink.work import Outcome, Result, TableFile, TableId, encode, split_rows

STORAGE_ATTEMPTS = 3
STORAGE_PAUSE_SECONDS = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskSettings:
    landing: str
    lake: str
    #: tables that wait for somebody; their files are left alone
    stopped: frozenset[TableId]
    #: landed rows and bytes of one table from which on the driver merges it with Spark
    large_rows: int
    large_bytes: int


def table_task(settings: TaskSettings) -> Callable[[Iterable[Row]], Iterator[str]]:
    """A function for `RDD.mapPartitions`: rows of `cut_log_source.ROW_SCHEMA` in, messages of `work` out.

    Not `mapInArrow`, which does the same but wants pandas installed; the rows are names and numbers.
    """

    def run(rows: Iterable[Row]) -> Iterator[str]:
        cuts, tables = split_rows(row.asDict() for row in rows)
        for cut in cuts:
            yield encode(cut)
        for outcome in apply_tables(settings, tables.items()):
            yield encode(outcome)

    return run


def apply_tables(settings: TaskSettings, tables: Iterable[tuple[TableId, Sequence[TableFile]]]) -> Iterator[Outcome]:
    log = LandingLog(settings.landing)
    for table, files in tables:
        if table in settings.stopped:
            continue
        rows, size_bytes = sum(file.rows for file in files), sum(file.bytes for file in files)
        if rows > settings.large_rows or size_bytes > settings.large_bytes:
            yield Outcome(table, Result.LARGE, files[0].entry, files[-1].cut, rows, files=tuple(files))
        else:
            yield apply_table(log, settings.lake, table, files)


def apply_table(log: LandingLog, lake: str, table: TableId, files: Sequence[TableFile]) -> Outcome:
    """One table's outcome, whatever happens to it."""
    began = time.monotonic()
    entry, cut, rows = files[0].entry, files[-1].cut, sum(file.rows for file in files)
    try:
        versions = with_storage_retries(table, cut, lambda: apply_files(log, lake, table, files))
    except TableStopped as stop:
        return stopped(table, entry, cut, stop)
    except Exception as unexpected:  # noqa: BLE001  (the table's top: one table never stops another)
        return stopped(table, entry, cut, unexpected_stop(table, cut, unexpected))
    return Outcome(
        table,
        Result.APPLIED if versions.changed else Result.SKIPPED,
        entry,
        cut,
        rows if versions.changed else 0,
        round(time.monotonic() - began, 4),
        versions.changelog,
        versions.current,
    )


def with_storage_retries(table: TableId, cut: int, apply: Callable[[], T]) -> T:
    """`apply`, again after a pause while the storage fails. Raises `LakeStorageFailed` at the end."""
    attempt = 1
    while True:
        try:
            return apply()
        except (OSError, CommitFailedError) as failure:
            if attempt == STORAGE_ATTEMPTS:
                raise LakeStorageFailed(
                    "writing the table in the lake",
                    f"{type(failure).__name__} in {STORAGE_ATTEMPTS} attempts",
                    data="The table stays at its last version; other tables go on",
                    remedy="It is tried again by itself; check the lake's storage",
                    **table.where(cut),
                ) from failure
        time.sleep(STORAGE_PAUSE_SECONDS * attempt)
        attempt += 1


def unexpected_stop(table: TableId, cut: int, unexpected: Exception) -> TableUnexpected:
    """Names the class and the place alone: the text of an engine's error may hold values."""
    package = str(Path(__file__).parent)
    ours = [frame for frame in extract_tb(unexpected.__traceback__) if frame.filename.startswith(package)]
    place = f"{ours[-1].name}, line {ours[-1].lineno}"
    return TableUnexpected(
        "writing the table in the lake",
        f"{type(unexpected).__name__} in {place}",
        data="The table stays at its last version; other tables go on",
        remedy="Report this as a bug; the table is tried again when the sink starts",
        **table.where(cut),
    )


def stopped(table: TableId, entry: int, cut: int, stop: TableStopped) -> Outcome:
    return Outcome(table, Result.STOPPED, entry, cut, code=stop.code, message=str(stop), terminal=stop.terminal)
