"""ALTER TABLE: its actions, in their order."""

from agent.sources.mysql.ddl.cursor import Cursor
from agent.sources.mysql.ddl.model import Rows
from agent.sources.mysql.ddl.parse_column import column_spec, default_spec
from agent.sources.mysql.ddl.parse_table import Items, key_or_check, skip_partitions, table_option
from agent.sources.mysql.ddl.syntax import (
    Action,
    AddColumn,
    AddKey,
    AddPeriod,
    ChangeColumn,
    ConvertCharset,
    DefaultSpec,
    DropColumn,
    DropKey,
    MoveRows,
    OtherTable,
    Place,
    RenameColumn,
    RenameKey,
    RenameTo,
    SetDefault,
    SetVersioning,
    SetVisible,
    TableOptions,
)


def alter_actions(cursor: Cursor) -> tuple[Action, ...]:
    """After ALTER TABLE and the table's name, to the end; raises `Unreadable`."""
    actions: list[Action] = []
    while not cursor.is_end() and not cursor.sees(";"):
        cursor.accept(",")
        actions += _action(cursor)
    return tuple(actions)


def _action(cursor: Cursor) -> list[Action]:
    """One action; those that change no column or row are read and left out."""
    if cursor.accept("ADD"):
        return _add(cursor)
    if cursor.accept("DROP"):
        return _drop(cursor)
    if cursor.accept("MODIFY"):
        cursor.accept("COLUMN")
        if_exists = cursor.accept("IF", "EXISTS")
        column = column_spec(cursor)
        return [ChangeColumn(column.name, column, _place(cursor), if_exists)]
    if cursor.accept("CHANGE"):
        cursor.accept("COLUMN")
        if_exists = cursor.accept("IF", "EXISTS")
        old_name = cursor.column()
        return [ChangeColumn(old_name, column_spec(cursor), _place(cursor), if_exists)]
    if cursor.accept("ALTER"):
        return _alter(cursor)
    if cursor.accept("RENAME"):
        return _rename(cursor)
    if cursor.accept("CONVERT"):
        return _convert(cursor)
    if cursor.accept("WITH", "SYSTEM", "VERSIONING"):
        return [SetVersioning(True)]
    if cursor.accept("ORDER", "BY"):
        _skip_order(cursor)
        return []
    return _of_partitions(cursor) or _other(cursor)


def _add(cursor: Cursor) -> list[Action]:
    if cursor.accept("SYSTEM", "VERSIONING"):
        return [SetVersioning(True)]
    if cursor.accept("PARTITION"):
        cursor.accept("IF", "NOT", "EXISTS")
        cursor.accept_any("NO_WRITE_TO_BINLOG", "LOCAL")
        if cursor.accept("PARTITIONS"):
            cursor.next()
        else:
            cursor.skip_parentheses()
        return []
    items = Items()
    if key_or_check(cursor, items):
        return [*map(AddKey, items.keys), *map(AddPeriod, items.periods)]
    cursor.accept("COLUMN")
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    if not cursor.accept("("):
        return [AddColumn(column_spec(cursor), _place(cursor), if_not_exists)]
    actions: list[Action] = []
    while True:
        items = Items()
        if key_or_check(cursor, items):
            actions += [*map(AddKey, items.keys), *map(AddPeriod, items.periods)]
        else:
            actions.append(AddColumn(column_spec(cursor), None, if_not_exists))
        if cursor.accept(")"):
            return actions
        cursor.expect(",")


def _place(cursor: Cursor) -> Place | None:
    if cursor.accept("FIRST"):
        return Place()
    if cursor.accept("AFTER"):
        return Place(cursor.column())
    return None


