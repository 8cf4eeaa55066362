"""Events that a server writes rarely or only in some set-ups: read by the whole agent, or as bytes by its reader."""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pymysql
import pytest
from menura.errors import MenuraError
from menura.v1 import changes_pb2

from agent.capture.cuts import CutSettings
from agent.capture.stale_tables import StaleTables
from agent.columnar.encode import TableBatch
from agent.errors import EventUnknown, EventUnreadable, SourceConnectionLost
from agent.filter import Filter, Policy
from agent.positions import Position
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.sources.mysql.config import MysqlConfig, ServerConfig
from agent.sources.mysql.ddl.identifiers import IDENTIFIERS
from agent.sources.mysql.ddl.model import Server
from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.native.decoder import BinlogDecoder
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind
from agent.sources.mysql.schema.definitions import Definitions
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.schema.log_files import LogFiles
from agent.sources.mysql.schema.schema_reader import ServerSchemaReader
from agent.sources.mysql.server.connection import Facts
from agent.sources.mysql.server.replication import identity_of
from agent.sources.mysql.server.server_log import ServerProcess
from agent.sources.mysql.stream.binlog import BinlogReader
from agent.sources.mysql.stream.context import StreamContext
from agent.sources.mysql.stream.prepared import PreparedFile
from agent.sources.mysql.stream.prepared_log import PreparedLog
from agent.table_positions import Stop, TablePositions
from agent.unlogged import UnloggedChanges, UnloggedPolicy
from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import running_agent
from tests.agent.test_replication import ITEMS, ORDERS, change, config, prepare, wait_equal
from tests.servers import FLAVORS, Flavor, server

TABLE = ("shop", "orders")
FIRST_LOG = "binlog.000001"


class Bytes:
    """A replication connection that delivers what it was made with, and ends."""

    def __init__(self, events: Iterable[bytes]) -> None:
        packets = b"".join(
            (len(event) + 1).to_bytes(3, "little") + bytes([number % 256, 0]) + event
            for number, event in enumerate(events)
        )
        self._left = memoryview(packets)

    def receive_into(self, buffer: memoryview, timeout_seconds: float) -> int:
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


class Recorder:
    """A sink that remembers where the stream was."""

    def __init__(self) -> None:
        self.position = BinlogPosition()
        self.stopped: list[Stop[Position]] = []
        self.cuts: list[changes_pb2.CutEnd] = []

    def send_batch(self, batch: TableBatch, cut: int) -> None: ...
    def send_cut(self, end: changes_pb2.CutEnd) -> None:
        self.cuts.append(end)

    def received(self, size: int) -> None: ...
    def position_is(self, position: Position, commit_us: int) -> None:
        assert isinstance(position, BinlogPosition)
        self.position = position

    def committed_cut(self) -> int:
        return 0

    def tables_are(self, stopped: Iterable[Stop[Position]]) -> None:
        self.stopped += stopped


def event(kind: int, body: bytes = b"", *, end: int = 0, flags: int = 0, timestamp: int = 1_700_000_000) -> bytes:
    return struct.pack("<IBIIIH", timestamp, kind, 1, 19 + len(body), end, flags) + body


