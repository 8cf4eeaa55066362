"""What a SELECT on the dump's server shows, as positions of the source's log.

Comes in: a session that reads rows, and what the stream has read. Goes out: the low watermark of a chunk (each
transaction in it is visible to its SELECT), the high watermark after it (each transaction that it showed is in it), and
snapshots of whole tables whose position is exact. Waits for nobody but at a whole table. Nothing is durable; a kill
leaves a transaction that only reads, which the server ends.

On a primary a commit record is in the log, and may be read from there, before its transaction is visible: it waits for
the disk, and for synchronous standbys. So what the stream has read is low only without the transactions that the
chunk's snapshot does not show (`SeenTransactions`); they are told apart by their ids. What is visible has its record in
the log, so the log's end is high.

On a standby what is replayed is visible, and a snapshot lists no running transactions. So the end of what is replayed,
read before the chunk's transaction begins, is low. What is being replayed at this moment may be visible already: the
primary's end is high.

A whole table begins where a slot begins that lives for a moment: the server exports with it a snapshot that shows
exactly the transactions whose commit records stand before it.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

from pg8000.exceptions import DatabaseError, InterfaceError

from agent.errors import DumpServerUnrelated, DumpSnapshotFailed, SourceConnectionLost
from agent.snapshot.reading import NotYet
from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.positions import WalPosition, parse_lsn
from agent.sources.postgresql.seen_transactions import SNAPSHOT_STATEMENT, Hold, SeenTransactions, Snapshot
from agent.sources.postgresql.server.connection import (
    CONFIGURATION_LIMIT_EXCEEDED,
    LOCK_NOT_AVAILABLE,
    QUERY_CANCELED,
    Connection,
    Facts,
    Row,
    connect,
    facts_of,
    is_connection_lost,
    rows,
    server_errors,
    sqlstate,
)
from agent.sources.postgresql.server.quoting import quoted
from agent.sources.postgresql.server.slot import PLUGIN, find_slot, oldest_transactions, slots_exhausted
from agent.sources.postgresql.server.sockets import interrupt
from agent.sources.postgresql.snapshot.session import Session, end_on_server
from agent.table_positions import Table

T = TypeVar("T")

DOING = "reading what a snapshot shows"
NOTHING_LOST = "Nothing of it was dumped; its stream goes on"
#: a whole table's snapshot waits so long for each transaction that runs
EXPORT_SECONDS = 60.0
_OPTIONS_VERSION = 150000

#: of pages and segments of WAL: xlog_internal.h
_SHORT_HEADER_BYTES = 24
_LONG_HEADER_BYTES = 40

_TIMELINE = """
    SELECT pg_is_in_recovery(), CASE
        WHEN pg_is_in_recovery() THEN (
            SELECT greatest(timeline_id, min_recovery_end_timeline) FROM pg_control_checkpoint(), pg_control_recovery())
        ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int END
"""
_END = """
    SELECT written::text, current_setting('wal_block_size')::int, pg_size_bytes(current_setting('wal_segment_size')),
           CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_flush_lsn() >= written END
    FROM (SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_insert_lsn() END AS written) AS log
"""
#: Streams get what is on disk alone. A transaction that has an id has the server write all up to its end there, within
#: a moment; else the records of one that has not ended, or of pages that a SELECT has tidied up, may stay in memory.
_FLUSH = "SELECT pg_current_xact_id()"
_REPLAYED = "SELECT pg_last_wal_replay_lsn()::text"
#: what is received is NULL or old where WAL comes from an archive
_RECEIVED = """
    SELECT pg_last_wal_replay_lsn()::text, coalesce(pg_last_wal_receive_lsn(), '0/0')::text,
           EXISTS (SELECT FROM pg_stat_wal_receiver)
"""
_IS_PUBLISHED = """
    SELECT EXISTS (SELECT FROM pg_publication_tables
                   WHERE pubname = :publication AND schemaname = :schema AND tablename = :table)
