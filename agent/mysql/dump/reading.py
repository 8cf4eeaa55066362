"""The jobs of a dump: its plan, a chunk of a range, a whole table, and the position at which it can end.

Comes in: a job and an `Access` to the server. Goes out: messages on the client's stream, and to `orders` what was read.

A definition is read after the low watermark. Had an ALTER come between the two, its event in the stream has a number
above the chunk's, and the chunk does not count; so it does not matter which of both definitions was found.
"""

import time
from dataclasses import dataclass

from menura.change_batch import is_reserved
from menura.v1 import mysql_client_pb2, stream_pb2

from agent.batch import encode_snapshot
from agent.credit import Credit
from agent.errors import TableColumnReserved, TableColumnUnsupported, TableError
from agent.mysql.ddl.model import TableDefinition, Unsure
from agent.mysql.dump.access import Access
from agent.mysql.dump.bounds import order_of, signed, unsigned
from agent.mysql.dump.chunk_size import ChunkSize
from agent.mysql.dump.desk import Desk
from agent.mysql.dump.governing import Governing
from agent.mysql.dump.jobs import Job, Task
from agent.mysql.dump.keys import Key, keys_of
from agent.mysql.dump.orders import Orders
from agent.mysql.dump.planning import plan_message
from agent.mysql.dump.ranges import MOST_RANGES
from agent.mysql.dump.results import ReadResult, RowsPlan, SnapshotRows, plan_for, read_rows
from agent.mysql.dump.statements import bound_of, chunk_statement, whole_statement
from agent.mysql.dump.transactional import is_versioned
from agent.mysql.dump.work import WHOLE_RANGE, DumpWork, Losses, SentChunk
from agent.mysql.positions import Position
from agent.mysql.progress import Table, name_message
from agent.mysql.server.connection import server_errors
from agent.state import SourceState, denied

DOING = "dumping a table"
BATCH_ROWS = 16_384
#: of the server, while the same rows are read: a third read could end it again
MOST_RESTARTS = 2
#: its clock and ours, and a wait for the answer
CLOCK_SECONDS = 3.0


class NotYet(Exception):
    """The job has to wait; says for what."""


class TableMissing(Exception):
    """The server has no such table."""


class ServerEnds(Exception):
    """The server has ended each time that these rows were read, or the plan was made."""


