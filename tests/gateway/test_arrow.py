"""A stream as it travels: what was split is joined, byte for byte, for every width and number of rows."""

import random
from decimal import Decimal

import pyarrow as pa
import pytest
from menura.byte_stream_split import join, join_texts
from menura.change_batch import METADATA_SPLIT_TEXTS

from gateway.wire.arrow import read_stream
from tests.gateway.scripted_agent import frame

TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.decimal128(38, 2)),
    pa.bool_(),
]


def _values(type_: pa.DataType, rows: int, chance: random.Random) -> pa.Array:
    numbers = [chance.randrange(128) for _ in range(rows)]
    values: list[object] = list(numbers)
    if pa.types.is_decimal(type_):
        values = [Decimal(chance.randrange(-(10**37), 10**37)).scaleb(-2) for _ in numbers]
    elif pa.types.is_string(type_) or pa.types.is_binary(type_):
        values = ["x" * number for number in numbers]
    elif pa.types.is_boolean(type_):
        values = [number % 2 == 0 for number in numbers]
    return pa.array([None if number < 20 else value for number, value in zip(numbers, values, strict=True)], type_)


@pytest.mark.parametrize("rows", [1, 8, 15, 16, 17, 64, 1001])
def test_a_split_stream_when_it_is_read_has_the_values_that_were_split(rows: int) -> None:
    chance = random.Random(rows)
    batch = pa.record_batch({str(type_): _values(type_, rows, chance) for type_ in TYPES})

    read = read_stream(*frame(batch, is_split=True), lambda schema: None)

    assert read.equals(batch)


@pytest.mark.parametrize(("split_bytes", "bytes_", "width"), [(8, 7, 4), (6, 6, 4), (9, 9, 3), (8, 8, 1), (8, 8, 0)])
def test_bytes_that_are_no_whole_values_when_they_are_joined_are_refused(
    split_bytes: int, bytes_: int, width: int
) -> None:
    with pytest.raises(ValueError, match="not whole values"):
        join(bytes(split_bytes), bytearray(bytes_), width)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 1001])
@pytest.mark.parametrize("width", [*range(1, 19), 31, 32, 33, 255])
def test_texts_of_one_length_when_they_are_joined_are_those_that_were_split(width: int, rows: int) -> None:
    texts = random.Random(width).randbytes(width * rows)
    offsets = pa.array(range(0, width * (rows + 1), width), pa.int32()).buffers()[1]
    split = b"".join(texts[byte::width] for byte in range(width))
    whole = bytearray(width * rows)

    join_texts(offsets, split, whole)

    assert whole == texts


@pytest.mark.parametrize(
    ("lengths", "names"),
    [
        ([3, 3, 4], "1"),  # several lengths
        ([0, 0, 0], "1"),  # no length
        ([], "1"),
        ([3, 3, 3], "0"),  # a column without texts
        ([3, 3, 3], "2"),
        ([3, 3, 3], "-1"),
        ([3, 3, 3], "1,,1"),
        ([3, 3, 3], "9" * 5000),
        ([3, 3, 3], "all"),
    ],
)
def test_texts_that_can_not_be_split_when_they_are_said_to_be_are_refused(lengths: list[int], names: str) -> None:
    batch = pa.record_batch(
        {"id": pa.array(lengths, pa.int64()), "t": pa.array(["x" * length for length in lengths], pa.string())}
    )
    batch = batch.replace_schema_metadata({METADATA_SPLIT_TEXTS: names})

    with pytest.raises(ValueError, match=r"split|shorter|invalid literal|Exceeds"):
        read_stream(*frame(batch, is_split=True), lambda schema: None)


@pytest.mark.parametrize(
    ("offsets", "split_bytes", "bytes_"),
    [
        ((0, 2, 4), 4, 5),
        ((0, 2, 4), 5, 5),
        ((2, 4, 6), 4, 4),
        ((0, 4, 0), 4, 4),
        ((0,), 0, 0),
        ((), 0, 0),
        ((4, 0), 4, 4),
    ],
)
def test_offsets_that_tell_no_one_length_when_texts_are_joined_are_refused(
    offsets: tuple[int, ...], split_bytes: int, bytes_: int
) -> None:
    told = b"".join(offset.to_bytes(4, "little") for offset in offsets)
    with pytest.raises(ValueError, match="not of one length"):
        join_texts(told, bytes(split_bytes), bytearray(bytes_))
