"""Walking a table by chunks gives each row once, whatever its key is made of; on both servers, SELECT is the oracle."""

# ruff: noqa: RUF001  (letters of other scripts)
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pymysql
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.filter import Verdict
from agent.snapshot.reader import BoundInvalid
from agent.sources.mysql.snapshot.keys import Key
from agent.sources.mysql.snapshot.statements import bound_of, bound_texts, chunk_statement
from tests.agent.dump.walking import DATABASE, index_order, key_of, reading_session, texts_of, walk
from tests.servers import Server, server

EXAMPLES = 5

_raw = st.binary(max_size=5)
_latin = st.text("aAäÄbB zZß!\t'\\\"`%_", max_size=5)
_wide = st.one_of(
    st.text("aAäÄbB zZßςσΣ\0\x01'\\ ", max_size=5), st.text(max_size=4), st.text("😀🎈é́日本ｱﾞア", max_size=3)
)
_sjis = st.sampled_from([b"", b"a", b"A ", b"\x85\x40", b"\x88\x9f", b"a\x85\x40", b"\xb1", b"\xa1", b"zz"])
_date = st.sampled_from(
    ["0000-00-00", "2020-00-00", "2020-01-00", "2020-02-31", "1000-01-01", "9999-12-31", "2020-06-01", "2020-06-02"]
)
_clock = st.sampled_from(["00:00:00", "23:59:59.999999", "12:00:00.5", "12:00:00.500001"])
_time = st.sampled_from(
    ["-838:59:59", "838:59:59", "00:00:00", "-00:00:00.000001", "00:00:01.5", "-12:00:00", "99:0:0"]
)
_stamp = st.sampled_from(
    [
        "0000-00-00 00:00:00",
        "1970-01-01 00:00:01",
        "2038-01-19 03:14:07.999",
        "2020-10-25 01:30:00",
        "2020-10-25 00:30:00",
    ]
)


def _ints(least: int, most: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(least, most), st.sampled_from([least, most, 0]), st.integers(0, 9))


#: type, values
KINDS: dict[str, tuple[str, st.SearchStrategy[object]]] = {
    "tiny": ("TINYINT", _ints(-128, 127)),
    "zerofill": ("INT(8) UNSIGNED ZEROFILL", _ints(0, 2**32 - 1)),
    "big": ("BIGINT", _ints(-(2**63), 2**63 - 1)),
    "unsigned": ("BIGINT UNSIGNED", _ints(0, 2**64 - 1)),
    "decimal": ("DECIMAL(65,30)", st.decimals(-(10**34), 10**34, places=30, allow_nan=False)),
    "latin1": ("VARCHAR(20) CHARACTER SET latin1", _latin),
    "latin1_cs": ("CHAR(8) CHARACTER SET latin1 COLLATE latin1_general_cs", _latin),
    "utf8": ("VARCHAR(20) CHARACTER SET utf8mb4", _wide),
    "utf8_bin": ("VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", _wide),
    "utf8_char": ("CHAR(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci", _wide),
    "no_pad": ("VARCHAR(10) CHARACTER SET utf8mb4 COLLATE {no_pad}", _wide),
    "no_pad_char": ("CHAR(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_as_cs", _wide),
    "utf16": ("VARCHAR(20) CHARACTER SET utf16", _wide),
    "sjis": ("VARCHAR(20) CHARACTER SET sjis", _sjis),
    "binary": ("BINARY(4)", _raw),
    "varbinary": ("VARBINARY(20)", _raw),
    "date": ("DATE", _date),
    "datetime": ("DATETIME(6)", st.tuples(_date, _clock).map(" ".join)),
    "timestamp": ("TIMESTAMP(3) DEFAULT '2020-01-01'", _stamp),
    "time": ("TIME(6)", _time),
    "year": ("YEAR", st.sampled_from([0, 1901, 1970, 2000, 2155, 2024])),
    "enum": ("ENUM('z','a','M','') CHARACTER SET utf8mb4", st.integers(0, 4)),
    "set": ("SET('z','a','M')", st.integers(0, 7)),
    "bit": ("BIT(64)", _ints(0, 2**64 - 1)),
    "uuid": ("UUID", st.uuids().map(str)),
    "inet6": ("INET6", st.ip_addresses(v=6).map(str)),
}
ONLY = {"uuid": "mariadb", "inet6": "mariadb", "no_pad_char": "mysql"}
#: composites of mixed types, with how the index orders each column
COMPOSITES: list[tuple[tuple[str, str], ...]] = [
    (("enum", ""), ("big", "")),
    (("utf8", ""), ("date", ""), ("unsigned", "")),
    (("tiny", " DESC"), ("latin1", ""), ("set", " DESC")),
    (("sjis", ""), ("bit", " DESC"), ("time", "")),
    (("varbinary", ""), ("enum", " DESC"), ("year", "")),
]
CASES = [((kind, ""),) for kind in KINDS] + COMPOSITES


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    with server(request.param, folder) as running:
        running.run(f"CREATE DATABASE {DATABASE}")
        yield running


