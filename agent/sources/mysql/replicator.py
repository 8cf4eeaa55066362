"""The log of a MySQL or MariaDB server, as `agent.capture.plugin` has it read.

Comes in: a Replicate. Goes out: the start cut, batches under credit, cuts. What a reading finds out that the next one
has to know (stops to come, rows that are taken back, whether statements' text is needed) is kept here for as long as
the process lives; it is found again when it is lost. Durable: what `schema` and `stream.prepared` say.
"""

import logging
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from menura.v1 import changes_pb2

from agent.capture.changes import ReadAgain
from agent.capture.cuts import CutSettings
from agent.capture.stale_tables import StaleTables
from agent.capture.starts import begin_dumps
from agent.capture.task import Task, TaskSink
from agent.positions import PositionSyntaxError
from agent.runtime.credit import Credit
from agent.runtime.state import READING, LogKept
from agent.snapshot.coordinator import SnapshotCoordinator
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
from agent.sources.mysql.snapshot.log_retention import read_log_retention
from agent.sources.mysql.stream.binlog import BinlogReader, ServerRefused
from agent.sources.mysql.stream.context import StreamContext, Undone
from agent.sources.mysql.stream.prepared import PreparedFile
from agent.sources.mysql.stream.prepared_log import PreparedLog
from agent.sources.mysql.stream.table_router import ColumnsUnlogged, RowsUndone, TableFailed
from agent.table_positions import Stop, Table

if TYPE_CHECKING:
    from pymysql.connections import Connection

log = logging.getLogger("menura.replicator")

#: measured: twice as many cost 20 MiB more and save no CPU
BATCH_ROWS = 32_768


class BinlogChanges:
    """One source's log."""

    def __init__(self, context: Context, config: MysqlConfig, coordinator: SnapshotCoordinator, credit: Credit) -> None:
        self.source = config.name
        self._config = config
        self._coordinator = coordinator
        self._state = context.state
        self._state_folder = context.state_folder
        self._replica = identity_of(context.tenant, context.agent, self.source, config.server_id)
        self._beginnings = Beginnings(config, self._replica, coordinator, self._state)
        self._credit = credit
        self._watch = LogEndWatch(config.binlog, self.source, self._state.end_is, self._look)
        self._pending_stops: dict[Table, Stop[BinlogPosition]] = {}
        self._undone: list[Undone] = []
        #: MariaDB's statements are asked for beside their rows, which costs bytes: from when some row needed it
        self._annotated = False

    def preflight(self) -> str:
        facts = check_binlog(self._config, self._replica)
        self._state.seen(facts.flavor, facts.version)
        gtids = "with GTIDs" if facts.has_gtids else "by file and offset"
        return f"binlog {self._config.binlog.address} {facts.flavor} {facts.version} {gtids}"

    def watch(self, on_reset: Callable[[], None]) -> None:
        self._watch.start(on_reset)

    def stop(self) -> None:
        self._watch.stop()

    def _look(self, connection: "Connection[Any]") -> None:
        retention = read_log_retention(connection)
        self._state.log_kept = LogKept(retention.seconds, is_unlimited=retention.is_unlimited)

    def progressed(self) -> None:
        self._beginnings.progressed()

    def read(self, task: Task) -> None:
        try:
            self._read_log(task)
        except TableFailed as failed:
            for stop in failed.stops:
                self._note_stop(stop)
            raise ReadAgain from failed
        except RowsUndone as rows:
            log.info("a transaction took rows back: it is read again", extra={"fields": {"source": self.source}})
            self._undone.append(rows.undone)
            raise ReadAgain from rows
        except AnnotationMissing as missing:
            fields = {"source": self.source}
            log.info("rows need their statements' text: asked for from now on", extra={"fields": fields})
            self._annotated = True
            raise ReadAgain from missing
        except ColumnsUnlogged as known:
            raise ReadAgain from known

    def _note_stop(self, stop: Stop[BinlogPosition]) -> None:
        fields = {"source": self.source, "error": str(stop.error)}
        log.warning("table can't be read on: it is read again up to the transaction before", extra={"fields": fields})
        self._pending_stops[stop.table] = stop

    def _read_log(self, task: Task) -> None:
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
            anew = begun.anew(replicate, history.tables())
            begun.unlogged_columns.begin(begun.starts.positions, anew)
            committed = _committed(replicate, begun.position_kind)
            begin_dumps(self._coordinator, replicate, begun.starts, begun.position_kind, committed)
            definitions = Definitions(
                self.source,
                begun.server,
                history,
                begun.schema_reader,
                self._config.filter,
                begun.renames,
                begun.unlogged_columns,
            )
            definitions.begin(begun.table_positions.start, begun.starts.positions, anew)
            self._read(task, begun, definitions)

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
            if begun.starts.positions or begun.starts.stopped:
                reader.send_start(begun.starts)
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
        facts, replicate = begun.facts, task.replicate
        sink = TaskSink(task, decoder, self._credit, self._state, begun.table_positions)
        context = StreamContext(
            self._config,
            facts,
            decoder,
            definitions,
            begun.log_files,
            begun.table_positions,
            begun.position_kind,
            prepared,
            PreparedLog(self.source, self._config.binlog, facts, self._replica, definitions.server, sink.received),
            sink,
            self._coordinator,
            StaleTables(replicate.tables, begun.starts.started),
            CutSettings.of(replicate, SILENCE_SECONDS),
            time.monotonic,
            self._pending_stops,
            self._undone,
        )
        return BinlogReader(context)


def _committed(replicate: changes_pb2.Replicate, position_kind: BinlogPositionKind) -> BinlogPosition | None:
    """Where its last cut ended."""
    try:
        return from_proto(replicate.position, position_kind) if replicate.HasField("position") else None
    except PositionSyntaxError:  # no table is read on from it, or that was an error already
        return None
