"""What all streams have received and not landed yet, and whose turn it is to land a large batch.

A stream reads its next message only while there is room; what it does not read waits at its agent, by HTTP/2's flow
control. A stream of one tenant so can delay those of others, by the time that landing takes, and not fill the process.

Two bounds of the process, in bytes:

- what waits to be landed: batches by their size before compression, other messages by `cost_bytes`. It only shrinks by
  landing, which waits for no agent; so a stream may wait for it without end.
- parts of messages that are on their way. These wait for agents: where too many bytes of them are here, only the
  message that began first goes on. One that stalls ends its stream (`gateway.stream.PART_SECONDS`), so all get a turn.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gateway.errors import NOTHING_LOST, CreditOverdrawn
from gateway.registry import SourceKey
from gateway.wire.message import Received

#: streams read on below; the message that each is reading comes on top
MAX_BYTES = 128 << 20
#: of parts; the message that is first comes on top
MAX_PARTS_BYTES = 64 << 20
#: of one stream
MAX_QUEUED_MESSAGES = 256
#: of one stream, beside its batches
MAX_QUEUED_BYTES = 4 << 20
#: a message takes more here than on its way: objects for each of its fields
COST_FACTOR = 8


def cost_bytes(received: Received) -> int:
    """About what a message takes here that is no batch."""
    return COST_FACTOR * received.wire_bytes


@dataclass(slots=True)
class Backlog:
    #: held while a large batch is decoded and written: in one stream of the process at a time, first come first
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: held while a message that came in parts is parsed
    parsing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _bytes: int = 0
    _has_room: asyncio.Event = field(default_factory=asyncio.Event)
    _assemblies: "list[PartsRoom]" = field(default_factory=list)
    _parts_bytes: int = 0
    _parts_moved: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._has_room.set()

    async def room(self) -> None:
        """Wait until a stream may read its next message."""
        await self._has_room.wait()

    def change(self, by_bytes: int) -> None:
        self._bytes += by_bytes
        if self._bytes < MAX_BYTES:
            self._has_room.set()
        else:
            self._has_room.clear()

    @contextmanager
    def assembling(self) -> "Iterator[PartsRoom]":
        """While a message comes in parts."""
        room = PartsRoom(self)
        self._assemblies.append(room)
        try:
            yield room
        finally:
            self._assemblies.remove(room)
            self.count_parts(-room.held_bytes)

    def may_read(self, room: "PartsRoom") -> bool:
        return self._parts_bytes < MAX_PARTS_BYTES or self._assemblies[0] is room

    def count_parts(self, by_bytes: int) -> None:
        self._parts_bytes += by_bytes
        self._parts_moved.set()
        self._parts_moved = asyncio.Event()

    async def parts_moved(self) -> None:
        await self._parts_moved.wait()


@dataclass(slots=True, eq=False)
class PartsRoom:
    """Of one message that comes in parts."""

    backlog: Backlog
    held_bytes: int = 0

    async def wait(self) -> None:
        """Until its next part may be read."""
        while not self.backlog.may_read(self):
            await self.backlog.parts_moved()

    def took(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        self.backlog.count_parts(size_bytes)


class StreamQueue:
    """One stream's messages between its receiver and the one task that lands them, and the credit of its sender."""

    def __init__(self, backlog: Backlog, key: SourceKey, doing: str) -> None:
        """`doing`: what an error says that the receiver was doing."""
        self._backlog = backlog
        self._key = key
        self._doing = doing
        self._messages: asyncio.Queue[Received | int] = asyncio.Queue(maxsize=MAX_QUEUED_MESSAGES)
        self._credit_bytes = 0
        #: of batches here, and of other messages
        self._bytes = 0
        self._other_bytes = 0
        self._moved = asyncio.Event()

    async def put_batch(self, received: Received) -> None:
        """Waits while the queue is full, and behind a large batch until all have landed. Raises `CreditOverdrawn`."""
        if self._credit_bytes <= 0:
            raise CreditOverdrawn(
                self._doing, "a batch while no credit was left", data=NOTHING_LOST, source=str(self._key)
            )
        received.frames.check_size()
        self._credit_bytes -= received.frames.credit_bytes
        self._count(received.frames.credit_bytes)
        await self._messages.put(received)
        while received.frames.is_large and self._bytes:
            await self._moved.wait()

    async def put(self, received: Received) -> None:
        """What is no batch. Waits while too many bytes of such messages are here."""
        while self._other_bytes and self._other_bytes + received.wire_bytes > MAX_QUEUED_BYTES:
            await self._moved.wait()
        self._other_bytes += received.wire_bytes
        self._backlog.change(cost_bytes(received))
        await self._messages.put(received)

    async def notice(self, generation: int) -> None:
        """A desired generation that was noticed."""
        await self._messages.put(generation)

    async def get(self) -> Received | int:
        return await self._messages.get()

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is here and the sender could send."""
        return not self._bytes and not self._other_bytes and self._credit_bytes > 0

    def landed(self, received: Received) -> None:
        """The frames of a batch that was got are no longer there, nor is another message."""
        if received.message.WhichOneof("payload") in ("change_batch", "snapshot_batch"):
            self._count(-received.frames.credit_bytes)
            return
        self._other_bytes -= received.wire_bytes
        self._backlog.change(-cost_bytes(received))
        self._wake()

    def granted(self, credit_bytes: int) -> None:
        self._credit_bytes += credit_bytes

    def close(self) -> None:
        """Nothing of the stream waits any more."""
        self._count(-self._bytes)
        self._backlog.change(-COST_FACTOR * self._other_bytes)
        self._other_bytes = 0

    def _count(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        self._backlog.change(size_bytes)
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
