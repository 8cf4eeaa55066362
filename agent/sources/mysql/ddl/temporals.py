"""A literal that is a column's default, where the column is a date or a time: in the text in which SELECT prints it.

Pure. None wherever it isn't certain what the server makes of a literal.
"""

import re
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal

from agent.sources.mysql.ddl.model import Server, Statement
from agent.sources.mysql.ddl.sql_modes import ALLOW_INVALID_DATES, NO_ZERO_IN_DATE
from agent.sources.mysql.ddl.syntax import Literal, LiteralKind
from agent.sources.mysql.types import ColumnType, Kind

#: MySQL
_TIME_TRUNCATE_FRACTIONAL = 1 << 32
#: MariaDB
_TIME_ROUND_FRACTIONAL = 1 << 34

ZERO_DATE = "0000-00-00"
_MOST_HOURS = 838
_DAY = timedelta(days=1)
_FRACTION = r"(?:\.(\d{0,9}))?"
_SEPARATOR = r"[!-/:-@\[-`{-~]"
_DATE = re.compile(
    rf"(\d{{4}}|\d{{2}}|\d{{1,3}}(?=[-/:])){_SEPARATOR}(\d{{1,2}}){_SEPARATOR}(\d{{1,2}})"
    rf"(?:(?:\s+|T)(\d{{1,2}})(?::(\d{{1,2}})(?::(\d{{1,2}}){_FRACTION})?)?)?",
    re.ASCII,
)
_DIGITS = re.compile(rf"(\d{{4}}|\d{{2}})(\d{{2}})(\d{{2}})(?:T?(\d{{2}})(\d{{2}})(\d{{2}}))?{_FRACTION}", re.ASCII)
_TIME = re.compile(rf"([+-]?)(?:(\d{{1,2}})\s+)?(\d{{1,3}}):(\d{{1,2}})(?::(\d{{1,2}}))?{_FRACTION}", re.ASCII)
_DAYS_AND_HOURS = re.compile(r"([+-]?)(\d{1,2})\s+(\d{1,2})()()()", re.ASCII)
_TIME_DIGITS = re.compile(rf"([+-]?)()(\d{{1,3}}?)??(\d{{1,2}}?)??(\d{{1,2}}){_FRACTION}", re.ASCII)
_OFFSET = re.compile(r"([+-])(\d{1,2}):(\d{2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Moment:
    year: int
    month: int
    day: int
    #: within its day, rounded as the column's values are; a whole day where that carries over
    clock: timedelta
    has_clock: bool


def temporal_text(literal: Literal, type_: ColumnType, statement: Statement, server: Server) -> str | None:
    """Of DATE, DATETIME, TIMESTAMP (in UTC), TIME and YEAR.

    >>> literal, type_ = Literal(LiteralKind.STRING, "18-1-2 3:04:05"), ColumnType(Kind.DATETIME, precision=1)
    >>> temporal_text(literal, type_, Statement("", ""), Server(False, (9, 7, 0)))
    '2018-01-02 03:04:05.0'
    """
    if literal.kind not in (LiteralKind.STRING, LiteralKind.NUMBER):
        return _year(str(int(literal.text, 16)), literal.kind) if _is_hex_year(literal, type_) else None
    if type_.kind is Kind.YEAR:
        return _year(literal.text.strip(), literal.kind)
    if type_.kind is Kind.TIME:
        return _time(literal, type_, statement, server)
    moment = _moment(literal, type_, statement, server)
    return None if moment is None else _on_calendar(moment, type_, statement, server)


def _is_hex_year(literal: Literal, type_: ColumnType) -> bool:
    return type_.kind is Kind.YEAR and literal.kind is LiteralKind.HEX and bool(literal.text)


def _year(text: str, kind: LiteralKind) -> str | None:
    if not re.fullmatch(r"\d{1,4}(\.\d{1,20})?", text, re.ASCII):
        return None
    number = int(Decimal(text).quantize(Decimal(1), ROUND_HALF_UP))
    if number == 0 and (kind is not LiteralKind.STRING or len(text) == 4):
        return "0000"
    if number < 100 and len(text.partition(".")[0]) <= 2:
        number += 2000 if number < 70 else 1900
    return str(number) if 1901 <= number <= 2155 else None


def _rounds(statement: Statement, server: Server) -> bool:
    if server.mariadb:
        return bool(statement.sql_mode & _TIME_ROUND_FRACTIONAL)
    return not statement.sql_mode & _TIME_TRUNCATE_FRACTIONAL


def _micros(fraction: str | None, precision: int, *, rounds: bool) -> int:
    """A fraction's digits as microseconds, at the column's precision; a whole second where it rounds up."""
    nanos = int((fraction or "").ljust(9, "0") or "0")
    unit: int = 10 ** (9 - precision)
    return (nanos + (unit // 2 if rounds else 0)) // unit * unit // 1000


def _moment(literal: Literal, type_: ColumnType, statement: Statement, server: Server) -> _Moment | None:
    """What stands there as a date, perhaps with a clock."""
    text = literal.text.strip()
    if text == "0":
        text = ZERO_DATE
    elif literal.kind is LiteralKind.NUMBER:
        text = _padded(text)
    match = _DATE.fullmatch(text) or _DIGITS.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    if len(match[1]) == 2:
        year += 2000 if year < 70 else 1900
    if month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        return None
    has_clock = match[4] is not None
    micros = _micros(match[7] if has_clock else None, type_.precision, rounds=_rounds(statement, server))
    clock = timedelta(hours=hour, minutes=minute, seconds=second, microseconds=micros)
    return _Moment(year, month, day, clock, has_clock)


def _padded(number: str) -> str:
    """A number's digits with the zeros in front that it leaves out."""
    whole, dot, fraction = number.partition(".")
    return whole.zfill(6 if len(whole) <= 6 else 12 if 8 < len(whole) < 12 else 0) + dot + fraction


def _on_calendar(moment: _Moment, type_: ColumnType, statement: Statement, server: Server) -> str | None:
    day = _ordinal(moment)
    if day is not None:
        return _printed_day(day, moment, type_, statement)
    if type_.kind is Kind.TIMESTAMP and (moment.year or moment.month or moment.day or moment.clock):
        return None
    if moment.clock >= _DAY:
        return None  # it carries over to a day that is not there
    if moment.month and moment.day and moment.year and not statement.sql_mode & ALLOW_INVALID_DATES:
        return None
    has_zero_part = not (moment.month and moment.day) and bool(
        moment.year or moment.month or moment.day or moment.clock
    )
    if has_zero_part and statement.sql_mode & NO_ZERO_IN_DATE:
        return None if server.mariadb else _printed(ZERO_DATE, timedelta(0), type_)
    return _printed(f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}", moment.clock, type_)


def _ordinal(moment: _Moment) -> date | None:
    try:
        return date(moment.year, moment.month, moment.day)
    except ValueError:
        return None


def _printed_day(day: date, moment: _Moment, type_: ColumnType, statement: Statement) -> str | None:
    clock = moment.clock
    if type_.kind is Kind.TIMESTAMP:
        offset = _offset(statement.time_zone)
        if offset is None:
            return None
        clock -= offset
    days, clock = divmod(clock, _DAY)
    try:
        return _printed((day + timedelta(days=days)).isoformat(), clock, type_)
    except OverflowError:
        return None


def _offset(time_zone: str) -> timedelta | None:
    """East of UTC; None for a zone that is named, whose offset is the server's to know."""
    if time_zone.upper() in ("UTC", "ETC/UTC"):
        return timedelta(0)
    match = _OFFSET.fullmatch(time_zone)
    if match is None:
        return None
    offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
    return -offset if match[1] == "-" else offset


def _printed(day: str, clock: timedelta, type_: ColumnType) -> str:
    return day if type_.kind is Kind.DATE else f"{day} {_clock(clock, type_.precision)}"


def _clock(clock: timedelta, precision: int) -> str:
    seconds, micros = divmod(clock // timedelta(microseconds=1), 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{micros:06d}"[: len(text) + 1 + precision] if precision else text


def _time(literal: Literal, type_: ColumnType, statement: Statement, server: Server) -> str | None:
    text = literal.text.strip()
    match = _TIME.fullmatch(text) or _TIME_DIGITS.fullmatch(text) or _DAYS_AND_HOURS.fullmatch(text)
    if match is None:
        return _clock_of_moment(literal, type_, statement, server)
    days, hour, minute, second = (int(part or 0) for part in match.groups()[1:5])
    hour += 24 * days
    if hour > _MOST_HOURS or minute > 59 or second > 59:
        return None
    micros = _micros(match[6], type_.precision, rounds=_rounds(statement, server))
    clock = timedelta(hours=hour, minutes=minute, seconds=second, microseconds=micros)
    sign = match[1].strip("+") if clock else ""
    return sign + _clock(clock, type_.precision)


def _clock_of_moment(literal: Literal, type_: ColumnType, statement: Statement, server: Server) -> str | None:
    """Of a TIME that is written as a date with a clock; MySQL doesn't know all ways of writing one here."""
    moment = _moment(literal, type_, statement, server)
    if moment is None or not moment.has_clock or "T" in literal.text or not literal.text.strip()[:2].isdigit():
        return None
    return _clock(moment.clock, type_.precision)
