"""The binlog decoder: bytes of the replication connection in, column buffers out; it knows no socket.

`decode` runs without the GIL over all that was received (`events`) and returns for what Python must decide.
Nothing is durable here; what was not yet taken is lost with the decoder and read again.
"""

from enum import IntEnum

from cpython.buffer cimport PyBUF_WRITE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from agent.columnar cimport arrow as exported
from agent.sources.mysql.native cimport plan as compiled
from agent.columnar.arrow cimport CollectedRows, take_spare
from agent.columnar.batch cimport FIRST_ROWS, Batch, batch_bytes, begin_batch, drop_rows_from, fill_absent
from agent.columnar.column cimport release
from agent.sources.mysql.native.events cimport EventReader
from agent.sources.mysql.native.images cimport has_bit
from agent.sources.mysql.native.packets cimport make_room, shrink
from agent.sources.mysql.native.row_events cimport FAILED
from agent.sources.mysql.native.tables cimport Table, clear_tables, put_table
from agent.sources.mysql.native.transactions cimport (
    ANNOUNCED, MOST_FILE_BYTES, OPEN, OUTSIDE, name_position, print_uuid
)

from menura.change_batch import WIRE_TRANSACTION_COLUMNS

from agent.columnar.arrow import field
from agent.sources.mysql.native.events import Event
from agent.sources.mysql.native.plan import FollowedTable, PlannedColumn, TablePlan, UnsupportedColumn

__all__ = [
    "AnnotationMissing", "BinlogDecoder", "DecodeError", "Event", "FollowedTable", "GeneratedMissing", "PlannedColumn",
    "Reason", "RowsMissing", "TableBatch", "TablePlan", "UnsupportedColumn",
]


class Reason(IntEnum):
    """Why `BinlogDecoder.decode` returned."""

    NEED_BYTES = 0
    EVENT = 1
    BATCH_FULL = 2
    TRANSACTION_END = 3
    TRANSACTION_BEGIN = 4
    ERROR_PACKET = 5
    END_OF_STREAM = 6
    INJECTED = 7


cdef tuple REASONS = tuple(Reason)
cdef list TRANSACTION_FIELDS = [field(name, format_, False) for name, format_ in WIRE_TRANSACTION_COLUMNS]


class DecodeError(Exception):
    """Bytes that can't be read; where is in the attributes, -1 for none. The message holds no value."""

    def __init__(self, message, event_type=-1, log_pos=-1, table_id=-1, column=-1):
        super().__init__(message)
        self.event_type = event_type
        self.log_pos = log_pos
        self.table_id = table_id
        self.column = column


class AnnotationMissing(DecodeError):
    """Rows that can be read only beside the text of their statement, which this stream was not asked for."""


class RowsMissing(DecodeError):
    """Rows of the table may have changed without a row event."""


class GeneratedMissing(DecodeError):
    """An update without the new values of generated columns: the message names them."""

    columns = ()


cdef class TableBatch:
    """Rows of one plan; both parts follow the Arrow PyCapsule protocol."""

    cdef readonly compiled.TablePlan plan
    cdef readonly int64_t row_count
    cdef readonly int64_t first_gsn
    cdef readonly int64_t last_gsn
    cdef readonly bint is_partial
    cdef readonly exported.ArrowColumns rows
    cdef readonly exported.ArrowColumns transactions


