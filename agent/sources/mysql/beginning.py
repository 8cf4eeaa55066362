"""How the work on a Replicate begins: which server is there, and from where each table is read.

Comes in: a Replicate, a connection to the server, what is remembered of the server that was read last. Goes out: a
`Beginning`. Where the server's log does not go on where the source's was read, tables go on behind the gap; where that
is perhaps the wrong server, nothing is read before somebody has accepted it, and the source's state shows which one it
is. Durable, in the schema history: the server of a stream that begins.
"""

from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from menura.v1 import changes_pb2

from agent.capture.starts import Starts, resolve
from agent.capture.task import Task
from agent.errors import PositionPurged, SourceError, SourceFailed, SourceRebuilt
from agent.runtime.state import SourceState
from agent.snapshot.coordinator import SnapshotCoordinator, TableStart
from agent.sources.mysql.config import MysqlConfig
from agent.sources.mysql.ddl.model import Server
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.schema.log_files import LogFiles
from agent.sources.mysql.schema.renames import Renames
from agent.sources.mysql.schema.schema_reader import ServerSchemaReader, server_of
from agent.sources.mysql.schema.unlogged_columns import UnloggedColumns
from agent.sources.mysql.server.checks import check_binlog_on, check_filter, duplicate_id
from agent.sources.mysql.server.connection import Facts, connect, server_errors
from agent.sources.mysql.server.continuity import Continuity, Remembered
from agent.sources.mysql.server.replication import ER_SLAVE_SAME_ID, ReplicaIdentity, other_replica_has_our_id
from agent.sources.mysql.server.server_log import ServerLog, natural_position_kind
from agent.sources.mysql.stream.binlog import ServerRefused
from agent.sources.mysql.stream.starts import BinlogStart, position_kind_of
from agent.table_positions import Table, TablePositions

#: a server ends a stream with it that it can't serve from its position, for many a reason
ER_MASTER_FATAL_ERROR_READING_BINLOG = 1236


@dataclass(frozen=True, slots=True)
class Beginning:
    facts: Facts
    position_kind: BinlogPositionKind
    server: Server
    schema_reader: ServerSchemaReader
    log_files: LogFiles
    starts: Starts[BinlogPosition]
    table_positions: TablePositions[BinlogPosition]
    renames: Renames
    unlogged_columns: UnloggedColumns

    def anew(self, replicate: changes_pb2.Replicate, known: Collection[Table]) -> list[Table]:
        """Tables whose earlier life does not go on; of a log that is gone, all that are `known`.

        One that waits for its dump has not begun: what is known of it may tell its definition when it does.
        """
        asked = [
            (sync.table.database, sync.table.table)
            for sync in replicate.tables
            if sync.WhichOneof("start") not in (None, "position")
        ]
        begun = [table for table in asked if table in self.starts.positions]
        behind_gaps = [(event.table.database, event.table.table) for event in self.starts.gaps]
        if not (self.starts.kept or set(behind_gaps) <= set(asked)):
            return [*begun, *known]
        return [*begun, *behind_gaps]


class Beginnings:
    """Of one source."""

    def __init__(
        self, config: MysqlConfig, replica: ReplicaIdentity, coordinator: SnapshotCoordinator, state: SourceState
    ) -> None:
        self._config = config
        self._replica = replica
        self._coordinator = coordinator
        self._state = state
        #: a server has refused a position that its own GTIDs seem to cover
        self._looks_into_log = False

    def progressed(self) -> None:
        """A server serves from the position that was asked for."""
        self._looks_into_log = False

    def begin(self, task: Task, history: SchemaHistory) -> Beginning:
        """Raises a `SourceError` where the source can't be read; its state has the server that waits for acceptance."""
        config, replicate = self._config, task.replicate
        with closing(connect(config.binlog, config.name)) as connection:
            facts = check_binlog_on(connection, config, self._replica)
            self._state.seen(facts.flavor, facts.version)
            position_kind = position_kind_of(replicate, natural_position_kind(facts))
            with server_errors("asking for the server's settings", config.binlog, config.name):
                server = server_of(connection, facts)
            schema_reader = ServerSchemaReader(
                config.name, config.binlog, facts, position_kind, self._replica, server, task.check, config.filter
            )
            log_files = LogFiles(history)
            continuity = self._continuity(
                ServerLog(connection, config.binlog, config.name, facts, position_kind), log_files, schema_reader
            )

            end = continuity.log.end()
            renames = Renames(config.name, history, config.filter)
            unlogged_columns = UnloggedColumns(config.name, history, config.filter)
            renames.catch_up(end, schema_reader.statements, server)
            with server_errors("checking the filter", config.binlog, config.name, "SELECT"):
                self._state.findings_are(check_filter(connection, config, facts))

            def accepts(position: BinlogPosition, why: SourceRebuilt) -> bool:
                offered = continuity.offer(position, why)
                self._state.offers(offered)
                return bool(replicate.accepted_server) and replicate.accepted_server == offered.identity

            log = BinlogStart(continuity, position_kind, config.name)
            starts = resolve(replicate, log, config, partial(self._start_of, position_kind), accepts)
            renames.accepted(end)
            table_positions = TablePositions(starts.positions, continuity.log.end())
            goes_on = bool(starts.kept) and not starts.gaps
            log_files.follows(continuity.log.process(), table_positions.start, goes_on=goes_on)
        return Beginning(
            facts,
            position_kind,
            server,
            schema_reader,
            log_files,
            starts,
            table_positions,
            renames,
            unlogged_columns,
        )

    def _start_of(self, position_kind: BinlogPositionKind, dump: str) -> BinlogPosition | TableStart:
        start = self._coordinator.start_of(dump, position_kind)
        assert isinstance(start, BinlogPosition | TableStart)
        return start

    def explain(self, refused: ServerRefused, begun: Beginning) -> SourceError:
        """What the server's error packet means, found out by asking it; its text is only shown."""
        config, start = self._config, begun.table_positions.start
        with closing(connect(config.binlog, config.name)) as connection:
            if refused.code == ER_SLAVE_SAME_ID or other_replica_has_our_id(connection, begun.facts, self._replica):
                return duplicate_id(config.name, self._replica, "another replica reads the log under this id")
            self._looks_into_log = refused.code == ER_MASTER_FATAL_ERROR_READING_BINLOG
            log = ServerLog(connection, config.binlog, config.name, begun.facts, begun.position_kind)
            continuity = self._continuity(log, begun.log_files, begun.schema_reader)
            try:
                continuity.check(start)
            except PositionPurged as purged:
                return purged
            except SourceRebuilt as rebuilt:
                self._state.offers(continuity.offer(start, rebuilt))
                return rebuilt
            except SourceError as error:
                return error
        return SourceFailed(
            "reading the binary log",
            f"the server ended the stream with code {refused.code}: {refused.message}",
            data="The lake keeps what it has; the log is read again from the last committed cut",
            remedy="See the server's log",
            source=config.name,
            position=str(start),
        )

    def _continuity(self, log: ServerLog, log_files: LogFiles, schema_reader: ServerSchemaReader) -> Continuity:
        remembered = Remembered(log_files.process, log_files.since, log_files.begun, log_files.transactions.compared_in)
        return Continuity(log, self._config.name, remembered, schema_reader, looks_into_log=self._looks_into_log)
