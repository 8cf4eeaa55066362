"""Columns that are computed from others: those that read an ignored one, and those that the log leaves out.

Pure. What a generated column shows, and what a default with an expression has stored, are the bytes of the columns that
the expression reads, in another form. Where an expression is not known, the column is kept back too.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from agent.filter import Filter, Verdict
from agent.sources.mysql.ddl.lexer import words_of
from agent.sources.mysql.ddl.model import ColumnDefinition, Table, TableDefinition

_PERIODS = ("ROW START", "ROW END")


def with_derived(verdict: Verdict, definition: TableDefinition | None) -> Verdict:
    """The verdict that also ignores what is computed from ignored columns, over any number of steps.

    >>> from agent.sources.mysql.types import ColumnType, Kind
    >>> def column(name, *reads):
    ...     return ColumnDefinition(name, ColumnType(Kind.INT), generated=bool(reads), reads=reads or None)
    >>> table = TableDefinition((column("Upper", "g"), column("g", "abs", "Secret".lower()), column("secret")))
    >>> sorted(with_derived(Verdict(True, frozenset({"secret"})), table).ignored_columns)
    ['g', 'secret', 'upper']
    """
    if not verdict.keeps_columns or definition is None:
        return verdict
    kept_back = set(verdict.ignored_columns)
    kept_back.update(column.name.lower() for column in definition.columns if verdict.ignores(column.name))
    kept_back.update(column.name.lower() for column in definition.columns if column.reads_unknown)
    kept_back |= computed_from(kept_back, {column.name.lower(): column.reads or () for column in definition.columns})
    return replace(verdict, ignored_columns=frozenset(kept_back))


def computed_from(columns: Collection[str], reads: Mapping[str, Collection[str]]) -> set[str]:
    """The columns that are computed from these, over any number of steps; `reads`: what each one reads, in lower case.

    >>> sorted(computed_from({"a"}, {"a": (), "b": ("a", "x"), "c": ("b",), "d": ("x",)}))
    ['b', 'c']
    """
    found = set(columns)
    while more := {name for name, read in reads.items() if not found.isdisjoint(read)} - found:
        found |= more
    return found.difference(columns)


def unsent(filter_: Filter, table: Table, definition: TableDefinition | None) -> Verdict:
    """The verdict that also ignores generated columns whose new values the server leaves out of its log.

    Such a column is sent again from when on it is a plain one. Without a definition all of them are ignored.
    """
    verdict = with_derived(filter_.verdict(*table), definition)
    unlogged = filter_.findings.unlogged.get(table, frozenset())
    if definition is not None and unlogged:
        generated = {column.name.lower() for column in definition.columns if column.generated}
        unlogged &= generated
    return replace(verdict, ignored_columns=verdict.ignored_columns | unlogged) if unlogged else verdict


def lacks_expressions(definition: TableDefinition) -> bool:
    """Whether what some column is computed from is not known."""
    return any(column.reads_unknown for column in definition.columns)


def may_be_generated(definition: TableDefinition, names: Collection[str]) -> bool:
    """Whether one of these columns, in lower case, may be generated, and nobody knows."""
    return any(
        column.reads_unknown and not column.generated and column.name.lower() in names for column in definition.columns
    )


def names_in(expression: str, columns: Iterable[str]) -> tuple[str, ...]:
    """Which of a table's columns an expression, as a server shows it, may name: in doubt, one more.

    >>> names_in("lower(concat(`e mail`,_utf8mb4\\'a\\',`Phone`))", ["id", "E mail", "phone", "pho"])
    ('e mail', 'phone')
    """
    if expression.upper() in _PERIODS:
        return ()
    words = words_of(expression.lower())
    letters = _letters(expression)
    names = {name.lower() for name in columns}
    return tuple(sorted(name for name in names if name in words or (_is_odd(name) and _letters(name) in letters)))


def with_renamed_reads(column: ColumnDefinition, renamed: Mapping[str, str]) -> ColumnDefinition:
    """The column after others got new names; old to new, in lower case."""
    if column.reads is None or renamed.keys().isdisjoint(column.reads):
        return column
    return replace(column, reads=tuple(sorted({renamed.get(name, name) for name in column.reads})))


def _is_odd(name: str) -> bool:
    """Whether it has signs, which may stand doubled or escaped in an expression."""
    return words_of(name) != {name}


def _letters(text: str) -> str:
    return "".join(letter for letter in text.lower() if words_of(letter))
