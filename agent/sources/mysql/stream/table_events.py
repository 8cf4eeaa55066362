"""What the gateway hears of a change of a table's definition, or of its rows without row events.

Pure: changes of `ddl` and the filter's verdict in, `TableEvent`s out. Nothing leaves that the filter keeps back: no
name of another table that it denies, no column that it ignores, nor a statement that speaks of one.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from menura.change_batch import MAX_STATEMENT_BYTES
from menura.v1 import changes_pb2, config_pb2

from agent.filter import Filter, Verdict
from agent.sources.mysql.ddl import hidden
from agent.sources.mysql.ddl.derived import with_derived
from agent.sources.mysql.ddl.lexer import Token, TokenKind, lex
from agent.sources.mysql.ddl.model import (
    AddedColumn,
    Change,
    ChangeKind,
    ColumnDefinition,
    EarlierRows,
    Server,
    Statement,
    Table,
    TableDefinition,
)
from agent.sources.mysql.types import arrow_format
from agent.sources.mysql.wire_literals import wire_literal
from agent.table_positions import name_message

#: an ENUM's labels may take more
MOST_TYPE_CHARS = 60_000
HIDDEN = "(not shown: it speaks of what the filter keeps back)"
MASK = "'***'"

#: kinds whose statement may name other tables: only the table's own part is told
_VERBS = {ChangeKind.DROPPED: "DROP TABLE", ChangeKind.RENAMED: "RENAME TABLE"}
#: what may stand between such a word and its secret
_SECRET_WORDS = frozenset(
    {"PASSWORD", "IDENTIFIED", "BY", "AS", "CONNECTION", "OPTION_LIST", "SECRET", "USING", "WITH"}
)
_SECRET = re.compile(r"passw|pwd|secret|[^\s:/]:[^\s/@]*@", re.IGNORECASE)
_NAMES = (TokenKind.WORD, TokenKind.NAME)
_TEXTS = (*_NAMES, TokenKind.STRING)
_VALUES = (TokenKind.STRING, TokenKind.HEX, TokenKind.BITS)
#: a statement with one of these may name other tables
_OTHER_TABLES = frozenset(
    {"REFERENCES", "LIKE", "UNION", "SELECT", "FROM", "JOIN", "EXCHANGE", "CONVERT", "WITH", "PERIOD"}
)


def columns_after(
    definition: TableDefinition,
    verdict: Verdict,
    added: Collection[AddedColumn] = (),
    renamed: Mapping[str, str] | None = None,
) -> list[changes_pb2.ColumnAfter]:
    """The columns that are sent; `renamed`: new name to old.

    >>> from agent.sources.mysql.ddl.hidden import hash_columns
    >>> columns_after(TableDefinition(hash_columns(1)), Verdict(allowed=True))
    []
    """
    additions = {column.name: column for column in added}
    keys = {name.lower(): place for place, name in enumerate(definition.primary_key, start=1)}
    return [
        _column(column, keys.get(column.name.lower(), 0), additions.get(column.name), (renamed or {}).get(column.name))
        for column in definition.columns
        if not verdict.ignores(column.name) and not hidden.is_hash(column)
    ]


def _column(
    column: ColumnDefinition, key: int, added: AddedColumn | None, renamed_from: str | None
) -> changes_pb2.ColumnAfter:
    message = changes_pb2.ColumnAfter(
        name=column.name,
        source_type=_short(str(column.type)),
        arrow_format=arrow_format(column.type),
        key=key,
        renamed_from=renamed_from or "",
        row_end=column.row_end,
    )
    if added is None:
        return message
    value = wire_literal(column.type, added.text) if added.earlier_rows is EarlierRows.TEXT else None
    if added.earlier_rows is EarlierRows.NULL:
        message.is_null = True
    elif value is None:
        message.is_unknown = True
    elif value.is_representable:
        message.text = value.text
    else:
        message.unrepresentable = value.text
    return message


def _short(type_: str) -> str:
    return type_ if len(type_) <= MOST_TYPE_CHARS else f"{type_[:MOST_TYPE_CHARS]}…"


def kept_back(filter_: Filter, change: Change) -> Verdict:
    """What of a table the filter keeps back before a change or after it."""
    verdict = filter_.verdict(*change.table)
    names = {
        *with_derived(verdict, change.before).ignored_columns,
        *with_derived(verdict, change.after).ignored_columns,
    }
    return replace(verdict, ignored_columns=frozenset(names))


def statement_about(change: Change, statement: Statement, server: Server, filter_: Filter) -> str:
    """The statement as far as it is about the change's table.

    >>> change = Change(ChangeKind.DROPPED, ("shop", "a"))
    >>> statement_about(change, Statement("DROP TABLE a, secrets", "shop"), Server(False, (9, 7, 0)), Filter())
    'DROP TABLE `shop`.`a`'
    """
    if change.kind in _VERBS:
        part = f"{_VERBS[change.kind]} {_quoted(change.table)}"
        if change.new_table is not None and filter_.verdict(*change.new_table).allowed:
            part += f" TO {_quoted(change.new_table)}"
        return part
    verdict = kept_back(filter_, change)
    if verdict.keeps_columns and change.before is change.after is None:  # which columns are computed is not known
        return HIDDEN
    tokens = list(lex(statement.text, server, statement.sql_mode))
    if _speaks_of_hidden(tokens, verdict, filter_):
        return HIDDEN
    return _cut(_masked(tokens))


def new_name(table: Table | None, filter_: Filter) -> config_pb2.TableName | None:
    """The table's new name, where the filter lets it be known."""
    return name_message(table) if table is not None and filter_.verdict(*table).allowed else None


def _quoted(table: Table) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in table)


def _speaks_of_hidden(tokens: Collection[Token], verdict: Verdict, filter_: Filter) -> bool:
    """Whether a word of the statement may be a name that the filter keeps back; it errs on that side."""
    if not filter_.keeps_back:
        return False
    texts = [token.text for token in tokens if token.kind in _TEXTS]
    is_broken = any(token.kind is TokenKind.BROKEN for token in tokens)
    return is_broken or any(verdict.ignores(text) or text.upper() in _OTHER_TABLES for text in texts)


def _masked(tokens: Collection[Token]) -> str:
    """Texts that are, or may hold, a password are replaced, and so are comments that may.

    >>> text = "CREATE TABLE t (a INT) ENGINE=FEDERATED CONNECTION='mysql://u:p@h/d/t' COMMENT='x'"
    >>> _masked(list(lex(text, Server(False, (9, 7, 0)))))
    "CREATE TABLE t (a INT) ENGINE=FEDERATED CONNECTION='***' COMMENT='x'"
    """
    parts: list[str] = []
    after_secret_word = False
    for token in tokens:
        part = token.raw
        if token.kind is TokenKind.BROKEN:
            part = MASK
        elif token.kind in _VALUES:
            part = MASK if after_secret_word or _SECRET.search(part) else part
            after_secret_word = False
        elif token.kind is TokenKind.COMMENT:
            part = "/* */" if _SECRET.search(part) else part
        elif token.kind in _NAMES:
            after_secret_word = token.text.upper() in _SECRET_WORDS
        parts.append(part)
    return "".join(parts)


def _cut(text: str) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAX_STATEMENT_BYTES:
        return encoded.decode()
    return encoded[: MAX_STATEMENT_BYTES - 3].decode("utf-8", "ignore") + "…"
