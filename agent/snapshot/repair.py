"""A repair: ranges of a table's key that are read again, as chunks of a dump that has no other ranges.

Comes in: a dump's order with a focus, and the plan that the source's `TableReader` would read the whole table by. Goes
out: the plan with the focus's ranges alone, and at the end which rows no chunk has brought again. Chunks, watermarks,
throttle and ledger are those of any dump, and so is what a kill leaves: ranges that are not committed are read again.

A range is given by values of the key's first columns, as leaves of a verification are (`menura.key_values`); the
reader writes them as bounds of the key's present order. Each value has a kind. Whatever columns of these kinds the key
begins with now, a range that is read whole, and of which the rest is taken away, equals the source's; so a key that has
changed since makes a repair useless at worst. Where the kinds are others now, what was a date may be a number: the
repair fails then, and where that happens behind its last chunk, the lake finds no column of the kind and takes nothing
away.
"""

import json
from collections.abc import Callable, Sequence

from menura.change_batch import landed_column
from menura.key_values import Key, read
from menura.v1 import changes_pb2, snapshot_pb2

#: bounds at a key's values, in its order; '' for none
WriteBounds = Callable[[Sequence[Key]], list[str]]


class RangesUnreadable(Exception):
    """Why ranges of the table can't be read by themselves."""


def check_ranges(focus: snapshot_pb2.Focus, kinds: Sequence[str]) -> None:
    """That the key begins with columns like theirs. Raises `RangesUnreadable`."""
    if not focus.ranges:
        raise RangesUnreadable("its order has no ranges")
    if not focus.kinds or list(focus.kinds) != list(kinds[: len(focus.kinds)]):
        now = ", ".join(kinds) or "nothing that the lake orders as the server does"
        raise RangesUnreadable(f"its key begins with {now} now, and the ranges are of {', '.join(focus.kinds)}")


def bounds_of(focus: snapshot_pb2.Focus, write: WriteBounds) -> list[tuple[str, str]]:
    """Of each range, lower and upper."""
    keys = [read(focus.kinds, texts) for each in focus.ranges for texts in (each.above, each.up_to)]
    written = iter(write(keys))
    return list(zip(written, written, strict=True))


def beginning(bound: str, columns: int) -> str:
    """The bound of all keys that begin as this one does; '' for none.

    >>> beginning('["7","a","#ab12"]', 1), beginning("", 1)
    ('["7","#ab12"]', '')
    """
    if not bound:
        return ""
    *texts, order = json.loads(bound)
    return json.dumps([*texts[:columns], order], separators=(",", ":"))


def restrict(plan: snapshot_pb2.DumpPlan, focus: snapshot_pb2.Focus, write: WriteBounds) -> None:
    """The plan of these ranges, which are of its key. Raises `RangesUnreadable`."""
    del plan.ranges[:]
    for number, (lower, upper) in enumerate(bounds_of(focus, write)):
        plan.ranges.add(number=number, lower=lower, upper=upper)
    for whole in ("estimated_rows", "estimated_bytes", "needed_seconds", "least_key", "greatest_key"):
        plan.ClearField(whole)


def repaired_ranges(order: snapshot_pb2.DumpOrder) -> changes_pb2.RepairedRanges:
    """What no longer exists at its end."""
    focus = order.focus
    ranges = [changes_pb2.KeyRange(above=each.above, up_to=each.up_to) for each in focus.ranges]
    key = map(landed_column, order.plan.key[: len(focus.kinds)])
    return changes_pb2.RepairedRanges(before_gsn=order.started_gsn, key=key, ranges=ranges, kinds=focus.kinds)
