"""The statements that read a table's rows in the order of a key, and the bounds between them.

Comes in: a `Key` and bounds. Goes out: SQL whose literals mean the same under every sql_mode, connection charset and
time zone that `SESSION` leaves, and which both servers answer by a range of the key's index without sorting. A bound
is a JSON array of texts, one per key column or of the first ones, that has been with the gateway: each text is checked
against its column's form before it becomes a literal. It holds row values, so no error here shows it.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from menura.key_values import TEXT
from menura.key_values import Key as KeyValues
from menura.key_values import literal as literal_of
from menura.key_values import value_of as key_value
from pymysql.connections import Connection

from agent.snapshot.reader import BoundInvalid
from agent.sources.mysql.ddl.model import Table
from agent.sources.mysql.server.connection import Facts
from agent.sources.mysql.server.quoting import quoted, quoted_name
from agent.sources.mysql.snapshot.keys import Form, Key, KeyColumn
from agent.sources.mysql.types import Kind

#: the texts of a bound; a beginning of the key's columns is a bound too
Bound = tuple[str, ...]

_SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    # dates that no calendar has are compared as they stand; no padding of CHAR, no quotes with another meaning
    "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'",
    "SET SESSION time_zone = '+00:00'",
    # text comes as its column has it, so that what is invalid in the column's charset is seen
    "SET SESSION character_set_results = NULL",
    # settings of the server that would cut a result short, or end it while the throttle holds it back
    "SET SESSION sql_select_limit = 18446744073709551615",
    "SET SESSION sql_big_selects = 1",
    "SET SESSION net_write_timeout = 3600",
    "SET SESSION lock_wait_timeout = 30",
)
_SESSION_OF = {
    "mysql": ("SET SESSION max_execution_time = 0", "SET SESSION information_schema_stats_expiry = 0"),
    "mariadb": ("SET SESSION max_statement_time = 0", "SET SESSION system_versioning_asof = DEFAULT"),
}
_TEXTS = {
    Form.NUMBER: re.compile(r"-?[0-9]{1,65}(\.[0-9]{1,38})?"),
    Form.LISTED: re.compile(r"[0-9]{1,3}"),
    Form.TEXT: re.compile(r"([0-9A-F]{2})*"),
    Form.BYTES: re.compile(r"([0-9A-F]{2})*"),
    Form.MOMENT: re.compile(r"-?[0-9][0-9: .-]{1,30}"),
    Form.ADDRESS: re.compile(r"[0-9a-f:.-]{2,45}"),
}
_CHARSET = re.compile(r"[a-z0-9_]+")


def prepare(connection: "Connection[Any]", facts: Facts) -> None:
    """Make a session one that dumps; needs no privilege. Inside `server_errors`."""
    with connection.cursor() as cursor:
        for statement in (*_SESSION, *_SESSION_OF[facts.flavor]):
            cursor.execute(statement)


def chunk_statement(table: Table, expressions: Iterable[str], key: Key, lower: str, upper: str, limit: int) -> str:
    """SELECT `expressions`, then the key's columns as the texts of a bound, of the first `limit` rows above `lower`.

    `lower` and `upper` (included) are bounds as JSON, empty for none; raises `BoundInvalid`.
    """
    where = between(key, bound_texts(key, lower), bound_texts(key, upper))
    return select(table, [*expressions, *hidden_columns(key)], key, where, limit)


def unchunked_statement(table: Table, expressions: Iterable[str], *, versioned: bool = False) -> str:
    """SELECT `expressions` of all rows, in no order; of a `versioned` table those too that it has had."""
    versions = " FOR SYSTEM_TIME ALL" if versioned else ""
    return f"SELECT {', '.join(expressions)} FROM {quoted(table)}{versions}"  # noqa: S608  (names are quoted)


def bound_of(key: Key, last_row: Sequence[bytes | None]) -> str:
    """The bound of the row whose hidden columns these are; raises `BoundInvalid`.

    >>> from agent.sources.mysql.types import ColumnType
    >>> bound_of(Key("PRIMARY", (KeyColumn("id", ColumnType(Kind.INT)),)), [b"-7"])
    '["-7"]'
    """
    try:
        texts = tuple("" if value is None else value.decode("ascii") for value in last_row)
    except UnicodeDecodeError as wrong:
        raise BoundInvalid("a key column's text is not ASCII") from wrong
    return as_json(key, texts)


def as_json(key: Key, bound: Bound) -> str:
    _check(key, bound)
    return json.dumps(bound, separators=(",", ":"))


def bound_texts(key: Key, text: str) -> Bound | None:
    """The texts of a bound as JSON, each of its column's form; None: no bound. Raises `BoundInvalid`."""
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError as wrong:
        raise BoundInvalid("a bound is not JSON") from wrong
    if not isinstance(found, list) or not all(isinstance(part, str) for part in found):
        raise BoundInvalid("a bound is not a list of texts")
    _check(key, tuple(found))
    return tuple(found)


def _check(key: Key, bound: Bound) -> None:
    if not 0 < len(bound) <= len(key.columns):
        raise BoundInvalid(f"a bound has {len(bound)} parts, its key has {len(key.columns)} columns")
    for column, text in zip(key.columns, bound, strict=False):
        if _TEXTS[column.form].fullmatch(text) is None:
            raise BoundInvalid(f"a bound's part for {column.name} is not of its form {column.form.name.lower()}")


