"""The MySQLBinlog plugin: works on the gateway's newest Replicate, in a thread of its own.

Comes in: Replicate, Credit and CutCommitted. Goes out: the start cut, batches under credit, cuts. After any
failure everything read is dropped and the stream opens anew: the next Replicate names the last committed
cut, and the log is read again from there. Nothing here is durable.
"""

import logging
import threading
import time
from contextlib import closing
from random import Random

from menura.error_message import as_message
from menura.errors import MenuraError
from menura.protocol import PROTOCOL_VERSION
from menura.v1 import changes_pb2, config_pb2, stream_pb2

from agent.capture.cuts import CutSettings
from agent.capture.stale_tables import StaleTables
from agent.capture.starts import Starts
from agent.capture.task import Task, TaskCancelled, TaskSink
from agent.errors import defect
from agent.positions import PositionSyntaxError
from agent.runtime.backoff import Backoff
from agent.runtime.credit import Credit, CreditCancelled
from agent.runtime.session import StreamClosed, StreamWriter
from agent.runtime.state import FAILED, READING
from agent.snapshot.coordinator import SnapshotCoordinator, TaskTables
from agent.snapshot.unchunked_snapshots import DumpForgotten
from agent.snapshot.watermarks import Watermark
from agent.source_kind import Context
from agent.sources.mysql.beginning import Beginning, Beginnings
from agent.sources.mysql.config import MysqlConfig
from agent.sources.mysql.native.decoder import AnnotationMissing, BinlogDecoder
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind, from_proto
from agent.sources.mysql.schema.definitions import Definitions
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.server.checks import check_binlog
from agent.sources.mysql.server.replication import (
    SILENCE_SECONDS,
    identity_of,
    open_stream,
)
from agent.sources.mysql.server.watch import LogEndWatch
from agent.sources.mysql.stream.binlog import BinlogReader, ServerRefused
from agent.sources.mysql.stream.prepared import PreparedFile
from agent.sources.mysql.stream.prepared_log import PreparedLog
from agent.sources.mysql.stream.table_router import ColumnsUnlogged, RowsUndone, TableFailed, Undone
from agent.table_positions import Stop, Table

log = logging.getLogger("menura.replicator")

RETRY_FIRST_SECONDS = 0.5
RETRY_MOST_SECONDS = 30.0
#: a terminal error waits for somebody: look again this often
TERMINAL_FIRST_SECONDS = 5.0
TERMINAL_MOST_SECONDS = 60.0
STOP_SECONDS = 5.0

#: measured: twice as many cost 20 MiB more and save no CPU
BATCH_ROWS = 32_768


