"""A repair: ranges of a table's key that are read again, as chunks of a dump that has no other ranges.

Comes in: a dump's order with a focus, and the plan that the source's `TableReader` would read the whole table by. Goes
out: the plan with the focus's ranges alone, and at the end which rows no chunk has brought again. Chunks, watermarks,
throttle and ledger are those of any dump, and so is what a kill leaves: ranges that are not committed are read again.

A range is given by numbers, since leaves of a verification are; the reader writes them as bounds of the key's present
order. Whatever integers the key has now, a range of them that is read whole, and of which the rest is taken away,
equals the source's; so a key that has changed since makes a repair useless at worst.
"""

from collections.abc import Callable, Sequence

from menura.change_batch import landed_column
from menura.v1 import changes_pb2, snapshot_pb2

#: bounds at a key's numbers, in its order; '' for none
WriteBounds = Callable[[Sequence[tuple[int, ...]]], list[str]]


class RangesUnreadable(Exception):
    """Why ranges of the table can't be read by themselves."""


def check_ranges(focus: snapshot_pb2.Focus, key: Sequence[str]) -> None:
    """That they are of a key like this, which is of integers. Raises `RangesUnreadable`."""
    lengths = {len(numbers) for each in focus.ranges for numbers in (each.above, each.up_to) if numbers}
    if not focus.ranges:
        raise RangesUnreadable("its order has no ranges")
    if not lengths <= {len(key)}:
        raise RangesUnreadable(f"its key has {len(key)} columns now, and the ranges are of another one")


def bounds_of(focus: snapshot_pb2.Focus, write: WriteBounds) -> list[tuple[str, str]]:
    """Of each range, lower and upper."""
    written = iter(write([tuple(numbers) for each in focus.ranges for numbers in (each.above, each.up_to)]))
    return list(zip(written, written, strict=True))


def restrict(plan: snapshot_pb2.DumpPlan, focus: snapshot_pb2.Focus, write: WriteBounds) -> None:
    """The plan of these ranges; its key is of integers. Raises `RangesUnreadable`."""
    check_ranges(focus, plan.key)
    del plan.ranges[:]
    for number, (lower, upper) in enumerate(bounds_of(focus, write)):
        plan.ranges.add(number=number, lower=lower, upper=upper)
    for whole in ("estimated_rows", "estimated_bytes", "needed_seconds", "least_key", "greatest_key"):
        plan.ClearField(whole)


def repaired_ranges(order: snapshot_pb2.DumpOrder) -> changes_pb2.RepairedRanges:
    """What no longer exists at its end."""
    ranges = [changes_pb2.KeyRange(above=each.above, up_to=each.up_to) for each in order.focus.ranges]
    key = map(landed_column, order.plan.key)
    return changes_pb2.RepairedRanges(before_gsn=order.started_gsn, key=key, ranges=ranges)
