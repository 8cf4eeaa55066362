"""The statements that read a table's rows in the order of a key, and the bounds between them.

Comes in: a `Key` and bounds. Goes out: SQL that the server answers by a range of the key's index, without sorting. A
bound is a JSON array of texts, one per column of the key as the server has printed it, and the digest of the key's
order; it has been with the gateway. Each text becomes a constant, which the server takes for one of the column's type
and checks. It holds row values, so no error here shows it.
"""

import json
from collections.abc import Iterable, Sequence

from menura.key_values import BINARY, value_of
from menura.key_values import Key as KeyValues
from menura.key_values import literal as literal_of

from agent.snapshot.reader import BoundInvalid, OrderChanged
from agent.sources.postgresql.server.definitions import TableDefinition
from agent.sources.postgresql.server.quoting import literal, quoted, quoted_table
from agent.sources.postgresql.snapshot.keys import Key, KeyColumn

#: the texts of a bound
Bound = tuple[str, ...]

#: of a transaction that reads a chunk, or a plan's few keys: in the order of the index
BY_INDEX = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off"
#: a statement lasts as long as the throttle and the gateway's credit let it
WITHOUT_TIMEOUT = "SET LOCAL statement_timeout = 0"


def lock_statement(definition: TableDefinition, columns: Iterable[str]) -> str:
    """Reads nothing: the table then stays as it is until the transaction ends, and its present columns are told."""
    return f"SELECT {_list(columns)} FROM {source_of(definition)} WHERE false"  # noqa: S608  (quoted)


def chunk_statement(
    definition: TableDefinition, columns: Iterable[str], key: Key, lower: str, upper: str, limit: int
) -> str:
    """SELECT `columns`, then the key's, of the first `limit` rows above `lower` up to and with `upper`.

    `lower` and `upper` are bounds as JSON, empty for none; raises `BoundInvalid` and `OrderChanged`.
    """
    conditions = [beyond(key, ">", found) for found in [read_bound(key, lower)] if found is not None]
    conditions += [beyond(key, "<=", found) for found in [read_bound(key, upper)] if found is not None]
    return select(definition, [*columns, *key.names], key, conditions, limit)


def select(
    definition: TableDefinition,
    columns: Iterable[str],
    key: Key,
    conditions: Sequence[str],
    limit: int,
    *,
    backwards: bool = False,
) -> str:
    """Of the rows that fulfil all conditions, in the order of the key or against it."""
    order = ", ".join(quoted(name) + (" DESC" if backwards else "") for name in key.names)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {_list(columns)} FROM {source_of(definition)}{where} ORDER BY {order} LIMIT {limit}"  # noqa: S608


def whole_statement(definition: TableDefinition, columns: Iterable[str]) -> str:
    """SELECT `columns` of all rows, in no order."""
    return f"SELECT {_list(columns)} FROM {source_of(definition)}"  # noqa: S608  (quoted)


def with_operators_of(key: Key) -> str:
    """A statement for a transaction, after which the key's operators are found; '' where they always are.

    Names before them are the server's own.
    """
    if not key.schemas:
        return ""
    return f"SET LOCAL search_path = pg_catalog, {', '.join(map(quoted, key.schemas))}"


def source_of(definition: TableDefinition) -> str:
    """A table without those that inherit from it, whose changes are their own; or one with its partitions."""
    return f"{'' if definition.kind == 'p' else 'ONLY '}{quoted_table(definition.table)}"


def beyond(key: Key, operator: str, bound: Bound) -> str:
    pairs = list(zip(key.columns, bound, strict=False))
    columns = ", ".join(_typed(column, quoted(column.name)) for column, _ in pairs)
    constants = ", ".join(_typed(column, literal(text)) for column, text in pairs)
    return f"({columns}) {operator} ({constants})"


def _typed(column: KeyColumn, operand: str) -> str:
    """A constant without a type is taken for one of the column's: this user may not use the schema of each type.

    The server finds an enum's operators for no domain. An index serves its column under another type's name too.
    """
    return f"{operand}::{column.type}" if column.is_named else operand


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def bound_of(key: Key, last_row: Sequence[bytes]) -> str:
    """The bound of the row whose key's texts these are, as JSON; raises `BoundInvalid`.

    >>> bound_of(Key((KeyColumn("id", "int4", 23, 0),)), [b"-7"])[:7]
    '["-7","'
    """
    try:
        texts = tuple(text.decode() for text in last_row)
    except UnicodeDecodeError as wrong:
        raise BoundInvalid("a key column's text is not UTF-8") from wrong
    return write_bound(key, texts)


def write_bound(key: Key, bound: Bound) -> str:
    if not 0 < len(bound) <= len(key.columns):
        raise BoundInvalid(f"a bound has {len(bound)} parts, its key has {len(key.columns)} columns")
    return json.dumps([*bound, f"#{key.order}"], separators=(",", ":"))


def read_bound(key: Key, text: str) -> Bound | None:
    """The texts of a bound as JSON; None: no bound. Raises `BoundInvalid` and `OrderChanged`."""
    if not text:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise BoundInvalid("a bound is not JSON") from wrong
    if not isinstance(found, list) or not found or not all(isinstance(part, str) for part in found):
        raise BoundInvalid("a bound is not a list of texts")
    *texts, order = found
    if order != f"#{key.order}":
        raise OrderChanged
    if not 0 < len(texts) <= len(key.columns):
        raise BoundInvalid(f"a bound has {len(texts)} parts, its key has {len(key.columns)} columns")
    for text_ in texts:
        if "\0" in text_ or any("\ud800" <= sign <= "\udfff" for sign in text_):
            raise BoundInvalid("a bound has signs that no text of the server has")
    return tuple(texts)


def texts_of(key: Key, values: KeyValues) -> Bound:
    """A bound at values of the key's first columns.

    >>> texts_of(Key((KeyColumn("code", "bytea", 17, 0, kind=BINARY), KeyColumn("id", "int4", 23, 0))), ("00ff",))
    ('\\\\x00ff',)
    """
    return tuple(
        ("\\x" if kind == BINARY else "") + literal_of(kind, value)
        for kind, value in zip(key.kinds, values, strict=False)
    )


def values_of(key: Key, bound: Bound) -> KeyValues:
    """The same back, as many as the key has kinds. ValueError: one has none."""
    if len(bound) < len(key.kinds):
        raise ValueError("a bound of other columns")
    return tuple(
        value_of(kind, text.removeprefix("\\x") if kind == BINARY else text)
        for kind, text in zip(key.kinds, bound, strict=False)
    )
