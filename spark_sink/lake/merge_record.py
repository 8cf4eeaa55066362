"""Which files a merge that is prepared beside batches has written: each is named before it is written.

Comes in: names of files, from the tasks that are about to write them. Goes out: what may be removed, and its removal.
A preparation has an id of its own, which is part of its files' names, so nobody else has such a name::

    LAKE/_menura/merges/ID/NAME.json          NAME may be a file of the table's: of which one, and for which version
    LAKE/_menura/merges/ID/effect-*.parquet   what the tail does to rows (`file_merge`)

So nothing is removed by a version's number, and nothing has to be searched for: a listing has what is prepared now, and
what was left. Files that nobody has tried to commit go at once. Of others, as of a process that was killed, or of which
a store has lost the answer, nobody knows whether a commit that names them is still on its way: that is settled first,
by a commit of nothing under its number. What the number's entry names by then stays.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from errno import EBADMSG
from typing import Any

from menura.instants import now_us
from menura.stores.store import OutcomeUnknown

from spark_sink.lake.delta_table import open_table
from spark_sink.lake.record_rows import FOLDER
from spark_sink.landed.storage import open_storage

MERGES_FOLDER = f"{FOLDER}/merges"
_SUFFIX = ".json"
_FORMAT = 1


class Unsettled(Exception):
    """Nobody knows yet whether a commit names files: what was found, and what to do."""


@dataclass(frozen=True, slots=True)
class MergeRecord:
    """Of one preparation."""

    lake: str
    preparation: str
    #: of the current state, below the lake
    folder: str
    #: of the Delta table in it
    identity: str
    #: for which the files are
    version: int

    @property
    def prefix(self) -> str:
        """Of its files in the table's folder."""
        return f"merged-{self.preparation}-"

    @property
    def own_folder(self) -> str:
        return f"{self.lake}/{MERGES_FOLDER}/{self.preparation}"

    @property
    def table_folder(self) -> str:
        return f"{self.lake}/{self.folder}"

    def note(self, name: str) -> None:
        """Before a file of this name is written. Raises OSError."""
        said = {"format": _FORMAT, "folder": self.folder, "identity": self.identity, "version": self.version}
        open_storage(self.own_folder).put_if_absent(name + _SUFFIX, json.dumps(said).encode())


def left_merges(lake: str) -> dict[str, list[str]]:
    """Preparations of which something is there, by id: the names that were noted. Raises OSError."""
    found: dict[str, list[str]] = {}
    for each in open_storage(f"{lake}/{MERGES_FOLDER}").list(""):
        preparation, _, name = each.path.partition("/")
        names = found.setdefault(preparation, [])
        if name.endswith(_SUFFIX):
            names.append(name.removesuffix(_SUFFIX))
    return found


def read_record(lake: str, preparation: str, names: Iterable[str]) -> MergeRecord | None:
    """By what was noted; None: nothing was. Raises OSError, also where what was noted can't be read."""
    store = open_storage(f"{lake}/{MERGES_FOLDER}/{preparation}")
    for name in names:
        if (document := store.read(name + _SUFFIX)) is not None:
            try:
                return _record(lake, preparation, document)
            except (ValueError, KeyError, TypeError) as broken:
                raise OSError(EBADMSG, f"{preparation}/{name}{_SUFFIX} is no record of a merge") from broken
    return None


def _record(lake: str, preparation: str, document: bytes) -> MergeRecord:
    """Raises ValueError, KeyError, TypeError."""
    said = json.loads(document)
    if said["format"] != _FORMAT:
        raise ValueError(said["format"])
    return MergeRecord(lake, preparation, str(said["folder"]), str(said["identity"]), int(said["version"]))


def settle(record: MergeRecord, names: Collection[str]) -> frozenset[str]:
    """Which of its files stay, from now on whatever anybody does. Raises `Unsettled`, OSError, DeltaError."""
    current = open_table(record.table_folder)
    if current is None or str(current.metadata().id) != record.identity:
        return frozenset()  # the table is gone
    if current.version() == record.version - 1:
        _commit_nothing(record)
    elif current.version() < record.version:
        raise Unsettled(_older(record, current.version()))
    named = _named(record)
    if named is None:
        if current.version() < record.version:
            raise Unsettled(_gone(record))
        return frozenset(names)  # the log has forgotten that version: the table's cleaning knows what is left
    return named & frozenset(names)


def _commit_nothing(record: MergeRecord) -> None:
    """Under the version's number, if that is free. Raises OSError."""
    action = {"commitInfo": {"timestamp": now_us() // 1000, "operation": "MERGE", "engineInfo": "menura"}}
    try:
        open_storage(record.table_folder).put_if_absent(entry_path(record.version), entry([action]))
    except OutcomeUnknown as unknown:
        if _named(record) is None:
            raise Unsettled(
                f"table={record.folder} found=the store does not say whether version {record.version} is taken;"
                " check that it can be reached"
            ) from unknown


def _older(record: MergeRecord, version: int) -> str:
    """An older copy, in which the number is not the next one."""
    return (
        f"table={record.folder} found=its log ends at version {version}, and the files are for version"
        f" {record.version}: it may be an older copy. If it was put back on purpose, wait: they go once it has passed"
        " that version"
    )


def _gone(record: MergeRecord) -> str:
    return (
        f"table={record.folder} found=version {record.version} was taken, and its entry is not there any more:"
        " see who else removes files from the table's _delta_log"
    )


def _named(record: MergeRecord) -> frozenset[str] | None:
    """By the version's entry; None: there is none. Raises OSError, also where the entry can't be read."""
    document = open_storage(record.table_folder).read(entry_path(record.version))
    if document is None:
        return None
    try:
        actions: Iterable[Mapping[str, Any]] = map(json.loads, document.splitlines())
        return frozenset(action["add"]["path"] for action in actions if "add" in action)
    except (ValueError, KeyError, TypeError) as broken:
        raise OSError(EBADMSG, f"{entry_path(record.version)} is no entry of Delta's log") from broken


def remove_merge(lake: str, preparation: str, kept: Collection[str], *, forgets: bool) -> None:
    """Remove its files but those `kept`. `forgets`: no task writes another one, so what was noted goes, too.

    Raises OSError.
    """
    store = open_storage(f"{lake}/{MERGES_FOLDER}/{preparation}")
    paths = [found.path for found in store.list("")]
    names = [path.removesuffix(_SUFFIX) for path in paths if path.endswith(_SUFFIX)]
    record = read_record(lake, preparation, names)
    if record is not None:
        open_storage(record.table_folder).delete([name for name in names if name not in kept])
    store.delete([path for path in paths if forgets or not path.endswith(_SUFFIX)])
    store.drop_folder("")  # one with records stays


def entry_path(version: int) -> str:
    """Of a version in Delta's log, below the table's folder."""
    return f"_delta_log/{version:020d}.json"


def entry(actions: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(action, ensure_ascii=False) + "\n" for action in actions).encode()
