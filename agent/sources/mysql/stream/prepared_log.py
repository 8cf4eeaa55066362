"""Reads a prepared XA transaction from the log once more, beside the source's own stream.

Comes in: the transaction's name, where it was prepared if that is known, and the group that commits it. Goes out:
its events in portions, so that a large one is never whole in memory. Where it is not known, or isn't there (another
server, the state was lost), the log's files are looked through from the newest to the oldest. Nothing is durable.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from uuid import uuid5

from agent.sources.mysql.config import ServerConfig
from agent.sources.mysql.ddl.model import Server
from agent.sources.mysql.ddl.session import statement_of
from agent.sources.mysql.ddl.statements import Kind
from agent.sources.mysql.ddl.statements import read as read_statement
from agent.sources.mysql.failures import Place, connection_lost, event_unreadable
from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.log.events import EventBodyError, parse_format_description, parse_query, parse_rotate
from agent.sources.mysql.log.table_map import TableMapError, table_of
from agent.sources.mysql.log.xid import Xid, parse_xa_prepare, parse_xa_statement
from agent.sources.mysql.native.decoder import BinlogDecoder, DecodeError, Event, Reason
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind
from agent.sources.mysql.server.connection import Facts, connect, rows, server_errors
from agent.sources.mysql.server.replication import (
    MOST_DUMP_OFFSET,
    SILENCE_SECONDS,
    ReplicaIdentity,
    ReplicationStream,
    open_stream,
)
from agent.sources.mysql.server.server_log import FIRST_OFFSET, STATUS_GRANT
from agent.sources.mysql.stream.prepared import Group

#: of a portion
PORTION_BYTES = 4 << 20

#: kept events, or an event that stood between them
Part = bytes | Event


class NotPrepared(Exception):
    """The log does not hold the transaction."""


@dataclass(frozen=True, slots=True)
class PreparedLog:
    """How one source's log is read again."""

    source: str
    server: ServerConfig
    facts: Facts
    replica: ReplicaIdentity
    reads: Server
    #: told of each portion of bytes; raises when the work is over
    received: Callable[[int], None]

    def read(self, xid: Xid, known: Group | None, end: Group) -> Iterator[Part]:
        """What `xid` did, which the group `end` commits; raises `NotPrepared` before the first part."""
        files = self._files()
        if known is not None and known.file in files and known.server_uuid == self.facts.server_uuid:
            with closing(self._open(known.file, known.offset)) as file:
                parts = file.transaction(xid, known)
                first = next(parts, None)
                if first is not None:
                    yield first
                    yield from parts
                    return
        found = self._find(xid, end, files)
        if found is None:
            raise NotPrepared
        with closing(self._open(found.file, found.offset)) as file:
            yield from file.transaction(xid, found)

    def _find(self, xid: Xid, end: Group, files: list[str]) -> Group | None:
        """The last group before `end` that prepared `xid` and was not ended by another."""
        until = files.index(end.file) + 1 if end.file in files else len(files)
        for name in reversed(files[:until]):
            with closing(self._open(name, FIRST_OFFSET)) as file:
                found = file.last_state(xid, end)
            if found is not None:
                return found if isinstance(found, Group) else None
        return None

    def _files(self) -> list[str]:
        with (
            closing(connect(self.server, self.source)) as connection,
            server_errors("asking for the binary logs", self.server, self.source, STATUS_GRANT),
        ):
            return [str(row[0]) for row in rows(connection, "SHOW BINARY LOGS")]

    def _open(self, file: str, offset: int) -> "_LogFile":
        begin = offset if offset <= MOST_DUMP_OFFSET else FIRST_OFFSET
        start = BinlogPosition(None, self.facts.server_uuid, file, begin)
        other = uuid5(self.replica.server_uuid, "prepared transactions")
        beside = ReplicaIdentity(int.from_bytes(other.bytes[:4], "little") | 1 << 31, other)
        stream = open_stream(
            self.server, self.source, self.facts, beside, start, BinlogPositionKind.FILE, ends=True, annotated=True
        )
        return _LogFile(self, stream, start)


