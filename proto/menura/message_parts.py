"""An agent's messages as they travel: whole, or in parts where they are larger than one gRPC message may be.

gRPC receives a message whole before anybody can look at it, so what it accepts is what any stranger can make a gateway
hold, once for each stream. Therefore a gRPC message from an agent has at most `MAX_GRPC_BYTES`. A larger
`StreamResponse` is cut into pieces of `PART_BYTES`, each in a StreamResponse with a `part` and nothing else; the last
piece may be shorter. Parts of one message follow each other with nothing between, and have no header: the whole has.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from menura.v1.stream_pb2 import MessagePart, StreamResponse

#: of a gRPC message from an agent to a gateway
MAX_GRPC_BYTES: Final = 256 << 10
#: of a message in one part
PART_BYTES: Final = MAX_GRPC_BYTES - 64


class PartsInvalid(ValueError):
    """Parts that make no message; says why, and nothing of what they hold."""


def in_parts(message: bytes) -> Iterator[bytes]:
    """The gRPC messages in which a serialized StreamResponse travels; one that is small enough is its own."""
    if len(message) <= MAX_GRPC_BYTES:
        yield message
        return
    view = memoryview(message)
    for begin in range(0, len(message), PART_BYTES):
        part = MessagePart(whole_bytes=len(message), data=bytes(view[begin : begin + PART_BYTES]))
        yield StreamResponse(part=part).SerializeToString()


@dataclass(slots=True)
class Assembly:
    """The parts of one message, until it is whole.

    Each is copied to its place as it comes. Put together at the end, a message of 200 MiB holds up all else that the
    process does, for seconds on a slow machine.
    """

    #: as the first part says
    whole_bytes: int
    _received: bytearray = field(default_factory=bytearray)

    @property
    def received_bytes(self) -> int:
        return len(self._received)

    def add(self, part: MessagePart) -> bytearray | None:
        """The serialized message, once this is its last part. Raises `PartsInvalid`."""
        if part.whole_bytes != self.whole_bytes:
            raise PartsInvalid(f"a part of {part.whole_bytes} bytes within one of {self.whole_bytes}")
        data = part.data
        if len(data) != min(PART_BYTES, self.whole_bytes - self.received_bytes):
            raise PartsInvalid(f"a part with {len(data)} of {self.whole_bytes} bytes after {self.received_bytes}")
        self._received += data
        if self.received_bytes < self.whole_bytes:
            return None
        whole, self._received = self._received, bytearray()
        return whole
