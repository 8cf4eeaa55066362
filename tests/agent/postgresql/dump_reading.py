"""Tables read as a dump's worker reads them."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
from menura.v1 import config_pb2, snapshot_pb2

from agent.runtime.state import SourceState
from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.known_definitions import KnownDefinitions
from agent.sources.postgresql.positions import WalPosition, WalPositionKind
from agent.sources.postgresql.seen_transactions import SeenTransactions
from agent.sources.postgresql.server.definitions import TableDefinition
from agent.sources.postgresql.snapshot.reading import PostgresqlTableReader, TableRows
from agent.table_positions import Table
from tests.agent.postgresql.logged import SLOT

Rows = list[dict[str, Any]]


@contextmanager
def reader_of(config: PostgresqlConfig, seen: SeenTransactions) -> Iterator[PostgresqlTableReader]:
    opened = PostgresqlTableReader.open(config, SLOT, seen, _AllTold(), SourceState(config), WalPositionKind.LSN)
    with closing(opened) as reader:
        yield reader


class _AllTold(KnownDefinitions):
    """The stream has always told how tables look now."""

    def is_told(self, definition: TableDefinition) -> bool:
        del definition
        return True


def order(table: Table) -> snapshot_pb2.DumpOrder:
    return snapshot_pb2.DumpOrder(dump="d", table=config_pb2.TableName(database=table[0], table=table[1]))


def plan_of(reader: PostgresqlTableReader, table: Table, **more: bool) -> snapshot_pb2.DumpPlan:
    return reader.plan(order(table), **{"looks_at_rows": True, "is_repeated": False, **more})


def rows_of(rows: TableRows) -> Rows:
    return [row for batch in rows for row in pa.record_batch(batch.columns).to_pylist()]


def chunk(
    reader: PostgresqlTableReader,
    table: Table,
    key: tuple[str, ...],
    size: int,
    lower: str = "",
    upper: str = "",
    before: Callable[[], None] = lambda: None,
) -> tuple[Rows, str, WalPosition, WalPosition]:
    """Its rows, its upper bound, low and high; `before` is called when the snapshot is taken and nothing is read."""
    with reader.chunk(table) as low:
        before()
        rows = reader.read_chunk(table, key, lower, upper, size, lambda _: None)
        found = rows_of(rows)
        return found, rows.upper, low, reader.high()


def walk(
    reader: PostgresqlTableReader, table: Table, key: tuple[str, ...], size: int, lower: str = "", upper: str = ""
) -> Rows:
    """All rows between, by chunks."""
    found: Rows = []
    while True:
        rows, last, _, _ = chunk(reader, table, key, size, lower, upper)
        found += rows
        if len(rows) < size:
            return found
        lower = last


def whole(
    reader: PostgresqlTableReader, table: Table, before: Callable[[], None] = lambda: None
) -> tuple[Rows, WalPosition]:
    with reader.snapshot(table) as shown:
        before()
        return rows_of(reader.read_table(table, lambda _: None)), shown
