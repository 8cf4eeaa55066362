"""The binlog stream: events in, change batches and cuts out. A state machine around the compiled decoder.

Comes in: bytes of the replication connection. Goes out, through a `Sink`: batches of rows, and at a
transaction's end the cut that makes them count. In the normal case no Python runs per row or transaction:
`decode` returns for what Python must decide, which is a few events per file and per table.

Nothing is durable here. A kill at any point leaves the last committed cut, from which the log is read again
with the same numbers. A position moves only past what was decoded or is proven to hold no row of ours.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from menura.errors import MenuraError
from menura.v1 import mysql_binlog_pb2

from agent.errors import TableError, as_message
from agent.mysql import constants as binlog
from agent.mysql.events import EventBodyError, parse_format_description, parse_query, parse_rotate
from agent.mysql.failures import (
    Place,
    connection_lost,
    event_unknown,
    event_unreadable,
    partial_rollback,
    row_unreadable,
    rows_removed,
    statement_logged,
)
from agent.mysql.positions import Position, moved
from agent.mysql.progress import Progress, Stop, Table, name_message
from agent.mysql.schema import TablePlanner
from agent.mysql.statements import Kind, Statement
from agent.mysql.statements import read as read_statement
from agent.mysql.table_map import TableMapError, table_of
from agent.native.decoder import BinlogDecoder, DecodeError, Event, Reason, TableBatch, TablePlan

log = logging.getLogger("menura.binlog")

#: a cut without rows, when only the position has moved
POSITION_CUT_SECONDS = 10.0
#: how old the position that heartbeats report may be
PUBLISH_SECONDS = 0.2
#: a wait for bytes is never longer, so that silence and interruptions are noticed
LONGEST_WAIT_SECONDS = 1.0
SHORTEST_WAIT_SECONDS = 0.001
#: while tables are ahead: transactions between two looks at whether the stream has passed them
AHEAD_CHECK_TRANSACTIONS = 256

_SILENT_EVENTS = frozenset(
    {
        binlog.PREVIOUS_GTIDS_LOG_EVENT,
        binlog.GTID_LIST_EVENT,
        binlog.BINLOG_CHECKPOINT_EVENT,
        binlog.ANNOTATE_ROWS_EVENT,
        binlog.ROWS_QUERY_LOG_EVENT,
        binlog.HEARTBEAT_LOG_EVENT,
        binlog.HEARTBEAT_LOG_EVENT_V2,
        binlog.STOP_EVENT,
        binlog.START_ENCRYPTION_EVENT,
        binlog.TRANSACTION_CONTEXT_EVENT,
        binlog.VIEW_CHANGE_EVENT,
        # what a logged statement needs; the statement itself decides
        binlog.INTVAR_EVENT,
        binlog.RAND_EVENT,
        binlog.USER_VAR_EVENT,
        binlog.BEGIN_LOAD_QUERY_EVENT,
        binlog.APPEND_BLOCK_EVENT,
        binlog.DELETE_FILE_EVENT,
    }
)


class ByteStream(Protocol):
    def receive_into(self, buffer: memoryview, timeout_seconds: float) -> int: ...


class Sink(Protocol):
    """Where batches and cuts go. Sending may wait, for credit or the network; each call raises when it is over."""

    def send_batch(self, batch: TableBatch, cut: int) -> None: ...
    def send_cut(self, end: mysql_binlog_pb2.CutEnd) -> None: ...
    def received(self, size: int) -> None: ...
    def position_is(self, position: Position, commit_us: int) -> None: ...
    def tables_are(self, stopped: Iterable[Stop]) -> None: ...


class ServerRefused(Exception):
    """The server ended the stream with an error packet; whoever can ask it finds out what it means."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code}: {message}")


