"""The tasks of a dump: its plan, a chunk of a range, an unchunked snapshot, and the position at which it can end.

Comes in: a task and an `Access` to the server. Goes out: messages on the client's stream, and to `scheduler` what was
read.

A definition is read after the low watermark. Had an ALTER come between the two, its event in the stream has a number
above the chunk's, and the chunk does not count; so it does not matter which of both definitions was found.
"""

import time
from dataclasses import dataclass
from functools import partial

from menura.v1 import snapshot_pb2, stream_pb2

from agent.columnar.encode import SnapshotRows, encode_snapshot
from agent.filter import ignored_key
from agent.runtime.credit import Credit
from agent.runtime.state import SourceState
from agent.snapshot.chunk_size import ChunkSize
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.snapshot.failures import column_unsupported
from agent.snapshot.progress import ONLY_RANGE, Losses, SentChunk, SnapshotProgress
from agent.snapshot.reader import KeyMissing, NotYet, ServerEnds, TableMissing
from agent.snapshot.scheduler import SnapshotScheduler
from agent.snapshot.tasks import SnapshotTask, TaskKind
from agent.snapshot.throttles import Throttles
from agent.sources.mysql.ddl.derived import unsent
from agent.sources.mysql.ddl.model import TableDefinition, Unsure
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.server.connection import server_errors
from agent.sources.mysql.server.foreign_keys import followed_tables
from agent.sources.mysql.snapshot.access import Access
from agent.sources.mysql.snapshot.bounds import order_of, signed, unsigned
from agent.sources.mysql.snapshot.keys import Key, keys_of
from agent.sources.mysql.snapshot.load import load_reader
from agent.sources.mysql.snapshot.planning import plan_message
from agent.sources.mysql.snapshot.ranges import MOST_RANGES
from agent.sources.mysql.snapshot.results import ReadResult, RowsPlan, plan_for, read_rows
from agent.sources.mysql.snapshot.statements import bound_of, chunk_statement, unchunked_statement
from agent.sources.mysql.snapshot.transactional import is_versioned
from agent.table_positions import Table, name_message

DOING = "dumping a table"
BATCH_ROWS = 16_384
#: of the server, while the same rows are read: a third read could end it again
MOST_RESTARTS = 2
#: its clock and ours, and a wait for the answer
CLOCK_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """How a table is read while its definition and the order of its key are these."""

    definition: TableDefinition
    key: Key | None
    order: str
    rows: RowsPlan


