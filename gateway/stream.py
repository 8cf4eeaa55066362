"""One gRPC stream as messages: headers checked on the way in, made on the way out. Knows no payload's meaning.

Comes in: an agent's messages, Hello first, one header throughout, numbered without gaps; large ones in parts, which are
put together here. Goes out: the gateway's, numbered likewise.

Sizes are checked before anything is parsed. What comes in one gRPC message is small and is parsed at once; what came in
parts is parsed in a thread, one of the process at a time. What a message costs beside its rows is counted in
`gateway.backlog` from before its parsing to the next `receive`, when whoever got it is done with it or has queued it.

An agent that does not read holds up nobody but itself: what the gateway says while it has something of the agent's in
hand is sent as the agent reads (`post`), within a bound. What is sent with nothing in hand is waited for, and ends the
stream after `SEND_SECONDS`.
"""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
from menura.change_batch import MAX_BATCH_BYTES
from menura.error_message import as_message
from menura.errors import MenuraError
from menura.instants import now_us
from menura.message_parts import PART_BYTES, Assembly, PartsInvalid
from menura.roles import Role
from menura.v1.changes_pb2 import Credit
from menura.v1.config_pb2 import Hello
from menura.v1.stream_pb2 import Header, MessagePart, StreamRequest, StreamResponse

from gateway.admission import Admission
from gateway.backlog import Backlog, PartsRoom, cost_bytes
from gateway.errors import (
    AgentNotReading,
    GatewayStopping,
    HeaderInvalid,
    HelloMissing,
    MessageStalled,
    PayloadInvalid,
    StreamOutOfSequence,
    TooManyStreams,
)
from gateway.quotas import Quota
from gateway.registry import AgentName
from gateway.shares import Shares
from gateway.spool import Unparsed
from gateway.stream_key import StreamKey, check_protocol, read_key
from gateway.tasks import in_thread
from gateway.wire.message import Received, payload_number, read_message

#: largest message that is no batch of rows
MAX_CONTROL_BYTES = 16 << 20
#: a batch that does not compress, with its frame and header
MAX_WHOLE_BYTES = MAX_BATCH_BYTES + (2 << 20)
MAX_HEADER_BYTES = 1 << 10
#: until the next part of a message comes, from when it is read for; of one that goes on beyond its share
PART_SECONDS, CROWDED_SECONDS = 60.0, 5.0
#: until the agent has read a message
SEND_SECONDS = 60.0
#: the same of the one that says why its stream ends
FAIL_SECONDS = 5.0
#: that wait for the agent to read them
MAX_POSTED, MAX_POSTED_BYTES = 1_024, 32 << 20
#: a message that is no larger costs too little to wait for
SMALL_BYTES = 16 << 10

_PAYLOADS = {
    Role.CONFIG: (
        "effective_sources",
        "effective_state",
        "effective_version",
        "package_request",
        "certificate_request",
        "error",
    ),
    Role.HEARTBEAT: ("heartbeat", "error"),
    Role.CATALOG: (
        "cartography",
        "dump_plan",
        "snapshot_batch",
        "chunk_end",
        "chunk_dropped",
        "dump_status",
        "dump_failed",
        "error",
    ),
    Role.CHANGES: ("change_batch", "cut_end", "error"),
}


_WITH_BATCHES = (Role.CATALOG, Role.CHANGES)
#: their sizes are checked where they are read
_BATCHES = ("change_batch", "snapshot_batch")
_BATCH_NUMBERS = (StreamResponse.CHANGE_BATCH_FIELD_NUMBER, StreamResponse.SNAPSHOT_BATCH_FIELD_NUMBER)


