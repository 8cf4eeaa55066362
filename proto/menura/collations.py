"""How a server compares two texts of one collation, as far as the lake can do the same.

A foreign key finds its child's rows by the collation: `'a'` refers to `'A'` in most of them. Printable ASCII compares
alike in all collations of `comparison`; of other characters only equal texts are certainly equal.
"""

import re
from dataclasses import dataclass

#: of each the part behind the charset; UCA 14.0.0's of MariaDB have a language between that is not taken
_LIKE_ASCII = re.compile(
    r"(?:[a-z0-9]+_)?(?:general_ci|general_nopad_ci|general_cs|unicode(?:_520)?(?:_nopad)?_ci|0900_(?:ai_ci|as_ci|as_cs)"
    r"|uca1400(?:_nopad)?_(?:ai|as)_c[is])|latin1_swedish(?:_nopad)?_ci|(?:[a-z0-9]+_)?(?:nopad_|0900_)?bin|binary"
)
_FIRST_PRINTABLE, _LAST_PRINTABLE = " ", "~"


@dataclass(frozen=True, slots=True)
class Comparison:
    ignores_case: bool
    #: spaces at the end make no difference
    pads: bool
    #: texts are equal where their bytes are
    is_binary: bool


def comparison(collation: str) -> Comparison | None:
    """None for a collation of which this is not known.

    >>> comparison("utf8mb4_general_ci")
    Comparison(ignores_case=True, pads=True, is_binary=False)
    >>> comparison("utf8mb4_0900_bin")
    Comparison(ignores_case=False, pads=False, is_binary=True)
    >>> comparison("utf8mb4_danish_ci") is None
    True
    """
    name = collation.lower()
    if _LIKE_ASCII.fullmatch(name) is None:
        return None
    pads = not ("nopad" in name or "0900" in name or name == "binary")
    return Comparison(name.endswith("_ci"), pads, name.endswith("bin") or name == "binary")


def may_be_equal(one: str, other: str) -> bool:
    """Whether two different texts may be equal in a collation that is not binary; at least one is not plain ASCII.

    False is certain: they differ before their first, or after their last, character beyond it.

    >>> may_be_equal("caf\\xe9", "cafe"), may_be_equal("caf\\xe9", "tea")
    (True, False)
    """
    texts = one.rstrip(" ").lower(), other.rstrip(" ").lower()
    for first, second in (texts, (texts[0][::-1], texts[1][::-1])):
        shared = min(_plain_length(first), _plain_length(second))
        if first[:shared] != second[:shared]:
            return False
    return True


def is_plain(text: str) -> bool:
    """Whether it is printable ASCII."""
    return _plain_length(text) == len(text)


def _plain_length(text: str) -> int:
    return next(
        (place for place, sign in enumerate(text) if not _FIRST_PRINTABLE <= sign <= _LAST_PRINTABLE), len(text)
    )