def _drop(cursor: Cursor) -> list[Action]:
    if cursor.accept("PRIMARY", "KEY"):
        return [DropKey("PRIMARY")]
    if cursor.accept_any("INDEX", "KEY", "CONSTRAINT"):
        if_exists = cursor.accept("IF", "EXISTS")
        return [DropKey(cursor.name(), if_exists)]
    if cursor.accept("FOREIGN", "KEY") or cursor.accept("CHECK"):
        cursor.accept("IF", "EXISTS")
        cursor.name()
        return []
    if cursor.accept("PARTITION"):
        cursor.accept("IF", "EXISTS")
        _names(cursor)
        return [MoveRows(Rows.PARTLY_REMOVED)]
    if cursor.accept("SYSTEM", "VERSIONING"):
        return [SetVersioning(False)]
    if cursor.accept("PERIOD", "IF", "EXISTS", "FOR") or cursor.accept("PERIOD", "FOR"):
        cursor.name()
        return []
    cursor.accept("COLUMN")
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.column()
    cursor.accept_any("RESTRICT", "CASCADE")
    return [DropColumn(name, if_exists)]


def _alter(cursor: Cursor) -> list[Action]:
    if cursor.accept_any("INDEX", "KEY"):
        cursor.accept("IF", "EXISTS")
        cursor.name()
        if not cursor.accept("NOT", "IGNORED") and not cursor.accept_any("VISIBLE", "INVISIBLE", "IGNORED"):
            raise cursor.unreadable("expected VISIBLE or IGNORED")
        return []
    if cursor.accept_any("CHECK", "CONSTRAINT"):
        cursor.name()
        cursor.accept("NOT")
        cursor.expect("ENFORCED")
        return []
    cursor.accept("COLUMN")
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.column()
    if cursor.accept("DROP", "DEFAULT"):
        return [SetDefault(name, None, if_exists)]
    if cursor.accept("DROP", "MASKING", "POLICY"):
        return []
    cursor.expect("SET")
    if cursor.accept("MASKING", "POLICY"):
        cursor.name()
        return []
    if visible := cursor.accept_any("VISIBLE", "INVISIBLE"):
        return [SetVisible(name, visible == "VISIBLE")]
    cursor.expect("DEFAULT")
    default: DefaultSpec = default_spec(cursor)
    return [SetDefault(name, default, if_exists)]


def _rename(cursor: Cursor) -> list[Action]:
    if cursor.accept("COLUMN"):
        if_exists = cursor.accept("IF", "EXISTS")
        old_name = cursor.column()
        cursor.expect("TO")
        return [RenameColumn(old_name, cursor.column(), if_exists)]
    if cursor.accept_any("INDEX", "KEY"):
        cursor.accept("IF", "EXISTS")
        old_name = cursor.name()
        cursor.expect("TO")
        return [RenameKey(old_name, cursor.name())]
    cursor.accept_any("TO", "AS", "=")
    return [RenameTo(cursor.table())]


def _convert(cursor: Cursor) -> list[Action]:
    if cursor.accept("PARTITION"):
        cursor.name()
        cursor.expect("TO", "TABLE")
        other = cursor.table()
        _skip_validation(cursor)
        return [MoveRows(Rows.PARTLY_REMOVED, other, OtherTable.CREATED)]
    if cursor.accept("TABLE"):
        other = cursor.table()
        cursor.expect("TO", "PARTITION")
        cursor.name()
        _skip_partition_values(cursor)
        return [MoveRows(Rows.ARRIVED, other, OtherTable.DROPPED)]
    cursor.expect("TO")
    if not cursor.accept("CHARACTER", "SET") and not cursor.accept("CHAR", "SET"):
        cursor.expect("CHARSET")
    charset = "" if cursor.accept("DEFAULT") else cursor.name_or_text().lower()
    collation = ""
    if cursor.accept("COLLATE"):
        cursor.accept("=")
        collation = "" if cursor.accept("DEFAULT") else cursor.name_or_text().lower()
    return [ConvertCharset(charset, collation)]


