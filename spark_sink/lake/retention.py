"""What of a Delta table is not kept for ever: files that no recent version has, and the log of old versions.

Comes in: a table's folder, and for how many hours its versions stay readable. Goes out: the number of files removed.
A table is cleaned once in so many of its versions, each at its own ones. Only files go which no version of these hours
names: what a process has written and not yet committed is younger. A kill leaves files that the next cleaning
removes; the newest version is whole at each moment, since removing begins after the commit that no longer names a file.

Delta's checkpoints, which spare a reader the log before, are written here alone, each right after a cleaning. One that
came before it would forget removed files that are still there, and they would stay. So the first cleaning has the table
say that no commit writes one. Files that a killed process never committed are found by a listing, once in `LIST_EVERY`
cleanings. A kill leaves a log without the checkpoint, until the next cleaning.
"""

from zlib import crc32

import pyarrow as pa
from deltalake import DeltaTable
from menura.stores.options import delta_options

from spark_sink.landed.storage import open_storage

KEEP_HOURS = 24
#: also of checkpoints: whoever opens a table reads each commit since the last one, at 0.2 ms of CPU each
CLEAN_EVERY_VERSIONS = 32
LIST_EVERY = 32
#: between two checkpoints of commits themselves: Delta's largest
NEVER = str((1 << 31) - 1)


def is_due(folder: str, before: int | None, after: int | None, every: int = CLEAN_EVERY_VERSIONS) -> bool:
    """Whether one of the versions above `before`, up to `after`, is one at which the folder's table is cleaned."""
    return after is not None and _turn(folder, before or 0, every) < _turn(folder, after, every)


def _turn(folder: str, version: int, every: int) -> int:
    """Tables that have the same versions do not all have their turn together, and a new one has none yet."""
    return max(0, version - crc32(folder.encode()) % every) // every


def clean(folder: str, keep_hours: int) -> int:
    """Remove what no version of the last hours has. Raises OSError, DeltaError."""
    table = DeltaTable(folder, storage_options=delta_options(folder))
    wanted = {
        "delta.checkpointInterval": NEVER,
        "delta.logRetentionDuration": f"interval {keep_hours} hours",
        # Longer than files stay, or what grows old between the cleaning and the checkpoint would be forgotten.
        "delta.deletedFileRetentionDuration": f"interval {keep_hours + 1} hours",
    }
    held = table.metadata().configuration
    if any(held.get(name) != value for name, value in wanted.items()):
        table.alter.set_table_properties(wanted)
    lists = _turn(folder, table.version(), CLEAN_EVERY_VERSIONS) % LIST_EVERY == 0
    try:
        removed = table.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False, full=lists)
    finally:  # also where the storage lets nothing be removed: the next listing finds what a checkpoint has forgotten
        table.create_checkpoint()
    table.cleanup_metadata()
    return len(removed)


def is_told(folder: str, version: int) -> bool:
    """Whether the log has all that tells what this version is. Raises OSError."""
    commits, checkpoints = set[int](), {-1}
    for found in open_storage(folder).list("_delta_log"):
        number, _, kind = found.path.rpartition("/")[2].partition(".")
        if number.isdigit() and kind == "json":
            commits.add(int(number))
        elif number.isdigit() and kind.startswith("checkpoint"):
            checkpoints.add(int(number))
    begins = max(number for number in checkpoints if number <= version)
    return commits.issuperset(range(begins + 1, version + 1))


def is_whole(folder: str, table: DeltaTable) -> bool:
    """Whether all files are there that the table names at its version. Raises OSError."""
    named = set(pa.table(table.get_add_actions())["path"].to_pylist())
    return named.issubset(found.path for found in open_storage(folder).list(""))
