"""Messages of one stream: none is lost to another's sender that left, nor to a gateway that is slow."""

import asyncio
import time
from typing import Any, cast

from menura.v1.changes_pb2 import Credit
from menura.v1.error_pb2 import Error
from menura.v1.stream_pb2 import StreamRequest

from gateway.backlog import Backlog
from gateway.loop_turns import begin, taken
from gateway.stream import AgentStream


class OneWriteAtATime:
    """As gRPC's context: a write under way stays so when its waiter is cancelled, and a second one is refused."""

    def __init__(self) -> None:
        self.sent: list[StreamRequest] = []
        self.network = asyncio.Event()
        self.writing = asyncio.Event()

    async def write(self, message: StreamRequest) -> None:
        assert not self.writing.is_set(), "too many operations"
        self.writing.set()
        await self.network.wait()
        self.writing.clear()
        self.sent.append(message)


def test_a_message_when_the_sender_before_it_was_cancelled_while_writing_follows_it():
    async def scenario() -> list[StreamRequest]:
        context = OneWriteAtATime()
        stream = AgentStream(cast(Any, context), Backlog())
        first = asyncio.create_task(stream.send(StreamRequest(credit=Credit(bytes=1))))
        await context.writing.wait()
        first.cancel()
        await asyncio.wait({first})
        last = asyncio.create_task(stream.send(StreamRequest(credit=Credit(bytes=2))))
        await asyncio.sleep(0)
        context.network.set()
        await last
        return context.sent

    sent = asyncio.run(scenario())
    assert [(message.header.sequence, message.credit.bytes) for message in sent] == [(1, 1), (2, 2)]


def test_why_a_stream_ends_when_a_posted_message_is_being_written_then_follows_it_and_none_that_waits_does():
    async def scenario() -> list[StreamRequest]:
        context = OneWriteAtATime()
        stream = AgentStream(cast(Any, context), Backlog())
        for credit_bytes in (1, 2):
            stream.post(StreamRequest(credit=Credit(bytes=credit_bytes)))
        await context.writing.wait()
        stream.close()
        last = asyncio.create_task(stream.send(StreamRequest(error=Error(code="OUT_OF_SEQUENCE"))))
        await asyncio.sleep(0)
        context.network.set()
        await last
        return context.sent

    sent = asyncio.run(scenario())
    assert [(it.header.sequence, it.credit.bytes, it.error.code) for it in sent] == [
        (1, 1, ""),
        (2, 0, "OUT_OF_SEQUENCE"),
    ]


class OneMessage:
    """As gRPC's context: it has what came when somebody reads."""

    def __init__(self) -> None:
        self.came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.is_read = asyncio.Event()

    async def read(self) -> bytes:
        self.is_read.set()
        return await self.came


def test_a_part_when_it_has_come_and_its_task_has_its_turn_after_the_time_for_it_then_it_is_there() -> None:
    """A gateway that was slow refused agents that were not: the time was over before their stream had its turn."""
    seconds = 0.3

    async def scenario() -> bytes | None:
        loop, context = asyncio.get_running_loop(), OneMessage()
        stream = AgentStream(cast(Any, context), Backlog())

        async def read() -> bytes | None:
            begin(("acme", "agent-1"))
            reading = asyncio.create_task(stream._read_within(seconds))
            await context.is_read.wait()
            late = time.monotonic() + seconds
            for _ in range(100):  # what else the agent has ready; a pass of the loop does one
                loop.call_soon(lambda: None)
            context.came.set_result(b"part")
            while time.monotonic() <= late:
                pass
            return await reading

        with taken(loop, 0.0):
            return await asyncio.create_task(read())

    assert asyncio.run(scenario()) == b"part"
