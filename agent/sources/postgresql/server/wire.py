"""A session's socket, for who decodes a server's messages in bulk: rows of a dump, or the stream of changes.

Comes in: an authenticated session. Goes out: bytes of its messages, unframed. One thread reads and closes; `interrupt`
and `acknowledge` come from any. Nothing is interpreted here but what comes before rows or changes, and errors there.
"""

import logging
import select
import socket
import ssl
import struct
import threading
import time
from contextlib import closing, suppress

from pg8000.exceptions import DatabaseError

from agent.errors import SourceError
from agent.sources.postgresql.config import ServerConfig
from agent.sources.postgresql.errors import PublicationGone, SlotForeign, SlotInUse, SlotInvalidated, SlotMissing
from agent.sources.postgresql.positions import lsn_text
from agent.sources.postgresql.server import sockets
from agent.sources.postgresql.server.connection import (
    FEATURE_NOT_SUPPORTED,
    OBJECT_IN_USE,
    OBJECT_NOT_IN_PREREQUISITE_STATE,
    STATEMENT_TIMEOUT_SECONDS,
    UNDEFINED_FILE,
    UNDEFINED_OBJECT,
    Connection,
    connect,
    server_error,
    sqlstate,
)
from agent.sources.postgresql.server.quoting import literal, quoted
from agent.sources.postgresql.server.slot import PLUGIN, Slot, find_slot

log = logging.getLogger("menura.wal")

#: a server that takes nothing for so long is gone
SEND_TIMEOUT_SECONDS = 20.0
#: the stream says so often how far it is, and asks the server for a sign of life
STATUS_SECONDS = 10.0
#: without a byte, answers to that included, for so long the connection counts as lost
SILENCE_SECONDS = 60.0
#: The server sends each message by itself: who takes them one by one pays for a system call and a wait with each. Where
#: bytes have come, more are likely; so many gather, but for so long at most.
GATHER_BYTES = 128 << 10
GATHER_SECONDS = 0.01
#: of a Unix socket, which can't be asked to wait for a number of bytes and holds fewer
GATHER_LOCAL_SECONDS = 0.001
#: for which the server waits for a word of ours
WAL_SENDER_TIMEOUT_SECONDS = 60.0
#: of one message before rows or changes: notices, descriptions, small results
MAX_MESSAGE_BYTES = 64 << 20

#: 16 length, 80877102, process id, its key
_CANCEL_CODE = 80877102
#: before the log's bytes in a message
_WAL_DATA_BYTES = 25
_EPOCH_2000_US = 946_684_800_000_000
#: what the server may say at any time
_ASYNCHRONOUS = frozenset((b"N", b"S", b"A"))


def cancel(connection: Connection, server: ServerConfig, source: str) -> None:
    """Have the server end the session's running statement; it answers there with an error. Raises a `SourceError`."""
    pid, key = connection.backend
    with closing(sockets.open_socket(server, source)) as connected, suppress(OSError):
        connected.sendall(struct.pack("!iii", 12 + len(key), _CANCEL_CODE, pid) + key)
        connected.recv(1)  # its end says that the server has done so