def _skip_partition_values(cursor: Cursor) -> None:
    """VALUES LESS THAN (10), VALUES IN (1), with or without validation."""
    if cursor.accept("DEFAULT"):
        return
    while not cursor.is_end() and not cursor.sees_any(",", ";"):
        if cursor.sees("("):
            cursor.skip_parentheses()
        else:
            cursor.next()


def _skip_validation(cursor: Cursor) -> None:
    if cursor.accept_any("WITH", "WITHOUT"):
        cursor.expect("VALIDATION")


def _skip_order(cursor: Cursor) -> None:
    while True:
        cursor.column()
        cursor.accept_any("ASC", "DESC")
        if not cursor.sees(","):
            return
        cursor.next()


def _names(cursor: Cursor) -> bool:
    """Partitions; whether it is ALL of them."""
    if cursor.accept("ALL"):
        return True
    cursor.name()
    while cursor.sees(","):
        cursor.next()
        cursor.name()
    return False


def _of_partitions(cursor: Cursor) -> list[Action]:
    if cursor.accept("TRUNCATE", "PARTITION"):
        return [MoveRows(Rows.REMOVED if _names(cursor) else Rows.PARTLY_REMOVED)]
    if cursor.accept("DISCARD", "TABLESPACE"):
        return [MoveRows(Rows.REMOVED)]
    if cursor.accept("IMPORT", "TABLESPACE"):
        return [MoveRows(Rows.ARRIVED)]
    if cursor.accept("DISCARD", "PARTITION"):
        rows = Rows.REMOVED if _names(cursor) else Rows.PARTLY_REMOVED
        cursor.expect("TABLESPACE")
        return [MoveRows(rows)]
    if cursor.accept("IMPORT", "PARTITION"):
        _names(cursor)
        cursor.expect("TABLESPACE")
        return [MoveRows(Rows.ARRIVED)]
    if cursor.accept("EXCHANGE", "PARTITION"):
        cursor.name()
        cursor.expect("WITH", "TABLE")
        other = cursor.table()
        _skip_validation(cursor)
        return [MoveRows(Rows.PARTLY_REMOVED | Rows.ARRIVED, other, OtherTable.EXCHANGED)]
    return []


def _other(cursor: Cursor) -> list[Action]:
    """What moves no rows and changes no column, and the table's options."""
    if cursor.accept("REORGANIZE", "PARTITION"):
        cursor.accept_any("NO_WRITE_TO_BINLOG", "LOCAL")
        if not cursor.is_end() and not cursor.sees(";"):
            _names(cursor)
            cursor.expect("INTO")
            cursor.skip_parentheses()
    elif cursor.accept("COALESCE", "PARTITION"):
        cursor.accept_any("NO_WRITE_TO_BINLOG", "LOCAL")
        cursor.next()
    elif cursor.accept_any("ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "REPAIR"):
        cursor.expect("PARTITION")
        cursor.accept_any("NO_WRITE_TO_BINLOG", "LOCAL")
        _names(cursor)
        cursor.accept_any("QUICK", "EXTENDED", "FAST", "MEDIUM", "CHANGED", "USE_FRM")
    elif cursor.accept("PARTITION", "BY"):
        skip_partitions(cursor)
    elif cursor.accept_any("ALGORITHM", "LOCK"):
        cursor.accept("=")
        cursor.next()
    elif cursor.accept_any("ENABLE", "DISABLE"):
        cursor.expect("KEYS")
    elif cursor.accept_any("WITH", "WITHOUT"):
        cursor.expect("VALIDATION")
    elif cursor.accept("SECONDARY_LOAD") or cursor.accept("SECONDARY_UNLOAD"):
        if cursor.sees("PARTITION"):
            cursor.next()
            cursor.skip_parentheses()
    elif not cursor.accept("REMOVE", "PARTITIONING") and not cursor.accept_any("FORCE", "WAIT", "NOWAIT"):
        options = table_option(cursor, TableOptions())
        if options is None:
            raise cursor.unreadable("expected an action")
        return [options]
    return []
