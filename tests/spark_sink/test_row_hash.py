"""The row hash, compared with Spark SQL's own `xxhash64` over the same rows in the lake's types."""

import math
import random
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from menura.row_hash import FIRST_SEED, SECOND_LITERAL, HashedRows
from pyspark.sql import SparkSession

from spark_sink.landed.lake_schema import lake_type

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROWS = 1500
WRAP = 1 << 64


def _integers(bits: int, *, signed: bool) -> Callable[[random.Random], int]:
    least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return lambda chance: chance.choice([least, most, 0, 1, least + most // 2, chance.randint(least, most)])


def _decimals(precision: int, scale: int) -> Callable[[random.Random], Decimal]:
    most = 10**precision - 1

    def value(chance: random.Random) -> Decimal:
        digits = chance.choice([0, 1, -1, 127, 128, -128, -129, 255, 256, most, -most, chance.randint(-most, most)])
        return Decimal(f"{max(-most, min(most, digits))}E-{scale}")  # exact, whatever the context

    return value


def _floats(chance: random.Random) -> float:
    other_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000123))[0]
    return chance.choice([0.0, -0.0, math.nan, other_nan, math.inf, -math.inf, 5e-324, chance.uniform(-1e9, 1e9)])


def _bytes(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice([0, 1, 3, 4, 7, 8, 15, 31, 32, 33, 63, 64, 65, 200]))


def _texts(chance: random.Random) -> str:
    return "".join(chance.choice("ab\0ü€𝄞 ") for _ in range(chance.choice([0, 1, 2, 5, 8, 30, 33, 70])))


def _moments(chance: random.Random) -> datetime:
    return EPOCH + timedelta(microseconds=chance.randint(-(10**16), 10**17))


VALUES: list[tuple[pa.DataType, Callable[[random.Random], object]]] = [
    *((pa.type_for_alias(f"int{bits}"), _integers(bits, signed=True)) for bits in (8, 16, 32, 64)),
    *((pa.type_for_alias(f"uint{bits}"), _integers(bits, signed=False)) for bits in (8, 16, 32, 64)),
    *((pa.decimal128(p, s), _decimals(p, s)) for p, s in ((1, 0), (10, 2), (18, 18), (19, 0), (20, 0), (38, 10))),
    (pa.float32(), _floats),
    (pa.float64(), _floats),
    (pa.string(), _texts),
    (pa.binary(), _bytes),
    (pa.date32(), lambda chance: date(1970, 1, 1) + timedelta(days=chance.randint(-700_000, 2_000_000))),
    (pa.timestamp("us"), _moments),
    (pa.timestamp("us", "UTC"), _moments),
    (pa.bool_(), lambda chance: chance.random() < 0.5),
]


def _rows(seed: int, types: Sequence[tuple[pa.DataType, Callable[[random.Random], object]]], nulls: float) -> pa.Table:
    chance = random.Random(seed)
    columns = {
        f"c{place}": pa.array([None if chance.random() < nulls else value(chance) for _ in range(ROWS)], type_)
        for place, (type_, value) in enumerate(types)
    }
    return pa.table(columns)


def _words(names: Sequence[str]) -> list[str]:
    words = []
    for begin in range(0, len(names), 64):
        behind = names[begin:]
        bits = " + ".join(
            f"shiftleft(cast({name} IS NOT NULL AS bigint), {bit})" for bit, name in enumerate(behind[:64])
        )
        words.append(f"if(coalesce({', '.join(f'cast({name} AS string)' for name in behind)}) IS NULL, NULL, {bits})")
    return words


def _spark_hashes(session: SparkSession, rows: pa.Table, folder: Path) -> list[tuple[int, int]]:
    wanted = pa.schema([(field.name, lake_type(field.type)) for field in rows.schema])
    path = folder / "rows.parquet"
    pq.write_table(rows.cast(wanted).append_column("place", pa.array(range(rows.num_rows))), path)
    hashed = ", ".join([*_words(rows.column_names), *rows.column_names])
    frame = session.read.parquet(str(path)).orderBy("place")
    found = frame.selectExpr(f"xxhash64({hashed})", f"xxhash64({SECOND_LITERAL}L, {hashed})").collect()
    return [(row[0], row[1]) for row in found]


