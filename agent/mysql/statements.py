"""What a statement in the log means for the rows of a table: no SQL parser, a reader of words.

Pure. It errs on one side only: a statement that might concern a table is taken to concern it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise

from agent.filter import SYSTEM_DATABASES

#: quoted name, quoted text, comment, word, or any other sign
_TOKEN = re.compile(
    r"""
    `(?P<name>(?:[^`]|``)*)`
    | "(?P<double>(?:[^"\\]|\\.|"")*)"
    | '(?:[^'\\]|\\.|'')*'
    | (?P<comment>/\*(?!M?!).*?\*/ | --(?=[\s]|$)[^\n]* | \#[^\n]*)
    | /\*M?!\d*                      # what is inside such a comment is executed
    | \*/
    | (?P<word>[0-9A-Za-z_$\u0080-\U0010ffff]+)
    | (?P<sign>\S)
    """,
    re.VERBOSE | re.DOTALL,
)

_ROW_WORDS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "DO", "HANDLER", "IMPORT"})
#: up to the table of a row change
_BEFORE_TARGET = frozenset(
    {
        "INSERT",
        "REPLACE",
        "UPDATE",
        "DELETE",
        "INTO",
        "FROM",
        "LOW_PRIORITY",
        "HIGH_PRIORITY",
        "DELAYED",
        "QUICK",
        "IGNORE",
    }
)
#: before parentheses, and no function
_NO_CALLS = frozenset({"VALUES", "VALUE", "IN"})
#: words of a row change that may concern more than one table
_OTHER_TABLES = frozenset({"SELECT", "JOIN", "USING", "TABLE"})
#: a partial rollback of what stands before it in the same transaction
_ROLLBACK_WORDS = frozenset({"ROLLBACK"})
_SAVEPOINT_WORDS = frozenset({"SAVEPOINT", "RELEASE"})
_TRANSACTION_WORDS = frozenset({"BEGIN", "COMMIT", "START"})
#: of an ALTER TABLE: takes rows away or brings them in without row events
_PARTITION_ACTIONS = frozenset({"DROP", "TRUNCATE", "EXCHANGE", "DISCARD", "IMPORT", "CONVERT"})
#: between the verb and what it is about
_BETWEEN = frozenset({"TEMPORARY", "ONLINE", "OFFLINE", "IGNORE", "OR", "REPLACE"})


class Kind(Enum):
    #: rows changed, as text: they are missing from the row events
    ROWS = auto()
    #: rows vanish or appear without row events
    ROWS_REMOVED = auto()
    #: the definition of a table, or anything else that moves no rows
    DEFINITION = auto()
    #: a place that a part of its own transaction may be undone to
    SAVEPOINT = auto()
    #: undoes its own transaction, or a part of it
    ROLLBACK = auto()
    #: XA: the rows of a prepared transaction count only once it is committed
    XA = auto()
    #: BEGIN and its like
    TRANSACTION = auto()


@dataclass(frozen=True, slots=True)
class Statement:
    kind: Kind
    #: first two words in upper case, for messages
    words: str
    #: CREATE TABLE ... START TRANSACTION: its rows and its commit follow
    opens_transaction: bool
    default_database: str
    #: (database or '', name) of all that may be a name, as written
    names: frozenset[tuple[str, str]]
    #: the same, lower-cased
    _names: frozenset[tuple[str, str]]
    #: a row change of one of the server's own tables, and of no other
    is_system_only: bool

    def mentions(self, database: str, table: str) -> bool:
        """Whether the statement may concern that table."""
        wanted = table.lower()
        here = database.lower()
        if (here, wanted) in self._names:
            return True
        if ("", wanted) in self._names and self.default_database.lower() in (here, ""):
            return True
        return self.is_about_database() and ("", here) in self._names

    def is_about_database(self) -> bool:
        return self.words.endswith(("DATABASE", "SCHEMA"))


def read(text: str, default_database: str) -> Statement:
    """What the statement is; never fails.

    >>> read("/* app */ ALTER TABLE `a b` ADD c INT", "shop").mentions("shop", "A B")
    True
    >>> read("TRUNCATE TABLE orders", "shop").kind
    <Kind.ROWS_REMOVED: 2>
    >>> read("INSERT INTO mysql.rds_heartbeat2 (id, value) VALUES (1, 2)", "shop").is_system_only
    True
    >>> read("INSERT INTO mysql.rds_heartbeat2 (id, value) VALUES (1, f())", "shop").is_system_only
    False
    """
    tokens = list(_tokens(text))
    words = [token.upper() for token, is_word in tokens if is_word]
    first = words[0] if words else ""
    second = next((word for word in words[1:5] if word not in _BETWEEN), "")
    opens = first == "CREATE" and words[-2:] == ["START", "TRANSACTION"]
    names = _names(tokens)
    lowered = frozenset((database.lower(), name.lower()) for database, name in names)
    kind = _kind(first, second, words)
    is_system_only = kind is Kind.ROWS and _is_system_only(tokens)
    return Statement(kind, f"{first} {second}".strip(), opens, default_database, names, lowered, is_system_only)


def _tokens(text: str) -> Iterable[tuple[str, bool]]:
    """(text, whether it can be a name or keyword)"""
    for match in _TOKEN.finditer(text):
        if match["name"] is not None:
            yield match["name"].replace("``", "`"), True
        elif match["double"] is not None:  # a name under ANSI_QUOTES
            yield match["double"].replace('""', '"'), True
        elif match["word"] is not None:
            yield match["word"], True
        elif match["sign"] is not None:
            yield match["sign"], False


