"""How a server compares two texts of a column, as far as the lake can do the same.

A foreign key finds its child's rows by it: where case makes no difference, `'a'` refers to `'A'`. Printable ASCII
compares as `TextComparison` says; of other characters only equal texts are certainly equal.
"""

from dataclasses import dataclass

_FIRST_PRINTABLE, _LAST_PRINTABLE = " ", "~"


@dataclass(frozen=True, slots=True)
class TextComparison:
    ignores_case: bool
    #: spaces at the end make no difference
    pads: bool
    #: texts are equal where their bytes are
    is_binary: bool
    #: False: none of these is known
    is_known: bool = True


#: of a key in a landing or a lake of before format 7, which names its columns' collations, in their source's words
UNKNOWN_COMPARISON = TextComparison(ignores_case=False, pads=False, is_binary=False, is_known=False)


def may_be_equal(one: str, other: str) -> bool:
    """Whether two different texts may be equal where the comparison is not binary; at least one is not plain ASCII.

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
