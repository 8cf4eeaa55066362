"""What MySQL and MariaDB print as a value, as a literal of `menura.types`. Pure."""

import re
from dataclasses import dataclass
from datetime import datetime

from agent.sources.mysql.types import ColumnType, Kind

_DATED_KINDS = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP})
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_DATETIME = re.compile(_DATE.pattern + r"(?: \d\d:\d\d:\d\d(?:\.\d{1,6})?)?")
_TIME = re.compile(r"(-?)(\d{1,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?")


@dataclass(frozen=True, slots=True)
class WireLiteral:
    text: str
    #: False: `text` is the server's own, of a value that the column's Arrow type can't hold
    is_representable: bool = True


def wire_literal(type_: ColumnType, text: str) -> WireLiteral | None:
    """`text`: of binary kinds in hex, of BIT in decimal digits, an instant in UTC. None: it has not the form in which
    the servers print such a value, so what it stands for is not known.

    >>> wire_literal(ColumnType(Kind.TIME, precision=1), "-00:00:01.5").text
    '-1500000'
    >>> wire_literal(ColumnType(Kind.BINARY, length_bytes=3), "ff").text
    'ff0000'
    >>> wire_literal(ColumnType(Kind.DATE), "2024-02-30").is_representable
    False
    >>> wire_literal(ColumnType(Kind.DATE), "20240101") is wire_literal(ColumnType(Kind.TIME), "1") is None
    True
    """
    if type_.kind is Kind.TIME:
        return _microseconds(text)
    if type_.kind in _DATED_KINDS:
        return _date(text, _DATE if type_.kind is Kind.DATE else _DATETIME)
    if type_.kind is Kind.BINARY:
        return WireLiteral(text.ljust(2 * type_.length_bytes, "0"))
    return WireLiteral(text)


def _microseconds(text: str) -> WireLiteral | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    sign, hours, minutes, seconds, fraction = found.groups()
    value = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return WireLiteral(f"{sign if value else ''}{value}")


def _date(text: str, form: re.Pattern[str]) -> WireLiteral | None:
    """Zero dates, and those with zero parts, are in no calendar."""
    if form.fullmatch(text) is None:
        return None
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return WireLiteral(text, is_representable=False)
    return WireLiteral(text)
