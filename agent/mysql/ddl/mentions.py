"""Which tables a statement that can't be read may concern: a reader of words, which errs on the side of too many."""

from agent.mysql.ddl.cursor import Cursor
from agent.mysql.ddl.model import Catalog, Server, Statement, Table
from agent.mysql.ddl.syntax import TableName
from agent.mysql.ddl.tokens import Token, Unreadable, tokens_of
from agent.mysql.statements import read

#: what follows is a table's name, perhaps after some of the others
_BEFORE_NAME = ("TABLE", "TABLES", "TO", "AS", "ON", "LIKE", "RENAME", "SEQUENCE")
_BETWEEN = ("IF", "NOT", "EXISTS", *_BEFORE_NAME)
#: of an ALTER TABLE that concerns a second table
_SECOND_TABLE = frozenset({"RENAME", "EXCHANGE", "CONVERT"})


def mentioned(catalog: Catalog, statement: Statement, server: Server) -> list[Table]:
    """The one that it defines, where that is clear, else whatever it names anywhere; as the server stores them."""
    tokens: list[Token] = []
    try:
        tokens.extend(tokens_of(statement.text, server, statement.sql_mode))
        target = _target(tokens)
        names = [target] if target else _in_places_of_names(tokens)
    except Unreadable:
        target, names = None, []
    words = read(statement.text, statement.database)
    found = {} if target else {table: None for table in catalog.tables if words.mentions(*table)}
    stored = {(database.lower(), table.lower()): (database, table) for database, table in catalog.tables}
    for name in names:
        table = (name.database or statement.database, name.table)
        lowered = (table[0].lower(), table[1].lower())
        if server.lower_case_table_names == 0:
            found[table] = None
        else:
            found[lowered if server.lower_case_table_names == 1 else stored.get(lowered, table)] = None
    return list(found)


def _target(tokens: list[Token]) -> TableName | None:
    """The only table that CREATE TABLE or ALTER TABLE can concern."""
    cursor = Cursor(tokens)
    verb = cursor.accept_any("CREATE", "ALTER")
    cursor.accept("OR", "REPLACE")
    while cursor.accept_any("ONLINE", "OFFLINE", "IGNORE"):
        pass
    if not verb or not cursor.accept("TABLE"):
        return None
    if verb == "ALTER" and not _SECOND_TABLE.isdisjoint(token.word for token in tokens):
        return None
    while cursor.accept_any("IF", "NOT", "EXISTS"):
        pass
    return cursor.table()


def _in_places_of_names(tokens: list[Token]) -> list[TableName]:
    cursor = Cursor(tokens)
    names = []
    while not cursor.is_end():
        if not cursor.accept_any(*_BEFORE_NAME):
            cursor.next()
            continue
        while cursor.accept_any(*_BETWEEN):
            pass
        try:
            names.append(cursor.table())
        except Unreadable:
            continue  # no name stands there
    return names
