"""What the gateway hears of a change of a table's definition, or of its rows without row events.

Pure: changes of `ddl` and the filter's verdict in, `TableEvent`s out. Nothing leaves that the filter keeps back: no
name of another table that it denies, no column that it ignores, nor a statement that speaks of one.
"""

import re
from collections.abc import Collection, Mapping

from menura.change_batch import MAX_STATEMENT_BYTES
from menura.types import arrow_format
from menura.v1 import config_pb2, mysql_binlog_pb2

from agent.filter import Filter, Policy, Verdict
from agent.mysql.ddl.model import AddedColumn, ChangeKind, ColumnDefinition, EarlierRows, Table, TableDefinition
from agent.mysql.progress import name_message

#: an ENUM's labels may take more
MOST_TYPE_CHARS = 60_000
HIDDEN = "(not shown: it speaks of what the filter keeps back)"
MASK = "'***'"

#: kinds whose statement may name other tables: only the table's own part is told
_VERBS = {ChangeKind.DROPPED: "DROP TABLE", ChangeKind.RENAMED: "RENAME TABLE"}
_TOKEN = re.compile(
    r"""
    (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | (?P<name>`(?:[^`]|``)*`)
    | (?P<comment>/\*(?!M?!).*?\*/ | --(?=\s|$)[^\n]* | \#[^\n]*)
    | (?P<word>[0-9A-Za-z_$\u0080-\U0010ffff]+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
#: what may stand between such a word and its secret
_SECRET_WORDS = frozenset(
    {"PASSWORD", "IDENTIFIED", "BY", "AS", "CONNECTION", "OPTION_LIST", "SECRET", "USING", "WITH"}
)
_SECRET = re.compile(r"passw|pwd|secret|[^\s:/]:[^\s/@]*@", re.IGNORECASE)
#: a statement with one of these may name other tables
_OTHER_TABLES = frozenset(
    {"REFERENCES", "LIKE", "UNION", "SELECT", "FROM", "JOIN", "EXCHANGE", "CONVERT", "WITH", "PERIOD"}
)


def columns_after(
    definition: TableDefinition,
    verdict: Verdict,
    added: Collection[AddedColumn] = (),
    renamed: Mapping[str, str] | None = None,
) -> list[mysql_binlog_pb2.ColumnAfter]:
    """The columns that are sent; `renamed`: new name to old."""
    additions = {column.name: column for column in added}
    keys = {name.lower(): place for place, name in enumerate(definition.primary_key, start=1)}
    return [
        _column(column, keys.get(column.name.lower(), 0), additions.get(column.name), (renamed or {}).get(column.name))
        for column in definition.columns
        if not verdict.ignores(column.name)
    ]


def _column(
    column: ColumnDefinition, key: int, added: AddedColumn | None, renamed_from: str | None
) -> mysql_binlog_pb2.ColumnAfter:
    message = mysql_binlog_pb2.ColumnAfter(
        name=column.name,
        source_type=_short(str(column.type)),
        arrow_format=arrow_format(column.type),
        key=key,
        renamed_from=renamed_from or "",
    )
    if added is not None and added.earlier_rows is EarlierRows.NULL:
        message.is_null = True
    elif added is not None and added.earlier_rows is EarlierRows.TEXT:
        message.text = added.text
    elif added is not None:
        message.is_unknown = True
    return message


def _short(type_: str) -> str:
    return type_ if len(type_) <= MOST_TYPE_CHARS else f"{type_[:MOST_TYPE_CHARS]}…"


def statement_about(kind: ChangeKind, table: Table, new_table: Table | None, text: str, filter_: Filter) -> str:
    """The statement as far as it is about `table`.

    >>> statement_about(ChangeKind.DROPPED, ("shop", "a"), None, "DROP TABLE a, secrets", Filter())
    'DROP TABLE `shop`.`a`'
    """
    if kind in _VERBS:
        part = f"{_VERBS[kind]} {_quoted(table)}"
        if new_table is not None and filter_.verdict(*new_table).allowed:
            part += f" TO {_quoted(new_table)}"
        return part
    if _speaks_of_hidden(text, table, filter_):
        return HIDDEN
    return _cut(_masked(text))


def new_name(table: Table | None, filter_: Filter) -> config_pb2.TableName | None:
    """The table's new name, where the filter lets it be known."""
    return name_message(table) if table is not None and filter_.verdict(*table).allowed else None


def _quoted(table: Table) -> str:
    return ".".join("`" + name.replace("`", "``") + "`" for name in table)


def _speaks_of_hidden(text: str, table: Table, filter_: Filter) -> bool:
    """Whether a word of the statement may be a name that the filter keeps back; it errs on that side."""
    if not filter_.rules and filter_.policy is Policy.ACCEPT:
        return False
    verdict = filter_.verdict(*table)
    words = [_word(match) for match in _TOKEN.finditer(text) if match["word"] or match["name"] or match["text"]]
    if any(verdict.ignores(word) for word in words):
        return True
    return any(word.upper() in _OTHER_TABLES for word in words)


def _word(match: "re.Match[str]") -> str:
    token = match[0]
    if match["word"]:
        return token
    return token[1:-1].replace(token[0] * 2, token[0])


def _masked(text: str) -> str:
    """Texts that are, or may hold, a password are replaced, and so are comments that may.

    >>> _masked("CREATE TABLE t (a INT) ENGINE=FEDERATED CONNECTION='mysql://u:p@h/d/t' COMMENT='x'")
    "CREATE TABLE t (a INT) ENGINE=FEDERATED CONNECTION='***' COMMENT='x'"
    """
    parts: list[str] = []
    after_secret_word = False
    for match in _TOKEN.finditer(text):
        token = match[0]
        if match["text"]:
            parts.append(MASK if after_secret_word or _SECRET.search(token) else token)
            after_secret_word = False
        elif match["comment"]:
            parts.append("/* */" if _SECRET.search(token) else token)
        else:
            parts.append(token)
            if match["word"] or match["name"]:
                after_secret_word = token.upper() in _SECRET_WORDS
    return "".join(parts)


def _cut(text: str) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MAX_STATEMENT_BYTES:
        return encoded.decode()
    return encoded[: MAX_STATEMENT_BYTES - 3].decode("utf-8", "ignore") + "…"