class _LogFile:
    """One file from one place on, to its end."""

    def __init__(self, log: PreparedLog, stream: ReplicationStream, start: BinlogPosition) -> None:
        self._log = log
        self._stream = stream
        self._place = Place(log.source, start.file, start)
        self._decoder = BinlogDecoder(
            mariadb=log.facts.flavor == "mariadb",
            checksum=stream.checksum,
            next_gsn=1,
            next_transaction_id=1,
            pending_bytes=PORTION_BYTES,
        )
        #: inside of a group that prepares a transaction
        self._in_xa = False

    def close(self) -> None:
        self._stream.close()

    def transaction(self, xid: Xid, group: Group) -> Iterator[Part]:
        """The parts of the transaction that `group` prepared; none where another group stands there."""
        decoder = self._decoder
        is_found = False
        for event in self._events():
            if decoder.in_transaction and decoder.transaction_begin_offset < group.offset:
                continue
            if event is not None and event.type == binlog.XA_PREPARE_LOG_EVENT:
                if parse_xa_prepare(event.body)[0] != xid or not is_found:
                    return
                yield decoder.take_kept()
                return
            if event is not None and _begins_xa(event):
                is_found = decoder.gtid == group.gtid and decoder.transaction_begin_offset == group.offset
                decoder.keep_events = is_found
            elif is_found and event is None:
                yield decoder.take_kept()
            elif is_found and event is not None and event.type == binlog.QUERY_EVENT and not _is_xa_end(event):
                yield decoder.take_kept()
                yield event
            if not is_found and decoder.transaction_end_offset > group.offset:
                return

    def last_state(self, xid: Xid, end: Group) -> "Group | _Ended | None":
        """The group in this file that prepared `xid` last, before `end`; or that it ended; None: neither."""
        decoder = self._decoder
        state: Group | _Ended | None = None
        for event in self._events():
            if event is None:
                continue
            here = Group(decoder.gtid, self._log.facts.server_uuid, self._place.file, decoder.transaction_begin_offset)
            if here.is_same(end):
                break
            if event.type == binlog.XA_PREPARE_LOG_EVENT:
                prepared, one_phase = parse_xa_prepare(event.body)
                if prepared == xid:
                    state = _Ended() if one_phase else here
            elif event.type == binlog.QUERY_EVENT and (text := parse_query(event.body).text).startswith("XA "):
                verb, named = parse_xa_statement(text)
                if named == xid and verb in ("COMMIT", "ROLLBACK"):
                    state = _Ended()
        return state

    def _events(self) -> Iterator[Event | None]:
        """The events that Python sees, up to the file's end; None: kept events want to be taken."""
        while (reason := self._next()) not in (Reason.END_OF_STREAM, Reason.ERROR_PACKET):
            if reason == Reason.BATCH_FULL:
                yield None
                continue
            event = self._decoder.event
            try:
                if not self._handle(event):
                    return
                self._in_xa = self._in_xa or _begins_xa(event)
                yield event
                self._finish(event)
            except (EventBodyError, TableMapError) as broken:
                raise event_unreadable(self._place, event.type, event.log_pos, str(broken)) from broken
        if reason == Reason.ERROR_PACKET:
            code, _, message = self._decoder.error_packet
            raise connection_lost(self._place, f"the server ended the stream with code {code}: {message}")

    def _next(self) -> Reason:
        while True:
            try:
                reason = self._decoder.decode()
            except DecodeError as broken:
                raise event_unreadable(self._place, broken.event_type, broken.log_pos, str(broken)) from broken
            if reason != Reason.NEED_BYTES:
                return reason
            try:
                size = self._stream.receive_into(self._decoder.writable(), SILENCE_SECONDS)
            except OSError as broken:  # TimeoutError too
                raise connection_lost(self._place, f"the connection broke ({type(broken).__name__})") from broken
            if not size:
                raise connection_lost(self._place, "the server closed the connection")
            self._decoder.received(size)
            self._log.received(size)

    def _handle(self, event: Event) -> bool:
        """What the decoder needs; False: another file begins."""
        if event.type == binlog.TABLE_MAP_EVENT:
            self._decoder.define_table(table_of(event.body)[0], event.body, None)
        elif event.type == binlog.FORMAT_DESCRIPTION_EVENT:
            self._decoder.checksum = parse_format_description(event.body).checksum
        elif event.type == binlog.ROTATE_EVENT:
            return parse_rotate(event.body).file == self._place.file
        return True

    def _finish(self, event: Event) -> None:
        """End the transaction that ends with this event."""
        if event.type == binlog.XA_PREPARE_LOG_EVENT:
            self._in_xa = False
            self._decoder.transaction_finished()
        elif self._in_xa:
            return
        elif event.type == binlog.EXECUTE_LOAD_QUERY_EVENT:
            self._decoder.transaction_finished()
        elif event.type == binlog.QUERY_EVENT:
            query = parse_query(event.body)
            summary = read_statement(statement_of(query, self._log.reads), self._log.reads)
            if query.text.upper() == "ROLLBACK" and self._decoder.in_transaction:
                self._decoder.transaction_rolled_back()
            elif summary.kind not in (Kind.TRANSACTION, Kind.ROLLBACK) and not summary.opens_transaction:
                self._decoder.transaction_finished()


@dataclass(frozen=True, slots=True)
class _Ended:
    """The transaction was committed or rolled back."""


def _begins_xa(event: Event) -> bool:
    if event.type == binlog.QUERY_EVENT:
        return parse_query(event.body).text.startswith("XA START ")
    return event.type == binlog.GTID_EVENT


def _is_xa_end(event: Event) -> bool:
    return parse_query(event.body).text.startswith("XA END ")