def _names(tokens: list[tuple[str, bool]]) -> frozenset[tuple[str, str]]:
    names: set[tuple[str, str]] = set()
    for at, (token, is_word) in enumerate(tokens):
        if not is_word:
            continue
        qualified = at >= 2 and tokens[at - 1] == (".", False) and tokens[at - 2][1]
        names.add((tokens[at - 2][0] if qualified else "", token))
    return frozenset(names)


def _is_system_only(tokens: list[tuple[str, bool]]) -> bool:
    """INSERT, REPLACE, UPDATE or DELETE of a qualified system table alone, without anything that may be a routine.

    Such a table has no triggers, and no foreign key leads out of the server's databases.
    """
    words = {token.upper() for token, is_word in tokens if is_word}
    at = next((at for at, (token, _) in enumerate(tokens) if token.upper() not in _BEFORE_TARGET), len(tokens))
    target = [token for token, _ in tokens[at : at + 4]]
    if at == 0 or target[1:2] != ["."] or target[0].lower() not in SYSTEM_DATABASES or target[3:] == [","]:
        return False
    calls = any(
        is_word and after == ("(", False) and token.upper() not in _NO_CALLS
        for (token, is_word), after in pairwise(tokens[at + 3 :])
    )
    return not calls and not words & _OTHER_TABLES


def _kind(first: str, second: str, words: list[str]) -> Kind:
    if first in _ROW_WORDS:
        return Kind.ROWS
    if first in _ROLLBACK_WORDS:
        return Kind.ROLLBACK
    if first == "XA":
        return Kind.XA
    if first in _SAVEPOINT_WORDS:
        return Kind.SAVEPOINT
    if first in _TRANSACTION_WORDS:
        return Kind.TRANSACTION
    if first == "TRUNCATE" or (first == "DROP" and second in ("TABLE", "TABLES", "DATABASE", "SCHEMA")):
        return Kind.ROWS_REMOVED if "TEMPORARY" not in words[:3] else Kind.DEFINITION
    if first == "RENAME" or (first == "CREATE" and words[1:3] == ["OR", "REPLACE"] and "TABLE" in words[3:5]):
        return Kind.ROWS_REMOVED
    if first == "ALTER" and second == "TABLE" and _moves_rows(words):
        return Kind.ROWS_REMOVED
    return Kind.DEFINITION


def _moves_rows(words: list[str]) -> bool:
    """ALTER TABLE that drops, swaps or empties partitions or tablespaces, or renames the table."""
    pairs = set(pairwise(words))
    partition = any((action, "PARTITION") in pairs or (action, "TABLESPACE") in pairs for action in _PARTITION_ACTIONS)
    renames = any((("RENAME", to) in pairs) for to in ("TO", "AS")) or ("RENAME" in words and not _renames_part(pairs))
    return partition or renames


def _renames_part(pairs: set[tuple[str, str]]) -> bool:
    return any(("RENAME", part) in pairs for part in ("COLUMN", "INDEX", "KEY"))
