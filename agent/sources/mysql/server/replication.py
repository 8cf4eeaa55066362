"""Asks a server for its binary log, as a replica does.

Comes in: an authenticated connection and a position. Goes out: a socket on which the server sends events.
Nothing is interpreted here but the answer to the registration.
"""

import hashlib
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pymysql
from pymysql.connections import Connection
from pymysql.constants import COMMAND

from agent.errors import PositionInvalid
from agent.sources.mysql.config import ServerConfig
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind, MysqlGtids
from agent.sources.mysql.server.connection import Facts, connect, rows, server_errors, variable
from agent.sources.mysql.server.server_log import FIRST_OFFSET

REPLICATION_GRANT = "REPLICATION SLAVE"
HEARTBEAT_SECONDS = 1
#: without a byte, heartbeats included, for so long the connection counts as lost
SILENCE_SECONDS = 20.0
#: how long the server waits for us while we wait for credit before it drops the connection
SERVER_WRITE_TIMEOUT_SECONDS = 3600

#: MariaDB ends the older stream of two under one server id with this code; MySQL with 1236, like much else
ER_SLAVE_SAME_ID = 4052

#: for SO_LINGER: what has not arrived is dropped, and the peer told so
_RESET = struct.pack("ii", 1, 0)
_COM_BINLOG_DUMP_GTID = 0x1E
_BINLOG_DUMP_NON_BLOCK = 0x01
_BINLOG_THROUGH_GTID = 0x04
#: MariaDB: with the text of the statement before its rows
_BINLOG_SEND_ANNOTATE_ROWS_EVENT = 0x02
_MARIA_SLAVE_CAPABILITY_GTID = 4
#: the largest that a dump command without GTIDs can name
MOST_DUMP_OFFSET = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """Under which the server knows us; the same at each start, so that it ends a dead predecessor's stream."""

    server_id: int
    server_uuid: UUID


def identity_of(tenant: str, agent: str, source: str, server_id: int) -> ReplicaIdentity:
    """The identity of an agent's source; `server_id` 0 derives one that is stable and unlikely to meet another."""
    digest = hashlib.sha256("\0".join((tenant, agent, source)).encode()).digest()
    derived = int.from_bytes(digest[:4], "little") | 1 << 31
    return ReplicaIdentity(server_id or derived, UUID(bytes=digest[16:]))


