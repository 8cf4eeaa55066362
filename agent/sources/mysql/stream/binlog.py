"""The binlog stream: events in, change batches and cuts out. A state machine around the compiled decoder.

Comes in: bytes of the replication connection. Goes out, through a `Sink`: batches of rows, and at a
transaction's end the cut that makes them count. In the normal case no Python runs per row or transaction:
`decode` returns for what Python must decide, which is a few events per file and per table. Here each event is
judged; where the stream is stands in `read_position`, what is being sent in `cuts`, which tables get rows in
`table_router`, rows that come later than they stand in `xa`, rows that don't count in `rollbacks`.

Nothing is durable here. A kill at any point leaves the last committed cut, from which the log is read again
with the same numbers. A position moves only past what was decoded or is proven to hold no row of ours.
"""

import logging
from collections.abc import Sequence
from typing import NoReturn, Protocol

from menura.v1 import changes_pb2

from agent.capture.cuts import Cuts
from agent.capture.starts import Starts
from agent.errors import EventUnknown, EventUnreadable
from agent.sources.mysql.ddl.session import statement_of
from agent.sources.mysql.ddl.statements import ROW_VERBS, Kind, StatementSummary
from agent.sources.mysql.ddl.statements import read as read_statement
from agent.sources.mysql.failures import (
    connection_lost,
    event_unknown,
    event_unreadable,
    statement_logged,
)
from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.log.events import (
    EventBodyError,
    parse_format_description,
    parse_incident,
    parse_query,
    parse_rotate,
)
from agent.sources.mysql.log.table_map import TableMapError
from agent.sources.mysql.native.decoder import AnnotationMissing, DecodeError, Event, Reason
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.read_position import ReadPosition
from agent.sources.mysql.schema.table_planner import TablePlanner
from agent.sources.mysql.server.server_log import ReadTransaction
from agent.sources.mysql.stream.context import StreamContext
from agent.sources.mysql.stream.definition_gaps import DefinitionGaps
from agent.sources.mysql.stream.foreign_keys import FollowedKeys
from agent.sources.mysql.stream.rollbacks import Rollbacks
from agent.sources.mysql.stream.schema_changes import SchemaChanges
from agent.sources.mysql.stream.table_router import TableRouter
from agent.sources.mysql.stream.unlogged import UnloggedRows
from agent.sources.mysql.stream.xa import XaTransactions
from agent.table_positions import Table

log = logging.getLogger("menura.binlog")

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


