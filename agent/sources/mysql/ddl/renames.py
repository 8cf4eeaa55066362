"""Which tables a statement gives other names, makes or drops, whatever they look like.

Pure: a statement in, names out, as the server stores them.
"""

from dataclasses import dataclass

from agent.sources.mysql.ddl.lexer import Unreadable
from agent.sources.mysql.ddl.model import Server, Statement, Table
from agent.sources.mysql.ddl.parse import parse
from agent.sources.mysql.ddl.statements import StatementSummary
from agent.sources.mysql.ddl.syntax import (
    AlterTable,
    CreateTable,
    DropDatabase,
    DropTables,
    RenameTables,
    RenameTo,
    TableName,
)

_VERBS = ("ALTER", "CREATE", "DROP", "RENAME")


@dataclass(frozen=True, slots=True)
class Names:
    #: one after the other
    renamed: tuple[tuple[Table, Table], ...] = ()
    #: what was under these names before is not there any more
    anew: tuple[Table, ...] = ()
    dropped_database: str = ""
    #: of a statement that can't be read: any of them may have got any other one's name
    unread: tuple[Table, ...] = ()


def names_of(statement: Statement, summary: StatementSummary, server: Server) -> Names:
    """
    >>> from agent.sources.mysql.ddl.statements import read
    >>> server, swap = Server(False, (9, 7, 0)), Statement("RENAME TABLE a TO b, other.c TO a", "shop")
    >>> names_of(swap, read(swap, server), server).renamed
    ((('shop', 'a'), ('shop', 'b')), (('other', 'c'), ('shop', 'a')))
    """
    if statement.without_effect or not summary.first.startswith(_VERBS):
        return Names()

    def stored(name: TableName) -> Table:
        table = name.database or statement.database, name.table
        return (table[0].lower(), table[1].lower()) if server.lower_case_table_names else table

    try:
        parsed = parse(statement.text, server, statement.sql_mode)
    except Unreadable:
        named = (TableName(database or summary.default_database, name) for database, name in summary.names)
        may_rename = any(name.upper() == "RENAME" for _, name in summary.names)
        return Names(unread=tuple(sorted(set(map(stored, named))))) if may_rename else Names()
    match parsed:
        case RenameTables():
            return Names(tuple((stored(old), stored(new)) for old, new in parsed.pairs))
        case AlterTable():
            targets = [action.table for action in parsed.actions if isinstance(action, RenameTo)]
            return Names(tuple((stored(parsed.table), stored(target)) for target in targets[-1:]))
        case CreateTable(if_not_exists=False):
            return Names(anew=(stored(parsed.table),))
        case DropTables():
            return Names(anew=tuple(map(stored, parsed.tables)))
        case DropDatabase():
            return Names(dropped_database=stored(TableName(parsed.name, ""))[0])
    return Names()
