"""A worker's tables, as `agent.snapshot.reader` asks for them.

Comes in: a table, and where its rows begin and end. Goes out: a plan, rows in the form that the stream gives them, and
what they show as positions of the log. Nothing is durable.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from menura.key_values import Key as KeyValues
from menura.v1 import snapshot_pb2

from agent.columnar.encode import SnapshotRows
from agent.positions import PositionKind
from agent.runtime.state import SourceState
from agent.snapshot.failures import column_unsupported
from agent.snapshot.reader import KeyMissing, OrderChanged, TableMissing
from agent.sources.mysql.config import MysqlConfig
from agent.sources.mysql.ddl.derived import unsent
from agent.sources.mysql.ddl.model import TableDefinition, Unsure
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind
from agent.sources.mysql.server.connection import server_errors
from agent.sources.mysql.server.foreign_keys import followed_tables
from agent.sources.mysql.snapshot.access import Access
from agent.sources.mysql.snapshot.bounds import order_of, signed, unsigned
from agent.sources.mysql.snapshot.keys import Key, keys_of
from agent.sources.mysql.snapshot.load import LoadReader, load_reader
from agent.sources.mysql.snapshot.planning import plan_message
from agent.sources.mysql.snapshot.ranges import MOST_RANGES
from agent.sources.mysql.snapshot.results import RowsPlan, RowsReading, plan_for, read_rows
from agent.sources.mysql.snapshot.statements import (
    as_json,
    bound_of,
    bound_texts,
    chunk_statement,
    texts_of,
    unchunked_statement,
    values_of,
)
from agent.sources.mysql.snapshot.transactional import is_versioned
from agent.table_positions import Table

DOING = "dumping a table"
BATCH_ROWS = 16_384


@dataclass(frozen=True, slots=True)
class Prepared:
    """How a table is read while its definition and the order of its key are these."""

    definition: TableDefinition
    key: Key | None
    order: str
    rows: RowsPlan


@dataclass(frozen=True, slots=True)
class TableRows:
    """Of a chunk, or of a whole table."""

    reading: RowsReading
    prepared: Prepared

    def __iter__(self) -> Iterator[SnapshotRows]:
        return iter(self.reading)

    @property
    def source_bytes(self) -> int:
        return self.reading.result.source_bytes

    @property
    def upper(self) -> str:
        key, result = self.prepared.key, self.reading.result
        return signed(bound_of(key, result.last_row), self.prepared.order) if key is not None and result.rows else ""


class MysqlTableReader:
    """Over one connection."""

    def __init__(self, access: Access, state: SourceState) -> None:
        self._access = access
        self._config: MysqlConfig = access.config
        self._state = state
        self._prepared: dict[Table, Prepared] = {}
        self.used: TableDefinition | None = None
        self.interrupt, self.end_on_server, self.close = access.interrupt, access.end_on_server, access.close
        self.high, self.in_the_log = access.positions.high, access.in_the_log

    @classmethod
    def open(cls, config: MysqlConfig, state: SourceState, position_kind: PositionKind) -> "MysqlTableReader":
        """Raises a `SourceError`, and `DumpServerUnrelated`."""
        return cls(Access.open(config, position_kind), state)

    @property
    def position_kind(self) -> BinlogPositionKind:
        return self._access.position_kind

    @property
    def started(self) -> float:
        return self._access.started

    def read_load(self) -> LoadReader:
        return load_reader(self._config, self._access.facts)

    def plan(self, order: snapshot_pb2.DumpOrder, *, looks_at_rows: bool, is_repeated: bool) -> snapshot_pb2.DumpPlan:
        """Raises `TableMissing`, `IgnoredKey` and a `SourceError`."""
        self.used = None
        table = (order.table.database, order.table.table)
        definition = self._definition(table)
        self._check_key(table, definition)
        partial = self._partial_rows(table, is_repeated=is_repeated)
        key = None if partial else next(iter(self._keys(table, definition)), None)
        prepared = self._prepare(table, definition, key)
        message = plan_message(self._access, order, key, partial, MOST_RANGES if looks_at_rows else 1, self._state)
        for part in message.ranges:
            part.lower, part.upper = signed(part.lower, prepared.order), signed(part.upper, prepared.order)
        return message

    def _partial_rows(self, table: Table, *, is_repeated: bool) -> str:
        """Why the table has to be read in one snapshot although it may have a key; '' where it has not.

        A partial change that moves a row from a range not yet read into one that is would lack what no chunk brings.
        Where only some sessions write partial rows, re-reads by chunks settle most tables, without a long transaction.
        """
        log = self._access.log
        if log.is_partial:
            return f"binlog_row_image is {log.row_image}"
        if is_repeated and self._state.is_partial(table):
            return "sessions change binlog_row_image, and re-reads by chunks did not make the table whole"
        return ""

    def key_kinds(self, table: Table, key: tuple[str, ...]) -> tuple[str, ...]:
        prepared = self._prepared.get(table)
        found = None if prepared is None else prepared.key
        return found.kinds if found is not None and found.names == key else ()

    def bounds(self, table: Table, key: tuple[str, ...], values: Sequence[KeyValues]) -> list[str]:
        """Raises what `read_chunk` does, and `OrderChanged` where the key has less kinds."""
        found, prepared = self._prepare_by(table, key)
        if any(len(each) > len(found.kinds) for each in values):
            raise OrderChanged
        return [signed(as_json(found, texts_of(found, each)), prepared.order) if each else "" for each in values]

    def values(self, table: Table, key: tuple[str, ...], bound: str) -> KeyValues:
        prepared = self._prepared.get(table)
        if prepared is None or prepared.key is None or prepared.key.names != key:
            raise ValueError("a bound of another key")
        texts = bound_texts(prepared.key, unsigned(bound, prepared.order))
        return values_of(prepared.key, texts) if texts is not None else ()

    def above(self, table: Table) -> frozenset[Table]:
        if self._access.facts.logs_cascades:
            return frozenset()
        with server_errors(DOING, self._config.client, self._config.name, "SELECT"):
            return followed_tables(self._access.connection, table)

    @contextmanager
    def chunk(self, table: Table) -> Iterator[BinlogPosition]:
        self.used = None
        with self._access.positions.chunk(table) as low:
            yield low

    def read_chunk(
        self, table: Table, key: tuple[str, ...], lower: str, upper: str, limit: int, received: Callable[[int], None]
    ) -> TableRows:
        """Raises `KeyMissing` and `OrderChanged` where it is not that key any more."""
        found, prepared = self._prepare_by(table, key)
        bounds = unsigned(lower, prepared.order), unsigned(upper, prepared.order)
        statement = chunk_statement(table, prepared.rows.expressions, found, *bounds, limit)
        return TableRows(self._read(statement, prepared.rows, received), prepared)

    @contextmanager
    def snapshot(self, table: Table) -> Iterator[BinlogPosition]:
        self.used = None
        with self._access.positions.whole(table) as shown:
            yield shown

    def read_table(self, table: Table, received: Callable[[int], None]) -> TableRows:
        if not self._access.hold(table):
            raise TableMissing
        prepared = self._prepare(table, self._definition(table), None)
        versioned = self._is_versioned(table)
        statement = unchunked_statement(table, prepared.rows.expressions, versioned=versioned)
        return TableRows(self._read(statement, prepared.rows, received), prepared)

    def _read(self, statement: str, plan: RowsPlan, received: Callable[[int], None]) -> RowsReading:
        return read_rows(self._access.connection, statement, plan, BATCH_ROWS, received)

    def _definition(self, table: Table) -> TableDefinition:
        """How the table looks now; raises `TableMissing`."""
        found = self._access.definition(table)
        if found is None:
            raise TableMissing
        if isinstance(found, Unsure):
            raise column_unsupported(self._config.name, table, found.why)
        self.used = found
        return found

    def _check_key(self, table: Table, definition: TableDefinition) -> None:
        verdict = unsent(self._config.filter, table, definition)
        for name in definition.primary_key:
            if verdict.ignores(name):
                undumped = "Nothing of it was dumped"
                raise self._config.filter.ignored_key(self._config.name, table, name, DOING, undumped)

    def _keys(self, table: Table, definition: TableDefinition) -> list[Key]:
        """None for a table without a primary key: the lake knows its rows by their values, so no change of one can be
        told to come before or after a chunk. None for a versioned one: a chunk could end between versions of a row."""
        if not definition.primary_key or self._is_versioned(table):
            return []
        verdict = unsent(self._config.filter, table, definition)
        with server_errors(DOING, self._config.client, self._config.name, "SELECT"):
            return keys_of(self._access.connection, table, definition, verdict)

    def _is_versioned(self, table: Table) -> bool:
        with server_errors(DOING, self._config.client, self._config.name, "SELECT"):
            return self._access.facts.flavor == "mariadb" and is_versioned(self._access.connection, table)

    def _prepare_by(self, table: Table, key: tuple[str, ...]) -> tuple[Key, Prepared]:
        """How it is read now by this key. Raises `TableMissing` and `KeyMissing`."""
        definition = self._definition(table)
        found = next((one for one in self._keys(table, definition) if one.names == key), None)
        if found is None:
            raise KeyMissing
        return found, self._prepare(table, definition, found)

    def _prepare(self, table: Table, definition: TableDefinition, key: Key | None) -> Prepared:
        """Made once for the same definition, of which the same is sent."""
        order = ""
        if key is not None:
            with server_errors(DOING, self._config.client, self._config.name, "SELECT"):
                order = order_of(self._access.connection, table, key)
        known = self._prepared.get(table)
        made_of = definition, key, order, unsent(self._config.filter, table, definition)
        if known is not None and (known.definition, known.key, known.order, known.rows.verdict) == made_of:
            return known
        key_columns = len(key.columns) if key is not None else 0
        mariadb = self._access.facts.flavor == "mariadb"
        plan = plan_for(self._config, table, definition, mariadb=mariadb, key_columns=key_columns)
        self._prepared = {table: Prepared(definition, key, order, plan)}
        return self._prepared[table]
