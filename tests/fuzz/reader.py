"""The whole of the binlog stream's Python under hostile bytes: events to cuts, with SQLite files and no server.

Comes in: a stream as the decoder's target gets it. Goes out: how it ended. The tables that it names are synced; a table
that can't be read on is read again as the agent does it, up to where it stops. Only an error of the agent's own kinds
may come out, each batch must arrive as it was decoded, and reading again must come to an end.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from menura.errors import MenuraError
from menura.v1 import mysql_binlog_pb2

from agent.batch import encode
from agent.config import ServerConfig, SourceConfig
from agent.errors import SourceUnreachable
from agent.filter import Filter, Policy
from agent.mysql.ddl.model import Server, TableDefinition
from agent.mysql.dump.desk import Desk
from agent.mysql.log.table_map import TableMapError, table_of
from agent.mysql.log.xid import Xid
from agent.mysql.positions import Position, Scheme
from agent.mysql.progress import Progress, Stop, Table
from agent.mysql.schema.definitions import Definitions
from agent.mysql.schema.history import SchemaHistory
from agent.mysql.schema.log_files import LogFiles
from agent.mysql.schema.log_scan import Logged
from agent.mysql.schema.versions import Unknown
from agent.mysql.server.connection import Facts, Flavor
from agent.mysql.server.replication import identity_of
from agent.mysql.stream.binlog import BinlogReader, ServerRefused
from agent.mysql.stream.cuts import CutSettings
from agent.mysql.stream.delivery import RowsUndone, TableFailed, Undone
from agent.mysql.stream.prepared import Group, PreparedFile
from agent.mysql.stream.prepared_log import NotPrepared, Part, PreparedLog
from agent.native.decoder import AnnotationMissing, BinlogDecoder, TableBatch
from tests.agent.native.mutation import payloads
from tests.agent.wire import read_table
from tests.fuzz.mutate import BODY

_AT = ServerConfig("127.0.0.1", "menura")
_SOURCE = SourceConfig("shop", _AT, _AT, 0, Filter(Policy.ACCEPT, {}))
_FIRST = Position(None, "uuid", "binlog.000001", 4)
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
        encoded = encode(batch)
        sent = read_table(encoded.rows, encoded.rows_bytes)
        assert sent.schema.equals(pa.schema(batch.rows), check_metadata=True)
        assert sent.num_rows == batch.row_count
        assert read_table(encoded.transactions, encoded.transactions_bytes).equals(pa.table(batch.transactions))

    def send_cut(self, end: mysql_binlog_pb2.CutEnd) -> None:
        end.SerializeToString()

    def received(self, size: int) -> None: ...
    def position_is(self, position: Position, commit_us: int) -> None: ...
    def tables_are(self, stopped: Iterable[Stop]) -> None: ...
    def committed_cut(self) -> int:
        return 0


class _NoServer:
    """A describer that reaches nobody."""

    def tables(self, tables: Collection[Table]) -> tuple[Mapping[Table, TableDefinition | Unknown], Position]:
        self._fail()

    def databases(self) -> Mapping[str, str]:
        self._fail()

    def statements(self, start: Position, until: Position) -> Iterable[Logged]:
        self._fail()

    def is_near(self, start: Position) -> bool:
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
        doomed: dict[Table, Stop] = {}
        undone: list[Undone] = []
        for path in self._folder.rglob("*"):
            if path.is_file():
                path.unlink()
        for _ in range(MOST_ROUNDS):
            try:
                self._read(stream, tables, doomed, undone, mariadb=mariadb)
            except TableFailed as failed:
                doomed |= {stop.table: stop for stop in failed.stops}
            except RowsUndone as rows:
                undone.append(rows.undone)
            except (AnnotationMissing, ServerRefused, MenuraError) as error:
                return f"{type(error).__name__}: {error}"
        raise AssertionError(f"a stream that was opened {MOST_ROUNDS} times")

    def _read(
        self,
        stream: bytes,
        tables: Collection[Table],
        doomed: dict[Table, Stop],
        undone: list[Undone],
        *,
        mariadb: bool,
    ) -> NoReturn:
        flavor: Flavor = "mariadb" if mariadb else "mysql"
        version = (11, 8, 0) if mariadb else (9, 7, 0)
        facts = Facts(flavor, ".".join(map(str, version)), "uuid", has_gtids=False, logs_cascades=True)
        decoder = BinlogDecoder(mariadb=mariadb, checksum=False, next_gsn=1, next_transaction_id=1)
        progress = Progress(dict.fromkeys(tables, _FIRST), _FIRST)
        sink = _Sink()
        server = Server(mariadb=mariadb, version=version)
        log = _NoLog("shop", _AT, facts, identity_of("t", "a", "shop", 0), server, sink.received)
        with (
            closing(PreparedFile(self._folder, "shop")) as prepared,
            closing(SchemaHistory(self._folder, "shop")) as history,
        ):
            definitions = Definitions("shop", server, history, _NoServer())
            reader = BinlogReader(
                _SOURCE, facts, decoder, definitions, LogFiles(history, ""), progress, doomed, undone, prepared, log,
                Scheme.FILE, sink, Desk(), CutSettings(1, 0.0, 1 << 10, 10.0), lambda: 0.0,
            )  # fmt: skip
            reader.run(_Bytes(stream))


def _tables_of(stream: bytes) -> frozenset[Table]:
    tables = set()
    for payload in payloads(stream):
        if len(payload) > BODY and payload[5] == _TABLE_MAP:
            try:
                tables.add(table_of(payload[BODY:])[1:])
            except TableMapError:
                continue
    return frozenset(tables)
