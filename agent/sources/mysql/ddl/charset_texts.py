"""What a charset's texts can hold, and what becomes of characters that it lacks. Pure."""

from functools import cache

from agent.sources.mysql.log.charsets import (
    CHARACTER_BYTES,
    CharsetUnknown,
    Way,
    codec_of,
    decode_text,
    single_byte_characters,
)

ALL_OF_UNICODE = frozenset({"utf8mb4", "utf16", "utf16le", "utf32", "gb18030"})
_BASIC_PLANE = frozenset({"utf8mb3", "ucs2"})
#: the servers refuse what is no text in them; MariaDB takes surrogates in UTF-8, and any byte in ascii
_CHECKED = frozenset({"utf16", "utf16le", "utf32"})
_CHECKED_BY_MYSQL = frozenset({"utf8mb3", "utf8mb4"})


def is_shown_surely(text: str, charset: str) -> bool:
    """Whether it is as the server shows it, or writes it when it makes a statement of its own: that is done in
    utf8mb3, with '?' for what that lacks."""
    return "?" not in text or CHARACTER_BYTES.get(charset, 4) < 4


def can_hold(charset: str, text: str) -> bool:
    """Whether the charset surely has these characters."""
    return as_held(charset, text) == text


def as_held(charset: str, text: str) -> str | None:
    """The text with '?' for what the charset lacks; None: not known.

    >>> as_held("cp1251", "Ж日"), as_held("binary", "Ж")
    ('Ж?', None)
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        return None
    if charset in ALL_OF_UNICODE or (text.isascii() and charset != "swe7"):
        return text
    if charset in _BASIC_PLANE:
        return "".join(character if character < "\U00010000" else "?" for character in text)
    characters = _characters_of(charset)
    if characters is None:
        return None
    return "".join(character if character in characters else "?" for character in text)


@cache
def _characters_of(charset: str) -> frozenset[str] | None:
    """All of a charset of up to three bytes; made when a text needs it."""
    if charset == "ascii":
        return frozenset(map(chr, range(128)))
    try:
        if codec_of(charset).decode is None:
            return None if charset == "binary" else frozenset(filter(None, single_byte_characters(charset)))
    except CharsetUnknown:
        return None
    found = set()
    for lead in range(256):
        for rest in _rests(lead, charset):
            try:
                found.add(decode_text(charset, bytes([lead]) + rest))
            except UnicodeDecodeError:
                continue
    return frozenset(character for character in found if len(character) == 1)


def _rests(lead: int, charset: str) -> list[bytes]:
    """What may follow a character's first byte."""
    rests = [b""]
    if lead >= 0x80:
        rests += [bytes([second]) for second in range(0x40, 0x100)]
    if lead == 0x8F and CHARACTER_BYTES[charset] == 3:
        rests += [bytes([second, third]) for second in range(0xA1, 0x100) for third in range(0xA1, 0x100)]
    return rests


def has_all_characters(charset: str, other: str) -> bool:
    """Whether the charset surely has every character that the other one has.

    >>> has_all_characters("utf8mb3", "latin1"), has_all_characters("latin1", "cp1251")
    (True, False)
    """
    if charset == other or charset in ALL_OF_UNICODE:
        return True
    if other in ALL_OF_UNICODE or "binary" in (charset, other):
        return False
    if charset in _BASIC_PLANE and other in _BASIC_PLANE:
        return True
    if other in _BASIC_PLANE:
        return False
    wanted = _characters_of(other)
    if wanted is None:
        return False
    if charset in _BASIC_PLANE:
        return all(character < "\U00010000" for character in wanted)
    found = _characters_of(charset)
    return found is not None and wanted <= found


@cache
def may_hold_invalid(charset: str, *, mariadb: bool) -> bool:
    """Whether a column of the charset may hold bytes that are no text in it.

    >>> may_hold_invalid("latin1", mariadb=True), may_hold_invalid("tis620", mariadb=True)
    (False, True)
    """
    if charset in _CHECKED or (charset in _CHECKED_BY_MYSQL and not mariadb):
        return False
    try:
        codec = codec_of(charset)
    except CharsetUnknown:
        return True
    return codec.way is not Way.SINGLE_BYTE or not all(single_byte_characters(charset))
