"""What a server says about its binary log: where it begins and ends, and of itself.

Comes in: a client connection. Goes out: `BinlogPosition`s and errors. Reads status only, never events.
"""

from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from agent.capture.source import Oldest
from agent.errors import PositionInvalid
from agent.positions import PositionSyntaxError
from agent.sources.mysql.config import ServerConfig
from agent.sources.mysql.positions import (
    BinlogPosition,
    BinlogPositionKind,
    Gtids,
    MariadbGtids,
    MysqlGtids,
    log_number,
    no_gtids,
    parse_file_offset,
)
from agent.sources.mysql.server.connection import Facts, rows, server_errors, variable

#: of a log file, before its first event
FIRST_OFFSET = 4
STATUS_GRANT = "REPLICATION CLIENT"
#: both of its terms are whole seconds, asked for one after the other
START_DOUBT_SECONDS = 2
#: since which MySQL the status has its new name
_BINARY_LOG_STATUS_SINCE = (8, 2)


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server from its start to its end."""

    #: what no other server is called: its UUID where it has one, host, port, server id
    server: str
    #: when it was started, in seconds since the epoch by its own clock, to about a second
    started: int
    #: number of a connection to it; later ones have higher numbers
    connection: int

    def goes_on_from(self, before: "ServerProcess") -> bool:
        """Whether it is the same one, seen later."""
        is_as_old = abs(self.started - before.started) <= START_DOUBT_SECONDS
        return self.server == before.server and is_as_old and self.connection > before.connection


@dataclass(frozen=True, slots=True)
class ReadTransaction:
    """By which a log is told from another one with the same numbers."""

    #: of the decoder's take_gtids
    key: str
    number: int
    #: when its last statement began, in seconds since the epoch: each replica's log says the same
    begun: int

    @property
    def is_of_mariadb(self) -> bool:
        return self.key.count("-") == 1

    @property
    def gtid(self) -> str:
        """In the server's words.

        >>> ReadTransaction("0-1", 9, 1_700_000_000).gtid
        '0-1-9'
        """
        return f"{self.key}{'-' if self.is_of_mariadb else ':'}{self.number}"


class ServerLog:
    """The binary log of one server, over a connection that the caller owns."""

    def __init__(
        self,
        connection: "Connection[Any]",
        server: ServerConfig,
        source: str,
        facts: Facts,
        position_kind: BinlogPositionKind,
    ) -> None:
        self._connection = connection
        self._server = server
        self._source = source
        self._facts = facts
        self._position_kind = position_kind

    def end(self) -> BinlogPosition:
        """After the last transaction."""
        with server_errors("asking for the end of the binary log", self._server, self._source, STATUS_GRANT):
            found = rows(self._connection, status_statement(self._facts))
            if not found:
                return BinlogPosition(no_gtids(self._position_kind), self._facts.server_uuid)
            file, offset = str(found[0][0]), int(found[0][1])
            gtids: Gtids | None = None
            if self._position_kind is BinlogPositionKind.MYSQL_GTID:
                gtids = MysqlGtids.parse(str(found[0][4]))
            elif self._position_kind is BinlogPositionKind.MARIADB_GTID:
                gtids = self._mariadb_gtids_at(file, offset)
        return self._position(gtids, file, offset)

    def oldest(self) -> Oldest[BinlogPosition]:
        """The log's first transaction that is still there."""
        with server_errors("asking for the oldest binary log", self._server, self._source, STATUS_GRANT):
            file = self._files()[0][0]
            gtids: Gtids | None = None
            if self._position_kind is BinlogPositionKind.MYSQL_GTID:
                gtids = MysqlGtids.parse(variable(self._connection, "gtid_purged") or "")
            elif self._position_kind is BinlogPositionKind.MARIADB_GTID:
                gtids = self._mariadb_gtids_at(file, FIRST_OFFSET)
        missing = ""
        if gtids or log_number(file) != 1:
            missing = f"the server has purged its log before {file}: rows that were not changed since then need a dump"
        return Oldest(self._position(gtids, file, FIRST_OFFSET), missing)

    def bytes_after(self, position: BinlogPosition) -> int | None:
        """How much log there is from `position` on; None: not known."""
        with server_errors("asking for the size of the binary log", self._server, self._source, STATUS_GRANT):
            files = self._files()
        names = [name for name, _ in files]
        if position.file not in names or position.server_uuid != self._facts.server_uuid:
            return None
        return max(0, sum(size for _, size in files[names.index(position.file) :]) - position.offset)

    def parse(self, text: str) -> BinlogPosition:
        """A position in a user's words; raises `PositionInvalid`."""
        file_offset = parse_file_offset(text)
        try:
            if file_offset is None or self._position_kind is BinlogPositionKind.MYSQL_GTID:
                return self._position(_parse_gtids(text, self._position_kind), "", 0)
        except PositionSyntaxError as wrong:
            raise PositionInvalid(
                "reading the position where a sync begins",
                f"{text!r} can't be read: {wrong}",
                data="The table was not started",
                remedy=f"Give what the server prints, e.g. the result of: {status_statement(self._facts)}",
                source=self._source,
            ) from wrong
        file, offset = file_offset
        gtids = None
        if self._position_kind is BinlogPositionKind.MARIADB_GTID:
            with server_errors("asking for the GTID position of a file's offset", self._server, self._source):
                gtids = self._mariadb_gtids_at(file, offset)
        position = self._position(gtids, file, offset)
        if offset > dict(self.files()).get(file, 0) or offset < FIRST_OFFSET:
            raise self._not_in_log(file, offset)
        return position

    def mysql_gtids(self) -> tuple[MysqlGtids, MysqlGtids]:
        """What is purged, and what is executed."""
        with server_errors("asking for the server's GTIDs", self._server, self._source, STATUS_GRANT):
            purged = MysqlGtids.parse(variable(self._connection, "gtid_purged") or "")
            return purged, MysqlGtids.parse(str(rows(self._connection, "SELECT @@GLOBAL.gtid_executed")[0][0]))

    def mariadb_gtids(self) -> tuple[MariadbGtids, MariadbGtids]:
        """Where the first log begins, and where the last one ends."""
        with server_errors("asking for the server's GTIDs", self._server, self._source, STATUS_GRANT):
            first = self._mariadb_gtids_at(self._files()[0][0], FIRST_OFFSET)
            return first, MariadbGtids.parse(str(rows(self._connection, "SELECT @@GLOBAL.gtid_binlog_pos")[0][0]))

    def mariadb_gtids_at(self, file: str, offset: int) -> MariadbGtids:
        """Those of all transactions before the place."""
        with server_errors("asking for the GTID position of a file's offset", self._server, self._source):
            return self._mariadb_gtids_at(file, offset)

    def files(self) -> list[tuple[str, int]]:
        """Names and sizes in bytes, the oldest first."""
        with server_errors("asking for the server's logs", self._server, self._source, STATUS_GRANT):
            return self._files()

    @property
    def position_kind(self) -> BinlogPositionKind:
        return self._position_kind

    @property
    def server_uuid(self) -> str:
        """'' where the server has none."""
        return self._facts.server_uuid

    def process(self) -> ServerProcess:
        """The running server."""
        with server_errors("asking for the server's name", self._server, self._source):
            *names, now, connection = rows(
                self._connection, "SELECT @@hostname, @@port, @@server_id, UNIX_TIMESTAMP(), CONNECTION_ID()"
            )[0]
            uptime = rows(self._connection, "SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1]
        server = " ".join(map(str, (self._facts.server_uuid, *names))).strip()
        return ServerProcess(server, int(now) - int(uptime), int(connection))

    def _files(self) -> list[tuple[str, int]]:
        found = rows(self._connection, "SHOW BINARY LOGS")
        return [(str(row[0]), int(row[1])) for row in found]

    def _mariadb_gtids_at(self, file: str, offset: int) -> MariadbGtids:
        text = rows(self._connection, "SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))[0][0]
        if text is None:
            raise self._not_in_log(file, offset)
        return MariadbGtids.parse(text.decode() if isinstance(text, bytes) else str(text))

    def _not_in_log(self, file: str, offset: int) -> PositionInvalid:
        return PositionInvalid(
            "asking for a file's offset",
            f"{file}:{offset} is not in the server's log",
            data="Nothing was read",
            remedy=f"Give a position that the server prints, e.g. the result of: {status_statement(self._facts)}",
            source=self._source,
        )

    def _position(self, gtids: Gtids | None, file: str, offset: int) -> BinlogPosition:
        return BinlogPosition(gtids, self._facts.server_uuid, file, offset)


def _parse_gtids(text: str, position_kind: BinlogPositionKind) -> Gtids:
    if position_kind is BinlogPositionKind.FILE:
        raise PositionSyntaxError("this server has no GTIDs, so FILE:OFFSET is needed")
    gtids = MysqlGtids.parse(text) if position_kind is BinlogPositionKind.MYSQL_GTID else MariadbGtids.parse(text)
    if not gtids:
        raise PositionSyntaxError("it names no transaction")
    return gtids


def status_statement(facts: Facts) -> str:
    """The statement that shows the log's end."""
    if facts.flavor == "mariadb":
        return "SHOW MASTER STATUS"
    major, minor = (int(number) for number in facts.version.split(".")[:2])
    return "SHOW BINARY LOG STATUS" if (major, minor) >= _BINARY_LOG_STATUS_SINCE else "SHOW MASTER STATUS"


def natural_position_kind(facts: Facts) -> BinlogPositionKind:
    """How positions on this server are kept when nothing older says otherwise."""
    if facts.flavor == "mariadb":
        return BinlogPositionKind.MARIADB_GTID
    return BinlogPositionKind.MYSQL_GTID if facts.has_gtids else BinlogPositionKind.FILE
