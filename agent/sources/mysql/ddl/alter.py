"""ALTER TABLE's actions on a definition.

Pure. The servers first walk through the columns that are there (dropping, changing, keeping each), then put in what
is added or moved, in the statement's order; so does this. What contradicts the definition raises `Unreadable`: then
the definition was not what the server had.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from agent.sources.mysql.ddl import hidden
from agent.sources.mysql.ddl.columns import Context, added, define, with_default, with_first_timestamp
from agent.sources.mysql.ddl.converted import converted, may_copy, restated
from agent.sources.mysql.ddl.derived import with_renamed_reads
from agent.sources.mysql.ddl.keys import (
    ENGINES_OF_HASHES,
    added_keys,
    hash_count,
    inline_keys,
    is_generated_key,
    with_hashes,
    with_period_columns,
    with_periods,
    with_primary_key,
    with_row_end,
)
from agent.sources.mysql.ddl.lexer import Unreadable
from agent.sources.mysql.ddl.model import AddedColumn, ColumnDefinition, Default, KeyDefinition, Rows, TableDefinition
from agent.sources.mysql.ddl.sql_modes import Session
from agent.sources.mysql.ddl.syntax import (
    Action,
    AddColumn,
    AddKey,
    AddPeriod,
    ChangeColumn,
    ColumnSpec,
    ConvertCharset,
    DefaultKind,
    DefaultSpec,
    DropColumn,
    DropKey,
    KeySpec,
    MoveRows,
    Place,
    RenameColumn,
    RenameKey,
    RenameTo,
    SetDefault,
    SetVersioning,
    SetVisible,
    TableOptions,
)
from agent.sources.mysql.ddl.types import charset_of_spec, with_charset

#: forgets its rows
_EMPTY_ENGINE = "BLACKHOLE"


@dataclass(frozen=True, slots=True)
class Altered:
    definition: TableDefinition
    rows: Rows
    #: (old, new)
    renamed: tuple[tuple[str, str], ...]
    added: tuple[AddedColumn, ...]
    #: as `Change.converted`
    converted: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Work:
    """A definition under change."""

    context: Context
    columns: list[ColumnDefinition]
    #: (old, new)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)
    added: list[AddedColumn] = field(default_factory=list)
    #: MySQL: stays before what comes FIRST
    generated_key: str = ""


def alter(definition: TableDefinition, actions: tuple[Action, ...], context: Context, *, ignore: bool) -> Altered:
    """The table after the actions; `context.charset` is its database's. Raises `Unreadable`."""
    charset, conversion = _charsets(definition, actions, context)
    work = _Work(replace(context, charset=charset), [column for column in definition.columns if not column.hidden])
    if context.server.mariadb:
        actions = _with_last_of_added(actions)
    elif is_generated_key(definition.columns[0], definition.primary_key):
        work.generated_key = definition.columns[0].name
    needed = _without_unneeded(actions, definition)
    work.columns = _with_renamed_reads(work.columns, needed)
    _walk(work, needed)
    _put_in(work, needed)
    work.columns = with_first_timestamp(work.columns, _defined(needed), work.context)
    if conversion:
        work.columns = [_converted(column, conversion, context) for column in work.columns]
    new_keys = [key for action in needed for key in _inline_keys(action)]
    new_keys += [action.key for action in needed if isinstance(action, AddKey)]
    periods = [action.period for action in needed if isinstance(action, AddPeriod)]
    new_keys = with_period_columns(new_keys, periods)
    work.columns = with_periods(work.columns, periods)
    primary_key = _primary_key(definition, work, needed, new_keys)
    work.columns, primary_key = with_primary_key(work.columns, primary_key)
    engines = [action.engine for action in actions if isinstance(action, TableOptions) and action.engine]
    engine = [definition.engine, *engines][-1] if context.server.mariadb else ""
    keys = _keys(definition, work, needed, new_keys, engine)
    more = _hidden(definition, work, needed, hash_count(keys, engine))
    after = TableDefinition(
        tuple(work.columns) + more,
        _with_row_end(primary_key, work.columns, more, needed),
        charset,
        keys,
        engine,
    )
    return Altered(
        after,
        _rows(needed, ignore=ignore),
        tuple(work.renamed),
        tuple(work.added),
        _converted_columns(definition, after, work, actions, ignore=ignore),
    )


