"""Ranges of keys of every kind in a real server: the order of its indexes is that of the values that are told."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from menura.key_values import Key

from tests.agent.dumping import wait_dumped
from tests.agent.gateway_double import GatewayDouble
from tests.agent.key_ranges import check_ranges
from tests.agent.postgresql.dumping import create, gateway
from tests.agent.postgresql.sources import SOURCE
from tests.agent.postgresql.streaming import run, streaming
from tests.postgres import SourceServer
from tests.spark_sink.landing import key_value

__all__ = ["gateway"]

ORDERS = "public", "orders"
ROWS = 1500
Random = random.Random
Literal = Callable[[Random], str]


def _bytes(chance: Random, sizes: tuple[int, ...]) -> str:
    return r"'\x" + "".join(chance.choice(("00", "01", "7f", "80", "ff")) for _ in range(chance.choice(sizes))) + "'"


def _text(chance: Random) -> str:
    return "'" + "".join(chance.choice("\x01 aAbz~é\U0001f600\uffee") for _ in range(chance.choice((0, 2, 3, 4)))) + "'"


KEYS: dict[str, tuple[dict[str, tuple[str, Literal]], tuple[str, ...]]] = {
    "date": (
        {"d": ("date", lambda chance: f"'{chance.randrange(1, 9999):04}-{chance.randrange(1, 13)}-7'")},
        ("date",),
    ),
    "timestamp": (
        {"t": ("timestamp", lambda chance: f"'2024-02-29 23:59:{chance.randrange(60)}.{chance.randrange(10**6):06}'")},
        ("datetime",),
    ),
    "timestamptz": (
        {"t": ("timestamptz", lambda chance: f"'2024-02-29 23:{chance.randrange(60)}:01.{chance.randrange(100)}+03'")},
        ("instant",),
    ),
    "numeric": (
        {"p": ("numeric(12,3)", lambda chance: f"{chance.randrange(-(10**6), 10**6) / 1000}")},
        ("decimal(3)",),
    ),
    "uuid": ({"u": ("uuid", lambda chance: f"'{chance.getrandbits(128):032x}'")}, ("text",)),
    "bytea": ({"b": ("bytea", lambda chance: _bytes(chance, (0, 4, 5, 6, 20)))}, ("binary",)),
    "text": ({"s": ('text COLLATE "C"', _text)}, ("text",)),
    "day and name": (
        {
            "d": ("date", lambda chance: f"'2024-{chance.randrange(1, 13)}-{chance.randrange(1, 29)}'"),
            "s": ('text COLLATE "en-x-icu"', lambda chance: f"'{chance.randrange(10**9)}'"),
        },
        ("date",),
    ),
    "one day": (
        {
            "d": ("date", lambda chance: f"'2024-01-{chance.choice((1, 2, 2, 2, 2, 3, 4, 5, 6, 7))}'"),
            "t": ("time", lambda chance: f"'{chance.randrange(24)}:{chance.randrange(60)}:{chance.randrange(60)}'"),
        },
        ("date",),
    ),
    "uuid and number": (
        {
            "u": ("uuid", lambda chance: f"'{chance.randrange(400):032x}'"),
            "n": ("int", lambda chance: str(chance.randrange(-5, 900))),
        },
        ("text", "integer"),
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_table_when_its_key_is_of_a_kind_then_leaves_and_repairs_are_ranges_in_the_order_of_its_index(
    name: str, postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    columns, kinds = KEYS[name]
    chance = random.Random(name)
    made = {tuple(literal(chance) for _, literal in columns.values()) for _ in range(ROWS)}
    definition = ", ".join(f"{column} {type_}" for column, (type_, _) in columns.items())
    create(postgres, rows=0, table="others")
    values = ", ".join(f"({', '.join(row)}, 'first')" for row in sorted(made))
    run(
        postgres,
        f"CREATE TABLE orders ({definition}, note text, PRIMARY KEY ({', '.join(columns)}))",
        f"INSERT INTO orders VALUES {values} ON CONFLICT DO NOTHING",
        "ANALYZE orders",
    )
    shown = ", ".join(
        f"{column}::text" if kind == "text" else column for column, kind in zip(columns, kinds, strict=False)
    )
    keys: list[Key] = [
        tuple(key_value(kind, value) for kind, value in zip(kinds, row, strict=True))
        for row in run(postgres, "SET timezone = 'UTC'", f"SELECT {shown} FROM orders")
    ]
    gateway.sync(SOURCE, ORDERS, now=True)
    with streaming(tmp_path, gateway, postgres):
        check_ranges(gateway, SOURCE, ORDERS, kinds, keys, len(columns))
    source = gateway.source(SOURCE)
    assert name != "day and name" or len({chunk.end.range for chunk in source.ledger.chunks}) > 1


@pytest.mark.parametrize("value", ["infinity", "-infinity", "0044-03-15 BC"])
def test_table_when_a_date_of_its_key_is_none_of_the_lakes_then_the_next_verification_reads_it_in_one_snapshot(
    value: str, postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres, rows=0, table="others")
    run(
        postgres,
        "CREATE TABLE orders (d date PRIMARY KEY)",
        f"INSERT INTO orders SELECT date '2000-01-01' + n FROM generate_series(1, 99) AS n UNION SELECT '{value}'",
    )
    gateway.sync(SOURCE, ORDERS, now=True)
    with streaming(tmp_path, gateway, postgres):
        first = gateway.dump(SOURCE, "first", ORDERS, verifies=True)
        gateway.wait(lambda: first.failed is not None)
        assert first.failed is not None and first.failed.code == "VERIFICATION_IMPOSSIBLE"
        second = gateway.dump(SOURCE, "second", ORDERS, verifies=True)
        wait_dumped(gateway, second)
    assert second.plan is not None and list(second.plan.key) == ["*", "d"]