@pytest.mark.parametrize("columns", CASES, ids=lambda columns: "_".join(kind for kind, _ in columns))
def test_walk_by_chunks_when_keys_are_of_any_kind_then_gives_each_row_once(
    source: Server, columns: tuple[tuple[str, str], ...]
) -> None:
    if any(ONLY.get(kind, source.flavor) != source.flavor for kind, _ in columns):
        return
    orders = [order for _, order in columns]
    no_pad = "utf8mb4_nopad_bin" if source.flavor == "mariadb" else "utf8mb4_0900_ai_ci"
    types = ", ".join(f"k{n} {KINDS[kind][0].format(no_pad=no_pad)} NOT NULL" for n, (kind, _) in enumerate(columns))
    names = ", ".join(f"k{n}{order}" for n, order in enumerate(orders))
    values = st.lists(st.tuples(*(KINDS[kind][1] for kind, _ in columns)), max_size=25)

    with closing(reading_session(source)) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
            cursor.execute(f"DROP TABLE IF EXISTS {DATABASE}.t")
            cursor.execute(f"CREATE TABLE {DATABASE}.t ({types}, n INT, PRIMARY KEY ({names}))")
        key = key_of(source, "t")
        assert key is not None
        assert key.names == tuple(f"k{n}" for n in range(len(columns)))

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(values, st.integers(1, 4))
        def check(rows: list[tuple[object, ...]], size: int) -> None:
            _fill(connection, rows)
            oracle = index_order(connection, "t", key)
            assert walk(connection, "t", key, size) == oracle
            _check_between(connection, key, oracle, size)

        check()


