"""A logged statement's effect on a catalog: what tables look like afterwards, and what became of their rows.

Pure and total: whatever the text, it returns. What it can't be certain of it calls `Unsure`; it never guesses.
"""

from collections.abc import Container
from dataclasses import dataclass, field, replace

from agent.sources.mysql.ddl.alter import alter
from agent.sources.mysql.ddl.columns import Context
from agent.sources.mysql.ddl.create import create, is_sequence, like, sequence
from agent.sources.mysql.ddl.lexer import Unreadable
from agent.sources.mysql.ddl.mentions import mentioned
from agent.sources.mysql.ddl.model import (
    Applied,
    Catalog,
    Change,
    ChangeKind,
    Rows,
    Server,
    Statement,
    Table,
    TableDefinition,
    Unsure,
)
from agent.sources.mysql.ddl.parse import parse
from agent.sources.mysql.ddl.syntax import (
    AlterDatabase,
    AlterTable,
    CreateDatabase,
    CreateSequence,
    CreateTable,
    DropDatabase,
    DropTables,
    Irrelevant,
    MoveRows,
    OtherTable,
    Parsed,
    RenameTables,
    RenameTo,
    TableName,
    TruncateTable,
)
from agent.sources.mysql.ddl.types import charset_of_spec

#: MySQL, from 9.7 on
_INTERPRET_UTF8_AS_UTF8MB4 = 1 << 33


def apply(catalog: Catalog, statement: Statement, server: Server) -> Applied:
    """What the statement does; raises nothing.

    Tables that end as `Unsure` are None in the new catalog. Of a statement that is not read these are all tables
    whose names stand anywhere in it, but of CREATE TABLE only the one that it makes.

    >>> server = Server(mariadb=False, version=(9, 7, 0))
    >>> made = apply(Catalog({}, {"shop": "utf8mb4"}), Statement("CREATE TABLE t (a INT)", "shop"), server)
    >>> made.changes[0].kind, [column.name for column in made.catalog.tables["shop", "t"].columns]
    (<ChangeKind.CREATED: 1>, ['a'])
    """
    if statement.without_effect:
        return Applied(catalog)
    if not server.mariadb and statement.sql_mode & _INTERPRET_UTF8_AS_UTF8MB4:
        server = replace(server, utf8_is_utf8mb3=False)
    work = _Work(statement, server, dict(catalog.tables), dict(catalog.databases))
    is_read = False
    try:
        parsed = parse(statement.text, server, statement.sql_mode)
        is_read = True
        _do(work, parsed)
    except Unreadable as why:
        return _unread(catalog, mentioned(catalog, statement, server, is_read=is_read), str(why))
    return Applied(Catalog(work.tables, work.databases), tuple(work.changes), tuple(work.unsure))


def _unread(catalog: Catalog, tables: list[Table], why: str) -> Applied:
    unknown: dict[Table, TableDefinition | None] = dict.fromkeys(tables)
    return Applied(
        Catalog({**catalog.tables, **unknown}, catalog.databases), (), tuple(Unsure(table, why) for table in tables)
    )


@dataclass(slots=True)
class _Work:
    """A catalog under change by one statement."""

    statement: Statement
    server: Server
    tables: dict[Table, TableDefinition | None]
    databases: dict[str, str]
    changes: list[Change] = field(default_factory=list)
    unsure: list[Unsure] = field(default_factory=list)

    def key(self, name: TableName) -> Table:
        """A table's name as the server stores it."""
        table = (self.database(name.database or self.statement.database), name.table)
        if self.server.lower_case_table_names == 0:
            return table
        lowered = (table[0].lower(), table[1].lower())
        if self.server.lower_case_table_names == 1:
            return lowered
        return next((key for key in self.tables if (key[0].lower(), key[1].lower()) == lowered), table)

    def database(self, name: str) -> str:
        if self.server.lower_case_table_names == 0:
            return name
        if self.server.lower_case_table_names == 1:
            return name.lower()
        return next((known for known in self.databases if known.lower() == name.lower()), name)

    def context(self, database: str) -> Context:
        of_session = self.databases.get(self.database(self.statement.database), "")
        return Context(self.statement, self.server, of_session, self.databases.get(database, ""))

    def forget(self, table: Table, why: str) -> None:
        self.tables[table] = None
        self.unsure.append(Unsure(table, why))

    def drop(self, table: Table) -> None:
        if table in self.tables:
            before = self.tables.pop(table)
            self.changes.append(Change(ChangeKind.DROPPED, table, before, None, Rows.REMOVED))


