"""From a gRPC message's bytes to a StreamResponse, with the frames of its batch beside it; every byte is hostile.

Comes in: the bytes of one message. Goes out: the message, and its batch's frames as views of those bytes. Protobuf
copies a field when it parses and at each look at it, which for frames of many MiB is most of what this process holds:
of a large message the frames are cut out before it is parsed. Knows no payload's meaning.

Protobuf's wire format (protobuf.dev/programming-guides/encoding)::

    field    tag varint: number << 3 | wire type, then the value
    type     0: varint | 1: eight bytes | 2: length varint, bytes | 5: four bytes

A field that comes again: of bytes the last one counts, messages are merged.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError
from menura.v1.changes_pb2 import ChangeBatch
from menura.v1.snapshot_pb2 import SnapshotBatch
from menura.v1.stream_pb2 import StreamResponse
from menura.wire_format import length_delimited

from gateway.errors import PayloadInvalid
from gateway.memory import LARGE_FRAME_BYTES, LARGE_ROWS_BYTES

#: below, a copy costs less than the search
CUT_FROM_BYTES = 1 << 20
#: of a message without its frames
MAX_REST_BYTES = 16 << 20
#: of a message, and of its batch: each has a dozen
MAX_FIELDS = 64

_MAX_VARINT_BYTES = 10
#: by the number of a batch in StreamResponse: which of its fields are frames
_FRAMES_OF = {
    StreamResponse.CHANGE_BATCH_FIELD_NUMBER: {
        ChangeBatch.ROWS_FIELD_NUMBER: "rows",
        ChangeBatch.TRANSACTIONS_FIELD_NUMBER: "transactions",
    },
    StreamResponse.SNAPSHOT_BATCH_FIELD_NUMBER: {SnapshotBatch.ROWS_FIELD_NUMBER: "rows"},
}

Frame = bytes | memoryview


@dataclass(slots=True)
class Frames:
    """A batch's zstd frames. Whoever decompresses one takes it, and it is gone from here."""

    rows: Frame
    transactions: Frame
    #: of both before compression, as the agent announces it
    announced_bytes: int
    #: of both, taken or not: what they cost of credit
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.size_bytes = len(self.rows) + len(self.transactions)

    @property
    def is_large(self) -> bool:
        """See `gateway.memory`."""
        return self.size_bytes >= LARGE_FRAME_BYTES or self.announced_bytes >= LARGE_ROWS_BYTES

    def take_rows(self) -> Frame:
        taken, self.rows = self.rows, b""
        return taken

    def take_transactions(self) -> Frame:
        taken, self.transactions = self.transactions, b""
        return taken


@dataclass(frozen=True, slots=True)
class Received:
    #: a large one without its frames
    message: StreamResponse
    frames: Frames


def frames_of(batch: ChangeBatch | SnapshotBatch, found: Mapping[str, Frame] | None = None) -> Frames:
    """`found`: the frames by name, where the batch was parsed without them."""
    if isinstance(batch, SnapshotBatch):
        return Frames(batch.rows if found is None else found.get("rows", b""), b"", batch.rows_bytes)
    rows, transactions = (
        (batch.rows, batch.transactions) if found is None else (found.get("rows", b""), found.get("transactions", b""))
    )
    return Frames(rows, transactions, batch.rows_bytes + batch.transactions_bytes)


def read_message(data: bytes) -> Received:
    """Raises `PayloadInvalid`, whatever the bytes are."""
    try:
        if len(data) < CUT_FROM_BYTES:
            return _received(StreamResponse.FromString(data), None)
        found: dict[str, Frame] = {}
        rest = _without_frames(memoryview(data), found)
        if len(rest) > MAX_REST_BYTES:
            raise PayloadInvalid("reading a message", f"more than {MAX_REST_BYTES} bytes beside its rows")
        return _received(StreamResponse.FromString(rest), found)
    except (DecodeError, ValueError) as broken:
        raise PayloadInvalid(
            "reading a message",
            "bytes that are no message of menura.v1",
            remedy="Upgrade the agent and the gateway to one version",
        ) from broken


def _received(message: StreamResponse, found: Mapping[str, Frame] | None) -> Received:
    match message.WhichOneof("payload"):
        case "change_batch":
            return Received(message, frames_of(message.change_batch, found))
        case "snapshot_batch":
            return Received(message, frames_of(message.snapshot_batch, found))
    return Received(message, Frames(b"", b"", 0))


def _without_frames(data: memoryview, found: dict[str, Frame]) -> bytes:
    """The message as it would be without them."""
    rest: list[Frame] = []
    for number, whole, value in _fields(data):
        frames = _FRAMES_OF.get(number)
        if frames is None or value is None:
            rest.append(whole)
            continue
        kept: list[Frame] = []
        for inner_number, inner_whole, inner_value in _fields(value):
            if inner_number in frames and inner_value is not None:
                found[frames[inner_number]] = inner_value
            else:
                kept.append(inner_whole)
        batch = b"".join(kept)
        rest += [length_delimited(number, len(batch)), batch]
    return b"".join(rest)


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview, memoryview | None]]:
    """Each field's number, all of its bytes, and the value of one with a length; ValueError: no such fields."""
    at = count = 0
    while at < len(data):
        count += 1
        if count > MAX_FIELDS:
            raise ValueError("too many fields")
        tag, value_at = _varint(data, at)
        value = None
        match tag & 7:
            case 0:  # a varint
                _, end = _varint(data, value_at)
            case 1:  # eight bytes
                end = value_at + 8
            case 2:  # a length and as many bytes
                size, start = _varint(data, value_at)
                end = start + size
                value = data[start:end]
            case 5:  # four bytes
                end = value_at + 4
            case other:
                raise ValueError(f"wire type {other}")
        if end > len(data):
            raise ValueError("a field beyond the end")
        yield tag >> 3, data[at:end], value
        at = end


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A varint and where it ends."""
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        if at + place >= len(data):
            raise ValueError("a number beyond the end")
        octet = data[at + place]
        value |= (octet & 0x7F) << 7 * place
        if octet < 0x80:
            return value, at + place + 1
    raise ValueError("a number that does not end")
