"""One gRPC stream as messages: headers checked on the way in, made on the way out. Knows no payload's meaning.

Comes in: an agent's messages, Hello first, one header throughout, numbered without gaps. Goes out: the gateway's,
numbered likewise.
"""

import asyncio
import re
from dataclasses import dataclass

import grpc
from menura import allocator
from menura.error_message import as_message
from menura.errors import MenuraError
from menura.instants import now_us
from menura.naming import is_identity
from menura.protocol import PROTOCOL_VERSION
from menura.roles import ROLES, Role
from menura.v1.config_pb2 import Hello
from menura.v1.stream_pb2 import Header, RequestType, StreamRequest, StreamResponse

from gateway.errors import (
    HeaderInvalid,
    HelloMissing,
    PayloadInvalid,
    ProtocolVersion,
    RequestUnsupported,
    StreamOutOfSequence,
)
from gateway.memory import LARGE_FRAME_BYTES
from gateway.wire.message import Received, read_message

#: largest message that is no batch of rows
MAX_CONTROL_BYTES = 16 << 20
MAX_HEADER_BYTES = 1 << 10

_SESSION = re.compile(r"[0-9A-Za-z-]{1,64}")
_WITHOUT_SOURCE = (Role.CONFIG, Role.HEARTBEAT)
_PAYLOADS = {
    Role.CONFIG: ("effective_state", "error"),
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


#: their sizes are checked where they are read
_BATCHES = ("change_batch", "snapshot_batch")


@dataclass(frozen=True, slots=True)
class StreamKey:
    """What is equal in every message of a stream."""

    tenant: str
    agent: str
    source: str
    request_type: RequestType
    session: str

    @property
    def role(self) -> Role:
        return ROLES[self.request_type]

    def __str__(self) -> str:
        name = RequestType.Name(self.request_type)
        return (
            f"{self.tenant}/{self.agent}/{self.source} {name}" if self.source else f"{self.tenant}/{self.agent} {name}"
        )


class AgentStream:
    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context
        self._received = 0
        self._sent = 0
        self._sending = asyncio.Lock()
        self._header = Header()
        self.key: StreamKey | None = None

    async def open(self) -> Hello | None:
        """Read and check the Hello; None when the agent left without one."""
        received = await self._next()
        if received is None:
            return None
        message = received.message
        if message.header.ByteSize() <= MAX_HEADER_BYTES:
            self._header = message.header  # also where it is refused: the agent knows its stream by it
        self.key = _read_key(message.header)
        self._check_sequence(message.header)
        if message.WhichOneof("payload") != "hello":
            raise HelloMissing("opening a stream", f"{message.WhichOneof('payload')} as first message")
        if message.hello.protocol != PROTOCOL_VERSION:
            raise ProtocolVersion(
                "opening a stream",
                f"the agent speaks protocol {message.hello.protocol}, this gateway {PROTOCOL_VERSION}",
                remedy="Upgrade the older one of agent and gateway",
            )
        return message.hello

    async def read(self) -> StreamResponse | None:
        """The next message after the Hello, its header checked; None when the agent has ended the stream."""
        received = await self.receive()
        return received.message if received is not None else None

    async def receive(self) -> Received | None:
        """The same with the frames of a batch, which its message may lack."""
        received = await self._next()
        if received is None:
            return None
        message = received.message
        assert self.key is not None
        if _read_key(message.header) != self.key:
            raise HeaderInvalid(
                "reading a message", "tenant, agent, source, request type or session other than in the stream's Hello"
            )
        self._check_sequence(message.header)
        payload = message.WhichOneof("payload")
        if payload not in _PAYLOADS[self.key.role]:
            raise PayloadInvalid("reading a message", f"payload {payload} on this stream")
        if payload not in _BATCHES and message.ByteSize() > MAX_CONTROL_BYTES:
            raise PayloadInvalid("reading a message", f"{payload} of more than {MAX_CONTROL_BYTES} bytes")
        return received

    async def send(self, message: StreamRequest) -> None:
        """Send one message; its header is made here.

        gRPC takes one at a time, also where the one who sent it waits no more: the write goes on and the next one,
        which may say why the stream ends, comes after it.
        """
        await self._sending.acquire()
        write = asyncio.ensure_future(self._write(message))
        write.add_done_callback(self._written)
        await asyncio.shield(write)

    async def _write(self, message: StreamRequest) -> None:
        self._sent += 1
        message.header.CopyFrom(self._header)
        message.header.sequence, message.header.sent_at_us = self._sent, now_us()
        await self._context.write(message)

    def _written(self, write: asyncio.Future[None]) -> None:
        self._sending.release()
        if not write.cancelled():
            write.exception()  # whoever still waits has it

    async def fail(self, error: MenuraError) -> None:
        """Tell the agent why its stream ends, if it is still there."""
        self._context.set_code(grpc.StatusCode.FAILED_PRECONDITION if error.terminal else grpc.StatusCode.ABORTED)
        self._context.set_details(error.code)
        try:
            await self.send(StreamRequest(error=as_message(error)))
        except (grpc.RpcError, grpc.aio.BaseError):
            return

    async def _next(self) -> Received | None:
        data = await self._context.read()
        if data is grpc.aio.EOF:
            return None
        if len(data) >= LARGE_FRAME_BYTES:
            allocator.trim()  # gRPC has received it in many small blocks, which would be kept
        return read_message(data)

    def _check_sequence(self, header: Header) -> None:
        self._received += 1
        if header.sequence != self._received:
            raise StreamOutOfSequence("reading a message", f"number {header.sequence}, expected {self._received}")


def _read_key(header: Header) -> StreamKey:
    role = ROLES.get(header.request_type)
    if role is None:
        raise RequestUnsupported(
            "opening a stream", f"request type {header.request_type}", remedy="Upgrade the gateway, or drop that source"
        )
    for name, value in (("tenant", header.tenant), ("agent", header.agent)):
        if not is_identity(value):
            raise HeaderInvalid(
                "reading a header", f"a {name} that is no name", remedy=f"Use a-z, 0-9, '-', '_' in {name}"
            )
    if header.source if role in _WITHOUT_SOURCE else not is_identity(header.source):
        raise HeaderInvalid(
            "reading a header", "a source that is no name, or one on a control stream", remedy="Use a-z, 0-9, '-', '_'"
        )
    if not _SESSION.fullmatch(header.session):
        raise HeaderInvalid("reading a header", "a session that is no UUID")
    return StreamKey(header.tenant, header.agent, header.source, header.request_type, header.session)
