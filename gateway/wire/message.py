"""From a gRPC message's bytes to a StreamResponse, with the frames of its batch beside it; every byte is hostile.

Comes in: the bytes of one message. Goes out: the message, and its batch's frames as views of those bytes. Protobuf
copies a field when it parses and at each look at it, which for frames of many MiB is most of what this process holds:
of a large message the frames are cut out before it is parsed, and what is left is weighed (`menura.weight`). Knows no
payload's meaning. A field that comes again: of bytes the last one counts, messages are merged.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from google.protobuf.message import DecodeError
from menura.v1.changes_pb2 import ChangeBatch
from menura.v1.snapshot_pb2 import SnapshotBatch
from menura.v1.stream_pb2 import StreamResponse
from menura.weight import TooManyFields, check_weight
from menura.wire_fields import fields
from menura.wire_format import length_delimited

from gateway.errors import BatchTooLarge, PayloadInvalid
from gateway.memory import LARGE_FRAME_BYTES, LARGE_ROWS_BYTES

#: below, a copy costs less than the search
CUT_FROM_BYTES = 1 << 20
#: what travels in one gRPC message can't become much
WEIGHED_FROM_BYTES = 256 << 10
#: of frames, beside what compression may add to what is not compressible
MAX_OVERHEAD_BYTES = 64 << 10
#: of a message without its frames
MAX_REST_BYTES = 16 << 20
#: of a message, and of its batch: each has a dozen
MAX_FIELDS = 64

#: by the number of a batch in StreamResponse: which of its fields are frames
_FRAMES_OF = {
    StreamResponse.CHANGE_BATCH_FIELD_NUMBER: {
        ChangeBatch.ROWS_FIELD_NUMBER: "rows",
        ChangeBatch.TRANSACTIONS_FIELD_NUMBER: "transactions",
    },
    StreamResponse.SNAPSHOT_BATCH_FIELD_NUMBER: {SnapshotBatch.ROWS_FIELD_NUMBER: "rows"},
}

Frame = bytes | memoryview
_HEADER = StreamResponse.HEADER_FIELD_NUMBER


@dataclass(slots=True)
class Frames:
    """A batch's compressed frames. Whoever decompresses one takes it, and it is gone from here."""

    rows: Frame
    transactions: Frame
    #: of both before compression, as the agent announces it
    announced_bytes: int
    #: of both as they travelled, taken or not
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.size_bytes = len(self.rows) + len(self.transactions)

    @property
    def credit_bytes(self) -> int:
        """What they cost of credit: as much as they will take here."""
        return self.announced_bytes

    def check_size(self) -> None:
        """Raises `BatchTooLarge` for frames that are larger than no compression at all would make them."""
        if self.size_bytes > self.announced_bytes + self.announced_bytes // 64 + MAX_OVERHEAD_BYTES:
            raise BatchTooLarge(
                "reading a batch", f"frames of {self.size_bytes} bytes, which announce {self.announced_bytes}"
            )

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
    #: of it, as it travelled
    wire_bytes: int


def frames_of(batch: ChangeBatch | SnapshotBatch, found: Mapping[str, Frame] | None = None) -> Frames:
    """`found`: the frames by name, where the batch was parsed without them."""
    if isinstance(batch, SnapshotBatch):
        return Frames(batch.rows if found is None else found.get("rows", b""), b"", batch.rows_bytes)
    rows, transactions = (
        (batch.rows, batch.transactions) if found is None else (found.get("rows", b""), found.get("transactions", b""))
    )
    return Frames(rows, transactions, batch.rows_bytes + batch.transactions_bytes)


def payload_number(data: bytes | bytearray) -> int:
    """Of a message that is not parsed yet: the field that follows its header; 0 where that is unclear."""
    try:
        return next((number for number, _, _ in islice(fields(memoryview(data)), 2) if number != _HEADER), 0)
    except ValueError:
        return 0


def read_message(data: bytes | bytearray) -> Received:
    """Raises `PayloadInvalid`, whatever the bytes are."""
    try:
        if len(data) < CUT_FROM_BYTES:
            if len(data) > WEIGHED_FROM_BYTES:
                check_weight(memoryview(data), StreamResponse)
            return _received(StreamResponse.FromString(bytes(data)), None, len(data))
        found: dict[str, Frame] = {}
        rest = _without_frames(memoryview(data), found)
        if len(rest) > MAX_REST_BYTES:
            raise PayloadInvalid("reading a message", f"more than {MAX_REST_BYTES} bytes beside its rows")
        check_weight(memoryview(rest), StreamResponse)
        return _received(StreamResponse.FromString(rest), found, len(data))
    except TooManyFields as large:
        raise PayloadInvalid("reading a message", str(large)) from large
    except (DecodeError, ValueError) as broken:
        raise PayloadInvalid(
            "reading a message",
            "bytes that are no message of menura.v1",
            remedy="Upgrade the agent and the gateway to one version",
        ) from broken


def _received(message: StreamResponse, found: Mapping[str, Frame] | None, wire_bytes: int) -> Received:
    match message.WhichOneof("payload"):
        case "change_batch":
            return Received(message, frames_of(message.change_batch, found), wire_bytes)
        case "snapshot_batch":
            return Received(message, frames_of(message.snapshot_batch, found), wire_bytes)
    return Received(message, Frames(b"", b"", 0), wire_bytes)


def _without_frames(data: memoryview, found: dict[str, Frame]) -> bytes:
    """The message as it would be without them."""
    rest: list[Frame] = []
    for number, whole, value in _few(data):
        frames = _FRAMES_OF.get(number)
        if frames is None or value is None:
            rest.append(whole)
            continue
        kept: list[Frame] = []
        for inner_number, inner_whole, inner_value in _few(value):
            if inner_number in frames and inner_value is not None:
                found[frames[inner_number]] = inner_value
            else:
                kept.append(inner_whole)
        batch = b"".join(kept)
        rest += [length_delimited(number, len(batch)), batch]
    return b"".join(rest)


def _few(data: memoryview) -> Iterator[tuple[int, memoryview, memoryview | None]]:
    """The fields of what has few; ValueError for one more."""
    for count, field_ in enumerate(fields(data)):
        if count >= MAX_FIELDS:
            raise ValueError("too many fields")
        yield field_
