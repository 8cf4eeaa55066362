"""A log in memory as the agent reads it.

Comes in: a Replicate, and transactions of a `MemoryDatabase`. Goes out, by `agent.capture`: the start cut, batches and
cuts. Nothing is durable.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from menura.change_batch import (
    METADATA_KEY,
    METADATA_SOURCE_TYPE,
    UNREPRESENTABLE,
    WIRE_ROW_COLUMNS,
    WIRE_TRANSACTION_COLUMNS,
    ChangeType,
    landed_column,
)
from menura.schema import schema_id
from menura.types import ARROW_TYPES
from menura.v1 import changes_pb2, config_pb2

from agent.capture.cuts import Cuts, CutSettings
from agent.capture.source import Oldest, Reason
from agent.capture.stale_tables import StaleTables
from agent.capture.starts import begin_dumps, resolve
from agent.capture.task import Task, TaskSink
from agent.errors import PositionInvalid, PositionPurged, SourceRebuilt
from agent.positions import PositionSyntaxError
from agent.runtime.credit import Credit
from agent.runtime.state import READING, SourceState
from agent.settings import SourceConfig
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.table_positions import Table, TablePositions, name_message
from tests.memory_source.database import Change, Column, Definition, MemoryDatabase, Row, Transaction
from tests.memory_source.positions import MemoryPosition, MemoryPositionKind, from_proto, parse

DOING = "reading the log"
_Kind = changes_pb2.TableEvent


def fields_of(columns: tuple[Column, ...]) -> list[pa.Field]:
    """The table's own fields and `_unrepresentable`, as they travel."""
    fields = []
    for column in columns:
        facts = {METADATA_SOURCE_TYPE: column.type} | ({METADATA_KEY: str(column.key)} if column.key else {})
        fields.append(pa.field(landed_column(column.name), _arrow(column.arrow_format), metadata=facts))
    return [*fields, pa.field(UNREPRESENTABLE, pa.utf8())]


def values_of(columns: tuple[Column, ...], rows: list[Row]) -> list[list[object]]:
    """By column, as `fields_of` has them."""
    return [*([row[column.name] for row in rows] for column in columns), [None] * len(rows)]


def schema_id_of(columns: tuple[Column, ...]) -> str:
    return schema_id((landed_column(column.name), column.type, column.key, "") for column in columns)


def _arrow(format_: str) -> pa.DataType:
    name, *takes = ARROW_TYPES[format_]
    return getattr(pa, name)(*takes)


@dataclass(frozen=True)
class Plan:
    database: str
    table: str
    columns: tuple[Column, ...]

    @property
    def schema_id(self) -> str:
        return schema_id_of(self.columns)


@dataclass
class Collected:
    """Rows of one table in one form; a `TableBatch`."""

    plan: Plan
    changed: list[Row] = field(default_factory=list)
    #: change type, number, place in `seen`
    heads: list[tuple[int, int, int]] = field(default_factory=list)
    #: transactions: number, commit time, position
    seen: list[tuple[int, int, str]] = field(default_factory=list)

    def add(self, transaction: tuple[int, int, str], kind: ChangeType, gsn: int, row: Row) -> None:
        if self.seen[-1:] != [transaction]:
            self.seen.append(transaction)
        self.heads.append((kind, gsn, len(self.seen) - 1))
        self.changed.append(row)

    @property
    def row_count(self) -> int:
        return len(self.heads)

    @property
    def first_gsn(self) -> int:
        return self.heads[0][1]

    @property
    def last_gsn(self) -> int:
        return self.heads[-1][1]

    @property
    def is_partial(self) -> bool:
        return False

    @property
    def rows(self) -> pa.RecordBatch:
        head = [pa.field(name, _arrow(format_), nullable=False) for name, format_ in WIRE_ROW_COLUMNS]
        return _batch(
            [*head, *fields_of(self.plan.columns)],
            [*map(list, zip(*self.heads, strict=True)), *values_of(self.plan.columns, self.changed)],
        )

    @property
    def transactions(self) -> pa.RecordBatch:
        head = [pa.field(name, _arrow(format_), nullable=False) for name, format_ in WIRE_TRANSACTION_COLUMNS]
        return _batch(head, [list(values) for values in zip(*self.seen, strict=True)])


