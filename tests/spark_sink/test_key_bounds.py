"""Keys at the edges of their types: bounds skip what holds none of them, and never a row that is one of them."""

import random
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_sink.lake.current_rows import merge_effect
from spark_sink.lake.delta_table import Layout, append, create_table, scan, schema_of
from spark_sink.lake.key_bounds import key_bounds
from spark_sink.lake.net_effect import DELETED

#: microseconds: from the year 1 to 9999, around the epoch, and within a millisecond
TIMES = [-(62135596800 * 10**6), -12212539138000001, -501, -500, -1, 0, 1]
TIMES += [1709208000 * 10**6 + us for us in (499, 500, 999, 1000)] + [253402300800 * 10**6 - 1]
NINES = "9" * 28 + "." + "9" * 10
KEYS = {
    "int": (pa.int64(), [-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1]),
    "unsigned": (pa.decimal128(20, 0), [Decimal(n) for n in (0, 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)]),
    "decimal": (pa.decimal128(38, 10), [Decimal("-" + NINES), Decimal("-1E-10"), Decimal(0), Decimal(NINES)]),
    "date": (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)]),
    "datetime": (pa.timestamp("us"), TIMES),
    "timestamp": (pa.timestamp("us", "UTC"), TIMES),
    "text": (pa.string(), ["", "\0", "A", "a" * 64, "a" * 65, "it's \\", "é" * 40, "\ue000", "\U0010ffff" * 40]),
    "boolean": (pa.bool_(), [False, True]),
    "binary": (pa.binary(), [b"", b"\0", b"\x7f", b"\x80", b"a" * 64, b"a" * 65, b"\xff" * 64, b"\xff" * 80]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_at_their_types_edges_when_looked_up_within_bounds_then_each_row_is_found_and_none_is_doubled(
    tmp_path: Path, kind: str
) -> None:
    type_, values = KEYS[kind]
    keys = pa.array(values, type_)
    table = create_table(str(tmp_path), pa.schema([("k", type_), ("n", pa.int64())]), Layout("", ("k", "n"), ("k",)))
    chosen = random.Random(kind)
    places = chosen.sample(range(len(keys)), len(keys))
    for at in range(0, len(places), 2):  # files of two keys each, far apart
        append(table, pa.table({"k": keys.take(places[at : at + 2]), "n": places[at : at + 2]}), [])
    for first in range(0, len(keys), 2):
        wanted = pa.table({"k": keys.slice(first, 1 + chosen.randrange(3))})
        within = key_bounds(wanted, ["k"]).condition({"k": schema_of(table).field("k")})
        assert within != "TRUE"
        found = pa.table(scan(table, f"SELECT * FROM t WHERE {within}").read_all())
        assert pc.all(pc.is_in(wanted["k"], found["k"].combine_chunks())).as_py()
        changed = pa.table({"k": wanted["k"], "n": [first] * len(wanted), DELETED: [False] * len(wanted)})
        merge_effect(table, changed, ["k"], [("test", first + 1)], key_bounds(changed, ["k"]))
    assert scan(table, "SELECT count(*) AS n FROM t").read_all()["n"].to_pylist() == [len(keys)]


def test_a_float_when_it_is_a_key_then_it_bounds_nothing() -> None:
    rows = pa.table({"id": pa.array([1, 1]), "x": pa.array([0.0, -0.0])})
    fields = {field.name: field for field in rows.schema}
    assert key_bounds(rows, ["x"]).condition(fields) == "TRUE"
    assert key_bounds(rows, ["id", "x"]).condition(fields) == '"id" BETWEEN 1 AND 1'
