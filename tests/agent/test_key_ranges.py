"""Ranges of keys of every kind, in real servers: the order of their indexes is that of the values that are told."""

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from menura.key_values import Key

from tests.agent.dumping import agent_inside, config, database, gateway, running, wait_dumped
from tests.agent.gateway_double import GatewayDouble
from tests.agent.key_ranges import check_ranges
from tests.servers import Server
from tests.spark_sink.landing import key_value

__all__ = ["database", "gateway", "running"]

ORDERS = "shop", "orders"
ROWS = 1500
Random = random.Random
#: MySQL's and MariaDB's names of the collation that compares bytes without padding
BINARY_COLLATION = {"mysql": "utf8mb4_0900_bin", "mariadb": "utf8mb4_nopad_bin"}
Literal = Callable[[Random], str]


def _hex(chance: Random, sizes: tuple[int, ...]) -> str:
    return "x'" + "".join(chance.choice(("00", "01", "7f", "80", "ff")) for _ in range(chance.choice(sizes))) + "'"


def _text(chance: Random) -> str:
    return (
        "'" + "".join(chance.choice("\x01 aAbz~é\U0001f600\uffee") for _ in range(chance.choice((0, 3, 4, 5, 6)))) + "'"
    )


#: columns of the key with what values they have, and the kinds by which its ranges go
KEYS: dict[str, tuple[dict[str, tuple[str, Literal]], tuple[str, ...]]] = {
    "date": (
        {"d": ("DATE", lambda chance: f"'{chance.randrange(1, 9999):04}-{chance.randrange(1, 13)}-7'")},
        ("date",),
    ),
    "datetime": (
        {
            "t": (
                "DATETIME(6)",
                lambda chance: f"'2024-02-29 23:59:{chance.randrange(60)}.{chance.randrange(10**6):06}'",
            )
        },
        ("datetime",),
    ),
    "timestamp": (
        {
            "t": (
                "TIMESTAMP",
                lambda chance: (
                    f"'20{chance.randrange(10, 37)}-03-{chance.randrange(1, 31)} {chance.randrange(24)}:00:01'"
                ),
            )
        },
        ("instant",),
    ),
    "decimal": (
        {"p": ("DECIMAL(12,3)", lambda chance: f"{chance.randrange(-(10**6), 10**6) / 1000}")},
        ("decimal(3)",),
    ),
    "large": ({"p": ("DECIMAL(38,0)", lambda chance: str(chance.randrange(-(10**37), 10**38)))}, ("decimal(0)",)),
    "unsigned": ({"n": ("BIGINT UNSIGNED", lambda chance: str(chance.randrange(2**64)))}, ("integer",)),
    "fixed": ({"b": ("BINARY(6)", lambda chance: _hex(chance, (4, 5, 6)))}, ("binary",)),
    "bytes": ({"b": ("VARBINARY(20)", lambda chance: _hex(chance, (0, 5, 6, 7, 20)))}, ("binary",)),
    "text": ({"s": ("VARCHAR(20) COLLATE {collation}", _text)}, ("text",)),
    "day and name": (
        {
            "d": ("DATE", lambda chance: f"'2024-{chance.randrange(1, 13)}-{chance.randrange(1, 29)}'"),
            "s": ("VARCHAR(20)", lambda chance: f"'{chance.randrange(10**9)}'"),
        },
        ("date",),
    ),
    "one day": (
        {
            "d": ("DATE", lambda chance: f"'2024-01-{chance.choice((1, 2, 2, 2, 2, 3, 4, 5, 6, 7))}'"),
            "s": ("VARCHAR(20)", lambda chance: f"'{chance.randrange(10**9)}'"),
        },
        ("date",),
    ),
    "bytes and number": (
        {
            "b": ("VARBINARY(4)", lambda chance: _hex(chance, (0, 1, 2, 3))),
            "n": ("INT", lambda chance: str(chance.randrange(-5, 900))),
        },
        ("binary", "integer"),
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_table_when_its_key_is_of_a_kind_then_leaves_and_repairs_are_ranges_in_the_order_of_its_index(
    name: str, database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    columns, kinds = KEYS[name]
    chance = random.Random(name)
    types = {
        column: type_.format(collation=BINARY_COLLATION[database.flavor]) for column, (type_, _) in columns.items()
    }
    made = {tuple(literal(chance) for _, literal in columns.values()) for _ in range(ROWS)}
    definition = ", ".join(f"{column} {type_} NOT NULL" for column, type_ in types.items())
    with closing(database.connect(database="shop")) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"CREATE TABLE orders ({definition}, note VARCHAR(9), PRIMARY KEY ({', '.join(types)}))")
        values = ", ".join(f"({', '.join(row)}, 'first')" for row in made)
        cursor.execute(f"INSERT IGNORE INTO orders VALUES {values}")
        cursor.execute("ANALYZE TABLE orders")
        cursor.fetchall()
        cursor.execute(f"SELECT {', '.join(list(types)[: len(kinds)])} FROM orders")
        keys: list[Key] = [
            tuple(key_value(kind, value) for kind, value in zip(kinds, row, strict=True)) for row in cursor.fetchall()
        ]
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway, database)):
        check_ranges(gateway, "shop", ORDERS, kinds, keys, len(columns))
    source = gateway.source("shop")
    assert name != "day and name" or len({chunk.end.range for chunk in source.ledger.chunks}) > 1


