"""A cache of rows by key in an SQLite file that follows the lake, as an example of a plug-in that counts exactly once.

Readers, in whatever process, ask `SELECT row FROM rows WHERE "table" = 'acme/shop/shop/orders' AND key = '{"id": 7}'`.
Rows and position are committed together, behind all transactions of a cut: readers see cuts, never half of one. A table
without a key has nothing to be asked by, and is left out.
"""

import json
import sqlite3
from collections.abc import Mapping

from spark_sink.plugins.plugin import Change, PluginError, Transaction, TransactionalPlugin, Values, without_values


class RowCache(TransactionalPlugin):
    """Its option `file` names the SQLite file."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if "file" not in options:
            raise PluginError("the option file is missing, which names the SQLite file")
        self._held = sqlite3.connect(options["file"], isolation_level=None)
        self._held.execute(
            'CREATE TABLE IF NOT EXISTS rows ("table", key, row, PRIMARY KEY ("table", key)) WITHOUT ROWID'
        )
        self._held.execute("CREATE TABLE IF NOT EXISTS position (id INTEGER PRIMARY KEY, text)")

    def position(self) -> str | None:
        self._held.rollback()
        found = self._held.execute("SELECT text FROM position").fetchone()
        return None if found is None else str(found[0])

    def begin(self, transaction: Transaction) -> None:
        if not self._held.in_transaction:
            self._held.execute("BEGIN IMMEDIATE")

    def insert(self, row: Values, change: Change) -> None:
        if change.unknown:
            raise PluginError(without_values(change))
        self._put(row, change)

    def _put(self, row: Values, change: Change) -> None:
        if change.key is not None:
            self._held.execute(
                "INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", (_name(change), _json(change.key), _json(row))
            )

    def update_after(self, row: Values, change: Change) -> None:
        if change.unknown:
            held = self._held.execute(
                'SELECT row FROM rows WHERE "table" = ? AND key = ?', (_name(change), _json(change.key or {}))
            ).fetchone()
            former = json.loads(held[0]) if held is not None else {}
            row = {name: former.get(name) if name in change.unknown else value for name, value in row.items()}
        self._put(row, change)

    def delete(self, row: Values, change: Change) -> None:
        if change.key is not None:
            self._held.execute('DELETE FROM rows WHERE "table" = ? AND key = ?', (_name(change), _json(change.key)))

    def truncate(self, change: Change) -> None:
        self._held.execute('DELETE FROM rows WHERE "table" = ?', (_name(change),))

    def checkpoint(self, position: str) -> None:
        self._held.execute("INSERT OR REPLACE INTO position VALUES (1, ?)", (position,))
        if self._held.in_transaction:
            self._held.execute("COMMIT")

    def close(self) -> None:
        self._held.close()


def _name(change: Change) -> str:
    table = change.table
    return "/".join((table.tenant, table.source, table.database, table.table))


def _json(values: Values) -> str:
    return json.dumps(values, default=_plain, sort_keys=True)


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
