"""Watermarks on a MariaDB server other than the one whose log is streamed; what they are: see `snapshots`.

Comes in: the connection that reads rows, and a way to ask the server whose log is streamed. Goes out: what of that log
the rows show. Nothing is durable; a kill leaves a transaction that only reads, which the server ends.

Such a server has executed what it applied from others, which mysql.gtid_slave_pos tells (it is written in each applied
transaction: read in the rows' snapshot it is exact), and what was written on it, which its own log tells. MariaDB
numbers both in one sequence per domain: a position says that number 7 is executed, not whose. So a transaction counts
only up to the greatest number that the streamed log has of the same domain and the same server, and the streamed log is
asked after each reading (@@gtid_binlog_state, which every user may read).

What the server says of its role is not asked: a replica may not have applied anything yet, may be stopped or reset, may
be promoted in the middle of a dump or follow several sources. In each of these what the streamed log does not have
counts for nothing: the position stays where it is, and the dump waits for it.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pymysql.connections import Connection

from agent.errors import DumpServerUnrelated, DumpSnapshotFailed
from agent.sources.mysql.ddl.model import Table
from agent.sources.mysql.positions import BinlogPosition, MariadbGtids
from agent.sources.mysql.server.connection import rows, server_errors, variable
from agent.sources.mysql.snapshot.mariadb_snapshots import MariadbLog
from agent.sources.mysql.snapshot.server import DumpServer
from agent.sources.mysql.snapshot.transactional import BEGIN, DOING, NOTHING_LOST, check_engine, end

#: for a transaction of this server to reach the streamed log, whose server follows this one
ARRIVAL_SECONDS = 5.0
PAUSE_SECONDS = 0.02
_APPLIED = "SELECT domain_id, server_id, seq_no FROM mysql.gtid_slave_pos ORDER BY sub_id"
_APPLIED_GRANT = ("SELECT", "mysql.gtid_slave_pos")
_LOGGED = "SELECT @@GLOBAL.gtid_binlog_state, @@GLOBAL.server_id"
_ASKING = "asking which transactions the streamed log has"

#: domain, server and number of a transaction
Gtid = tuple[int, int, int]


class StreamedTransactions:
    """What the streamed log had when it was asked: domain and server -> the greatest number."""

    def __init__(self, state: str) -> None:
        """
        >>> StreamedTransactions("0-1-9,0-2-4").has((0, 2, 5))
        False
        """
        parts = (part.strip().split("-") for part in state.split(",") if part.strip())
        self._numbers: Mapping[tuple[int, int], int] = {
            (int(domain), int(server)): int(number) for domain, server, number in parts
        }

    def knows(self, gtid: Gtid) -> bool:
        """Whether it has any transaction of that server in that domain."""
        return gtid[:2] in self._numbers

    def has(self, gtid: Gtid) -> bool:
        return self._numbers.get(gtid[:2], 0) >= gtid[2]

    def has_any_of(self, server_id: int) -> bool:
        return any(server == server_id for _, server in self._numbers)

    def bounded(self, gtids: Iterable[Gtid]) -> list[Gtid]:
        """What it has of them, or before them in the same sequence; others are left out."""
        return [
            (domain, server, min(number, self._numbers[domain, server]))
            for domain, server, number in gtids
            if (domain, server) in self._numbers
        ]


def latest(own: Iterable[Gtid], applied: Iterable[Gtid]) -> BinlogPosition:
    """The position after all of these; of what was applied the last of a domain counts, whatever its number.

    >>> str(latest([(0, 2, 7), (3, 2, 1)], [(0, 1, 9), (0, 1, 8)]))
    '0-1-8,3-2-1'
    """
    domains = {domain: (server, number) for domain, server, number in applied}
    for domain, server, number in own:
        if number > domains.get(domain, (0, 0))[1]:
            domains[domain] = (server, number)
    return BinlogPosition(MariadbGtids(domains))


class MariadbOtherServer:
    """Of one connection."""

    def __init__(self, connection: "Connection[Any]", server: DumpServer) -> None:
        self._connection = connection
        self._server = server
        self._own_log = MariadbLog(connection, server)

    @contextmanager
    def chunk(self, table: Table) -> Iterator[BinlogPosition]:
        own: list[Gtid] = []
        if self._writes_the_log(self._streamed()):
            with self._own_log.chunk(table) as logged:
                own = _gtids(logged)
        with self._snapshot() as applied:
            streamed = self._streamed()
            yield latest(streamed.bounded(own), streamed.bounded(applied))

    @contextmanager
    def whole(self, table: Table) -> Iterator[BinlogPosition]:
        with server_errors(DOING, self._server.config, self._server.source, *_APPLIED_GRANT):
            check_engine(self._connection, table, self._server)
        writes = self._writes_the_log(self._streamed())
        with self._snapshot() as applied:
            own: list[Gtid] = []
            if writes:
                with server_errors(DOING, self._server.config, self._server.source):
                    own = _gtids(self._own_log.of_snapshot())
            streamed = self._with_all_of(own)
            yield latest(streamed.bounded(own), streamed.bounded(applied))

    def high(self) -> BinlogPosition:
        """Inside a chunk what was applied is exact."""
        streamed = self._streamed()
        own = _gtids(self._own_log.high()) if self._writes_the_log(streamed) else []
        # a transaction of this server that is on its way to the streamed log was shown too
        return latest(filter(streamed.knows, own), streamed.bounded(self._applied()))

    @contextmanager
    def _snapshot(self) -> Iterator[list[Gtid]]:
        """What was applied, in a snapshot that stays open."""
        try:
            with server_errors(DOING, self._server.config, self._server.source, *_APPLIED_GRANT):
                rows(self._connection, BEGIN)
            yield self._applied()
        finally:
            end(self._connection)

    def _applied(self) -> list[Gtid]:
        doing = "reading what the replica has applied"
        with server_errors(doing, self._server.config, self._server.source, *_APPLIED_GRANT):
            found = rows(self._connection, _APPLIED)
        return [(int(domain), int(server), int(number)) for domain, server, number in found]

    def _streamed(self) -> StreamedTransactions:
        """Raises `DumpServerUnrelated` where no server can follow the other."""
        state, server_id = self._server.log.ask(_LOGGED, _ASKING)[0]
        if int(server_id) == self._identity()[0] and not self._is_in_a_cluster():
            raise self._unrelated(int(server_id))
        return StreamedTransactions(str(state))

    def _with_all_of(self, own: list[Gtid]) -> StreamedTransactions:
        """What the streamed log has once it has what this server wrote; raises `DumpSnapshotFailed`."""
        deadline = time.monotonic() + ARRIVAL_SECONDS
        while True:
            streamed = self._streamed()
            missing = [gtid for gtid in own if streamed.knows(gtid) and not streamed.has(gtid)]
            if not missing:
                return streamed
            if time.monotonic() >= deadline:
                raise self._not_streamed(missing[0])
            time.sleep(PAUSE_SECONDS)

    def _writes_the_log(self, streamed: StreamedTransactions) -> bool:
        """Whether transactions that were written on this server are in the streamed log."""
        server_id, has_a_log = self._identity()
        return has_a_log and streamed.has_any_of(server_id)

    def _identity(self) -> tuple[int, bool]:
        """Its server_id, and whether it writes a log."""
        with server_errors(DOING, self._server.config, self._server.source):
            server_id, has_a_log = rows(self._connection, "SELECT @@GLOBAL.server_id, @@GLOBAL.log_bin")[0]
        return int(server_id), bool(has_a_log)

    def _is_in_a_cluster(self) -> bool:
        """Galera's nodes share a server_id, and number transactions together."""
        with server_errors(DOING, self._server.config, self._server.source):
            return (variable(self._connection, "wsrep_on") or "").upper() == "ON"

    def _unrelated(self, server_id: int) -> DumpServerUnrelated:
        return DumpServerUnrelated(
            "comparing the dump's server with the source's log",
            f"{self._server.config.address} is another server than the one whose log is streamed, and both have"
            f" server_id {server_id}: neither can follow the other, and their transactions can't be told apart",
            data="Nothing was dumped; the stream goes on",
            remedy=f"Name a replica in sources.{self._server.source}.client, or the server of"
            f" sources.{self._server.source}.binlog, and restart the agent; then run: menura sync retry"
            f" {self._server.source} --all",
            source=self._server.source,
        )

    def _not_streamed(self, gtid: Gtid) -> DumpSnapshotFailed:
        return DumpSnapshotFailed(
            DOING,
            f"the snapshot shows transaction {'-'.join(map(str, gtid))}, which was written on"
            f" {self._server.config.address} and is not in the streamed log after {ARRIVAL_SECONDS:g} s",
            data=NOTHING_LOST,
            remedy="It is tried again; if the server is a replica, nothing but its source may write there (read_only)",
            source=self._server.source,
        )


def _gtids(position: BinlogPosition) -> list[Gtid]:
    assert isinstance(position.gtids, MariadbGtids)
    return [(domain, server, number) for domain, (server, number) in position.gtids.domains.items()]
