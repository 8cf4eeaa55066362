"""Ranges of a key, as a repair has them, said in words. Pure."""

from collections.abc import Sequence
from typing import Protocol

from menura.key_values import Key, words


class Range(Protocol):
    """Keys above the first up to and with the second; empty: without bound."""

    @property
    def above(self) -> Key: ...

    @property
    def up_to(self) -> Key: ...


def ranges_text(key: Sequence[str], kinds: Sequence[str], ranges: Sequence[Range]) -> str:
    """
    >>> from menura.landing import KeyNumbers
    >>> ranges_text(["id"], ["integer"], [KeyNumbers((), (7,)), KeyNumbers((20,), (30,)), KeyNumbers((90,), ())])
    'rows with (id) up to 7, above 20 up to 30, above 90'
    """
    said = (range_text(words(kinds, each.above), words(kinds, each.up_to)) for each in ranges)
    return f"rows with ({', '.join(key[: len(kinds) or None])}) {', '.join(said)}"


def range_text(above: str, up_to: str) -> str:
    """
    >>> range_text("1/-2", "3/4"), range_text("", "")
    ('above 1/-2 up to 3/4', 'of any key')
    """
    parts = [f"above {above}" if above else "", f"up to {up_to}" if up_to else ""]
    return " ".join(filter(None, parts)) or "of any key"
