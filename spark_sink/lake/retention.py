"""What of a Delta table is not kept for ever: files that no recent version has, and the log of old versions.

Comes in: a table's folder, and for how many hours its versions stay readable. Goes out: the number of files removed.
A table is cleaned once in so many of its versions, each at its own ones. Only files go which no version of these hours
names: what a process has written and not yet committed is younger. A kill leaves files that the next cleaning
removes; the newest version is whole at each moment, since removing begins after the commit that no longer names a file.

Removed files stay in Delta's log for twice as long, so that they are found there without listing the folder; files that
a killed process never committed are found by a listing, once in `LIST_EVERY` cleanings. Delta's own checkpoints, which
delta-rs writes each 100 versions, take the old log away.
"""

from zlib import crc32

from deltalake import DeltaTable
from menura.stores.options import delta_options

KEEP_HOURS = 24
CLEAN_EVERY_VERSIONS = 64
LIST_EVERY = 16


def is_due(folder: str, before: int | None, after: int | None, every: int = CLEAN_EVERY_VERSIONS) -> bool:
    """Whether one of the versions above `before`, up to `after`, is one at which the folder's table is cleaned."""
    return after is not None and _turn(folder, before or 0, every) < _turn(folder, after, every)


def _turn(folder: str, version: int, every: int) -> int:
    """Tables that have the same versions do not all have their turn together."""
    return (version + crc32(folder.encode()) % every) // every


def clean(folder: str, keep_hours: int) -> int:
    """Remove what no version of the last hours has. Raises OSError, DeltaError."""
    table = DeltaTable(folder, storage_options=delta_options(folder))
    wanted = {
        "delta.logRetentionDuration": f"interval {keep_hours} hours",
        "delta.deletedFileRetentionDuration": f"interval {2 * keep_hours} hours",
    }
    held = table.metadata().configuration
    if any(held.get(name) != value for name, value in wanted.items()):
        table.alter.set_table_properties(wanted)
    lists = _turn(folder, table.version(), CLEAN_EVERY_VERSIONS) % LIST_EVERY == 0
    removed = table.vacuum(keep_hours, dry_run=False, enforce_retention_duration=False, full=lists)
    return len(removed)
