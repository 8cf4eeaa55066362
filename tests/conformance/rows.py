"""The rows that a table's changes leave: what the lake must come to, kept as small as it can be."""

import json
from collections.abc import Sequence
from typing import Any

from menura.change_batch import ABSENT, UNREPRESENTABLE, ChangeType

Row = dict[str, Any]

#: a change type of our own: every row so far is gone
REMOVES_ROWS = -1


def put_together(changes: Sequence[Row], columns: Sequence[str], key: Sequence[str] = ("id",)) -> list[Row]:
    """Changes in the order of their numbers; a value that is absent is the one that was there before."""
    state: dict[tuple[object, ...], Row] = {}
    before: Row = {}
    for change in changes:
        kind = change["_change_type"]
        place = tuple(change.get(name) for name in key)
        if kind == REMOVES_ROWS:
            state.clear()
        elif kind == ChangeType.update_preimage:
            before = _merged(state.pop(place), change)
        elif kind == ChangeType.delete:
            del state[place]
        elif kind == ChangeType.update_postimage:
            after = _merged(before, change)
            state[tuple(after[name] for name in key)] = after
        else:
            state[place] = dict(change)
    return [{name: row.get(name) for name in (*columns, UNREPRESENTABLE)} for row in state.values()]


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
