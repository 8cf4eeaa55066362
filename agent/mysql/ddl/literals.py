"""A default's literal as the value that a column holds: in the text in which SELECT prints it.

Pure. None wherever it isn't certain what the server makes of a literal: then nobody is told a value.
"""

import ipaddress
import math
import re
import struct
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext

from menura.types import INTEGER_KINDS, ColumnType, Kind

from agent.mysql.charsets import CharsetUnknown, decode_text
from agent.mysql.ddl.model import Server, Statement
from agent.mysql.ddl.syntax import Literal, LiteralKind, TypeWords
from agent.mysql.ddl.types import can_hold

#: MySQL's and MariaDB's bits of sql_mode
_TIME_TRUNCATE_FRACTIONAL = 1 << 32
_TIME_ROUND_FRACTIONAL = 1 << 34

_ZERO_DATE = "0000-00-00"
_FRACTION = r"(?:\.(\d{0,9}))?"
_CLOCK = rf"(\d{{1,2}}):(\d{{1,2}}):(\d{{1,2}}){_FRACTION}"
_DATE = re.compile(rf"(\d{{4}}|\d{{2}})[-/.:](\d{{1,2}})[-/.:](\d{{1,2}})(?:[ T]{_CLOCK})?", re.ASCII)
_DIGITS = re.compile(rf"(\d{{4}}|\d{{2}})(\d{{2}})(\d{{2}})(?:(\d{{2}})(\d{{2}})(\d{{2}}){_FRACTION})?", re.ASCII)
_TIME = re.compile(rf"(-?)(\d{{1,3}}):(\d{{1,2}})(?::(\d{{1,2}}){_FRACTION})?", re.ASCII)
_TIME_DIGITS = re.compile(rf"(-?)(\d{{1,3}}?)??(\d{{1,2}}?)??(\d{{1,2}}){_FRACTION}", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_OFFSET = re.compile(r"([+-])(\d{1,2}):(\d{2})", re.ASCII)


def literal_text(
    literal: Literal, type_: ColumnType, words: TypeWords | None, statement: Statement, server: Server
) -> str | None:
    """The value's text, or None; of a timestamp in UTC, of a binary kind in hex."""
    kind = type_.kind
    if kind in (Kind.CHAR, Kind.VARCHAR, Kind.TEXT):
        return _characters(literal, type_)
    if kind in (Kind.BINARY, Kind.VARBINARY, Kind.BLOB):
        found = _bytes(literal, statement)
        return None if found is None else found.ljust(type_.length_bytes, b"\0").hex().upper()
    if kind is Kind.BIT:
        return _bits(literal, type_)
    if kind in (Kind.ENUM, Kind.SET):
        return _labels(literal, type_)
    if kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP):
        return _date(literal, type_, statement, server)
    if kind is Kind.TIME:
        return _time(literal, type_, statement, server)
    if kind in (Kind.INET4, Kind.INET6, Kind.UUID):
        return _address(literal, kind)
    return _number(literal, type_, words)


def implicit_text(type_: ColumnType) -> str | None:
    """What earlier rows get in a column that is NOT NULL and has no default."""
    kind = type_.kind
    if kind in INTEGER_KINDS or kind in (Kind.FLOAT, Kind.DOUBLE, Kind.BIT):
        return "0"
    if kind is Kind.DECIMAL:
        return str(Decimal(0).scaleb(-type_.scale)) if type_.scale < 7 else "0." + "0" * type_.scale
    fraction = f".{'0' * type_.precision}" if type_.precision else ""
    texts = {
        Kind.DATE: _ZERO_DATE,
        Kind.DATETIME: f"{_ZERO_DATE} 00:00:00{fraction}",
        Kind.TIMESTAMP: f"{_ZERO_DATE} 00:00:00{fraction}",
        Kind.TIME: f"00:00:00{fraction}",
        Kind.YEAR: "0000",
        Kind.BINARY: "00" * type_.length_bytes,
        Kind.ENUM: type_.labels[0] if type_.labels else None,
        Kind.INET4: "0.0.0.0",  # noqa: S104  (a value, not an address to bind)
        Kind.INET6: "::",
        Kind.UUID: "00000000-0000-0000-0000-000000000000",
    }
    if kind in (Kind.GEOMETRY, Kind.VECTOR, Kind.JSON):
        return None
    return texts.get(kind, "")