cdef class BinlogDecoder(EventReader):
    """See decoder.pyi for what each member does."""

    def __init__(
        self, *, bint mariadb, bint checksum, int64_t next_gsn, int64_t next_transaction_id, size_t batch_rows=65536,
        size_t pending_bytes=16 << 20
    ):
        self.mariadb = mariadb
        self.checksum = checksum
        self.gsn = next_gsn
        self.transaction_id = next_transaction_id
        self.batch_rows = batch_rows
        self.most_pending_bytes = pending_bytes
        self.kept = {}
        self.pending = []
        self.unchecked = []
        self.unchecked_plans = []
        self.statement = 1

    # --- receiving

    def writable(self):
        """Free space, at least 64 KiB, as a memoryview that is invalid after the next call."""
        if not make_room(&self.packets):
            raise DecodeError("an event larger than the server may send, or no memory for it")
        return PyMemoryView_FromMemory(
            <char*> self.packets.data + self.packets.end, self.packets.capacity - self.packets.end, PyBUF_WRITE
        )

    def received(self, size_t size):
        """So many bytes were written into `writable()`."""
        if size > self.packets.capacity - self.packets.end:
            raise ValueError("more bytes received than there was room for")
        self.packets.end += size

    def decode(self):
        """Decode what was received, up to the next thing that Python must decide; raises `DecodeError`."""
        cdef int step
        with nogil:
            step = self.run()
        if step == FAILED:
            raise self.failure()
        return REASONS[step]

    cdef object failure(self):
        where = ""
        _, plan, _ = self.kept.get(self.failed_table_id, (b"", None, None))
        if plan is not None:
            where = f"{plan.database}.{plan.table}: "
            if 0 <= self.failed_column < len(plan.columns):
                where = f"{plan.database}.{plan.table}, column {plan.columns[self.failed_column].column.name}: "
        why = (<bytes> self.row.failure).decode()
        kind = RowsMissing if self.are_rows_missing else DecodeError
        columns = ()
        if self.is_annotation_missing:
            kind = AnnotationMissing
        if self.lacks_generated != NULL:
            kind = GeneratedMissing
            columns = tuple([
                planned.column.name for place, planned in enumerate(plan.columns)
                if planned.computed and planned.sent and not has_bit(self.lacks_generated, place)
            ])
            why += ": " + ", ".join(columns)
        failure = kind(
            where + why, self.header.type, self.header.log_pos, self.failed_table_id, self.failed_column
        )
        if columns:
            failure.columns = columns
        return failure

    # --- what decode() stopped at

    @property
    def event(self):
        return self.last_event

    @property
    def error_packet(self):
        return self.last_error

    # --- events that are read later

    @property
    def kept_bytes(self):
        return self.kept_events.size

    def take_kept(self):
        """The events that were kept so far."""
        taken = PyBytes_FromStringAndSize(<const char*> self.kept_events.data, self.kept_events.size)
        release(&self.kept_events)
        return taken

    def inject(self, bytes events not None):
        """Read these events before anything further of the stream."""
        if self.injected.is_open or self.resume_at:
            raise ValueError("events in the middle of others")
        self.begin_unannounced()
        self.injected_bytes = events
        self.injected_at = <const uint8_t*> PyBytes_AS_STRING(events)
        self.injected.open_plain(self.header.type, 0, len(events))

    # --- tables

    def define_table(
        self, uint64_t table_id, bytes table_map_body not None, compiled.TablePlan plan,
        compiled.FollowedTable followed=None,
    ):
        """How the rows of a TABLE_MAP are read."""
        cdef Table* table = put_table(&self.tables, table_id)
        if table == NULL:
            raise MemoryError
        self.kept[table_id] = (table_map_body, plan, followed)
        table.body = <const uint8_t*> PyBytes_AS_STRING(table_map_body)
        table.body_size = len(table_map_body)
        table.plan = &plan.plan if plan is not None else NULL
        table.followed = &followed.changes if followed is not None else NULL
        table.statement = self.statement
        table.rows_statement = 0
        self.expect_rows(table)

    def forget_tables(self):
        """Table ids may be used anew."""
        clear_tables(&self.tables)
        self.kept.clear()

    # --- position

    def set_file(self, str name not None):
        encoded = name.encode("utf-8", "surrogateescape")
        if len(encoded) >= MOST_FILE_BYTES or b"\0" in encoded:
            raise ValueError("not the name of a log file")
        memset(self.file, 0, MOST_FILE_BYTES)
        memcpy(self.file, PyBytes_AS_STRING(encoded), len(encoded))
        self.end_offset = self.furthest_end = 0

    @property
    def gtid(self):
        if self.transaction.phase == OUTSIDE or not self.transaction.has_gtid:
            return ""
        name_position(&self.transaction, self.mariadb, self.file)
        return self.transaction.position[: self.transaction.position_size].decode()

    @property
    def transaction_position(self):
        if self.transaction.phase == OUTSIDE:
            return ""
        name_position(&self.transaction, self.mariadb, self.file)
        return self.transaction.position[: self.transaction.position_size].decode("utf-8", "surrogateescape")

    @property
    def commit_timestamp_us(self):
        return self.transaction.commit_timestamp_us

    @property
    def finished_statement_timestamp(self):
        return self.finished_statement

    @property
    def in_transaction(self):
        return self.transaction.phase != OUTSIDE

    @property
    def transaction_end_offset(self):
        return self.end_offset

    def transaction_finished(self):
        """The handed over event was a whole transaction; nothing where one is open, which ends by itself."""
        cdef int step
        if self.transaction.phase == OPEN:
            return
        self.begin_unannounced()
        step = self.end_transaction()
        if step == FAILED:
            raise self.failure()

    cdef void begin_unannounced(self):
        """Where no GTID has announced a transaction, the event at hand begins it."""
        if self.transaction.phase == OUTSIDE:
            self.start_transaction(0)
            self.transaction.phase = ANNOUNCED

    def transaction_rolled_back(self):
        """The handed over event ends the open transaction as a COMMIT would."""
        if self.end_transaction() == FAILED:
            raise self.failure()

    def transaction_abandoned(self):
        """The transaction has no end in the log."""
        self.forget_transaction()

    @property
    def transaction_begin_offset(self):
        return self.transaction.begin

    @property
    def transaction_first_gsn(self):
        return self.transaction.first_gsn if self.transaction.phase != OUTSIDE else self.gsn

    def drop_rows(self, int64_t first_gsn):
        """Forget the rows from this number on; False where some of them were taken, and then none is forgotten."""
        cdef size_t dropped, before
        if first_gsn < self.taken_gsn or self.resume_at:
            return first_gsn == self.gsn
        for plan in self.pending:
            batch = &(<compiled.TablePlan> plan).plan.batch
            before = batch_bytes(batch)
            dropped = drop_rows_from(batch, first_gsn)
            self.pending_size += batch_bytes(batch) - before
            self.pending_row_count -= dropped
            self.row_count -= dropped
        self.drop_unchecked(first_gsn)
        self.gsn = first_gsn
        return True

    cdef void drop_unchecked(self, int64_t first_gsn):
        """Rows from this number on are forgotten: what was told of them is, and what ended among them goes on."""
        cdef compiled.TablePlan plan
        for plan in list(self.unchecked_plans):
            if plan.plan.unchecked_from >= first_gsn:
                plan.plan.unchecked_from = 0
                self.unchecked_plans.remove(plan)
        for plan, first, above in self.unchecked:
            if first < first_gsn <= above:
                plan.plan.unchecked_from = first
                self.unchecked_plans.append(plan)
        self.unchecked_count = len(self.unchecked_plans)
        self.unchecked = [found for found in self.unchecked if found[2] < first_gsn]

    def take_gtids(self):
        cdef char uuid[40]
        cdef size_t i
        taken = []
        for i in range(self.runs.count):
            run = &self.runs.runs[i]
            if self.mariadb:
                origin = f"{run.origin.domain}-{run.origin.server}"
            else:
                origin = uuid[: print_uuid(run.origin.uuid, uuid)].decode()
                if run.origin.tag_size:
                    origin += ":" + run.origin.tag[: run.origin.tag_size].decode()
            taken.append((origin, run.first, run.last))
        self.runs.count = 0
        return taken

    # --- batches

    @property
    def pending_rows(self):
        return self.pending_row_count

    @property
    def pending_bytes(self):
        return self.pending_size

    def take_batches(self):
        """The rows so far, a batch per table version; the decoder begins new ones."""
        shrink(&self.packets)
        taken = [collect(plan, self.batch_rows) for plan in self.pending]
        self.pending.clear()
        self.pending_size = 0
        self.pending_row_count = 0
        self.taken_gsn = self.gsn
        return [batch for batch in taken if batch.row_count]

    @property
    def next_gsn(self):
        return self.gsn

    def take_gsn(self):
        """A row number for something that is no row."""
        self.gsn += 1
        self.taken_gsn = self.gsn
        return self.gsn - 1

    def take_unchecked(self):
        """Changes with foreign_key_checks=0 since the last call; each has taken a number of its own above its rows."""
        cdef compiled.TablePlan plan
        if self.unchecked_count:
            self.end_unchecked()
            self.taken_gsn = self.gsn
        taken = [(plan.database, plan.table, first, above) for plan, first, above in self.unchecked]
        self.unchecked.clear()
        return taken

    @property
    def next_transaction_id(self):
        return self.transaction_id

    # --- counters

    @property
    def rows(self):
        return self.row_count

    @property
    def transactions(self):
        return self.transaction_count

    def take_times(self):
        times = (self.timed_transactions, self.first_commit_us, self.last_commit_us)
        self.timed_transactions = self.first_commit_us = self.last_commit_us = 0
        return times


