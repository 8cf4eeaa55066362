"""Guesses between two values of a key column.

Comes in: the texts of two bounds' parts, the first one before the second in the column's ascending order. Goes out:
texts that may lie between them. They need not: the server decides what they are worth. Pure.
"""

import ipaddress
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from decimal import Context, Decimal

from agent.sources.mysql.log.charsets import CharsetUnknown, decode_text
from agent.sources.mysql.snapshot.keys import Form, KeyColumn
from agent.sources.mysql.types import Kind

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz !#-./:@_~"
#: bytes that a guess has beyond what both values begin with
_GUESSED_BYTES = 8
#: of a text's guess
_MOST_CHARACTERS = 64
_DIGITS = Context(prec=100)
_CODEPOINT_PARTS = (1, 2, 3)


def middle(column: KeyColumn, low: str, high: str) -> str | None:
    """A text above `low` and at most `high`, near the middle, by the values; None: none is known.

    >>> from agent.sources.mysql.types import ColumnType
    >>> middle(KeyColumn("id", ColumnType(Kind.INT)), "-3", "8")
    '3'
    """
    kind = column.type.kind
    if column.form is Form.LISTED or kind is Kind.BIT:
        return str(_upper_middle(int(low), int(high)))
    if column.form is Form.NUMBER:
        return _middle_number(low, high)
    if column.form is Form.BYTES:
        return _middle_bytes(low, high)
    if column.form is Form.MOMENT:
        return _middle_time(low, high) if kind is Kind.TIME else _middle_moment(kind, low, high)
    return _middle_address(kind, low, high) if column.form is Form.ADDRESS else None


def text_candidates(column: KeyColumn, low: str, high: str) -> Iterator[list[str]]:
    """Of a TEXT column, lists of texts of which some are between by most collations, in no order.

    First those that go on after what both have in common with one character, then with one character more.
    """
    charset = column.type.charset
    try:
        below, above = (decode_text(charset, bytes.fromhex(text)) for text in (low, high))
    except (UnicodeDecodeError, CharsetUnknown):
        return
    shared = _shared_length(below, above)
    for length in (shared, shared + 1):
        characters = list(_ALPHABET) + _between_codepoints(below[length : length + 1], above[length : length + 1])
        found = [side[:length] + character for side in (below, above) for character in characters]
        texts = dict.fromkeys(text for text in found if len(text) <= _MOST_CHARACTERS)
        yield list(_encoded(charset, texts))


def _upper_middle(low: int, high: int) -> int:
    return low + (high - low + 1) // 2


def _middle_number(low: str, high: str) -> str:
    digits = max(len(text.partition(".")[2]) for text in (low, high))
    scaled = [int(Decimal(text).scaleb(digits, _DIGITS)) for text in (low, high)]
    found = Decimal(_upper_middle(scaled[0], scaled[1])).scaleb(-digits, _DIGITS)
    return f"{found:f}"


def _middle_bytes(low: str, high: str) -> str:
    below, above = bytes.fromhex(low), bytes.fromhex(high)
    shared = 0
    while shared < min(len(below), len(above)) and below[shared] == above[shared]:
        shared += 1
    parts = [part[shared : shared + _GUESSED_BYTES].ljust(_GUESSED_BYTES, b"\0") for part in (below, above)]
    found = _upper_middle(*(int.from_bytes(part, "big") for part in parts))
    guess = above[:shared] + found.to_bytes(_GUESSED_BYTES, "big")
    return guess.rstrip(b"\0").hex().upper() if len(above) < len(guess) else guess.hex().upper()


def _middle_time(low: str, high: str) -> str:
    found = _upper_middle(_time_us(low), _time_us(high))
    seconds, us = divmod(abs(found), 1_000_000)
    sign = "-" if found < 0 else ""
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{us:06d}"


def _time_us(text: str) -> int:
    hours, minutes, seconds = text.lstrip("-").split(":")
    whole, _, fraction = seconds.partition(".")
    us = (int(hours) * 3600 + int(minutes) * 60 + int(whole)) * 1_000_000 + int(fraction.ljust(6, "0") or 0)
    return -us if text.startswith("-") else us


def _middle_moment(kind: Kind, low: str, high: str) -> str:
    below, above = _moment(low), _moment(high)
    found = below + timedelta(microseconds=_upper_middle(0, (above - below) // timedelta(microseconds=1)))
    if kind is Kind.DATE:
        return f"{found + timedelta(hours=12) if found.year < 9999 else found:%Y-%m-%d}".rjust(10, "0")
    return found.isoformat(" ", "microseconds")


def _moment(text: str) -> datetime:
    """The nearest real one: dates may have zero parts, or days that their month has not."""
    date, _, clock = text.partition(" ")
    year, month, day = (int(part) for part in date.split("-"))
    first = datetime(min(max(year, 1), 9999), min(max(month, 1), 12), 1)  # noqa: DTZ001  (no zone: UTC)
    us = _time_us(clock) if clock else 0
    return first.replace(day=min(max(day, 1), 28)) + timedelta(microseconds=us)


def _middle_address(kind: Kind, low: str, high: str) -> str:
    if kind is Kind.UUID:
        return str(uuid.UUID(int=_upper_middle(*sorted(uuid.UUID(text).int for text in (low, high)))))
    found = _upper_middle(*(int(ipaddress.ip_address(text)) for text in (low, high)))
    return str(ipaddress.IPv4Address(found) if kind is Kind.INET4 else ipaddress.IPv6Address(found))


def _shared_length(left: str, right: str) -> int:
    length = 0
    while length < min(len(left), len(right)) and left[length] == right[length]:
        length += 1
    return length


def _between_codepoints(below: str, above: str) -> list[str]:
    """Scripts whose letters a collation orders as their code points are: some between."""
    if not above or ord(above) < 0x80:
        return []
    first, last = ord(below) if below else 0, ord(above)
    found = (chr(first + (last - first) * part // 4) for part in _CODEPOINT_PARTS)
    return [character for character in found if not 0xD800 <= ord(character) < 0xE000]


def _encoded(charset: str, texts: Iterable[str]) -> Iterable[str]:
    """In hex digits, those that the charset has for sure."""
    for text in texts:
        try:
            raw = text.encode(_PYTHON.get(charset, "ascii"))
        except UnicodeEncodeError:
            continue
        yield raw.hex().upper()


#: other charsets get ASCII, which is part of each but UCS-2, UTF-16 and UTF-32
_PYTHON = {
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-8",
    "utf8": "utf-8",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "latin1": "cp1252",
    "cp1251": "cp1251",
    "koi8r": "koi8-r",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
}
