"""The commits of a Delta table by the entries of its log: which version was the first to have a change.

Comes in: a table's folder, its newest version, and what a commit has to say of an application. Goes out: that commit,
with its version and time. Nothing is written. A log is cleaned from its beginning, so what is there is its end; a
version that is searched for by halves takes some twenty reads of small files, however many commits there are.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from menura.stores.store import Store

from spark_sink.landed.storage import open_storage

LARGEST_ENTRY_BYTES = 64 << 20
#: commits in a row that say nothing of their applications: they gather files, or change properties
MOST_SILENT = 256


@dataclass(frozen=True, slots=True)
class Commit:
    version: int
    #: by the clock of who wrote it; 0: it does not say
    at_us: int
    #: of applications
    transactions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FirstCommit:
    """The first of those that are there which says so; `is_first` False: an earlier one, whose entry is gone, may."""

    commit: Commit
    is_first: bool


class Commits:
    """Of one Delta table."""

    def __init__(self, folder: str, newest: int) -> None:
        self._store: Store = open_storage(folder)
        self._newest = newest
        self._read: dict[int, Commit | None] = {}

    def read(self, version: int) -> Commit | None:
        """None where its entry is gone, or is not there yet."""
        if version not in self._read:
            document = (
                self._store.read(f"_delta_log/{version:020d}.json", LARGEST_ENTRY_BYTES) if version >= 0 else None
            )
            self._read[version] = commit_of(version, document) if document is not None else None
        return self._read[version]

    def first_reaching(self, least: Mapping[str, int]) -> FirstCommit | None:
        """The first commit from which on one of these applications has this version or a higher one; None: none has."""
        low, high = -1, self._newest + 1  # of `low` it is not so, or not known; of `high` it is
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._has_reached(middle, least) else (middle, high)
        found = self.read(high)
        return FirstCommit(found, high == 0 or self.read(high - 1) is not None) if found is not None else None

    def _has_reached(self, version: int, least: Mapping[str, int]) -> bool:
        """As its commit says, or the last one before it that says something."""
        for number in range(version, max(-1, version - MOST_SILENT), -1):
            commit = self.read(number)
            if commit is None:
                return False
            said = [commit.transactions[name] >= floor for name, floor in least.items() if name in commit.transactions]
            if said:
                return any(said)
        return False


def commit_of(version: int, document: bytes) -> Commit:
    """From an entry of the log; a line that can't be read says nothing.

    >>> line = b'{"txn":{"appId":"acme/shop","version":7}}'
    >>> commit_of(3, b'{"commitInfo":{"timestamp":1700000000000}}' + bytes([10]) + line)
    Commit(version=3, at_us=1700000000000000, transactions={'acme/shop': 7})
    """
    at_us, transactions = 0, {}
    for line in document.splitlines():
        try:
            action = json.loads(line)
            if "commitInfo" in action:
                at_us = int(action["commitInfo"].get("timestamp", 0)) * 1000
            elif "txn" in action:
                transactions[str(action["txn"]["appId"])] = int(action["txn"]["version"])
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return Commit(version, at_us, transactions)