def _string(literal: Literal) -> str | None:
    """The characters of a literal in a string's place."""
    if literal.kind is LiteralKind.STRING and literal.charset in ("", "utf8mb4", "utf8mb3", "utf8"):
        return literal.text
    if literal.kind is LiteralKind.STRING and literal.text.isascii() and literal.charset != "binary":
        return literal.text
    return None


def _characters(literal: Literal, type_: ColumnType) -> str | None:
    text = _string(literal)
    if literal.kind is LiteralKind.NUMBER:
        text = _shown_number(literal.text)
    elif literal.kind in (LiteralKind.HEX, LiteralKind.BITS):
        try:
            text = decode_text(literal.charset or type_.charset, _raw(literal))
        except (CharsetUnknown, UnicodeDecodeError):
            return None
    if text is None or not can_hold(type_.charset, text):
        return None
    return text.rstrip(" ") if type_.kind is Kind.CHAR else text


def _shown_number(text: str) -> str | None:
    """As the server makes a string of it."""
    if re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", text):
        return text
    if re.fullmatch(r"-?[1-9][0-9]?[eE]\+?[0-9]", text):
        return str(int(float(text)))
    return None


def _raw(literal: Literal) -> bytes:
    if literal.kind is LiteralKind.HEX:
        return bytes.fromhex(literal.text.zfill(len(literal.text) + len(literal.text) % 2))
    size = (len(literal.text) + 7) // 8
    return int(literal.text or "0", 2).to_bytes(size, "big")


def _bytes(literal: Literal, statement: Statement) -> bytes | None:
    if literal.kind in (LiteralKind.HEX, LiteralKind.BITS):
        return _raw(literal)
    if literal.text.isascii():
        return literal.text.encode()
    charset = literal.charset or statement.charset_connection
    if charset in ("utf8mb4", "utf8mb3", "utf8", "binary") and statement.charset_client in ("utf8mb4", "utf8mb3"):
        return literal.text.encode("utf-8", "surrogateescape")
    return None


def _bits(literal: Literal, type_: ColumnType) -> str | None:
    if literal.kind is LiteralKind.NUMBER:
        number = int(literal.text) if re.fullmatch(r"[0-9]{1,20}", literal.text) else None
    elif literal.kind is LiteralKind.STRING:
        number = int.from_bytes(literal.text.encode(), "big") if literal.text.isascii() else None
    else:
        number = int.from_bytes(_raw(literal), "big")
    return None if number is None or number >> type_.precision else str(number)


def _labels(literal: Literal, type_: ColumnType) -> str | None:
    text = _characters(literal, type_) if literal.kind is not LiteralKind.NUMBER else None
    if text is None:
        return None
    wanted = [text] if type_.kind is Kind.ENUM else text.split(",") if text else []
    places = [_place(label.rstrip(" "), type_.labels) for label in wanted]
    if None in places:
        return None
    return ",".join(type_.labels[place] for place in sorted({place for place in places if place is not None}))


def _place(label: str, labels: tuple[str, ...]) -> int | None:
    if label in labels:
        return labels.index(label)
    same = [place for place, other in enumerate(labels) if other.lower() == label.lower()]
    return same[0] if len(same) == 1 else None


def _number(literal: Literal, type_: ColumnType, words: TypeWords | None) -> str | None:
    if literal.kind in (LiteralKind.HEX, LiteralKind.BITS):
        text = str(int.from_bytes(_raw(literal), "big"))
    else:
        text = literal.text.strip()
    if type_.kind is Kind.YEAR:
        return _year(text, literal.kind)
    if not re.fullmatch(r"[+-]?([0-9]{1,70}(\.[0-9]{0,70})?|\.[0-9]{1,70})([eE][+-]?[0-9]{1,3})?", text):
        return None
    number = Decimal(text)
    if words is None and type_.kind in (Kind.FLOAT, Kind.DOUBLE) and number != number.to_integral_value():
        return None  # FLOAT(7,2) and its like would round it
    scale = _scale(type_, words)
    if scale is not None and number.adjusted() > 80:
        return None
    with localcontext() as context:
        context.prec = 300
        if scale is not None:
            number = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
        number = abs(number) if number == 0 else number
        if type_.kind in INTEGER_KINDS or type_.kind is Kind.DECIMAL:
            return f"{number:f}"
    return real_text(float(number), type_.kind)


