"""The rows that a table's changes leave: what the lake must come to, kept as small as it can be."""

import json
from collections.abc import Sequence
from typing import Any

from menura.change_batch import ABSENT, UNREPRESENTABLE, ChangeType
from menura.v1 import changes_pb2

Row = dict[str, Any]

#: change types of our own: every row so far is gone; rows so far have the columns of an event's
REMOVES_ROWS, ALTERS_COLUMNS = -1, -2
COLUMNS = "_columns"


def put_together(changes: Sequence[Row], columns: Sequence[str], key: Sequence[str] = ("id",)) -> list[Row]:
    """Changes in the order of their numbers; a value that is absent is the one that was there before.

    PostgreSQL logs no former row of an update that leaves the key alone.
    """
    state: dict[tuple[object, ...], Row] = {}
    before: Row = {}
    for change in changes:
        kind = change["_change_type"]
        place = tuple(change.get(name) for name in key)
        if kind == REMOVES_ROWS:
            state.clear()
        elif kind == ALTERS_COLUMNS:
            state = {place: _altered(row, change[COLUMNS]) for place, row in state.items()}
        elif kind == ChangeType.update_preimage:
            before = _merged(state.pop(place), change)
        elif kind == ChangeType.delete:
            del state[place]
        elif kind == ChangeType.update_postimage:
            after = _merged(before or state.get(place, {}), change)
            before = {}
            state[tuple(after[name] for name in key)] = after
        else:
            state[place] = dict(change)
    return [{name: row.get(name) for name in (*columns, UNREPRESENTABLE)} for row in state.values()]


def _altered(row: Row, columns: Sequence[changes_pb2.ColumnAfter]) -> Row:
    """As the lake takes an ALTER: a renamed column keeps its values, a new one has the one that is told, as text."""
    added = {column.name: column.text if column.HasField("text") else None for column in columns}
    values = {column.name: row.get(column.renamed_from or column.name, added[column.name]) for column in columns}
    return values | {UNREPRESENTABLE: row.get(UNREPRESENTABLE)}


def _merged(old: Row, change: Row) -> Row:
    absent = _absent(change)
    merged = {name: old.get(name) if name in absent else value for name, value in change.items()}
    kept = {name: text for name, text in _odd(old).items() if name in absent}
    odd = kept | _odd(change)
    merged[UNREPRESENTABLE] = json.dumps(odd) if odd else None
    return merged


def _odd(row: Row) -> dict[str, str]:
    return dict(json.loads(row.get(UNREPRESENTABLE) or "{}"))


def _absent(change: Row) -> set[str]:
    bits = change.get(ABSENT)
    if bits is None:
        return set()
    names = [name for name in change if not name.startswith("_")]
    return {name for place, name in enumerate(names) if bits[place // 8] >> place % 8 & 1}
