"""A table of values that engines differ about, and random queries over it; seeds say which.

Numbers at the ends of their types and around zero, both zeros, NaN and infinities, texts that are alike, dates before
the first year and after the last one with four digits, and NULL of each type.
"""

import random
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
from menura.views.definition import Column, InputName, Shape

from spark_sink.landed.lake_schema import format_of

NAME = InputName("shop", "app", "odd")
ROWS = 32
_BEYOND, _NINES = float("inf"), "9" * 10 + "." + "9" * 10


def _decimals(*texts: str) -> list[object]:
    return list(map(Decimal, texts))


#: by column's name: its type, and what it may be beside NULL; dates are days and instants microseconds
VALUES: dict[str, tuple[pa.DataType, Sequence[object]]] = {
    "word": (pa.string(), ["", "a", "A", "ä", "ß", "e\u0301", "\U0001f600", "\uffff", "a ", "%", "_", "a\nb", "a\0b",
                           "2024-02-29", "2023-02-29", "0000-00-00", "12345-01-01", "NaN", "1", "-0", "q'\"\\"]),
    "other": (pa.string(), ["", "a", "A", "b", "ab", "a ", "\U0001f600", "ä"]),
    "born": (pa.date32(), [0, -1, -719162, -719163, -719528, -719529, -1_084_820, 2_932_896, 2_932_897, 19_782]),
    "died": (pa.date32(), [0, 59, 19_782, 19_783, -719_163, 2_932_896]),
    "at": (pa.timestamp("us"), [0, -1, 1, -62_135_596_800_000_000, -62_135_596_800_000_001, -62_198_755_200_000_000,
                                253_402_300_799_999_999, 253_402_300_800_000_000, 1_709_164_800_123_450]),
    "seen": (pa.timestamp("us", "UTC"), [0, -1, 1, -62_135_596_800_000_001, 253_402_300_800_000_000]),
    "small": (pa.int64(), [0, 1, -1, 2, 3, -5, 7, 100]),
    "few": (pa.int64(), [0, 1, 2, 3, -1]),
    "large": (pa.int64(), [0, 2**63 - 1, -(2**63), 2**53 + 1, 2**31, -(2**31) - 1, 1]),
    "real": (pa.float64(), [0.0, -0.0, 1.5, float("nan"), _BEYOND, -_BEYOND, 1e308, 5e-324, 0.1, 2.0**53]),
    "rough": (pa.float32(), [0.0, -0.0, 1.5, float("nan"), _BEYOND, -_BEYOND, 0.1]),
    "price": (pa.decimal128(10, 2), _decimals("0.00", "0.50", "-0.50", "99999999.99", "-99999999.99", "3.01")),
    "whole": (pa.decimal128(38, 0), _decimals("0", "9" * 38, "-" + "9" * 38, "1", "1234567890" * 3 + "12345678")),
    "part": (pa.decimal128(38, 38), _decimals("0." + "9" * 38, "-0." + "9" * 38, "0." + "0" * 37 + "1", "0.5")),
    "wide": (pa.decimal128(20, 10), _decimals(_NINES, "-" + _NINES, "0.0000000001", "2")),
    "yes": (pa.bool_(), [True, False]),
    "no": (pa.bool_(), [True, False]),
    "raw": (pa.binary(), [b"", b"a", b"\xff\x00", b"ab", b"A"]),
}  # fmt: skip


def odd_rows(seed: int, rows: int = ROWS) -> pa.Table:
    """Each value of a column at least once, in an order by the seed; `id` tells rows apart."""
    choose = random.Random(seed)
    columns: dict[str, pa.Array] = {"id": pa.array(range(rows), pa.int64())}
    for name, (type_, offered) in VALUES.items():
        held = [None, *offered, *choose.choices([None, *offered], k=rows - len(offered) - 1)]
        choose.shuffle(held)
        stored = {pa.date32(): pa.int32()}.get(type_, pa.int64() if pa.types.is_timestamp(type_) else type_)
        columns[name] = pa.array(held, stored).cast(type_)
    return pa.table(columns)


def shape_of(rows: pa.Table) -> Shape:
    return Shape(tuple(Column(field.name, format_of(field.type)) for field in rows.schema), ("id",))


def comparable(rows: pa.Table) -> list[tuple[object, ...]]:
    """In any order. Zero is one value, as it is for both engines; so is NaN."""
    columns = []
    for column in rows.columns:
        type_ = column.type
        stored = pa.int32() if pa.types.is_date32(type_) else pa.int64() if pa.types.is_timestamp(type_) else type_
        held = column.cast(stored).to_pylist()
        if pa.types.is_floating(type_):
            held = [None if value is None else repr(value + 0.0) for value in held]
        columns.append(held)
    return sorted(zip(*columns, strict=True), key=repr)