cdef TableBatch collect(compiled.TablePlan plan, size_t most_rows):
    """Move a plan's rows into a batch of their own."""
    cdef CollectedRows collected = CollectedRows.__new__(CollectedRows)
    cdef TableBatch batch = TableBatch.__new__(TableBatch)
    cdef Batch* rows = &collected.batch
    rows[0] = plan.plan.batch
    if rows.rows:
        plan.plan.taken_gsn = rows.last_gsn
    collected.spare = &plan.plan.spare
    collected.owner = plan
    plan.plan.is_pending = False
    if not take_spare(&plan.plan.batch, &plan.plan.spare):
        if not begin_batch(&plan.plan.batch, plan.plan.widths, plan.plan.batch_columns):
            raise MemoryError
    plan.plan.expected_rows = min(max(rows.rows, <size_t> FIRST_ROWS), most_rows)
    batch.plan = plan
    batch.row_count = rows.rows
    batch.first_gsn, batch.last_gsn = rows.first_gsn, rows.last_gsn
    batch.is_partial = rows.absent_rows > 0
    if batch.is_partial:
        if not fill_absent(rows, rows.rows):
            raise MemoryError
        batch.rows = arrow_columns(collected, True, plan.fields_with_absent)
    else:
        batch.rows = arrow_columns(collected, True, plan.fields)
    batch.transactions = arrow_columns(collected, False, TRANSACTION_FIELDS)
    return batch


cdef exported.ArrowColumns arrow_columns(CollectedRows collected, bint is_rows, list fields):
    cdef exported.ArrowColumns columns = exported.ArrowColumns.__new__(exported.ArrowColumns)
    columns.owner = collected
    columns.fields = fields
    columns.columns = collected.batch.columns if is_rows else collected.batch.transactions
    columns.length = collected.batch.rows if is_rows else collected.batch.transaction_count
    return columns
