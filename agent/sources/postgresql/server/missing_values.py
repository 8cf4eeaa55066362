"""What rows hold that are older than a column: pg_attribute.attmissingval, as a literal of `menura.types`.

Comes in: the text of that array of one value, in the settings of our sessions. Goes out: a literal of the column's
form, or the server's own text of a value that the form can't hold. Pure.
"""

import re
from dataclasses import dataclass
from enum import Enum

from agent.sources.postgresql.types import ColumnType, Form


class Missing(Enum):
    #: not the same for all rows
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Unrepresentable:
    """In the server's own text."""

    text: str


#: a literal; None: they hold NULL
MissingValue = str | Unrepresentable | Missing | None

_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d{1,6})?(\+00)?")
_CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def missing_value(array: str, column_type: ColumnType) -> MissingValue:
    """
    >>> from agent.sources.postgresql.types import builtin_type
    >>> missing_value("{24:00:00}", builtin_type(1083, -1)), missing_value('{"a \\\\"b\\\\""}', builtin_type(25, -1))
    ('86400000000', 'a "b"')
    >>> missing_value("{infinity}", builtin_type(1082, -1))
    Unrepresentable(text='infinity')
    """
    text = _only_element(array)
    match column_type.form:
        case Form.BOOL:
            return "true" if text == "t" else "false"
        case Form.FLOAT4 | Form.FLOAT8:
            return repr(float(text))
        case Form.DECIMAL:
            return text if _NUMBER.fullmatch(text) else Unrepresentable(text)
        case Form.BYTES:
            return text.removeprefix("\\x")
        case Form.DATE:
            return text if _DATE.fullmatch(text) else Unrepresentable(text)
        case Form.TIME:
            return str(_microseconds(text))
        case Form.TIMESTAMP | Form.TIMESTAMPTZ:
            found = _MOMENT.fullmatch(text)
            return found[1] + (found[2] or "") if found else Unrepresentable(text)
        case _:
            return text


def _only_element(array: str) -> str:
    inner = array.removeprefix("{").removesuffix("}")
    if not inner.startswith('"'):
        return inner
    return _ESCAPED.sub(r"\1", inner[1:-1])


def _microseconds(text: str) -> int:
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError("no time of day")
    hours, minutes, seconds, fraction = found.groups()
    return ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int((fraction or "").ljust(6, "0"))
