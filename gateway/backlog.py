"""What all streams have received and not landed yet, and whose turn it is to land a large batch.

A stream reads its next message only while there is room; what it does not read waits at its agent, by HTTP/2's flow
control. A stream of one tenant so can delay those of others, by the time that landing takes, and not fill the process.
"""

import asyncio
from dataclasses import dataclass, field

from gateway.errors import NOTHING_LOST, CreditOverdrawn
from gateway.registry import SourceKey
from gateway.wire.message import Received

#: streams read on below; the message that each is reading comes on top
MAX_BYTES = 256 << 20
#: of one stream
MAX_QUEUED_MESSAGES = 256


@dataclass(slots=True)
class Backlog:
    #: held while a large batch is decoded and written: in one stream of the process at a time, first come first
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _bytes: int = 0
    _has_room: asyncio.Event = field(default_factory=asyncio.Event)

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


class StreamQueue:
    """One stream's messages between its receiver and the one task that lands them, and the credit of its sender."""

    def __init__(self, backlog: Backlog, key: SourceKey, doing: str) -> None:
        """`doing`: what an error says that the receiver was doing."""
        self._backlog = backlog
        self._key = key
        self._doing = doing
        self._messages: asyncio.Queue[Received | int] = asyncio.Queue(maxsize=MAX_QUEUED_MESSAGES)
        self._credit_bytes = 0
        #: of batches here
        self._bytes = 0
        self._is_empty = asyncio.Event()

    async def put_batch(self, received: Received) -> None:
        """Waits while the queue is full, and behind a large batch until all have landed. Raises `CreditOverdrawn`."""
        if self._credit_bytes <= 0:
            raise CreditOverdrawn(
                self._doing, "a batch while no credit was left", data=NOTHING_LOST, source=str(self._key)
            )
        self._credit_bytes -= received.frames.size_bytes
        self._count(received.frames.size_bytes)
        await self._messages.put(received)
        if received.frames.is_large:
            await self._is_empty.wait()

    async def put(self, message: Received | int) -> None:
        """What is no batch, or a desired generation that was noticed."""
        await self._messages.put(message)

    async def get(self) -> Received | int:
        return await self._messages.get()

    def landed(self, size_bytes: int) -> None:
        """The frames of a batch that was got are no longer there."""
        self._count(-size_bytes)

    def granted(self, credit_bytes: int) -> None:
        self._credit_bytes += credit_bytes

    def close(self) -> None:
        """Nothing of the stream waits any more."""
        self._count(-self._bytes)

    def _count(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._bytes:
            self._is_empty.clear()
        else:
            self._is_empty.set()
        self._backlog.change(size_bytes)