class Wire:
    """Bytes of whole messages in the order of the server."""

    def __init__(self, connection: Connection, server: ServerConfig, source: str) -> None:
        self._connection = connection
        self._socket = connection.socket
        self._socket.setblocking(False)
        self._server = server
        self._source = source
        #: of the socket: TLS must not be used by two threads at once
        self._lock = threading.Lock()
        self._is_closed = False
        #: a statement was sent, and the end of its answer not read here
        self._is_busy = False
        self._is_local = self._socket.family == socket.AF_UNIX
        self._is_secured = isinstance(self._socket, ssl.SSLSocket)

    @classmethod
    def open(
        cls,
        server: ServerConfig,
        source: str,
        *,
        replication: bool = False,
        statement_seconds: float = STATEMENT_TIMEOUT_SECONDS,
    ) -> "Wire":
        """A session of its own; raises a `SourceError`. `replication`: for commands of the replication protocol."""
        settings = {"wal_sender_timeout": f"{WAL_SENDER_TIMEOUT_SECONDS:.0f}s"} if replication else None
        connection = connect(
            server, source, replication=replication, statement_seconds=statement_seconds, settings=settings
        )
        return cls(connection, server, source)

    @property
    def backend_pid(self) -> int:
        """Of the server's process."""
        return self._connection.backend[0]

    def query(self, statement: str) -> None:
        """Send one statement; its answer is the caller's to read. Raises OSError."""
        payload = statement.encode() + b"\0"
        self._is_busy = True
        self._send(b"Q" + struct.pack("!i", len(payload) + 4) + payload)

    def rows(self, statement: str) -> list[tuple[str | None, ...]]:
        """A small result, as texts. Raises pg8000's DatabaseError, and OSError; see `connection.server_errors`."""
        self.query(statement)
        found: list[tuple[str | None, ...]] = []
        refused: DatabaseError | None = None
        while True:
            kind, body = self._message(STATEMENT_TIMEOUT_SECONDS)
            if kind == b"D":
                found.append(_texts(body))
            elif kind == b"E":
                refused = DatabaseError(_fields(body))
                if refused.args[0].get("V") != "ERROR":  # the session ends with it
                    raise refused
            elif kind == b"Z":
                self._is_busy = False
                if refused is not None:
                    raise refused
                return found

    def finished(self) -> None:
        """The caller has read the answer to its statement, with ReadyForQuery."""
        self._is_busy = False

    def send_copy_data(self, payload: bytes) -> None:
        """Raises OSError."""
        self._send(b"d" + struct.pack("!i", len(payload) + 4) + payload)

    def receive_into(self, buffer: memoryview, timeout_seconds: float) -> int:
        """Bytes received; 0 at the connection's end. Raises TimeoutError and OSError."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            with self._lock:
                if self._is_closed:
                    return 0
                try:
                    size = self._socket.recv_into(buffer)
                    return self._and_what_is_there(buffer, size) if size and self._is_secured else size
                except (BlockingIOError, ssl.SSLWantReadError):
                    awaited = select.POLLIN
                except ssl.SSLWantWriteError:
                    awaited = select.POLLOUT
                except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                    return 0
            self._wait(awaited, deadline)

    def gather(self, timeout_seconds: float) -> None:
        """Wait for GATHER_BYTES, GATHER_SECONDS, or the connection's end, whatever comes first. Raises OSError."""
        if self._is_local:
            self._poll(0, min(GATHER_LOCAL_SECONDS, timeout_seconds))  # for its end, which is always told
            return
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, GATHER_BYTES)
        self._poll(select.POLLIN, min(GATHER_SECONDS, timeout_seconds))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def _and_what_is_there(self, buffer: memoryview, size: int) -> int:
        """Receive what else has come, behind so many bytes: TLS gives a record at a time. What fails does so again."""
        with suppress(OSError):
            while size < len(buffer) and (more := self._socket.recv_into(buffer[size:])):
                size += more
        return size

    def interrupt(self) -> None:
        """End a `receive_into` of another thread at once; nothing more is read or sent."""
        with self._lock:
            if not self._is_closed:
                sockets.interrupt(self._socket)

    def close(self) -> None:
        """End the server's process too, at once, whatever it does."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._is_busy:
                sockets.interrupt(self._socket)  # for a thread that waits to send
                sockets.reset(self._socket)
            self._connection.close()

    def exchange(self, statement: str, awaited: bytes) -> None:
        """Send one statement and read up to a message of the kind `awaited`; raises pg8000's DatabaseError, OSError."""
        self.query(statement)
        while True:
            kind, body = self._message(STATEMENT_TIMEOUT_SECONDS)
            if kind == b"E":
                raise DatabaseError(_fields(body))
            if kind == awaited:
                return
            if kind not in _ASYNCHRONOUS:
                raise ConnectionError(f"the server answered with a message {kind!r}")

    def physical_wal(self, begin_lsn: int, end_lsn: int, timeline: int) -> bytes:
        """The log's bytes between two places; the session is of no other use then. Raises pg8000's DatabaseError,
        OSError."""
        self.exchange(f"START_REPLICATION PHYSICAL {lsn_text(begin_lsn)} TIMELINE {timeline}", b"W")
        found = bytearray()
        while len(found) < end_lsn - begin_lsn:
            kind, body = self._message(STATEMENT_TIMEOUT_SECONDS)
            if kind == b"E":
                raise DatabaseError(_fields(body))
            if kind == b"d" and body[:1] == b"w":  # 8 begin   8 the log's end   8 time   bytes
                found += body[_WAL_DATA_BYTES:]
            elif kind == b"c":
                raise ConnectionError("the server ended the log before its end")
        return bytes(found[: end_lsn - begin_lsn])

    def _message(self, timeout_seconds: float) -> tuple[bytes, bytes]:
        """One message: its kind, its body."""
        head = self._exactly(5, timeout_seconds)
        (size,) = struct.unpack_from("!i", head, 1)
        if not 4 <= size <= MAX_MESSAGE_BYTES:
            raise ConnectionError(f"the server sent a message of {size} bytes")
        return bytes(head[:1]), bytes(self._exactly(size - 4, timeout_seconds))

    def _exactly(self, size: int, timeout_seconds: float) -> bytearray:
        found = bytearray(size)
        view = memoryview(found)
        while view:
            received = self.receive_into(view, timeout_seconds)
            if not received:
                raise ConnectionError("the server closed the connection")
            view = view[received:]
        return found

    def _send(self, data: bytes) -> None:
        deadline = time.monotonic() + SEND_TIMEOUT_SECONDS
        view = memoryview(data)
        while view:
            with self._lock:
                if self._is_closed:
                    raise ConnectionError("the connection is closed")
                try:
                    view = view[self._socket.send(view) :]
                    continue
                except (BlockingIOError, ssl.SSLWantWriteError):
                    awaited = select.POLLOUT
                except ssl.SSLWantReadError:
                    awaited = select.POLLIN
            self._wait(awaited, deadline)

    def _wait(self, awaited: int, deadline: float) -> None:
        if not self._poll(awaited, deadline - time.monotonic()):
            raise TimeoutError

    def _poll(self, awaited: int, seconds: float) -> bool:
        poll = select.poll()
        try:
            poll.register(self._socket, awaited)
            return bool(poll.poll(max(0.0, seconds) * 1000))
        except (OSError, ValueError) as closed:  # by another thread
            raise ConnectionError("the connection is closed") from closed


