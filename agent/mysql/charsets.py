"""Charsets: from a collation's id in the log to a charset's name, and from that to the way its bytes are decoded.

The ids below are those of information_schema of MySQL 9.7 and MariaDB 10.11; they agree up to 247. An id or a charset
that is not here is an error: no other charset is tried in its place.
"""

import codecs
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache


class CharsetUnknown(ValueError):
    """A collation's id or a charset's name that this version does not know."""


class Way(Enum):
    """How text is decoded in the compiled core."""

    UTF8MB4 = 1
    UTF8MB3 = 2
    ASCII = 3
    BINARY = 4
    #: through a table of 256 characters
    SINGLE_BYTE = 5
    #: by a Python codec, a value at a time
    PYTHON = 6


@dataclass(frozen=True, slots=True)
class Codec:
    way: Way
    #: SINGLE_BYTE: 256 little-endian uint32: the character's UTF-8 bytes from the second byte on, how many they are
    #: in the first; 0: no character
    characters: bytes = b""
    #: PYTHON: raises UnicodeDecodeError for what is no text
    decode: Callable[[bytes], str] | None = None


#: first and last id, charset; both servers
_SHARED = """
    1 1 big5; 2 2 latin2; 3 3 dec8; 4 4 cp850; 5 5 latin1; 6 6 hp8; 7 7 koi8r; 8 8 latin1; 9 9 latin2; 10 10 swe7;
    11 11 ascii; 12 12 ujis; 13 13 sjis; 14 14 cp1251; 15 15 latin1; 16 16 hebrew; 18 18 tis620; 19 19 euckr;
    20 20 latin7; 21 21 latin2; 22 22 koi8u; 23 23 cp1251; 24 24 gb2312; 25 25 greek; 26 26 cp1250; 27 27 latin2;
    28 28 gbk; 29 29 cp1257; 30 30 latin5; 31 31 latin1; 32 32 armscii8; 33 33 utf8mb3; 34 34 cp1250; 35 35 ucs2;
    36 36 cp866; 37 37 keybcs2; 38 38 macce; 39 39 macroman; 40 40 cp852; 41 42 latin7; 43 43 macce; 44 44 cp1250;
    45 46 utf8mb4; 47 49 latin1; 50 52 cp1251; 53 53 macroman; 54 55 utf16; 56 56 utf16le; 57 57 cp1256; 58 59 cp1257;
    60 61 utf32; 62 62 utf16le; 63 63 binary; 64 64 armscii8; 65 65 ascii; 66 66 cp1250; 67 67 cp1256; 68 68 cp866;
    69 69 dec8; 70 70 greek; 71 71 hebrew; 72 72 hp8; 73 73 keybcs2; 74 74 koi8r; 75 75 koi8u; 76 76 utf8mb3;
    77 77 latin2; 78 78 latin5; 79 79 latin7; 80 80 cp850; 81 81 cp852; 82 82 swe7; 83 83 utf8mb3; 84 84 big5;
    85 85 euckr; 86 86 gb2312; 87 87 gbk; 88 88 sjis; 89 89 tis620; 90 90 ucs2; 91 91 ujis; 92 93 geostd8; 94 94 latin1;
    95 96 cp932; 97 98 eucjpms; 99 99 cp1250; 101 124 utf16; 128 151 ucs2; 159 159 ucs2; 160 183 utf32;
    192 215 utf8mb3; 223 223 utf8mb3; 224 247 utf8mb4"""
_MYSQL = "248 250 gb18030; 255 323 utf8mb4"
_MARIADB = "576 578 utf8mb3; 608 610 utf8mb4; 640 642 ucs2; 672 674 utf16; 736 738 utf32"
#: MariaDB: NO PAD collations have the id of their PAD SPACE sister and this
_MARIADB_NOPAD = 1024
#: MariaDB's uca1400 collations: 256 ids a charset
_MARIADB_UCA1400 = {2048: "utf8mb3", 2304: "utf8mb4", 2560: "ucs2", 2816: "utf16", 3072: "utf32"}


def _ids(table: str) -> dict[int, str]:
    runs = (run.split() for run in table.split(";"))
    return {number: charset for first, last, charset in runs for number in range(int(first), int(last) + 1)}


_SHARED_IDS, _MYSQL_IDS, _MARIADB_IDS = _ids(_SHARED), _ids(_MYSQL), _ids(_MARIADB)


def charset_of_collation(collation_id: int, *, mariadb: bool) -> str:
    """The charset's name; raises `CharsetUnknown`.

    >>> charset_of_collation(255, mariadb=False), charset_of_collation(2304, mariadb=True)
    ('utf8mb4', 'utf8mb4')
    """
    charset = _SHARED_IDS.get(collation_id)
    if charset is None and not mariadb:
        charset = _MYSQL_IDS.get(collation_id)
    if charset is None and mariadb:
        charset = (
            _MARIADB_IDS.get(collation_id)
            or _SHARED_IDS.get(collation_id - _MARIADB_NOPAD)
            or _MARIADB_UCA1400.get(collation_id & ~0xFF)
        )
    if charset is None:
        raise CharsetUnknown(f"the collation with id {collation_id} is not known to this version")
    return charset


_WAYS = {"utf8mb4": Way.UTF8MB4, "utf8mb3": Way.UTF8MB3, "utf8": Way.UTF8MB3, "ascii": Way.ASCII, "binary": Way.BINARY}

#: Python's name of a charset with several bytes per character
_MULTIBYTE = {
    "big5": "big5",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "euc_kr",
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

#: Python's name of a charset with one byte per character
_SINGLE_BYTE = {
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "latin1": "cp1252",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "tis620": "tis_620",
}


@cache
def codec_of(charset: str) -> Codec:
    """How a charset's bytes are decoded; raises `CharsetUnknown`."""
    if charset in _WAYS:
        return Codec(_WAYS[charset])
    if charset in _SINGLE_BYTE:
        return Codec(Way.SINGLE_BYTE, characters=b"".join(map(_packed, single_byte_characters(charset))))
    if charset in _MULTIBYTE:
        decode = codecs.getdecoder(_MULTIBYTE[charset])
        return Codec(Way.PYTHON, decode=lambda text: decode(text)[0])
    raise CharsetUnknown(f"the charset {charset!r} is not known to this version")


def single_byte_characters(charset: str) -> list[str]:
    """The 256 characters of a charset; '' where a byte is none."""
    characters = [bytes([byte]).decode(_SINGLE_BYTE[charset], "ignore") for byte in range(256)]
    if charset == "latin1":  # the server's latin1 is cp1252 with C1 controls where that has none
        characters = [character or chr(byte) for byte, character in enumerate(characters)]
    return characters


def _packed(character: str) -> bytes:
    encoded = character.encode()
    return (bytes([len(encoded)]) + encoded).ljust(4, b"\0")


def decode_text(charset: str, text: bytes) -> str:
    """A name or label of a definition; raises `CharsetUnknown`, or UnicodeDecodeError for what is no text."""
    codec = codec_of(charset)
    if codec.decode is not None:
        return codec.decode(text)
    if codec.way is Way.SINGLE_BYTE:
        characters = single_byte_characters(charset)
        if not all(characters[byte] for byte in text):
            raise UnicodeDecodeError(charset, text, 0, len(text), "a byte that is no character")
        return "".join(characters[byte] for byte in text)
    return text.decode("latin-1" if codec.way is Way.BINARY else "ascii" if codec.way is Way.ASCII else "utf-8")
