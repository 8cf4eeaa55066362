"""What a stream is made of before it begins: its server, where its tables stand, and who takes what it says.

Made anew for each Replicate. `stream.binlog` makes the stream's parts of it; each takes from it what it needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agent.capture.cuts import CutSettings
from agent.capture.sink import Sink
from agent.capture.stale_tables import StaleTables
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.sources.mysql.config import MysqlConfig
from agent.sources.mysql.native.decoder import BinlogDecoder
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind
from agent.sources.mysql.schema.definitions import Definitions
from agent.sources.mysql.schema.log_files import LogFiles
from agent.sources.mysql.server.connection import Facts
from agent.sources.mysql.stream.prepared import Group, PreparedFile
from agent.sources.mysql.stream.prepared_log import PreparedLog
from agent.table_positions import Stop, Table, TablePositions


@dataclass(frozen=True, slots=True)
class Undone:
    """Rows that a transaction takes back: those between two of its statements about savepoints."""

    group: Group
    #: number of a SAVEPOINT, or 0: the transaction's begin
    after: int
    #: number of the ROLLBACK
    until: int


@dataclass(frozen=True, slots=True)
class StreamContext:
    config: MysqlConfig
    facts: Facts
    decoder: BinlogDecoder
    definitions: Definitions
    log_files: LogFiles
    table_positions: TablePositions[BinlogPosition]
    position_kind: BinlogPositionKind
    prepared_file: PreparedFile
    prepared_log: PreparedLog
    sink: Sink
    coordinator: SnapshotCoordinator
    stale: StaleTables
    settings: CutSettings
    #: monotone seconds
    clock: Callable[[], float]
    #: tables that an earlier reading could not read on from these places
    pending_stops: Mapping[Table, Stop[BinlogPosition]]
    #: that earlier readings met
    undone: Sequence[Undone]