def query(text: str, *, end: int) -> bytes:
    return event(binlog.QUERY_EVENT, struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0" + text.encode(), end=end)


def anonymous(*, end: int) -> bytes:
    return event(binlog.ANONYMOUS_GTID_LOG_EVENT, bytes(25), end=end)


def read(tmp_path: Path, *events: bytes, **settings: Any) -> tuple[Recorder, MenuraError]:
    """What the reader makes of a log, by file and offset, and the error that it ends with."""
    at = ServerConfig("127.0.0.1", "menura")
    every = Filter(Policy.ACCEPT, {}, identifiers=IDENTIFIERS)
    source = MysqlConfig(name="shop", kind="mysql", client=at, binlog=at, filter=every, **settings)
    facts = Facts("mysql", "9.7.0", "uuid", has_gtids=False)
    decoder = BinlogDecoder(mariadb=False, checksum=False, next_gsn=1, next_transaction_id=1)
    table_positions = TablePositions({TABLE: BinlogPosition(None, "uuid", FIRST_LOG, 4)}, BinlogPosition())
    sink = Recorder()
    prepared = PreparedFile(tmp_path, "shop")
    replica = identity_of("t", "a", "shop", 0)
    server = Server(mariadb=False, version=(9, 7, 0))
    log = PreparedLog("shop", at, facts, replica, server, sink.received)
    history = SchemaHistory(tmp_path, "shop")
    schema_reader = ServerSchemaReader("shop", at, facts, BinlogPositionKind.FILE, replica, server, lambda: None)
    definitions = Definitions("shop", server, history, schema_reader)
    files = LogFiles(history)
    files.follows(ServerProcess("server", 1_700_000_000, 1), BinlogPosition(), goes_on=False)
    context = StreamContext(
        source, facts, decoder, definitions, files, table_positions, BinlogPositionKind.FILE, prepared, log, sink,
        SnapshotCoordinator(), StaleTables(()), CutSettings(1, 0.0, 1 << 20, 10.0), lambda: 0.0, {}, (),
    )  # fmt: skip
    reader = BinlogReader(context)
    try:
        with pytest.raises(MenuraError) as raised:
            reader.run(Bytes(events))
    finally:
        prepared.close()
        history.close()
    reader._read.publish()
    return sink, raised.value


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        (binlog.PREVIOUS_GTIDS_LOG_EVENT, binlog.LOG_EVENT_IGNORABLE_F),
        (binlog.STOP_EVENT, 0),
        (binlog.TRANSACTION_CONTEXT_EVENT, 0),
        (binlog.VIEW_CHANGE_EVENT, 0),
        (binlog.IGNORABLE_LOG_EVENT, binlog.LOG_EVENT_IGNORABLE_F),
        (99, binlog.LOG_EVENT_IGNORABLE_F),
        (binlog.ROWS_QUERY_LOG_EVENT, binlog.LOG_EVENT_IGNORABLE_F),
        (binlog.GTID_LIST_EVENT, 0),
        (binlog.BINLOG_CHECKPOINT_EVENT, 0),
        (binlog.START_ENCRYPTION_EVENT, 0),
        (binlog.RAND_EVENT, 0),
    ],
)
def test_event_when_it_holds_no_rows_then_the_position_passes_it(tmp_path: Path, kind: int, flags: int) -> None:
    sink, error = read(tmp_path, event(kind, bytes(30), end=900, flags=flags))
    assert isinstance(error, SourceConnectionLost)
    assert (sink.position.file, sink.position.offset) == (FIRST_LOG, 900)


@pytest.mark.parametrize("kind", [binlog.HEARTBEAT_LOG_EVENT, binlog.HEARTBEAT_LOG_EVENT_V2])
def test_heartbeat_when_it_names_a_place_then_the_position_stays(tmp_path: Path, kind: int) -> None:
    sink, error = read(tmp_path, event(kind, b"binlog.000001", end=900, timestamp=0))
    assert isinstance(error, SourceConnectionLost)
    assert sink.position.offset == 4


def test_rotate_when_real_and_artificial_then_the_position_is_in_the_next_file(tmp_path: Path) -> None:
    next_log = (4).to_bytes(8, "little") + b"binlog.000002"
    artificial = event(binlog.ROTATE_EVENT, next_log, flags=binlog.LOG_EVENT_ARTIFICIAL_F, timestamp=0)
    sink, _ = read(tmp_path, event(binlog.ROTATE_EVENT, next_log, end=500), artificial, artificial)
    assert (sink.position.file, sink.position.offset) == ("binlog.000002", 4)


@pytest.mark.parametrize("kind", [7, 43, 99, 172, 255])
def test_event_when_its_type_is_not_known_then_the_source_stops_before_it(tmp_path: Path, kind: int) -> None:
    sink, error = read(tmp_path, event(binlog.STOP_EVENT, end=200), event(kind, bytes(30), end=900))
    assert isinstance(error, EventUnknown)
    assert f"type {kind}" in error.found
    assert sink.position.offset == 200