def _batch(fields: list[pa.Field], values: list[list[object]]) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for field, column in zip(fields, values, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class MemoryDecoder:
    """Numbers transactions and rows, and collects rows by table and form."""

    stop_at_transaction_end = False

    def __init__(self, replicate: changes_pb2.Replicate) -> None:
        self.next_gsn, self.next_transaction_id = replicate.next_gsn, replicate.next_transaction_id
        self.rows = self.transactions = self.pending_rows = 0
        self._batches: dict[Plan, Collected] = {}
        self._times: list[int] = []

    @property
    def pending_bytes(self) -> int:
        return 100 * self.pending_rows

    def take_gsn(self) -> int:
        self.next_gsn += 1
        return self.next_gsn - 1

    def add(self, change: Change, columns: tuple[Column, ...], commit_us: int, position: str) -> None:
        batch = self._batches.setdefault(Plan(*change.table, columns), Collected(Plan(*change.table, columns)))
        if change.before is not None and change.after is not None:
            images = [(ChangeType.update_preimage, change.before), (ChangeType.update_postimage, change.after)]
        elif change.before is not None:
            images = [(ChangeType.delete, change.before)]
        else:
            assert change.after is not None
            images = [(ChangeType.insert, change.after)]
        for kind, row in images:
            batch.add((self.next_transaction_id, commit_us, position), kind, self.take_gsn(), row)
        self.rows += len(images)
        self.pending_rows += len(images)

    def finished(self, commit_us: int) -> None:
        """A transaction."""
        self.next_transaction_id += 1
        self.transactions += 1
        self._times.append(commit_us)

    def take_batches(self) -> list[Collected]:
        taken, self._batches, self.pending_rows = list(self._batches.values()), {}, 0
        return taken

    def take_times(self) -> tuple[int, int, int]:
        taken, self._times = self._times, []
        return len(taken), taken[0] if taken else 0, taken[-1] if taken else 0


@dataclass
class ReadPosition:
    """Behind the last transaction that was read."""

    position: MemoryPosition
    tell: Callable[[MemoryPosition, int], None]
    offset: int
    last_commit_us: int = 0
    published_at: float = 0.0

    def publish(self) -> None:
        self.position, self.published_at = MemoryPosition(self.position.log, self.offset), time.monotonic()
        self.tell(self.position, self.last_commit_us)


class MemoryLog:
    """The log when tables begin in it."""

    def __init__(self, database: MemoryDatabase, source: str) -> None:
        self._source = source
        self.name, self._end = database.end()
        self._first = database.first

    def end(self) -> MemoryPosition:
        return MemoryPosition(self.name, self._end)

    def oldest(self) -> Oldest[MemoryPosition]:
        missing = "the log's beginning was purged" if self._first else ""
        return Oldest(MemoryPosition(self.name, self._first), missing)

    def parse(self, text: str) -> MemoryPosition:
        try:
            return parse(text)
        except PositionSyntaxError as wrong:
            raise PositionInvalid(DOING, str(wrong), source=self._source) from wrong

    def check(self, position: MemoryPosition, *, was_read: bool = True) -> None:
        where = {"source": self._source, "position": str(position)}
        if position.log != self.name or (was_read and position.offset > self._end):
            raise SourceRebuilt(DOING, f"the log is {self.name} now, of {self._end} transactions", **where)
        if position.offset > self._end:
            raise PositionInvalid(DOING, f"the log ends at {self._end}", **where)
        if position.offset < self._first:
            raise PositionPurged(DOING, f"the log begins at {self._first}", **where)

    def after(self, position: MemoryPosition, why: Reason) -> MemoryPosition:
        del position
        return self.oldest().position if isinstance(why, PositionPurged) else self.end()

    def stored(self, position: changes_pb2.Position) -> MemoryPosition:
        try:
            return from_proto(position)
        except PositionSyntaxError as wrong:
            raise PositionInvalid(DOING, str(wrong), source=self._source) from wrong

    def place_of(self, position: changes_pb2.Position) -> MemoryPosition:
        return from_proto(position) if position.kind else MemoryPosition(self.name, 0)

    def offer(self, position: MemoryPosition) -> config_pb2.OtherServer:
        return config_pb2.OtherServer(
            identity=f"{self.name}/{position}",
            server=self.name,
            former_server=position.log,
            lake_position=str(position),
            oldest_position=str(self.oldest().position),
            end_position=str(self.end()),
            goes_on_at=str(self.end()),
        )


class MemoryChanges:
    """Of one source."""

    def __init__(
        self,
        database: MemoryDatabase,
        config: SourceConfig,
        state: SourceState,
        coordinator: SnapshotCoordinator,
        credit: Credit,
    ) -> None:
        self._database = database
        self._config = config
        self._state = state
        self._coordinator = coordinator
        self._credit = credit

    def preflight(self) -> str:
        self._state.seen("memory", "1")
        return f"log {self._config.address}"

    def watch(self, on_reset: Callable[[], None]) -> None:
        self._database.on_reset = on_reset

    def stop(self) -> None:
        self._database.on_reset = lambda: None

    def progressed(self) -> None: ...

    def interrupt(self) -> None:
        with self._database.changed:
            self._database.changed.notify_all()

    def read(self, task: Task) -> None:
        replicate = task.replicate
        log = MemoryLog(self._database, self._config.name)

        def accepts(position: MemoryPosition, _why: SourceRebuilt) -> bool:
            offered = log.offer(position)
            self._state.offers(offered)
            return replicate.accepted_server == offered.identity

        start_of = partial(self._coordinator.start_of, position_kind=MemoryPositionKind.OFFSET)
        starts = resolve(replicate, log, self._config, start_of, accepts)
        tables = TablePositions(starts.positions, log.end())
        committed = from_proto(replicate.position) if replicate.HasField("position") else None
        begin_dumps(self._coordinator, replicate, starts, MemoryPositionKind.OFFSET, committed)
        decoder = MemoryDecoder(replicate)
        sink = TaskSink(task, decoder, self._credit, self._state, tables)
        read = ReadPosition(tables.start, sink.position_is, tables.start.offset)
        stale = StaleTables(replicate.tables, starts.started)
        settings = CutSettings(replicate.next_cut, replicate.cut_interval_ms / 1000, replicate.cut_bytes, 60.0)
        cuts = Cuts(decoder, tables, read, sink, self._coordinator, stale, settings, time.monotonic)
        if starts.positions or starts.stopped:
            cuts.begin(starts)
            cuts.end(starts.started)
            sink.tables_are(starts.stopped)
        task.stream = self
        if not tables.synced():
            self._state.recovered(READING)
            return
        while True:
            found = self._database.after(read.offset, cuts.wait_seconds(), task.cancelled.is_set)
            sink.received(len(found))
            if self._database.log_name != log.name:
                raise SourceRebuilt(DOING, f"the log is {self._database.log_name} now", source=self._config.name)
            for transaction in found:
                self._transaction(transaction, read, decoder, tables, cuts)
                _end_if_due(read, tables, cuts, sink)
            self._state.end_is(MemoryPosition(*self._database.end()))
            _end_if_due(read, tables, cuts, sink)

    def _transaction(
        self,
        transaction: Transaction,
        read: ReadPosition,
        decoder: MemoryDecoder,
        tables: TablePositions[MemoryPosition],
        cuts: Cuts,
    ) -> None:
        skipped = tables.skipped(lambda position: position.offset > read.offset)
        name = f"{read.position.log}:{read.offset}"
        for change in transaction.changes:
            if not tables.is_synced(change.table) or change.table in skipped:
                continue
            columns = self._sent(change.table, change.columns)
            if isinstance(change, Change):
                decoder.add(change, columns, transaction.commit_us, name)
            else:
                cuts.add_event(_event(change, columns, decoder, transaction.commit_us, name))
        decoder.finished(transaction.commit_us)
        read.offset += 1

    def _sent(self, table: Table, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        verdict = self._config.filter.verdict(*table)
        return tuple(column for column in columns if not verdict.ignores(column.name))


def _end_if_due(read: ReadPosition, tables: TablePositions[MemoryPosition], cuts: Cuts, sink: TaskSink) -> None:
    if cuts.is_due():
        cuts.send_batches()
        read.publish()
        if tables.passed(read.position):
            sink.tables_are(())
        cuts.end()


def _event(
    change: Definition, columns: tuple[Column, ...], decoder: MemoryDecoder, commit_us: int, position: str
) -> changes_pb2.TableEvent:
    return changes_pb2.TableEvent(
        table=name_message(change.table),
        kind=change.kind,
        gsn=decoder.take_gsn(),
        transaction_id=decoder.next_transaction_id,
        commit_timestamp_us=commit_us,
        position=position,
        statement=_Kind.Kind.Name(change.kind),
        removes_rows=change.kind in (_Kind.CREATED, _Kind.TRUNCATED, _Kind.DROPPED),
        columns=[
            changes_pb2.ColumnAfter(
                name=column.name,
                source_type=column.type,
                arrow_format=column.arrow_format,
                key=column.key,
                **(_earlier_rows(column) if column.name in change.added else {}),
            )
            for column in columns
        ],
    )


def _earlier_rows(column: Column) -> dict[str, Any]:
    """What a new column's earlier rows hold, as `ColumnAfter` takes it."""
    if column.earlier is None:
        return {"is_null": True}
    return {"text": str(column.earlier).lower() if isinstance(column.earlier, bool) else str(column.earlier)}
