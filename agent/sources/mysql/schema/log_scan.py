"""The statements in a stretch of the log that change definitions: rows are stepped over.

Comes in: two positions. Goes out: each such statement with its place, in the log's order. The server is asked as a
replica of its own is, so that the source's stream goes on beside it; it ends the stream at the log's end by itself.
Nothing is durable.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from uuid import uuid5

from agent.errors import SourceConnectionLost
from agent.sources.mysql.config import ServerConfig
from agent.sources.mysql.ddl.model import Server, Statement
from agent.sources.mysql.ddl.session import statement_of
from agent.sources.mysql.ddl.statements import Kind
from agent.sources.mysql.ddl.statements import read as read_statement
from agent.sources.mysql.failures import connection_lost, event_unknown, event_unreadable
from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.log.events import EventBodyError, parse_format_description, parse_query, parse_rotate
from agent.sources.mysql.log.table_map import TableMapError, table_of
from agent.sources.mysql.log.xid import parse_xa_statement
from agent.sources.mysql.native.decoder import BinlogDecoder, DecodeError, Event, Reason
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind, Run
from agent.sources.mysql.read_position import ReadPosition
from agent.sources.mysql.server.connection import Facts
from agent.sources.mysql.server.replication import ReplicaIdentity, ReplicationStream, open_stream
from agent.sources.mysql.server.server_log import FIRST_OFFSET, ReadTransaction

#: without a byte for so long the connection counts as lost
SILENCE_SECONDS = 20.0
DEFINITION_KINDS = frozenset({Kind.DEFINITION, Kind.ROWS_REMOVED})

_KNOWN_EVENTS = frozenset(number for name, number in vars(binlog).items() if name.endswith(("_EVENT", "_V1", "_V2")))


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that is being read."""

    #: its GTID, or FILE:OFFSET of its first event
    name: str
    #: '' where it has none
    gtid: str = field(compare=False)
    file: str = field(compare=False)
    #: not after its first event
    begin_offset: int = field(compare=False)

    def is_in(self, position: BinlogPosition) -> bool:
        return position.has_transaction(self.gtid, self.file, self.begin_offset)


def current_transaction(decoder: BinlogDecoder, read: ReadPosition) -> Transaction:
    """The one that the decoder stands in."""
    name = decoder.transaction_position or f"{read.file}:{read.offset}"
    return Transaction(name, decoder.gtid, read.file, read.offset)


@dataclass(frozen=True, slots=True)
class Logged:
    """A statement that may change definitions."""

    statement: Statement
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class LogScan:
    """How one source's log is looked through."""

    source: str
    server: ServerConfig
    facts: Facts
    position_kind: BinlogPositionKind
    replica: ReplicaIdentity
    reads: Server
    #: called now and then; raises when nobody waits for the answer any more
    check: Callable[[], None]

    def statements(self, start: BinlogPosition, until: BinlogPosition) -> Iterator[Logged]:
        """Those of transactions after `start` that are in `until`; raises a `SourceError`."""
        stream = open_stream(
            self.server, self.source, self.facts, _beside(self.replica), start, self.position_kind, ends=True
        )
        with closing(stream):
            yield from _Scan(self, start, stream.checksum).run(stream, until)

    def file_begun(self, file: str) -> int | None:
        """When the server began this file, in seconds since the epoch; None: there is none. Raises a `SourceError`."""
        with self._from_file(file) as (scan, stream):
            return scan.file_begun(stream)

    def transactions(self, file: str, domain: int, sequence: int) -> list[Run]:
        """Those of a MariaDB's domain, in the log's order, from this file on up to `sequence`."""
        with self._from_file(file) as (scan, stream):
            return scan.transactions(stream, domain, sequence)

    def statement_begun(self, after: BinlogPosition, read: ReadTransaction) -> int | None:
        """See `LogReader.statement_begun`. Raises a `SourceError`."""
        position_kind = BinlogPositionKind.FILE if after.gtids is None else BinlogPositionKind.MYSQL_GTID
        with self._after(after, position_kind) as (scan, stream):
            return scan.statement_begun(stream, read)

    @contextmanager
    def _from_file(self, file: str) -> "Iterator[tuple[_Scan, ReplicationStream]]":
        with self._after(
            BinlogPosition(None, self.facts.server_uuid, file, FIRST_OFFSET), BinlogPositionKind.FILE
        ) as found:
            yield found

    @contextmanager
    def _after(
        self, start: BinlogPosition, position_kind: BinlogPositionKind
    ) -> "Iterator[tuple[_Scan, ReplicationStream]]":
        stream = open_stream(
            self.server, self.source, self.facts, _beside(self.replica), start, position_kind, ends=True
        )
        with closing(stream):
            yield _Scan(self, start, stream.checksum), stream


