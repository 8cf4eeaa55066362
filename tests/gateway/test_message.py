"""A message's bytes with the frames beside it: as protobuf reads them, and refused where they are broken."""

import random

import pytest
from menura.v1.changes_pb2 import ChangeBatch, CutEnd
from menura.v1.snapshot_pb2 import SnapshotBatch
from menura.v1.stream_pb2 import Header, StreamResponse

from gateway.errors import PayloadInvalid
from gateway.wire.message import CUT_FROM_BYTES, MAX_FIELDS, MAX_REST_BYTES, read_message

HEADER = Header(tenant="acme", sequence=7, session="s")
ROWS, TRANSACTIONS = random.Random(1).randbytes(CUT_FROM_BYTES), b"transactions"
#: of a field that menura.v1 does not have: number 100, three bytes
UNKNOWN = b"\xa2\x06\x03abc"


def large() -> StreamResponse:
    batch = ChangeBatch(cut=3, rows=ROWS, transactions=TRANSACTIONS, rows_bytes=5, transactions_bytes=6, last_gsn=-1)
    batch.table.table = "orders"
    return StreamResponse(header=HEADER, change_batch=batch)


@pytest.mark.parametrize("rows", [b"rows", ROWS])
def test_a_change_batch_when_it_is_read_then_has_its_frames_beside_it(rows: bytes) -> None:
    whole = large()
    whole.change_batch.rows = rows
    received = read_message(whole.SerializeToString())
    frames = received.frames
    assert (frames.size_bytes, frames.announced_bytes) == (len(rows) + len(TRANSACTIONS), 11)
    assert bytes(frames.take_rows()) == rows
    assert bytes(frames.take_transactions()) == TRANSACTIONS
    assert (len(frames.take_rows()), frames.size_bytes) == (0, len(rows) + len(TRANSACTIONS))
    for message in (whole, received.message):
        message.change_batch.ClearField("rows")
        message.change_batch.ClearField("transactions")
    assert received.message == whole


def test_rows_of_a_dump_when_they_are_read_then_are_beside_their_message() -> None:
    batch = SnapshotBatch(dump="d", chunk=1, rows=ROWS, rows_bytes=9, row_count=2)
    received = read_message(StreamResponse(header=HEADER, snapshot_batch=batch).SerializeToString())
    assert bytes(received.frames.take_rows()) == ROWS
    assert received.frames.announced_bytes == 9
    batch.ClearField("rows")
    assert received.message == StreamResponse(header=HEADER, snapshot_batch=batch)


def test_a_batch_when_its_rows_stand_behind_it_then_are_its_own() -> None:
    """As an agent sends them: the batch once more with the rows alone, which a parser merges."""
    whole = large()
    behind = StreamResponse(change_batch=ChangeBatch(rows=ROWS)).SerializeToString()
    whole.change_batch.rows = b"others"
    received = read_message(whole.SerializeToString() + behind + UNKNOWN)
    assert bytes(received.frames.take_rows()) == ROWS
    assert bytes(received.frames.take_transactions()) == TRANSACTIONS
    assert (received.message.change_batch.cut, received.message.header) == (3, HEADER)


def test_a_large_message_when_it_is_no_batch_then_is_read_whole() -> None:
    end = StreamResponse(header=HEADER, cut_end=CutEnd(cut=3))
    end.cut_end.position.text = "g" * CUT_FROM_BYTES
    received = read_message(end.SerializeToString())
    assert received.message == end
    assert received.frames.size_bytes == 0


def test_a_large_message_when_its_bytes_are_damaged_then_is_read_as_protobuf_does_or_refused() -> None:
    chance, whole = random.Random(2), large().SerializeToString()
    first = whole.index(ROWS)
    structure = [*range(first), *range(first + len(ROWS), len(whole))]
    refused = 0
    for _ in range(2000):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.choice(structure)] = chance.choice((0, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        if chance.random() < 0.2:
            del damaged[chance.choice(structure) :]
        try:
            received = read_message(bytes(damaged))
        except PayloadInvalid:
            refused += 1
            continue
        expected = StreamResponse.FromString(bytes(damaged))
        assert received.message.header == expected.header
        if expected.WhichOneof("payload") == "change_batch":
            assert bytes(received.frames.take_rows()) == expected.change_batch.rows
            assert received.message.change_batch.cut == expected.change_batch.cut
    assert 200 < refused < 2000


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(UNKNOWN * MAX_FIELDS + ROWS, id="many fields"),
        pytest.param(large().SerializeToString()[:-20], id="a field beyond the end"),
        pytest.param(b"\xff" * CUT_FROM_BYTES, id="a number that does not end"),
        pytest.param(b"\x0b" * CUT_FROM_BYTES, id="a group"),
        pytest.param(b"\x80" + large().SerializeToString(), id="another number"),
        pytest.param(
            StreamResponse(change_batch=ChangeBatch(schema_id="s" * (MAX_REST_BYTES + 1))).SerializeToString(),
            id="much beside the rows",
        ),
        pytest.param(b"\xff\xff", id="a small one"),
    ],
)
def test_a_message_when_protobuf_could_not_have_made_it_then_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadInvalid):
        read_message(data)
