"""Ranges of a key of integers, as a repair has them: put together where they touch, and said in words. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

Key = tuple[int, ...]


class Range(Protocol):
    """Keys above the first up to and with the second; empty: without bound."""

    @property
    def above(self) -> Key: ...

    @property
    def up_to(self) -> Key: ...


def united(ranges: Sequence[tuple[Key, Key]]) -> list[tuple[Key, Key]]:
    """The same keys in as few ranges as there can be, which follow each other.

    >>> united([((30,), ()), ((10,), (20,)), ((5,), (12,)), ((20,), (25,))])
    [((5,), (25,)), ((30,), ())]
    """
    found: list[tuple[Key, Key]] = []
    for above, up_to in sorted(ranges, key=lambda each: each[0]):
        last = found[-1] if found else None
        if last is None or (last[1] and last[1] < above):
            found.append((above, up_to))
        else:
            found[-1] = last[0], max(last[1], up_to) if last[1] and up_to else ()
    assert all(before[1] for before, _ in pairwise(found))
    return found


def ranges_text(key: Sequence[str], ranges: Sequence[Range]) -> str:
    """
    >>> from menura.landing import KeyNumbers
    >>> ranges_text(["id"], [KeyNumbers((), (7,)), KeyNumbers((20,), (30,)), KeyNumbers((90,), ())])
    'rows with (id) up to 7, above 20 up to 30, above 90'
    """
    return f"rows with ({', '.join(key)}) {', '.join(range_text(each.above, each.up_to) for each in ranges)}"


def range_text(above: Key, up_to: Key) -> str:
    """
    >>> range_text((1, -2), (3, 4)), range_text((), ())
    ('above 1/-2 up to 3/4', 'of any key')
    """
    parts = [f"above {_shown(above)}" if above else "", f"up to {_shown(up_to)}" if up_to else ""]
    return " ".join(filter(None, parts)) or "of any key"


def _shown(key: Key) -> str:
    return "/".join(map(str, key))
