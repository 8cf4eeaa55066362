"""Shapes of tables and values at the edges of what servers permit."""

# ruff: noqa: E501  (SQL)

import math
import os
import struct
import time
from collections.abc import Iterator

import pymysql
import pytest

from tests.agent.native.capture import decode_all, definitions, logged, updates_have_generated_columns
from tests.agent.native.selection import assert_select_gives_the_same
from tests.e2e import every_type
from tests.servers import Server


def test_generated_and_invisible_columns_equal_select(source: Server) -> None:
    mysql_only = (
        ", h DATETIME(3) GENERATED ALWAYS AS (CAST('2024-01-02' AS DATETIME)) VIRTUAL"
        if source.flavor == "mysql"
        else ""
    )
    data = logged(
        source,
        "DROP TABLE IF EXISTS made",
        "CREATE TABLE made (a INT, b INT GENERATED ALWAYS AS (a + 1) VIRTUAL, c VARCHAR(20) GENERATED ALWAYS AS (CONCAT('x', a)) STORED,"
        f" d INT DEFAULT 7 INVISIBLE, id INT PRIMARY KEY, e BIGINT GENERATED ALWAYS AS (a * 10) VIRTUAL{mysql_only}, f INT)",
        "INSERT INTO made (id, a, f) VALUES (1, 5, 50), (2, NULL, NULL)",
        "INSERT INTO made (id, a, d, f) VALUES (3, -5, 8, 50)",
        "UPDATE made SET a = 6 WHERE id = 1",
        "DELETE FROM made WHERE id = 3",
    )

    changes = decode_all(data, mariadb=source.flavor == "mariadb").table("made")
    rows = changes.to_pylist()

    if not updates_have_generated_columns(source):
        *inserted, before, after, deleted = ([row[name] for name in ("id", *"abcdef")] for row in rows)
        assert inserted == [
            [1, 5, 6, "x5", 7, 50, 50],
            [2, None, None, None, 7, None, None],
            [3, -5, -4, "x-5", 8, -50, 50],
        ]
        assert (before, after) == ([1, 5, None, None, 7, None, 50], [1, 6, None, None, 7, None, 50])
        assert deleted == [3, -5, None, None, 8, None, 50]
        assert [row["_absent"] for row in rows] == [None, None, None, b"\x26", b"\x26", b"\x26"]  # b, c and e
        return
    assert [tuple(row[name] for name in ("id", *"abcdef")) for row in rows] == [
        *((1, 5, 6, "x5", 7, 50, 50), (2, None, None, None, 7, None, None), (3, -5, -4, "x-5", 8, -50, 50)),
        *((1, 5, 6, "x5", 7, 50, 50), (1, 6, 7, "x6", 7, 60, 50)),
        (3, -5, -4, "x-5", 8, -50, 50),
    ]
    assert_select_gives_the_same(source, changes, "made")


def test_table_with_as_many_columns_as_the_server_permits_equals_select(source: Server) -> None:
    count, refused = 4096, 0
    while True:  # MySQL: 4,096; MariaDB: as many as fit its .frm
        columns = ", ".join(f"c{number} TINYINT" for number in range(1, count))
        try:
            source.run(
                "DROP TABLE IF EXISTS wide", f"CREATE TABLE wide (id INT, {columns}) ENGINE=MyISAM", database="t"
            )
            break
        except pymysql.err.MySQLError:
            refused, count = refused + 1, count - 200
    values = ", ".join("NULL" if number % 7 == 0 else str(number % 100) for number in range(1, count))
    data = logged(
        source, f"INSERT INTO wide VALUES (1, {values}), (2, {values})", "UPDATE wide SET c1 = 77 WHERE id = 2"
    )

    changes = decode_all(data, mariadb=source.flavor == "mariadb").table("wide")
    rows = changes.to_pylist()

    assert [tuple(row.values())[-count - 1 : -1] for row in (rows[0], rows[3])] == source.run("SELECT * FROM t.wide")
    assert rows[3]["c1"] == 77
    assert count == 4096 or (source.flavor == "mariadb" and count > 2000), (count, refused)
    assert_select_gives_the_same(source, changes, "wide")


def test_numbers_behind_columns_of_every_type_keep_their_sign(source: Server) -> None:
    """The log has a bit for the sign of some types only."""
    kinds = [kind for _, kind, _ in every_type.COLUMNS] + ["GEOMETRY"]
    kinds += ["VECTOR(3)"] if source.flavor == "mysql" else ["INET4", "INET6", "UUID", "VARCHAR(9) COMPRESSED"]
    columns = "".join(f", x{n} {kind}, s{n} INT, u{n} INT UNSIGNED" for n, kind in enumerate(kinds))
    names = ", ".join(f"s{n}, u{n}" for n in range(len(kinds)))
    data = logged(
        source,
        "DROP TABLE IF EXISTS signs",
        f"CREATE TABLE signs (id INT PRIMARY KEY{columns})",
        f"INSERT INTO signs (id, {names}) VALUES (1{', -1, 4294967295' * len(kinds)})",
    )

    defined = definitions(source, "signs")
    changes = decode_all(data, mariadb=source.flavor == "mariadb", defined=defined).table("signs")

    (row,) = changes.to_pylist()
    assert [(row[f"s{n}"], row[f"u{n}"]) for n in range(len(kinds))] == [(-1, 4294967295)] * len(kinds)
    assert_select_gives_the_same(source, changes, "signs")