def _converted_columns(
    before: TableDefinition, after: TableDefinition, work: _Work, actions: tuple[Action, ...], *, ignore: bool
) -> tuple[tuple[str, str], ...]:
    statement, server = work.context.statement, work.context.server
    session = Session(server.mariadb, statement.sql_mode, ignore, statement.time_zone, server.system_time_zone)
    # MariaDB's log does not say which engine is the session's default one
    is_innodb = {before.engine, after.engine} == {"INNODB"} if server.mariadb else not statement.is_without_xid
    return converted(
        before,
        after,
        {new.lower(): old for old, new in work.renamed},
        work.added,
        session,
        changed=restated(actions, after),
        copied=may_copy(actions, statement.text, is_innodb=is_innodb),
    )


def _defined(actions: Iterable[Action]) -> list[ColumnSpec]:
    return [action.column for action in actions if isinstance(action, AddColumn | ChangeColumn)]


def _charsets(definition: TableDefinition, actions: tuple[Action, ...], context: Context) -> tuple[str, str]:
    """The table's charset afterwards, and what its columns are converted to or ''."""
    charset, conversion = definition.charset, ""
    for action in actions:
        if isinstance(action, TableOptions):
            default = context.charset if action.charset_is_default else charset
            if action.names_charset:
                charset = charset_of_spec(action.charset, action.collation, default, context.server)
        elif isinstance(action, ConvertCharset):
            default = charset if action.collation else context.default_charset
            conversion = charset_of_spec(action.charset, action.collation, default, context.server)
    has_option = any(isinstance(action, TableOptions) and action.names_charset for action in actions)
    return (charset if has_option else conversion or charset), conversion


def _converted(column: ColumnDefinition, charset: str, context: Context) -> ColumnDefinition:
    if not column.type.charset or column.type.charset == "binary":
        return column
    type_, length = with_charset(column.type, column.length, charset, context.server)
    return replace(column, type=type_, length=length)


