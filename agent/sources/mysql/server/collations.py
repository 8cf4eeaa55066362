"""How the server compares two texts, by the name of their collation.

Only of collations that compare printable ASCII as `TextComparison` says, whatever they do with other characters.
"""

import re

from menura.text_comparison import TextComparison

#: of each the part behind the charset; UCA 14.0.0's of MariaDB have a language between that is not taken
_LIKE_ASCII = re.compile(
    r"(?:[a-z0-9]+_)?(?:general_ci|general_nopad_ci|general_cs|unicode(?:_520)?(?:_nopad)?_ci|0900_(?:ai_ci|as_ci|as_cs)"
    r"|uca1400(?:_nopad)?_(?:ai|as)_c[is])|latin1_swedish(?:_nopad)?_ci|(?:[a-z0-9]+_)?(?:nopad_|0900_)?bin|binary"
)


def comparison(collation: str) -> TextComparison | None:
    """None for a collation of which this is not known.

    >>> comparison("utf8mb4_general_ci")
    TextComparison(ignores_case=True, pads=True, is_binary=False, is_known=True)
    >>> comparison("utf8mb4_0900_bin")
    TextComparison(ignores_case=False, pads=False, is_binary=True, is_known=True)
    >>> comparison("utf8mb4_danish_ci") is None
    True
    """
    name = collation.lower()
    if _LIKE_ASCII.fullmatch(name) is None:
        return None
    pads = not ("nopad" in name or "0900" in name or name == "binary")
    return TextComparison(name.endswith("_ci"), pads, name.endswith("bin") or name == "binary")
