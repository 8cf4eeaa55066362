"""The plan: ranges that hold each row once, of like size whatever the keys' distribution, and cheap to find."""

import hashlib
from collections.abc import Iterator
from contextlib import closing

import pytest

from agent.sources.mysql.server.connection import facts_of
from agent.sources.mysql.snapshot import ranges
from agent.sources.mysql.snapshot.keys import KeyColumn
from agent.sources.mysql.snapshot.ranges import plan
from agent.sources.mysql.snapshot.values import middle
from agent.sources.mysql.types import ColumnType, Kind
from tests.agent.dump.walking import DATABASE, index_order, key_of, reading_session, walk
from tests.servers import Server, server

ROWS = 20_000
WANTED = 16

#: columns and key, and the key's values
TABLES: dict[str, tuple[str, str, list[tuple[object, ...]]]] = {
    "clusters": (
        "id BIGINT UNSIGNED PRIMARY KEY",
        "id",
        [(n,) for n in range(ROWS // 2)] + [(10**15 + n * 977,) for n in range(ROWS // 2)] + [(2**64 - 1,), (2**63,)],
    ),
    "one_large_tenant": (
        "tenant VARCHAR(40) CHARACTER SET utf8mb4, id INT, PRIMARY KEY (tenant, id)",
        "tenant, id",
        [("acme" if n % 10 else f"Tenant{n % 970}", n) for n in range(ROWS)],
    ),
    "long_beginnings": (
        "url VARCHAR(90) CHARACTER SET latin1 PRIMARY KEY",
        "url",
        [(f"https://www.example.com/{'aBc'[n % 3]}/{n * 7919 % 100003}",) for n in range(ROWS)],
    ),
    "hashes": (
        "id BINARY(16) PRIMARY KEY",
        "id",
        [(hashlib.sha256(str(n).encode()).digest()[:16],) for n in range(ROWS)],
    ),
    "times": (
        "kind ENUM('a','b','c'), at DATETIME(3), id INT, PRIMARY KEY (kind, at, id)",
        "kind, at, id",
        [(1 + (n % 7 == 0), f"20{10 + n * n * 9 // ROWS**2}-03-{1 + n % 28} {n % 24}:00:01", n) for n in range(ROWS)],
    ),
    "decimals": (
        "id DECIMAL(20,6) PRIMARY KEY",
        "id",
        [(f"{-(1.0008**n):.6f}" if n % 2 else f"{n / 1000:.6f}",) for n in range(ROWS)],
    ),
}  # fmt: skip


#: what the statistics are then made to say of each
STALE_ROWS = dict.fromkeys(TABLES, 0) | {"times": 9_000, "decimals": 9_000, "clusters": 9_000}


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(request.param, tmp_path_factory.mktemp(request.param)) as running:
        running.run(f"CREATE DATABASE {DATABASE}")
        yield running


@pytest.mark.parametrize("case", TABLES)
def test_plan_when_keys_are_skewed_then_ranges_are_of_like_size_and_hold_each_row_once(
    source: Server, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "LEAST_ROWS", 1_000)
    definition, names, values = TABLES[case]
    with closing(reading_session(source)) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {DATABASE}.t")
        cursor.execute(f"CREATE TABLE {DATABASE}.t ({definition}, n INT)")
        marks = ", ".join(["%s"] * len(values[0]))
        cursor.executemany(
            f"INSERT IGNORE INTO {DATABASE}.t ({names}, n) VALUES ({marks}, %s)",
            [(*value, n) for n, value in enumerate(values)],
        )
        cursor.execute(f"ANALYZE TABLE {DATABASE}.t")
        key = key_of(source, "t")
        assert key is not None
        cursor.execute("FLUSH STATUS")
        made = plan(connection, facts_of(connection, "shop"), (DATABASE, "t"), key, WANTED)
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        assert sum(int(value) for _, value in cursor.fetchall()) < ROWS
        order = index_order(connection, "t", key)
        walked = [walk(connection, "t", key, 5_000, part.lower, part.upper) for part in made.ranges]
        _make_stale(source, STALE_ROWS[case])
        stale = plan(connection, facts_of(connection, "shop"), (DATABASE, "t"), key, WANTED)
        shares = [walk(connection, "t", key, 5_000, part.lower, part.upper) for part in stale.ranges]
    assert [n for share in shares for n in share] == order
    assert stale.estimated_rows == (STALE_ROWS[case] or None)
    assert len(shares) == (WANTED if stale.estimated_rows is None else STALE_ROWS[case] // 1_000)
    assert max(map(len, shares)) < 2.5 * len(order) / len(shares)
    assert [n for part in walked for n in part] == order
    assert [part.number for part in made.ranges] == list(range(WANTED))
    assert (made.ranges[0].lower, made.ranges[-1].upper) == ("", "")
    assert made.estimated_rows == pytest.approx(len(order), rel=0.3)
    assert max(map(len, walked)) < 2.5 * len(order) / WANTED
    assert min(map(len, walked)) > len(order) / WANTED / 4


def _make_stale(source: Server, known_rows: int) -> None:
    """The statistics of the table are those of long ago; the server reads them when it opens it."""
    source.run(
        f"ALTER TABLE {DATABASE}.t STATS_AUTO_RECALC=0",
        f"UPDATE mysql.innodb_table_stats SET n_rows = {known_rows} WHERE table_name = 't'",
        f"RENAME TABLE {DATABASE}.t TO {DATABASE}.away",
        f"RENAME TABLE {DATABASE}.away TO {DATABASE}.t",
    )


def test_plan_when_the_table_is_small_empty_descending_or_keyless_then_is_one_range_or_none(
    source: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(reading_session(source)) as connection, connection.cursor() as cursor:
        facts = facts_of(connection, "shop")
        for rows in ((), (1, 2, 3)):
            cursor.execute(f"DROP TABLE IF EXISTS {DATABASE}.t")
            cursor.execute(f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY, n INT)")
            cursor.executemany(f"INSERT INTO {DATABASE}.t VALUES (%s, 1)", [(n,) for n in rows])
            made = plan(connection, facts, (DATABASE, "t"), key_of(source, "t"))
            assert [(part.lower, part.upper) for part in made.ranges] == [("", "")]
        monkeypatch.setattr(ranges, "LEAST_ROWS", 1)
        cursor.execute(f"ALTER TABLE {DATABASE}.t DROP PRIMARY KEY, ADD PRIMARY KEY (id DESC)")
        assert len(plan(connection, facts, (DATABASE, "t"), key_of(source, "t")).ranges) == 1
        cursor.execute(f"DROP TABLE {DATABASE}.t")
        cursor.execute(f"CREATE TABLE {DATABASE}.t (id INT, n INT)")
        assert plan(connection, facts, (DATABASE, "t"), None).ranges == ()


@pytest.mark.parametrize(
    ("type_", "low", "high", "expected"),
    [
        (ColumnType(Kind.INT), "-1", "0", "0"),
        (ColumnType(Kind.BIGINT, unsigned=True), "0", "18446744073709551615", "9223372036854775808"),
        (ColumnType(Kind.DECIMAL, precision=9, scale=2), "-1.50", "2", "0.25"),
        (ColumnType(Kind.BINARY), "00FF", "0102", "010080"),
        (ColumnType(Kind.VARBINARY), "", "01", "0080"),
        (ColumnType(Kind.DATE), "2020-01-01", "2020-01-02", "2020-01-02"),
        (ColumnType(Kind.DATE), "0000-00-00", "9999-12-31", "5000-07-01"),
        (ColumnType(Kind.DATETIME), "2020-02-31 00:00:00", "2020-03-01 00:00:00", "2020-02-29 00:00:00.000000"),
        (ColumnType(Kind.TIME), "-838:59:59", "838:59:59", "00:00:00.000000"),
        (ColumnType(Kind.UUID), "00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000003", None),
        (ColumnType(Kind.INET4), "10.0.0.0", "10.0.1.0", "10.0.0.128"),
    ],
)
def test_middle_when_a_column_has_one_then_is_above_the_low_and_at_most_the_high(
    type_: ColumnType, low: str, high: str, expected: str | None
) -> None:
    found = middle(KeyColumn("k", type_), low, high)
    assert found == (expected or "00000000-0000-0000-0000-000000000002")