def _with_last_of_added(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """MariaDB: a MODIFY of a column that the statement adds stands in for its ADD."""
    kept: list[Action] = []
    for action in actions:
        if isinstance(action, ChangeColumn) and action.old_name == action.column.name:
            name = action.column.name.lower()
            is_same = [isinstance(other, AddColumn) and other.column.name.lower() == name for other in kept]
            if any(is_same):
                del kept[is_same.index(True)]
                kept.append(AddColumn(action.column, action.place))
                continue
        kept.append(action)
    return tuple(kept)


def _without_unneeded(actions: tuple[Action, ...], definition: TableDefinition) -> list[Action]:
    """Without those whose IF EXISTS or IF NOT EXISTS makes nothing of them."""
    names = {column.name.lower() for column in definition.columns if not column.hidden}

    def is_needed(action: Action) -> bool:
        if isinstance(action, AddColumn):
            return not action.if_not_exists or action.column.name.lower() not in names
        if isinstance(action, ChangeColumn | RenameColumn):
            return not action.if_exists or action.old_name.lower() in names
        if isinstance(action, DropColumn | SetDefault):
            return not action.if_exists or action.name.lower() in names
        if isinstance(action, AddKey) and action.key.primary and definition.primary_key:
            return not action.key.if_not_exists
        return True

    needed: list[Action] = []
    for action in actions:
        # The key of a column that is there already is made all the same.
        needed += [action] if is_needed(action) else filter(is_needed, map(AddKey, _inline_keys(action)))
    return needed


def _inline_keys(action: Action) -> list[KeySpec]:
    """Of a column's attributes; IF EXISTS or IF NOT EXISTS before the column is IF NOT EXISTS to them."""
    if not isinstance(action, AddColumn | ChangeColumn):
        return []
    is_checked = action.if_not_exists if isinstance(action, AddColumn) else action.if_exists
    return [replace(key, if_not_exists=is_checked) for key in inline_keys(action.column)]


def _walk(work: _Work, actions: list[Action]) -> None:
    """Drops, changes and keeps the columns that are there."""
    names = {column.name.lower() for column in work.columns}
    of_column: dict[str, list[Action]] = {}
    for action in actions:
        if isinstance(action, ChangeColumn | RenameColumn):
            name = action.old_name.lower()
        elif isinstance(action, DropColumn | SetDefault | SetVisible):
            name = action.name.lower()
        else:
            continue
        if name not in names:
            raise Unreadable("it names a column that was not known to be there")
        of_column.setdefault(name, []).append(action)
    kept: list[ColumnDefinition] = []
    for column in work.columns:
        changed: ColumnDefinition | None = column
        for action in of_column.get(column.name.lower(), []):
            if changed is None:
                raise Unreadable("it changes one column twice")
            changed = _changed(work, changed, action)
        if changed is not None:
            kept.append(changed)
    work.columns = kept


def _with_renamed_reads(columns: list[ColumnDefinition], actions: list[Action]) -> list[ColumnDefinition]:
    """The servers write a column's new name into the expressions that read it; those of the statement say it."""
    renamed = {
        action.old_name.lower(): (action.column.name if isinstance(action, ChangeColumn) else action.new_name).lower()
        for action in actions
        if isinstance(action, ChangeColumn | RenameColumn)
    }
    return [with_renamed_reads(column, renamed) for column in columns] if renamed else columns


def _changed(work: _Work, column: ColumnDefinition, action: Action) -> ColumnDefinition | None:
    """The column after an action of its own; None where it is gone from its place."""
    if isinstance(action, DropColumn):
        work.dropped.add(column.name.lower())
        return None
    if isinstance(action, ChangeColumn):
        if action.column.name != column.name:
            work.renamed.append((column.name, action.column.name))
        if action.place is not None:
            return None
        return define(action.column, work.context)
    if isinstance(action, RenameColumn):
        if action.new_name != column.name:
            work.renamed.append((column.name, action.new_name))
        return replace(column, name=action.new_name)
    if isinstance(action, SetVisible):
        return replace(column, visible=action.visible)
    assert isinstance(action, SetDefault)
    if action.default is None:
        is_null = column.nullable and not column.generated and work.context.server.mariadb
        without = Default.NULL if is_null else Default.NONE
        return replace(column, default=without, default_text="", reads=column.reads if column.generated else None)
    default = action.default
    if default.kind is DefaultKind.EXPRESSION and default.literal and not default.literal.text.startswith("-"):
        default = DefaultSpec(DefaultKind.LITERAL, default.literal)  # here MySQL takes (7) for 7
    return with_default(column, default, work.context)


def _put_in(work: _Work, actions: list[Action]) -> None:
    """Adds columns, and those that were changed and moved."""
    for action in actions:
        if isinstance(action, AddColumn):
            column = define(action.column, work.context)
            work.added.append(added(action.column, column, work.context))
        elif isinstance(action, ChangeColumn) and action.place is not None:
            column = define(action.column, work.context)
        else:
            continue
        if column.name.lower() in {other.name.lower() for other in work.columns}:
            raise Unreadable("it adds a column that was known to be there")
        work.columns.insert(_index(work.columns, action.place, work.generated_key), column)


def _index(columns: list[ColumnDefinition], place: Place | None, first: str) -> int:
    if place is None:
        return len(columns)
    if not place.after:
        return int(bool(columns) and columns[0].name == first)
    for at, column in enumerate(columns):
        if column.name.lower() == place.after.lower():
            return at + 1
    raise Unreadable("it puts a column after one that was not known to be there")


def _primary_key(
    definition: TableDefinition, work: _Work, actions: list[Action], new_keys: list[KeySpec]
) -> tuple[str, ...]:
    has_period = hidden.has_period(definition.columns)
    shown = (name for name in definition.primary_key if not (has_period and name == hidden.ROW_END))
    names = _followed(shown, work)
    if any(isinstance(action, DropKey) and action.name.upper() == "PRIMARY" for action in actions):
        names = []
    for key in new_keys:
        if key.primary:
            if names:
                raise Unreadable("it adds a second primary key")
            names = [part.column for part in key.parts]
    return tuple(names)


def _with_row_end(
    primary_key: tuple[str, ...],
    columns: list[ColumnDefinition],
    more: tuple[ColumnDefinition, ...],
    actions: list[Action],
) -> tuple[str, ...]:
    """MariaDB: the key with the end of the period that the table has now."""
    if hidden.has_period(more):
        return with_row_end(primary_key, hidden.ROW_END)
    row_ends = [words.name for words in _defined(actions) if words.period == "END"]
    if row_ends:
        return with_row_end(primary_key, row_ends[0])
    adds_key = any(isinstance(action, AddKey) and action.key.primary for action in actions)
    if adds_key and any(hidden.may_be_period(column) for column in columns):
        raise Unreadable("whether its new primary key has a period's end is not known")
    return primary_key


def _followed(names: Iterable[str], work: _Work) -> list[str]:
    """Columns of before under their names of afterwards, without dropped ones.

    The servers look a key's columns up by name, so one that is added under a dropped one's name takes its place.
    """
    renamed = {old.lower(): new for old, new in work.renamed}
    added_names = {column.name.lower() for column in work.added}
    followed = []
    for name in names:
        if name.lower() in renamed and name.lower() in added_names:
            raise Unreadable("a column of a key gets another name, and another column its name")
        if name.lower() not in work.dropped or name.lower() in added_names:
            followed.append(renamed.get(name.lower(), name))
    return followed


def _keys(
    definition: TableDefinition, work: _Work, actions: list[Action], new_keys: list[KeySpec], engine: str
) -> tuple[KeyDefinition, ...]:
    """MariaDB's afterwards: a key that was there uses a hash only where it must, once the table's file is made anew."""
    if not work.context.server.mariadb:
        return ()
    kept: list[KeyDefinition] = []
    for key in _without_dropped(definition.keys, actions):
        parts = tuple((followed, length) for name, length in key.parts for followed in _followed([name], work))
        if parts:
            kept.append(replace(key, parts=parts))
    if all(isinstance(action, RenameTo | MoveRows) for action in actions):
        bare = [replace(key, hashed=False) for key in kept]
        if not actions and with_hashes(bare, work.columns, engine) != tuple(kept):
            raise Unreadable("whether a key USING HASH goes on using one is not known")
        return tuple(kept)
    if definition.engine not in ENGINES_OF_HASHES:
        kept = [replace(key, hashed=False) for key in kept]
    return with_hashes(added_keys(kept, new_keys), work.columns, engine)


def _without_dropped(keys: Iterable[KeyDefinition], actions: list[Action]) -> list[KeyDefinition]:
    """Keys under their names of afterwards."""
    dropped = {action.name.lower() for action in actions if isinstance(action, DropKey)}
    renamed = {action.old_name.lower(): action.new_name for action in actions if isinstance(action, RenameKey)}
    return [
        replace(key, name=renamed.get(key.name.lower(), key.name)) for key in keys if key.name.lower() not in dropped
    ]


def _hidden(
    definition: TableDefinition, work: _Work, actions: list[Action], hashes: int
) -> tuple[ColumnDefinition, ...]:
    """MariaDB's hidden columns afterwards."""
    if not work.context.server.mariadb:
        return ()
    has_period = hidden.has_period(definition.columns)
    for action in actions:
        if isinstance(action, SetVersioning):
            has_period = action.on and not any(words.period for words in _defined(actions))
    dropped = [column for column in definition.columns if column.name.lower() in work.dropped]
    if any(map(hidden.may_be_period, dropped)) and not any(isinstance(action, SetVersioning) for action in actions):
        if not work.context.statement.explicit_defaults_for_timestamp:
            raise Unreadable("it may drop a period's columns, and then has hidden ones")
        has_period = True  # no other generated column is NOT NULL
    return (hidden.period_columns() if has_period else ()) + hidden.hash_columns(hashes)


def _rows(actions: list[Action], *, ignore: bool) -> Rows:
    # those in the way of a unique key, a CHECK or a partition; a key may be in the way of what is converted
    rows = Rows.PARTLY_REMOVED if ignore else Rows.KEPT
    for action in actions:
        if isinstance(action, MoveRows):
            rows |= action.rows
        elif isinstance(action, TableOptions) and action.engine == _EMPTY_ENGINE:
            rows |= Rows.REMOVED
    return rows