class WalStream:
    """Changes of a slot as CopyData messages. Tells the server by itself, as often as it needs, how far we are."""

    def __init__(self, wire: Wire, source: str, start_lsn: int) -> None:
        self._wire = wire
        #: written, flushed
        self._told = (start_lsn, start_lsn)
        #: of `_told`, and of what is sent: one status at a time
        self._status = threading.Lock()
        self._ended = threading.Event()
        #: all that had come was received
        self._has_all = False
        self._thread = threading.Thread(target=self._keep_alive, name=f"{source}/status", daemon=True)
        self._thread.start()

    @property
    def backend_pid(self) -> int:
        return self._wire.backend_pid

    def receive_into(self, buffer: memoryview, timeout_seconds: float) -> int:
        """Bytes received; 0 at the connection's end. Raises TimeoutError and OSError."""
        if self._has_all:
            self._has_all = False
            self._wire.gather(timeout_seconds)
        size = self._wire.receive_into(buffer, timeout_seconds)
        self._has_all = 0 < size < len(buffer)
        return size

    def acknowledge(self, written_lsn: int, flushed_lsn: int) -> None:
        """The server may forget what lies before `flushed_lsn`; from any thread. Raises OSError."""
        with self._status:
            self._told = (written_lsn, flushed_lsn)
            self._send(wants_answer=False)

    def interrupt(self) -> None:
        """End a `receive_into` of another thread at once."""
        self._ended.set()
        self._wire.interrupt()

    def close(self) -> None:
        """End the server's process too, so that the slot is free for the next stream."""
        self._ended.set()
        self._wire.close()
        self._thread.join()

    def _keep_alive(self) -> None:
        """While nobody reads, for want of credit, the server must not take us for dead; and it is asked to answer."""
        while not self._ended.wait(STATUS_SECONDS):
            try:
                with self._status:
                    self._send(wants_answer=True)
            except OSError:  # whoever reads will see it
                return

    def _send(self, *, wants_answer: bool) -> None:
        """
        ::

            'r'   8 LSN written   8 flushed   8 applied   8 microseconds since 2000   1 wants an answer
        """
        written, flushed = self._told
        now_us = time.time_ns() // 1000 - _EPOCH_2000_US
        self._wire.send_copy_data(struct.pack("!cqqqqB", b"r", written, flushed, flushed, now_us, wants_answer))


def open_wal_stream(
    server: ServerConfig, source: str, slot: str, publication: str, start_lsn: int, *, in_progress: bool = False
) -> WalStream:
    """Ask for all changes behind `start_lsn`; raises a `SourceError`. `in_progress`: large transactions come in blocks,
    before their commit, from version 14 on.

    A server begins at the slot's confirmed LSN where that lies behind `start_lsn`, without a word: compare first.
    """
    wire = Wire.open(server, source, replication=True)
    protocol = "proto_version '2', streaming 'on'" if in_progress else "proto_version '1'"
    options = f"{protocol}, publication_names {literal(quoted(publication))}, messages 'true'"
    statement = f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {lsn_text(start_lsn)} ({options})"
    try:
        wire.exchange(statement, b"W")
    except (DatabaseError, OSError) as failed:
        wire.close()
        raise _start_error(failed, server, source, slot, start_lsn) from failed
    except BaseException:
        wire.close()
        raise
    return WalStream(wire, source, start_lsn)