def test_set_with_an_empty_label_is_joined_as_the_server_joins_it(source: Server) -> None:
    data = logged(
        source,
        "DROP TABLE IF EXISTS hollow",
        "CREATE TABLE hollow (id INT PRIMARY KEY, a SET('', 'x', 'y'), b SET('x', '', 'y'))",
        f"INSERT INTO hollow VALUES {', '.join(f'({bits}, {bits}, {bits})' for bits in range(8))}",
    )

    changes = decode_all(data, mariadb=source.flavor == "mariadb").table("hollow")

    read = [(row["id"], row["a"], row["b"]) for row in changes.to_pylist()]
    assert read == source.run("SELECT * FROM t.hollow ORDER BY id")
    assert_select_gives_the_same(source, changes, "hollow")


def _names() -> list[str]:
    """Identifiers of every character from U+0001 to U+007F, and of some beyond; none may end in a space."""
    ascii_ = "".join(map(chr, range(1, 128)))
    parts = [ascii_[at : at + 40] for at in range(0, 127, 40)]
    return [f"{part}." for part in parts] + ["grün 日本語 \u2028￿x", "a`b\"c'd\\e.f$%"]


def test_names_of_every_character_that_a_server_permits_are_read_as_they_are(source: Server) -> None:
    def quoted(name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    columns = ", ".join(f"{quoted(name)} INT" for name in _names())
    for name in _names():
        source.run("DROP DATABASE IF EXISTS " + quoted(name), "CREATE DATABASE " + quoted(name))
        data = logged(
            source,
            f"CREATE TABLE {quoted(name)} (id INT PRIMARY KEY, {columns})",
            f"INSERT INTO {quoted(name)} VALUES ({', '.join(str(number) for number in range(len(_names()) + 1))})",
            database=name,
        )
        decoded = decode_all(data, mariadb=source.flavor == "mariadb", database=name)
        (row,) = decoded.table(name).to_pylist()
        assert {column: row[column] for column in _names()} == {c: n for n, c in enumerate(_names(), 1)}
        source.run("DROP DATABASE " + quoted(name))


@pytest.fixture
def far_east() -> Iterator[None]:
    """The process lives nine hours from UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("far_east")
def test_timestamp_is_an_instant_whatever_the_time_zones_of_server_session_and_process(source: Server) -> None:
    try:
        data = logged(
            source,
            "DROP TABLE IF EXISTS instants",
            "SET GLOBAL time_zone = '-08:00'",
            "CREATE TABLE instants (id INT PRIMARY KEY, ts TIMESTAMP(6) NULL, dt DATETIME)",
            "SET time_zone = '+05:30'",
            "INSERT INTO instants VALUES (1, '2024-03-31 07:30:00.25', '2024-03-31 07:30:00')",
            "SET time_zone = '-03:00'",
            "INSERT INTO instants VALUES (2, '2024-03-30 23:00:00.25', '2024-03-30 23:00:00')",
        )
    finally:
        source.run("SET GLOBAL time_zone = 'SYSTEM'")

    changes = decode_all(data, mariadb=source.flavor == "mariadb").table("instants")
    rows = changes.to_pylist()

    assert [row["ts"].isoformat() for row in rows] == ["2024-03-31T02:00:00.250000+00:00"] * 2
    assert [row["dt"].isoformat() for row in rows] == ["2024-03-31T07:30:00", "2024-03-30T23:00:00"]
    assert_select_gives_the_same(source, changes, "instants")


def test_reals_at_their_edges_keep_every_bit(source: Server) -> None:
    doubles = [
        "'-0'",
        "0e0",
        "5e-324",
        "-5e-324",
        "1.7976931348623157e308",
        "-2.2250738585072014e-308",
        "0.1e0",
        "1e23",
    ]
    floats = ["'-0'", "0e0", "1.4e-45", "-1.17549435e-38", "3.40282346e38", "16777217e0", "0.1e0", "1e10"]
    values = ", ".join(f"({number}, {d}, {f})" for number, (d, f) in enumerate(zip(doubles, floats, strict=True)))
    data = logged(
        source,
        "DROP TABLE IF EXISTS reals",
        "CREATE TABLE reals (id INT PRIMARY KEY, d DOUBLE, f FLOAT)",
        f"INSERT INTO reals VALUES {values}",
    )

    changes = decode_all(data, mariadb=source.flavor == "mariadb").table("reals")
    rows = changes.to_pylist()

    printed = source.run("SELECT CAST(d AS CHAR), CAST(CAST(f AS DOUBLE) AS CHAR) FROM t.reals ORDER BY id")
    for row, (d, f) in zip(rows, printed, strict=True):
        assert struct.pack("<d", row["d"]) == struct.pack("<d", float(str(d)))
        assert struct.pack("<f", row["f"]) == struct.pack("<f", float(str(f)))
    if source.flavor == "mysql":  # MariaDB 10.11 stores no -0
        assert math.copysign(1, rows[0]["d"]) == math.copysign(1, rows[0]["f"]) == -1
    assert_select_gives_the_same(source, changes, "reals")


def test_addresses_when_ignored_are_stepped_over_without_their_definition(mariadb: Server) -> None:
    data = logged(
        mariadb,
        "DROP TABLE IF EXISTS hidden",
        "CREATE TABLE hidden (id INT PRIMARY KEY, a INET6, b GEOMETRY, c VARCHAR(99) COMPRESSED, last INT)",
        "INSERT INTO hidden VALUES (1, '::1', POINT(1, 2), REPEAT('x', 90), 7)",
    )

    defined = {"hidden": {"a": definitions(mariadb, "hidden")["hidden"]["a"]}}
    (row,) = decode_all(data, mariadb=True, defined=defined, ignored={"a", "b", "c"}).table("hidden").to_pylist()

    assert (row["id"], row["last"], set(row) & set("abc")) == (1, 7, set())