class KeyMissing(Exception):
    """The table has no such key any more."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """How a table is read while its definition and the order of its key are these."""

    definition: TableDefinition
    key: Key | None
    order: str
    rows: RowsPlan


class Reader:
    """Does jobs over one connection, in one thread. After any exception the connection is of no use."""

    def __init__(
        self, access: Access, desk: Desk, orders: Orders, credit: Credit, governing: Governing, state: SourceState
    ) -> None:
        self.access = access
        self._config = access.config
        self._desk = desk
        self._orders = orders
        self._credit = credit
        self._governing = governing
        self._state = state
        self._prepared: dict[Table, Prepared] = {}
        self._sizes: dict[str, ChunkSize] = {}
        #: of the job: how its table looked, how long it waited for credit
        self.used: TableDefinition | None = None
        self._credit_seconds = 0.0

    def do(self, job: Job) -> None:
        """Raises what keeps it from being done."""
        self.used, self._credit_seconds = None, 0.0
        {Task.PLAN: self._plan, Task.CHUNK: self._chunk, Task.WHOLE: self._whole, Task.END: self._end}[job.task](job)

    # --- jobs

    def _plan(self, job: Job) -> None:
        work, access = job.work, self.access
        self._check_restarts(work.losses, MOST_RESTARTS + 1)
        # a chunk that meets the same damage names its rows
        most_ranges = 1 if work.losses.restarts else MOST_RANGES
        if not self._config.filter.verdict(*work.table).allowed:
            raise denied(self._config.name, *work.table)
        definition = self.definition(work.table)
        # A partial change that moves a row from a range not yet read into one that is would lack what no chunk brings.
        key = None if access.log.is_partial else next(iter(self._keys(work.table, definition)), None)
        prepared = self._prepare(work.table, definition, key)
        message = plan_message(access, work.order, key, most_ranges, self._state)
        for part in message.ranges:
            part.lower, part.upper = signed(part.lower, prepared.order), signed(part.upper, prepared.order)
        job.outlet.send(stream_pb2.StreamResponse(dump_plan=message))
        self._orders.planned(job, by_key=key is not None)

    def _chunk(self, job: Job) -> None:
        work, part, access = job.work, job.part, self.access
        assert part is not None
        if not self._desk.is_streamed(work.table):
            raise NotYet("the table's stream does not run")
        if not self._desk.has_floor(work.order.started_gsn):
            raise NotYet("no cut is committed since the stream began: the gateway is behind")
        self._check_restarts(part.losses, MOST_RESTARTS)
        share = self._governing.share(job, access.facts)
        share.before_chunk()
        size = self._size_of(work)
        allowed = share.most_rows(self._config.dump.chunk_seconds, size.row_bytes)
        most = max(1, int(min(size.rows, allowed)))
        limit = job.most_rows = part.narrowed(most)
        began = time.monotonic()
        with access.marks.chunk(work.table) as low:
            gsn = self._floor(job, low)
            prepared = self._for_key(work.table, tuple(work.order.plan.key))
            assert prepared.key is not None
            lower, upper = unsigned(part.cursor, prepared.order), unsigned(part.upper, prepared.order)
            statement = chunk_statement(work.table, prepared.rows.expressions, prepared.key, lower, upper, limit)
            result = self._read(job, statement, prepared.rows)
            high = access.marks.high()
        seconds = time.monotonic() - began
        if limit == most:
            size.took(result.rows, result.source_bytes, max(0.0, seconds - share.held_seconds - self._credit_seconds))
        is_last = result.rows < limit
        end = part.upper if is_last else signed(bound_of(prepared.key, result.last_row), prepared.order)
        sent = SentChunk(job.number, part.number, part.cursor, end, is_last, result.rows)
        message = _chunk_end(job, sent, result, low, seconds)
        if not self._orders.chunk_read(job, sent, gsn, access.in_the_log(high), message):
            self.give_up(job)

    def _whole(self, job: Job) -> None:
        work, access = job.work, self.access
        assert job.part is not None
        self._check_restarts(job.part.losses, MOST_RESTARTS)
        share = self._governing.share(job, access.facts)
        share.before_chunk()
        began = time.monotonic()
        with access.marks.whole(work.table) as shown:
            if not access.hold(work.table):
                raise TableMissing
            prepared = self._prepare(work.table, self.definition(work.table), None)
            versioned = self._is_versioned(work.table)
            statement = whole_statement(work.table, prepared.rows.expressions, versioned=versioned)
            result = self._read(job, statement, prepared.rows)
        sent = SentChunk(job.number, WHOLE_RANGE, "", "", True, result.rows)
        message = _chunk_end(job, sent, result, shown, time.monotonic() - began)
        if not self._orders.whole_read(job, sent, access.in_the_log(shown), message):
            self.give_up(job)

    def _end(self, job: Job) -> None:
        if not self._desk.is_streamed(job.work.table):
            raise NotYet("all is read, and the table's stream does not run")
        self._orders.all_read(job, self.access.in_the_log(self.access.marks.high()))

    def give_up(self, job: Job) -> None:
        """The gateway forgets what came of the chunk."""
        if job.sent_batches:
            dropped = mysql_client_pb2.ChunkDropped(dump=job.work.dump, chunk=job.number)
            job.outlet.send(stream_pb2.StreamResponse(chunk_dropped=dropped))

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
            raise self._unreadable(TableColumnUnsupported, table, found.why, "upgrade Menura, or ignore the column")
        self.used = found
        return found

    def _for_key(self, table: Table, names: tuple[str, ...]) -> Prepared:
        """Raises `KeyMissing` where the plan's key is none any more."""
        definition = self.definition(table)
        key = next((key for key in self._keys(table, definition) if key.names == names), None)
        if key is None:
            raise KeyMissing
        return self._prepare(table, definition, key)

    def _keys(self, table: Table, definition: TableDefinition) -> list[Key]:
        """None for a table without a primary key: the lake knows its rows by their values, so no change of one can be
        told to come before or after a chunk. None for a versioned one: a chunk could end between versions of a row."""
        if not definition.primary_key or self._is_versioned(table):
            return []
        verdict = self._config.filter.verdict(*table)
        with server_errors(DOING, self._config.client, self._config.name, "SELECT"):
            return keys_of(self.access.connection, table, definition, verdict)

    def _is_versioned(self, table: Table) -> bool:
        with server_errors(DOING, self._config.client, self._config.name, "SELECT"):
            return self.access.facts.flavor == "mariadb" and is_versioned(self.access.connection, table)

    def _prepare(self, table: Table, definition: TableDefinition, key: Key | None) -> Prepared:
        """Made once for the same definition."""
        order = ""
        if key is not None:
            with server_errors(DOING, self._config.client, self._config.name, "SELECT"):
                order = order_of(self.access.connection, table, key)
        known = self._prepared.get(table)
        if known is not None and (known.definition, known.key, known.order) == (definition, key, order):
            return known
        key_columns = len(key.columns) if key is not None else 0
        mariadb = self.access.facts.flavor == "mariadb"
        plan = plan_for(self._config, table, definition, mariadb=mariadb, key_columns=key_columns)
        for column in plan.columns:
            if is_reserved(column.name):
                found = f"the column name {column.name} is one of the lake's own"
                raise self._unreadable(TableColumnReserved, table, found, "Rename it on the server, or ignore it")
        self._prepared = {table: Prepared(definition, key, order, plan)}
        return self._prepared[table]

    def _unreadable(self, kind: type[TableError], table: Table, found: str, remedy: str) -> TableError:
        return kind(
            DOING,
            found,
            data="Nothing of it was dumped",
            remedy=f"{remedy} (sources.{self._config.name}.filter.{'.'.join(table)}.ignored_columns)",
            source=self._config.name,
            database=table[0],
            table=table[1],
        )

    def _size_of(self, work: DumpWork) -> ChunkSize:
        """Of the dump that is being read; another one begins anew."""
        size = self._sizes.get(work.dump)
        if size is None:
            plan = work.order.plan
            row_bytes = plan.estimated_bytes // plan.estimated_rows if plan.estimated_rows else None
            settings = self._config.dump
            size = ChunkSize(settings.chunk_seconds, settings.max_chunk_rows, row_bytes or None)
            self._sizes = {work.dump: size}
        return size

    def _floor(self, job: Job, low: Position) -> int:
        """The number of a cut that the server is past; raises `NotYet`."""
        started = job.work.order.started_gsn
        floor = self._desk.floor(job.work.table, low, started)
        if floor is not None:
            return floor
        raise NotYet("the dump's server has not executed yet what the stream has committed: it lags behind")

    def _read(self, job: Job, statement: str, plan: RowsPlan) -> ReadResult:
        def received(size: int) -> None:
            job.work.meter.add(0, size)
            self._governing.share(job, self.access.facts).received(size)

        reading = read_rows(self.access.connection, statement, plan, BATCH_ROWS, received)
        for rows in reading:
            self._send(job, rows)
            job.work.meter.add(rows.row_count, 0)
            self._governing.share(job, self.access.facts).rows(rows.row_count)
        return reading.result

    def _send(self, job: Job, rows: SnapshotRows) -> None:
        encoded = encode_snapshot(rows)
        batch = mysql_client_pb2.SnapshotBatch(
            dump=job.work.dump,
            chunk=job.number,
            table=name_message(job.work.table),
            schema_id=rows.schema_id,
            row_count=rows.row_count,
            rows=encoded.rows,
            rows_bytes=encoded.rows_bytes,
        )
        began = time.monotonic()
        job.sending_since_us = time.time_ns() // 1000
        self._credit.take(len(encoded.rows), job.cancelled)
        job.sent_batches += 1
        job.outlet.send(stream_pb2.StreamResponse(snapshot_batch=batch))
        job.sending_since_us = 0
        self._credit_seconds += time.monotonic() - began


def _chunk_end(
    job: Job, sent: SentChunk, result: ReadResult, shown: Position, seconds: float
) -> mysql_client_pb2.ChunkEnd:
    return mysql_client_pb2.ChunkEnd(
        dump=job.work.dump,
        chunk=sent.number,
        table=name_message(job.work.table),
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