"""


class Positions:
    """Of one worker's session, at the server whose log is streamed or at a standby of it."""

    def __init__(self, config: PostgresqlConfig, slot: str, session: Session, seen: SeenTransactions) -> None:
        """Raises a `SourceError`, and `DumpServerUnrelated`."""
        self._config = config
        self._slot = slot
        self._session = session
        self._seen = seen
        self._log = LogServer(config)
        try:
            self._has_the_log = self._compare()
        except BaseException:
            self._log.close()
            raise
        #: of the standby: what was replayed when a chunk's snapshot had just been taken
        self._replayed_then = 0
        self._hold: Hold | None = None
        self._exporter: Connection | None = None
        #: that the server may not have noticed
        self._interrupted: Connection | None = None

    def _compare(self) -> bool:
        """Whether the stream reads the log of the session's server; False: of its primary, or another standby."""
        ours, server = self._session.facts, self._session.server
        if server == self._config.replication and not ours.is_standby:
            return True
        theirs = self._log.facts()
        if not ours.same_log(theirs):
            raise self._unrelated("is no standby of the server whose log is streamed, nor that server")
        is_same = (ours.started, ours.is_standby) == (theirs.started, theirs.is_standby)
        if not ours.is_standby and not is_same:
            raise self._unrelated("is a primary of its own, which goes on in another way")
        return is_same

    # --- chunks

    @contextmanager
    def chunk(self) -> Iterator[WalPosition]:
        """Around the transaction of a chunk: its low watermark. Raises `NotYet`."""
        if self._session.facts.is_standby:
            yield from self._chunk_of_standby()
        else:
            yield from self._chunk_of_primary()

    def _chunk_of_primary(self) -> Iterator[WalPosition]:
        session = self._session
        with session.transaction():
            with session.errors(DOING):
                read_to = self._read_to()
                snapshot = Snapshot.parse(str(session.rows(SNAPSHOT_STATEMENT)[0][0]))
                self._check_server(read_to)
            low = self._seen.low(read_to, snapshot)
            if low is None:
                raise NotYet(
                    "transactions that ran when the stream began are not over: whether the server shows all that it had"
                    " logged before is not known until then"
                )
            yield low

    def _chunk_of_standby(self) -> Iterator[WalPosition]:
        session = self._session
        with session.errors(DOING):
            low = parse_lsn(str(session.rows(_REPLAYED)[0][0]))
        with session.transaction():
            with session.errors(DOING):
                self._check_server(self._read_to())
                self._replayed_then = parse_lsn(str(session.rows(_REPLAYED)[0][0]))
            yield session.facts.position(low)

    def high(self) -> WalPosition:
        """Read after a SELECT: has each transaction that it showed. Raises `NotYet`."""
        session = self._session
        if not session.facts.is_standby:
            with session.errors(DOING):
                found = _end(session.connection)
            if found is None:
                raise self._changed()
            return session.facts.position(found)
        end = self._log.end()
        return session.facts.position(end if end is not None else self._end_of_received())

    def _end_of_received(self) -> int:
        """The stream reads a standby too: what is replayed at this moment was received, or is over when more is
        replayed than at the snapshot."""
        with self._session.errors(DOING):
            ((replayed, received, is_receiving),) = self._session.rows(_RECEIVED)
        if is_receiving:
            return max(parse_lsn(replayed), parse_lsn(received))
        if parse_lsn(replayed) <= self._replayed_then:
            raise NotYet("the dump's server has replayed nothing since its snapshot")
        return parse_lsn(replayed)

    def _read_to(self) -> WalPosition:
        read_to = self._seen.read_to()
        if read_to is None:
            raise NotYet("the source's stream does not run")
        return read_to

    def _check_server(self, read_to: WalPosition) -> None:
        """It is what it was, and goes on in the way that is streamed."""
        facts = self._session.facts
        ((is_standby, timeline),) = self._session.rows(_TIMELINE)
        if is_standby != facts.is_standby:
            raise self._changed()
        if not facts.position(0).is_comparable(read_to):
            raise self._unrelated("is no standby of the server whose log is streamed, nor that server")
        if timeline != read_to.timeline:
            raise NotYet(f"the dump's server is on timeline {timeline}, the stream on {read_to.timeline}")

    def _changed(self) -> SourceConnectionLost:
        return SourceConnectionLost(
            DOING,
            f"{self._session.server.address} was promoted, or became a standby",
            data="Nothing is lost: what had not come is read again",
            source=self._config.name,
        )

    def _unrelated(self, found: str) -> DumpServerUnrelated:
        name, client = self._config.name, self._config.client
        return DumpServerUnrelated(
            "comparing the dump's server with the source's log",
            f"{client.address} {found}",
            data="Nothing was dumped; the stream goes on",
            remedy=f"Name the server of sources.{name}.replication, or a standby of it, in sources.{name}.client too"
            f" and restart the agent; then run: menura sync retry {name} --all",
            source=name,
        )

    # --- whole tables

    @contextmanager
    def whole(self, table: Table) -> Iterator[tuple[WalPosition, Session]]:
        """Around the reading of a whole table, in a session at the server whose log is streamed: its transaction shows
        exactly what is in the position. The slot is kept there until `release`. Raises `NotYet`."""
        self.release()
        self._hold = self._seen.hold(self._read_to())
        try:
            with ExitStack() as stack:
                session = self._session
                if not self._has_the_log:
                    session = stack.enter_context(closing(Session(self._config.replication, self._config.name)))
                self._check_changes(table, session)
                position = self._begin(table, session, stack)
                read_to, self._hold = self._hold, self._seen.hold(position)
                read_to.release()
                yield position, session
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """The slot need not be kept any more."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()

    def _check_changes(self, table: Table, session: Session) -> None:
        """All that is changed from now on comes by the stream."""
        with session.errors("looking at what the source's slot sends"):
            self._check_log(session)
            slot = find_slot(session.connection, self._slot)
            names = {"publication": self._config.publication, "schema": table[0], "table": table[1]}
            ((is_published,),) = session.rows(_IS_PUBLISHED, **names)
        if slot is None or slot.is_lost:
            raise NotYet("the source's replication slot is not there yet")
        if not is_published:
            raise NotYet(f"the publication {self._config.publication} does not have the table yet")

    def _check_log(self, session: Session) -> None:
        read_to = self._read_to()
        if not session.facts.position(0).is_comparable(read_to):
            raise self._unrelated("is not the server whose log is streamed")
        ((_, timeline),) = session.rows(_TIMELINE)
        if timeline != read_to.timeline:
            raise NotYet(f"the server is on timeline {timeline}, the stream on {read_to.timeline}")

    def _begin(self, table: Table, session: Session, stack: ExitStack) -> WalPosition:
        """The transaction of a snapshot that the server exports with a slot; its position."""
        server, source = self._config.replication, self._config.name
        doing = "taking a snapshot of a table"
        with closing(connect(server, source, replication=True, lock_seconds=EXPORT_SECONDS)) as exporter:
            exporter.socket.settimeout(4 * EXPORT_SECONDS)
            self._exporter = exporter
            try:
                with server_errors(doing, server, source):
                    facts = facts_of(exporter, source)
                    ((_, position, snapshot, _),) = self._export(table, exporter, session)
                if facts != session.facts:
                    raise self._changed()
                stack.enter_context(session.transaction(str(snapshot)))
            finally:
                self._exporter = None
        return session.facts.position(parse_lsn(str(position)))

    def _export(self, table: Table, exporter: Connection, session: Session) -> list[Row]:
        options = "(SNAPSHOT 'export')" if session.facts.version >= _OPTIONS_VERSION else "EXPORT_SNAPSHOT"
        name = quoted(f"menura_dump_{secrets.token_hex(8)}")
        try:
            return rows(exporter, f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL {PLUGIN} {options}")
        except (DatabaseError, TimeoutError) as failed:
            state = sqlstate(failed)
            if state == CONFIGURATION_LIMIT_EXCEEDED:
                raise slots_exhausted(DOING, session.server, self._config.name) from failed
            if state in (LOCK_NOT_AVAILABLE, QUERY_CANCELED) or isinstance(failed, TimeoutError):
                raise self._busy(table, oldest_transactions(session.connection)) from failed
            raise

    def _busy(self, table: Table, seen: str) -> DumpSnapshotFailed:
        return DumpSnapshotFailed(
            "taking a snapshot of a table",
            f"transactions ran for longer than {EXPORT_SECONDS:.0f} s" + (f": {seen}" if seen else ""),
            data=NOTHING_LOST,
            remedy="It is tried again; end transactions that nobody needs: SELECT pg_terminate_backend(PID)",
            source=self._config.name,
            database=table[0],
            table=table[1],
        )

    # --- their end

    def interrupt(self) -> None:
        """End what another thread waits for at a whole table's beginning."""
        exporter = self._exporter
        if exporter is not None:
            self._interrupted = exporter
            interrupt(exporter.socket)

    def end_on_server(self) -> None:
        """After `interrupt`: the server would go on waiting for transactions."""
        exporter, self._interrupted = self._interrupted, None
        if exporter is not None:
            end_on_server(exporter, self._config.replication, self._config.name)

    def close(self) -> None:
        self.release()
        self._log.close()