class TableFailed(Exception):
    """A table can't be read inside a transaction that was partly sent: read again, and stop it before that."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop
        super().__init__(str(stop.error))


@dataclass(frozen=True, slots=True)
class CutSettings:
    first_cut: int
    interval_seconds: float
    most_bytes: int
    #: without a byte for so long the connection counts as lost
    silence_seconds: float


@dataclass(slots=True)
class _Cut:
    """The cut that is being filled."""

    number: int
    began_at: float
    first_row_at: float | None = None
    sent_rows: int = 0
    sent_bytes: int = 0
    stopped: list[Stop] = field(default_factory=list)


class BinlogReader:
    """Reads one stream until it fails; made anew for each Replicate."""

    def __init__(
        self,
        source: str,
        server_uuid: str,
        decoder: BinlogDecoder,
        planner: TablePlanner,
        progress: Progress,
        doomed: dict[Table, Stop],
        sink: Sink,
        settings: CutSettings,
        clock: Callable[[], float],
    ) -> None:
        self._source = source
        self._server_uuid = server_uuid
        self._decoder = decoder
        self._planner = planner
        self._progress = progress
        self._doomed = dict(doomed)
        self._sink = sink
        self._settings = settings
        self._clock = clock
        self._position = progress.start
        self._cut_position = progress.start
        self._file, self._offset = progress.start.file, progress.start.offset
        self._last_commit_us = 0
        self._published_at = clock()
        self._heard_at = clock()
        self._cut = _Cut(settings.first_cut, clock())
        self._tables_by_id: dict[int, Table] = {}
        self._plans: dict[Table, list[TablePlan]] = {}
        self._skipped: set[Table] = set()
        self._deferred = False
        self._begins = 0
        decoder.stop_at_transaction_begin = self._decides_per_transaction()
        if self._file:
            decoder.set_file(self._file)

    def run(self, stream: ByteStream) -> NoReturn:
        """Read until the stream ends or fails, which raises."""
        self._heard_at = self._clock()
        while True:
            try:
                size = stream.receive_into(self._decoder.writable(), self._wait_seconds())
            except TimeoutError:
                self._check_silence()
            except OSError as broken:
                raise connection_lost(
                    self._place(), f"the connection broke ({broken.strerror or type(broken).__name__})"
                ) from broken
            else:
                if not size:
                    raise connection_lost(self._place(), "the server closed the connection")
                self._heard_at = self._clock()
                self._sink.received(size)
                self._decoder.received(size)
                self._decode()
            self._end_cut_if_due()

    def send_start(self, started: list[mysql_binlog_pb2.TableStarted], stopped: list[Stop]) -> None:
        """The start cut: no rows, the resolved positions."""
        self._cut.stopped.extend(stopped)
        for stop in stopped:
            self._progress.stop(stop.table)
        self._end_cut(started)
        self._sink.tables_are(stopped)

    def _decode(self) -> None:
        """Decode all that was received, with Python's part in between."""
        decoder = self._decoder
        while True:
            try:
                reason = decoder.decode()
            except DecodeError as broken:
                raise self._undecodable(broken) from broken
            if reason == Reason.NEED_BYTES:
                return
            if reason == Reason.EVENT:
                self._event(decoder.event)
            elif reason == Reason.BATCH_FULL:
                self._send_batches()
            elif reason == Reason.TRANSACTION_END:
                self._end_cut()
            elif reason == Reason.TRANSACTION_BEGIN:
                self._choose_tables()
            elif reason == Reason.ERROR_PACKET:
                code, _, message = decoder.error_packet
                raise ServerRefused(code, message)
            else:
                raise connection_lost(self._place(), "the server ended the stream")

    # --- cuts

    def _wait_seconds(self) -> float:
        due_at = self._due_at()
        if due_at is None or self._decoder.stop_at_transaction_end:  # or the decoder itself says when
            return LONGEST_WAIT_SECONDS
        left = due_at - self._clock()
        return min(LONGEST_WAIT_SECONDS, max(SHORTEST_WAIT_SECONDS, left))

    def _due_at(self) -> float | None:
        if self._cut.first_row_at is None:
            return None
        return self._cut.first_row_at + self._settings.interval_seconds

    def _end_cut_if_due(self) -> None:
        """After each portion of bytes and each silence: is it time to end the cut?"""
        now = self._clock()
        cut = self._cut
        if cut.first_row_at is None and (self._decoder.pending_rows or cut.sent_rows):
            cut.first_row_at = now
        due_at = self._due_at()
        is_due = bool(cut.stopped) or (due_at is not None and now >= due_at)
        is_due = is_due or cut.sent_bytes + self._decoder.pending_bytes >= self._settings.most_bytes
        if not is_due and now - cut.began_at >= POSITION_CUT_SECONDS:
            self._publish_position()
            is_due = not self._position.same_place(self._cut_position)
            cut.began_at = now
        if not is_due:
            if now - self._published_at >= PUBLISH_SECONDS:
                self._publish_position()
        elif self._decoder.in_transaction:
            self._decoder.stop_at_transaction_end = True
        else:
            self._end_cut()

    def _end_cut(self, started: list[mysql_binlog_pb2.TableStarted] | None = None) -> None:
        """Send what is pending and then the cut's end; the decoder stands between two transactions."""
        decoder = self._decoder
        decoder.stop_at_transaction_end = False
        self._send_batches()
        self._publish_position()
        self._note_passed()
        transactions, first_us, last_us = decoder.take_times()
        end = mysql_binlog_pb2.CutEnd(
            cut=self._cut.number,
            position=self._position.to_proto(),
            ahead=self._progress.ahead_messages(),
            started=started or (),
            stopped=[_stopped_message(stop) for stop in self._cut.stopped],
            last_gsn=decoder.next_gsn - 1,
            last_transaction_id=decoder.next_transaction_id - 1,
            transaction_count=transactions,
            first_commit_timestamp_us=first_us,
            last_commit_timestamp_us=last_us,
        )
        self._sink.send_cut(end)
        self._last_commit_us = last_us or self._last_commit_us
        self._cut_position = self._position
        self._cut = _Cut(self._cut.number + 1, self._clock())

    def _send_batches(self) -> None:
        cut = self._cut
        cut.sent_bytes += self._decoder.pending_bytes
        for batch in self._decoder.take_batches():
            cut.sent_rows += batch.row_count
            self._sink.send_batch(batch, cut.number)

    def _publish_position(self) -> None:
        """Move the position to the last finished transaction."""
        self._published_at = self._clock()
        offset = max(self._offset, self._decoder.transaction_end_offset)
        runs = self._decoder.take_gtids()
        # With GTIDs, file and offset are those of the last transaction: they may serve where a table knows no GTID.
        has_moved = self._position.gtids is None and (self._file, offset) != (
            self._position.file,
            self._position.offset,
        )
        if runs or has_moved:
            self._position = moved(self._position, runs, self._server_uuid, self._file, offset)
        self._sink.position_is(self._position, self._last_commit_us)

    # --- tables that are not where the stream is

    def _decides_per_transaction(self) -> bool:
        return self._progress.any_ahead or bool(self._doomed)

    def _choose_tables(self) -> None:
        """A transaction begins while some tables are ahead or doomed: which of them get its rows?"""
        begin = max(self._offset, self._decoder.transaction_end_offset)
        gtid = self._decoder.gtid
        for table, stop in list(self._doomed.items()):
            if not stop.position.has_transaction(gtid, self._file, begin):
                del self._doomed[table]
                self._stop(stop)
        self._begins += 1
        if self._begins % AHEAD_CHECK_TRANSACTIONS == 0:
            self._publish_position()
            self._note_passed()
        skipped = self._progress.skipped(gtid, self._file, begin)
        if skipped != self._skipped:
            self._skipped = skipped
            self._activate()
        self._decoder.stop_at_transaction_begin = self._decides_per_transaction()

    def _note_passed(self) -> None:
        if not self._progress.passed(self._position):
            return
        if not self._progress.any_ahead:
            self._skipped = set()
            self._activate()
        self._decoder.stop_at_transaction_begin = self._decides_per_transaction()
        self._sink.tables_are(())

    def _activate(self) -> None:
        for table, plans in self._plans.items():
            for plan in plans:
                plan.active = self._progress.is_synced(table) and table not in self._skipped
        if self._deferred:  # a table map that could not be planned while its table was skipped comes again
            self._forget_tables()

    def _stop(self, stop: Stop) -> None:
        """The table is complete up to the transaction before this one, and goes no further."""
        log.warning("table stopped", extra={"fields": {"source": self._source, "error": str(stop.error)}})
        self._progress.stop(stop.table)
        for plan in self._plans.get(stop.table, ()):
            plan.active = False
        self._cut.stopped.append(stop)
        self._sink.tables_are((stop,))

    def _stop_here(self, table: Table, error: MenuraError) -> None:
        self._publish_position()
        self._stop(Stop(table, self._position, error))

    def _forget_tables(self) -> None:
        self._decoder.forget_tables()
        self._tables_by_id.clear()
        self._plans.clear()
        self._deferred = False

    # --- events

    def _event(self, event: Event) -> None:
        try:
            self._handle(event)
        except (EventBodyError, TableMapError) as broken:
            raise event_unreadable(self._place(), event.type, event.log_pos, str(broken)) from broken

    def _handle(self, event: Event) -> None:
        if event.type == binlog.TABLE_MAP_EVENT:
            self._table_map(event.body)
        elif event.type == binlog.QUERY_EVENT:
            self._query(event, is_load=False)
        elif event.type == binlog.EXECUTE_LOAD_QUERY_EVENT:
            self._query(event, is_load=True)
        elif event.type == binlog.ROTATE_EVENT:
            rotate = parse_rotate(event.body)
            self._publish_position()
            self._file, self._offset = rotate.file, rotate.offset
            self._decoder.set_file(rotate.file)
            self._forget_tables()
        elif event.type == binlog.FORMAT_DESCRIPTION_EVENT:
            self._decoder.checksum = parse_format_description(event.body).checksum
            self._forget_tables()
            self._passed_event(event)
        elif event.type in _SILENT_EVENTS or event.flags & binlog.LOG_EVENT_IGNORABLE_F:
            self._passed_event(event)
        else:
            raise event_unknown(self._place(), event.type, event.log_pos)

    def _passed_event(self, event: Event) -> None:
        """An event that belongs to no transaction moves the offset."""
        artificial = event.flags & binlog.LOG_EVENT_ARTIFICIAL_F or not event.timestamp
        if not artificial and not self._decoder.in_transaction:
            self._offset = max(self._offset, event.log_pos)

    def _table_map(self, body: bytes) -> None:
        table_id, *names = table_of(body)
        table = (names[0], names[1])
        self._tables_by_id[table_id] = table
        plan: TablePlan | None = None
        if self._progress.is_synced(table):
            try:
                plan = self._planner.plan(table, body)
            except TableError as error:
                if table in self._skipped:
                    self._deferred = True
                else:
                    self._stop_here(table, error)
        if plan is not None:
            plan.active = table not in self._skipped
            known = self._plans.setdefault(table, [])
            if not any(plan is other for other in known):
                known.append(plan)
        self._decoder.define_table(table_id, body, plan)

    def _query(self, event: Event, *, is_load: bool) -> None:
        query = parse_query(event.body, is_load=is_load)
        statement = read_statement(query.text, query.database)
        kind = Kind.ROWS if is_load else statement.kind
        if kind is Kind.ROWS:
            self._rows_as_statement(statement)
        elif kind is Kind.ROWS_REMOVED:
            self._rows_removed(statement)
        elif kind is Kind.DEFINITION:
            self._definition(statement)
        elif kind in (Kind.ROLLBACK, Kind.XA):
            raise partial_rollback(self._place(), statement.words, event.log_pos)
        if kind is not Kind.TRANSACTION and not statement.opens_transaction:
            self._decoder.transaction_finished()

    def _live_tables(self) -> list[Table]:
        return [table for table in self._progress.synced() if table not in self._skipped]

    def _rows_as_statement(self, statement: Statement) -> None:
        if statement.is_system_only():
            return
        live = self._live_tables()
        mentioned = [table for table in live if statement.mentions(*table)]
        for table in mentioned or live:  # without a name a trigger, a view or a routine may have written any table
            self._stop_here(table, statement_logged(self._place(), table, statement.words.partition(" ")[0]))

    def _rows_removed(self, statement: Statement) -> None:
        for table in [table for table in self._live_tables() if statement.mentions(*table)]:
            self._stop_here(table, rows_removed(self._place(), table, statement.words))

    def _definition(self, statement: Statement) -> None:
        if not statement.changes_columns():
            return
        for table in [table for table in self._live_tables() if statement.mentions(*table)]:
            log.info("definition changed", extra={"fields": {"source": self._source, "table": ".".join(table)}})
            try:
                self._planner.definition_changed(table)
            except TableError as error:
                self._stop_here(table, error)

    # --- failures

    def _place(self) -> Place:
        return Place(self._source, self._file, self._position)

    def _check_silence(self) -> None:
        seconds = self._settings.silence_seconds
        if self._clock() - self._heard_at > seconds:
            raise connection_lost(self._place(), f"no byte for {seconds:.0f} s, not even a heartbeat")

    def _undecodable(self, broken: DecodeError) -> Exception:
        """What a DecodeError becomes: a table's failure where the table is known, else the source's."""
        self._publish_position()
        table = self._tables_by_id.get(broken.table_id)
        if table is None or not self._progress.is_synced(table):
            return event_unreadable(self._place(), broken.event_type, broken.log_pos, str(broken))
        error = row_unreadable(self._place(), table, broken.log_pos, str(broken))
        return TableFailed(Stop(table, self._position, error))


def _stopped_message(stop: Stop) -> mysql_binlog_pb2.TableStopped:
    return mysql_binlog_pb2.TableStopped(
        table=name_message(stop.table), position=stop.position.to_proto(), error=as_message(stop.error)
    )