class BinlogPlugin:
    """One source's replication."""

    request_type = stream_pb2.MySQLBinlog
    findings: tuple[MenuraError, ...] = ()

    def __init__(self, context: Context, config: MysqlConfig, coordinator: SnapshotCoordinator) -> None:
        self.source = config.name
        self._config = config
        self._coordinator = coordinator
        coordinator.reopen = self._reopen
        self._state = context.state
        self._state_folder = context.state_folder
        self._replica = identity_of(context.tenant, context.agent, self.source, config.server_id)
        self._beginnings = Beginnings(self._config, self._replica, coordinator, self._state)
        self._credit = Credit()
        self._state.credit_wait_us = lambda: self._credit.waited_us
        self._watch = LogEndWatch(self._config.binlog, self.source, self._state.end_is, self._log_was_reset)
        self._changed = threading.Condition()
        self._writer: StreamWriter | None = None
        self._task: Task | None = None
        self._is_new = False
        self._stopping = False
        self._pending_stops: dict[Table, Stop[BinlogPosition]] = {}
        self._undone: list[Undone] = []
        #: MariaDB's statements are asked for beside their rows, which costs bytes: from when some row needed it
        self._annotated = False
        self._transient = Backoff(RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS, Random())  # noqa: S311
        self._terminal = Backoff(TERMINAL_FIRST_SECONDS, TERMINAL_MOST_SECONDS, Random())  # noqa: S311
        self._thread = threading.Thread(target=self._run, name=f"{self.source}/binlog", daemon=True)

    # --- the stream's side

    def preflight(self) -> str:
        facts = check_binlog(self._config, self._replica)
        self._state.seen(facts.flavor, facts.version)
        gtids = "with GTIDs" if facts.has_gtids else "by file and offset"
        return f"binlog {self._config.binlog.address} {facts.flavor} {facts.version} {gtids}"

    def hello(self) -> config_pb2.Hello:
        return config_pb2.Hello(protocol=PROTOCOL_VERSION, sources=[self._state.hello()])

    def opened(self, writer: StreamWriter, ack: config_pb2.HelloAck) -> None:
        self._credit.reset()
        self._writer = writer
        if not self._thread.is_alive():
            self._thread.start()
            self._watch.start()

    def received(self, request: stream_pb2.StreamRequest) -> None:
        match request.WhichOneof("payload"):
            case "replicate":
                assert self._writer is not None
                self._assign(Task(request.replicate, self._writer))
            case "credit":
                self._credit.grant(request.credit.bytes)
            case "cut_committed":
                committed = request.cut_committed
                task = self._task
                if task is not None:
                    task.committed_cut = committed.cut
                    self._coordinator.committed(committed.cut)
                    if committed.cut > task.replicate.next_cut:
                        self._beginnings.progressed()
                        self._transient.succeeded()
                        self._terminal.succeeded()
                log.debug("cut committed", extra={"fields": {"source": self.source, "cut": committed.cut}})

    def closed(self) -> None:
        self._assign(None)
        self._coordinator.end()

    def _reopen(self) -> None:
        """Tables can begin now."""
        self._begin_anew("tables can begin with their dumps")

    def _log_was_reset(self) -> None:
        self._begin_anew("the server's log was reset: its new one is compared with the committed position")

    def _begin_anew(self, why: str) -> None:
        task = self._task
        if task is not None:
            log.info(why, extra={"fields": {"source": self.source}})
            task.writer.abort()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
        self._assign(None)
        self._watch.stop()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _assign(self, task: Task | None) -> None:
        with self._changed:
            previous, self._task, self._is_new = self._task, task, True
            self._changed.notify_all()
        if previous is not None:
            previous.cancel()
        self._credit.wake()

    # --- the worker's side

    def _run(self) -> None:
        while (task := self._next_task()) is not None:
            try:
                self._work(task)
            except (StreamClosed, TaskCancelled, CreditCancelled):
                continue
            except TableFailed as failed:
                for stop in failed.stops:
                    self._note_stop(stop)
                task.writer.abort()
            except RowsUndone as rows:
                log.info("a transaction took rows back: it is read again", extra={"fields": {"source": self.source}})
                self._undone.append(rows.undone)
                task.writer.abort()
            except (DumpForgotten, ColumnsUnlogged):
                task.writer.abort()
            except AnnotationMissing:
                log.info(
                    "rows need their statements' text: asked for from now on", extra={"fields": {"source": self.source}}
                )
                self._annotated = True
                task.writer.abort()
            except MenuraError as error:
                if not task.cancelled.is_set():
                    self._retry_later(task, error)
            except Exception as broken:
                log.exception("defect", extra={"fields": {"source": self.source}})
                self._retry_later(task, defect("reading the binary log", broken, self.source))

    def _next_task(self) -> Task | None:
        with self._changed:
            while True:
                if self._stopping:
                    return None
                if self._task is not None and self._is_new:
                    self._is_new = False
                    return self._task
                self._changed.wait()

    def _note_stop(self, stop: Stop[BinlogPosition]) -> None:
        fields = {"source": self.source, "error": str(stop.error)}
        log.warning("table can't be read on: it is read again up to the transaction before", extra={"fields": fields})
        self._pending_stops[stop.table] = stop

    def _retry_later(self, task: Task, error: MenuraError) -> None:
        """Report once, wait, and let the stream open anew."""
        if self._state.failed(READING, error):
            log.error(FAILED[error.terminal], extra={"fields": {"source": self.source, "error": str(error)}})
            try:
                task.writer.send(stream_pb2.StreamResponse(error=as_message(error)))
            except StreamClosed:
                return
        backoff = self._terminal if error.terminal else self._transient
        if not task.cancelled.wait(backoff.next_seconds()):
            task.writer.abort()

    def _work(self, task: Task) -> None:
        """Read the log for this Replicate; returns only by an exception, or when there is no table."""
        replicate = task.replicate
        kept = {
            (sync.table.database, sync.table.table) for sync in replicate.tables if sync.WhichOneof("start") is None
        }
        self._pending_stops = {table: stop for table, stop in self._pending_stops.items() if table in kept}
        with closing(SchemaHistory(self._state_folder, self.source)) as history:
            begun = self._beginnings.begin(task, history)
            if begun.starts.gaps:  # places of the log that is gone
                self._pending_stops, self._undone = {}, []
            self._watch.follow(begun.facts, begun.position_kind)
            task.check()
            self._begin_dumps(replicate, begun.position_kind, begun.starts)
            definitions = Definitions(
                self.source,
                begun.server,
                history,
                begun.schema_reader,
                self._config.filter,
                begun.renames,
                begun.unlogged_columns,
            )
            definitions.begin(
                begun.table_positions.start, begun.starts.positions, begun.anew(replicate, history.tables())
            )
            self._read(task, begun, definitions)

    def _begin_dumps(
        self, replicate: changes_pb2.Replicate, position_kind: BinlogPositionKind, starts: Starts[BinlogPosition]
    ) -> None:
        unchunked = [
            self._coordinator.unchunked(dump) for dump, table in starts.awaited.items() if table in starts.positions
        ]
        for stop in starts.stopped:
            for dump in [dump for dump, table in starts.awaited.items() if table == stop.table]:
                self._coordinator.refuse(dump, stop.error)
        self._coordinator.begin(
            TaskTables(
                position_kind,
                replicate.next_cut,
                _committed(replicate, position_kind),
                starts.kept,
                starts.awaited,
                frozenset(starts.undecided),
                bool(starts.positions),
                tuple(snapshot for snapshot in unchunked if snapshot is not None),
            )
        )

    def _read(self, task: Task, begun: Beginning, definitions: Definitions) -> None:
        replicate = task.replicate
        decoder = BinlogDecoder(
            mariadb=begun.facts.flavor == "mariadb",
            checksum=True,
            next_gsn=replicate.next_gsn,
            next_transaction_id=replicate.next_transaction_id,
            batch_rows=BATCH_ROWS,
        )
        decoder.annotated = self._annotated
        with closing(PreparedFile(self._state_folder, self.source)) as prepared:
            reader = self._reader(task, begun, decoder, definitions, prepared)
            starts = begun.starts
            if starts.positions or starts.stopped:
                reader.send_start(starts.started, starts.stopped, starts.gaps)
            self._stream(task, reader, begun, decoder)

    def _stream(self, task: Task, reader: BinlogReader, begun: Beginning, decoder: BinlogDecoder) -> None:
        fields: dict[str, object] = {"source": self.source, "generation": task.replicate.generation}
        facts, table_positions = begun.facts, begun.table_positions
        if not table_positions.synced():
            log.info("no table to replicate", extra={"fields": fields})
            self._state.recovered(READING)
            return
        fields |= {"tables": len(table_positions.synced()), "position": table_positions.start}
        log.info("replication starts", extra={"fields": fields})
        stream = open_stream(
            self._config.binlog,
            self.source,
            facts,
            self._replica,
            table_positions.start,
            begun.position_kind,
            annotated=self._annotated,
        )
        with closing(stream):
            task.stream = stream
            task.check()  # a cancellation before the line above has not seen the stream
            decoder.checksum = stream.checksum
            try:
                reader.run(stream)
            except ServerRefused as refused:
                raise self._beginnings.explain(refused, begun) from refused

    def _reader(
        self,
        task: Task,
        begun: Beginning,
        decoder: BinlogDecoder,
        definitions: Definitions,
        prepared: PreparedFile,
    ) -> BinlogReader:
        facts, position_kind, table_positions = begun.facts, begun.position_kind, begun.table_positions
        replicate = task.replicate
        sink = TaskSink(task, decoder, self._credit, self._state, table_positions)
        return BinlogReader(
            self._config,
            facts,
            decoder,
            definitions,
            begun.log_files,
            table_positions,
            self._pending_stops,
            self._undone,
            prepared,
            PreparedLog(self.source, self._config.binlog, facts, self._replica, definitions.server, sink.received),
            position_kind,
            sink,
            self._coordinator,
            StaleTables(replicate.tables, begun.starts.started),
            CutSettings(replicate.next_cut, replicate.cut_interval_ms / 1000, replicate.cut_bytes, SILENCE_SECONDS),
            time.monotonic,
        )


def _committed(replicate: changes_pb2.Replicate, position_kind: BinlogPositionKind) -> Watermark | None:
    """The end of its last cut."""
    try:
        position = from_proto(replicate.position, position_kind) if replicate.HasField("position") else None
    except PositionSyntaxError:  # no table is read on from it, or that was an error already
        position = None
    return Watermark(replicate.next_cut - 1, replicate.next_gsn - 1, position, {}) if position is not None else None
