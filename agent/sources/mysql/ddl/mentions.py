"""Which tables a statement that can't be read may concern: a reader of words, which errs on the side of too many."""

from itertools import pairwise

from agent.sources.mysql.ddl.cursor import Cursor
from agent.sources.mysql.ddl.lexer import Token, Unreadable, tokens_of
from agent.sources.mysql.ddl.model import Catalog, Server, Statement, Table
from agent.sources.mysql.ddl.statements import read
from agent.sources.mysql.ddl.syntax import TableName

#: what follows is a table's name, perhaps after some of the others
_BEFORE_NAME = ("TABLE", "TABLES", "TO", "AS", "ON", "LIKE", "RENAME", "SEQUENCE")
_BETWEEN = ("IF", "NOT", "EXISTS", *_BEFORE_NAME)
_NO_TABLE = frozenset({"CHARACTER", "CHARSET", "CHAR", "SET"})


def mentioned(catalog: Catalog, statement: Statement, server: Server, *, is_read: bool) -> list[Table]:
    """The one that it defines, where that is clear, else whatever it names anywhere; as the server stores them.

    `is_read`: its words are understood, only what they do is not.
    """
    tokens: list[Token] = []
    try:
        tokens.extend(tokens_of(statement.text, server, statement.sql_mode))
        target = _target(tokens, is_read=is_read)
        names = [target] if target else _in_places_of_names(tokens)
    except Unreadable:
        target, names = None, []
    summary = read(statement, server)
    found = {} if target else {table: None for table in catalog.tables if summary.mentions(*table)}
    stored = {(database.lower(), table.lower()): (database, table) for database, table in catalog.tables}
    for name in names:
        table = (name.database or statement.database, name.table)
        lowered = (table[0].lower(), table[1].lower())
        if server.lower_case_table_names == 0:
            found[table] = None
        else:
            found[lowered if server.lower_case_table_names == 1 else stored.get(lowered, table)] = None
    return list(found)


def _target(tokens: list[Token], *, is_read: bool) -> TableName | None:
    """The only table that CREATE TABLE, ALTER TABLE, CREATE INDEX or DROP INDEX can concern."""
    cursor = Cursor(tokens)
    verb = cursor.accept_any("CREATE", "ALTER", "DROP")
    cursor.accept("OR", "REPLACE")
    while cursor.accept_any("ONLINE", "OFFLINE", "IGNORE"):
        pass
    cursor.accept_any("UNIQUE", "FULLTEXT", "SPATIAL")
    if verb and cursor.accept("INDEX"):
        while not cursor.is_end():
            if cursor.next().word == "ON":
                return cursor.table()
    if verb not in ("CREATE", "ALTER") or not cursor.accept("TABLE"):
        return None
    if verb == "ALTER" and not is_read:
        return None
    if verb == "ALTER" and any(_may_name_table(one.word, other.word) for one, other in pairwise(tokens)):
        return None
    while cursor.accept_any("IF", "NOT", "EXISTS"):
        pass
    return cursor.table()


def _may_name_table(word: str, next_word: str) -> bool:
    """Of an ALTER TABLE: whether a second table comes."""
    if word == "RENAME":
        return next_word not in ("COLUMN", "INDEX", "KEY")
    return word == "EXCHANGE" or (word == "CONVERT" and next_word != "TO")


def _in_places_of_names(tokens: list[Token]) -> list[TableName]:
    cursor = Cursor(tokens)
    names = []
    while not cursor.is_end():
        if not cursor.accept_any(*_BEFORE_NAME):
            cursor.next()
            continue
        while cursor.accept_any(*_BETWEEN):
            pass
        if cursor.sees_any(*_NO_TABLE):
            continue
        try:
            names.append(cursor.table())
        except Unreadable:
            continue  # no name stands there
    return names
