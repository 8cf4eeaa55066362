"""A focus that a lake's sink tells: ranges or buckets of a table, read from a document of somebody else.

Pure. Comes in: an object of JSON, and its name in the document. Goes out: a `LandedFocus` that is bounded in all parts.
"""

from collections.abc import Mapping
from typing import Any

from menura.bounds import MAX_INT64, MAX_KEY_COLUMNS
from menura.key_values import MOST_END_BYTES, is_key, is_kind
from menura.landed_digest import LandedFocus, decode_focus

MAX_FOCUS_PARTS = 16
#: of a bound, an id or a UUID
MAX_TEXT_CHARS = 4_000


class FocusInvalid(ValueError):
    """Says what is wrong, and nothing of its content."""


def read_focus(facts: Mapping[str, Any], name: str) -> LandedFocus:
    """Raises `FocusInvalid`."""
    try:
        focus = decode_focus(facts)
    except (KeyError, TypeError, ValueError) as broken:
        raise FocusInvalid(f"{name} is not of its form") from broken
    if len(focus.ranges) > MAX_FOCUS_PARTS or len(focus.buckets) > MAX_FOCUS_PARTS or not 0 <= focus.bits <= 64:
        raise FocusInvalid(f"{name} has more than {MAX_FOCUS_PARTS} ranges or buckets, or bits beyond 64")
    kinds = focus.kinds
    texts = [text for each in focus.ranges for text in (each.lower, each.upper)]
    texts += [focus.rest_equal_in, focus.repaired_by]
    counts = (focus.rest_equal_at_us, focus.since_gsn, *(each.rows for each in focus.ranges))
    if not all(0 <= count <= MAX_INT64 for count in counts):
        raise FocusInvalid(f"{name} has a time or counts that are none of 64 bits")
    if any(type(number) is not int or not -MAX_INT64 <= number + 1 <= MAX_INT64 + 1 for number in focus.buckets):
        raise FocusInvalid(f"{name} has numbers that are none of 64 bits")
    if len(kinds) > MAX_KEY_COLUMNS or not all(map(is_kind, kinds)):
        raise FocusInvalid(f"{name} has ranges of too many columns, or of another kind")
    if not all(is_key(kinds, key, MOST_END_BYTES) for each in focus.ranges for key in (each.above, each.up_to)):
        raise FocusInvalid(f"{name} has bounds that are no keys of its kinds")
    if any(len(text) > MAX_TEXT_CHARS or "\x00" in text or not is_encodable(text) for text in texts):
        raise FocusInvalid(f"{name} has bounds that are too long")
    return focus


def is_encodable(text: str) -> bool:
    """Whether it is without lone surrogates, which no database takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
