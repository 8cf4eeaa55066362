"""The commit of a merge that was prepared beside batches (`file_merge`): the table's next version, or nothing.

Comes in: the files, and what they were made from. Goes out: one commit, whose entry of Delta's log is put under a
number that is free. It is given up where the table is not exactly what the files were made from: another version of the
current state, whatever made it, another table in the folder, another tail. So whatever else was done to the table
meanwhile stands, and what waits is merged anew from there. Batches that have appended to the changelog alone are in
nobody's way: their changes stand above what is merged here, and wait on.

Only the driver commits, between two batches, so no task that lives on can commit what was given up. A kill before the
commit leaves files without a version, which are known by their names (`merge_record`).
"""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from errno import EBADMSG, EEXIST, ESTALE
from typing import Any

from deltalake import DeltaTable
from menura.instants import now_us
from menura.stores.store import OutcomeUnknown

from spark_sink.lake.delta_table import Transactions, open_table, progress_transactions, read_progress, size_bytes
from spark_sink.lake.file_merge import (
    Basis,
    PreparedMerge,
    current_folder,
    identity,
    log_folder,
    recorded_changelog,
)
from spark_sink.lake.merge_record import entry, entry_path
from spark_sink.lake.recorded import Recorded
from spark_sink.lake.schema_policy import read_departure
from spark_sink.lake.tail import Tail, Waiting, read_tail
from spark_sink.landed.storage import open_storage
from spark_sink.work import TableId

#: looks at files at once
LOOKS = 16


@dataclass(frozen=True, slots=True)
class MergeCommitted:
    """Where a table is with it."""

    #: the current state's version
    current: int
    #: up to which number that is, and when what waits on is to be merged; 0: nothing does
    merged_gsn: int
    until_us: int
    #: in what the current state is not its source's table
    departure: str


def current_version(lake: str, table: TableId) -> int | None:
    """The current state's; None: there is none. Raises DeltaError, OSError."""
    current = open_table(current_folder(lake, table))
    return int(current.version()) if current is not None else None


def commit_merge(lake: str, prepared: PreparedMerge, cut: int, waiting: Waiting) -> MergeCommitted | None:
    """Let the prepared files be the table's next version; None: the table is not what they were made from.

    `cut`: the boundary at which the table stands, and which it must not have passed.

    The caller keeps batches away. Raises OSError, DeltaError: then the files may be named, and stay until that is
    settled (`merge_record.settle`).
    """
    plan, folder = prepared.plan, current_folder(lake, prepared.plan.table)
    basis, application = plan.basis, plan.table.application
    current, changelog = open_table(folder), open_table(log_folder(lake, plan.table))
    if current is None or changelog is None:
        return None
    tail = read_tail(changelog, application, read_progress(current, application))
    if tail is None or not _is_same(basis, current, changelog, tail):
        return None
    logged = read_progress(changelog, application)
    if tail.gsn < logged.gsn or cut < logged.cut:
        return None  # of a batch that did not end
    if not _are_there(folder, prepared):
        return None
    transactions = progress_transactions(application, basis.cut, basis.gsn)
    _put_entry(folder, basis.current_version + 1, entry(_actions(prepared, transactions)))
    rest_gsn = basis.gsn if tail.gsn > basis.gsn else 0
    until_us = now_us() + int(waiting.seconds_of(size_bytes(current)) * 1e6)
    return MergeCommitted(basis.current_version + 1, rest_gsn, until_us, read_departure(current).words)


def _are_there(folder: str, prepared: PreparedMerge) -> bool:
    """Whether all of its files are; not by a listing, which has all that the table ever had within its horizon."""
    store = open_storage(folder)
    with ThreadPoolExecutor(LOOKS) as looks:
        return None not in looks.map(store.find, [each.name for each in prepared.added])


def _is_same(basis: Basis, current: DeltaTable, changelog: DeltaTable, tail: Tail) -> bool:
    are_same = identity(current) == basis.current_id and identity(changelog) == basis.changelog_id
    return are_same and current.version() == basis.current_version and tail.gsn >= basis.gsn


def has_tail(lake: str, table: TableId) -> bool:
    """Whether changes of the table wait. Raises OSError, DeltaError."""
    current, changelog = open_table(current_folder(lake, table)), open_table(log_folder(lake, table))
    if current is None:
        return False
    return read_tail(changelog, table.application, read_progress(current, table.application)) is not None


def merged_version(lake: str, table: TableId, recorded: Recorded) -> MergeCommitted | None:
    """Where a table is whose last merge was not recorded; None: it was, or this is something else.

    The current state is beyond its recorded version, and holds exactly what the recorded changelog does. Raises
    OSError, DeltaError.
    """
    current = open_table(current_folder(lake, table))
    if current is None or recorded.changelog is None or current.version() <= (recorded.current or 0):
        return None
    changelog = recorded_changelog(lake, table, recorded)
    held, logged = (read_progress(each, table.application) for each in (current, changelog))
    if (held.cut, held.gsn) != (logged.cut, logged.gsn):
        return None
    return MergeCommitted(int(current.version()), 0, 0, read_departure(current).words)


def _actions(prepared: PreparedMerge, transactions: Transactions) -> Iterator[Mapping[str, Any]]:
    at_ms = now_us() // 1000
    yield {"commitInfo": {"timestamp": at_ms, "operation": "MERGE", "operationParameters": {}, "engineInfo": "menura"}}
    for name, version in transactions:
        yield {"txn": {"appId": name, "version": version}}
    for gone in prepared.removed:
        removed = {"deletionTimestamp": at_ms, "extendedFileMetadata": True, "size": gone.size_bytes}
        yield {"remove": {"path": gone.name, "dataChange": True, "partitionValues": {}, **removed}}
    for new in prepared.added:
        added = {"size": new.size_bytes, "modificationTime": at_ms, "stats": new.statistics}
        yield {"add": {"path": new.name, "dataChange": True, "partitionValues": {}, **added}}


def _put_entry(folder: str, version: int, document: bytes) -> None:
    """Raises OSError where it is not known to be the version's.

    Once a put was issued, only `settle` may say that files go. A put that a proxy repeats, or a link on NFS, finds its
    own entry there. A checkpoint above it names our files where it was made since, and does not where the number was
    free because the log below that checkpoint is gone.
    """
    store, path = open_storage(folder), entry_path(version)
    try:
        is_ours = store.put_if_absent(path, document) or store.read(path) == document
    except OutcomeUnknown:
        if store.read(path) != document:
            raise
        is_ours = True
    if not is_ours:
        raise FileExistsError(EEXIST, f"version {version} is another commit's")
    if _last_checkpoint(folder) >= version:
        raise OSError(ESTALE, f"a checkpoint stands at version {version} or above it")


def _last_checkpoint(folder: str) -> int:
    """Its version; -1: there is none. Raises OSError."""
    document = open_storage(folder).read("_delta_log/_last_checkpoint")
    try:
        return int(json.loads(document)["version"]) if document is not None else -1
    except (ValueError, KeyError, TypeError) as broken:
        raise OSError(EBADMSG, "the table's _last_checkpoint is no document of Delta's") from broken
