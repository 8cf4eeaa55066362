"""The words of a statement: names, texts, numbers and signs, without comments.

Pure: text in, tokens out. What MySQL and MariaDB execute of a comment (/*!80023 ... */, /*M! ... */) depends on the
server's version and is decided here. Text that ends within a quote or comment raises `Unreadable`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from agent.mysql.ddl.model import Server

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
    END = auto()


def words(text: str) -> frozenset[str]:
    """Those of a table of keywords."""
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class Token:
    kind: TokenKind
    #: without quotes and escapes
    text: str
    #: WORD: `text` in upper case; SIGN: itself; else ''
    word: str = ""


END = Token(TokenKind.END, "the end")

_TOKEN = re.compile(
    r"""
      (?P<space> \s+ | -- (?=[\s\x00-\x1f]|$) [^\n]* | \# [^\n]* )
    | (?P<executed> /\*M?! )
    | (?P<comment> /\* )
    | (?P<close> \*/ )
    | [xX] ' (?P<hex> [0-9a-fA-F]* ) '
    | 0x (?P<hex0> [0-9a-fA-F]+ ) (?! WORD )
    | [bB] ' (?P<bits> [01]* ) '
    | 0b (?P<bits0> [01]+ ) (?! WORD )
    | [nN] (?P<national> (?=') )
    | (?P<number> (?: [0-9]+ (?: \. [0-9]* )? | \. [0-9]+ ) (?: [eE] [+-]? [0-9]+ )? ) (?! WORD )
    | (?P<variable> @@? (?: WORD | \. )* )
    | (?P<word> WORD+ )
    | (?P<quote> ['"`] )
    | \[ (?P<bracket> (?: [^\]] | \]\] )* ) \]
    | (?P<sign> := | <=> | << | >> | <= | >= | <> | != | && | \|\| | ->> | -> | . )
    """.replace("WORD", r"[0-9A-Za-z_$\u0080-\U0010ffff]"),
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


def tokens_of(text: str, server: Server, sql_mode: int = 0) -> Iterator[Token]:
    """The tokens, without an end; raises `Unreadable` on the way.

    >>> [token.text for token in tokens_of("ADD `a``b` /* c */ /*!50100 INT */ # d", Server(False, (9, 7, 0)))]
    ['ADD', 'a`b', 'INT']
    """
    at = 0
    after_dot = False
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Unreadable(f"{text[at]!r} is no part of a statement")
        at = match.end()
        group = match.lastgroup
        if group in ("space", "close"):
            continue
        if group == "bracket" and not (server.mariadb and sql_mode & MSSQL):
            at = match.start() + 1
            yield Token(TokenKind.SIGN, "[", "[")
            continue
        if group == "comment":
            at = _end_of_comment(text, at)
            continue
        if group == "executed":
            at = _start_of_executed(text, at, match["executed"] == "/*M!", server)
            continue
        if group == "number" and after_dot:  # a name may be of digits
            yield Token(TokenKind.NAME, match["number"])
        elif group in ("quote", "national"):
            opened = at - 1 if group == "quote" else at
            at, token = _quoted(text, opened, sql_mode)
            yield token
        else:
            yield _plain(match)
        after_dot = match["sign"] == "."


def _plain(match: re.Match[str]) -> Token:
    group = match.lastgroup or ""
    found = match[group]
    if group in ("hex", "hex0"):
        return Token(TokenKind.HEX, found)
    if group in ("bits", "bits0"):
        return Token(TokenKind.BITS, found)
    if group == "number":
        return Token(TokenKind.NUMBER, found)
    if group == "bracket":
        return Token(TokenKind.NAME, found.replace("]]", "]"))
    if group == "word":
        return Token(TokenKind.WORD, found, found.upper())
    return Token(TokenKind.SIGN, found, found)


def _quoted(text: str, opened: int, sql_mode: int) -> tuple[int, Token]:
    quote = text[opened]
    is_name = quote == "`" or (quote == '"' and sql_mode & ANSI_QUOTES)
    has_escapes = not is_name and not sql_mode & NO_BACKSLASH_ESCAPES
    at = opened + 1
    while True:
        if at >= len(text):
            raise Unreadable("a quote is not closed")
        if text[at] == "\\" and has_escapes:
            at += 2
        elif text[at] == quote:
            if text[at + 1 : at + 2] != quote:
                break
            at += 2
        else:
            at += 1
    inner = text[opened + 1 : at]
    if has_escapes:
        # doubled quotes are resolved beside escapes, never within one
        inner = re.sub(
            rf"\\(.)|{quote}{quote}",
            lambda found: quote if found[1] is None else _ESCAPES.get(found[1], found[1]),
            inner,
            flags=re.DOTALL,
        )
    else:
        inner = inner.replace(quote * 2, quote)
    return at + 1, Token(TokenKind.NAME if is_name else TokenKind.STRING, inner)


def _end_of_comment(text: str, at: int) -> int:
    end = text.find("*/", at)
    if end < 0:
        raise Unreadable("a comment is not closed")
    return end + 2


def _start_of_executed(text: str, at: int, is_mariadb_only: bool, server: Server) -> int:
    """Where reading goes on: within the comment when the server executes it, else after it."""
    # MySQL takes a sixth digit only before a space
    digits = re.compile(r"[0-9]{5,6}" if server.mariadb else r"[0-9]{6}(?=\s)|[0-9]{5}").match(text, at)
    here = server.version[0] * 10000 + server.version[1] * 100 + server.version[2]
    if is_mariadb_only and not server.mariadb:
        return _end_of_comment(text, at)
    if digits is None:
        return at
    wanted = int(digits[0])
    # MariaDB leaves alone what is meant for MySQL 5.7 and later
    is_mysql_only = server.mariadb and not is_mariadb_only and 50700 <= wanted <= 99999
    if wanted <= here and not is_mysql_only:
        return digits.end()
    return _end_of_skipped(text, digits.end())


def _end_of_skipped(text: str, at: int) -> int:
    """After a comment that is not executed; comments within it belong to it."""
    for found in re.compile(r"/\*|\*/").finditer(text, at):
        if found.start() < at:
            continue
        if found[0] == "*/":
            return found.end()
        at = _end_of_comment(text, found.end())
    raise Unreadable("a comment is not closed")
