"""What MySQL and MariaDB print as a value, as a literal of `menura.types`. Pure."""

import re
from dataclasses import dataclass
from datetime import datetime

from agent.sources.mysql.types import ColumnType, Kind

_DATED_KINDS = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP})
_TIME = re.compile(r"(-?)(\d{1,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")


@dataclass(frozen=True, slots=True)
class Literal:
    text: str
    #: False: `text` is the server's own, of a value that the column's Arrow type can't hold
    is_representable: bool = True


def literal(type_: ColumnType, text: str) -> Literal:
    """`text`: of binary kinds in hex, of BIT in decimal digits, an instant in UTC.

    >>> literal(ColumnType(Kind.TIME, precision=1), "-00:00:01.5").text
    '-1500000'
    >>> literal(ColumnType(Kind.BINARY, length_bytes=3), "ff").text
    'ff0000'
    >>> literal(ColumnType(Kind.DATE), "2024-02-30").is_representable
    False
    """
    if type_.kind is Kind.TIME:
        return Literal(_microseconds(text))
    if type_.kind is Kind.BINARY:
        return Literal(text.ljust(2 * type_.length_bytes, "0"))
    return Literal(text, type_.kind not in _DATED_KINDS or _is_date(text))


def _microseconds(text: str) -> str:
    """`text` has the form of `_TIME`: the servers print no other."""
    found = _TIME.fullmatch(text)
    assert found is not None
    sign, hours, minutes, seconds, fraction = found.groups()
    value = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return f"{sign if value else ''}{value}"


def _is_date(text: str) -> bool:
    """Whether it is in the calendar, which zero dates and zero parts are not."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
