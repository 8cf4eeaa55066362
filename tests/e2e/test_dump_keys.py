"""Dumps of tables of no, one and more rows, by every type that a primary key can have on each server."""

import pytest

from tests.e2e.lake import wait_until_equal
from tests.e2e.test_dump import wait_until_dumped
from tests.servers import Flavor, Server
from tests.stack import Stack

pytestmark = pytest.mark.spark

#: type, value, another value (SQL literals)
KEYS: tuple[tuple[str, str, str], ...] = (
    ("TINYINT", "-1", "1"),
    ("INT UNSIGNED", "0", "4294967295"),
    ("BIGINT", "-9223372036854775808", "5"),
    ("BIGINT UNSIGNED", "18446744073709551615", "1"),
    ("DECIMAL(12,2)", "-1.25", "7"),
    ("DECIMAL(65,30)", "1.5", "2.5"),
    ("FLOAT", "0.5", "1.5"),
    ("DOUBLE", "-0.1", "0.1"),
    ("BIT(13)", "5", "6"),
    ("BIT(64)", "0xFFFFFFFFFFFFFFFF", "1"),
    ("YEAR", "1901", "2024"),
    ("DATE", "'2024-02-29'", "'9999-12-31'"),
    ("TIME(3)", "'-838:59:59'", "'12:34:56.789'"),
    ("DATETIME", "'2024-02-29 23:59:59'", "'1000-01-01'"),
    ("DATETIME(6)", "'2024-02-29 23:59:59.000001'", "'1000-01-01'"),
    ("TIMESTAMP NOT NULL DEFAULT '2001-01-01'", "'2024-02-28 23:59:59'", "'1999-01-01'"),
    ("TIMESTAMP(6) NOT NULL DEFAULT '2001-01-01'", "'2024-02-28 23:59:59.5'", "'1999-01-01'"),
    ("CHAR(9)", "''", "'x'"),
    ("VARCHAR(40)", "'it''s'", "'日本'"),
    ("BINARY(3)", "X'00'", "X'FFFFFF'"),
    ("VARBINARY(9)", "X''", "X'00FF'"),
    ("ENUM('a','b')", "'a'", "'b'"),
    ("SET('a','b')", "''", "'a,b'"),
)
MARIADB_KEYS = (("INET6", "'::1'", "'::2'"), ("UUID", "'00000000-0000-0000-0000-000000000001'", "UUID()"))
#: of a text or a blob the first bytes are the key
PREFIXES = (("TEXT", "'one'", "'two'"), ("BLOB", "X'01'", "X'02'"))
ZERO = "SET sql_mode = ''"


def statements(flavor: Flavor) -> dict[str, list[str]]:
    """Those that make and fill each table."""
    made: dict[str, list[str]] = {}
    keys = [*KEYS, *(MARIADB_KEYS if flavor == "mariadb" else ())]
    timestamp = "TIMESTAMP NOT NULL DEFAULT '2001-01-01'"
    every = ["DATE", "DATETIME(6)", timestamp, "VARCHAR(40)", "BINARY(3)", "INT UNSIGNED"]
    for place, (type_, one, other) in enumerate([*keys, *PREFIXES]):
        key = "k(9)" if type_ in ("TEXT", "BLOB") else "k"
        for rows in ([one], [one, other]):
            name = f"t{place}_{len(rows)}"
            made[name] = [f"CREATE TABLE {name} (k {type_}, n INT, PRIMARY KEY ({key}))"]
            made[name] += [f"INSERT INTO {name} VALUES ({value}, {n})" for n, value in enumerate(rows)]
    made["zero_date"] = ["CREATE TABLE zero_date (k DATE PRIMARY KEY, n INT)", "INSERT INTO zero_date VALUES (0, 1)"]
    made["no_rows"] = ["CREATE TABLE no_rows (k DATETIME PRIMARY KEY, n INT)"]
    values = {type_: (one, other) for type_, one, other in keys}
    columns = ", ".join(f"k{place} {type_}" for place, type_ in enumerate(every))
    names = ", ".join(f"k{place}" for place in range(len(every)))
    for rows in (1, 2, 60):
        name = f"all_{rows}"
        of_key = ", ".join(values[type_][0] for type_ in every[:-1])
        made[name] = [f"CREATE TABLE {name} ({columns}, n INT, PRIMARY KEY ({names}))"]
        made[name] += [f"INSERT INTO {name} VALUES ({of_key}, {n}, {n})" for n in range(rows)]
    return made


@pytest.mark.long
@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_dumps_when_tables_have_few_rows_and_any_type_of_key_then_the_lake_equals_the_source(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    origin, source, database = servers[flavor], f"dump-keys-{flavor}", f"dump_keys_{flavor}"
    tables = statements(flavor)
    origin.run(f"CREATE DATABASE {database}")
    origin.run(ZERO, *(statement for made in tables.values() for statement in made), database=database)
    with running.agent(source, {source: origin}):
        for table in tables:
            running.start_sync(source, database, table, "dump")
        wait_until_dumped(running, source, len(tables))
        wait_until_equal(running.lake, running.tenant, source, origin, database, tables)
