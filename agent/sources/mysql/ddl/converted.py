"""Which columns of a table may have other values in earlier rows, once it was altered or a changed copy took its place.

Pure. Two definitions and the session that went from one to the other come in; columns with reasons go out. Beside the
conversions of `conversions` there are columns that nobody names in a statement:

* A generated column is computed anew when a column that it reads is converted, or compares otherwise (a collation).
  A stored one that reads a TIMESTAMP is computed in the time zone of each session that copies the table.
* A table that is copied has its dates checked: what no calendar has becomes a zero date, or is refused (strict).
* MySQL takes the instants of a table that is copied through the session's local time.
* In an added column earlier rows have what the server computed: a default such as UUID(), a number, an expression.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from agent.sources.mysql.ddl.conversions import SHIFTS_INSTANTS, lost, shape_of
from agent.sources.mysql.ddl.model import AddedColumn, ColumnDefinition, EarlierRows, TableDefinition
from agent.sources.mysql.ddl.sql_modes import Session
from agent.sources.mysql.ddl.syntax import (
    Action,
    AddColumn,
    AddKey,
    ChangeColumn,
    ConvertCharset,
    DropColumn,
    DropKey,
    RenameColumn,
    RenameKey,
    RenameTo,
    SetDefault,
    SetVisible,
)
from agent.sources.mysql.types import Kind

COMPUTED = "its values in earlier rows were computed by the server"
_COMPUTED_ANEW = "it is computed from a column that was converted, or by another expression"
_COMPUTED_LOCALLY = "it is computed from a TIMESTAMP in the time zone of the session that copied the table"
_ODD_DATES = "the table was copied, which makes zero dates of those that no calendar has"

#: no engine copies a table for these alone
_OF_DEFINITION = (RenameColumn, RenameKey, RenameTo, SetDefault, SetVisible)
#: InnoDB copies no table for these alone, unless the statement's words say so
_IN_PLACE = (*_OF_DEFINITION, AddColumn, AddKey, DropColumn, DropKey)
_COPYING_WORDS = re.compile(
    r"\b(COPY|FORCE|STORED|PERSISTENT|CHECK|FOREIGN|REFERENCES|PARTITION|PARTITIONING|ORDER|ENGINE|TYPE|VERSIONING)\b",
    re.IGNORECASE,
)
_WITH_CHARSET = frozenset({Kind.CHAR, Kind.VARCHAR, Kind.TEXT, Kind.ENUM, Kind.SET})


def may_copy(actions: Iterable[Action], text: str, *, is_innodb: bool) -> bool:
    """Whether an ALTER TABLE may have copied the table's rows one by one; `is_innodb`: before and after it."""
    without_copy = _IN_PLACE if is_innodb else _OF_DEFINITION
    return not all(isinstance(action, without_copy) for action in actions) or _COPYING_WORDS.search(text) is not None


def restated(actions: Iterable[Action], after: TableDefinition) -> frozenset[str]:
    """Columns, in lower case, that may have another collation, or an expression that is said anew."""
    found: set[str] = set()
    for action in actions:
        if isinstance(action, ChangeColumn):
            found.add(action.column.name.lower())
        elif isinstance(action, ConvertCharset):
            found.update(column.name.lower() for column in after.columns if column.type.charset)
    return frozenset(found)


def converted(
    before: TableDefinition,
    after: TableDefinition,
    old_names: Mapping[str, str],
    added: Iterable[AddedColumn],
    session: Session,
    *,
    changed: Collection[str] | None = None,
    copied: bool = False,
) -> tuple[tuple[str, str], ...]:
    """(column, why) of each whose values in rows from before may be others now, under the names of `after`.

    `old_names` are those of renamed columns by their new ones, in lower case. `changed` is `restated`; None: nobody
    knows which columns were. `copied`: the server may have copied the rows; what a tool copies is not checked so.
    """
    were = {column.name.lower(): column for column in before.columns}
    names = {name.lower(): name for name in were} | {new: old.lower() for new, old in old_names.items()}
    unknown = {column.name.lower(): column.earlier_rows is EarlierRows.UNKNOWN for column in added}
    pairs: list[tuple[ColumnDefinition, ColumnDefinition | None]] = [
        (column, None if column.name.lower() in unknown else were.get(names.get(column.name.lower(), "")))
        for column in after.columns
        if not column.hidden
    ]
    found = {column.name.lower(): COMPUTED for column, _ in pairs if unknown.get(column.name.lower())}
    for column, was in pairs:
        why = _lost(was, column, session, changed, copied=copied) if was is not None else ""
        if why:
            found[column.name.lower()] = why
    touched = {*found, *_seen_otherwise(pairs, changed)}
    for name, why in _dependent(pairs, touched, session).items():
        found.setdefault(name, why)
    return tuple((column.name, found[column.name.lower()]) for column, _ in pairs if column.name.lower() in found)


def _lost(
    was: ColumnDefinition,
    column: ColumnDefinition,
    session: Session,
    changed: Collection[str] | None,
    *,
    copied: bool,
) -> str:
    if column.generated:
        return "" if _is_same_expression(was, column, changed) else _COMPUTED_ANEW
    why = lost(was, column, session)
    if not why and copied and column.type.kind in (Kind.DATE, Kind.DATETIME) and session.makes_zero_dates:
        why = _ODD_DATES
    if not why and column.type.kind is Kind.TIMESTAMP and session.may_shift_instants:
        why = f"the table was copied, which {SHIFTS_INSTANTS}"
    return why


def _is_same_expression(was: ColumnDefinition, column: ColumnDefinition, changed: Collection[str] | None) -> bool:
    if not was.generated or shape_of(was) != shape_of(column) or was.expression != column.expression:
        return False
    if was.nullable and not column.nullable:
        return False
    return bool(column.expression) or (changed is not None and column.name.lower() not in changed)


def _seen_otherwise(
    pairs: Iterable[tuple[ColumnDefinition, ColumnDefinition | None]], changed: Collection[str] | None
) -> set[str]:
    """Columns that an expression may see as something else although each value is the same."""
    names = set()
    for column, was in pairs:
        name = column.name.lower()
        may_compare_otherwise = column.type.kind in _WITH_CHARSET and (changed is None or name in changed)
        if was is None or shape_of(was) != shape_of(column) or may_compare_otherwise:
            names.add(name)
    return names


def _dependent(
    pairs: Iterable[tuple[ColumnDefinition, ColumnDefinition | None]], touched: set[str], session: Session
) -> dict[str, str]:
    """Generated columns that read one of those, over any number of steps, or the session's time."""
    generated = [column for column, was in pairs if column.generated and was is not None]
    instants = {column.name.lower() for column, _ in pairs if column.type.kind is Kind.TIMESTAMP}
    found: dict[str, str] = {}
    if session.time_zone:
        found = {column.name.lower(): _COMPUTED_LOCALLY for column in generated if _reads(column, instants)}
    reached = touched | set(found)
    while more := {c.name.lower() for c in generated if _reads(c, reached)} - reached - set(found):
        found |= dict.fromkeys(more, _COMPUTED_ANEW)
        reached |= more
    return found


def _reads(column: ColumnDefinition, names: set[str]) -> bool:
    return bool(names) and (column.reads is None or not names.isdisjoint(column.reads))
