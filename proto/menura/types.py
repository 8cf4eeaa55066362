"""The types that values have on their way, whatever source they come from.

A source maps each of its types to one of these, so that a value has one form, whichever way it came: changed, or read
by a dump. A type is named by the Arrow C data interface's format string. A value that stands for many rows (a default)
is sent as a *literal*, in text:

===========================  =================================================================
int8 to int64, their uints   decimal digits
decimal128                   digits with a point
float32, float64             digits as Python prints them; nan, inf, -inf
utf8                         the text itself
binary                       hex digits
date32                       YYYY-MM-DD
timestamp                    YYYY-MM-DD HH:MM:SS[.ffffff]; of one with a time zone in UTC
bool                         true, false
===========================  =================================================================

A time of day is microseconds in int64, as a duration is: Delta has no type for it, and 24:00:00, which sources have, is
beyond Arrow's.

*Unrepresentable* values: what the column's type can't hold. The typed column is then null and the row's
`_unrepresentable` column holds the value in the source's own text, as a JSON object by column name; NULL has no entry
there, so nothing is lost and no real value stands for another: ``{"shipped":"0000-00-00"}``. Bytes that are no text in
the column's charset are shown as the source holds them: ``{"note":"0xE4F6"}``.
"""

import re

MAX_DECIMAL128_PRECISION = 38
_LONG_DIGITS = 19

#: the types that a column can have beside decimal128: the Arrow C data interface's format string, and the name of the
#: type's constructor in pyarrow with what it takes
ARROW_TYPES: dict[str, tuple[str, ...]] = {
    "c": ("int8",),
    "C": ("uint8",),
    "s": ("int16",),
    "S": ("uint16",),
    "i": ("int32",),
    "I": ("uint32",),
    "l": ("int64",),
    "L": ("uint64",),
    "f": ("float32",),
    "g": ("float64",),
    "u": ("utf8",),
    "z": ("binary",),
    "tdD": ("date32",),
    "tsu:": ("timestamp", "us"),
    "tsu:UTC": ("timestamp", "us", "UTC"),
    "b": ("bool_",),
}
_DECIMAL_FORMAT = re.compile(r"d:([1-9]|[12]\d|3[0-8]),(\d|[12]\d|3[0-8])")


def decimal_digits(format_: str) -> tuple[int, int] | None:
    """Precision and scale of decimal128's format string; None: it is none.

    >>> decimal_digits("d:10,2"), decimal_digits("d:10,12"), decimal_digits("l")
    ((10, 2), None, None)
    """
    found = _DECIMAL_FORMAT.fullmatch(format_)
    if found is None or int(found[2]) > int(found[1]):
        return None
    return int(found[1]), int(found[2])


def lake_format(format_: str) -> str:
    """The lake's type of a landed column, both as Arrow C format strings.

    >>> lake_format("C"), lake_format("L"), lake_format("u")
    ('l', 'd:20,0', 'u')
    """
    if format_ in ("c", "C", "s", "S", "i", "I"):
        return "l"
    return "d:20,0" if format_ == "L" else format_


def wider_format(lake: str, other: str) -> str | None:
    """The smallest of the lake's types that holds the values of both without loss, all as Arrow C format strings.

    `lake` itself where it does; None: there is none. Only decimal digits are the same text in every source: a truth
    value is 'true', 't' or 1 there, so neither a text nor a number stands for it.

    >>> wider_format("l", "d:20,0"), wider_format("u", "l"), wider_format("l", "g"), wider_format("u", "b")
    ('d:20,0', 'u', None, None)
    """
    if lake == other:
        return lake
    if {lake, other} == {"f", "g"}:
        return "g"
    digits = [_digits(lake), _digits(other)]
    if "u" in (lake, other) and any(digits):
        return "u"
    if digits[0] is None or digits[1] is None:
        return None
    scale = max(digits[0][1], digits[1][1])
    precision = max(digits[0][0], digits[1][0]) + scale
    return f"d:{precision},{scale}" if precision <= MAX_DECIMAL128_PRECISION else "u"


def _digits(format_: str) -> tuple[int, int] | None:
    """Digits before and after the point."""
    if format_ == "l":
        return _LONG_DIGITS, 0
    digits = decimal_digits(format_)
    if digits is None:
        return None
    precision, scale = digits
    return precision - scale, scale
