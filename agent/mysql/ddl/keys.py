"""Primary keys: what they make of their columns."""

from dataclasses import replace

from agent.mysql.ddl import hidden
from agent.mysql.ddl.lexer import Unreadable
from agent.mysql.ddl.model import ColumnDefinition, Default
from agent.mysql.ddl.syntax import ColumnWords, KeyPart, KeyWords, PeriodWords

#: they have hash indexes of their own
_ENGINES_OF_HASHES = ("MEMORY", "HEAP")


def inline_keys(words: ColumnWords) -> list[KeyWords]:
    """PRIMARY KEY and UNIQUE among a column's attributes."""
    keys = []
    if words.primary:
        keys.append(KeyWords(True, "PRIMARY", (KeyPart(words.name),)))
    if words.unique or words.type.name == "SERIAL":
        keys.append(KeyWords(False, "", (KeyPart(words.name),)))
    return keys


def with_period_columns(keys: list[KeyWords], periods: list[PeriodWords]) -> list[KeyWords]:
    """MariaDB: a period WITHOUT OVERLAPS is its end and its start in a key."""
    known = {period.name.lower(): (KeyPart(period.end), KeyPart(period.start)) for period in periods}

    def columns_of(part: KeyPart) -> tuple[KeyPart, ...]:
        if not part.is_period:
            return (part,)
        if part.column.lower() not in known:
            raise Unreadable("a key has a period whose columns are not known")
        return known[part.column.lower()]

    return [replace(key, parts=tuple(column for part in key.parts for column in columns_of(part))) for key in keys]


def with_periods(columns: list[ColumnDefinition], periods: list[PeriodWords]) -> list[ColumnDefinition]:
    """The columns, those of periods being NOT NULL; raises `Unreadable`."""
    wanted = {name.lower() for period in periods for name in (period.start, period.end)}
    if not wanted <= {column.name.lower() for column in columns}:
        raise Unreadable("a period has a column that was not known to be there")
    return [_required(column) if column.name.lower() in wanted else column for column in columns]


def with_primary_key(
    columns: list[ColumnDefinition], primary_key: tuple[str, ...]
) -> tuple[list[ColumnDefinition], tuple[str, ...]]:
    """The columns, those of the key being NOT NULL, and the key in their spelling; raises `Unreadable`."""
    names = {column.name.lower(): column.name for column in columns}
    wanted = [name.lower() for name in primary_key]
    if not set(wanted) <= set(names):
        raise Unreadable("its primary key has a column that was not known to be there")
    made = [_required(column) if column.name.lower() in wanted else column for column in columns]
    return made, tuple(names[name] for name in wanted)


def _required(column: ColumnDefinition) -> ColumnDefinition:
    """As NOT NULL."""
    default = Default.NONE if column.default is Default.NULL else column.default
    return replace(column, nullable=False, default=default)


def hash_count(uniques: list[KeyWords], columns: list[ColumnDefinition], *, engine: str | None) -> int:
    """How many of MariaDB's unique keys get a hidden column; `engine`: None where it is not known, '' for InnoDB."""
    by_name = {column.name.lower(): column for column in columns}
    count = 0
    for key in uniques:
        if engine in _ENGINES_OF_HASHES:
            continue
        if key.uses_hash and engine is None:
            raise Unreadable("whether a key USING HASH has a hidden column depends on the table's engine")
        if not {part.column.lower() for part in key.parts} <= set(by_name):
            raise Unreadable("a unique key has a column that was not known to be there")
        whole = [by_name[part.column.lower()] for part in key.parts if not part.has_length]
        count += key.uses_hash or hidden.is_hashed(whole, of_innodb=engine in (None, "", "INNODB"))
    return count


def with_row_end(primary_key: tuple[str, ...], row_end: str) -> tuple[str, ...]:
    """MariaDB: the primary key of a versioned table has the period's end as its last column."""
    return (*primary_key, row_end) if primary_key and row_end not in primary_key else primary_key