@pytest.mark.parametrize("flavor", FLAVORS)
def test_incident_when_a_server_writes_one_then_tables_go_on_and_are_read_again(flavor: Flavor, tmp_path: Path) -> None:
    """A statement about a table without transactions that is larger than what a server keeps of it for its log."""
    gateway = GatewayDouble()
    try:
        caches = {"binlog_stmt_cache_size": "4096", "max_binlog_stmt_cache_size": "4096"}
        with server(flavor, tmp_path / "server", **caches) as database:
            prepare(database)
            database.run("CREATE TABLE shop.plain (id INT, note LONGTEXT) ENGINE=MyISAM")
            gateway.sync("shop", ORDERS, ITEMS, oldest=True)
            change(database, rounds=1)
            with pytest.raises(pymysql.err.OperationalError):
                database.run("INSERT INTO shop.plain VALUES (1, REPEAT('x', 9000)), (2, REPEAT('y', 9000))")
            change(database, rounds=1, table="items")
            with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
                wait_equal(gateway, database, ORDERS, ITEMS)
                told = [event for event in gateway.events("shop") if event.unlogged_changes]
                assert sorted(event.table.table for event in told) == ["items", "orders"]
                for event in told:
                    assert (event.kind, event.reread) == (changes_pb2.TableEvent.ROWS_UNLOGGED, True)
                    assert "changes are missing from its log (incident 1" in event.unlogged_changes
                before, after = (gateway.rows("shop", table) for table in (ORDERS, ITEMS))
                assert before[-1]["_gsn"] < told[0].gsn < told[1].gsn < after[0]["_gsn"]
    finally:
        gateway.stop()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (binlog.INCIDENT_EVENT, b"\1\0\5abc"),
        (binlog.XA_PREPARE_LOG_EVENT, b"\0" + bytes(12)),  # without an XA START
        (binlog.ROTATE_EVENT, b"\4"),
        (binlog.QUERY_EVENT, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0XA COMMIT 'a'"),
        (binlog.QUERY_EVENT, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0XA COMMIT X'" + b"61" * 65 + b"',X'',1"),
        (binlog.QUERY_EVENT, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0ROLLBACK TO `never set`"),
    ],
)
def test_event_when_its_body_makes_no_sense_then_the_source_stops_before_it(
    tmp_path: Path, kind: int, body: bytes
) -> None:
    sink, error = read(tmp_path, anonymous(end=200), event(kind, body, end=900))
    assert isinstance(error, EventUnreadable | EventUnknown)
    assert sink.position.offset == 4


@pytest.mark.parametrize(
    "prepare_body",
    [
        b"\2" + struct.pack("<III", 1, 1, 0) + b"a",
        b"\0" + struct.pack("<III", 1, 9, 9) + b"a",
        b"\0" + struct.pack("<III", 1, 65, 0) + b"a" * 65,
        b"\0\1",
    ],
)
def test_xa_prepare_when_its_name_can_not_be_read_then_the_source_stops_before_it(
    tmp_path: Path, prepare_body: bytes
) -> None:
    begin = (anonymous(end=200), query("XA START X'61',X'',1", end=300), query("XA END X'61',X'',1", end=400))
    sink, error = read(tmp_path, *begin, event(binlog.XA_PREPARE_LOG_EVENT, prepare_body, end=500))
    assert isinstance(error, EventUnreadable)
    assert sink.position.offset == 4


def test_xa_when_nothing_was_changed_in_it_then_the_position_passes_it(tmp_path: Path) -> None:
    name = b"\0" + struct.pack("<III", 1, 1, 0) + b"a"
    begin = (anonymous(end=200), query("XA START X'61',X'',1", end=300), query("XA END X'61',X'',1", end=400))
    prepared = event(binlog.XA_PREPARE_LOG_EVENT, name, end=500)
    sink, error = read(tmp_path, *begin, prepared, anonymous(end=600), query("XA COMMIT X'61',X'',1", end=700))
    assert isinstance(error, SourceConnectionLost)
    assert (sink.position.offset, sink.stopped) == (700, [])


def test_statement_when_it_is_logged_instead_of_rows_then_every_table_stops_by_its_policy(tmp_path: Path) -> None:
    """A trigger of lines may have changed orders, and that isn't logged either."""
    insert = (anonymous(end=200), query("INSERT INTO shop.lines VALUES (1)", end=300))
    sink, _ = read(tmp_path, *insert, unlogged=UnloggedPolicy(UnloggedChanges.STOP))
    (stop,) = sink.stopped
    assert (stop.table, stop.error.code, stop.position.offset) == (TABLE, "TABLE_STATEMENT_LOGGED", 4)
    assert "trigger" in stop.error.found


def test_statement_when_it_concerns_a_table_of_the_server_then_no_table_stops(tmp_path: Path) -> None:
    stops = UnloggedPolicy(UnloggedChanges.STOP)
    beat = query("INSERT INTO mysql.heartbeat VALUES (1)", end=300)
    sink, _ = read(tmp_path, anonymous(end=200), beat, unlogged=stops)
    assert (sink.stopped, sink.position.offset) == ([], 300)


def test_statement_when_its_table_stops_later_then_the_table_was_told_before_it(tmp_path: Path) -> None:
    """What is told after the stop is not told at all, and the table would go on behind the statement."""
    sink, _ = read(
        tmp_path,
        anonymous(end=200),
        query("UPDATE shop.lines SET v = 1", end=300),
        anonymous(end=400),
        query("CREATE TABLE shop.copies SELECT 1", end=500),
    )
    (told,) = [event for cut in sink.cuts for event in cut.events]
    assert (told.table.table, told.reread) == ("orders", True)
    assert told.unlogged_changes.startswith("UPDATE was logged as a statement")
    (stop,) = sink.stopped
    assert (stop.table, stop.position.offset) == (TABLE, 300)


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE shop.copies SELECT * FROM shop.lines", "CREATE OR REPLACE TABLE shop.orders SELECT 1"]
)
def test_statement_when_it_defines_a_table_and_its_rows_are_not_logged_then_every_table_stops(
    statement: str, tmp_path: Path
) -> None:
    """By the default policy too: what its table looks like from now on, the statement does not say."""
    sink, _ = read(tmp_path, anonymous(end=200), query(statement, end=300))
    assert [(stop.table, stop.error.code) for stop in sink.stopped] == [(TABLE, "TABLE_STATEMENT_LOGGED")]