@pytest.mark.parametrize("type_", ["VARCHAR(20) COLLATE utf8mb4_bin", "CHAR(9)", "TIME", "ENUM('b', 'a')"])
def test_table_when_its_key_has_no_kind_then_it_is_read_in_one_snapshot(
    type_: str, database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    database.run(f"CREATE TABLE shop.orders (k {type_} NOT NULL PRIMARY KEY)")
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway, database)):
        verification = gateway.dump("shop", "verification", ORDERS, verifies=True)
        wait_dumped(gateway, verification)
    assert verification.plan is not None and list(verification.plan.key) == ["*", "k"]


@pytest.mark.parametrize("invalid", ["0000-00-00", "2024-02-31", "2024-00-07"])
def test_table_when_a_date_of_its_key_is_none_then_the_next_verification_reads_it_in_one_snapshot(
    invalid: str, database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    with closing(database.connect(database="shop")) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute("CREATE TABLE orders (d DATE PRIMARY KEY, note VARCHAR(9))")
        days = [*(f"2024-01-{day}" for day in range(1, 29)), invalid, "2024-12-31"]
        cursor.execute(f"INSERT INTO orders VALUES {', '.join(f'({day!r}, NULL)' for day in days)}")
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway, database)):
        first = gateway.dump("shop", "first", ORDERS, verifies=True)
        gateway.wait(lambda: first.failed is not None)
        assert first.failed is not None and first.failed.code == "VERIFICATION_IMPOSSIBLE"
        assert "menura verify run shop shop.orders" in first.failed.remedy
        second = gateway.dump("shop", "second", ORDERS, verifies=True)
        wait_dumped(gateway, second)
    assert second.plan is not None and list(second.plan.key) == ["*", "d"]
    (chunk,) = [chunk for chunk in gateway.source("shop").ledger.chunks if chunk.dump == "second"]
    assert chunk.end.row_count == 30 and chunk.end.digest.bits


def test_a_repair_when_the_keys_type_was_altered_since_then_it_fails_and_reads_nothing(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    with closing(database.connect(database="shop")) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (d DATE PRIMARY KEY, note VARCHAR(9))")
        rows = ", ".join(f"(DATE '2000-01-01' + INTERVAL {day} DAY, NULL)" for day in range(1500))
        cursor.execute(f"INSERT INTO orders VALUES {rows}")
        cursor.execute("ANALYZE TABLE orders")
        cursor.fetchall()
        cursor.execute("SELECT d FROM orders")
        keys: list[Key] = [(key_value("date", day),) for (day,) in cursor.fetchall()]
    gateway.sync("shop", ORDERS, now=True)
    with agent_inside(config(tmp_path, gateway, database)):
        focus = check_ranges(gateway, "shop", ORDERS, ["date"], keys, 1)
        received = gateway.source("shop").ledger.received_rows
        database.run("ALTER TABLE shop.orders MODIFY d INT NOT NULL")
        repair = gateway.dump("shop", "later", ORDERS, focus=focus)
        gateway.wait(lambda: repair.failed is not None)
    assert repair.failed is not None and repair.failed.code == "REPAIR_IMPOSSIBLE"
    assert "integer" in repair.failed.found and gateway.source("shop").ledger.received_rows == received
