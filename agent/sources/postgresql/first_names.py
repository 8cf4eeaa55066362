"""Under which name each table was first seen: the filter judges it by that one too, whatever it is called later.

Comes in: names of tables by their numbers, from looks at the catalog and from Relation messages. Goes out: `Origins`,
which the filter asks. No message tells of a rename or of SET SCHEMA, but a table keeps its number (oid) through both,
and a Relation message has the name of its place in the log.

A table is first seen by a look, or by a message before that. One that gets another name between two looks, and of which
no message came, counts under that. A number is forgotten when the stream has passed a look that lacks it.

Durable: one JSON file per source in the agent's state folder, written whole before what a look or a message has shown
is used. A kill leaves the former file or this one. Where the file is lost, or the database is another one, tables count
by their names of then.

::

    {"format": 1, "system": "7300...", "database": 16384, "tables": [[16385, "shop", "hidden"], ...]}
"""

import json
import logging
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from agent.filter import Filter
from agent.runtime.state_folder import make_state_folder, state_unusable, write_whole
from agent.sources.postgresql.server.connection import Connection, rows
from agent.sources.postgresql.server.definitions import NOT_SYSTEM
from agent.table_positions import Table

log = logging.getLogger("menura.filter")

FORMAT = 1
#: partitions too: one that is detached is a table
_NAMES = """
    SELECT of_class.oid::bigint, nspname, relname
    FROM pg_class AS of_class JOIN pg_namespace AS of_schema ON of_schema.oid = relnamespace
    WHERE relkind IN ('r', 'p') AND relpersistence <> 't' AND {where}
"""


def read_names(connection: Connection) -> dict[int, Table]:
    """Of all tables of the database, by number. Inside `server_errors`."""
    return {
        int(oid): (str(schema), str(name)) for oid, schema, name in rows(connection, _NAMES.format(where=NOT_SYSTEM))
    }


class FirstNames:
    """Of one source; of any thread. Where the filter keeps nothing back, nothing is asked, kept or written."""

    def __init__(self, folder: Path, source: str, filter_: Filter) -> None:
        self._folder = folder
        self._path = folder / f"{source}.names.json"
        self._source = source
        self._filter = filter_
        self._lock = threading.Lock()
        #: the server's identity and the database; None: the filter kept nothing back when the stream began. Another
        #: policy ends the stream.
        self._server: tuple[str, int] | None = None
        self._first: dict[int, Table] = {}
        #: of names that tables have where the stream is: by the last look that it has passed, and by its messages
        self._passed: dict[Table, Table] = {}
        self._told: dict[Table, Table] = {}

    def begin(self, connection: Connection, system: str, database: int) -> None:
        """A stream begins: names count as they are now. Raises `StateFolderUnusable`; inside `server_errors`."""
        if not self._filter.keeps_back:
            self._server = None
            return
        names = read_names(connection)
        with self._lock:
            if self._server != (system, database):
                self._server = (system, database)
                self._first = self._read()
            self._told = {}
            self._add(names)
            self._stand(names)

    def seen(self, connection: Connection) -> tuple[Mapping[int, Table], frozenset[int]]:
        """A look: all tables' names, and the numbers that are there no more. Tables that are new count under their
        names of now. Raises `StateFolderUnusable`; inside `server_errors`."""
        if self._server is None:
            return {}, frozenset()
        with self._lock:
            before = frozenset(self._first)
        names = read_names(connection)
        with self._lock:
            self._add(names)
        return names, before - names.keys()

    def came(self, oid: int, table: Table) -> None:
        """From here on the log has rows of this number under this name. Raises `StateFolderUnusable`."""
        if self._server is None:
            return
        with self._lock:
            self._add({oid: table})
            origin = self._first[oid]
            before = self._told.pop(table, None)
            if origin != table:
                self._told[table] = origin
            if before != self._told.get(table):
                self._tell()

    def passed(self, names: Mapping[int, Table], gone: Collection[int]) -> None:
        """The stream has passed a look that showed these names; `gone`: numbers that it lacked."""
        if self._server is None:
            return
        with self._lock:
            for oid in gone:
                self._first.pop(oid, None)
            if gone:
                self._write()
            self._stand(names)

    def is_renamed(self, table: Table) -> bool:
        """Whether what has the name, where the stream is, was first seen under another one."""
        return bool(self._filter.origins.of(table))

    # ---

    def _add(self, names: Mapping[int, Table]) -> None:
        new = {oid: table for oid, table in names.items() if oid not in self._first}
        if new:
            self._first |= new
            self._write()

    def _stand(self, names: Mapping[int, Table]) -> None:
        self._passed = {table: self._first[oid] for oid, table in names.items() if self._first[oid] != table}
        self._tell()

    def _tell(self) -> None:
        self._filter.origins.are(self._passed, self._told)

    def _read(self) -> dict[int, Table]:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as refused:
            raise state_unusable(self._path, refused.strerror or type(refused).__name__, self._source) from refused
        try:
            return self._decoded(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as broken:
            fields = {"source": self._source, "path": str(self._path), "found": type(broken).__name__}
            log.warning(
                "what is known of renamed tables can't be read: names count as they are", extra={"fields": fields}
            )
            return {}

    def _decoded(self, record: dict[str, Any]) -> dict[int, Table]:
        if record["format"] != FORMAT:
            raise ValueError(f"its format is {record['format']!r}")
        if (str(record["system"]), int(record["database"])) != self._server:
            return {}
        return {int(oid): (str(schema), str(name)) for oid, schema, name in record["tables"]}

    def _write(self) -> None:
        assert self._server is not None
        system, database = self._server
        tables = [[oid, *table] for oid, table in sorted(self._first.items())]
        record = {"format": FORMAT, "system": system, "database": database, "tables": tables}
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        make_state_folder(self._folder, self._source)
        try:
            write_whole(self._path, text)
        except OSError as refused:
            raise state_unusable(self._path, refused.strerror or type(refused).__name__, self._source) from refused
