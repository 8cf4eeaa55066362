"""What a server says about its binary log: where it begins and ends, and whether a position can still be read.

Comes in: a client connection. Goes out: `Position`s and errors. Reads status only, never events.
"""

from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from agent.config import ServerConfig
from agent.errors import PositionInvalid, PositionPurged, SourceRebuilt
from agent.mysql.positions import (
    Gtids,
    MariadbGtids,
    MysqlGtids,
    Position,
    PositionsUnordered,
    PositionSyntaxError,
    Scheme,
    log_number,
    parse_file_offset,
)
from agent.mysql.server.connection import Facts, rows, server_errors, variable

#: of a log file, before its first event
FIRST_OFFSET = 4
STATUS_GRANT = "REPLICATION CLIENT"
#: since which MySQL the status has its new name
_BINARY_LOG_STATUS_SINCE = (8, 2)


@dataclass(frozen=True, slots=True)
class Oldest:
    position: Position
    #: why rows older than it are missing; empty when the log is whole
    earlier_rows_missing: str


class ServerLog:
    """The binary log of one server, over a connection that the caller owns."""

    def __init__(
        self, connection: "Connection[Any]", server: ServerConfig, source: str, facts: Facts, scheme: Scheme
    ) -> None:
        self._connection = connection
        self._server = server
        self._source = source
        self._facts = facts
        self._scheme = scheme

    def end(self) -> Position:
        """After the last transaction."""
        with server_errors("asking for the end of the binary log", self._server, self._source, STATUS_GRANT):
            found = rows(self._connection, status_statement(self._facts))
            if not found:
                return Position(self._no_gtids(), self._facts.server_uuid)
            file, offset = str(found[0][0]), int(found[0][1])
            gtids: Gtids | None = None
            if self._scheme is Scheme.MYSQL_GTID:
                gtids = MysqlGtids.parse(str(found[0][4]))
            elif self._scheme is Scheme.MARIADB_GTID:
                gtids = self._mariadb_gtids_at(file, offset)
        return self._position(gtids, file, offset)

    def oldest(self) -> Oldest:
        """The log's first transaction that is still there."""
        with server_errors("asking for the oldest binary log", self._server, self._source, STATUS_GRANT):
            file = self._files()[0][0]
            gtids: Gtids | None = None
            if self._scheme is Scheme.MYSQL_GTID:
                gtids = MysqlGtids.parse(variable(self._connection, "gtid_purged") or "")
            elif self._scheme is Scheme.MARIADB_GTID:
                gtids = self._mariadb_gtids_at(file, FIRST_OFFSET)
        missing = ""
        if gtids or log_number(file) != 1:
            missing = f"the server has purged its log before {file}: rows that were not changed since then need a dump"
        return Oldest(self._position(gtids, file, FIRST_OFFSET), missing)

    def bytes_after(self, position: Position) -> int | None:
        """How much log there is from `position` on; None: not known."""
        with server_errors("asking for the size of the binary log", self._server, self._source, STATUS_GRANT):
            files = self._files()
        names = [name for name, _ in files]
        if position.file not in names or position.server_uuid != self._facts.server_uuid:
            return None
        return max(0, sum(size for _, size in files[names.index(position.file) :]) - position.offset)

    def parse(self, text: str) -> Position:
        """A position in a user's words; raises `PositionInvalid`."""
        file_offset = parse_file_offset(text)
        try:
            if file_offset is None or self._scheme is Scheme.MYSQL_GTID:
                return self._position(_parse_gtids(text, self._scheme), "", 0)
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
        if self._scheme is Scheme.MARIADB_GTID:
            with server_errors("asking for the GTID position of a file's offset", self._server, self._source):
                gtids = self._mariadb_gtids_at(file, offset)
        position = self._position(gtids, file, offset)
        self._check_file(position)
        return position

    def check_readable(self, position: Position) -> None:
        """Raise `PositionPurged` or `SourceRebuilt` where the server can't go on from `position`."""
        with server_errors("checking the position against the server's log", self._server, self._source, STATUS_GRANT):
            if isinstance(position.gtids, MysqlGtids):
                purged = MysqlGtids.parse(variable(self._connection, "gtid_purged") or "")
                if not position.gtids.covers(purged):
                    raise self._purged(position, f"the server has purged transactions up to {purged}")
                executed = MysqlGtids.parse(str(rows(self._connection, "SELECT @@GLOBAL.gtid_executed")[0][0]))
                if not executed.covers(position.gtids):
                    raise self.rebuilt(position, "the server has not executed all of its transactions")
                self._check_numbers_not_used_again(position)
            elif isinstance(position.gtids, MariadbGtids):
                first = self._mariadb_gtids_at(self._files()[0][0], FIRST_OFFSET)
                if not position.gtids.covers(first):
                    raise self._purged(position, f"the server's first log begins after {first}")
                last = MariadbGtids.parse(str(rows(self._connection, "SELECT @@GLOBAL.gtid_binlog_pos")[0][0]))
                if not last.covers(position.gtids):
                    raise self.rebuilt(position, f"the server's log ends at {last}")
            else:
                self._check_file(position)

    def server_name(self) -> str:
        """What no other server is called."""
        with server_errors("asking for the server's name", self._server, self._source):
            names = rows(self._connection, "SELECT @@hostname, @@port, @@server_id")[0]
        return " ".join(map(str, (self._facts.server_uuid, *names)))

    def _check_numbers_not_used_again(self, position: Position) -> None:
        """A log that was reset has other transactions with the same GTIDs; it is shorter than it was, for a while."""
        if position.server_uuid != self._facts.server_uuid or not position.file:
            return
        end = self.end()
        if end.file and end.is_earlier_in_files(position):
            raise self.rebuilt(
                position,
                f"its log ended at {position.file}:{position.offset} before, and ends at {end.file}:{end.offset} now",
            )

    def _check_file(self, position: Position) -> None:
        if position.server_uuid != self._facts.server_uuid:
            raise self.rebuilt(
                position, f"the position is of server {position.server_uuid}, this is {self._facts.server_uuid}"
            )
        files = dict(self._files())
        if position.file not in files:
            first = next(iter(files))
            try:
                purged = log_number(position.file) < log_number(first)
            except PositionsUnordered:
                purged = False
            if purged:
                raise self._purged(position, f"the server's first log is {first}")
            raise self.rebuilt(position, f"the server has no log {position.file}")
        if not FIRST_OFFSET <= position.offset <= files[position.file]:
            raise self.rebuilt(position, f"{position.file} has {files[position.file]} bytes")

    def _files(self) -> list[tuple[str, int]]:
        found = rows(self._connection, "SHOW BINARY LOGS")
        return [(str(row[0]), int(row[1])) for row in found]

    def _mariadb_gtids_at(self, file: str, offset: int) -> MariadbGtids:
        text = rows(self._connection, "SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))[0][0]
        if text is None:
            raise PositionInvalid(
                "asking for the GTID position of a file's offset",
                f"{file}:{offset} is not in the server's log",
                data="Nothing was read",
                remedy="Give a position of SHOW MASTER STATUS or SHOW BINLOG EVENTS",
                source=self._source,
            )
        return MariadbGtids.parse(text.decode() if isinstance(text, bytes) else str(text))

    def _position(self, gtids: Gtids | None, file: str, offset: int) -> Position:
        return Position(gtids, self._facts.server_uuid, file, offset)

    def _no_gtids(self) -> Gtids | None:
        empty: dict[Scheme, Gtids] = {Scheme.MYSQL_GTID: MysqlGtids({}), Scheme.MARIADB_GTID: MariadbGtids({})}
        return empty.get(self._scheme)

    def _purged(self, position: Position, found: str) -> PositionPurged:
        return PositionPurged(
            "going on from a position",
            found,
            data="The changes between are gone from this server's log and are not in the lake",
            remedy="Start the sync of the source's tables anew, or name a server that still has these logs; keep logs"
            " longer with: SET GLOBAL binlog_expire_logs_seconds = 604800",
            source=self._source,
            position=str(position),
        )

    def rebuilt(self, position: Position, found: str) -> SourceRebuilt:
        return SourceRebuilt(
            "going on from a position",
            f"{found}: the server was rebuilt, reset, or is another one",
            data="Nothing was read from it",
            remedy=f"Name the right server in sources.{self._source}, or start the sync of its tables anew",
            source=self._source,
            position=str(position),
        )


def _parse_gtids(text: str, scheme: Scheme) -> Gtids:
    if scheme is Scheme.FILE:
        raise PositionSyntaxError("this server has no GTIDs, so FILE:OFFSET is needed")
    return MysqlGtids.parse(text) if scheme is Scheme.MYSQL_GTID else MariadbGtids.parse(text)


def status_statement(facts: Facts) -> str:
    """The statement that shows the log's end."""
    if facts.flavor == "mariadb":
        return "SHOW MASTER STATUS"
    major, minor = (int(number) for number in facts.version.split(".")[:2])
    return "SHOW BINARY LOG STATUS" if (major, minor) >= _BINARY_LOG_STATUS_SINCE else "SHOW MASTER STATUS"


def natural_scheme(facts: Facts) -> Scheme:
    """How positions on this server are kept when nothing older says otherwise."""
    if facts.flavor == "mariadb":
        return Scheme.MARIADB_GTID
    return Scheme.MYSQL_GTID if facts.has_gtids else Scheme.FILE
