"""What the decoder's tests share: a server's bytes as it sends them, and those bytes as rows."""

import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pyarrow as pa

from agent.sources.postgresql.columns import Column, schema_id
from agent.sources.postgresql.native.decoder import (
    Message,
    PgoutputDecoder,
    PlannedColumn,
    Reason,
    TableBatch,
    TablePlan,
)
from agent.sources.postgresql.stream.relations import Relation, parse_relation
from agent.sources.postgresql.types import builtin_type, named_type
from tests.postgres import SourceServer

#: as the agent's sessions have them
SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "timezone": "UTC",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "client_encoding": "UTF8",
}


class Session:
    """A connection to a server that trusts, and its bytes."""

    def __init__(self, url: str, *, replication: bool = False, **settings: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 5432))
        self._received = bytearray()
        named = {"user": parts.username or "", "database": parts.path[1:], **SETTINGS, **settings}
        if replication:
            named["replication"] = "database"
        body = b"".join(f"{key}\0{value}\0".encode() for key, value in named.items()) + b"\0"
        self._socket.sendall(struct.pack(">ii", len(body) + 8, 196608) + body)
        self._answer()

    def close(self) -> None:
        self._socket.close()

    def query(self, statement: str) -> bytes:
        """All that the server answers, up to ReadyForQuery."""
        self._send(b"Q", statement.encode() + b"\0")
        return self._answer()

    def stream(self, statement: str, until_lsn: int) -> bytes:
        """What the server copies, from behind CopyBothResponse up to what tells a WAL end from `until_lsn` on."""
        self._send(b"Q", statement.encode() + b"\0")
        copied = bytearray()
        while True:
            message = self._message()
            assert message[:1] != b"E", message
            if message[:1] == b"W":
                continue
            copied += message
            is_at_end = message[5:6] == b"k" and struct.unpack_from(">Q", message, 6)[0] >= until_lsn
            if is_at_end:
                return bytes(copied)
            if message[5:6] == b"k":  # it answers to a status
                self._send(b"d", b"r" + struct.pack(">QQQQB", 0, 0, 0, 0, 1))

    def _send(self, kind: bytes, body: bytes) -> None:
        self._socket.sendall(kind + struct.pack(">i", len(body) + 4) + body)

    def _message(self) -> bytes:
        while len(self._received) < 5 or len(self._received) <= struct.unpack_from(">i", self._received, 1)[0]:
            more = self._socket.recv(1 << 20)
            assert more, "the server has closed the connection"
            self._received += more
        size = 1 + struct.unpack_from(">i", self._received, 1)[0]
        message = bytes(self._received[:size])
        del self._received[:size]
        return message

    def _answer(self) -> bytes:
        received = bytearray()
        while True:
            message = self._message()
            received += message
            if message[:1] == b"Z":
                return bytes(received)


@contextmanager
def session(url: str, *, replication: bool = False, **settings: str) -> Iterator[Session]:
    opened = Session(url, replication=replication, **settings)
    try:
        yield opened
    finally:
        opened.close()


def url_of(server: SourceServer, database: str = "shop") -> str:
    return f"postgresql://{server.user}@{server.host}:{server.port}/{database}"


@dataclass(frozen=True)
class Recording:
    """A slot from its beginning on."""

    server: SourceServer
    database: str = "shop"

    def stream(self, **settings: str) -> bytes:
        """All that was committed since."""
        # what ends is flushed, also that of a session that did not wait
        end = "SELECT (pg_logical_emit_message(true, 'test', 'end') - '0/0')::text"
        [(lsn,)] = self.server.run(end, database=self.database)
        with session(url_of(self.server, self.database), replication=True, **settings) as opened:
            return opened.stream(
                "START_REPLICATION SLOT decoded LOGICAL 0/0"
                " (proto_version '1', publication_names 'p', messages 'true')",
                int(str(lsn)),
            )


def record(server: SourceServer, *before: str) -> Recording:
    """From behind these statements on; all tables are published."""
    server.drop_slots()
    server.run("DROP PUBLICATION IF EXISTS p", "CREATE PUBLICATION p FOR ALL TABLES", *before, database="shop")
    server.run("SELECT pg_create_logical_replication_slot('decoded', 'pgoutput')", database="shop")
    return Recording(server)


def streamed(server: SourceServer, *statements: str, before: Iterable[str] = ()) -> bytes:
    """What the server streams of the statements, which are committed one by one."""
    recording = record(server, *before)
    server.run(*statements, database="shop")
    return recording.stream()


def selected(server: SourceServer, statement: str) -> bytes:
    """All that the server answers."""
    with session(url_of(server)) as opened:
        return opened.query(statement)


def plan_of(relation: Relation, sent: Iterable[str] | None = None) -> TablePlan:
    """Of all columns, or of those that are sent; its key are the columns of the replica identity."""
    planned = []
    keys = 0
    for column in relation.columns:
        is_key = column.identity and relation.replica_identity != "f"
        keys += is_key
        type_ = builtin_type(column.type_oid, column.modifier) or named_type(f"type {column.type_oid}")
        described = Column(column.name, type_, key=keys if is_key else 0)
        planned.append(PlannedColumn(described, sent is None or column.name in sent, column.identity))
    columns = tuple(each.column for each in planned if each.sent)
    return TablePlan(relation.schema, relation.name, schema_id(columns), planned)


@dataclass
class Decoded:
    batches: list[TableBatch] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    transactions: list[tuple[int, int, int]] = field(default_factory=list)

    def rows(self, table: str, *, everything: bool = False) -> list[dict[str, object]]:
        """Of all batches of a table."""
        found = []
        for batch in self.batches:
            if batch.plan.table == table:
                found.extend(rows_of(batch, everything=everything))
        return found


HIDDEN = ("_gsn", "_transaction", "_unrepresentable")


def rows_of(batch: TableBatch, *, everything: bool = False) -> list[dict[str, object]]:
    rows = pa.record_batch(batch.rows)
    rows.validate(full=True)
    pa.record_batch(batch.transactions).validate(full=True)
    found = rows.to_pylist()
    if not everything:
        found = [{name: value for name, value in row.items() if name not in HIDDEN} for row in found]
    return found


def new_decoder(**options: int) -> PgoutputDecoder:
    return PgoutputDecoder(next_gsn=1, next_transaction_id=1, **options)


def feed(decoder: PgoutputDecoder, data: bytes, chunk: int = 1 << 20) -> Iterator[Reason]:
    """Each reason that decoding stops for, but for NEED_BYTES."""
    at = 0
    while at < len(data):
        space = decoder.writable()
        size = min(len(space), chunk, len(data) - at)
        space[:size] = data[at : at + size]
        decoder.received(size)
        at += size
        while (reason := decoder.decode()) is not Reason.NEED_BYTES:
            yield reason


def decode(
    data: bytes, *, chunk: int = 1 << 20, decoder: PgoutputDecoder | None = None, only: Iterable[str] = ()
) -> Decoded:
    """Everything, with a plan for each table, or for some."""
    decoder = decoder or new_decoder()
    decoded = Decoded()
    tables = set(only)
    for reason in feed(decoder, data, chunk):
        decoded.reasons.append(reason)
        if reason is Reason.BATCH_FULL:
            decoded.batches += decoder.take_batches()
        elif reason is Reason.MESSAGE:
            message = decoder.message
            decoded.messages.append(message)
            if message.kind == "R":
                relation = parse_relation(message.body)
                decoder.define(relation.oid, plan_of(relation) if not tables or relation.name in tables else None)
    decoded.batches += decoder.take_batches()
    decoded.transactions = decoder.take_transactions()
    return decoded
