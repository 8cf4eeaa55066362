"""Frames of either format: what is not exactly what was announced is refused, and takes no more memory than that."""

import random
import tracemalloc
from collections.abc import Callable

import lz4.frame
import pyarrow as pa
import pytest
from menura.change_batch import Compression

from agent.columnar.compression import compress, compress_in_pieces
from gateway.errors import BatchInvalid
from gateway.wire.compressed_frame import decompressed

DATA = random.Random(3).randbytes(3000) + bytes(100_000) + b"the end"
MIB = 1 << 20
SKIPPED = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"skip"

Change = Callable[[bytes], bytes]
DAMAGES: dict[str, Change] = {
    "cut off": lambda frame: frame[:-5],
    "cut off within its head": lambda frame: frame[:6],
    "its first bytes alone": lambda frame: frame[:4],
    "empty": lambda frame: b"",
    "with bytes behind it": lambda frame: frame + b"x",
    "twice": lambda frame: frame * 2,
    "behind one that is to be skipped": lambda frame: SKIPPED + frame,
}


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("data", [DATA, b"x", b""])
def test_frame_when_it_is_as_announced_then_is_what_was_compressed(data: bytes, compression: Compression) -> None:
    whole, pieces = compress(data, compression), compress_in_pieces(data, compression, 1000)
    for frame in (whole, memoryview(whole), b"".join(pieces)):
        assert decompressed(frame, len(data)).to_pybytes() == data


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("other", [-len(DATA), -1, 1, MIB])
def test_frame_when_another_size_was_announced_then_is_refused(other: int, compression: Compression) -> None:
    with pytest.raises((BatchInvalid, OSError)):
        decompressed(compress(DATA, compression), len(DATA) + other)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("size", [len(DATA), 2 * len(DATA)])
def test_frame_of_lz4_when_it_is_not_one_whole_frame_then_is_refused(size: int, damage: str) -> None:
    with pytest.raises((BatchInvalid, OSError)):
        decompressed(DAMAGES[damage](compress(DATA, Compression.LZ4)), size)


def test_frame_of_lz4_when_its_bytes_are_damaged_at_random_then_is_as_long_as_announced_or_refused() -> None:
    chance, refused = random.Random(5), 0
    frame = compress(DATA, Compression.LZ4)
    for _ in range(3000):
        damaged = bytearray(frame)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(frame))] = chance.randrange(256)
        try:
            assert len(decompressed(bytes(damaged), len(DATA))) == len(DATA)
        except (BatchInvalid, OSError):
            refused += 1
    assert refused > 100


def test_frame_of_lz4_when_it_would_become_a_gibibyte_then_takes_what_was_announced_beside_it() -> None:
    writer = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB)
    zeros = bytes(16 * MIB)
    bomb = b"".join([writer.begin(), *(writer.compress(zeros) for _ in range(64)), writer.flush()])
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(BatchInvalid):
            decompressed(bomb, MIB)
        assert tracemalloc.get_traced_memory()[1] < 2 * MIB + len(bomb)
    finally:
        tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 4 * MIB