class LogServer:
    """The server whose log is streamed, where it is another one: asked over a connection that stays open.

    Call from one thread at a time.
    """

    def __init__(self, config: PostgresqlConfig) -> None:
        self._server = config.replication
        self._source = config.name
        self._connection: Connection | None = None

    def facts(self) -> Facts:
        """Raises a `SourceError`."""
        return self._ask(lambda connection: facts_of(connection, self._source))

    def end(self) -> int | None:
        """Behind all that it has written; None: it is a standby. Raises a `SourceError`."""
        return self._ask(_end)

    def _ask(self, ask: Callable[[Connection], T]) -> T:
        """A connection that was lost since the last question is made anew."""
        with server_errors(DOING, self._server, self._source):
            if self._connection is not None:
                try:
                    return ask(self._connection)
                except (DatabaseError, InterfaceError, OSError) as failed:
                    self.close()
                    if not is_connection_lost(failed):
                        raise
            self._connection = connect(self._server, self._source)
            return ask(self._connection)

    def close(self) -> None:
        """Safe whatever state the connection is in."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _end(connection: Connection) -> int | None:
    """Behind all that the server has written; None: it is a standby. Inside `server_errors`."""
    ((end, page_bytes, segment_bytes, is_flushed),) = rows(connection, _END)
    if end is None:
        return None
    if not is_flushed:
        rows(connection, _FLUSH)
    return end_of_records(parse_lsn(end), page_bytes, segment_bytes)


def end_of_records(lsn: int, page_bytes: int, segment_bytes: int) -> int:
    """Where the last record ends, given where the next one begins: not behind a page's head that is not written yet,
    since no stream gets there before that.

    >>> [end_of_records(lsn, 8192, 16 << 20) for lsn in (8192 + 24, 8192 + 32, (16 << 20) + 40, 8192 + 40)]
    [8192, 8224, 16777216, 8232]
    """
    header = _LONG_HEADER_BYTES if lsn % segment_bytes < page_bytes else _SHORT_HEADER_BYTES
    return lsn - header if lsn % page_bytes == header else lsn
