"""Tables that are not synced but that a synced one may become, or be made like: their definitions are followed too.

Pure. These are copies that online schema changes work on, known by their names, and tables that were renamed from a
synced one. What is known of them besides their definitions is text for the history.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from agent.sources.mysql.ddl.model import Change, ChangeKind, Table
from agent.sources.mysql.ddl.online_change import bases, is_ghost

#: renamed from one synced table; the oldest are forgotten
MOST_RENAMED = 16


class ShadowTables:
    """Of the synced tables of one stream."""

    def __init__(self, synced: Iterable[Table], text: str = "") -> None:
        """`text` is what `text()` gave; raises ValueError, TypeError or KeyError for any other."""
        self._synced = frozenset(synced)
        facts: dict[str, Any] = json.loads(text) if text else {"renamed": [], "columns": []}
        self._renamed: dict[Table, Table] = {(a, b): (c, d) for a, b, c, d in facts["renamed"]}
        self._columns: dict[Table, dict[str, str]] = {(a, b): dict(names) for a, b, names in facts["columns"]}

    def text(self) -> str:
        renamed = [[*table, *owner] for table, owner in self._renamed.items()]
        columns = [[*table, names] for table, names in self._columns.items()]
        return json.dumps({"renamed": renamed, "columns": columns})

    def owner(self, table: Table) -> Table | None:
        """The synced table for whose sake this one is followed: itself, or the table that it is a shadow of."""
        if table in self._synced:
            return table
        known = self._renamed.get(table)
        if known in self._synced:
            return known
        database, name = table
        for base in bases(name):
            if (database, base) in self._synced and is_ghost(base, name):
                return database, base
        return None

    def columns_of(self, table: Table) -> Mapping[str, str]:
        """New names of columns of a copy, each with its name in the table that it was made from."""
        return self._columns.get(table, {})

    def note(self, changes: Iterable[Change]) -> None:
        """What statements did to followed tables."""
        for change in changes:
            owner = self.owner(change.table)
            if owner is None:
                continue
            if change.kind is ChangeKind.RENAMED and change.new_table is not None:
                self._note_renamed(change.new_table, owner)
            if change.table not in self._synced:
                self._note_columns(change)

    def _note_renamed(self, table: Table, owner: Table) -> None:
        if self.owner(table) is not None:
            return
        others = [other for other, whose in self._renamed.items() if whose == owner]
        for oldest in others[: max(0, len(others) - MOST_RENAMED + 1)]:
            del self._renamed[oldest]
        self._renamed[table] = owner

    def _note_columns(self, change: Change) -> None:
        if change.kind in (ChangeKind.CREATED, ChangeKind.DROPPED):  # not RENAMED: the swap asks afterwards
            self._columns.pop(change.table, None)
        elif change.renamed_columns:
            names = self._columns.setdefault(change.table, {})
            for old, new in change.renamed_columns:
                names[new] = names.pop(old, old)
