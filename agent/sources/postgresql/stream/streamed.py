"""Transactions in progress: they come in blocks while they run, are kept undecoded, and are handed on at their commit.

Comes in: bytes of a stream of protocol version 2, with `streaming 'on'`. Goes out: those of version 1, where each
transaction is whole, in the order of commits; so nobody behind this knows of blocks. The frames of a block go to a file
of their transaction as they came. Stream Abort drops the file, or notes a subtransaction whose messages are left out.
Stream Commit has the file read back between a Begin and a Commit.

A server tells a relation once, until it changes: outside of blocks for all that follows, in a block for that
transaction, and once that is committed for all that follows. So a relation travels with its transaction, and where a
later one came in the meantime that one is told again behind it, with the next Begin.

Nothing is durable: the files have no name, in the agent's state folder. A kill leaves none. The slot is confirmed by
commits alone, and the server sends a transaction anew whose commit lies behind the confirmed place. Bound: bytes of all
files, and their number; beyond it `TooMuchStreamed` ends the stream, and the server keeps transactions itself.
"""

import struct
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from agent.sources.postgresql.native.blocks import BlockError, scan, unwrap

#: of transactions that are kept at once: each has an open file
MOST_TRANSACTIONS = 256
#: of one transaction, rolled back
MOST_ABORTED = 100_000
#: of a relation, or another message that is judged
MOST_JUDGED_BYTES = 16 << 20
WINDOW_BYTES = 256 << 10

_LETTER_AT = 30
_BODY_AT = 31
#: xid, whether it is the first block; xid, subtransaction; xid, flags, where the commit record begins and ends, time
_START, _ABORT, _COMMIT = struct.Struct("!IB"), struct.Struct("!II"), struct.Struct("!IBQQq")
_RELATION = struct.Struct("!II")
#: a keepalive that says nothing: something has come, and nothing of it is to be decoded yet
_NOTHING = b"d" + struct.pack("!i", 22) + b"k" + bytes(17)
_KEEPALIVE_BYTES = len(_NOTHING)


class TooMuchStreamed(Exception):
    """Transactions in progress take more than they may; says what."""


class ByteStream(Protocol):
    def receive_into(self, buffer: memoryview, timeout_seconds: float) -> int: ...
    def acknowledge(self, written_lsn: int, flushed_lsn: int) -> None: ...
    def interrupt(self) -> None: ...


@dataclass(slots=True)
class _Transaction:
    file: IO[bytes]
    size: int = 0
    #: subtransactions that were rolled back
    aborted: set[int] = field(default_factory=set)
    #: in the order in which they came: their place in that, by which (sub)transaction, oid, as outside of a block
    relations: list[tuple[int, int, int, bytes]] = field(default_factory=list)