class Reader:
    """Does tasks over one connection, in one thread. After any exception the connection is of no use."""

    def __init__(
        self,
        access: Access,
        coordinator: SnapshotCoordinator,
        scheduler: SnapshotScheduler,
        credit: Credit,
        throttles: Throttles,
        state: SourceState,
    ) -> None:
        self.access = access
        self._config = access.config
        self._coordinator = coordinator
        self._scheduler = scheduler
        self._credit = credit
        self._throttles = throttles
        self._load_reader = partial(load_reader, self._config, access.facts)
        self._state = state
        self._prepared: dict[Table, Prepared] = {}
        self._sizes: dict[str, ChunkSize] = {}
        #: of the task: how its table looked, how long it waited for credit
        self.used: TableDefinition | None = None
        self._credit_seconds = 0.0

    def do(self, task: SnapshotTask) -> None:
        """Raises what keeps it from being done."""
        self.used, self._credit_seconds = None, 0.0
        {
            TaskKind.PLAN: self._plan,
            TaskKind.CHUNK: self._chunk,
            TaskKind.UNCHUNKED: self._unchunked,
            TaskKind.END: self._end,
        }[task.kind](task)

    # --- tasks

    def _plan(self, task: SnapshotTask) -> None:
        progress, access = task.progress, self.access
        self._check_restarts(progress.losses, MOST_RESTARTS + 1)
        # a chunk that meets the same damage names its rows
        most_ranges = 1 if progress.losses.restarts else MOST_RANGES
        self._check_allowed(progress.table)
        definition = self.definition(progress.table)
        self._check_key(progress.table, definition)
        # A partial change that moves a row from a range not yet read into one that is would lack what no chunk brings.
        key = None if access.log.is_partial else next(iter(self._keys(progress.table, definition)), None)
        prepared = self._prepare(progress.table, definition, key)
        message = plan_message(access, progress.order, key, most_ranges, self._state)
        for part in message.ranges:
            part.lower, part.upper = signed(part.lower, prepared.order), signed(part.upper, prepared.order)
        task.writer.send(stream_pb2.StreamResponse(dump_plan=message))
        self._scheduler.planned(task, by_key=key is not None, above=self._above(progress.table))

    def _chunk(self, task: SnapshotTask) -> None:
        progress, part, access = task.progress, task.part, self.access
        assert part is not None
        self._check_allowed(progress.table)
        if not self._coordinator.is_streamed(progress.table):
            raise NotYet("the table's stream does not run")
        if not self._coordinator.has_watermark(progress.order.started_gsn):
            raise NotYet("no cut is committed since the stream began: the gateway is behind")
        self._check_restarts(part.losses, MOST_RESTARTS)
        throttle = self._throttles.of_task(task, self._load_reader)
        throttle.before_chunk()
        size = self._size_of(progress)
        allowed = throttle.most_rows(self._config.dump.chunk_seconds, size.row_bytes)
        most = max(1, int(min(size.rows, allowed)))
        limit = task.most_rows = part.narrowed(most)
        began = time.monotonic()
        with access.positions.chunk(progress.table) as low:
            gsn = self._watermark(task, low)
            prepared = self._for_key(progress.table, tuple(progress.order.plan.key))
            assert prepared.key is not None
            lower, upper = unsigned(part.cursor, prepared.order), unsigned(part.upper, prepared.order)
            statement = chunk_statement(progress.table, prepared.rows.expressions, prepared.key, lower, upper, limit)
            result = self._read(task, statement, prepared.rows)
            high = access.positions.high()
        seconds = time.monotonic() - began
        if limit == most:
            size.took(
                result.rows, result.source_bytes, max(0.0, seconds - throttle.held_seconds - self._credit_seconds)
            )
        is_last = result.rows < limit
        end = part.upper if is_last else signed(bound_of(prepared.key, result.last_row), prepared.order)
        sent = SentChunk(task.number, part.number, part.cursor, end, is_last, result.rows)
        message = _chunk_end(task, sent, result, low, seconds)
        if not self._scheduler.chunk_read(task, sent, gsn, access.in_the_log(high), message):
            self.give_up(task)

    def _unchunked(self, task: SnapshotTask) -> None:
        progress, access = task.progress, self.access
        assert task.part is not None
        self._check_allowed(progress.table)
        self._check_restarts(task.part.losses, MOST_RESTARTS)
        throttle = self._throttles.of_task(task, self._load_reader)
        throttle.before_chunk()
        began = time.monotonic()
        with access.positions.whole(progress.table) as shown:
            if not access.hold(progress.table):
                raise TableMissing
            prepared = self._prepare(progress.table, self.definition(progress.table), None)
            versioned = self._is_versioned(progress.table)
            statement = unchunked_statement(progress.table, prepared.rows.expressions, versioned=versioned)
            result = self._read(task, statement, prepared.rows)
        sent = SentChunk(task.number, ONLY_RANGE, "", "", True, result.rows)
        message = _chunk_end(task, sent, result, shown, time.monotonic() - began)
        if not self._scheduler.unchunked_read(task, sent, access.in_the_log(shown), message):
            self.give_up(task)

    def _end(self, task: SnapshotTask) -> None:
        if not self._coordinator.is_streamed(task.progress.table):
            raise NotYet("all is read, and the table's stream does not run")
        self._scheduler.all_read(task, self.access.in_the_log(self.access.positions.high()))

    def give_up(self, task: SnapshotTask) -> None:
        """The gateway forgets what came of the chunk."""
        if task.sent_batches:
            dropped = snapshot_pb2.ChunkDropped(dump=task.progress.dump, chunk=task.number)
            task.writer.send(stream_pb2.StreamResponse(chunk_dropped=dropped))

    def _check_restarts(self, losses: Losses, most: int) -> None:
        """A damaged page makes MySQL end itself: no dump may do that to a server again and again."""
        if losses.lost_on is not None and self.access.started > losses.lost_on + CLOCK_SECONDS:
            losses.restarts += 1
        losses.lost_on = None
        if losses.restarts >= most:
            raise ServerEnds

    # --- what they have in common

    def definition(self, table: Table) -> TableDefinition:
        """How the table looks now; raises `TableMissing`."""
        found = self.access.definition(table)
        if found is None:
            raise TableMissing
        if isinstance(found, Unsure):
            raise column_unsupported(self._config.name, table, found.why)
        self.used = found
        return found

    def _for_key(self, table: Table, names: tuple[str, ...]) -> Prepared:
        """Raises `KeyMissing` where the plan's key is none any more."""
        definition = self.definition(table)
        key = next((key for key in self._keys(table, definition) if key.names == names), None)
        if key is None:
            raise KeyMissing
        return self._prepare(table, definition, key)

    def _check_allowed(self, table: Table) -> None:
        """A rename may have brought other rows under the name."""
        if not self._config.filter.verdict(*table).allowed:
            raise self._config.filter.denial(self._config.name, *table)

    def _check_key(self, table: Table, definition: TableDefinition) -> None:
        verdict = unsent(self._config.filter, table, definition)
        for name in definition.primary_key:
            if verdict.ignores(name):
                raise ignored_key(self._config.name, table, name, DOING, "Nothing of it was dumped")

    def _keys(self, table: Table, definition: TableDefinition) -> list[Key]:
        """None for a table without a primary key: the lake knows its rows by their values, so no change of one can be
        told to come before or after a chunk. None for a versioned one: a chunk could end between versions of a row."""
        if not definition.primary_key or self._is_versioned(table):
            return []
        verdict = unsent(self._config.filter, table, definition)
        with server_errors(DOING, self._config.client, self._config.name, "SELECT"):
            return keys_of(self.access.connection, table, definition, verdict)

    def _above(self, table: Table) -> frozenset[Table]:
        """The tables whose rows have to be there before what the table's foreign keys do can be told."""
        if self.access.facts.logs_cascades:
            return frozenset()
        with server_errors(DOING, self._config.client, self._config.name, "SELECT"):
            return followed_tables(self.access.connection, table)

    def _is_versioned(self, table: Table) -> bool:
        with server_errors(DOING, self._config.client, self._config.name, "SELECT"):
            return self.access.facts.flavor == "mariadb" and is_versioned(self.access.connection, table)

    def _prepare(self, table: Table, definition: TableDefinition, key: Key | None) -> Prepared:
        """Made once for the same definition, of which the same is sent."""
        order = ""
        if key is not None:
            with server_errors(DOING, self._config.client, self._config.name, "SELECT"):
                order = order_of(self.access.connection, table, key)
        known = self._prepared.get(table)
        made_of = definition, key, order, unsent(self._config.filter, table, definition)
        if known is not None and (known.definition, known.key, known.order, known.rows.verdict) == made_of:
            return known
        key_columns = len(key.columns) if key is not None else 0
        mariadb = self.access.facts.flavor == "mariadb"
        plan = plan_for(self._config, table, definition, mariadb=mariadb, key_columns=key_columns)
        self._prepared = {table: Prepared(definition, key, order, plan)}
        return self._prepared[table]

    def _size_of(self, progress: SnapshotProgress) -> ChunkSize:
        """Of the dump that is being read; another one begins anew."""
        size = self._sizes.get(progress.dump)
        if size is None:
            plan = progress.order.plan
            row_bytes = plan.estimated_bytes // plan.estimated_rows if plan.estimated_rows else None
            settings = self._config.dump
            size = ChunkSize(settings.chunk_seconds, settings.max_chunk_rows, row_bytes or None)
            self._sizes = {progress.dump: size}
        return size

    def _watermark(self, task: SnapshotTask, low: BinlogPosition) -> int:
        """The number of a cut that the server is past; raises `NotYet`."""
        started = task.progress.order.started_gsn
        watermark = self._coordinator.watermark(task.progress.table, low, started)
        if watermark is not None:
            return watermark
        raise NotYet("the dump's server has not executed yet what the stream has committed: it lags behind")

    def _read(self, task: SnapshotTask, statement: str, plan: RowsPlan) -> ReadResult:
        def received(size: int) -> None:
            task.progress.meter.add(0, size)
            self._throttles.of_task(task, self._load_reader).received(size)

        reading = read_rows(self.access.connection, statement, plan, BATCH_ROWS, received)
        for rows in reading:
            self._send(task, rows)
            task.progress.meter.add(rows.row_count, 0)
            self._throttles.of_task(task, self._load_reader).rows(rows.row_count)
        return reading.result

    def _send(self, task: SnapshotTask, rows: SnapshotRows) -> None:
        encoded = encode_snapshot(rows)
        batch = snapshot_pb2.SnapshotBatch(
            dump=task.progress.dump,
            chunk=task.number,
            table=name_message(task.progress.table),
            schema_id=rows.schema_id,
            row_count=rows.row_count,
            rows_bytes=encoded.rows_bytes,
        )
        began = time.monotonic()
        task.sending_since_us = time.time_ns() // 1000
        self._credit.take(sum(map(len, encoded.rows)), task.cancelled)
        task.sent_batches += 1
        task.writer.send(stream_pb2.StreamResponse(snapshot_batch=batch), encoded.rows)
        task.sending_since_us = 0
        self._credit_seconds += time.monotonic() - began


def _chunk_end(
    task: SnapshotTask, sent: SentChunk, result: ReadResult, shown: BinlogPosition, seconds: float
) -> snapshot_pb2.ChunkEnd:
    return snapshot_pb2.ChunkEnd(
        dump=task.progress.dump,
        chunk=sent.number,
        table=name_message(task.progress.table),
        range=sent.range,
        lower=sent.lower,
        upper=sent.upper,
        last_of_range=sent.last_of_range,
        row_count=sent.rows,
        source_bytes=result.source_bytes,
        read_at_us=time.time_ns() // 1000 - int(seconds * 1_000_000),
        read_us=int(seconds * 1_000_000),
        position=str(shown),
    )