class ServerRefused(Exception):
    """The server ended the stream with an error packet; whoever can ask it finds out what it means."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(f"{code}: {message}")


class BinlogReader:
    """Reads one stream until it fails; made anew for each Replicate."""

    def __init__(self, context: StreamContext) -> None:
        config, decoder, definitions = context.config, context.decoder, context.definitions
        self._stale = context.stale
        self._decoder = decoder
        self._table_positions = context.table_positions
        self._sink = context.sink
        self._silence_seconds = context.settings.silence_seconds
        self._clock = context.clock
        self._heard_at = context.clock()
        self._read = read = ReadPosition(
            config.name,
            context.facts.server_uuid,
            context.table_positions.start,
            decoder,
            context.sink.position_is,
            context.clock,
        )
        self._cuts = cuts = Cuts(
            decoder,
            context.table_positions,
            read,
            context.sink,
            context.coordinator,
            context.stale,
            context.settings,
            context.clock,
        )
        self._definitions = definitions
        self._log_files = context.log_files
        self._server = definitions.server
        planner = TablePlanner(config, context.facts, definitions)
        gaps = DefinitionGaps(config, decoder, definitions, read, cuts)
        self._keys = FollowedKeys(context, planner.cascades, cuts)
        self._router = TableRouter(context, planner, gaps, self._keys, read, cuts)
        self._unlogged = UnloggedRows(config, decoder, self._router, read, cuts, context.table_positions)
        self._harmless = config.harmless_statements
        self._changes = SchemaChanges(context, planner, self._router, self._unlogged, gaps, self._keys, read, cuts)
        self._rollbacks = Rollbacks(decoder, read, self._router)
        self._xa = XaTransactions(context, self._router, self._unlogged, read)

    def run(self, stream: ByteStream) -> NoReturn:
        """Read until the stream ends or fails, which raises."""
        self._heard_at = self._clock()
        while True:
            try:
                size = stream.receive_into(self._decoder.writable(), self._cuts.wait_seconds())
            except TimeoutError:
                self._check_silence()
            except OSError as broken:
                raise connection_lost(
                    self._read.place(), f"the connection broke ({broken.strerror or type(broken).__name__})"
                ) from broken
            else:
                if not size:
                    raise connection_lost(self._read.place(), "the server closed the connection")
                self._heard_at = self._clock()
                self._sink.received(size)
                self._decoder.received(size)
                try:
                    self._decode()
                except (EventUnknown, EventUnreadable):
                    self._end_cut_before_failure()
                    raise
            self._end_cut_if_due()

    def send_start(self, starts: Starts[BinlogPosition]) -> None:
        self._cuts.begin(starts)
        self._end_cut(starts.started)
        self._sink.tables_are(starts.stopped)

    def _decode(self) -> None:
        """Decode all that was received, with Python's part in between."""
        decoder = self._decoder
        while True:
            try:
                reason = decoder.decode()
            except DecodeError as broken:
                self._fail(broken)
            if reason == Reason.NEED_BYTES:
                return
            if reason == Reason.EVENT:
                self._event(decoder.event)
            elif reason == Reason.BATCH_FULL:
                if decoder.keep_events:
                    self._xa.take_kept()
                else:
                    self._cuts.send_batches()
            elif reason == Reason.INJECTED:
                self._commit_xa()
            elif reason == Reason.TRANSACTION_END:
                self._end_cut()
            elif reason == Reason.TRANSACTION_BEGIN:
                self._router.choose()
            elif reason == Reason.ERROR_PACKET:
                code, _, message = decoder.error_packet
                raise ServerRefused(code, message)
            else:
                raise connection_lost(self._read.place(), "the server ended the stream")

    # --- cuts

    def _end_cut_if_due(self) -> None:
        if self._cuts.is_due():
            self._end_cut_now()

    def _end_cut_now(self) -> None:
        """At once, or at the end of the transaction that the decoder is in."""
        if self._decoder.in_transaction:
            self._decoder.stop_at_transaction_end = True
        else:
            self._end_cut()

    def _end_cut(self, started: Sequence[changes_pb2.TableStarted] = ()) -> None:
        """Send what is pending and then the cut's end; the decoder stands between two transactions."""
        self._unlogged.end_cut()
        self._keys.end_cut(self._unlogged)
        self._cuts.send_batches()
        self._read.publish()
        self._router.note_passed()
        self._xa.cut_ends(self._cuts.number, self._read.position)
        self._definitions.followed(self._read.position, self._cuts.number)
        self._definitions.committed(self._sink.committed_cut())
        self._note_last_transaction()
        self._cuts.end(started)
        if self._stale.take_changed():
            self._router.keys_changed()

    def _note_last_transaction(self) -> None:
        """By it the log is known again."""
        if self._read.last_gtid is not None and self._read.last_gtid[2]:
            self._log_files.transactions.add(ReadTransaction(*self._read.last_gtid))

    def _end_cut_before_failure(self) -> None:
        """Where the source stops, what came before that transaction counts; else it would be read again in vain."""
        decoder = self._decoder
        first_gsn = decoder.transaction_first_gsn
        if self._definitions.has_changed or self._xa.is_committing or self._cuts.has_event_since(first_gsn):
            return
        if decoder.in_transaction:
            if not decoder.drop_rows(first_gsn):
                return
            decoder.transaction_abandoned()
        self._end_cut()

    # --- events

    def _event(self, event: Event) -> None:
        try:
            self._handle(event)
        except (EventBodyError, TableMapError) as broken:
            raise event_unreadable(self._read.place(), event.type, event.log_pos, str(broken)) from broken
        if self._cuts.has_many_events:
            self._end_cut_now()

    def _handle(self, event: Event) -> None:
        if self._xa.is_preparing and self._xa.keep(event):
            self._commit_xa()  # in one phase
        elif event.type == binlog.TABLE_MAP_EVENT:
            self._router.define(event.body)
        elif event.type == binlog.QUERY_EVENT:
            self._query(event, is_load=False)
        elif event.type == binlog.EXECUTE_LOAD_QUERY_EVENT:
            self._query(event, is_load=True)
        elif event.type == binlog.ROTATE_EVENT:
            rotate = parse_rotate(event.body)
            self._new_file()
            self._read.rotated(rotate.file, rotate.offset)
        elif event.type == binlog.FORMAT_DESCRIPTION_EVENT:
            self._decoder.checksum = parse_format_description(event.body).checksum
            self._new_file()
            self._log_files.entered(self._read.file, event.timestamp)
            self._passed_event(event)
        elif event.type == binlog.GTID_EVENT:
            if self._decoder.stop_at_transaction_begin:
                self._router.choose()
            self._xa.begins()
        elif event.type == binlog.INCIDENT_EVENT:
            self._incident(event)
        elif event.type in _SILENT_EVENTS or event.flags & binlog.LOG_EVENT_IGNORABLE_F:
            self._passed_event(event)
        else:
            raise event_unknown(self._read.place(), event.type, event.log_pos)

    def _new_file(self) -> None:
        """Table ids may be used anew; no transaction goes on from one file to the next."""
        if self._decoder.in_transaction:
            self._xa.abandoned()
            self._rollbacks.interrupted()
        self._router.forget()

    def _passed_event(self, event: Event) -> None:
        """An event that belongs to no transaction moves the offset."""
        artificial = event.flags & binlog.LOG_EVENT_ARTIFICIAL_F or not event.timestamp
        if not artificial and not self._decoder.in_transaction:
            self._read.passed(event.log_pos)

    def _query(self, event: Event, *, is_load: bool) -> None:
        query = parse_query(event.body, is_load=is_load)
        statement = statement_of(query, self._server)
        summary = read_statement(statement, self._server)
        kind = Kind.ROWS if is_load else summary.kind
        if kind is Kind.ROWS:
            self._rows_as_statement(summary, event, is_load=is_load)
        elif kind in (Kind.ROWS_REMOVED, Kind.DEFINITION):
            self._changes.statement(statement, summary)
        elif kind in (Kind.SAVEPOINT, Kind.ROLLBACK):
            self._rollbacks.statement(query.text)
            return
        elif kind is Kind.XA:
            self._xa.statement(query.text)
            self._commit_xa()
            return
        ends = kind is not Kind.TRANSACTION and not summary.opens_transaction
        if ends and not self._xa.is_committing:
            self._decoder.transaction_finished()
        if kind in (Kind.ROWS_REMOVED, Kind.DEFINITION):
            self._changes.settle()
        if self._unlogged.has_pending:  # a table that stops later does so behind what is told of it
            self._end_cut_now()

    def _commit_xa(self) -> None:
        """Go on with an XA transaction that is being committed, if there is one."""
        while self._xa.is_committing:
            between = self._xa.next_part()
            if between is None:
                return
            self._event(between)

    def _rows_as_statement(self, summary: StatementSummary, event: Event, *, is_load: bool) -> None:
        """Rows changed that are not in the log: in the tables that it names, and who knows where else.

        What its triggers, foreign keys, views and routines did isn't logged either, and what of them there was at the
        time is not known: so it may be any table. Only statements about the server's own tables, and those that
        somebody has named in the configuration, have none of these. The tables are read again, or stop: by their
        policy; where each change of one that the statement names is logged so, since that never ends; and at a
        statement that may define tables that others see, too, as CREATE TABLE ... SELECT does.
        """
        live = [] if summary.is_system_only else self._router.live_tables()
        if not live or (
            summary.target in self._harmless and not any(_lowered(table) == summary.target for table in live)
        ):
            return
        verb = summary.first.partition(" ")[0]
        may_stream_on = is_load or verb in ROW_VERBS or summary.is_temporary
        stops = {table for table in live if not may_stream_on or not self._unlogged.may_stream_on(table)}
        goes_on = [table for table in live if table not in stops and not self._stale.is_told(table)]
        if not stops and not goes_on:
            return
        precise = self._definitions.precise_tables(summary)
        stops = set(live) if precise else stops
        if not precise:
            transaction = self._decoder.transaction_position or f"{self._read.file}:{event.log_pos}"
            why = (
                f"{verb} was logged as a statement, so which rows it changed, and of which tables, the log does not say"
            )
            self._unlogged.by_statement(goes_on, why, transaction)
        for table in filter(stops.__contains__, live):
            error = statement_logged(self._read.place(), table, verb, precise, is_named=summary.mentions(*table))
            self._router.stop_here(table, error)

    def _incident(self, event: Event) -> None:
        """Changes are missing from the log, of tables that nobody knows: of any one."""
        self._read.publish()
        why = f"the server noted that changes are missing from its log ({parse_incident(event.body)})"
        transaction = self._decoder.transaction_position or f"{self._read.file}:{event.log_pos}"
        self._unlogged.changed(self._router.live_tables(), why, transaction)
        if self._decoder.in_transaction:  # MySQL gives it a GTID
            self._decoder.transaction_finished()
        else:
            self._passed_event(event)

    # --- failures

    def _check_silence(self) -> None:
        seconds = self._silence_seconds
        if self._clock() - self._heard_at > seconds:
            raise connection_lost(self._read.place(), f"no byte for {seconds:.0f} s, not even a heartbeat")

    def _fail(self, broken: DecodeError) -> NoReturn:
        """What a DecodeError becomes: a table's failure where the table is known, else the source's."""
        if isinstance(broken, AnnotationMissing):  # no failure: the stream is opened anew, with annotations
            raise broken
        self._read.publish()
        failed = self._router.failed(broken)
        place = self._read.place()
        raise failed or event_unreadable(place, broken.event_type, broken.log_pos, str(broken)) from broken


def _lowered(table: Table) -> Table:
    database, name = table
    return database.lower(), name.lower()