def _our_hashes(rows: pa.Table) -> list[tuple[int, int]]:
    first, second = HashedRows(rows.combine_chunks().to_batches()[0]).hashes()
    return list(zip(memoryview(first).cast("q"), memoryview(second).cast("q"), strict=True))


@pytest.mark.spark
def test_row_hash_of_every_type_when_compared_with_spark_then_is_equal_row_for_row(
    session: SparkSession, tmp_path: Path
) -> None:
    assert FIRST_SEED == 42  # Spark's own
    every = _rows(1, VALUES, 0.15)
    wide = _rows(2, [VALUES[place % len(VALUES)] for place in range(140)], 0.995)  # three words, mostly NULL
    alone = {name: every.select([name]) for name in every.column_names}

    for name, rows in {**alone, "all": every, "wide": wide}.items():
        assert _our_hashes(rows) == _spark_hashes(session, rows, tmp_path), name


def test_row_hash_when_values_change_places_or_become_null_then_is_another_one() -> None:
    number = pa.array([5, None], pa.int32()), pa.array([None, 5], pa.int32())
    text = pa.array(["", None])
    hashed = _our_hashes(pa.table({"a": number[0], "b": number[1], "c": text}))
    other = _our_hashes(pa.table({"a": number[1], "b": number[0], "c": text}))
    assert len({*hashed, *other}) == 4

    emptied = _our_hashes(pa.table({"c": pa.array(["", None])}))
    assert emptied[0] != emptied[1]


def test_row_hash_when_a_column_without_any_value_is_added_then_is_the_same() -> None:
    rows = _rows(3, VALUES * 3, 0.2)
    assert _our_hashes(rows.append_column("new", pa.nulls(ROWS, pa.string()))) == _our_hashes(rows)


def test_row_hash_when_rows_are_a_slice_then_is_that_of_the_same_rows() -> None:
    rows = _rows(4, VALUES, 0.2)
    batch = rows.combine_chunks().to_batches()[0].slice(13, 700)
    first, second = HashedRows(batch).hashes()
    found = list(zip(memoryview(first).cast("q"), memoryview(second).cast("q"), strict=True))
    assert found == _our_hashes(rows)[13:713]


def test_sums_when_rows_are_in_any_order_and_leaf_then_are_the_sums_of_their_hashes() -> None:
    rows = _rows(5, VALUES, 0.2)
    hashes = _our_hashes(rows)
    hashed = HashedRows(rows.combine_chunks().to_batches()[0])
    chance = random.Random(5)
    leaves = [chance.randrange(3) for _ in hashes]

    def summed(of: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
        halves = [(sum(pair[half] for pair in of) + WRAP // 2) % WRAP - WRAP // 2 for half in (0, 1)]
        return len(of), halves[0], halves[1]

    expected = [summed([pair for pair, leaf in zip(hashes, leaves, strict=True) if leaf == each]) for each in range(3)]
    assert hashed.sums_of(pa.array(leaves, pa.int32()).buffers()[1].slice(0, 4 * ROWS), 3) == expected
    assert hashed.sums() == summed(hashes)
    assert hashed.sums(700, 701) == summed(hashes[700:701])


def test_buckets_when_rows_are_put_into_them_then_are_the_lowest_bits_of_their_keys_hashes() -> None:
    hashed = HashedRows(_rows(6, VALUES, 0.2).combine_chunks().to_batches()[0])
    hashes = memoryview(hashed.key_hashes([0, 3])).cast("q")
    for bits in (0, 1, 12, 30):
        expected = [each & ((1 << bits) - 1) for each in hashes]
        assert memoryview(hashed.key_buckets([0, 3], bits)).cast("i").tolist() == expected
    with pytest.raises(ValueError, match="31 bits"):
        hashed.key_buckets([0], 31)


def test_row_hash_when_it_can_not_be_told_then_is_refused() -> None:
    with pytest.raises(ValueError, match="Arrow format"):
        HashedRows(pa.record_batch({"a": pa.array([[1]])}))
    hashed = HashedRows(pa.record_batch({"a": pa.array([1, 2])}))
    for leaves, count in ((bytes(4), 1), (bytes(8), 0)):
        with pytest.raises(ValueError, match="leaf"):
            hashed.sums_of(leaves, count)
    with pytest.raises(ValueError, match="not there"):
        hashed.sums(0, 3)
