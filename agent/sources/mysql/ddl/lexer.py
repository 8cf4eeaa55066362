"""The tokens of a statement: its words, names, texts, numbers and signs, and what stands between them.

Pure: text in, tokens out, which together are the whole text. What a quote ends, and what MySQL and MariaDB execute of a
comment (/*!80023 ... */, /*M! ... */), depends on the session's sql_mode and the server's version and is decided here;
all that looks into a statement builds on it.
"""

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from agent.sources.mysql.ddl.model import Server

ANSI_QUOTES = 1 << 2
#: MariaDB
MSSQL = 1 << 10
NO_BACKSLASH_ESCAPES = 1 << 20


class Unreadable(ValueError):
    """A statement, or a part of one, that this version can't read; completes "because ..."."""


class TokenKind(Enum):
    #: a keyword, or a name without quotes
    WORD = auto()
    #: a name in quotes
    NAME = auto()
    STRING = auto()
    NUMBER = auto()
    #: x'4142', 0x4142: `text` is '4142'
    HEX = auto()
    #: b'101', 0b101: `text` is '101'
    BITS = auto()
    SIGN = auto()
    #: between the others; also the marks of a comment that is executed
    SPACE = auto()
    #: one that is not executed
    COMMENT = auto()
    #: from a quote or a comment that is not closed to the end; `text` says so
    BROKEN = auto()
    END = auto()


_BETWEEN = (TokenKind.SPACE, TokenKind.COMMENT)


def words(text: str) -> frozenset[str]:
    """Those of a table of keywords."""
    return frozenset(text.split())


def words_of(text: str) -> frozenset[str]:
    """All that may be names without quotes, wherever it stands in a text."""
    return frozenset(_WORDS.findall(text))


class Token(NamedTuple):
    """A tuple: it is made several times as fast as a dataclass."""

    kind: TokenKind
    #: without quotes and escapes
    text: str
    #: WORD: `text` in upper case; SIGN: itself; else ''
    word: str = ""
    #: as written
    raw: str = ""


END = Token(TokenKind.END, "the end")

#: letters, digits, '_', '$' and all beyond ASCII; said by the others, since sre takes 4 ms for a set up to U+10FFFF
_WORD = r"""[^\x00-!"#%-/:-@\[-^`{-\x7f]"""
_WORDS = re.compile(f"{_WORD}+")
_TOKEN = re.compile(
    r"""
      (?P<space> \s+ )
    | (?P<note> -- (?=[\s\x00-\x1f]|$) [^\n]* | \# [^\n]* )
    | (?P<executed> /\*M?! )
    | (?P<comment> /\* )
    | (?P<close> \*/ )
    | [xX] ' (?P<hex> [0-9a-fA-F]* ) '
    | 0x (?P<hex0> [0-9a-fA-F]+ ) (?! WORD )
    | [bB] ' (?P<bits> [01]* ) '
    | 0b (?P<bits0> [01]+ ) (?! WORD )
    | [nN] (?P<national> ' )
    | (?<= WORD_OR_QUOTE ) (?P<dot> \. ) (?= WORD )
    | (?P<number> (?: [0-9]+ (?: \. [0-9]* )? | \. [0-9]+ ) (?: [eE] [+-]? [0-9]+ )? ) (?! WORD )
    | (?P<variable> @@? (?: WORD | \. )* )
    | (?P<word> WORD+ )
    | (?P<quote> ['"`] )
    | \[ (?P<bracket> (?: [^\]] | \]\] )* ) \]
    | (?P<sign> := | <=> | << | >> | <= | >= | <> | != | && | \|\| | ->> | -> | . )
    """.replace("WORD_OR_QUOTE", _WORD.replace("`", "").replace('"', "")).replace("WORD", _WORD),
    re.VERBOSE | re.DOTALL,
)
_KINDS = {
    "space": TokenKind.SPACE,
    "close": TokenKind.SPACE,
    "note": TokenKind.COMMENT,
    "hex": TokenKind.HEX,
    "hex0": TokenKind.HEX,
    "bits": TokenKind.BITS,
    "bits0": TokenKind.BITS,
    "number": TokenKind.NUMBER,
    "word": TokenKind.WORD,
}
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
#: the rest of a quoted text, possessive: a doubled quote never ends one
_REST_PLAIN = {quote: re.compile(rf"(?:[^{quote}]|{quote}{quote})*+{quote}") for quote in "'\"`"}
_REST_WITH_ESCAPES = {quote: re.compile(rf"(?:[^{quote}\\]|\\.|{quote}{quote})*+{quote}", re.DOTALL) for quote in "'\""}
_ESCAPED = {quote: re.compile(rf"\\(.)|{quote}{quote}", re.DOTALL) for quote in "'\""}
#: MySQL stores '?' for them in a name, MariaDB refuses them
_BEYOND_NAMES = re.compile("[\U00010000-\U0010ffff]")
_VERSION = re.compile(r"[0-9]{6}(?=\s)|[0-9]{5}")
_VERSION_MARIADB = re.compile(r"[0-9]{5,6}")
_COMMENT_MARK = re.compile(r"/\*|\*/")