class _Scan:
    def __init__(self, scan: LogScan, start: BinlogPosition, checksum: bool) -> None:
        self._scan = scan
        self._decoder = BinlogDecoder(
            mariadb=scan.facts.flavor == "mariadb", checksum=checksum, next_gsn=1, next_transaction_id=1
        )
        self._read = ReadPosition(scan.source, scan.facts.server_uuid, start, self._decoder, _tell_nobody, _no_clock)

    def file_begun(self, stream: ReplicationStream) -> int | None:
        """Of the file that the stream begins with: its first real event tells."""
        reason = Reason.NEED_BYTES
        while reason == Reason.NEED_BYTES:
            self._receive(stream)
            while (reason := self._decode()) == Reason.EVENT:
                if self._decoder.event.type == binlog.FORMAT_DESCRIPTION_EVENT:
                    return self._decoder.event.timestamp or None
        return None  # the server has no such file any more

    def transactions(self, stream: ReplicationStream, domain: int, sequence: int) -> list[Run]:
        found: list[Run] = []
        reason = Reason.NEED_BYTES
        while reason == Reason.NEED_BYTES and not (found and found[-1][2] >= sequence):
            self._receive(stream)
            while (reason := self._decode()) == Reason.EVENT:
                found += self._runs_of(domain)  # before the event takes them
                self._event(self._decoder.event)
            found += self._runs_of(domain)
        if reason == Reason.ERROR_PACKET:
            code, _, message = self._decoder.error_packet
            raise self._lost(f"the server ended the stream with code {code}: {message}")
        return found

    def statement_begun(self, stream: ReplicationStream, read: ReadTransaction) -> int | None:
        self._decoder.stop_at_transaction_end = True
        reason = Reason.NEED_BYTES
        while reason == Reason.NEED_BYTES:
            self._receive(stream)
            while (reason := self._decode()) in (Reason.EVENT, Reason.TRANSACTION_END):
                if reason == Reason.EVENT:
                    self._event(self._decoder.event)
                for key, first, last in self._decoder.take_gtids():
                    if key == read.key and first <= read.number <= last:
                        return self._decoder.finished_statement_timestamp or None
                    if (
                        read.is_of_mariadb
                        and key.partition("-")[0] == read.key.partition("-")[0]
                        and last >= read.number
                    ):
                        return None
        if reason == Reason.ERROR_PACKET:
            code, _, message = self._decoder.error_packet
            raise self._lost(f"the server ended the stream with code {code}: {message}")
        return None

    def _runs_of(self, domain: int) -> list[Run]:
        return [run for run in self._decoder.take_gtids() if run[0].partition("-")[0] == str(domain)]

    def run(self, stream: ReplicationStream, until: BinlogPosition) -> Iterator[Logged]:
        ended = False
        while not self._read.position.covers(until):
            if ended:
                raise self._lost(f"the server's log ends before {until}")
            self._receive(stream)
            while (reason := self._decode()) == Reason.EVENT:
                logged = self._event(self._decoder.event)
                if logged is not None and logged.transaction.is_in(until):
                    yield logged
            if reason == Reason.ERROR_PACKET:
                code, _, message = self._decoder.error_packet
                raise self._lost(f"the server ended the stream with code {code}: {message}")
            ended = reason == Reason.END_OF_STREAM
            self._read.publish()

    def _receive(self, stream: ReplicationStream) -> None:
        try:
            size = stream.receive_into(self._decoder.writable(), SILENCE_SECONDS)
        except OSError as broken:  # TimeoutError too
            raise self._lost(f"the connection broke ({type(broken).__name__})") from broken
        if not size:
            raise self._lost("the server closed the connection")
        self._scan.check()
        self._decoder.received(size)

    def _decode(self) -> Reason:
        try:
            return self._decoder.decode()
        except DecodeError as broken:
            raise event_unreadable(self._read.place(), broken.event_type, broken.log_pos, str(broken)) from broken

    def _event(self, event: Event) -> Logged | None:
        try:
            if event.type == binlog.TABLE_MAP_EVENT:
                self._decoder.define_table(table_of(event.body)[0], event.body, None)
            elif event.type == binlog.QUERY_EVENT:
                return self._query(event)
            elif event.type == binlog.ROTATE_EVENT:
                rotate = parse_rotate(event.body)
                self._new_file()
                self._read.rotated(rotate.file, rotate.offset)
            elif event.type == binlog.FORMAT_DESCRIPTION_EVENT:
                self._decoder.checksum = parse_format_description(event.body).checksum
                self._new_file()
            elif event.type == binlog.XA_PREPARE_LOG_EVENT:
                self._decoder.transaction_finished()
            elif event.type == binlog.INCIDENT_EVENT and self._decoder.in_transaction:
                self._decoder.transaction_finished()  # MySQL gives it a GTID; it is the stream that stops at it
            elif event.type not in _KNOWN_EVENTS and not event.flags & binlog.LOG_EVENT_IGNORABLE_F:
                raise event_unknown(self._read.place(), event.type, event.log_pos)
        except (EventBodyError, TableMapError) as broken:
            raise event_unreadable(self._read.place(), event.type, event.log_pos, str(broken)) from broken
        return None

    def _new_file(self) -> None:
        """No transaction goes on from one file to the next."""
        if self._decoder.in_transaction:
            self._decoder.transaction_abandoned()
        self._decoder.forget_tables()

    def _query(self, event: Event) -> Logged | None:
        query = parse_query(event.body)
        statement = statement_of(query, self._scan.reads)
        summary = read_statement(statement, self._scan.reads)
        if summary.kind in (Kind.SAVEPOINT, Kind.ROLLBACK):
            if query.text.upper() == "ROLLBACK":
                self._decoder.transaction_rolled_back()
            return None
        if summary.kind is Kind.XA and parse_xa_statement(query.text)[0] in ("START", "END"):
            return None
        logged = None
        if summary.kind in DEFINITION_KINDS:
            logged = Logged(statement, current_transaction(self._decoder, self._read))
        if summary.kind is not Kind.TRANSACTION and not summary.opens_transaction:
            self._decoder.transaction_finished()
        return logged

    def _lost(self, found: str) -> SourceConnectionLost:
        return connection_lost(self._read.place(), found)


def _tell_nobody(position: BinlogPosition, commit_us: int) -> None:
    """Where a scan is interests nobody."""


def _no_clock() -> float:
    return 0.0


def _beside(replica: ReplicaIdentity) -> ReplicaIdentity:
    """Another identity: the server would end the source's own stream for a second one under the same."""
    other = uuid5(replica.server_uuid, "schema history")
    return ReplicaIdentity(int.from_bytes(other.bytes[:4], "little") | 1 << 31, other)
