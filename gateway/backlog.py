"""What all streams have received and not done with yet, and whose turn large work is.

A stream reads its next message only while its agent has a share left; what it does not read waits at its agent, by
HTTP/2's flow control. Three budgets of the process, in bytes, by what makes them smaller. Each is shared by tenants and
agents (`gateway.shares`), so that one who fills its share delays nobody else:

- rows that wait to be landed, by their size before compression, and what waits in a queue with them, by `cost_bytes`.
  These wait for the store and the database, never for an agent.
- reports, by `cost_bytes`, from before they are parsed until the database has them, or has refused them.
- parts of messages that are on their way. A message's first one is on disk until there is room (`gateway.spool`).
  These wait for agents: of each tenant the message that began first goes on in any case. One that stalls ends its
  stream, and one that goes on beyond its share has to hurry (`gateway.stream.PART_SECONDS`, `CROWDED_SECONDS`), so all
  get a turn.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gateway.errors import NOTHING_LOST, CreditOverdrawn
from gateway.registry import AgentName, SourceKey
from gateway.shares import Shares, Turns
from gateway.tasks import run_until_first
from gateway.wire.message import Received

MAX_ROWS_BYTES = 128 << 20
MAX_REPORTS_BYTES = 128 << 20
MAX_PARTS_BYTES = 64 << 20
#: of one stream
MAX_QUEUED_MESSAGES = 256
#: of one stream, beside its batches
MAX_QUEUED_BYTES = 4 << 20
#: a message takes more here than on its way: objects for each of its fields
COST_FACTOR = 8
#: that one message counts
MAX_COST_BYTES = MAX_REPORTS_BYTES // 4


def cost_bytes(wire_bytes: int) -> int:
    """About what a message takes here that is no batch. The largest leave most of a budget to others."""
    return min(COST_FACTOR * wire_bytes, MAX_COST_BYTES)


@dataclass(frozen=True, slots=True)
class Backlog:
    rows: Shares = field(default_factory=lambda: Shares(MAX_ROWS_BYTES))
    reports: Shares = field(default_factory=lambda: Shares(MAX_REPORTS_BYTES))
    parts: Shares = field(default_factory=lambda: Shares(MAX_PARTS_BYTES))
    #: while a large batch is decoded and written
    landing: Turns = field(default_factory=Turns)
    #: while a message that came in parts is parsed
    parsing: Turns = field(default_factory=Turns)
    #: while a message that waits is written to disk
    spooling: Turns = field(default_factory=lambda: Turns(2, most_of_tenant=1))
    #: by tenant, those that began first
    _assemblies: "dict[str, list[PartsRoom]]" = field(default_factory=dict)

    @contextmanager
    def assembling(self, owner: AgentName) -> "Iterator[PartsRoom]":
        """While a message comes in parts."""
        room, others = PartsRoom(self.parts, owner), self._assemblies.setdefault(owner[0], [])
        others.append(room)
        others[0].is_first.set()
        try:
            yield room
        finally:
            others.remove(room)
            if others:
                others[0].is_first.set()
            else:
                del self._assemblies[owner[0]]
            self.parts.change(owner, -room.held_bytes)


@dataclass(slots=True, eq=False)
class PartsRoom:
    """Of one message that comes in parts."""

    parts: Shares
    owner: AgentName
    held_bytes: int = 0
    #: of its tenant's that are on their way
    is_first: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_crowding(self) -> bool:
        """Whether it goes on only because it is first: its tenant's others may be waiting for it."""
        return not self.parts.has_room(self.owner)

    @property
    def is_free(self) -> bool:
        """Whether a part of it has room now."""
        return self.is_first.is_set() or self.parts.has_room(self.owner)

    async def wait(self) -> None:
        """Until its next part may be read."""
        if not self.is_free:
            await run_until_first(self.parts.room(self.owner), _wait(self.is_first))

    def holds(self, size_bytes: int) -> None:
        """So much of it has come."""
        self.parts.change(self.owner, size_bytes - self.held_bytes)
        self.held_bytes = size_bytes


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


class StreamQueue:
    """One stream's messages between its receiver and the one task that lands them, and the credit of its sender."""

    def __init__(self, rows: Shares, owner: AgentName, key: SourceKey, doing: str) -> None:
        """`doing`: what an error says that the receiver was doing."""
        self._rows = rows
        self._owner = owner
        self._key = key
        self._doing = doing
        self._messages: asyncio.Queue[Received | int] = asyncio.Queue(maxsize=MAX_QUEUED_MESSAGES)
        self._credit_bytes = 0
        #: of batches here, and of other messages
        self._bytes = 0
        self._other_bytes = 0
        self._other_cost_bytes = 0
        self._moved = asyncio.Event()
        self._is_closed = False

    async def put_batch(self, received: Received) -> None:
        """Waits while the queue is full, and behind a large batch until all have landed. Raises `CreditOverdrawn`."""
        if self._credit_bytes <= 0:
            raise CreditOverdrawn(
                self._doing, "a batch while no credit was left", data=NOTHING_LOST, source=str(self._key)
            )
        received.frames.check_size()
        if self._is_closed:
            return
        self._credit_bytes -= received.frames.credit_bytes
        self._count(received.frames.credit_bytes)
        await self._messages.put(received)
        while received.frames.is_large and self._bytes:
            await self._moved.wait()

    async def put(self, received: Received) -> None:
        """What is no batch. Waits while too many bytes of such messages are here."""
        while self._other_bytes and self._other_bytes + received.wire_bytes > MAX_QUEUED_BYTES:
            await self._moved.wait()
        if self._is_closed:
            return
        self._count_other(received.wire_bytes, 1)
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
        self._count_other(received.wire_bytes, -1)
        self._wake()

    def granted(self, credit_bytes: int) -> None:
        self._credit_bytes += credit_bytes

    def close(self) -> None:
        """Nothing of the stream waits any more, nor is anything taken in: who receives may hear of the end later."""
        self._is_closed = True
        self._count(-self._bytes)
        self._rows.change(self._owner, -self._other_cost_bytes)
        self._other_bytes = self._other_cost_bytes = 0

    def _count_other(self, wire_bytes: int, sign: int) -> None:
        self._other_bytes += sign * wire_bytes
        self._other_cost_bytes += sign * cost_bytes(wire_bytes)
        self._rows.change(self._owner, sign * cost_bytes(wire_bytes))

    def _count(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        self._rows.change(self._owner, size_bytes)
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
