"""Which column lists of the publication this agent has made: when the server is to filter no more, they alone go.

Comes in: numbers of `pg_publication_rel`; each list that is made anew has another one. Goes out: the same, when the
agent starts again. Durable: one JSON file per source in the agent's state folder, written before the transaction that
makes a list is committed. So a kill leaves a number that no list has, never a list whose number is not known. When the
file is lost, the lists count as somebody else's: they stay, and the log says so.

::

    {"format": 1, "lists": [16390]}
"""

import json
import logging
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

from agent.runtime.state_folder import make_state_folder, state_unusable, write_whole
from agent.sources.postgresql.server.connection import Connection, rows
from agent.table_positions import Table

log = logging.getLogger("menura.replicator")

FORMAT = 1
_THERE = "SELECT oid::bigint FROM pg_publication_rel WHERE oid = ANY (CAST(:numbers AS oid[]))"


class MadeLists:
    """Of one source; of any thread."""

    def __init__(self, folder: Path, source: str) -> None:
        self._folder = folder
        self._path = folder / f"{source}.lists.json"
        self._source = source
        self._lock = threading.Lock()
        #: None: not read yet
        self._numbers: frozenset[int] | None = None
        self._told: frozenset[Table] = frozenset()

    @property
    def numbers(self) -> frozenset[int]:
        """Raises `StateFolderUnusable`."""
        if self._numbers is None:
            self._numbers = self._read()
        return self._numbers

    def made(self, numbers: Collection[int]) -> None:
        """In a transaction that is not committed yet. Raises `StateFolderUnusable`."""
        with self._lock:
            self._keep(self.numbers.union(numbers))

    def forget_former(self, connection: Connection) -> None:
        """Those that are there no more, which no transaction of this session brings back. Inside `server_errors`."""
        with self._lock:
            if self.numbers:
                there = rows(connection, _THERE, numbers=sorted(self.numbers))
                self._keep(frozenset(int(number) for (number,) in there))

    def stay(self, tables: Collection[Table]) -> None:
        """Lists that are somebody else's, or that this user may not remove: the log says so, once."""
        found = frozenset(tables)
        if found and found != self._told:
            fields = {"source": self._source, "tables": ", ".join(sorted(map(".".join, found)))}
            log.warning(
                "the publication has column lists that this agent has not made or may not remove: they stay",
                extra={"fields": fields},
            )
        self._told = found

    def _read(self) -> frozenset[int]:
        try:
            return _decoded(json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return frozenset()
        except OSError as refused:
            raise state_unusable(self._path, refused.strerror or type(refused).__name__, self._source) from refused
        except (ValueError, KeyError, TypeError, RecursionError) as broken:
            fields = {"source": self._source, "path": str(self._path), "found": type(broken).__name__}
            log.warning("which column lists were made can't be read: they stay", extra={"fields": fields})
            return frozenset()

    def _keep(self, numbers: frozenset[int]) -> None:
        if numbers == self._numbers:
            return
        make_state_folder(self._folder, self._source)
        try:
            write_whole(self._path, json.dumps({"format": FORMAT, "lists": sorted(numbers)}).encode())
        except OSError as refused:
            raise state_unusable(self._path, refused.strerror or type(refused).__name__, self._source) from refused
        self._numbers = numbers


def _decoded(record: dict[str, Any]) -> frozenset[int]:
    if record["format"] != FORMAT:
        raise ValueError(f"its format is {record['format']!r}")
    return frozenset(int(number) for number in record["lists"])
