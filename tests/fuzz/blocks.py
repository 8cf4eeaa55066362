"""PostgreSQL's transactions in progress under hostile bytes: real transactions, put into blocks and damaged.

They go through `StreamedTransactions` into the decoder, as an agent has them.
"""

import struct
from pathlib import Path
from random import Random
from tempfile import gettempdir

from agent.sources.postgresql.stream.streamed import StreamedTransactions

#: of a frame of WAL data: the letter of pgoutput's message, and what follows
_LETTER, _BODY = 30, 31
MOST_BYTES = 1 << 20

Frames = list[bytes]


def in_blocks(unit: Frames, chance: Random) -> Frames:
    """A whole transaction as a server sends it in progress: in blocks, with subtransactions, some rolled back."""
    (xid,) = (struct.unpack(">I", frame[-4:])[0] for frame in unit if _letter(frame) == b"B")
    found: Frames = []
    for frame in unit:
        letter = _letter(frame)
        if letter == b"B":
            found.append(_like(frame, b"S" + struct.pack(">IB", xid, 1)))
        elif letter == b"C":
            found.append(_like(frame, b"E"))
            if chance.random() < 0.3:
                found.append(_like(frame, b"A" + struct.pack(">II", xid, xid + chance.randrange(1, 3))))
            found.append(_like(frame, b"c" + struct.pack(">I", xid) + frame[_BODY:]))
        elif letter:
            by = xid + (chance.randrange(3) if letter in b"IUD" else 0)
            found.append(_like(frame, letter + struct.pack(">I", by) + frame[_BODY:]))
            if chance.random() < 0.1:
                found += [_like(frame, b"E"), _like(frame, b"S" + struct.pack(">IB", xid, 0))]
        else:
            found.append(frame)
    return found


def stream_of(data: bytes, *, at_once: bool) -> StreamedTransactions:
    """What is handed on of the bytes, which come message by message, or `at_once`."""
    return StreamedTransactions(_Received(data, at_once=at_once), Path(gettempdir()), MOST_BYTES)


class _Received:
    def __init__(self, data: bytes, *, at_once: bool) -> None:
        self._data, self._at, self._at_once = data, 0, at_once

    def receive_into(self, buffer: memoryview, timeout_seconds: float) -> int:
        told = int.from_bytes(self._data[self._at + 1 : self._at + 5], "big")
        size = min(len(buffer), len(self._data) if self._at_once else 1 + told)
        part = self._data[self._at : self._at + size]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def acknowledge(self, written_lsn: int, flushed_lsn: int) -> None: ...

    def interrupt(self) -> None: ...


def _letter(frame: bytes) -> bytes:
    return frame[_LETTER:_BODY] if frame[:1] == b"d" and frame[5:6] == b"w" else b""


def _like(frame: bytes, message: bytes) -> bytes:
    return b"d" + struct.pack(">I", 29 + len(message)) + frame[5:_LETTER] + message