def _do(work: _Work, parsed: Parsed) -> None:
    if work.statement.error_code:
        parsed = _with_error(parsed, work.statement.error_code)
    match parsed:
        case CreateTable() | CreateSequence():
            _create(work, parsed)
        case AlterTable():
            _alter(work, parsed)
        case RenameTables():
            _rename(work, [(work.key(old), work.key(new)) for old, new in parsed.pairs])
        case DropTables():
            for name in parsed.tables:
                _drop(work, work.key(name), only_sequence=parsed.only_sequences)
        case TruncateTable():
            table = work.key(parsed.table)
            definition = work.tables.get(table)
            work.changes.append(Change(ChangeKind.TRUNCATED, table, definition, definition, Rows.REMOVED))
        case CreateDatabase():
            _create_database(work, parsed)
        case AlterDatabase():
            database = work.database(parsed.name or work.statement.database)
            _set_charset(work, database, parsed, work.databases.get(database, ""))
        case DropDatabase():
            _drop_database(work, work.database(parsed.name))


def _with_error(parsed: Parsed, code: int) -> Parsed:
    """What a statement that ended with an error has done, where it is known."""
    if isinstance(parsed, CreateTable) and parsed.or_replace:  # MariaDB logs it only once the other table is dropped
        return DropTables((parsed.table,))
    # MariaDB drops those of several tables that it can, and logs a DROP DATABASE only once it is gone.
    if isinstance(parsed, Irrelevant | DropTables | DropDatabase):
        return parsed
    raise Unreadable(f"the statement ended with error {code}")


def _drop(work: _Work, table: Table, *, only_sequence: bool) -> None:
    definition = work.tables.get(table)
    if only_sequence and definition is None and table in work.tables:
        work.forget(table, "it is dropped if it is a sequence, and how it looked was not known")
    elif not only_sequence or (definition is not None and is_sequence(definition)):
        work.drop(table)


def _create(work: _Work, parsed: CreateTable | CreateSequence) -> None:
    table = work.key(parsed.table)
    if parsed.if_not_exists and table in work.tables:
        if work.tables[table] is None:
            work.forget(table, "it may have been there before, and how it looked was not known")
        return
    if parsed.if_not_exists and isinstance(parsed, CreateTable) and _may_be_view(parsed, work.statement):
        if parsed.options.engine != "INNODB":
            work.forget(table, "it is a view, or a table of another engine than InnoDB")
        return
    if isinstance(parsed, CreateSequence):
        definition: TableDefinition | None = sequence(work.databases.get(table[0], ""))
    elif parsed.like is not None:
        pattern = work.tables.get(work.key(parsed.like))
        definition = None if pattern is None else like(pattern)
    elif parsed.has_select:
        work.forget(table, "its columns come from a SELECT")
        work.changes.append(Change(ChangeKind.CREATED, table, rows=Rows.ARRIVED))
        return
    else:
        definition = create(parsed, work.context(table[0]))
    work.drop(table)
    if definition is None:
        work.forget(table, "it was made like a table whose definition was not known")
        return
    work.tables[table] = definition
    work.changes.append(Change(ChangeKind.CREATED, table, None, definition))


def _may_be_view(parsed: CreateTable, statement: Statement) -> bool:
    """MySQL logs CREATE TABLE IF NOT EXISTS where a view has the name, but as it logs that of an engine like MyISAM."""
    is_without_xid = statement.is_without_xid and not parsed.options.starts_transaction
    return is_without_xid and parsed.options.engine in ("", "INNODB")


