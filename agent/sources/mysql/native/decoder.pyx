"""The binlog decoder: bytes of the replication connection in, column buffers out; it knows no socket.

`decode` runs without the GIL over all that was received (`events`) and returns for what Python must decide.
Nothing is durable here; what was not yet taken is lost with the decoder and read again.
"""

from enum import IntEnum

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from agent.sources.mysql.native cimport plan as compiled
from agent.columnar.collector cimport RowCollector
from agent.columnar.column cimport release
from agent.columnar.received cimport free_space, take_in
from agent.sources.mysql.native.events cimport EventReader
from agent.sources.mysql.native.images cimport has_bit
from agent.sources.mysql.native.packets cimport make_room, shrink
from agent.sources.mysql.native.row_events cimport FAILED
from agent.sources.mysql.native.tables cimport Table, clear_tables, put_table
from agent.sources.mysql.native.transactions cimport (
    ANNOUNCED, MOST_FILE_BYTES, OPEN, OUTSIDE, name_position, print_uuid
)

from agent.columnar.collector import TableBatch
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


cdef class BinlogDecoder(EventReader):
    """See decoder.pyi for what each member does."""

    def __init__(
        self, *, bint mariadb, bint checksum, int64_t next_gsn, int64_t next_transaction_id, size_t batch_rows=65536,
        size_t pending_bytes=16 << 20
    ):
        self.mariadb = mariadb
        self.checksum = checksum
        self.collect_into(batch_rows, pending_bytes, next_gsn, next_transaction_id)
        self.kept = {}
        self.unchecked = []
        self.unchecked_plans = []
        self.statement = 1

    # --- receiving

    def writable(self):
        """Free space, at least 64 KiB, as a memoryview that is invalid after the next call."""
        if not make_room(&self.packets):
            raise DecodeError("an event larger than the server may send, or no memory for it")
        return free_space(&self.packets.held)

    def received(self, size_t size):
        """So many bytes were written into `writable()`."""
        take_in(&self.packets.held, size)

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
        if first_gsn < self.taken_gsn or self.resume_at:
            return first_gsn == self.gsn
        self.forget_rows(first_gsn)
        self.drop_unchecked(first_gsn)
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

    def take_batches(self):
        """The rows so far, a batch per table version; the decoder begins new ones."""
        shrink(&self.packets)
        return RowCollector.take_batches(self)

    def take_unchecked(self):
        """Changes with foreign_key_checks=0 since the last call; each has taken a number of its own above its rows."""
        cdef compiled.TablePlan plan
        if self.unchecked_count:
            self.end_unchecked()
            self.taken_gsn = self.gsn
        taken = [(plan.database, plan.table, first, above) for plan, first, above in self.unchecked]
        self.unchecked.clear()
        return taken
