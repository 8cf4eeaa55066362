"""A stream as it travels: what was split is joined, byte for byte, for every width and number of rows."""

import random
from decimal import Decimal

import pyarrow as pa
import pytest
from menura.byte_stream_split import join

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
