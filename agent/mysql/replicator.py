"""The MySQLBinlog plugin: works on the gateway's newest Replicate, in a thread of its own.

Comes in: Replicate, Credit and CutCommitted. Goes out: the start cut, batches under credit, cuts. After any
failure everything read is dropped and the stream opens anew: the next Replicate names the last committed
cut, and the log is read again from there. Nothing here is durable.
"""

import logging
import threading
import time
from contextlib import closing
from datetime import UTC, datetime
from random import Random

from menura.errors import MenuraError
from menura.v1 import config_pb2, mysql_binlog_pb2, stream_pb2

from agent.backoff import Backoff
from agent.credit import Credit, CreditCancelled
from agent.errors import SourceError, SourceFailed, as_message, defect
from agent.mysql.dump.desk import Desk, TaskTables
from agent.mysql.dump.floors import Floor
from agent.mysql.dump.whole_tables import DumpForgotten
from agent.mysql.positions import Position, PositionSyntaxError, Scheme, from_proto, least
from agent.mysql.progress import Progress, Stop, Table
from agent.mysql.schema.definitions import Definitions
from agent.mysql.schema.describer import ServerDescriber, server_of
from agent.mysql.schema.history import SchemaHistory
from agent.mysql.schema.log_files import LogFiles
from agent.mysql.server.checks import check_binlog, check_binlog_on, duplicate_id
from agent.mysql.server.connection import Facts, connect, server_errors
from agent.mysql.server.replication import (
    ER_SLAVE_SAME_ID,
    SILENCE_SECONDS,
    identity_of,
    open_stream,
    other_replica_has_our_id,
)
from agent.mysql.server.server_log import ServerLog, natural_scheme
from agent.mysql.server.watch import LogEndWatch
from agent.mysql.stream.binlog import BinlogReader, ServerRefused
from agent.mysql.stream.cuts import CutSettings
from agent.mysql.stream.delivery import RowsUndone, TableFailed, Undone
from agent.mysql.stream.prepared import PreparedFile
from agent.mysql.stream.prepared_log import PreparedLog
from agent.mysql.stream.starts import Starts, resolve, scheme_of
from agent.mysql.stream.task import PART, Task, TaskCancelled, TaskSink
from agent.native.decoder import AnnotationMissing, BinlogDecoder
from agent.plugins import Context
from agent.session import PROTOCOL_VERSION, Outlet, StreamClosed
from agent.state import FAILED

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

    def __init__(self, context: Context, desk: Desk) -> None:
        self.source = context.source.name
        self._config = context.source
        self._desk = desk
        desk.reopen = self._reopen
        self._state = context.state
        self._state_folder = context.state_folder
        self._replica = identity_of(context.tenant, context.agent, self.source, context.source.server_id)
        self._credit = Credit()
        self._state.credit_wait_us = lambda: self._credit.waited_us
        self._watch = LogEndWatch(self._config.binlog, self.source, self._state.end_is, self._log_was_reset)
        self._changed = threading.Condition()
        self._outlet: Outlet | None = None
        self._task: Task | None = None
        self._is_new = False
        self._stopping = False
        self._doomed: dict[Table, Stop] = {}
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

    def opened(self, outlet: Outlet, ack: config_pb2.HelloAck) -> None:
        self._credit.reset()
        self._outlet = outlet
        if not self._thread.is_alive():
            self._thread.start()
            self._watch.start()

    def received(self, request: stream_pb2.StreamRequest) -> None:
        match request.WhichOneof("payload"):
            case "replicate":
                assert self._outlet is not None
                self._assign(Task(request.replicate, self._outlet))
            case "credit":
                self._credit.grant(request.credit.bytes)
            case "cut_committed":
                committed = request.cut_committed
                task = self._task
                if task is not None:
                    task.committed_cut = committed.cut
                    self._desk.committed(committed.cut)
                    if committed.cut > task.replicate.next_cut:
                        self._transient.succeeded()
                        self._terminal.succeeded()
                log.debug("cut committed", extra={"fields": {"source": self.source, "cut": committed.cut}})

    def closed(self) -> None:
        self._assign(None)
        self._desk.end()

    def _reopen(self) -> None:
        """Tables can begin now."""
        self._begin_anew("tables can begin with their dumps")

    def _log_was_reset(self) -> None:
        self._begin_anew("the server's log was reset: its new one is compared with the committed position")

    def _begin_anew(self, why: str) -> None:
        task = self._task
        if task is not None:
            log.info(why, extra={"fields": {"source": self.source}})
            task.outlet.abort()

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
                    self._doom(stop)
                task.outlet.abort()
            except RowsUndone as rows:
                log.info("a transaction took rows back: it is read again", extra={"fields": {"source": self.source}})
                self._undone.append(rows.undone)
                task.outlet.abort()
            except DumpForgotten:
                task.outlet.abort()
            except AnnotationMissing:
                log.info(
                    "rows need their statements' text: asked for from now on", extra={"fields": {"source": self.source}}
                )
                self._annotated = True
                task.outlet.abort()
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

    def _doom(self, stop: Stop) -> None:
        fields = {"source": self.source, "error": str(stop.error)}
        log.warning("table can't be read on: it is read again up to the transaction before", extra={"fields": fields})
        self._doomed[stop.table] = stop

    def _retry_later(self, task: Task, error: MenuraError) -> None:
        """Report once, wait, and let the stream open anew."""
        if self._state.failed(PART, error):
            log.error(FAILED[error.terminal], extra={"fields": {"source": self.source, "error": str(error)}})
            try:
                task.outlet.send(stream_pb2.StreamResponse(error=as_message(error)))
            except StreamClosed:
                return
        backoff = self._terminal if error.terminal else self._transient
        if not task.cancelled.wait(backoff.next_seconds()):
            task.outlet.abort()

    def _work(self, task: Task) -> None:
        """Read the log for this Replicate; returns only by an exception, or when there is no table."""
        replicate = task.replicate
        kept = {
            (sync.table.database, sync.table.table) for sync in replicate.tables if sync.WhichOneof("start") is None
        }
        self._doomed = {table: stop for table, stop in self._doomed.items() if table in kept}
        with closing(connect(self._config.binlog, self.source)) as connection:
            facts = check_binlog_on(connection, self._config, self._replica)
            self._state.seen(facts.flavor, facts.version)
            scheme = scheme_of(replicate, natural_scheme(facts))
            server_log = ServerLog(connection, self._config.binlog, self.source, facts, scheme)
            starts = resolve(replicate, server_log, scheme, self._config.filter, self.source, self._desk.start_of)
            progress = Progress(starts.positions, server_log.end())
            if starts.positions:
                server_log.check_readable(progress.start)
            with server_errors("asking for the server's settings", self._config.binlog, self.source):
                server = server_of(connection, facts)
            server_name = server_log.server_name()
        self._watch.follow(facts, scheme)
        task.check()
        describer = ServerDescriber(self.source, self._config.binlog, facts, scheme, self._replica, server, task.check)
        with closing(SchemaHistory(self._state_folder, self.source)) as history:
            log_files = LogFiles(history, server_name)
            committed = [position for table, position in starts.positions.items() if table in kept]
            if committed:
                _check_same_file(least(committed), log_files, describer, server_log)
            else:
                log_files.forget()
            self._begin_dumps(replicate, scheme, starts, frozenset(kept & starts.positions.keys()))
            definitions = Definitions(self.source, server, history, describer)
            definitions.begin(progress.start, starts.positions, _anew(replicate))
            self._read(task, facts, scheme, starts, progress, definitions, log_files)

    def _begin_dumps(
        self, replicate: mysql_binlog_pb2.Replicate, scheme: Scheme, starts: Starts, kept: frozenset[Table]
    ) -> None:
        wholes = [self._desk.whole(dump) for dump, table in starts.awaited.items() if table in starts.positions]
        for stop in starts.stopped:
            for dump in [dump for dump, table in starts.awaited.items() if table == stop.table]:
                self._desk.refuse(dump, stop.error)
        self._desk.begin(
            TaskTables(
                scheme,
                replicate.next_cut,
                _committed(replicate, scheme),
                kept,
                starts.awaited,
                frozenset(starts.undecided),
                bool(starts.positions),
                tuple(whole for whole in wholes if whole is not None),
            )
        )

    def _read(
        self,
        task: Task,
        facts: Facts,
        scheme: Scheme,
        starts: Starts,
        progress: Progress,
        definitions: Definitions,
        log_files: LogFiles,
    ) -> None:
        replicate = task.replicate
        decoder = BinlogDecoder(
            mariadb=facts.flavor == "mariadb",
            checksum=True,
            next_gsn=replicate.next_gsn,
            next_transaction_id=replicate.next_transaction_id,
            batch_rows=BATCH_ROWS,
        )
        decoder.annotated = self._annotated
        with closing(PreparedFile(self._state_folder, self.source)) as prepared:
            reader = self._reader(task, facts, scheme, progress, decoder, definitions, log_files, prepared)
            if starts.positions or starts.stopped:
                reader.send_start(starts.started, starts.stopped)
            self._stream(task, reader, facts, scheme, progress, decoder)

    def _stream(
        self,
        task: Task,
        reader: BinlogReader,
        facts: Facts,
        scheme: Scheme,
        progress: Progress,
        decoder: BinlogDecoder,
    ) -> None:
        fields: dict[str, object] = {"source": self.source, "generation": task.replicate.generation}
        if not progress.synced():
            log.info("no table to replicate", extra={"fields": fields})
            self._state.recovered(PART)
            return
        fields |= {"tables": len(progress.synced()), "position": progress.start}
        log.info("replication starts", extra={"fields": fields})
        stream = open_stream(
            self._config.binlog, self.source, facts, self._replica, progress.start, scheme, annotated=self._annotated
        )
        with closing(stream):
            task.stream = stream
            task.check()  # a cancellation before the line above has not seen the stream
            decoder.checksum = stream.checksum
            try:
                reader.run(stream)
            except ServerRefused as refused:
                raise self._explain(refused, facts, scheme, progress.start) from refused

    def _reader(
        self,
        task: Task,
        facts: Facts,
        scheme: Scheme,
        progress: Progress,
        decoder: BinlogDecoder,
        definitions: Definitions,
        log_files: LogFiles,
        prepared: PreparedFile,
    ) -> BinlogReader:
        replicate = task.replicate
        sink = TaskSink(task, decoder, self._credit, self._state, progress)
        return BinlogReader(
            self._config,
            facts,
            decoder,
            definitions,
            log_files,
            progress,
            self._doomed,
            self._undone,
            prepared,
            PreparedLog(self.source, self._config.binlog, facts, self._replica, definitions.server, sink.received),
            scheme,
            sink,
            self._desk,
            CutSettings(replicate.next_cut, replicate.cut_interval_ms / 1000, replicate.cut_bytes, SILENCE_SECONDS),
            time.monotonic,
        )

    def _explain(self, refused: ServerRefused, facts: Facts, scheme: Scheme, start: Position) -> SourceError:
        """What the server's error packet means, found out by asking it; its text is only shown."""
        with closing(connect(self._config.binlog, self.source)) as connection:
            if refused.code == ER_SLAVE_SAME_ID or other_replica_has_our_id(connection, facts, self._replica):
                return duplicate_id(self.source, self._replica, "another replica reads the log under this id")
            try:
                ServerLog(connection, self._config.binlog, self.source, facts, scheme).check_readable(start)
            except SourceError as error:
                return error
        return SourceFailed(
            "reading the binary log",
            f"the server ended the stream with code {refused.code}: {refused.message}",
            data="Nothing is lost: the log is read again from the last committed cut",
            remedy="See the server's log",
            source=self.source,
            position=str(start),
        )


def _check_same_file(position: Position, files: LogFiles, describer: ServerDescriber, server_log: ServerLog) -> None:
    """Raise `SourceRebuilt` where the file of a committed position is another one under the same name."""
    before = files.begun(position.file)
    now = describer.log_file_begun(position.file) if before else None
    if before and now and before != now:
        raise server_log.rebuilt(
            position, f"{position.file} was begun at {_utc(before)} before, and at {_utc(now)} now"
        )


def _utc(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _committed(replicate: mysql_binlog_pb2.Replicate, scheme: Scheme) -> Floor | None:
    """The end of its last cut."""
    try:
        position = from_proto(replicate.position, scheme) if replicate.HasField("position") else None
    except PositionSyntaxError:  # no table is read on from it, or that was an error already
        position = None
    return Floor(replicate.next_cut - 1, replicate.next_gsn - 1, position, {}) if position is not None else None


def _anew(replicate: mysql_binlog_pb2.Replicate) -> list[Table]:
    """Tables whose earlier life does not count."""
    return [
        (sync.table.database, sync.table.table)
        for sync in replicate.tables
        if sync.WhichOneof("start") not in (None, "position")
    ]
