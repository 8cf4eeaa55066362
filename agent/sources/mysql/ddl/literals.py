"""A default's literal as the value that a column holds: in the text in which SELECT prints it.

Pure. None wherever it isn't certain what the server makes of a literal: then nobody is told a value.
"""

import ipaddress
import math
import re
import struct
from decimal import ROUND_HALF_UP, Decimal, localcontext

from agent.sources.mysql.ddl.charset_texts import can_hold
from agent.sources.mysql.ddl.model import NOT_FIXED, ColumnDefinition, Server, Statement
from agent.sources.mysql.ddl.syntax import Literal, LiteralKind
from agent.sources.mysql.ddl.temporals import ZERO_DATE, temporal_text
from agent.sources.mysql.log.charsets import CharsetUnknown, decode_text
from agent.sources.mysql.types import INTEGER_KINDS, ColumnType, Kind

#: a number in scientific notation becomes a string without it where it lies between them
_LEAST_SHORT, _MOST_SHORT = 1e-4, 1e14
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


def literal_text(literal: Literal, column: ColumnDefinition, statement: Statement, server: Server) -> str | None:
    """The value's text, or None; of a timestamp in UTC, of a binary kind in hex."""
    type_, kind = column.type, column.type.kind
    if kind in (Kind.CHAR, Kind.VARCHAR, Kind.TEXT):
        return _characters(literal, type_)
    if kind in (Kind.BINARY, Kind.VARBINARY, Kind.BLOB, Kind.VECTOR):
        found = _bytes(literal, statement)
        return None if found is None else found.ljust(type_.length_bytes, b"\0").hex().upper()
    if kind is Kind.BIT:
        return _bits(literal, type_)
    if kind in (Kind.ENUM, Kind.SET):
        return _labels(literal, type_)
    if kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME, Kind.YEAR):
        return temporal_text(literal, type_, statement, server)
    if kind in (Kind.INET4, Kind.INET6, Kind.UUID):
        return _address(literal, kind)
    if kind is Kind.GEOMETRY:
        return None
    return _number(literal, type_, column.decimals)


def implicit_text(type_: ColumnType) -> str | None:
    """What earlier rows get in a column that is NOT NULL and has no default."""
    kind = type_.kind
    if kind in INTEGER_KINDS or kind in (Kind.FLOAT, Kind.DOUBLE, Kind.BIT):
        return "0"
    if kind is Kind.DECIMAL:
        return str(Decimal(0).scaleb(-type_.scale)) if type_.scale < 7 else "0." + "0" * type_.scale
    fraction = f".{'0' * type_.precision}" if type_.precision else ""
    texts = {
        Kind.DATE: ZERO_DATE,
        Kind.DATETIME: f"{ZERO_DATE} 00:00:00{fraction}",
        Kind.TIMESTAMP: f"{ZERO_DATE} 00:00:00{fraction}",
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
    is_of_column = literal.kind is not LiteralKind.STRING and not literal.charset
    if text is None or not (is_of_column or can_hold(type_.charset, text)):
        return None
    return text.rstrip(" ") if type_.kind is Kind.CHAR else text


def _shown_number(text: str) -> str | None:
    """As the server makes a string of it."""
    if re.fullmatch(r"-?[0-9]{1,40}", text):
        return str(int(text))
    if re.fullmatch(r"-?[0-9]{0,20}\.[0-9]{1,20}", text):
        return f"{Decimal(text):f}"
    if not re.fullmatch(r"-?[0-9.]{1,20}[eE][+-]?[0-9]{1,2}", text):
        return None
    number = float(text)
    is_short = number == 0 or _LEAST_SHORT <= abs(number) < _MOST_SHORT
    return f"{Decimal(repr(number)).normalize() + 0:f}" if is_short else None


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
        is_plain = re.fullmatch(r"[0-9]{1,20}(\.[0-9]{1,20}|[eE][0-9])?", literal.text)
        number = int(Decimal(literal.text).quantize(Decimal(1), ROUND_HALF_UP)) if is_plain else None
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
    places = [_place(label, type_) for label in wanted]
    if None in places:
        return None
    return ",".join(type_.labels[place] for place in sorted({place for place in places if place is not None}))


def _place(label: str, type_: ColumnType) -> int | None:
    """Only bytes are compared as they are, spaces at their end too."""
    is_text = type_.charset != "binary"
    label = label.rstrip(" ") if is_text else label
    if label in type_.labels:
        return type_.labels.index(label)
    same = [place for place, other in enumerate(type_.labels) if is_text and other.lower() == label.lower()]
    return same[0] if len(same) == 1 else None


def _number(literal: Literal, type_: ColumnType, decimals: int | None) -> str | None:
    if literal.kind in (LiteralKind.HEX, LiteralKind.BITS):
        text = str(int.from_bytes(_raw(literal), "big"))
    else:
        text = literal.text.strip()
    if not re.fullmatch(r"[+-]?([0-9]{1,70}(\.[0-9]{0,70})?|\.[0-9]{1,70})([eE][+-]?[0-9]{1,3})?", text):
        return None
    number = Decimal(text)
    if type_.kind in (Kind.FLOAT, Kind.DOUBLE):
        if decimals is None and number != number.to_integral_value():
            return None
        has_sign_of_zero = "e" in text.lower()  # any other zero is a decimal first
        return real_text(_rounded(float(number) if number or has_sign_of_zero else 0.0, decimals), type_.kind)
    scale = 0 if type_.kind in INTEGER_KINDS else type_.scale
    if number.adjusted() > 80:
        return None
    with localcontext() as context:
        context.prec = 300
        number = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
        return f"{abs(number) if number == 0 else number:f}"


def _rounded(number: float, digits: int | None) -> float:
    """FLOAT(7,2) keeps two digits after the point, found as the server finds them: in binary, halves to even."""
    if digits is None or digits >= NOT_FIXED or not math.isfinite(number):
        return number
    unit = 10.0**digits
    whole = math.floor(number)
    return round(whole + round((number - whole) * unit) / unit, digits)


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


def _address(literal: Literal, kind: Kind) -> str | None:
    text = _raw(literal) if literal.kind is LiteralKind.HEX and kind is not Kind.UUID else _string(literal)
    if isinstance(text, str) and kind is Kind.UUID:
        return text.lower() if _UUID.fullmatch(text) else None
    try:
        address = ipaddress.IPv4Address(text) if kind is Kind.INET4 else ipaddress.IPv6Address(text)
    except ValueError:
        return None
    has_dots = kind is Kind.INET6 and 0xFFFF < int(address) < 1 << 48  # ::1.2.3.4, ::ffff:1.2.3.4
    return None if has_dots else str(address)
