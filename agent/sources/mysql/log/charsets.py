"""Charsets: from a collation's id in the log to a charset's name, and from that to the way its bytes are decoded.

The ids below are those of information_schema of MySQL 9.7, MariaDB 10.11 and 11.8; they agree up to 247. An id or a
charset that is not here is an error: no other charset is tried in its place.
"""

# ruff: noqa: RUF001  (the charsets' own characters)
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache

from agent.sources.mysql.log.multibyte import decoder_of


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
    #: SINGLE_BYTE: bytes below 0x80 are ASCII
    has_ascii: bool = False
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
_MARIADB = "255 309 utf8mb4; 576 579 utf8mb3; 608 611 utf8mb4; 640 642 ucs2; 672 674 utf16; 736 738 utf32"
#: MariaDB: NO PAD collations have the id of their PAD SPACE sister and this; the other ids up to 2047 are for
#: collations that a server's owner adds, of any charset
_MARIADB_NOPAD = 1024
#: first and last id of those that have such a sister
_MARIADB_NOPAD_SISTERS = """
    1 1; 3 4; 6 13; 16 16; 18 19; 22 22; 24 26; 28 28; 30 30; 32 33; 35 41; 43 43; 45 47; 50 51; 53 62; 64 75; 77
    93; 95 98; 101 101; 123 123; 128 128; 150 150; 160 160; 182 182; 192 192; 214 214; 224 224; 246 246"""
#: MariaDB's uca1400 collations: 256 ids a charset
_MARIADB_UCA1400 = {2048: "utf8mb3", 2304: "utf8mb4", 2560: "ucs2", 2816: "utf16", 3072: "utf32"}


def _ids(table: str) -> dict[int, str]:
    runs = (run.split() for run in table.split(";"))
    return {number: charset for first, last, charset in runs for number in range(int(first), int(last) + 1)}


def _nopad_ids(shared: Mapping[int, str]) -> dict[int, str]:
    runs = (run.split() for run in _MARIADB_NOPAD_SISTERS.split(";"))
    sisters = (number for first, last in runs for number in range(int(first), int(last) + 1))
    return {number + _MARIADB_NOPAD: shared[number] for number in sisters}


_SHARED_IDS, _MYSQL_IDS, _MARIADB_IDS = _ids(_SHARED), _ids(_MYSQL), _ids(_MARIADB)
_MARIADB_NOPAD_IDS = _nopad_ids(_SHARED_IDS)


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
            or _MARIADB_NOPAD_IDS.get(collation_id)
            or _MARIADB_UCA1400.get(collation_id & ~0xFF)
        )
    if charset is None:
        raise CharsetUnknown(f"the collation with id {collation_id} is not known to this version")
    return charset


_OF_CHARACTER_BYTES = {
    1: """armscii8 ascii binary cp1250 cp1251 cp1256 cp1257 cp850 cp852 cp866 dec8 geostd8 greek hebrew hp8 keybcs2
       koi8r koi8u latin1 latin2 latin5 latin7 macce macroman swe7 tis620""",
    2: "big5 cp932 euckr gb2312 gbk sjis ucs2",
    3: "eucjpms ujis utf8mb3",
    4: "gb18030 utf16 utf16le utf32 utf8mb4",
    5: "filename",
}
#: the most that a character takes, by charset
CHARACTER_BYTES = {charset: size for size, charsets in _OF_CHARACTER_BYTES.items() for charset in charsets.split()}

_WAYS = {"utf8mb4": Way.UTF8MB4, "utf8mb3": Way.UTF8MB3, "utf8": Way.UTF8MB3, "ascii": Way.ASCII, "binary": Way.BINARY}

#: Python's name of a charset with one byte per character
_SINGLE_BYTE = {
    "armscii8": "ascii",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "dec8": "latin-1",
    "geostd8": "latin-1",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "hp8": "latin-1",
    "keybcs2": "ascii",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "latin1": "cp1252",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "swe7": "ascii",
    "tis620": "tis_620",
}

