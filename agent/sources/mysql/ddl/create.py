"""CREATE TABLE as a definition. Pure; raises `Unreadable`."""

import re
from dataclasses import replace

from agent.sources.mysql.ddl import hidden
from agent.sources.mysql.ddl.charset_texts import is_shown_surely
from agent.sources.mysql.ddl.columns import Context, define, with_first_timestamp
from agent.sources.mysql.ddl.keys import (
    added_keys,
    hash_count,
    inline_keys,
    with_hashes,
    with_period_columns,
    with_periods,
    with_primary_key,
    with_row_end,
)
from agent.sources.mysql.ddl.lexer import Unreadable
from agent.sources.mysql.ddl.model import ColumnDefinition, Default, TableDefinition
from agent.sources.mysql.ddl.syntax import ColumnSpec, CreateTable
from agent.sources.mysql.ddl.types import charset_of_spec
from agent.sources.mysql.types import ColumnType, Kind

#: MariaDB's sequences are tables of one row
_SEQUENCE = (
    ("next_not_cached_value", Kind.BIGINT, False),
    ("minimum_value", Kind.BIGINT, False),
    ("maximum_value", Kind.BIGINT, False),
    ("start_value", Kind.BIGINT, False),
    ("increment", Kind.BIGINT, False),
    ("cache_size", Kind.BIGINT, True),
    ("cycle_option", Kind.TINYINT, True),
    ("cycle_count", Kind.BIGINT, False),
)


#: made by the server from what it has, in place of LIKE or SELECT
_REWRITTEN = re.compile(r"CREATE (?:OR REPLACE )?TABLE (?:IF NOT EXISTS )?(?:`[^`]*`\.)?`[^`]*` \(\n  `")


def create(statement: CreateTable, context: Context) -> TableDefinition:
    """The table; `context.charset` is its database's."""
    options = statement.options
    charset = context.charset
    if options.charset or options.collation:
        charset = charset_of_spec(options.charset, options.collation, charset, context.server)
    of_columns = replace(context, charset=charset)
    columns = [define(words, of_columns) for words in statement.columns]
    columns = with_first_timestamp(columns, list(statement.columns), of_columns)
    keys = [key for words in statement.columns for key in inline_keys(words)] + list(statement.keys)
    keys = with_period_columns(keys, list(statement.periods))
    primary = [key for key in keys if key.primary]
    if not columns or len(primary) > 1 or len({column.name.lower() for column in columns}) < len(columns):
        raise Unreadable("a table without columns, or with two of one name or two primary keys, is not read")
    if context.statement.may_be_made_by_server and _REWRITTEN.match(context.statement.text):
        columns = [_checked(column) for column in columns]
        if context.server.mariadb:
            columns = [_as_shown(column, words) for column, words in zip(columns, statement.columns, strict=True)]
    columns = with_periods(columns, list(statement.periods))
    columns, primary_key = with_primary_key(columns, tuple(part.column for key in primary for part in key.parts))
    if not context.server.mariadb:
        return TableDefinition(tuple(columns), primary_key, charset)
    more: tuple[ColumnDefinition, ...] = ()
    if _is_versioned(statement):
        row_ends = [words.name for words in statement.columns if words.period == "END"]
        more = () if row_ends else hidden.period_columns()
        primary_key = with_row_end(primary_key, row_ends[0] if row_ends else hidden.ROW_END)
    made = with_hashes(added_keys((), keys), columns, options.engine)
    more += hidden.hash_columns(hash_count(made, options.engine))
    return TableDefinition(tuple(columns) + more, primary_key, charset, made, options.engine)


def like(definition: TableDefinition) -> TableDefinition:
    """A table made LIKE another one: its keys use a hash only where they must."""
    columns = [column for column in definition.columns if not hidden.is_hash(column)]
    keys = with_hashes([replace(key, hashed=False) for key in definition.keys], columns, definition.engine)
    more = hidden.hash_columns(hash_count(keys, definition.engine))
    return replace(definition, columns=tuple(columns) + more, keys=keys)


def _checked(column: ColumnDefinition) -> ColumnDefinition:
    """A column as the server shows it, which may lack characters."""
    charset = column.type.charset
    if not all(is_shown_surely(label, charset) for label in column.type.labels):
        raise Unreadable("the server made the statement, and a '?' in its labels may stand for another character")
    if column.default is Default.LITERAL and charset and not is_shown_surely(column.default_text, charset):
        return replace(column, default=Default.EXPRESSION, default_text="", reads=())
    return column


def _as_shown(column: ColumnDefinition, spec: ColumnSpec) -> ColumnDefinition:
    """The server writes DEFAULT NULL where it is meant; a column of a SELECT may have none at all."""
    is_none = spec.default is None and column.default is Default.NULL
    return replace(column, default=Default.NONE) if is_none else column


def _is_versioned(statement: CreateTable) -> bool:
    return statement.options.is_versioned or any(words.versioned for words in statement.columns)


def is_sequence(definition: TableDefinition) -> bool:
    """By its columns, which may have names of their own."""
    kinds = [(column.type.kind, column.nullable) for column in definition.columns]
    return kinds == [(kind, False) for _, kind, _ in _SEQUENCE]


def sequence(charset: str) -> TableDefinition:
    columns = (
        ColumnDefinition(name, ColumnType(kind, unsigned), nullable=False, default=Default.NONE, zerofill=False)
        for name, kind, unsigned in _SEQUENCE
    )
    return TableDefinition(tuple(columns), (), charset)
