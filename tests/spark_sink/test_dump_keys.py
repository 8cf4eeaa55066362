"""Dumps by every type of key, alone and in composites, of no, one, two and many rows, also with one distinct value."""

import itertools
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from spark_sink.reading import current_state
from tests.spark_sink.landing import Chunk, Event, Table, Values, Writer, apply_entries, delete, table_id, update
from tests.spark_sink.test_key_bounds import KEYS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: as they land: the type that the lake gives a column, and values at its edges
TYPES: dict[str, tuple[pa.DataType, Sequence[object]]] = {
    **KEYS,
    "tinyint": (pa.int8(), [-128, 0, 127]),
    "smallint unsigned": (pa.uint16(), [0, 1, 2**16 - 1]),
    "bigint unsigned, bit": (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    "year": (pa.int16(), [0, 1901, 2155]),
    "time": (pa.int64(), [-3_020_399_999_999, -1, 0, 3_020_399_999_999]),
    "float": (pa.float32(), [-1.5, 0.0, 2.0**100]),
    "double": (pa.float64(), [-1.7976931348623157e308, 0.0, 5e-324, 0.1]),
    "decimal(65,30), enum, set, uuid, inet6": (pa.string(), ["-1." + "0" * 30, "1.5", "9" * 35]),
}
#: text of dates that no calendar has; their columns hold null
ZERO_DATES = ["0000-00-00", "2024-00-10", "2024-02-31"]
COUNTS = {"none": 0, "one": 1, "two": 2, "many": 60}
COMPOSITES = 40


def keys_of(types: Sequence[str], count: int, has_one_value: bool, random_: random.Random) -> list[tuple[object, ...]]:
    """Distinct keys; with `has_one_value` all columns but the last have one value."""
    pools = [list(TYPES[type_][1]) for type_ in types]
    if has_one_value:
        pools[:-1] = [[random_.choice(pool)] for pool in pools[:-1]]
    every = list(itertools.islice(itertools.product(*pools), 5_000))
    return random_.sample(every, min(count, len(every)))


def table_of(types: Sequence[str]) -> Table:
    names = [f"k{place}" for place in range(len(types))]
    columns = {name: TYPES[type_][0] for name, type_ in zip(names, types, strict=True)}
    return Table("t", {**columns, "n": pa.int32()}, key=names)


def as_row(table: Table, key: Sequence[object], number: int) -> Values:
    return {**dict(zip(table.key, map(_value, table.columns.values(), key), strict=False)), "n": number}


def _value(type_: pa.DataType, value: object) -> object:
    if not pa.types.is_timestamp(type_):
        return value
    assert isinstance(value, int)
    at = EPOCH + timedelta(microseconds=value)
    return at if type_.tz else at.replace(tzinfo=None)


def held(lake: Path, table: Table) -> list[str]:
    rows = current_state(str(lake), table_id(table)).to_pylist()
    return sorted(repr([row[name] for name in (*table.columns, "_unrepresentable")]) for row in rows)


def expected(table: Table, rows: Sequence[Values]) -> list[str]:
    typed = pa.Table.from_pylist([dict(row) for row in rows], schema=pa.schema([*table.columns.items()]))
    wide = {name: column.cast(pa.decimal128(20, 0)) if column.type == pa.uint64() else column
            for name, column in zip(typed.column_names, typed.columns, strict=True)}  # fmt: skip
    texts = [row.get("_unrepresentable") for row in rows]
    listed = pa.table(wide).to_pylist()
    return sorted(repr([*row.values(), text]) for row, text in zip(listed, texts, strict=True))


def check_dumps(writer: Writer, lake: Path, table: Table, rows: Sequence[Values], random_: random.Random) -> None:
    """The first dump into an empty lake, changes beside the second, a third that finds less than there is."""

    def dump(number: int, found: Sequence[Values], *between: list[tuple[str, Values]]) -> None:
        name, first = f"dump-{number}", writer.entry + 1
        writer.cut(Event(table, "DUMP_STARTED", dump=name))
        floor = writer.last_gsns["acme", "shop"]
        if between:
            writer.cut((table, list(between)))
        middle = random_.randrange(len(found) + 1)
        for part in (found[:middle], found[middle:]):
            writer.cut(Chunk(table, part, floor, dump=name))
        writer.cut(Event(table, "DUMPED", dump=name, removes_rows_before_gsn=floor))
        for outcome in apply_entries(writer.folder, lake, first=first):
            assert outcome.message == ""

    dump(1, rows)
    if not rows:
        assert not Path(table_id(table).folder(str(lake))).exists()
        return
    assert held(lake, table) == expected(table, rows)
    changed = {**rows[0], "n": 1000}
    gone = rows[-1] if len(rows) > 1 else None
    changes = [update(rows[0], changed), *([delete(**gone)] if gone is not None else [])]
    left = [changed, *(row for row in rows[1:] if row is not gone)]
    dump(2, rows, *changes)
    assert held(lake, table) == expected(table, left)
    dump(3, left[:1])
    assert held(lake, table) == expected(table, left[:1])


@pytest.mark.long
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("type_", TYPES)
def test_a_dump_when_its_key_has_this_type_and_so_many_rows_then_the_lake_has_them(
    writer: Writer, lake: Path, type_: str, count: str
) -> None:
    random_ = random.Random(f"{type_} {count}")
    table = table_of([type_])
    keys = keys_of([type_], COUNTS[count], False, random_)
    check_dumps(writer, lake, table, [as_row(table, key, n) for n, key in enumerate(keys)], random_)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(COMPOSITES))
def test_a_dump_when_its_key_has_several_columns_then_the_lake_has_its_rows(
    writer: Writer, lake: Path, seed: int
) -> None:
    random_ = random.Random(seed)
    types = random_.sample(list(TYPES), random_.randint(2, 4))
    table = table_of(types)
    keys = keys_of(types, random_.choice([*COUNTS.values()][1:]), random_.random() < 0.6, random_)
    check_dumps(writer, lake, table, [as_row(table, key, n) for n, key in enumerate(keys)], random_)


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("others", [[], ["date"], ["int"], ["text", "timestamp"]])
@pytest.mark.parametrize("type_", ["date", "datetime", "timestamp"])
def test_a_dump_when_its_keys_are_dates_of_no_calendar_then_the_lake_tells_them_apart(
    writer: Writer, lake: Path, type_: str, others: list[str], count: int
) -> None:
    random_ = random.Random(0)
    table = table_of([type_, *others])
    rest = [TYPES[other][1][0] for other in others]
    rows = [
        {**as_row(table, [TYPES[type_][1][0], *rest], number), "k0": None, "_unrepresentable": json.dumps({"k0": text})}
        for number, text in enumerate(ZERO_DATES[:count])
    ]
    rows.append(as_row(table, [TYPES[type_][1][-1], *rest], count))
    check_dumps(writer, lake, table, rows, random_)
