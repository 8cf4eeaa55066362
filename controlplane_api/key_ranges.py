"""Ranges of a key of integers, as a repair has them, said in words. Pure."""

from collections.abc import Sequence
from typing import Protocol

from menura.landed_digest import Key


class Range(Protocol):
    """Keys above the first up to and with the second; empty: without bound."""

    @property
    def above(self) -> Key: ...

    @property
    def up_to(self) -> Key: ...


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
