"""What a statement in the log means for the rows of a table: no SQL parser, it looks at words.

Pure. It errs on one side only: a statement that might concern a table is taken to concern it.
"""

from dataclasses import dataclass
from enum import Enum, auto
from itertools import dropwhile, pairwise

from agent.sources.mysql.ddl.identifiers import SYSTEM_DATABASES
from agent.sources.mysql.ddl.lexer import END, Token, TokenKind, lex
from agent.sources.mysql.ddl.lexer import words as keywords
from agent.sources.mysql.ddl.model import Server, Statement

#: statements that change no row; what begins with another word may do anything
_DEFINITION_WORDS = keywords(
    """
    ALTER ANALYZE CACHE CHECK CREATE DROP FLUSH GRANT INSTALL OPTIMIZE RENAME REPAIR REVOKE SET TRUNCATE UNINSTALL
    """
)
#: of statements that change rows and nothing else
ROW_VERBS = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE"})
#: up to the table of a row change
_BEFORE_TARGET = ROW_VERBS | {"INTO", "FROM", "LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "QUICK", "IGNORE"}
#: before parentheses, and no function
_NO_CALLS = frozenset({"VALUES", "VALUE", "IN"})
#: what may follow the table of a DELETE of that table alone
_AFTER_DELETED = frozenset({"WHERE", "ORDER", "LIMIT", "RETURNING", ";"})
#: words of a row change that may concern more than one table
_OTHER_TABLES = frozenset({"SELECT", "JOIN", "USING", "TABLE"})
#: of an ALTER TABLE: takes rows away or brings them in without row events
_PARTITION_ACTIONS = frozenset({"DROP", "TRUNCATE", "EXCHANGE", "DISCARD", "IMPORT", "CONVERT"})
#: behind the VALUES of a partition, which is no query
_AFTER_PARTITION_VALUES = frozenset({"LESS", "IN"})
#: between the verb and what it is about
_BETWEEN = frozenset({"TEMPORARY", "ONLINE", "OFFLINE", "IGNORE", "OR", "REPLACE"})

_SILENT = (TokenKind.SPACE, TokenKind.COMMENT)
_NAMES = (TokenKind.WORD, TokenKind.NAME)


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


#: their first word says all
_FLOW = {
    "ROLLBACK": Kind.ROLLBACK,
    "SAVEPOINT": Kind.SAVEPOINT,
    "RELEASE": Kind.SAVEPOINT,
    "XA": Kind.XA,
    "BEGIN": Kind.TRANSACTION,
    "COMMIT": Kind.TRANSACTION,
    "START": Kind.TRANSACTION,
}


@dataclass(frozen=True, slots=True)
class StatementSummary:
    """What can be told of a statement from its words."""

    kind: Kind
    #: the first two in upper case, for messages
    first: str
    #: CREATE TABLE ... START TRANSACTION: its rows and its commit follow
    opens_transaction: bool
    default_database: str
    #: (database or '', name) of all that may be a name, as written
    names: frozenset[tuple[str, str]]
    #: the same, lower-cased
    _names: frozenset[tuple[str, str]]
    #: a row change of one of the server's own tables, and of no other
    is_system_only: bool
    #: it was read to its end
    is_whole: bool
    #: (database, name), lower-cased, of the one table that a row change names to be changed; None: more, or not known
    target: tuple[str, str] | None = None
    #: its table is of its session alone
    is_temporary: bool = False

    def mentions(self, database: str, table: str) -> bool:
        """Whether the statement may concern that table."""
        wanted = table.lower()
        here = database.lower()
        if not self.is_whole or (here, wanted) in self._names:
            return True
        if ("", wanted) in self._names and self.default_database.lower() in (here, ""):
            return True
        return self.is_about_database() and ("", here) in self._names

    def is_about_database(self) -> bool:
        return self.first.endswith(("DATABASE", "SCHEMA"))


def read(statement: Statement, server: Server) -> StatementSummary:
    """What the statement is; never fails.

    `target` leaves out what triggers, foreign keys, views and routines do.

    >>> server = Server(mariadb=False, version=(9, 7, 0))
    >>> read(Statement("/* app */ ALTER TABLE `a b` ADD c INT", "shop"), server).mentions("shop", "A B")
    True
    >>> read(Statement("TRUNCATE TABLE orders", "shop"), server).kind
    <Kind.ROWS_REMOVED: 2>
    >>> read(Statement("INSERT INTO mysql.rds_heartbeat2 (id, value) VALUES (1, 2)", "shop"), server).is_system_only
    True
    >>> read(Statement("INSERT INTO mysql.rds_heartbeat2 (id, value) VALUES (1, f())", "shop"), server).is_system_only
    False
    >>> read(Statement("REPLACE INTO `Percona`.`Checksums` SELECT COUNT(*) FROM shop.t", "shop"), server).target
    ('percona', 'checksums')
    """
    found = (token for token in lex(statement.text, server, statement.sql_mode) if token.kind not in _SILENT)
    begin = next(found, END)
    if begin.word in _FLOW:
        return StatementSummary(
            _FLOW[begin.word], begin.word, False, statement.database, frozenset(), frozenset(), False, True
        )
    tokens = [begin, *found]
    if [token.word for token in tokens[:2]] == ["SET", "STATEMENT"]:  # MariaDB: settings for what comes after FOR
        tokens = list(dropwhile(lambda token: token.word != "FOR", tokens))[1:]
    words = [token.word for token in tokens if token.kind is TokenKind.WORD]
    first = words[0] if words else ""
    second = next((word for word in words[1:5] if word not in _BETWEEN), "")
    opens = first == "CREATE" and words[-2:] == ["START", "TRANSACTION"]
    names = _names(tokens)
    lowered = frozenset((database.lower(), name.lower()) for database, name in names)
    kind = _kind(first, second, words, server)
    is_system_only = kind is Kind.ROWS and _is_system_only(tokens)
    is_whole = all(token.kind is not TokenKind.BROKEN for token in tokens)
    target = _target(tokens, statement.database) if kind is Kind.ROWS and is_whole else None
    return StatementSummary(
        kind,
        f"{first} {second}".strip(),
        opens,
        statement.database,
        names,
        lowered,
        is_system_only,
        is_whole,
        target,
        _is_temporary(words),
    )


def _names(tokens: list[Token]) -> frozenset[tuple[str, str]]:
    names: set[tuple[str, str]] = set()
    for at, token in enumerate(tokens):
        if token.kind not in _NAMES:
            continue
        qualified = at >= 2 and tokens[at - 1].word == "." and tokens[at - 2].kind in _NAMES
        names.add((tokens[at - 2].text if qualified else "", token.text))
    return frozenset(names)


def _is_system_only(tokens: list[Token]) -> bool:
    """INSERT, REPLACE, UPDATE or DELETE of a qualified system table alone, without anything that may be a routine.

    Such a table has no triggers, and no foreign key leads out of the server's databases.
    """
    at = next((at for at, token in enumerate(tokens) if token.word not in _BEFORE_TARGET), len(tokens))
    target = [token.text for token in tokens[at : at + 4]]
    if at == 0 or target[1:2] != ["."] or target[0].lower() not in SYSTEM_DATABASES or target[3:] == [","]:
        return False
    calls = any(
        token.kind in _NAMES and after.word == "(" and token.word not in _NO_CALLS
        for token, after in pairwise(tokens[at + 3 :])
    )
    return not calls and not any(token.kind is TokenKind.BROKEN or token.word in _OTHER_TABLES for token in tokens)


def _target(tokens: list[Token], default_database: str) -> tuple[str, str] | None:
    verb = tokens[0].word if tokens else ""
    between = _BEFORE_TARGET - {"QUICK"} if verb != "DELETE" else _BEFORE_TARGET  # a table may be called quick
    named = list(dropwhile(lambda token: token.word in between, tokens))
    if verb not in ROW_VERBS or not named or named[0].kind not in _NAMES:
        return None
    if verb == "DELETE" and tokens[len(tokens) - len(named) - 1].word != "FROM":
        return None
    is_qualified = len(named) > 2 and named[1].word == "." and named[2].kind in _NAMES
    database, name = (named[0].text, named[2].text) if is_qualified else (default_database, named[0].text)
    rest = named[3 if is_qualified else 1 :]
    is_alone = {
        "UPDATE": bool(rest) and rest[0].word == "SET",
        "DELETE": not rest or rest[0].word in _AFTER_DELETED,
    }.get(verb, True)
    return (database.lower(), name.lower()) if database and is_alone else None


def _kind(first: str, second: str, words: list[str], server: Server) -> Kind:
    if first and first not in _DEFINITION_WORDS:
        return Kind.ROWS
    if first == "ANALYZE" and not ROW_VERBS.isdisjoint(words):  # MariaDB: runs it
        return Kind.ROWS
    if _is_temporary(words):
        # MariaDB lets a query that fills it call functions, also through views, which change rows of other tables
        # (MySQL: error 1746).
        return Kind.ROWS if first == "CREATE" and server.mariadb and _is_filled(words) else Kind.DEFINITION
    if first == "CREATE" and second == "TABLE" and _is_filled(words):
        return Kind.ROWS
    if first == "TRUNCATE" or (first == "DROP" and second in ("TABLE", "TABLES", "DATABASE", "SCHEMA")):
        return Kind.ROWS_REMOVED
    if first == "RENAME" or (first == "CREATE" and words[1:3] == ["OR", "REPLACE"] and "TABLE" in words[3:5]):
        return Kind.ROWS_REMOVED
    if first == "ALTER" and second == "TABLE" and _moves_rows(words):
        return Kind.ROWS_REMOVED
    return Kind.DEFINITION


def _is_temporary(words: list[str]) -> bool:
    """CREATE and DROP of a table that its session alone sees; a table may be called temporary."""
    rest = words[3:] if words[1:3] == ["OR", "REPLACE"] else words[1:]
    return rest[:1] == ["TEMPORARY"] and words[0] in ("CREATE", "DROP")


def _is_filled(words: list[str]) -> bool:
    """CREATE TABLE with a query."""
    values = (after for word, after in pairwise([*words, ""]) if word == "VALUES")
    return "SELECT" in words or any(after not in _AFTER_PARTITION_VALUES for after in values)


def _moves_rows(words: list[str]) -> bool:
    """ALTER TABLE that drops, swaps or empties partitions or tablespaces, or renames the table."""
    pairs = set(pairwise(words))
    partition = any((action, "PARTITION") in pairs or (action, "TABLESPACE") in pairs for action in _PARTITION_ACTIONS)
    renames = any((("RENAME", to) in pairs) for to in ("TO", "AS")) or ("RENAME" in words and not _renames_part(pairs))
    return partition or renames


def _renames_part(pairs: set[tuple[str, str]]) -> bool:
    return any(("RENAME", part) in pairs for part in ("COLUMN", "INDEX", "KEY"))
