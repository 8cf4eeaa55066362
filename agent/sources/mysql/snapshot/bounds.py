"""Bounds as they travel: with a digest of how the key orders rows, since an ALTER may change that in the middle.

Comes in: a bound of `statements`, a JSON array of texts. Goes out: the same with the digest behind it; and back, where
the digest is that of the present order: other keys would lie between the same bounds, and rows be skipped.
"""

import hashlib
import json
from typing import Any

from pymysql.connections import Connection

from agent.snapshot.reader import OrderChanged
from agent.sources.mysql.server.connection import rows
from agent.sources.mysql.snapshot.keys import Key
from agent.table_positions import Table

_COLUMNS = """
    SELECT column_name, column_type, collation_name FROM information_schema.columns
    WHERE table_schema = %s AND table_name = %s
"""


def order_of(connection: "Connection[Any]", table: Table, key: Key) -> str:
    """A digest of the types, collations and directions of the key's columns; inside `server_errors`."""
    found = {str(name).lower(): (str(type_), str(collation)) for name, type_, collation in _read(connection, table)}
    facts = [[column.name.lower(), column.descending, *found.get(column.name.lower(), ())] for column in key.columns]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:8]


def _read(connection: "Connection[Any]", table: Table) -> list[tuple[Any, ...]]:
    return [
        tuple(value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in row)
        for row in rows(connection, _COLUMNS, table)
    ]


def signed(bound: str, order: str) -> str:
    """
    >>> signed('["7"]', "ab12cd34"), signed("", "ab12cd34")
    ('["7","#ab12cd34"]', '')
    """
    return json.dumps([*json.loads(bound), f"#{order}"], separators=(",", ":")) if bound else ""


def unsigned(bound: str, order: str) -> str:
    """Raises `OrderChanged`, also for what is no bound.

    >>> unsigned('["7","#ab12cd34"]', "ab12cd34")
    '["7"]'
    """
    if not bound:
        return ""
    try:
        *texts, digest = json.loads(bound)
    except (ValueError, TypeError) as wrong:
        raise OrderChanged from wrong
    if digest != f"#{order}":
        raise OrderChanged
    return json.dumps(texts, separators=(",", ":"))
