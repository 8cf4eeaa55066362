"""The log of a PostgreSQL database, as `agent.capture.plugin` has it read.

Comes in: a Replicate. Goes out: the start cut, batches under credit, cuts. What a reading finds out that the next one
has to know (stops to come, a slot that is of no use any more) is kept here for as long as the process lives; it is
found again when it is lost. Durable: what `stream.definition_store` says, and the slot on the server.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing

from menura.v1 import changes_pb2

from agent.capture.changes import ReadAgain
from agent.capture.cuts import CutSettings
from agent.capture.stale_tables import StaleTables
from agent.capture.starts import begin_dumps
from agent.capture.task import Task, TaskSink
from agent.errors import PositionPurged, SourceError
from agent.positions import PositionSyntaxError
from agent.runtime.credit import Credit
from agent.runtime.state import READING, LogKept
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.source_kind import Context
from agent.sources.postgresql.beginning import Beginning, Beginnings
from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.first_names import FirstNames
from agent.sources.postgresql.known_definitions import KnownDefinitions
from agent.sources.postgresql.native.decoder import PgoutputDecoder
from agent.sources.postgresql.positions import WalPosition, WalPositionKind, from_proto, lsn_text
from agent.sources.postgresql.read_position import OtherHistory
from agent.sources.postgresql.seen_transactions import SeenTransactions, Snapshot
from agent.sources.postgresql.server.checks import check_replication, identity_lost
from agent.sources.postgresql.server.connection import Connection, Facts, connect, server_errors
from agent.sources.postgresql.server.made_lists import MadeLists
from agent.sources.postgresql.server.publication import Lack
from agent.sources.postgresql.server.publication_filter import follow_filter, without_lists
from agent.sources.postgresql.server.slot import drop_slot
from agent.sources.postgresql.server.watch import ServerWatch, Sights
from agent.sources.postgresql.server.wire import WalStream, open_wal_stream, stream_error
from agent.sources.postgresql.stream.catalog_reader import CatalogReader
from agent.sources.postgresql.stream.context import StreamContext
from agent.sources.postgresql.stream.definition_store import DefinitionStore
from agent.sources.postgresql.stream.looks import Look, Looks
from agent.sources.postgresql.stream.reader import ServerRefused, WalReader
from agent.sources.postgresql.stream.stops import TableFailed
from agent.sources.postgresql.stream.streamed import StreamedTransactions, TooMuchStreamed
from agent.table_positions import Stop, Table

log = logging.getLogger("menura.replicator")

BATCH_ROWS = 32_768
#: without a byte, keepalives included, for so long the connection counts as lost
SILENCE_SECONDS = 60.0
#: the part whose warning is that of the slot's WAL
RETENTION = "slot"
#: the part whose warning is that of tables whose changes the server refuses
IDENTITY = "identity"
#: a slot stays for so long after its last table, which may only be about to begin anew
SLOT_SECONDS = 30.0
#: a server can send transactions in progress
STREAMING_VERSION = 140000
#: transactions in progress were more than may be kept: for so long, the server keeps them
UNSTREAMED_SECONDS = 3600.0
#: between two looks at whether tables can begin, while none is read
WAIT_SECONDS = 0.5


class WalChanges:
    """One source's log."""

    def __init__(
        self,
        context: Context,
        config: PostgresqlConfig,
        coordinator: SnapshotCoordinator,
        credit: Credit,
        seen: SeenTransactions,
        shared: KnownDefinitions,
    ) -> None:
        self.source = config.name
        self._config = config
        self._slot = config.slot_of(context.tenant, context.agent)
        self._coordinator = coordinator
        self._credit = credit
        self._state = context.state
        self._state_folder = context.state_folder
        self._seen = seen
        self._shared = shared
        self._made_lists = MadeLists(context.state_folder, config.name)
        self._names = FirstNames(context.state_folder, config.name, config.filter)
        self._looks = Looks(config, self._made_lists, self._names)
        self._beginnings = Beginnings(
            config, self._slot, coordinator, self._state, seen, shared, self._looks, self._names
        )
        sights = Sights(
            end=self._state.end_is,
            snapshot=lambda text: seen.prune(Snapshot.parse(text)),
            retention=self._retention_is,
            kept=self._kept_is,
            publication=self._keep_publication,
            look=self._look,
            other_log=self._log_is_another,
            going_down=self._server_goes_down,
        )
        self._watch = ServerWatch(config, self._slot, sights)
        shared.look_soon = self._watch.look_soon
        shared.ignores = lambda table, column: config.filter.verdict(*table).ignores(column)
        self._on_reset: Callable[[], None] = lambda: None
        #: of the stream that runs
        self._lock = threading.Lock()
        self._reader: WalReader | None = None
        self._facts: Facts | None = None
        self._tables: tuple[Table, ...] = ()
        self._newest_look: Look | None = None
        #: the last look shows all of the log up to here; 0: another one is due
        self._looked_lsn = 0
        #: the server keeps little WAL for the slot
        self._is_short = False
        #: the server refuses changes of tables
        self._is_refusing = False
        self._pending_stops: dict[Table, Stop[WalPosition]] = {}
        #: monotone seconds: until then the server is to keep transactions in progress
        self._unstreamed_until = 0.0

    def preflight(self) -> str:
        found = check_replication(self._config, self._slot)
        self._state.seen("postgresql", found.facts.version_text)
        return f"log {self._config.address} PostgreSQL {found.facts.version_text}, {found}"

    def watch(self, on_reset: Callable[[], None]) -> None:
        self._on_reset = on_reset
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()

    def progressed(self) -> None: ...

    def read(self, task: Task) -> None:
        try:
            self._read_log(task)
        except TableFailed as failed:
            fields = {"source": self.source, "error": str(failed.stop.error)}
            log.warning(
                "table can't be read on: it is read again up to the transaction before", extra={"fields": fields}
            )
            self._pending_stops[failed.stop.table] = failed.stop
            raise ReadAgain from failed
        finally:
            with self._lock:
                self._reader, self._tables, self._newest_look, self._looked_lsn = None, (), None, 0
            self._seen.end()

    def _read_log(self, task: Task) -> None:
        replicate = task.replicate
        kept = {
            (sync.table.database, sync.table.table) for sync in replicate.tables if sync.WhichOneof("start") is None
        }
        self._pending_stops = {table: stop for table, stop in self._pending_stops.items() if table in kept}
        with closing(DefinitionStore(self._state_folder, self.source)) as store:
            begun = self._beginnings.begin(task, store)
            if begun.starts.gaps:  # places of the log that is gone
                self._pending_stops = {}
            with self._lock:
                self._facts = begun.facts
                self._tables = tuple((sync.table.database, sync.table.table) for sync in replicate.tables)
            if not self._tables:
                self._refused_are({})
            self._watch.follow(begun.facts)
            task.check()
            begin_dumps(self._coordinator, replicate, begun.starts, WalPositionKind.LSN, _committed(replicate))
            self._read(task, begun, store)

    def _read(self, task: Task, begun: Beginning, store: DefinitionStore) -> None:
        replicate = task.replicate
        decoder = PgoutputDecoder(
            next_gsn=replicate.next_gsn, next_transaction_id=replicate.next_transaction_id, batch_rows=BATCH_ROWS
        )
        with closing(CatalogReader(self._config)) as catalog:
            reader = self._reader_of(task, begun, decoder, store, catalog)
            with self._lock:
                self._reader = reader
            if begun.starts.positions or begun.starts.stopped:
                reader.send_start(begun.starts)
            self._stream(task, reader, begun)

    def _stream(self, task: Task, reader: WalReader, begun: Beginning) -> None:
        fields: dict[str, object] = {"source": self.source, "generation": task.replicate.generation}
        tables = begun.table_positions.synced()
        if not tables:
            log.info("no table to replicate", extra={"fields": fields})
            self._state.recovered(READING)
            self._without_stream(task, begun)
            return
        start = begun.table_positions.start
        log.info("replication starts", extra={"fields": fields | {"tables": len(tables), "position": str(start)}})
        server, publication = self._config.replication, self._config.publication
        in_progress = self._takes_in_progress(begun)
        try:
            from_lsn = start.lsn if start.last is None else start.last.end_lsn  # nothing is to come before the start
            stream = open_wal_stream(server, self.source, self._slot, publication, from_lsn, in_progress=in_progress)
            with closing(stream):
                task.stream = stream
                task.check()  # a cancellation before the line above has not seen the stream
                try:
                    self._run(reader, stream, in_progress=in_progress)
                except ServerRefused as refused:
                    raise stream_error(
                        refused.fields, server, self.source, self._slot, publication, refused.position.lsn
                    ) from refused
        except TooMuchStreamed as more:
            self._unstreamed_until = time.monotonic() + UNSTREAMED_SECONDS
            log.warning(
                "transactions in progress are left to the server, which sends them at their commit",
                extra={"fields": fields | {"found": str(more), "seconds": int(UNSTREAMED_SECONDS)}},
            )
            raise ReadAgain from more
        except OtherHistory as other:
            found = f"the server sends a transaction of {lsn_text(other.commit_lsn)} that it had not when that was read"
            self._beginnings.rewritten = (start, found)
            raise ReadAgain from other
        except PositionPurged as purged:
            self._beginnings.unreadable = purged
            log.warning("the slot is of no use any more", extra={"fields": fields | {"error": str(purged)}})
            raise ReadAgain from purged

    def _run(self, reader: WalReader, stream: WalStream, *, in_progress: bool) -> None:
        if not in_progress:
            reader.run(stream)
        most_bytes = self._config.max_streamed_bytes
        with closing(StreamedTransactions(stream, self._state_folder, most_bytes)) as streamed:
            reader.run(streamed)

    def _takes_in_progress(self, begun: Beginning) -> bool:
        """Whether large transactions are to come before their commit."""
        if not self._config.max_streamed_bytes or begun.facts.version < STREAMING_VERSION:
            return False
        return time.monotonic() >= self._unstreamed_until

    def _without_stream(self, task: Task, begun: Beginning) -> None:
        """No table is read: those that are to come may need the slot, for a dump that is read whole; without any it
        would keep the server's log for ever, and column lists would bind tables that nobody reads. A slot that the
        configuration names is its owner's: it stays."""
        if not task.replicate.tables:
            if task.cancelled.wait(SLOT_SECONDS):
                return
            self._release_publication()
            if not self._config.slot:
                drop_slot(self._config.replication, self.source, self._slot)
            return
        while not task.cancelled.wait(WAIT_SECONDS):
            if begun.unsettled:
                self._watch.look_soon()
            look = self._take_look()
            if look is not None and begun.unsettled - look.unsettled:
                raise ReadAgain

    def _release_publication(self) -> None:
        server = self._config.replication
        with (
            closing(connect(server, self.source)) as connection,
            server_errors("taking column lists out of the publication", server, self.source),
        ):
            without_lists(connection, self._config)

    def _reader_of(
        self, task: Task, begun: Beginning, decoder: PgoutputDecoder, store: DefinitionStore, catalog: CatalogReader
    ) -> WalReader:
        replicate = task.replicate
        sink = TaskSink(task, decoder, self._credit, self._state, begun.table_positions)
        settings = CutSettings.of(replicate, SILENCE_SECONDS)
        return WalReader(
            StreamContext(
                self._config,
                decoder,
                begun.table_positions,
                sink,
                self._coordinator,
                StaleTables(replicate.tables, begun.starts.started),
                settings,
                time.monotonic,
                self._seen,
                self._shared,
                self._names,
                store,
                begun.known,
                begun.lost,
                catalog,
                self._take_look,
                self._watch.look_soon,
                self._pending_stops,
                begun.unsettled,
            )
        )

    # --- the watch's thread

    def _look(self, connection: Connection, end: WalPosition) -> None:
        with self._lock:
            facts, tables, reader = self._facts, self._tables, self._reader
        if not tables:
            self._refused_are({})
        if facts is None or not tables or end.lsn <= self._looked_lsn:
            return
        look = self._looks.look(connection, facts, tables, reader.oids if reader is not None else ())
        with self._lock:
            if self._tables != tables:
                return
            self._newest_look = look
            self._looked_lsn = look.before_lsn if look.is_whole and not look.unsettled else 0
        self._refused_are(look.refused)

    def _keep_publication(self, connection: Connection) -> None:
        """A list that keeps others from changing their rows goes soon."""
        if follow_filter(connection, self._config, self._made_lists):
            self._watch.look_soon()

    def _take_look(self) -> Look | None:
        with self._lock:
            look, self._newest_look = self._newest_look, None
        return look

    def _retention_is(self, short: SourceError | None) -> None:
        if short is not None:
            self._state.failed(RETENTION, short)
        elif self._is_short:
            self._state.recovered(RETENTION)
        self._is_short = short is not None

    def _kept_is(self, kept: LogKept | None) -> None:
        self._state.log_kept = kept

    def _refused_are(self, refused: Mapping[Table, Lack]) -> None:
        lost = identity_lost(self._config, refused)
        if lost is not None and self._state.failed(IDENTITY, lost):
            log.warning("the server refuses changes of tables", extra={"fields": {"error": str(lost)}})
        elif lost is None and self._is_refusing:
            self._state.recovered(IDENTITY)
        self._is_refusing = lost is not None

    def _log_is_another(self) -> None:
        self._on_reset()

    def _server_goes_down(self) -> None:
        with self._lock:
            reader = self._reader
        if reader is not None:
            reader.wait_for_all()


def _committed(replicate: changes_pb2.Replicate) -> WalPosition | None:
    """Where its last cut ended."""
    try:
        return from_proto(replicate.position) if replicate.HasField("position") else None
    except PositionSyntaxError:  # no table is read on from it, or that was an error already
        return None