class AgentStream:
    def __init__(self, context: grpc.aio.ServicerContext, backlog: Backlog) -> None:
        self._context = context
        self._backlog = backlog
        #: of the message that `receive` gave last, among reports
        self._cost_bytes = 0
        self._received = 0
        #: that this was ready to read so far, and since when it is now
        self._ready_seconds = 0.0
        self._ready_since: float | None = None
        self._sent = 0
        self._sending = asyncio.Lock()
        self._posted: dict[asyncio.Task[None], int] = {}
        self._posted_bytes = 0
        #: of all messages that are not written yet, and the one that gRPC has
        self._writes: set[asyncio.Task[None]] = set()
        self._writing: asyncio.Task[None] | None = None
        #: that is granted and not sent yet
        self._credit_bytes = 0
        self._is_read = True
        self._header = Header()
        self.key: StreamKey | None = None
        #: what its agent may say in a while; replaced by the agent's own when it is admitted
        self.quota = Quota()

    @property
    def peer(self) -> str:
        """The connection's other end, as gRPC names it."""
        return str(self._context.peer())

    @property
    def owner(self) -> str:
        """Whose quota of log lines its own use: the agent's, however many sources it has."""
        assert self.key is not None
        return "/".join(self.key.of_agent)

    @property
    def ready_seconds(self) -> float:
        """For how long in all the agent could have been read: not while it waits for its share, nor for anybody."""
        since = self._ready_since
        return self._ready_seconds + (0.0 if since is None else time.monotonic() - since)

    async def open(self, admission: Admission, owner: AgentName) -> Hello | None:
        """Read and check the Hello in a turn of `owner`; None when the agent left without one."""
        async with admission.reading_hello(owner):
            received = await self._hello(admission.hello_seconds)
        if received is None:
            return None
        message = received.message
        if message.header.ByteSize() <= MAX_HEADER_BYTES:
            self._header = message.header  # also where it is refused: the agent knows its stream by it
        self.key = read_key(message.header)
        self._check_sequence(message.header)
        if message.WhichOneof("payload") != "hello":
            raise HelloMissing("opening a stream", f"{message.WhichOneof('payload')} as first message")
        check_protocol(message.hello.protocol)
        return message.hello

    async def read(self) -> StreamResponse | None:
        """The next message after the Hello, its header checked; None when the agent has ended the stream."""
        received = await self.receive()
        return received.message if received is not None else None

    async def receive(self) -> Received | None:
        """The same with the frames of a batch, which its message may lack.

        Before it reads, with nothing in hand, it waits until what the agent owes is paid, and for its share of rows.
        """
        assert self.key is not None
        self._count(0)
        await self.quota.paid()
        if self.key.role in _WITH_BATCHES:
            await self._backlog.rows.room(self.key.of_agent)
        received = await self._next()
        if received is None:
            return None
        message = received.message
        if read_key(message.header) != self.key:
            raise HeaderInvalid(
                "reading a message", "tenant, agent, source, request type or session other than in the stream's Hello"
            )
        self._check_sequence(message.header)
        payload = message.WhichOneof("payload")
        if payload not in _PAYLOADS[self.key.role]:
            raise PayloadInvalid("reading a message", f"payload {payload} on this stream")
        if payload not in _BATCHES:
            if received.wire_bytes > MAX_CONTROL_BYTES:
                raise PayloadInvalid("reading a message", f"{payload} of more than {MAX_CONTROL_BYTES} bytes")
            self._count(cost_bytes(received.wire_bytes))
        return received

    def close(self) -> None:
        """Nothing that was received is looked at any more, and nothing that waits is sent.

        What gRPC has already goes on: it refuses a message beside one, and the next may say why the stream ends.
        """
        self._count(0)
        for write in self._posted.keys() - {self._writing}:
            write.cancel()

    async def written(self) -> None:
        """Wait until gRPC has nothing of this that it still writes: beside that it can't end the stream either."""
        while self._writes:
            await asyncio.wait(self._writes)

    def _count(self, cost: int) -> None:
        if self.key is not None:
            self._backlog.reports.change(self.key.of_agent, cost - self._cost_bytes)
            self._cost_bytes = cost

    async def send(self, message: StreamRequest) -> None:
        """Send one message; its header is made here. Raises `AgentNotReading`.

        gRPC takes one at a time, also where the one who sent it waits no more: the write goes on and the next one,
        which may say why the stream ends, comes after it.
        """
        await self._sent_within(message, SEND_SECONDS)

    def post(self, message: StreamRequest) -> None:
        """Send a message when the agent reads, and go on; raises `AgentNotReading` where too much waits."""
        size_bytes = message.ByteSize()
        if not self._is_read or len(self._posted) >= MAX_POSTED or self._posted_bytes + size_bytes > MAX_POSTED_BYTES:
            raise self._not_reading(f"{len(self._posted)} messages wait for it")
        self._follow(self._begin(self._write(message)), size_bytes)

    def grant(self, credit_bytes: int) -> None:
        """Post credit; what is granted until the agent reads it is one message."""
        self._credit_bytes += credit_bytes
        if self._credit_bytes == credit_bytes:
            self._follow(self._begin(self._write_credit()), 0)

    def _begin(self, writing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        write = asyncio.create_task(writing)
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        write.add_done_callback(_retrieved)
        return write

    def _follow(self, write: asyncio.Task[None], size_bytes: int) -> None:
        self._posted[write] = size_bytes
        self._posted_bytes += size_bytes
        write.add_done_callback(self._posted_written)

    async def _sent_within(self, message: StreamRequest, seconds: float) -> None:
        if not self._is_read:
            raise self._not_reading("messages before wait for it")
        write = self._begin(self._write(message))
        done, _ = await asyncio.wait({write}, timeout=seconds)
        if not done:
            self._is_read = False
            raise self._not_reading(f"a message has waited for it for {seconds:g} s")
        write.result()

    async def _write(self, message: StreamRequest) -> None:
        async with self._sending:
            await self._write_now(message)

    async def _write_credit(self) -> None:
        async with self._sending:
            granted, self._credit_bytes = self._credit_bytes, 0
            await self._write_now(StreamRequest(credit=Credit(bytes=granted)))

    async def _write_now(self, message: StreamRequest) -> None:
        self._sent += 1
        message.header.CopyFrom(self._header)
        message.header.sequence, message.header.sent_at_us = self._sent, now_us()
        self._writing = asyncio.current_task()
        await self._context.write(message)

    def _posted_written(self, write: asyncio.Task[None]) -> None:
        self._posted_bytes -= self._posted.pop(write)  # where it failed the stream has ended, which `receive` sees

    def _not_reading(self, found: str) -> AgentNotReading:
        return AgentNotReading(
            "sending to an agent",
            found,
            data="What is committed stays; the rest is read again",
            remedy="The agent opens the stream again; check its host, and the network between both",
        )

    async def fail(self, error: MenuraError) -> None:
        """Tell the agent why its stream ends, if it is still there and reads."""
        if self.key is None and isinstance(error, GatewayStopping | TooManyStreams):
            # Nothing was read: without its Hello there is no header by which the agent would know an answer.
            is_full = isinstance(error, TooManyStreams)
            self._context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED if is_full else grpc.StatusCode.UNAVAILABLE)
            self._context.set_details(error.found)
            return
        self._context.set_code(grpc.StatusCode.FAILED_PRECONDITION if error.terminal else grpc.StatusCode.ABORTED)
        self._context.set_details(error.code)
        with suppress(AgentNotReading, grpc.RpcError, grpc.aio.BaseError):
            await self._sent_within(StreamRequest(error=as_message(error)), FAIL_SECONDS)

    async def _read_when_it_comes(self) -> bytes | None:
        """What gRPC has next; None when the agent has ended the stream."""
        self._ready_since = time.monotonic()
        try:
            data: bytes = await self._context.read()
        finally:
            self._ready_seconds, self._ready_since = self.ready_seconds, None
        return None if data is grpc.aio.EOF else data

    async def _read_within(self, seconds: float) -> bytes | None:
        """The same; raises TimeoutError where nothing has come by then.

        What has come counts, however late this task has its turn: an agent does not answer for a gateway that is slow.
        """
        reading = asyncio.create_task(self._read_when_it_comes())
        reading.add_done_callback(_retrieved)
        try:
            done, _ = await asyncio.wait({reading}, timeout=seconds)
            if not done:
                raise TimeoutError
            return reading.result()
        finally:
            reading.cancel()

    async def _hello(self, seconds: float) -> Received | None:
        try:
            data = await self._read_within(seconds)
        except TimeoutError as late:
            raise HelloMissing("opening a stream", f"no Hello within {seconds:g} seconds") from late
        if data is None:
            return None
        received = read_message(data)
        if received.message.WhichOneof("payload") == "part":
            raise HelloMissing("opening a stream", "a first message of more than one part")
        return received

    async def _next(self) -> Received | None:
        assert self.key is not None
        data = await self._read_when_it_comes()
        if data is None:
            return None
        number, size_bytes = payload_number(data), len(data)
        if number == StreamResponse.PART_FIELD_NUMBER:
            first = Unparsed(data)
            del data
            return await self._next_in_parts(first)
        owner, budget = self.key.of_agent, self._budget(number, size_bytes)
        if budget is None:
            return read_message(data)
        unparsed = Unparsed(data)
        del data
        data = await unparsed.when(owner, budget.has_room(owner), partial(budget.room, owner), self._backlog.spooling)
        self._takes(budget, size_bytes)
        return read_message(data)

    async def _next_in_parts(self, first: Unparsed) -> Received | None:
        assert self.key is not None
        owner = self.key.of_agent
        with self._backlog.assembling(owner) as room:
            begun = await first.when(owner, room.is_free, room.wait, self._backlog.spooling)
            assembling = self._assemble(_part_of(read_message(begun).message), room)
            del begun  # a part that waits for room is held once
            whole = await assembling
            if whole is None:
                return None
            budget = self._budget(payload_number(whole), len(whole))
            if budget is not None:
                await budget.room(owner)
                self._takes(budget, len(whole))
            async with self._backlog.parsing.of(owner):
                return await in_thread(read_message, whole)

    def _budget(self, number: int, size_bytes: int) -> Shares | None:
        """Where a message has to have room for what it becomes when it is parsed."""
        if number not in _BATCH_NUMBERS:
            self.quota.bytes.owe(size_bytes)
        if size_bytes <= SMALL_BYTES:
            return None
        return self._backlog.rows if number in _BATCH_NUMBERS else self._backlog.reports

    def _takes(self, budget: Shares, size_bytes: int) -> None:
        """What is no batch is counted from now on; rows are when they are queued."""
        if budget is self._backlog.reports:
            self._count(cost_bytes(size_bytes))

    async def _assemble(self, part: MessagePart, room: PartsRoom) -> bytearray | None:
        """The message that begins with this part; None when the agent has ended the stream."""
        assert self.key is not None
        most_bytes = MAX_WHOLE_BYTES if self.key.role in _WITH_BATCHES else MAX_CONTROL_BYTES
        if not PART_BYTES < part.whole_bytes <= most_bytes:
            raise PayloadInvalid("reading a message", f"parts of {part.whole_bytes} bytes, at most {most_bytes}")
        assembly, seconds = Assembly(part.whole_bytes), PART_SECONDS
        try:
            while (whole := assembly.add(part)) is None:
                del part
                room.holds(assembly.received_bytes)
                await room.wait()
                seconds = CROWDED_SECONDS if room.is_crowding else PART_SECONDS
                data = await self._read_within(seconds)
                if data is None:
                    return None
                part = _part_of(read_message(data).message)
                del data
        except PartsInvalid as invalid:
            raise PayloadInvalid("reading a message", str(invalid)) from invalid
        except TimeoutError as stalled:
            raise MessageStalled(
                "reading a message",
                f"{assembly.received_bytes} of {assembly.whole_bytes} bytes came, and nothing for {seconds:g} s",
                remedy="The agent opens the stream again; check the network between both",
            ) from stalled
        return whole

    def _check_sequence(self, header: Header) -> None:
        self._received += 1
        if header.sequence != self._received:
            raise StreamOutOfSequence("reading a message", f"number {header.sequence}, expected {self._received}")


def _retrieved(write: "asyncio.Task[Any]") -> None:
    """Whoever waits has what it raised; nobody else misses it."""
    if not write.cancelled():
        write.exception()


def _part_of(message: StreamResponse) -> MessagePart:
    if message.WhichOneof("payload") != "part":
        raise PayloadInvalid("reading a message", "another message within one of several parts")
    return message.part