class StreamedTransactions:
    """A stream of whole transactions, over one of blocks; used by one thread, but for `interrupt`."""

    def __init__(self, stream: ByteStream, folder: Path, most_bytes: int) -> None:
        self._stream = stream
        self._folder = folder
        self._most_bytes = most_bytes
        self._bytes = 0
        self._open: dict[int, _Transaction] = {}
        #: whose block is being received
        self._current: _Transaction | None = None
        self._window = memoryview(bytearray(WINDOW_BYTES))
        self._in = bytearray()
        #: bytes that are missing of a frame whose beginning was taken
        self._missing = 0
        self._out: deque[memoryview] = deque()
        self._replay: Iterator[bytes | bytearray] | None = None
        #: what ends the stream, once all before it was handed on
        self._broken: BlockError | TooMuchStreamed | None = None
        #: of relations, by their oid: the latest one that holds behind all that was handed on
        self._relation_count = 0
        self._latest: dict[int, tuple[int, bytes]] = {}
        self._tell_again: dict[int, bytes] = {}

    def receive_into(self, buffer: memoryview, timeout_seconds: float) -> int:
        """As the stream's own; a keepalive that says nothing where all that came is kept.

        Raises `TooMuchStreamed`, and `BlockError` for bytes that can't be read.
        """
        if size := self._deliver(buffer):
            return size
        size = self._stream.receive_into(self._window, timeout_seconds)
        if not size:
            return 0
        self._in += self._window[:size]
        if size := self._deliver(buffer):
            return size
        buffer[:_KEEPALIVE_BYTES] = _NOTHING
        return _KEEPALIVE_BYTES

    def acknowledge(self, written_lsn: int, flushed_lsn: int) -> None:
        self._stream.acknowledge(written_lsn, flushed_lsn)

    def interrupt(self) -> None:
        self._stream.interrupt()

    def close(self) -> None:
        """Of the files; the stream is its owner's."""
        for transaction in self._open.values():
            transaction.file.close()
        self._open, self._current = {}, None

    # --- what goes out

    def _deliver(self, buffer: memoryview) -> int:
        while True:
            if self._out:
                first = self._out.popleft()
                size = min(len(first), len(buffer))
                buffer[:size] = first[:size]
                if size < len(first):
                    self._out.appendleft(first[size:])
                return size
            if self._broken is not None:
                raise self._broken
            if self._replay is not None:
                chunk = next(self._replay, None)
                if chunk is None:
                    self._replay = None
                elif chunk:
                    self._out.append(memoryview(chunk))
            elif not self._take():
                return 0

    def _hand_on(self, frames: bytes) -> None:
        if frames:
            self._out.append(memoryview(frames))

    # --- what comes in

    def _take(self) -> bool:
        """Of what was received, up to a commit; whether something came of it."""
        try:
            self._take_frames()
        except (BlockError, TooMuchStreamed) as broken:
            self._broken = broken
        return bool(self._out) or self._replay is not None or self._broken is not None

    def _take_frames(self) -> None:
        at = 0
        with memoryview(self._in) as data:
            while at < len(data) and self._replay is None:
                if self._missing:
                    size = min(self._missing, len(data) - at)
                    self._put(bytes(data[at : at + size]))
                    self._missing -= size
                    at += size
                    continue
                begin = at
                at, letter, self._missing = scan(data, at, self._current is not None, self._has_open())
                self._put(bytes(data[begin:at]))
                if not letter:
                    break
                if letter == "!":
                    raise BlockError("a message with an impossible length")
                (length,) = struct.unpack_from("!I", data, at + 1)
                frame = bytes(data[at : at + 1 + length])
                at += len(frame)
                self._judge(letter, frame)
        del self._in[:at]
        if len(self._in) > MOST_JUDGED_BYTES:
            raise BlockError(f"a message of more than {MOST_JUDGED_BYTES} bytes that is no change")

    def _has_open(self) -> bool:
        return bool(self._open or self._tell_again)

    def _put(self, frames: bytes) -> None:
        """To where frames go now."""
        if self._current is None:
            self._hand_on(frames)
        elif frames:
            self._count(self._current, len(frames))
            try:
                self._current.file.write(frames)
            except OSError as failed:
                raise TooMuchStreamed(f"a file can't be written: {failed.strerror}") from failed

    def _count(self, transaction: _Transaction, size: int) -> None:
        self._bytes += size
        transaction.size += size
        if self._bytes > self._most_bytes:
            raise TooMuchStreamed(f"more than {self._most_bytes} bytes")

    def _judge(self, letter: str, frame: bytes) -> None:
        if self._current is not None:
            self._judge_in_block(self._current, letter, frame)
        elif letter == "S":
            self._block_begins(*_unpacked(_START, frame))
        elif letter == "A":
            self._aborted(*_unpacked(_ABORT, frame))
        elif letter == "c":
            self._committed(frame)
        elif letter == "B":
            self._hand_on(frame + self._told_again())
        elif letter == "R":
            (oid,) = struct.unpack_from("!I", _body(frame, 4))
            self._relation_holds(oid, self._next_relation(), frame)
            self._hand_on(frame)
        else:
            raise BlockError("the end of a block that has not begun")

    def _judge_in_block(self, transaction: _Transaction, letter: str, frame: bytes) -> None:
        if letter == "E":
            self._current = None
        elif letter == "R":
            xid, oid = _RELATION.unpack_from(_body(frame, _RELATION.size))
            plain, _, _ = unwrap(frame, set())
            self._count(transaction, len(plain))
            transaction.relations.append((self._next_relation(), xid, oid, bytes(plain)))
            self._put(frame)
        elif letter != "k":
            raise BlockError(f"a message {letter!r} inside a block")
        elif frame[5:6] == b"k" and len(frame) == _KEEPALIVE_BYTES:
            # What it says of the log is said again behind the block.
            self._hand_on(_NOTHING[:-1] + frame[-1:])
        else:
            self._hand_on(frame)

    # --- transactions

    def _block_begins(self, xid: int, is_first: int) -> None:
        if bool(is_first) == (xid in self._open):
            raise BlockError("a block of a transaction that has begun, or has not")
        if is_first:
            if len(self._open) >= MOST_TRANSACTIONS:
                raise TooMuchStreamed(f"more than {MOST_TRANSACTIONS} transactions")
            try:
                self._open[xid] = _Transaction(tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115  (see close)
            except OSError as failed:
                raise TooMuchStreamed(f"a file can't be made in {self._folder}: {failed.strerror}") from failed
        self._current = self._open[xid]

    def _aborted(self, xid: int, subtransaction: int) -> None:
        transaction = self._open.get(xid)
        if transaction is None:  # nothing of it is here
            return
        if xid == subtransaction:
            self._forget(xid)
            return
        transaction.aborted.add(subtransaction)
        if len(transaction.aborted) > MOST_ABORTED:
            raise TooMuchStreamed(f"more than {MOST_ABORTED} rolled back parts of a transaction")

    def _committed(self, frame: bytes) -> None:
        xid, flags, commit_lsn, end_lsn, commit_us = _unpacked(_COMMIT, frame)
        transaction = self._open.get(xid)
        if transaction is None:
            raise BlockError("the commit of a transaction in progress that has not begun")
        begin = _frame(frame, b"B" + struct.pack("!QqI", commit_lsn, commit_us, xid))
        commit = _frame(frame, b"C" + struct.pack("!BQQq", flags, commit_lsn, end_lsn, commit_us))
        self._replay = self._whole(xid, transaction, begin, commit)

    def _whole(self, xid: int, transaction: _Transaction, begin: bytes, commit: bytes) -> Iterator[bytes | bytearray]:
        yield begin + self._told_again()
        try:
            transaction.file.seek(0)
            yield from _read_back(transaction)
        except OSError as failed:
            raise TooMuchStreamed(f"a file can't be read or written: {failed.strerror}") from failed
        for count, by, oid, relation in transaction.relations:
            if by not in transaction.aborted:
                self._relation_holds(oid, count, relation)
        self._forget(xid)
        yield commit

    def _forget(self, xid: int) -> None:
        transaction = self._open.pop(xid)
        self._bytes -= transaction.size
        transaction.file.close()
        if not self._open:
            self._latest = {}

    # --- relations

    def _next_relation(self) -> int:
        self._relation_count += 1
        return self._relation_count

    def _relation_holds(self, oid: int, count: int, relation: bytes) -> None:
        """It was handed on; a later one that was handed on before it is to be told again."""
        latest = self._latest.get(oid)
        if latest is not None and latest[0] > count:
            self._tell_again[oid] = latest[1]
            return
        self._tell_again.pop(oid, None)
        if any(oid == told for one in self._open.values() for _, _, told, _ in one.relations):
            self._latest[oid] = count, relation

    def _told_again(self) -> bytes:
        again, self._tell_again = b"".join(self._tell_again.values()), {}
        return again


def _read_back(transaction: _Transaction) -> Iterator[bytearray]:
    """The frames of its blocks, as outside of one."""
    kept, missing = bytearray(), 0
    while chunk := transaction.file.read(WINDOW_BYTES):
        kept += chunk
        if missing:
            size = min(abs(missing), len(kept))
            if missing > 0:
                yield kept[:size]
            missing += -size if missing > 0 else size
            del kept[:size]
            if missing:
                continue
        frames, taken, missing = unwrap(kept, transaction.aborted)
        del kept[:taken]
        yield frames
    if kept or missing:
        raise BlockError("a transaction in progress whose last message is not whole")


def _body(frame: bytes, size: int) -> bytes:
    if len(frame) < _BODY_AT + size:
        raise BlockError(f"a message {chr(frame[_LETTER_AT])!r} that ends inside its head")
    return frame[_BODY_AT:]


def _unpacked(form: struct.Struct, frame: bytes) -> tuple[int, ...]:
    if len(frame) != _BODY_AT + form.size:
        raise BlockError(f"a message {chr(frame[_LETTER_AT])!r} of another length")
    return form.unpack_from(frame, _BODY_AT)


def _frame(like: bytes, message: bytes) -> bytes:
    """A message with another one's places in the log."""
    return b"d" + struct.pack("!I", 4 + 25 + len(message)) + like[5:_LETTER_AT] + message
