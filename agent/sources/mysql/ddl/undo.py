"""A statement backwards: how a table looked before an ALTER TABLE, from how it looks after it.

Pure. Only where the statement itself says all about what it changed: columns that it added or renamed, keys, defaults.
The statement applied to the answer gives the definition that was asked about, or there is no answer.
"""

from dataclasses import replace

from agent.sources.mysql.ddl.apply import apply
from agent.sources.mysql.ddl.derived import with_renamed_reads
from agent.sources.mysql.ddl.lexer import Unreadable
from agent.sources.mysql.ddl.model import Catalog, ColumnDefinition, Default, Server, Statement, Table, TableDefinition
from agent.sources.mysql.ddl.parse import parse
from agent.sources.mysql.ddl.syntax import (
    Action,
    AddColumn,
    AddKey,
    AlterTable,
    DropKey,
    Irrelevant,
    KeySpec,
    RenameColumn,
    RenameKey,
    SetDefault,
    TableOptions,
)


def undo(
    table: Table, after: TableDefinition, statement: Statement, databases: dict[str, str], server: Server
) -> TableDefinition | None:
    """The table before the statement; None: that can't be told.

    >>> from agent.sources.mysql.types import ColumnType, Kind
    >>> after = TableDefinition(tuple(ColumnDefinition(name, ColumnType(Kind.INT)) for name in "ac"))
    >>> server = Server(mariadb=False, version=(9, 7, 0))
    >>> add = Statement("ALTER TABLE t ADD c INT", "shop")
    >>> [column.name for column in undo(("shop", "t"), after, add, {}, server).columns]
    ['a']
    >>> undo(("shop", "t"), after, Statement("ALTER TABLE t MODIFY c INT", "shop"), {}, server) is None
    True
    """
    try:
        parsed = parse(statement.text, server, statement.sql_mode)
    except Unreadable:
        return None
    if statement.without_effect or isinstance(parsed, Irrelevant):
        return after
    if not isinstance(parsed, AlterTable):
        return None
    before: TableDefinition | None = after
    for action in reversed(parsed.actions):
        before = _without(before, action) if before is not None else None
    if before is None or not before.columns:
        return None
    applied = apply(Catalog({table: before}, databases), statement, server)
    again = applied.catalog.tables.get(table)
    return before if again is not None and shape(again) == shape(after) else None


def _without(after: TableDefinition, action: Action) -> TableDefinition | None:
    match action:
        case AddColumn(if_not_exists=False) if not action.column.primary:
            kept = tuple(column for column in after.columns if column.name.lower() != action.column.name.lower())
            return replace(after, columns=kept) if len(kept) == len(after.columns) - 1 else None
        case RenameColumn(if_exists=False):
            return _with_name(after, action.new_name, action.old_name)
        case SetDefault():
            return _changed(after, action.name, default=Default.EXPRESSION, default_text="", reads=None)
        case AddKey() if not action.key.primary:
            return _without_key(after, action.key)
        case RenameKey():
            keys = (replace(key, name=_renamed(key.name, action.new_name, action.old_name)) for key in after.keys)
            return replace(after, keys=tuple(keys))
        case DropKey() if action.name.upper() != "PRIMARY":
            return after
        case TableOptions() if action == TableOptions(engine=action.engine):
            return after
    return None


def _with_name(after: TableDefinition, new_name: str, old_name: str) -> TableDefinition | None:
    renamed = _changed(after, new_name, name=old_name)
    if renamed is None:
        return None
    back = {new_name.lower(): old_name.lower()}
    renamed = replace(renamed, columns=tuple(with_renamed_reads(column, back) for column in renamed.columns))
    key = tuple(_renamed(name, new_name, old_name) for name in after.primary_key)
    keys = tuple(
        replace(one, parts=tuple((_renamed(name, new_name, old_name), length) for name, length in one.parts))
        for one in after.keys
    )
    return replace(renamed, primary_key=key, keys=keys)


def _renamed(name: str, old_name: str, new_name: str) -> str:
    return new_name if name.lower() == old_name.lower() else name


def _without_key(after: TableDefinition, added: KeySpec) -> TableDefinition | None:
    """The last one of these columns; where it has a hidden column, that can't be told."""
    parts = [part.column.lower() for part in added.parts]
    same = [key for key in after.keys if [name.lower() for name, _ in key.parts] == parts]
    if not same:
        return after
    return None if same[-1].hashed else replace(after, keys=tuple(key for key in after.keys if key is not same[-1]))


def _changed(after: TableDefinition, column_name: str, **facts: object) -> TableDefinition | None:
    if not any(column.name.lower() == column_name.lower() for column in after.columns):
        return None
    columns = tuple(
        replace(column, **facts) if column.name.lower() == column_name.lower() else column  # type: ignore[arg-type]
        for column in after.columns
    )
    return replace(after, columns=columns)


def shape(definition: TableDefinition) -> list[object]:
    """What is the same however a definition was found out."""
    return [
        [_column_shape(column) for column in definition.columns],
        [name.lower() for name in definition.primary_key],
        definition.charset,
    ]


def _column_shape(column: ColumnDefinition) -> tuple[object, ...]:
    return column.name, column.type, column.nullable, column.generated, column.hidden