def _alter(work: _Work, parsed: AlterTable) -> None:
    table = work.key(parsed.table)
    if table not in work.tables and (parsed.if_exists or not parsed.actions):  # ANALYZE PARTITION ends well without it
        return
    before = work.tables.get(table)
    if before is None:
        raise Unreadable("its definition was not known before")
    altered = alter(before, parsed.actions, work.context(table[0]), ignore=parsed.ignore)
    work.tables[table] = altered.definition
    change = Change(
        ChangeKind.ALTERED,
        table,
        before,
        altered.definition,
        altered.rows,
        renamed_columns=altered.renamed,
        added_columns=altered.added,
        converted=altered.converted,
    )
    targets = [work.key(action.table) for action in parsed.actions if isinstance(action, RenameTo)]
    if targets and targets[-1] != table:
        _rename(work, [(table, targets[-1])])
        renamed = work.changes[0]
        work.changes[0] = replace(change, kind=ChangeKind.RENAMED, rows=renamed.rows, new_table=renamed.new_table)
    else:
        work.changes.append(change)
    for action in parsed.actions:
        if isinstance(action, MoveRows) and action.other is not None:
            _move_rows(work, work.key(action.other), action.other_does, altered.definition)


def _move_rows(work: _Work, other: Table, does: OtherTable | None, definition: TableDefinition) -> None:
    """What a partition's exchange or conversion does to the second table."""
    if does is OtherTable.DROPPED:
        work.drop(other)
    elif does is OtherTable.CREATED:
        work.tables[other] = definition
        work.changes.append(Change(ChangeKind.CREATED, other, None, definition, Rows.ARRIVED))
    else:
        known = work.tables.get(other)
        work.changes.append(Change(ChangeKind.ALTERED, other, known, known, Rows.REMOVED | Rows.ARRIVED))


def _rename(work: _Work, pairs: list[tuple[Table, Table]]) -> None:
    """One after the other, as the server does; what is told is where each table began and ended."""
    #: where a table is now: where it was before the statement
    origins: dict[Table, Table] = {}
    before = dict(work.tables)
    for old, new in _without_temporary(pairs, before):
        if old not in work.tables:  # a view, or IF EXISTS
            continue
        origins[new] = origins.pop(old, old)
        work.tables[new] = work.tables.pop(old)
    for now, origin in origins.items():
        if now != origin:
            definition = before.get(origin)
            change = Change(ChangeKind.RENAMED, origin, definition, definition, Rows.REMOVED, new_table=now)
            work.changes.append(change)
    for now, origin in origins.items():
        if now == origin:
            continue
        definition = work.tables[now]
        if definition is None:
            work.unsure.append(Unsure(now, "it was renamed from a table whose definition was not known"))
        else:
            work.changes.append(Change(ChangeKind.CREATED, now, None, definition, Rows.ARRIVED))


def _without_temporary(pairs: list[tuple[Table, Table]], there: Container[Table]) -> list[tuple[Table, Table]]:
    """MariaDB renames a temporary table first, and only by a later pair the table of that name that it hides."""
    left: list[tuple[Table, Table]] = []
    for old, new in pairs:
        was_temporary = [pair for pair in left if pair[0] == old]
        arrived = any(pair[1] == old for pair in left)
        if was_temporary and not arrived and old in there:
            left.remove(was_temporary[-1])
        left.append((old, new))
    return left


def _create_database(work: _Work, parsed: CreateDatabase) -> None:
    name = work.database(parsed.name)
    if parsed.if_not_exists and name in work.databases:
        return
    if parsed.or_replace:
        _drop_database(work, name)
    work.databases[name] = work.statement.charset_server
    _set_charset(work, name, parsed, work.statement.charset_server)


def _set_charset(work: _Work, name: str, parsed: CreateDatabase | AlterDatabase, default: str) -> None:
    options = parsed.options
    if options.charset_is_default:
        default = work.statement.charset_server
    if options.names_charset:
        work.databases[name] = charset_of_spec(options.charset, options.collation, default, work.server)


def _drop_database(work: _Work, name: str) -> None:
    work.databases.pop(name, None)
    for table in [table for table in work.tables if table[0] == name]:
        work.drop(table)