def _fill(connection: pymysql.connections.Connection, rows: Sequence[tuple[object, ...]]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {DATABASE}.t")
        if rows:
            marks = ", ".join(["%s"] * len(rows[0]))
            cursor.executemany(
                f"INSERT IGNORE INTO {DATABASE}.t VALUES ({marks}, %s)", [(*row, n) for n, row in enumerate(rows)]
            )


def _check_between(connection: pymysql.connections.Connection, key: Key, oracle: list[int], size: int) -> None:
    """Every row's own bound, read back, cuts the rows there."""
    bounds = _bounds(connection, key, 100)
    for at in range(0, len(bounds), 3):
        assert walk(connection, "t", key, size, lower=bounds[at]) == oracle[at + 1 :]
        assert walk(connection, "t", key, size, upper=bounds[at]) == oracle[: at + 1]
        middle = bounds[at // 2]
        assert walk(connection, "t", key, size, lower=middle, upper=bounds[at]) == oracle[at // 2 + 1 : at + 1]


def _bounds(connection: pymysql.connections.Connection, key: Key, count: int) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(chunk_statement((DATABASE, "t"), ["n"], key, "", "", count))
        return [bound_of(key, texts_of(row[1:])) for row in cursor.fetchall()]


#: columns and key, which columns are filled and with what of i
WALKED = {
    "one": ("id INT PRIMARY KEY", "id", "i"),
    "text": ("id VARCHAR(20) PRIMARY KEY", "id", "i"),
    "three": (
        "a INT, b VARCHAR(9) CHARACTER SET latin1, c DATETIME, PRIMARY KEY (a, b, c)",
        "a, b, c",
        "i % 7, i % 5, '2020-01-01' + INTERVAL i MINUTE",
    ),
    "listed": ("a ENUM('x','y','z'), id INT, PRIMARY KEY (a, id)", "a, id", "1 + i % 3, i"),
    "down": ("a INT, b DATETIME, PRIMARY KEY (a, b DESC)", "a, b", "i % 7, '2020-01-01' + INTERVAL i MINUTE"),
    "unique": ("id DECIMAL(9,2) NOT NULL, b INT NOT NULL, UNIQUE KEY u (b, id)", "id, b", "i, i % 5"),
}


@pytest.mark.parametrize("kind", WALKED)
def test_chunk_when_it_is_read_then_only_its_rows_are_looked_at_and_nothing_is_sorted(
    source: Server, kind: str
) -> None:
    definition, names, values = WALKED[kind]
    count, size = 3_000, 50
    with closing(reading_session(source)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {DATABASE}.numbers (i INT PRIMARY KEY)")
        cursor.executemany(f"INSERT IGNORE INTO {DATABASE}.numbers VALUES (%s)", [(i,) for i in range(count)])
        cursor.execute(f"DROP TABLE IF EXISTS {DATABASE}.t")
        cursor.execute(f"CREATE TABLE {DATABASE}.t ({definition}, n INT, filler CHAR(100) DEFAULT 'x')")
        cursor.execute(f"INSERT INTO {DATABASE}.t ({names}, n) SELECT {values}, i FROM {DATABASE}.numbers")
        key = key_of(source, "t")
        assert key is not None
        order = index_order(connection, "t", key)
        assert len(order) == count
        bounds = _bounds(connection, key, count)
        for at in (0, count // 3, count - 2 * size):
            statement = chunk_statement((DATABASE, "t"), ["n", "filler"], key, bounds[at], bounds[-1], size)
            cursor.execute("FLUSH STATUS")
            cursor.execute(statement)
            assert [row[0] for row in cursor.fetchall()] == order[at + 1 : at + 1 + size]
            assert _status(cursor, "Handler\\_read%") <= 2 * size + 10
            assert _status(cursor, "Sort\\_rows") == 0
            cursor.execute(f"EXPLAIN {'' if source.flavor == 'mariadb' else 'FORMAT=TRADITIONAL '}{statement}")
            (shown,) = (dict(zip((c[0].lower() for c in cursor.description), row, strict=True)) for row in cursor)
            assert (shown["type"], shown["key"]) == ("range", key.index)
            assert "filesort" not in (shown["extra"] or "").lower()


def _status(cursor: pymysql.cursors.Cursor, name: str) -> int:
    cursor.execute(f"SHOW SESSION STATUS LIKE '{name}'")
    return sum(int(value) for _, value in cursor.fetchall())


KEYS = {
    # primary, else what the server keeps the rows by, else the fewest and narrowest columns
    "primary_first": ("id INT, e INT NOT NULL UNIQUE, PRIMARY KEY (id, e)", ("id", "e")),
    "not_null": ("a INT UNIQUE, b BIGINT NOT NULL UNIQUE, c CHAR(3) NOT NULL UNIQUE", ("b",)),
    "first_is_a_float": ("f FLOAT NOT NULL UNIQUE, b VARCHAR(30) NOT NULL UNIQUE, c INT NOT NULL UNIQUE", ("c",)),
    "fewest": (
        "f DOUBLE NOT NULL UNIQUE, b INT NOT NULL, c INT NOT NULL, d CHAR(9) NOT NULL, UNIQUE (b, c), UNIQUE (d)",
        ("d",),
    ),
    "float": ("f DOUBLE PRIMARY KEY", None),
    "prefix": ("t VARCHAR(99) NOT NULL, UNIQUE (t(10))", None),
    "nullable": ("t INT, UNIQUE (t)", None),
    "none": ("t INT, KEY (t)", None),
    "padded": ("c CHAR(9) COLLATE utf8mb4_nopad_bin PRIMARY KEY", None),
    "large_set": ("s SET('1','2','3','4','5','6','7','8','9') PRIMARY KEY", None),
    "memory_hash": ("a INT PRIMARY KEY", None),
}


@pytest.mark.parametrize("case", KEYS)
def test_keys_when_a_table_has_several_then_the_cheapest_exact_one_is_first(source: Server, case: str) -> None:
    columns, expected = KEYS[case]
    if case == "padded" and source.flavor == "mysql":
        return
    engine = " ENGINE=MEMORY" if case == "memory_hash" else ""
    source.run(f"DROP TABLE IF EXISTS {DATABASE}.t", f"CREATE TABLE {DATABASE}.t ({columns}, n INT){engine}")
    key = key_of(source, "t")
    assert (None if key is None else key.names) == expected


def test_keys_when_the_index_is_an_expression_or_hidden_then_it_is_none(source: Server) -> None:
    hidden = "IGNORED" if source.flavor == "mariadb" else "INVISIBLE"
    source.run(
        f"DROP TABLE IF EXISTS {DATABASE}.t",
        f"CREATE TABLE {DATABASE}.t (a INT NOT NULL, d DOUBLE NOT NULL UNIQUE, n INT, UNIQUE KEY h (a) {hidden})",
    )
    assert key_of(source, "t") is None
    if source.flavor == "mysql":
        source.run(f"ALTER TABLE {DATABASE}.t DROP KEY h, ADD UNIQUE KEY e ((a + 1))")
        assert key_of(source, "t") is None


@pytest.mark.parametrize("columns", ["v INT AS (7 - a) STORED PRIMARY KEY", "v INT AS (7 - a) VIRTUAL NOT NULL UNIQUE"])
def test_walk_when_the_key_is_computed_then_gives_each_row_once(source: Server, columns: str) -> None:
    if source.flavor == "mariadb":  # has no primary key of computed columns, and none that are NOT NULL
        columns = "v INT AS (7 - a) PERSISTENT UNIQUE"
    with closing(reading_session(source)) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {DATABASE}.t")
        cursor.execute(f"CREATE TABLE {DATABASE}.t (a INT NOT NULL, n INT, {columns})")
        key = key_of(source, "t")
        if source.flavor == "mariadb":
            assert key is None
            return
        cursor.execute(f"INSERT INTO {DATABASE}.t (a, n) VALUES (1, 1), (9, 9), (5, 5), (3, 3), (8, 8)")
        assert key is not None
        assert key.names == ("v",)
        assert walk(connection, "t", key, 2) == [9, 8, 5, 3, 1]


def test_keys_when_a_column_is_ignored_then_another_is_first(source: Server) -> None:
    source.run(
        f"DROP TABLE IF EXISTS {DATABASE}.t",
        f"CREATE TABLE {DATABASE}.t (Email INT NOT NULL UNIQUE, b VARCHAR(30) NOT NULL UNIQUE, n INT)",
    )
    key = key_of(source, "t", Verdict(True, frozenset({"email"})))
    assert key is not None
    assert key.names == ("b",)


def test_walk_when_names_are_odd_then_they_are_quoted(source: Server) -> None:
    name = "o`dd %s \"t'"
    with closing(reading_session(source)) as connection, connection.cursor() as cursor:
        quoted = name.replace("`", "``")
        cursor.execute(f"DROP TABLE IF EXISTS {DATABASE}.`{quoted}`")
        cursor.execute(
            f"CREATE TABLE {DATABASE}.`{quoted}` (`k``e%s` INT NOT NULL, n INT, UNIQUE KEY `i``x%` (`k``e%s`))"
        )
        cursor.execute(f"INSERT INTO {DATABASE}.`{quoted}` VALUES (3,3),(1,1),(2,2)")
        key = key_of(source, name)
        assert key is not None
        cursor.execute("SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'")
        assert walk(connection, name, key, 1) == [1, 2, 3]


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "{}",
        "[1]",
        "[]",
        '["1","2"]',
        '["1 OR 1=1"]',
        '["1;DROP"]',
        '["0x41"]',
        '[""]',
        '["--1"]',
        '["1."]',
        '["\\u0661"]',
    ],
)
def test_bound_when_the_gateway_sends_another_form_then_it_never_becomes_sql(source: Server, text: str) -> None:
    source.run(f"DROP TABLE IF EXISTS {DATABASE}.t", f"CREATE TABLE {DATABASE}.t (id INT PRIMARY KEY, n INT)")
    key = key_of(source, "t")
    assert key is not None
    with pytest.raises(BoundInvalid) as caught:
        bound_texts(key, text)
    assert "OR 1" not in str(caught.value)