def stream_error(
    fields: dict[str, str], server: ServerConfig, source: str, slot: str, publication: str, lsn: int
) -> SourceError:
    """An ErrorResponse in the midst of the stream, which had come as far as `lsn`."""
    failed = DatabaseError(fields)
    if sqlstate(failed) == UNDEFINED_OBJECT:
        return PublicationGone(
            _DOING,
            f"the publication {publication} is not there, or was not when changes behind this position were made",
            data="Changes from that time can't be read",
            remedy=f"Run on the server: CREATE PUBLICATION {quoted(publication)}; its tables are added by the agent, or"
            " named by its next errors",
            source=source,
            position=lsn_text(lsn),
        )
    if sqlstate(failed) == UNDEFINED_FILE:
        return _invalidated(source, slot, lsn, "its WAL was removed")
    return server_error(failed, _DOING, server, source)


_DOING = "reading changes from a replication slot"
_READ_AGAIN = "Nothing is lost: the log is read again from the last committed cut"


def _start_error(failed: Exception, server: ServerConfig, source: str, name: str, lsn: int) -> SourceError:
    state = sqlstate(failed)
    if state == UNDEFINED_OBJECT:
        return slot_missing(source, name, lsn)
    if state not in (OBJECT_IN_USE, OBJECT_NOT_IN_PREREQUISITE_STATE, UNDEFINED_FILE, FEATURE_NOT_SUPPORTED):
        return server_error(failed, _DOING, server, source)
    try:
        with closing(connect(server, source)) as connection:
            found = find_slot(connection, name)
    except (SourceError, DatabaseError, OSError):  # what the server answered first says more
        return server_error(failed, _DOING, server, source)
    if found is None:
        return slot_missing(source, name, lsn)
    if state == OBJECT_IN_USE:
        return slot_in_use(source, name, found.active_pid)
    wrong = slot_error(found, server, source, lsn)
    return wrong if wrong is not None else server_error(failed, _DOING, server, source)


def slot_error(slot: Slot, server: ServerConfig, source: str, lsn: int) -> SourceError | None:
    """Why no changes can be read from it; None: they can."""
    if slot.plugin != PLUGIN or slot.database != server.database:
        return SlotForeign(
            _DOING,
            f"the slot {slot.name} is of plugin {slot.plugin or 'none'}, database {slot.database or 'none'}; expected"
            f" {PLUGIN} and {server.database}",
            data="Nothing was read",
            remedy=f"Set sources.{source}.slot to a name of its own, and restart the agent",
            source=source,
        )
    if slot.is_lost:
        return _invalidated(source, slot.name, lsn, slot.invalidation_reason or "the server kept no more WAL for it")
    return None


def slot_missing(source: str, name: str, lsn: int) -> SlotMissing:
    return SlotMissing(
        _DOING,
        f"the server has no replication slot {name}",
        data="Changes behind this position may be gone",
        source=source,
        position=lsn_text(lsn),
    )


def slot_in_use(source: str, name: str, pid: int | None) -> SlotInUse:
    return SlotInUse(
        _DOING,
        f"the slot {name} is read by another session" + (f", of server process {pid}" if pid else ""),
        data=_READ_AGAIN,
        remedy="It is tried again by itself; stop the other reader, or set"
        f" sources.{source}.slot to a name of its own and restart the agent",
        source=source,
    )


def _invalidated(source: str, name: str, lsn: int, why: str) -> SlotInvalidated:
    return SlotInvalidated(
        _DOING,
        f"the slot {name} has lost changes: {why}",
        data="Changes behind this position are gone",
        remedy="Let the server keep more WAL for it: max_slot_wal_keep_size",
        source=source,
        position=lsn_text(lsn),
    )


def _fields(body: bytes) -> dict[str, str]:
    """Of an ErrorResponse, as pg8000 has them: 1 field, text, 0; and so on; 0."""
    parts = [part.decode(errors="replace") for part in body.split(b"\0") if part]
    return {part[0]: part[1:] for part in parts}


def _texts(body: bytes) -> tuple[str | None, ...]:
    """Of a DataRow: 2 count; 4 length or -1, text; and so on."""
    (count,) = struct.unpack_from("!h", body)
    at, found = 2, []
    for _ in range(count):
        (size,) = struct.unpack_from("!i", body, at)
        at += 4
        found.append(None if size < 0 else body[at : at + size].decode())
        at += max(0, size)
    return tuple(found)
