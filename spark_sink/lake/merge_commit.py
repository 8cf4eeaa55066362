"""The commit of a merge that was prepared beside batches (`file_merge`): the table's next version, or nothing.

Comes in: the files, and what they were made from. Goes out: one commit, whose entry of Delta's log is put under a
number that is free. It is given up where the table is not exactly what the files were made from: another version of the
current state, whatever made it, another table in the folder, another tail. So whatever else was done to the table
meanwhile stands, and what waits is merged anew from there. Batches that have appended to the changelog alone are in
nobody's way: their changes stand above what is merged here, and wait on.

Only the driver commits, between two batches, so no task that lives on can commit what was given up. A kill before the
commit leaves files without a version: those of the next version are removed before another merge is prepared, the
others by the table's cleaning (`retention`).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from menura.instants import now_us
from menura.stores.address import is_local
from menura.stores.store import OutcomeUnknown

from spark_sink.lake.delta_table import Transactions, open_table, progress_transactions, read_progress, size_bytes
from spark_sink.lake.file_merge import (
    EFFECT_PREFIX,
    Basis,
    MergePlan,
    PreparedMerge,
    current_folder,
    files_prefix,
    identity,
    log_folder,
    recorded_changelog,
)
from spark_sink.lake.recorded import Recorded
from spark_sink.lake.schema_policy import read_departure
from spark_sink.lake.tail import Tail, Waiting, read_tail
from spark_sink.landed.storage import open_storage
from spark_sink.work import TableId

#: after which a store has carried out what it was asked for
LATE_COMMIT_US = 3_600_000_000


def begin_merge(lake: str, table: TableId) -> int | None:
    """The current state's version; None: there is none. What a kill has left of a merge into the next one goes.

    Only who commits may call it. Raises OSError, DeltaError.
    """
    current = open_table(current_folder(lake, table))
    if current is None:
        return None
    version = int(current.version())
    remove_left(lake, table, version)
    return version


def remove_left(lake: str, table: TableId, version: int) -> None:
    """Files of merges into the version after this one, which was none of these, and all effects. Raises OSError."""
    folder, prefixes = current_folder(lake, table), (files_prefix(version + 1), EFFECT_PREFIX)
    store = open_storage(folder)
    # A store may still be about to carry out a commit of which a killed process, or this one, has seen no answer.
    before_us = now_us() - (0 if is_local(folder) else LATE_COMMIT_US)
    left = [found for found in store.list("") if found.path.startswith(prefixes)]
    store.delete([found.path for found in left if found.modified_us <= before_us])


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


def commit_merge(lake: str, prepared: PreparedMerge, cut: int, waiting: Waiting) -> MergeCommitted | None:
    """Let the prepared files be the table's next version; None: the table is not what they were made from.

    `cut`: the boundary at which the table stands, and which it must not have passed.

    The caller keeps batches away. Raises OSError, DeltaError: then the files may be named, and stay.
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
    there = {found.path for found in open_storage(folder).list("")}
    if not there.issuperset(each.name for each in prepared.added):
        return None
    transactions = progress_transactions(application, basis.cut, basis.gsn)
    try:
        _put_entry(folder, basis.current_version + 1, _actions(prepared, transactions))
    except CommitFailedError:
        return None
    rest_gsn = basis.gsn if tail.gsn > basis.gsn else 0
    until_us = now_us() + int(waiting.seconds_of(size_bytes(current)) * 1e6)
    return MergeCommitted(basis.current_version + 1, rest_gsn, until_us, read_departure(current).words)


def _is_same(basis: Basis, current: DeltaTable, changelog: DeltaTable, tail: Tail) -> bool:
    are_same = identity(current) == basis.current_id and identity(changelog) == basis.changelog_id
    return are_same and current.version() == basis.current_version and tail.gsn >= basis.gsn


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


def remove_effect(lake: str, plan: MergePlan) -> None:
    """Of a merge that is committed. Raises OSError."""
    open_storage(current_folder(lake, plan.table)).delete([each.name for each in plan.effect])


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


def _put_entry(folder: str, version: int, actions: Iterator[Mapping[str, Any]]) -> None:
    """Raises CommitFailedError where another has that version, OSError."""
    document = "".join(json.dumps(action, ensure_ascii=False) + "\n" for action in actions).encode()
    store, path = open_storage(folder), f"_delta_log/{version:020d}.json"
    try:
        is_ours = store.put_if_absent(path, document)
    except OutcomeUnknown:
        found = store.read(path)
        if found is None:
            raise  # it may be there later
        is_ours = found == document
    if not is_ours:
        raise CommitFailedError(f"version {version} is another commit's")