def tokens_of(text: str, server: Server, sql_mode: int = 0) -> Iterator[Token]:
    """The tokens that mean something, without an end; raises `Unreadable` on the way.

    >>> [token.text for token in tokens_of("ADD `a``b` /* c */ /*!50100 INT */ # d", Server(False, (9, 7, 0)))]
    ['ADD', 'a`b', 'INT']
    """
    for token in lex(text, server, sql_mode):
        if token.kind is TokenKind.BROKEN:
            raise Unreadable(token.text)
        if token.kind not in _BETWEEN:
            yield token


def lex(text: str, server: Server, sql_mode: int = 0) -> Iterator[Token]:
    """All of the text as tokens.

    >>> [token.raw for token in lex("ADD `a``b`/* c */", Server(False, (9, 7, 0)))]
    ['ADD', ' ', '`a``b`', '/* c */']
    """
    at = 0
    after_dot = False
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None  # the last sign is any character
        token = _token(text, match, server, sql_mode)
        if token.kind in (TokenKind.WORD, TokenKind.NAME) and not server.mariadb and not token.text.isascii():
            token = token._replace(text=_BEYOND_NAMES.sub("?", token.text))
        if after_dot and token.kind is TokenKind.NUMBER:  # a name may be of digits
            token = Token(TokenKind.NAME, token.text, "", token.raw)
        yield token
        at += len(token.raw)
        after_dot = token.word == "." or (after_dot and token.kind in _BETWEEN)


def _token(text: str, match: re.Match[str], server: Server, sql_mode: int) -> Token:
    group = match.lastgroup or ""
    found, raw = match[group], match[0]
    if group == "word":
        return Token(TokenKind.WORD, found, found.upper(), raw)
    if group in _KINDS:
        return Token(_KINDS[group], found, "", raw)
    if group in ("quote", "national"):
        return _quoted(text, match, sql_mode)
    if group == "comment":
        return _comment(text, match.start(), text.find("*/", match.end()))
    if group == "executed":
        return _executed(text, match, server)
    if group == "bracket":
        if server.mariadb and sql_mode & MSSQL:
            return Token(TokenKind.NAME, found.replace("]]", "]"), "", raw)
        return Token(TokenKind.SIGN, "[", "[", "[")
    return Token(TokenKind.SIGN, found, found, raw)


def _quoted(text: str, match: re.Match[str], sql_mode: int) -> Token:
    quote, opened = text[match.end() - 1], match.end()
    is_name = quote == "`" or bool(quote == '"' and sql_mode & ANSI_QUOTES)
    has_escapes = not is_name and not sql_mode & NO_BACKSLASH_ESCAPES
    closed = (_REST_WITH_ESCAPES if has_escapes else _REST_PLAIN)[quote].match(text, opened)
    if closed is None:
        return Token(TokenKind.BROKEN, "a quote is not closed", "", text[match.start() :])
    inner = text[opened : closed.end() - 1]
    if has_escapes:
        # doubled quotes are resolved beside escapes, never within one
        inner = _ESCAPED[quote].sub(
            lambda found: quote if found[1] is None else _ESCAPES.get(found[1], found[1]), inner
        )
    else:
        inner = inner.replace(quote * 2, quote)
    return Token(TokenKind.NAME if is_name else TokenKind.STRING, inner, "", text[match.start() : closed.end()])


def _comment(text: str, start: int, end: int) -> Token:
    """Up to the mark at `end`; -1: there is none."""
    if end < 0:
        return Token(TokenKind.BROKEN, "a comment is not closed", "", text[start:])
    return Token(TokenKind.COMMENT, "", "", text[start : end + 2])


def _executed(text: str, match: re.Match[str], server: Server) -> Token:
    """The mark that opens a comment that this server executes, or the whole comment."""
    is_mariadb_only = match["executed"] == "/*M!"
    # MySQL takes a sixth digit only before a space
    digits = (_VERSION_MARIADB if server.mariadb else _VERSION).match(text, match.end())
    here = server.version[0] * 10000 + server.version[1] * 100 + server.version[2]
    if is_mariadb_only and not server.mariadb:
        return _comment(text, match.start(), text.find("*/", match.end()))
    if digits is None:
        return Token(TokenKind.SPACE, "", "", match[0])
    wanted = int(digits[0])
    # MariaDB leaves alone what is meant for MySQL 5.7 and later
    is_mysql_only = server.mariadb and not is_mariadb_only and 50700 <= wanted <= 99999
    if wanted <= here and not is_mysql_only:
        return Token(TokenKind.SPACE, "", "", text[match.start() : digits.end()])
    return _comment(text, match.start(), _end_of_skipped(text, digits.end()))


def _end_of_skipped(text: str, at: int) -> int:
    """The mark that ends a comment that is not executed; comments within it belong to it. -1: there is none."""
    for found in _COMMENT_MARK.finditer(text, at):
        if found.start() < at:
            continue
        if found[0] == "*/":
            return found.start()
        at = text.find("*/", found.end()) + 2
        if at < 2:
            return -1
    return -1