@pytest.mark.parametrize(
    ("statement", "stops"),
    [
        ("UPDATE percona.heartbeat SET ts = 1 WHERE server_id = 2", False),
        ("REPLACE INTO `Percona`.`heartbeat` (ts) VALUES (NOW())", False),
        ("INSERT INTO percona.heartbeat SELECT COUNT(*) FROM shop.orders", False),
        ("DELETE FROM percona.heartbeat WHERE ts < 3", False),
        ("UPDATE percona.heartbeat, shop.orders SET note = 1", True),
        ("UPDATE percona.heartbeat JOIN shop.orders SET note = 1", True),
        ("DELETE shop.orders FROM percona.heartbeat JOIN shop.orders", True),
        ("DELETE FROM percona.heartbeat USING percona.heartbeat JOIN shop.orders", True),
        ("UPDATE percona.other SET ts = 1", True),
        ("UPDATE heartbeat SET ts = 1", True),  # of the database shop, where no such table is named
        ("CALL percona.heartbeat()", True),
        ("UPDATE quick heartbeat SET ts = 1", True),  # a table that is called so, and its alias
        ("DELETE QUICK FROM percona.heartbeat", False),
        ("DELETE FROM percona.heartbeat 'h' USING shop.orders", True),
        ("INSERT INTO percona.heartbeat VALUES ('", True),
    ],
)
def test_statement_when_it_changes_a_table_that_is_named_as_harmless_then_no_other_table_minds(
    statement: str, stops: bool, tmp_path: Path
) -> None:
    sink, _ = read(
        tmp_path,
        anonymous(end=200),
        query(statement, end=300),
        unlogged=UnloggedPolicy(UnloggedChanges.STOP),
        harmless_statements=frozenset({("percona", "heartbeat")}),
    )
    assert bool(sink.stopped) == stops


def test_statement_when_its_table_is_named_as_harmless_and_is_followed_then_tables_mind(tmp_path: Path) -> None:
    sink, _ = read(
        tmp_path,
        anonymous(end=200),
        query("UPDATE shop.orders SET note = 1", end=300),
        unlogged=UnloggedPolicy(UnloggedChanges.STOP),
        harmless_statements=frozenset({TABLE}),
    )
    assert [stop.table for stop in sink.stopped] == [TABLE]


def test_log_when_mariadb_keeps_it_encrypted_then_is_served_decrypted(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("1;" + "0f" * 32 + "\n")
    settings = {
        "plugin_load_add": "file_key_management",
        "file_key_management_filename": str(keys),
        "encrypt_binlog": "ON",
    }
    gateway = GatewayDouble()
    try:
        with server("mariadb", tmp_path / "server", **settings) as database:
            prepare(database)
            change(database, rounds=1)
            kinds = [row[2] for row in database.run("SHOW BINLOG EVENTS")]
            assert "Start_encryption" in kinds
            gateway.sync("shop", ORDERS, ITEMS, oldest=True)
            with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
                database.run("FLUSH BINARY LOGS")
                change(database, rounds=1, table="items")
                wait_equal(gateway, database, ORDERS, ITEMS)
    finally:
        gateway.stop()
