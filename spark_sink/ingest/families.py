"""Tables that follow each other by foreign keys, as the cut log tells of them.

A child's rows change with its parents' rows, and nothing of it stands in the child's files. So the tables that such
keys join are a family: a micro-batch does a family in one task, parents first, and each child gets a `ParentsChanged`
for each cut in which it or a table above it has changed.

Comes in: events of the log's entries, and those of earlier batches from LAKE/_menura/events. Goes out: the
batch's rows with what children need, in an order in which each table stands behind its parents. Nothing is durable
here; `_menura/events` is. A key that was followed once joins its tables for good, which costs nothing but tasks side by
side.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from menura.landing import LandedCut, LandedEvent, LandedForeignKey, LogEntry, decode_foreign_key

from spark_sink.lake.delta_table import open_table, scan, schema_of
from spark_sink.lake.foreign_keys import followed_keys
from spark_sink.work import KeysAt, MovingColumns, ParentsChanged, TableId, UncheckedRows, Work, row_table

Row = dict[str, Any]

FOREIGN_KEYS = "FOREIGN_KEYS"
FOREIGN_KEYS_UNCHECKED = "FOREIGN_KEYS_UNCHECKED"
#: from these on the table is another one, whose keys an event will tell
_ENDING = frozenset({"CREATED", "RENAMED", "DROPPED"})
#: of one table's keys; older ones are forgotten
MOST_STEPS = 256


class Families:
    """What the log has told of foreign keys so far."""

    def __init__(self) -> None:
        self._history: dict[TableId, list[KeysAt]] = {}
        #: of each child, and of each parent: the tables that a key has joined them with
        self._parents: defaultdict[TableId, set[TableId]] = defaultdict(set)
        self._children: defaultdict[TableId, set[TableId]] = defaultdict(set)

    @property
    def are_there(self) -> bool:
        return bool(self._history)

    def read(self, events_folder: str) -> None:
        """What earlier batches have recorded."""
        events = open_table(events_folder)
        if events is None or "foreign_keys" not in schema_of(events).names:
            return
        kinds = ", ".join(f"'{kind}'" for kind in sorted({FOREIGN_KEYS, *_ENDING}))
        wanted = f"SELECT * FROM t WHERE kind IN ({kinds}) ORDER BY _gsn"  # noqa: S608  (own names)
        for row in scan(events, wanted).read_all().to_pylist():
            keys = tuple(map(decode_foreign_key, json.loads(row["foreign_keys"] or "[]")))
            self._note(row_table(row), row["kind"], row["_gsn"], keys)

    def note(self, entry: LogEntry) -> None:
        """An entry's events."""
        for cut in entry.cuts:
            for event in cut.events:
                self.note_event(_table(cut, event), event)

    def note_event(self, table: TableId, event: LandedEvent) -> None:
        self._note(table, event.kind, event.gsn, event.foreign_keys)

    def _note(self, table: TableId, kind: str, gsn: int, keys: tuple[LandedForeignKey, ...]) -> None:
        if kind == FOREIGN_KEYS:
            self._set(table, gsn, keys)
            for key in keys:
                parent = TableId(table.tenant, table.source, *key.parent)
                self._parents[table].add(parent)
                self._children[parent].add(table)
        elif kind in _ENDING:
            self._ended(table, gsn)

    def _ended(self, table: TableId, gsn: int) -> None:
        """Keys of the table and to the table hold no longer, until an event tells them again."""
        if table in self._history:
            self._set(table, gsn, ())
        for child in self._children.get(table, ()):
            held = self._history[child][-1].keys
            self._set(child, gsn, tuple(key for key in held if key.parent != (table.database, table.table)))

    def _set(self, table: TableId, gsn: int, keys: tuple[LandedForeignKey, ...]) -> None:
        history = self._history.setdefault(table, [])
        if (history and gsn <= history[-1].gsn) or keys == (history[-1].keys if history else ()):
            return  # noted before, or nothing new
        history.append(KeysAt(gsn, keys))
        del history[:-MOST_STEPS]

    # --- the batch's rows

    def arranged(self, rows: Sequence[Row]) -> list[Row]:
        """Rows of `cut_log_source.ROW_SCHEMA` in the order of the log: children's additions, parents first."""
        if not self.are_there:
            return list(rows)
        with_children = [each for cut in _by_cut(rows) for each in [*cut, *self._additions(cut)]]
        levels: dict[TableId, int] = {}
        return sorted(with_children, key=lambda row: self._level(row_table(row), levels) if row.get("table") else -1)

    def family(self, table: TableId) -> TableId:
        """A table that stands for all that keys join, however far."""
        seen, left = {table}, [table]
        while left:
            near = left.pop()
            joined = (self._parents.get(near, set()) | self._children.get(near, set())) - seen
            seen |= joined
            left += joined
        return min(seen)

    def is_joined(self, table: TableId) -> bool:
        """Whether a key has joined it with another one."""
        return bool((self._parents.get(table, set()) | self._children.get(table, set())) - {table})

    def above(self, tables: Iterable[TableId]) -> set[TableId]:
        """The tables that these follow, however far."""
        found: set[TableId] = set()
        left = list(tables)
        while left:
            new = self._parents.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    def _additions(self, rows: Sequence[Row]) -> list[Row]:
        """What the children of one cut's tables get."""
        changed = {row_table(row) for row in rows if row.get("table")}
        concerned: set[TableId] = set()
        left = list(changed)
        while left:
            table = left.pop()
            concerned.add(table)
            left += self._children.get(table, set()) - concerned
        if not concerned & self._history.keys():
            return []
        own = [row for row in rows if row.get("table")]
        events = [json.loads(row["event"]) for row in own if row.get("event")]
        unchecked = [
            UncheckedRows(event["database"], event["table"], event["unchecked_from_gsn"], event["gsn"])
            for event in events
            if event["kind"] == FOREIGN_KEYS_UNCHECKED
        ]
        first_gsn, last_gsn = min(row["first_gsn"] for row in own), max(row["last_gsn"] for row in own)
        found = []
        for table in sorted(concerned & self._history.keys()):
            near = {(parent.database, parent.table) for parent in (*self._parents[table], table)}
            parents = ParentsChanged(
                rows[0]["entry"],
                rows[0]["cut"],
                first_gsn,
                last_gsn,
                tuple(self._history[table]),
                tuple(each for each in unchecked if (each.database, each.table) in near),
                tuple(self._moving(parent) for parent in sorted(self._parents[table]) if parent in self._history),
            )
            facts = {"database": table.database, "table": table.table, "rows": 0, "bytes": 0}
            numbers = {"first_gsn": last_gsn, "last_gsn": last_gsn}
            document = json.dumps(asdict(parents), ensure_ascii=False)
            found.append({**rows[0], **facts, **numbers, "parents": document})
        return found

    def _moving(self, parent: TableId) -> MovingColumns:
        columns = {name for step in self._history[parent] for key in step.keys for name in key.columns}
        return MovingColumns((parent.database, parent.table), tuple(sorted(columns)))

    def _level(self, table: TableId, levels: dict[TableId, int]) -> int:
        """0: it follows none; else one more than the parents'. Of a ring, which no agent tells of, any order."""
        if table not in levels:
            levels[table] = 0  # where the search comes back to it
            parents = self._parents.get(table, set()) - {table}
            levels[table] = 1 + max((self._level(parent, levels) for parent in sorted(parents)), default=-1)
        return levels[table]


def parents_of(table: TableId, work: Sequence[Work]) -> set[TableId]:
    """The tables that this one's keys follow in its work; not itself."""
    marks = [each for each in work if isinstance(each, ParentsChanged)]
    keys = followed_keys(marks[-1].keys, marks[0].first_gsn - 1) if marks else []
    return {TableId(table.tenant, table.source, *followed.key.parent) for followed in keys} - {table}


def _by_cut(rows: Sequence[Row]) -> Iterable[list[Row]]:
    """Rows of one cut each: the first stands for the cut itself."""
    found: list[Row] = []
    for row in rows:
        if not row.get("table") and found:
            yield found
            found = []
        found.append(row)
    if found:
        yield found


def _table(cut: LandedCut, event: LandedEvent) -> TableId:
    return TableId(cut.tenant, cut.source, event.database, event.table)
