"""Tables in memory as the agent lists and dumps them.

Comes in: a `MemoryDatabase`. Goes out: the cartography, plans of dumps, and rows. A chunk's rows are read some time
after its low watermark was, as at a server that others write to.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import pyarrow as pa
from menura.key_values import INTEGER, Key
from menura.v1 import catalog_pb2, snapshot_pb2

from agent.columnar.encode import SnapshotRows
from agent.positions import PositionKind
from agent.settings import SourceConfig
from agent.snapshot.cartography import SendTables
from agent.snapshot.plugin import Look
from agent.snapshot.reader import KeyMissing, TableMissing
from agent.snapshot.throttle import Load
from agent.table_positions import Table, name_message
from tests.memory_source.changes import fields_of, schema_id_of, values_of
from tests.memory_source.database import Column, MemoryDatabase, MemoryTable, Row
from tests.memory_source.positions import MemoryPosition, MemoryPositionKind

BATCH_ROWS = 50
#: that a row counts for
ROW_BYTES = 100
RANGES = 3
#: where a key's order would be told apart
ORDER = "#"
INTEGERS = ("c", "C", "s", "S", "i", "I", "l", "L")


@dataclass(frozen=True)
class MemoryCatalog:
    database: MemoryDatabase
    config: SourceConfig

    def preflight(self) -> tuple[str, Sequence[Exception]]:
        return f"tables of {self.config.address}", ()

    def look(self, known: object, send: SendTables) -> Look:
        with self.database.changed:
            tables = {table: found.columns for table, found in self.database.tables.items()}
        digest = frozenset(tables)
        if digest == known:
            return Look(digest, 0.0, None)
        cards = [
            catalog_pb2.TableCard(
                table=name_message(table),
                columns=[catalog_pb2.ColumnCard(name=one.name, column_type=one.type) for one in columns],
                keys=_keys(columns),
                denied=not self.config.filter.verdict(*table).allowed,
            )
            for table, columns in tables.items()
        ]
        send(catalog_pb2.Cartography(source=self.config.name, flavor="memory", read_at_us=1), cards)
        return Look(digest, 0.0, ())

    def open_reader(self, position_kind: PositionKind) -> "MemoryReader":
        assert position_kind is MemoryPositionKind.OFFSET
        return MemoryReader(self.database, self.config)


@dataclass(frozen=True)
class Rows:
    """In the order of the key, where there is one."""

    table: MemoryTable
    shown: list[Row]
    received: Callable[[int], None]
    sent: SourceConfig
    name: Table

    def __iter__(self) -> Iterator[SnapshotRows]:
        verdict = self.sent.filter.verdict(*self.name)
        columns = tuple(column for column in self.table.columns if not verdict.ignores(column.name))
        fields = fields_of(columns)
        for at in range(0, len(self.shown), BATCH_ROWS):
            rows = self.shown[at : at + BATCH_ROWS]
            self.received(ROW_BYTES * len(rows))
            values = zip(values_of(columns, rows), fields, strict=True)
            arrays = [pa.array(column, field.type) for column, field in values]
            yield SnapshotRows(
                len(rows), schema_id_of(columns), pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
            )

    @property
    def source_bytes(self) -> int:
        return ROW_BYTES * len(self.shown)

    @property
    def upper(self) -> str:
        return _bound(self.shown[-1], self.table.key) if self.shown and self.table.key else ""


def _keys(columns: Sequence[Column]) -> list[catalog_pb2.KeyCard]:
    names = [one.name for one in sorted(columns, key=lambda one: one.key) if one.key]
    return [catalog_pb2.KeyCard(name="key", unique=True, columns=names)] if names else []


def _bound(row: Row, key: Sequence[str]) -> str:
    return json.dumps([*(str(row[name]) for name in key), ORDER])


def _values(bound: str) -> tuple[Any, ...]:
    return tuple(map(_comparable, json.loads(bound)[:-1]))


def _comparable(value: object) -> int | str:
    try:
        return int(str(value))
    except ValueError:
        return str(value)


class MemoryReader:
    """The first columns of keys are numbers."""

    position_kind = MemoryPositionKind.OFFSET
    started = 0.0
    used: object | None = None

    def __init__(self, database: MemoryDatabase, config: SourceConfig) -> None:
        self._database = database
        self._config = config
        self._whole: MemoryTable | None = None

    def read_load(self) -> Callable[[], Load]:
        return lambda: Load(0)

    def plan(self, order: snapshot_pb2.DumpOrder, *, looks_at_rows: bool, is_repeated: bool) -> snapshot_pb2.DumpPlan:
        del looks_at_rows
        found, _ = self._copy((order.table.database, order.table.table))
        plan = snapshot_pb2.DumpPlan(dump=order.dump, key=found.key, estimated_rows=len(found.rows))
        if found.key and not self.key_kinds((order.table.database, order.table.table), found.key):
            plan.ranges.add()
        elif found.key:
            bounds = [_bound(row, found.key) for row in _sorted(found)][:: max(1, len(found.rows) // RANGES)][1:RANGES]
            for number, (lower, upper) in enumerate(zip(["", *bounds], [*bounds, ""], strict=True)):
                plan.ranges.add(number=number, lower=lower, upper=upper)
        return plan

    def key_kinds(self, table: Table, key: tuple[str, ...]) -> tuple[str, ...]:
        found, _ = self._copy(table)
        formats = {column.name: column.arrow_format for column in found.columns}
        return tuple(INTEGER for _ in takewhile(lambda name: formats[name] in INTEGERS, key))

    def bounds(self, table: Table, key: tuple[str, ...], values: Sequence[Key]) -> list[str]:
        return [_bound(dict(zip(key, each, strict=False)), key[: len(each)]) if each else "" for each in values]

    def values(self, table: Table, key: tuple[str, ...], bound: str) -> Key:
        return tuple(int(text) for text in json.loads(bound)[: len(self.key_kinds(table, key))])

    def above(self, table: Table) -> frozenset[Table]:
        del table
        return frozenset()

    @contextmanager
    def chunk(self, table: Table) -> Iterator[MemoryPosition]:
        del table
        yield self.high()

    def read_chunk(
        self, table: Table, key: tuple[str, ...], lower: str, upper: str, limit: int, received: Callable[[int], None]
    ) -> Rows:
        found, _ = self._copy(table)
        if found.key != key:
            raise KeyMissing
        above, up_to = (_values(bound) if bound else () for bound in (lower, upper))
        rows = [
            row
            for row in _sorted(found)
            if (not above or _key_of(row, key)[: len(above)] > above)
            and (not up_to or _key_of(row, key)[: len(up_to)] <= up_to)
        ]
        return Rows(found, rows[:limit], received, self._config, table)

    @contextmanager
    def snapshot(self, table: Table) -> Iterator[MemoryPosition]:
        self._whole, offset = self._copy(table)
        yield MemoryPosition(self._database.log_name, offset)

    def read_table(self, table: Table, received: Callable[[int], None]) -> Rows:
        assert self._whole is not None
        return Rows(self._whole, self._whole.rows, received, self._config, table)

    def high(self) -> MemoryPosition:
        return MemoryPosition(*self._database.end())

    def in_the_log(self, position: MemoryPosition) -> MemoryPosition:
        return position

    def interrupt(self) -> None: ...

    def end_on_server(self) -> None: ...

    def close(self) -> None: ...

    def _copy(self, table: Table) -> tuple[MemoryTable, int]:
        found = self._database.copy(table)
        if found is None:
            raise TableMissing
        self.used = found[0].columns
        return found


def _key_of(row: Row, key: Sequence[str]) -> tuple[Any, ...]:
    return tuple(_comparable(row[name]) for name in key)


def _sorted(table: MemoryTable) -> list[Row]:
    return sorted(table.rows, key=lambda row: _key_of(row, table.key))
