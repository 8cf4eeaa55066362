"""The whole of the binlog stream's Python under hostile bytes: events to cuts, with SQLite files and no server.

Comes in: a stream as the decoder's target gets it. Goes out: how it ended. The tables that it names are synced; a table
that can't be read on is read again as the agent does it, up to where it stops. Only an error of the agent's own kinds
may come out, each batch must arrive as it was decoded, and reading again must come to an end.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from menura.change_batch import Compression
from menura.errors import MenuraError
from menura.v1 import changes_pb2

from agent.capture.cuts import CutSettings
from agent.capture.stale_tables import StaleTables
from agent.columnar.encode import TableBatch, encode
from agent.errors import SourceUnreachable
from agent.filter import Filter, Policy
from agent.positions import Position
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.sources.mysql.config import MysqlConfig, ServerConfig
from agent.sources.mysql.ddl.identifiers import IDENTIFIERS
from agent.sources.mysql.ddl.model import Server, TableDefinition
from agent.sources.mysql.log.table_map import TableMapError, table_of
from agent.sources.mysql.log.xid import Xid
from agent.sources.mysql.native.decoder import AnnotationMissing, BinlogDecoder
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind
from agent.sources.mysql.schema.definitions import Definitions
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.schema.log_files import LogFiles
from agent.sources.mysql.schema.log_scan import Logged
from agent.sources.mysql.schema.versions import Unknown
from agent.sources.mysql.server.connection import Facts, Flavor
from agent.sources.mysql.server.replication import identity_of
from agent.sources.mysql.server.server_log import ServerProcess
from agent.sources.mysql.server.transaction_precise import PreciseTable
from agent.sources.mysql.stream.binlog import BinlogReader, ServerRefused
from agent.sources.mysql.stream.context import StreamContext, Undone
from agent.sources.mysql.stream.prepared import Group, PreparedFile
from agent.sources.mysql.stream.prepared_log import NotPrepared, Part, PreparedLog
from agent.sources.mysql.stream.table_router import ColumnsUnlogged, RowsUndone, TableFailed
from agent.table_positions import Stop, Table, TablePositions
from tests.agent.native.mutation import payloads
from tests.agent.wire import read_table
from tests.fuzz.mutate import BODY

_AT = ServerConfig("127.0.0.1", "menura")
_SOURCE = MysqlConfig(
    name="shop", kind="mysql", client=_AT, binlog=_AT, filter=Filter(Policy.ACCEPT, {}, identifiers=IDENTIFIERS)
)
_FIRST = BinlogPosition(None, "uuid", "binlog.000001", 4)
_TABLE_MAP = 19
#: how often one stream may be opened anew
MOST_ROUNDS = 64


class _Bytes:
    """A replication connection that delivers what it was made with, and ends."""

    def __init__(self, stream: bytes) -> None:
        self._left = memoryview(stream)

    def receive_into(self, buffer: memoryview, timeout_seconds: float) -> int:
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


class _Sink:
    """Reads each batch back."""

    def send_batch(self, batch: TableBatch, cut: int) -> None:
        encoded = encode(batch, Compression.LZ4)
        sent = read_table(encoded.rows, encoded.rows_bytes)
        assert sent.schema.equals(pa.schema(batch.rows), check_metadata=True)
        assert sent.num_rows == batch.row_count
        assert read_table(encoded.transactions, encoded.transactions_bytes).equals(pa.table(batch.transactions))

    def send_cut(self, end: changes_pb2.CutEnd) -> None:
        end.SerializeToString()

    def received(self, size: int) -> None: ...
    def position_is(self, position: Position, commit_us: int) -> None: ...
    def tables_are(self, stopped: Iterable[Stop[Position]]) -> None: ...
    def committed_cut(self) -> int:
        return 0


class _NoServer:
    """A schema_reader that reaches nobody."""

    def tables(self, tables: Collection[Table]) -> tuple[Mapping[Table, TableDefinition | Unknown], BinlogPosition]:
        self._fail()

    def databases(self) -> Mapping[str, str]:
        self._fail()

    def precise_tables(self, names: Collection[str]) -> Sequence[PreciseTable]:
        self._fail()

    def statements(self, start: BinlogPosition, until: BinlogPosition) -> Iterable[Logged]:
        self._fail()

    def is_near(self, start: BinlogPosition) -> bool:
        self._fail()

    def _fail(self) -> NoReturn:
        raise SourceUnreachable("reading definitions of tables", "there is no server", source="shop")


class _NoLog(PreparedLog):
    """A log that holds no prepared transaction any more."""

    def read(self, xid: Xid, known: Group | None, end: Group) -> Iterator[Part]:
        return (_not_prepared() for _ in (xid,))


def _not_prepared() -> Part:
    raise NotPrepared


class ReaderTarget:
    """Reads streams in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, stream: bytes, *, mariadb: bool) -> str:
        """The error that it ends with."""
        tables = _tables_of(stream)
        pending_stops: dict[Table, Stop[BinlogPosition]] = {}
        undone: list[Undone] = []
        for path in self._folder.rglob("*"):
            if path.is_file():
                path.unlink()
        for _ in range(MOST_ROUNDS):
            try:
                self._read(stream, tables, pending_stops, undone, mariadb=mariadb)
            except TableFailed as failed:
                pending_stops |= {stop.table: stop for stop in failed.stops}
            except RowsUndone as rows:
                undone.append(rows.undone)
            except ColumnsUnlogged:
                continue  # with what it has kept of them
            except (AnnotationMissing, ServerRefused, MenuraError) as error:
                return f"{type(error).__name__}: {error}"
        raise AssertionError(f"a stream that was opened {MOST_ROUNDS} times")

    def _read(
        self,
        stream: bytes,
        tables: Collection[Table],
        pending_stops: dict[Table, Stop[BinlogPosition]],
        undone: list[Undone],
        *,
        mariadb: bool,
    ) -> NoReturn:
        flavor: Flavor = "mariadb" if mariadb else "mysql"
        version = (11, 8, 0) if mariadb else (9, 7, 0)
        facts = Facts(flavor, ".".join(map(str, version)), "uuid", has_gtids=False, logs_cascades=True)
        decoder = BinlogDecoder(mariadb=mariadb, checksum=False, next_gsn=1, next_transaction_id=1)
        table_positions = TablePositions(dict.fromkeys(tables, _FIRST), _FIRST)
        sink = _Sink()
        server = Server(mariadb=mariadb, version=version)
        log = _NoLog("shop", _AT, facts, identity_of("t", "a", "shop", 0), server, sink.received)
        with (
            closing(PreparedFile(self._folder, "shop")) as prepared,
            closing(SchemaHistory(self._folder, "shop")) as history,
        ):
            definitions = Definitions("shop", server, history, _NoServer(), _SOURCE.filter)
            files = LogFiles(history)
            files.follows(ServerProcess("server", 1_700_000_000, 1), BinlogPosition(), goes_on=False)
            context = StreamContext(
                _SOURCE, facts, decoder, definitions, files, table_positions, BinlogPositionKind.FILE, prepared, log,
                sink, SnapshotCoordinator(), StaleTables(()), CutSettings(1, 0.0, 1 << 10, 10.0), lambda: 0.0,
                pending_stops, undone,
            )  # fmt: skip
            BinlogReader(context).run(_Bytes(stream))


def _tables_of(stream: bytes) -> frozenset[Table]:
    tables = set()
    for payload in payloads(stream):
        if len(payload) > BODY and payload[5] == _TABLE_MAP:
            try:
                tables.add(table_of(payload[BODY:])[1:])
            except TableMapError:
                continue
    return frozenset(tables)
