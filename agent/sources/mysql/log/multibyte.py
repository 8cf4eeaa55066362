"""Charsets of several bytes per character, other than UTF-8: through Python's codecs, made to agree with the server.

Bytes in, text out; what is no character of the charset raises UnicodeDecodeError. Where the server's tables have
another character for the same bytes, or none, they are listed here; the tests compare every single byte and every
sequence of two with what both servers convert them to. A character that the server converts to U+FFFD is none.
"""

# ruff: noqa: RUF001  (the charsets' own characters)
import codecs
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

#: decoded characters that are kept, of a charset that is decoded one by one
MOST_CHARACTERS_KEPT = 8192

#: Python's name of a charset
_PYTHON_NAMES = {
    "big5": "big5",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "cp949",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "sjis": "shift_jis",
    "ucs2": "utf_16_be",
    "ujis": "euc_jp",
    "utf16": "utf_16_be",
    "utf16le": "utf_16_le",
    "utf32": "utf_32_be",
}

#: where the server has another character whatever bytes Python's came from
_TRANSLATIONS = {
    "eucjpms": str.maketrans(
        "\u301c\u2016\u2212\u00a2\u00a3\u00ac\u00a6", "\uff5e\u2225\uff0d\uffe0\uffe1\uffe2\uffe4"
    ),
    "sjis": str.maketrans("\uff3c", "\\"),
    "ujis": str.maketrans("\uff3c", "\\"),
}


@dataclass(frozen=True, slots=True)
class _Oddities:
    """Characters that only their bytes tell."""

    #: None: no character
    characters: Mapping[bytes, str | None]
    #: finds bytes that may be one of them
    suspect: re.Pattern[bytes]
    #: one character of the charset
    character: re.Pattern[bytes]


_NEC_ROW_13 = (
    "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ ㍉㌔㌢㍍㌘㌧㌃㌶㍑㍗㌍㌦㌣㌫㍊"
    "㌻㎜㎝㎞㎎㎏㏄㎡        ㍻〝〟№㏍℡㊤㊥㊦㊧㊨㈱㈲㈹㍾㍽㍼≒≡∫∮∑√⊥∠∟⊿∵∩∪"
)
_IBM_EXTENSIONS = (
    "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤\ufa0e咊坙\ufa0f\ufa10增寬峵嵓\ufa11德悅愠敎昻"
    "晥\ufa12\uf929栁\ufa13\ufa14橫櫢淸淲瀨\ufa15\ufa16甁皂皞\ufa17礰\ufa18\ufa19\ufa1a\ufa1b竧\ufa1c\ufa1d綠緖"
    "\ufa1e荢\ufa1f薰\ufa20\ufa21蠇\ufa22譿賴赶\ufa23\ufa24\ufa25郞\ufa26鄕\ufa27\ufa28閒\uf9dc\ufa29霻靍靑\ufa2a"
    "\ufa2b\ufa2c馞髙魲\ufa2d黑"
)


def _user_defined() -> Iterator[tuple[bytes, str]]:
    """Rows 85 to 94 of both planes are the user's: U+E000 and on."""
    for prefix, first in ((b"", 0xE000), (b"\x8f", 0xE3AC)):
        for row in range(10):
            for cell in range(94):
                yield prefix + bytes([0xF5 + row, 0xA1 + cell]), chr(first + row * 94 + cell)


def _eucjpms() -> Iterator[tuple[bytes, str]]:
    yield from _user_defined()
    yield from (
        (bytes([0xAD, 0xA1 + cell]), character) for cell, character in enumerate(_NEC_ROW_13) if character != " "
    )
    for place, character in enumerate(_IBM_EXTENSIONS, 0xF3 - 0xA1):
        yield bytes([0x8F, 0xF3 + place // 94, 0xA1 + place % 94]), character
    yield b"\x8f\xa2\xb7", "～"  # for Python an ASCII tilde


_EUC_CHARACTER = rb"\x8f[\x00-\xff]{2}|[\x80-\xff][\x00-\xff]|[\x00-\xff]"


def _oddities_of(charset: str) -> _Oddities | None:
    """Made when a table has the charset: most hosts never need them."""
    characters: Mapping[bytes, str | None]
    if charset == "big5":
        characters = dict.fromkeys((b"\xa2\x40", b"\xa1\x5a", b"\xa1\xc3", b"\xa1\xc5", b"\xa2\xcc", b"\xa2\xce"))
        characters |= {b"\xa1\xfe": None}
        characters |= {bytes([0xF9, 0xD6 + place]): character for place, character in enumerate("碁銹裏墻恒粧嫺")}
        suspect = rb"\xa2[\x40\xcc\xce]|\xa1[\x5a\xc3\xc5\xfe]|\xf9[\xd6-\xdc]"
        character = rb"[\x80-\xff][\x00-\xff]|[\x00-\xff]"
    elif charset == "eucjpms":
        characters = dict(_eucjpms())
        suspect, character = rb"[\xad\xf3-\xfe][\xa1-\xfe]|\x8f\xa2\xb7", _EUC_CHARACTER
    elif charset == "gb18030":
        characters = {b"\xa8\xbc": "ḿ", b"\x81\x35\xf4\x37": "\ue7c7"}
        suspect = rb"\xa8\xbc|\x81\x35\xf4\x37"
        character = rb"[\x81-\xfe][0-9][\x00-\xff]{2}|[\x80-\xff][\x00-\xff]|[\x00-\xff]"
    elif charset == "ujis":
        characters = dict(_user_defined())
        suspect, character = rb"[\xf5-\xfe][\xa1-\xfe]", _EUC_CHARACTER
    else:
        return None
    return _Oddities(characters, re.compile(suspect), re.compile(character))


def _refused_of(charset: str) -> frozenset[str]:
    """What Python makes of bytes that are no character for the server, and of no others."""
    if charset == "ucs2":
        return frozenset(map(chr, range(0xD800, 0xE000)))
    return frozenset("\x80\uf8f0\uf8f1\uf8f2\uf8f3" if charset == "cp932" else "")


def decoder_of(charset: str) -> Callable[[bytes], str] | None:
    """The charset's decoder; None: it is none of these."""
    name = _PYTHON_NAMES.get(charset)
    if name is None:
        return None
    translation, refused = _TRANSLATIONS.get(charset, {}), _refused_of(charset)
    oddities = _oddities_of(charset)

    def decode_usual(text: bytes) -> str:
        decoded = codecs.decode(text, name).translate(translation)
        if not refused.isdisjoint(decoded):
            raise UnicodeDecodeError(charset, text, 0, len(text), "bytes that are no character")
        return decoded

    if oddities is None:
        return decode_usual
    suspect, character, odd = oddities.suspect, oddities.character, oddities.characters

    @lru_cache(MOST_CHARACTERS_KEPT)
    def decode_character(text: bytes) -> str:
        if text not in odd:
            return decode_usual(text)
        decoded = odd[text]
        if decoded is None:
            raise UnicodeDecodeError(charset, text, 0, len(text), "bytes that are no character")
        return decoded

    def decode(text: bytes) -> str:
        if suspect.search(text) is None:
            return decode_usual(text)
        return "".join(map(decode_character, character.findall(text)))

    return decode