#: where the server's tables (both servers') differ from Python's: first byte, characters from there; a space: none
_DIFFERENCES: dict[str, tuple[tuple[int, str], ...]] = {
    "armscii8": (
        (
            0x80,
            "\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f\xa0\u2741\xa7\u0589)(\xbb\xab\u2014.\u055d,-\u055f\u2026\u055c\u055b\u055e\u0531\u0561\u0532\u0562\u0533\u0563\u0534\u0564\u0535\u0565\u0536\u0566\u0537\u0567\u0538\u0568\u0539\u0569\u053a\u056a\u053b\u056b\u053c\u056c\u053d\u056d\u053e\u056e\u053f\u056f\u0540\u0570\u0541\u0571\u0542\u0572\u0543\u0573\u0544\u0574\u0545\u0575\u0546\u0576\u0547\u0577\u0548\u0578\u0549\u0579\u054a\u057a\u054b\u057b\u054c\u057c\u054d\u057d\u054e\u057e\u054f\u057f\u0550\u0580\u0551\u0581\u0552\u0582\u0553\u0583\u0554\u0584\u0555\u0585\u0556\u0586\u2019'",
        ),
    ),
    "cp1256": ((0x8A, " "), (0x8F, " "), (0x98, " "), (0x9A, " "), (0x9F, " "), (0xAA, " "), (0xC0, " "), (0xFF, " ")),
    "cp866": ((0xFC, "ⁿ²"),),
    "dec8": (
        (0xA4, " "),
        (0xA6, " "),
        (0xA8, "¤"),
        (0xAC, "    "),
        (0xB4, " "),
        (0xB8, " "),
        (0xBE, " "),
        (0xD0, " "),
        (0xD7, "Œ"),
        (0xDD, "Ÿ "),
        (0xF0, " "),
        (0xF7, "œ"),
        (0xFD, "ÿ  "),
    ),
    "geostd8": (
        (0x80, "€ ‚ „…†‡ ‰ ‹     ‘’“”•–—   ›    "),
        (0xC0, "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ                       №  "),
    ),
    "greek": ((0xA1, "ʽʼ"), (0xA4, "  "), (0xAA, " ")),
    "hebrew": ((0xAF, "‾"),),
    "hp8": ((0xA1, "ÀÂÈÊËÎÏ´ˋˆ¨˜ÙÛ₤¯Ýý°ÇçÑñ¡¿¤£¥§ƒ¢âêôûáéóúàèòùäëöüÅîØÆåíøæÄìÖÜÉïßÔÁÃãÐðÍÌÓÒÕõŠšÚŸÿÞþ·µ¶¾—¼½ªº«■»± "),),
    "keybcs2": (
        (
            0x80,
            "\u010c\xfc\xe9\u010f\xe4\u010e\u0164\u010d\u011b\u011a\u0139\xcd\u013e\u013a\xc4\xc1\xc9\u017e\u017d\xf4\xf6\xd3\u016f\xda\xfd\xd6\xdc\u0160\u013d\xdd\u0158\u0165\xe1\xed\xf3\xfa\u0148\u0147\u016e\xd4\u0161\u0159\u0155\u0154\xbc\xa1\xab\xbb\u2591\u2592\u2593\u2502\u2524\u2561\u2562\u2556\u2555\u2563\u2551\u2557\u255d\u255c\u255b\u2510\u2514\u2534\u252c\u251c\u2500\u253c\u255e\u255f\u255a\u2554\u2569\u2566\u2560\u2550\u256c\u2567\u2568\u2564\u2565\u2559\u2558\u2552\u2553\u256b\u256a\u2518\u250c\u2588\u2584\u258c\u2590\u2580\u03b1\xdf\u0393\u03c0\u03a3\u03c3\xb5\u03c4\u03a6\u0398\u03a9\u03b4\u221e\u03c6\u03b5\u2229\u2261\xb1\u2265\u2264\u2320\u2321\xf7\u2248\xb0\u2219\xb7\u221a\u207f\xb2\u25a0\xa0",
        ),
    ),
    "koi8u": ((0x95, "•"),),
    "latin1": (
        (0x81, "\x81"),
        (0x8D, "\x8d"),
        (0x8F, "\x8f\x90"),
        (0x9D, "\x9d"),
    ),
    "swe7": (
        (0x40, "É"),
        (0x5B, "ÄÖÅÜ"),
        (0x60, "é"),
        (0x7B, "äöåü "),
    ),
}


@cache
def codec_of(charset: str) -> Codec:
    """How a charset's bytes are decoded; raises `CharsetUnknown`."""
    if charset in _WAYS:
        return Codec(_WAYS[charset])
    if charset in _SINGLE_BYTE:
        characters = single_byte_characters(charset)
        has_ascii = all(characters[byte] == chr(byte) for byte in range(128))
        return Codec(Way.SINGLE_BYTE, b"".join(map(_packed, characters)), has_ascii)
    decode = decoder_of(charset)
    if decode is not None:
        return Codec(Way.PYTHON, decode=decode)
    raise CharsetUnknown(f"the charset {charset!r} is not known to this version")


def single_byte_characters(charset: str) -> list[str]:
    """The 256 characters of a charset; '' where a byte is none."""
    characters = [bytes([byte]).decode(_SINGLE_BYTE[charset], "ignore") for byte in range(256)]
    for first, others in _DIFFERENCES.get(charset, ()):
        characters[first : first + len(others)] = [other.strip(" ") for other in others]
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