def texts_of(key: Key, values: KeyValues) -> Bound:
    """A bound at values of the key's first columns.

    >>> from agent.sources.mysql.types import ColumnType
    >>> texts_of(Key("PRIMARY", (KeyColumn("at", ColumnType(Kind.DATETIME)),)), (0,))
    ('1970-01-01 00:00:00.000000',)
    """
    pairs = zip(key.kinds, values, strict=False)
    return tuple(value.upper() if isinstance(value, str) else literal_of(kind, value) for kind, value in pairs)


def values_of(key: Key, bound: Bound) -> KeyValues:
    """The same back, as many as the key has kinds. ValueError: one has none."""
    if len(bound) < len(key.kinds):
        raise ValueError("a bound of other columns")
    return tuple(
        key_value(kind, bytes.fromhex(text).decode() if kind == TEXT else text.lower())
        for kind, text in zip(key.kinds, bound, strict=False)
    )


def hidden_columns(key: Key) -> list[str]:
    """Expressions that give the texts of a row's bound, in ASCII."""
    return [_hidden(column) for column in key.columns]


def _hidden(column: KeyColumn) -> str:
    name = quoted_name(column.name)
    if column.form in (Form.TEXT, Form.BYTES):
        return f"HEX({name})"
    if column.form is Form.LISTED or column.type.kind is Kind.BIT:
        return f"CAST(CAST({name} AS UNSIGNED) AS CHAR)"
    return f"CAST({name} AS CHAR)"


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on a key."""

    #: empty: all rows
    sql: str = ""
    #: leading columns of which it leaves one listed value
    pinned: int = 0

    def __and__(self, other: "Where") -> "Where":
        sql = " AND ".join(part for part in (self.sql, other.sql) if part)
        return Where(sql, max(self.pinned, other.pinned))


def select(
    table: Table, expressions: Iterable[str], key: Key, where: Where, limit: int, *, backwards: bool = False
) -> str:
    """Of the rows that fulfil `where`, in the order of the key's index or against it."""
    # both servers sort the rows when ORDER BY has a listed column that WHERE compares with one number
    order = ", ".join(
        quoted_name(column.name) + (" DESC" if column.descending is not backwards else "")
        for column in key.columns[where.pinned :]
    )
    return (
        f"SELECT {', '.join(expressions)} FROM {quoted(table)} FORCE INDEX ({quoted_name(key.index)})"  # noqa: S608  (quoted)
        f"{where.sql and ' WHERE ' + where.sql}{order and ' ORDER BY ' + order} LIMIT {limit}"
    )


def between(key: Key, lower: Bound | None, upper: Bound | None, *, with_lower: bool = False) -> Where:
    """Above `lower` (or from it on) up to and with `upper`; a bound may be a beginning of the key's columns."""
    where = Where()
    if lower is not None:
        where &= _beyond(key, lower, later=True, inclusive=with_lower)
    if upper is not None:
        where &= _beyond(key, upper, later=False, inclusive=True)
    return where


def before(key: Key, bound: Bound) -> Where:
    return _beyond(key, bound, later=False, inclusive=False)


def _beyond(key: Key, bound: Bound, *, later: bool, inclusive: bool) -> Where:
    """(a > x) OR (a = x AND b > y): what both servers make ranges of, other than (a, b) > (x, y)."""
    branches: list[str] = []
    equal: list[str] = []
    pinned = 0
    last = len(bound) - 1
    for at, (column, text) in enumerate(zip(key.columns, bound, strict=False)):
        greater = later is not column.descending
        beyond = _column_beyond(column, text, greater=greater, inclusive=inclusive and at == last)
        if beyond:
            branches.append(" AND ".join([*equal, beyond]))
        elif not branches and at < last:
            pinned = at + 1
        equal.append(f"{quoted_name(column.name)} = {literal(column, text)}")
    return Where(f"({' OR '.join(f'({branch})' for branch in branches) or 'FALSE'})", pinned)


def _column_beyond(column: KeyColumn, text: str, *, greater: bool, inclusive: bool) -> str:
    """Empty: nothing is."""
    name = quoted_name(column.name)
    if column.form is not Form.LISTED:
        return f"{name} {'>' if greater else '<'}{'=' if inclusive else ''} {literal(column, text)}"
    step = 0 if inclusive else 1
    value = int(text)
    listed = range(value + step, column.greatest_listed + 1) if greater else range(value - step + 1)
    return f"{name} IN ({', '.join(map(str, listed))})" if listed else ""


def literal(column: KeyColumn, text: str) -> str:
    """A constant that is equal to the column's value; `text` has the column's form.

    Text is written as bytes in the column's charset, so that nothing is converted and its collation decides.
    """
    match column.form:
        case Form.NUMBER | Form.LISTED:
            return text
        case Form.TEXT:
            if _CHARSET.fullmatch(column.type.charset) is None:
                raise BoundInvalid(f"{column.name} has no charset")
            return f"_{column.type.charset} X'{text}'"
        case Form.BYTES:
            return f"X'{text}'"
        case _:
            return f"'{text}'"
