"""How tables look where the stream is, for dumps: what they read must not look otherwise than what the stream has told.

Comes in: from the stream, each table's definition as it tells it; from dumps, how a table looked in a snapshot at an
exact position. Goes out: whether a dump may go on with a table, and the definition with which a table begins that
begins there. Thread-safe. Nothing is durable.

The stream is told of a changed definition only with the next row, or by a look at the catalog. A chunk that is read
between would have columns that the stream has not told of yet, and earlier chunks would be changed by an event that
comes after them.
"""

import threading
from collections.abc import Callable

from agent.sources.postgresql.positions import WalPosition
from agent.sources.postgresql.server.definitions import TableDefinition
from agent.table_positions import Table

#: of tables that were read whole and have not begun
MOST_SNAPSHOTS = 10_000


class KnownDefinitions:
    """Of one source."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: None: the table is not there
        self._told: dict[Table, TableDefinition | None] = {}
        self._snapshots: dict[Table, tuple[WalPosition, TableDefinition]] = {}
        #: has the catalog looked at soon; from any thread
        self.look_soon: Callable[[], None] = lambda: None
        #: whether a table's column stays on this host: it need not be published then, and is not told
        self.ignores: Callable[[Table, str], bool] = lambda table, column: False

    # --- the stream's side

    def are(self, told: dict[Table, TableDefinition | None]) -> None:
        """A stream begins, with these tables."""
        with self._lock:
            self._told = dict(told)

    def tell(self, table: Table, definition: TableDefinition | None) -> None:
        """From here on the table looks so."""
        with self._lock:
            self._told[table] = definition

    def at(self, table: Table, position: WalPosition) -> TableDefinition | None:
        """How the table looked in the dump's snapshot with which it begins; None: that is not known."""
        with self._lock:
            found = self._snapshots.get(table)
        return found[1] if found is not None and found[0] == position else None

    # --- the dumps' side

    def read_whole(self, table: Table, position: WalPosition, definition: TableDefinition) -> None:
        """A dump has read the table in a snapshot that shows exactly what is in `position`."""
        with self._lock:
            self._snapshots.pop(table, None)
            self._snapshots[table] = (position, definition)
            while len(self._snapshots) > MOST_SNAPSHOTS:
                del self._snapshots[next(iter(self._snapshots))]

    def is_told(self, definition: TableDefinition) -> bool:
        """Whether the stream has told the table's columns and key as they are; else it is to look soon."""
        with self._lock:
            told = self._told.get(definition.table)
        if told is not None and self._columns(told) == self._columns(definition):
            return True
        self.look_soon()
        return False

    def _columns(self, definition: TableDefinition) -> tuple[object, ...]:
        columns = [
            (one.number, one.name, one.type, one.type_oid, one.modifier)
            for one in definition.sent
            if not self.ignores(definition.table, one.name)
        ]
        return definition.oid, definition.key, columns
