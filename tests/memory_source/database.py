"""Tables in memory, and the log of what was committed to them."""

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from menura.types import ARROW_TYPES
from menura.v1 import changes_pb2

Table = tuple[str, str]
Row = dict[str, object]
Key = tuple[object, ...]
#: by name
DATABASES: dict[str, "MemoryDatabase"] = {}

_Kind = changes_pb2.TableEvent


@dataclass(frozen=True)
class Column:
    name: str
    arrow_format: str
    #: place in the primary key from 1; 0 outside of it
    key: int = 0
    #: what rows of before hold where it is added to a table
    earlier: object = None

    @property
    def type(self) -> str:
        return ARROW_TYPES[self.arrow_format][0].removesuffix("_")


@dataclass(frozen=True)
class Change:
    """Of a row; an insert has no `before`, a delete no `after`."""

    table: Table
    before: Row | None
    after: Row | None
    #: of the table, when it was committed
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True)
class Definition:
    """A table is created, altered, emptied or dropped."""

    table: Table
    kind: changes_pb2.TableEvent.Kind
    columns: tuple[Column, ...] = ()
    #: names of those that the table did not have before
    added: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Transaction:
    changes: tuple[Change | Definition, ...]
    commit_us: int


@dataclass
class MemoryTable:
    columns: tuple[Column, ...]
    rows: list[Row] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, ...]:
        keyed = sorted((column for column in self.columns if column.key), key=lambda column: column.key)
        return tuple(column.name for column in keyed)


class MemoryDatabase:
    """Thread-safe."""

    def __init__(self, name: str) -> None:
        self.changed = threading.Condition()
        self.tables: dict[Table, MemoryTable] = {}
        #: another one: the log does not go on from the one before
        self.log_name = uuid.uuid4().hex[:8]
        self.log: list[Transaction] = []
        #: of the oldest transaction that the log still has
        self.first = 0
        self.on_reset: Callable[[], None] = lambda: None
        DATABASES[name] = self

    def commit(self, *changes: Change | Definition) -> None:
        """All of them, in one transaction; ValueError: a row of a table without it."""
        with self.changed:
            done = tuple(self._apply(change) for change in changes)
            self.log.append(Transaction(done, time.time_ns() // 1000))
            self.changed.notify_all()

    def _apply(self, change: Change | Definition) -> Change | Definition:
        if isinstance(change, Definition):
            return self._define(change)
        table = self.tables[change.table]
        if change.before is not None:
            table.rows.remove(change.before)
        if change.after is not None:
            table.rows.append(change.after)
        return Change(change.table, change.before, change.after, table.columns)

    def _define(self, change: Definition) -> Definition:
        if change.kind == _Kind.DROPPED:
            del self.tables[change.table]
        elif change.kind == _Kind.CREATED:
            self.tables[change.table] = MemoryTable(change.columns)
        elif change.kind == _Kind.TRUNCATED:
            self.tables[change.table].rows.clear()
            return Definition(change.table, change.kind, self.tables[change.table].columns)
        else:
            table = self.tables[change.table]
            held = {column.name: column.earlier for column in change.columns}
            added = held.keys() - {column.name for column in table.columns}
            table.rows = [{name: row.get(name, earlier) for name, earlier in held.items()} for row in table.rows]
            table.columns = change.columns
            return Definition(change.table, change.kind, change.columns, frozenset(added))
        return change

    def purge(self) -> None:
        """The log forgets all that it has."""
        with self.changed:
            self.first = len(self.log)
            self.changed.notify_all()

    def replace(self) -> None:
        """Another server, with the same tables and a log of its own."""
        with self.changed:
            self.log_name, self.log, self.first = uuid.uuid4().hex[:8], [], 0
            self.changed.notify_all()
        self.on_reset()

    def end(self) -> tuple[str, int]:
        with self.changed:
            return self.log_name, len(self.log)

    def after(self, offset: int, seconds: float, is_over: Callable[[], bool]) -> Sequence[Transaction]:
        """Transactions from this one on, waited for; none: there was none for so long, or it is over."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.log) > offset or is_over(), seconds)
            return self.log[offset:]

    def copy(self, table: Table) -> tuple[MemoryTable, int] | None:
        """The table as it is now, and the log's end."""
        with self.changed:
            found = self.tables.get(table)
            return (MemoryTable(found.columns, list(found.rows)), len(self.log)) if found is not None else None