class ReplicationStream:
    """The connection after the dump command: bytes of MySQL packets that hold events."""

    def __init__(self, connection: "Connection[Any]", checksum: bool) -> None:
        self._connection = connection
        self._socket: socket.socket = connection._sock  # type: ignore[attr-defined]
        #: whether events carry a CRC32, from the first on
        self.checksum = checksum

    def receive_into(self, buffer: memoryview, timeout_seconds: float) -> int:
        """Bytes received; 0 at the connection's end. Raises TimeoutError and OSError."""
        self._socket.settimeout(timeout_seconds)
        return self._socket.recv_into(buffer)

    def interrupt(self) -> None:
        """End a `receive_into` of another thread at once."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # the peer was faster
            return

    def close(self) -> None:
        """End the server's thread too, at once.

        One that waits with a full window hears of an orderly end only when it asks again for room, which it does ever
        more rarely, up to two minutes apart; and until it has ended, MariaDB begins no other stream of our server id.
        """
        with suppress(OSError):  # the peer was faster
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._connection._force_close()  # type: ignore[attr-defined]  # the server would not read a COM_QUIT now


def open_stream(
    server: ServerConfig,
    source: str,
    facts: Facts,
    replica: ReplicaIdentity,
    start: BinlogPosition,
    position_kind: BinlogPositionKind,
    *,
    ends: bool = False,
    annotated: bool = False,
) -> ReplicationStream:
    """Register and ask for all events after `start`, with `ends` only up to the log's present end.

    `annotated`: with the text of each statement, where the server is a MariaDB. Raises a `SourceError`.
    """
    connection = connect(server, source)
    try:
        with server_errors("asking for the binary log", server, source, REPLICATION_GRANT):
            start = _nameable(connection, start, position_kind)
            checksum = _prepare(connection, facts, replica, start, position_kind)
            register(connection, replica)
            flags = _BINLOG_DUMP_NON_BLOCK if ends else 0
            if annotated and facts.flavor == "mariadb":
                flags |= _BINLOG_SEND_ANNOTATE_ROWS_EVENT
            command, payload = _dump_command(source, replica, start, position_kind, flags)
            # PyMySQL has no public call for a command whose answer is a stream.
            connection._execute_command(command, payload)  # type: ignore[attr-defined]
    except BaseException:
        connection._force_close()  # type: ignore[attr-defined]
        raise
    return ReplicationStream(connection, checksum)


def _prepare(
    connection: "Connection[Any]",
    facts: Facts,
    replica: ReplicaIdentity,
    start: BinlogPosition,
    position_kind: BinlogPositionKind,
) -> bool:
    """Set what the server reads from user variables; both generations of names. True: events have a CRC32."""
    checksum = (variable(connection, "binlog_checksum") or "NONE").upper()
    period_ns = HEARTBEAT_SECONDS * 1_000_000_000
    settings: dict[str, object] = {
        "@master_heartbeat_period": period_ns,
        "@source_heartbeat_period": period_ns,
        "@master_binlog_checksum": checksum,
        "@source_binlog_checksum": checksum,
        "@slave_uuid": str(replica.server_uuid),
        "@replica_uuid": str(replica.server_uuid),
        "SESSION net_write_timeout": SERVER_WRITE_TIMEOUT_SECONDS,
    }
    if facts.flavor == "mariadb":
        settings["@mariadb_slave_capability"] = _MARIA_SLAVE_CAPABILITY_GTID
        if position_kind is BinlogPositionKind.MARIADB_GTID:
            settings["@slave_connect_state"] = str(start.gtids)
            settings["@slave_gtid_strict_mode"] = 1
            settings["@slave_gtid_ignore_duplicates"] = 0
    for name, value in settings.items():
        rows(connection, f"SET {name} = %s", (value,))
    return checksum == "CRC32"


def register(connection: "Connection[Any]", replica: ReplicaIdentity) -> None:
    """COM_REGISTER_SLAVE; the server refuses it without REPLICATION SLAVE.

    ::

        4 server id   1 length, host   1 length, user   1 length, password   2 port   4 rank   4 source's id
    """
    host = b"menura-agent"
    payload = struct.pack("<IB", replica.server_id, len(host)) + host + struct.pack("<BBHII", 0, 0, 0, 0, 0)
    connection._execute_command(COMMAND.COM_REGISTER_SLAVE, payload)  # type: ignore[attr-defined]
    connection._read_packet()  # type: ignore[no-untyped-call]


def _nameable(
    connection: "Connection[Any]", start: BinlogPosition, position_kind: BinlogPositionKind
) -> BinlogPosition:
    """An equal position that COM_BINLOG_DUMP can name, if there is one.

    Only the transaction that fills a file reaches beyond 4 GiB: behind it nothing but the way to the next file stands.
    """
    if position_kind is not BinlogPositionKind.FILE or start.offset <= MOST_DUMP_OFFSET:
        return start
    files = [str(row[0]) for row in rows(connection, "SHOW BINARY LOGS")]
    behind = rows(connection, f"SHOW BINLOG EVENTS IN %s FROM {start.offset} LIMIT 2", (start.file,))
    is_end = all(row[2] in ("Rotate", "Stop") for row in behind)
    following = files[files.index(start.file) + 1 :] if start.file in files else []
    return replace(start, file=following[0], offset=FIRST_OFFSET) if is_end and following else start


def _dump_command(
    source: str, replica: ReplicaIdentity, start: BinlogPosition, position_kind: BinlogPositionKind, flags: int
) -> tuple[int, bytes]:
    """The command's byte and payload.

    ::

        COM_BINLOG_DUMP       4 offset   2 flags   4 server id   file
        COM_BINLOG_DUMP_GTID  2 flags   4 server id   4 length, file   8 offset   4 length, GTID set
    """
    if position_kind is BinlogPositionKind.MYSQL_GTID:
        assert isinstance(start.gtids, MysqlGtids)
        gtids = start.gtids.encode()
        head = struct.pack("<HIIQI", _BINLOG_THROUGH_GTID | flags, replica.server_id, 0, FIRST_OFFSET, len(gtids))
        return _COM_BINLOG_DUMP_GTID, head + gtids
    if position_kind is BinlogPositionKind.MARIADB_GTID:
        return COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", FIRST_OFFSET, flags, replica.server_id)
    if start.offset > MOST_DUMP_OFFSET:
        raise PositionInvalid(
            "asking for the binary log by file and offset",
            "the offset is above 4 GiB, which the protocol can't name",
            data="Nothing was read",
            remedy="Set gtid_mode=ON on the server, or let the source's tables begin anew:"
            f" menura sync resync {source} --all",
            source=source,
            position=str(start),
        )
    return COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", start.offset, flags, replica.server_id) + start.file.encode()


def other_replica_has_our_id(connection: "Connection[Any]", facts: Facts, replica: ReplicaIdentity) -> bool:
    """Whether another connection is registered under our server id."""
    mysql = facts.flavor == "mysql"
    try:
        found = rows(connection, "SHOW REPLICAS" if mysql else "SHOW SLAVE HOSTS")
    except pymysql.err.MySQLError:  # MariaDB wants a further privilege for it: then it is not known
        return False
    return any(int(row[0]) == replica.server_id for row in found)
