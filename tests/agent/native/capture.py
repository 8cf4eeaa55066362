"""What the decoder's tests share: a server's binlog as bytes, and those bytes as rows."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa
from pymysql.constants import COMMAND

from agent.sources.mysql.columns import Column, schema_id
from agent.sources.mysql.ddl.model import Server as DefinitionServer
from agent.sources.mysql.ddl.model import TableDefinition
from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.log.table_map import parse_table_map
from agent.sources.mysql.native.decoder import BinlogDecoder, Event, PlannedColumn, Reason, TableBatch, TablePlan
from agent.sources.mysql.schema.column_types import column_type
from agent.sources.mysql.server.information_schema import read_definitions
from agent.sources.mysql.types import ColumnType
from tests.servers import Server

BINLOG_DUMP_NON_BLOCK = 1
BINLOG_SEND_ANNOTATE_ROWS_EVENT = 2
USE_HEARTBEAT_EVENT_V2 = 2


def dump(server: Server, file: str | None = None, offset: int = 4, *, annotated: bool = False) -> bytes:
    """Packets of the server's binlog from a place to its present end, as they came, the end of file included.

    MariaDB leaves out ANNOTATE_ROWS events unless `annotated`.
    """
    file = file or str(server.run("SHOW BINARY LOGS")[0][0])
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        if server.flavor == "mariadb":
            cursor.execute("SET @mariadb_slave_capability = 4")
            cursor.execute("SET @master_binlog_checksum = 'CRC32'")
        else:
            cursor.execute("SET @source_binlog_checksum = 'CRC32'")
        connection._execute_command(
            COMMAND.COM_BINLOG_DUMP,
            offset.to_bytes(4, "little")
            + (BINLOG_DUMP_NON_BLOCK | (BINLOG_SEND_ANNOTATE_ROWS_EVENT if annotated else 0)).to_bytes(2, "little")
            + (4711).to_bytes(4, "little")
            + file.encode(),
        )
        received = bytearray()
        while True:
            head = connection._rfile.read(4)
            size = int.from_bytes(head[:3], "little")
            payload = connection._rfile.read(size)
            received += head + payload
            if payload[:1] == b"\xff" or (payload[:1] == b"\xfe" and size < 9):
                return bytes(received)


def heartbeats(server: Server) -> Iterator[tuple[int, bytes]]:
    """The type and bytes of what the server sends while nothing is logged, to each kind of replica."""
    server.run("FLUSH BINARY LOGS")
    file = str(server.run("SHOW BINARY LOGS")[-1][0])
    for flags in (0, USE_HEARTBEAT_EVENT_V2) if server.flavor == "mysql" else (0,):
        with closing(server.connect(read_timeout=60)) as connection, connection.cursor() as cursor:
            names = ("source", "master") if server.flavor == "mysql" else ("master",)
            for name in names:
                cursor.execute(f"SET @{name}_heartbeat_period = 20000000, @{name}_binlog_checksum = 'NONE'")
            command = (4).to_bytes(4, "little") + flags.to_bytes(2, "little") + (4711).to_bytes(4, "little")
            connection._execute_command(COMMAND.COM_BINLOG_DUMP, command + file.encode())
            payload = bytes(6)
            while payload[5] not in (binlog.HEARTBEAT_LOG_EVENT, binlog.HEARTBEAT_LOG_EVENT_V2):
                payload = connection._rfile.read(int.from_bytes(connection._rfile.read(4)[:3], "little"))
                assert payload[:1] == b"\0", payload
            yield payload[5], payload[1:]
            connection._force_close()


#: by table and column: what the log leaves open
Definitions = Mapping[str, Mapping[str, ColumnType]]


def definitions(server: Server, *tables: str, database: str = "t") -> Definitions:
    """The tables as information_schema describes them now."""
    with closing(server.connect()) as connection:
        asked = DefinitionServer(server.flavor == "mariadb", (0, 0, 0))
        found = read_definitions(connection, [(database, table) for table in tables], asked)
    return {
        name: {column.name: column.type for column in definition.columns}
        for (_, name), definition in found.items()
        if isinstance(definition, TableDefinition)
    }


def updates_have_generated_columns(server: Server) -> bool:
    """MariaDB leaves them out of updates from 11.8.9 on, whatever binlog_row_image is."""
    table = "CREATE TABLE probe (id INT PRIMARY KEY, doubled INT AS (id * 2) STORED)"
    data = logged(
        server, "DROP TABLE IF EXISTS probe", table, "INSERT INTO probe (id) VALUES (1)", "UPDATE probe SET id = 2"
    )
    return "_absent" not in decode_all(data, mariadb=server.flavor == "mariadb").table("probe").column_names


def plan_of(
    body: bytes, *, mariadb: bool, defined: Definitions = MappingProxyType({}), ignored: Iterable[str] = ()
) -> TablePlan:
    """A plan made of a TABLE_MAP with full metadata, and of definitions for what it leaves open."""
    mapped = parse_table_map(body, mariadb=mariadb)
    keys = {index: place + 1 for place, (index, _) in enumerate(mapped.primary_key or ())}
    fallbacks = defined.get(mapped.table, {})
    planned = []
    for index, column in enumerate(mapped.columns):
        described = Column(
            column.name or f"c{index}",
            column_type(column, mariadb=mariadb, fallback=fallbacks.get(column.name or "")),
            column.nullable,
            keys.get(index, 0),
        )
        planned.append(PlannedColumn(described, column.type, column.metadata, sent=described.name not in set(ignored)))
    sent = tuple(item.column for item in planned if item.sent)
    return TablePlan(mapped.database, mapped.table, schema_id(sent), planned)


@dataclass
class Decoded:
    """All that a decoder made of some bytes."""

    batches: list[TableBatch] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)

    def table(self, name: str) -> pa.Table:
        """Every row of one table, over all of its batches."""
        parts = [pa.record_batch(batch.rows) for batch in self.batches if batch.plan.table == name]
        for part in parts:
            part.validate(full=True)
        return pa.Table.from_batches(parts)

    def transactions(self, name: str) -> list[dict[str, object]]:
        parts = [pa.record_batch(batch.transactions) for batch in self.batches if batch.plan.table == name]
        return pa.Table.from_batches(parts).to_pylist()


def decode_all(
    data: bytes,
    *,
    mariadb: bool,
    chunk: int = 1 << 30,
    decoder: BinlogDecoder | None = None,
    database: str = "t",
    ignored: Iterable[str] = (),
    defined: Definitions = MappingProxyType({}),
) -> Decoded:
    """Feed `data` in chunks; tables of `database` are planned, all others stepped over."""
    decoder = decoder or BinlogDecoder(mariadb=mariadb, checksum=True, next_gsn=1, next_transaction_id=1)
    decoded = Decoded()
    at = 0
    while at < len(data):
        space = decoder.writable()
        size = min(chunk, len(space), len(data) - at)
        space[:size] = data[at : at + size]
        decoder.received(size)
        at += size
        while (reason := decoder.decode()) is not Reason.NEED_BYTES:
            decoded.reasons.append(reason)
            if reason is Reason.END_OF_STREAM:
                break
            if reason is Reason.BATCH_FULL:
                decoded.batches += decoder.take_batches()
            elif reason is Reason.EVENT:
                decoded.events.append(decoder.event)
                handle(decoder, decoder.event, mariadb=mariadb, database=database, ignored=ignored, defined=defined)
            else:
                assert reason in (Reason.TRANSACTION_BEGIN, Reason.TRANSACTION_END), reason
    decoded.batches += decoder.take_batches()
    return decoded


def handle(
    decoder: BinlogDecoder,
    event: Event,
    *,
    mariadb: bool,
    database: str = "t",
    ignored: Iterable[str] = (),
    defined: Definitions = MappingProxyType({}),
) -> None:
    """What the agent does with an event, without its policy."""
    if event.type == binlog.TABLE_MAP_EVENT:
        mapped = parse_table_map(event.body, mariadb=mariadb)
        wanted = mapped.database == database
        plan = plan_of(event.body, mariadb=mariadb, defined=defined, ignored=ignored) if wanted else None
        decoder.define_table(mapped.table_id, event.body, plan)
    elif event.type == binlog.QUERY_EVENT:
        decoder.transaction_finished()
    elif event.type == binlog.FORMAT_DESCRIPTION_EVENT:
        decoder.checksum = event.body[-1] == 1
        decoder.forget_tables()
    elif event.type == binlog.ROTATE_EVENT:
        decoder.set_file(event.body[8:].decode())


def logged(server: Server, *statements: str, database: str = "t") -> bytes:
    """What the statements, run on one connection, write to the log: a file of their own."""
    server.run("FLUSH BINARY LOGS")
    file = str(server.run("SHOW BINARY LOGS")[-1][0])
    server.run(*statements, database=database)
    return dump(server, file, annotated=server.flavor == "mariadb")


def current_state(changes: pa.Table, key: str = "id") -> list[dict[str, object]]:
    """The rows that the changes leave."""
    rows: dict[object, dict[str, object]] = {}
    for change in changes.to_pylist():
        if change["_change_type"] in (1, 3):
            del rows[change[key]]
        else:
            rows[change[key]] = change
    return list(rows.values())