def real_text(number: float, kind: Kind) -> str | None:
    """The shortest text that reads back as the same value; what is no number of this type: None."""
    if not math.isfinite(number):
        return None
    if kind is Kind.DOUBLE:
        return repr(number)
    try:
        stored = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return None
    for digits in range(1, 10):
        text = f"{stored:.{digits}g}"
        if struct.unpack("<f", struct.pack("<f", float(text)))[0] == stored:
            return repr(float(text))
    return repr(stored)


def _scale(type_: ColumnType, words: TypeWords | None) -> int | None:
    if type_.kind in INTEGER_KINDS:
        return 0
    if type_.kind is Kind.DECIMAL:
        return type_.scale
    if words is not None and len(words.arguments) == 2 and words.arguments[1] in map(str, range(31)):
        return int(words.arguments[1])
    return None


def _year(text: str, kind: LiteralKind) -> str | None:
    if not re.fullmatch(r"[0-9]{1,4}", text):
        return None
    number = int(text)
    if number == 0 and (kind is not LiteralKind.STRING or len(text) == 4):
        return "0000"
    if number < 100 and len(text) <= 2:
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


def _date(literal: Literal, type_: ColumnType, statement: Statement, server: Server) -> str | None:
    if literal.kind not in (LiteralKind.STRING, LiteralKind.NUMBER):
        return None
    text = literal.text.strip()
    if text == "0":
        text = _ZERO_DATE
    match = _DATE.fullmatch(text) or _DIGITS.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    if len(match[1]) == 2 and text != _ZERO_DATE:
        year += 2000 if year < 70 else 1900
    if hour > 23 or minute > 59 or second > 59:
        return None
    micros = _micros(match[7], type_.precision, rounds=_rounds(statement, server))
    if not (year and month and day):
        if year or month or day or hour or minute or second or micros:
            return None  # with zero parts: not worth a guess at what a mode makes of it
        return _printed(_ZERO_DATE, timedelta(0), type_)
    try:
        ordinal = date(year, month, day)
    except ValueError:
        return None
    if type_.kind is Kind.DATE:
        return ordinal.isoformat() if (hour, minute, second) == (0, 0, 0) else None
    moment = timedelta(hours=hour, minutes=minute, seconds=second, microseconds=micros)
    if type_.kind is Kind.TIMESTAMP:
        offset = _offset(statement.time_zone)
        if offset is None:
            return None
        moment -= offset
    days, moment = divmod(moment, timedelta(days=1))
    try:
        return _printed((ordinal + timedelta(days=days)).isoformat(), moment, type_)
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


def _printed(day: str, moment: timedelta, type_: ColumnType) -> str:
    return day if type_.kind is Kind.DATE else f"{day} {_clock(moment, type_.precision)}"


def _clock(moment: timedelta, precision: int) -> str:
    seconds, micros = divmod(moment // timedelta(microseconds=1), 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{micros:06d}"[: len(text) + 1 + precision] if precision else text


def _time(literal: Literal, type_: ColumnType, statement: Statement, server: Server) -> str | None:
    if literal.kind not in (LiteralKind.STRING, LiteralKind.NUMBER):
        return None
    match = _TIME.fullmatch(literal.text) or _TIME_DIGITS.fullmatch(literal.text)
    if match is None:
        return None
    hour, minute, second = (int(part or 0) for part in match.groups()[1:4])
    if hour > 838 or minute > 59 or second > 59:
        return None
    micros = _micros(match[5], type_.precision, rounds=_rounds(statement, server))
    moment = timedelta(hours=hour, minutes=minute, seconds=second, microseconds=micros)
    sign = match[1] if moment else ""
    return sign + _clock(moment, type_.precision)


def _address(literal: Literal, kind: Kind) -> str | None:
    text = _string(literal)
    if text is None:
        return None
    if kind is Kind.UUID:
        return text.lower() if _UUID.fullmatch(text) else None
    try:
        return str(ipaddress.IPv4Address(text) if kind is Kind.INET4 else ipaddress.IPv6Address(text))
    except ValueError:
        return None
