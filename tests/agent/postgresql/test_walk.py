"""Walking a table by chunks gives each row once, whatever its key is made of; SELECT is the oracle."""

# ruff: noqa: RUF001  (letters of other scripts)
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.errors import SourceGrantMissing
from agent.filter import Filter
from agent.snapshot.reader import BoundInvalid, KeyMissing, OrderChanged, TableMissing
from agent.sources.postgresql.identifiers import IDENTIFIERS
from agent.sources.postgresql.snapshot.reading import PostgresqlTableReader
from tests.agent.postgresql.dump_reading import chunk, plan_of, reader_of, walk
from tests.agent.postgresql.logged import Log
from tests.agent.postgresql.sources import config_of
from tests.postgres import SourceServer

EXAMPLES = 6
TABLE = ("public", "t")

_text = st.one_of(
    st.text("aAäÄbB zZßςσΣ\t'\\\"`%_\x01", max_size=5),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4),
    st.text("😀🎈é́日本ｱﾞア", max_size=3),
)
_label = st.sampled_from(["z", "a", "M", "it's", 'so "so"', "back\\slash"])
_date = st.sampled_from(
    ["-infinity", "0044-03-15 BC", "0001-01-01", "2020-02-29", "9999-12-31", "12345-06-07", "infinity"]
)
_moment = st.sampled_from(
    ["-infinity", "4713-01-01 00:00:00 BC", "1970-01-01", "2020-10-25 01:30:00.000001", "2020-10-25 01:30", "infinity"]
)
_real = st.one_of(st.floats(width=32), st.sampled_from([0.0, -0.0, 1e-45, 3.4e38]))
_double = st.one_of(st.floats(), st.sampled_from([0.1, 0.1 + 2**-55, 5e-324]))
_numeric = st.sampled_from(
    [
        "0",
        "-0.0",
        "1.0",
        "1.00",
        "1.000001",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e-500",
        "-123456789012345678901234567890.5",
    ]
)


def _ints(least: int, most: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(least, most), st.sampled_from([least, most, 0]), st.integers(-5, 5))


#: type, values
KINDS: dict[str, tuple[str, st.SearchStrategy[object]]] = {
    "small": ("smallint", _ints(-(2**15), 2**15 - 1)),
    "big": ("bigint", _ints(-(2**63), 2**63 - 1)),
    "numeric": ("numeric", _numeric),
    "digits": ("numeric(38,10)", st.decimals(-(10**20), 10**20, places=10, allow_nan=False)),
    "real": ("real", _real),
    "double": ("double precision", _double),
    "text": ("text", _text),
    "text_c": ('text COLLATE "C"', _text),
    "text_icu": ('text COLLATE "und-x-icu"', _text),
    "text_blind": ("text COLLATE blind", _text),
    "varchar": ('varchar(20) COLLATE "de-x-icu"', _text),
    "char": ("char(8)", _text),
    "name": ("name", _text),
    "letter": ('"char"', st.sampled_from(["", "a", "Z", "~"])),
    "bytes": ("bytea", st.binary(max_size=5)),
    "bool": ("boolean", st.booleans()),
    "uuid": ("uuid", st.uuids().map(str)),
    "date": ("date", _date),
    "timestamp": ("timestamp", _moment),
    "timestamptz": ("timestamptz(3)", _moment),
    "time": ("time", st.sampled_from(["00:00", "24:00", "12:00:00.000001", "23:59:59.999999"])),
    "timetz": ("timetz", st.sampled_from(["12:00+00", "13:00+01", "12:00-15:59:59", "24:00+00"])),
    "interval": (
        "interval",
        st.sampled_from(["1 mon", "30 days", "-1 day", "24:00", "1 year 2 mons -3 days 04:05:06.7"]),
    ),
    "enum": ("mood", _label),
    "domain": ("odd.price", st.decimals(-999, 999, places=2, allow_nan=False)),
    "domain_of_enum": ("feeling", _label),
    "bit": ("bit(3)", st.sampled_from(["000", "001", "101", "111"])),
    "varbit": ("bit varying", st.text("01", max_size=6)),
    "inet": ("inet", st.sampled_from(["10.0.0.1", "10.0.0.0/8", "10.0.0.1/8", "::1", "fe80::/10", "0.0.0.0"])),
    "cidr": ("cidr", st.sampled_from(["10.0.0.0/8", "10.0.0.1/32", "::/0", "192.168.0.0/16"])),
    "macaddr": ("macaddr", st.sampled_from(["08:00:2b:01:02:03", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"])),
    "money": ("money", st.sampled_from(["-1.50", "0", "92233720368547758.07", "1234.56"])),
    "lsn": ("pg_lsn", st.sampled_from(["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF"])),
    "oid": ("oid", _ints(0, 2**32 - 1)),
    "jsonb": ("jsonb", st.sampled_from(["{}", "[]", "null", '{"a": [1, "x\'y"]}', "1", "1.0", '"\\u00e9"'])),
    "ints": ("int[]", st.lists(st.one_of(st.none(), _ints(-9, 9)), max_size=3)),
    "texts": ("text[]", st.lists(st.sampled_from(["", "a,b", 'c"d', "NULL", "{}", "é\\"]), max_size=3)),
    "range": ("int4range", st.sampled_from(["empty", "(,)", "[1,5)", "[1,6)", "[2,)"])),
    "composite": ("pair", st.tuples(_ints(-9, 9), st.sampled_from(["", "a b", 'c"d', "é,\\"]))),
    "citext": ("odd.citext", _text),
    "isn": ("odd.isbn", st.sampled_from(["978-0-11-000533-4", "978-0-393-04002-9"])),
}
COMPOSITES: list[tuple[str, ...]] = [
    ("enum", "big"),
    ("text", "date", "small"),
    ("citext", "big"),
    ("bool", "domain_of_enum", "citext"),
    ("small", "text_blind", "uuid"),
    ("double", "interval", "char"),
]
CASES: list[tuple[str, ...]] = [(kind,) for kind in KINDS] + COMPOSITES


@pytest.fixture(scope="module")
def kinds(shared_server: SourceServer) -> SourceServer:
    shared_server.renew_database()
    shared_server.run(
        "CREATE SCHEMA odd",
        "CREATE EXTENSION citext SCHEMA odd",
        "CREATE EXTENSION isn SCHEMA odd",
        "CREATE EXTENSION hstore",
        "CREATE TYPE mood AS ENUM ('z', 'a', 'M', 'it''s', 'so \"so\"', 'back\\slash')",
        "CREATE DOMAIN feeling AS mood CHECK (VALUE <> 'a')",
        "CREATE DOMAIN odd.price AS numeric(8,2)",
        "CREATE TYPE pair AS (x int, y text)",
        "GRANT USAGE ON SCHEMA odd TO menura",
        "CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        database="shop",
    )
    return shared_server


@contextmanager
def reading(server: SourceServer, policy: Filter | None = None) -> Iterator[PostgresqlTableReader]:
    log = Log(server, is_new=not server.run("SELECT 1 FROM pg_replication_slots"))
    try:
        with reader_of(config_of(server, policy=policy), log.seen) as reader:
            yield reader
    finally:
        log.close()


def make(server: SourceServer, *statements: str) -> None:
    server.run("DROP TABLE IF EXISTS t CASCADE", *statements, database="shop")


@pytest.mark.parametrize("columns", CASES, ids="_".join)
def test_walk_by_chunks_when_keys_are_of_any_kind_then_gives_each_row_once(
    kinds: SourceServer, columns: tuple[str, ...]
) -> None:
    names = tuple(f"K {n}" for n in range(len(columns)))
    listed = ", ".join(f'"{name}"' for name in names)
    types = ", ".join(f'"{name}" {KINDS[kind][0]}' for name, kind in zip(names, columns, strict=True))
    make(kinds, f"CREATE TABLE t ({types}, n int, PRIMARY KEY ({listed}))")
    values = st.lists(st.tuples(*(KINDS[kind][1] for kind in columns)), max_size=25)
    with reading(kinds) as reader, kinds.connect("shop") as connection:
        assert tuple(plan_of(reader, TABLE).key) == names

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(values, st.integers(1, 4))
        def check(rows: list[tuple[object, ...]], size: int) -> None:
            _fill(connection, rows, [KINDS[kind][0] for kind in columns])
            oracle = [n for (n,) in connection.execute(f"SELECT n FROM t ORDER BY {listed}").fetchall()]
            assert [row["n"] for row in walk(reader, TABLE, names, size)] == oracle
            _check_between(reader, names, oracle, size)

        check()


def _fill(connection: psycopg.Connection, rows: Sequence[tuple[object, ...]], types: list[str]) -> None:
    connection.execute("TRUNCATE t")
    marks = ", ".join(f"%s::text::{type_.partition(' COLLATE')[0]}" for type_ in types)
    for n, row in enumerate(rows):
        try:
            connection.execute(f"INSERT INTO t VALUES ({marks}, %s) ON CONFLICT DO NOTHING", (*map(_text_of, row), n))
        except (psycopg.errors.DataError, psycopg.errors.CheckViolation):  # too long, no value of the domain
            continue


def _text_of(value: object) -> str:
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, list):
        quoted = [
            ("NULL" if one is None else '"' + str(one).replace("\\", "\\\\").replace('"', '\\"') + '"') for one in value
        ]
        return f"{{{','.join(quoted)}}}"
    if isinstance(value, tuple):
        text = str(value[1]).replace("\\", "\\\\").replace('"', '""')
        return f'({value[0]},"{text}")'
    return str(value)


def _check_between(reader: PostgresqlTableReader, key: tuple[str, ...], oracle: list[int], size: int) -> None:
    """Every row's own bound, read back, cuts the rows there."""
    bounds, lower = [], ""
    for _ in oracle:
        _, lower, _, _ = chunk(reader, TABLE, key, 1, lower)
        bounds.append(lower)
    for at in range(0, len(bounds), 3):
        middle = at // 2
        assert [row["n"] for row in walk(reader, TABLE, key, size, lower=bounds[at])] == oracle[at + 1 :]
        assert [row["n"] for row in walk(reader, TABLE, key, size, upper=bounds[at])] == oracle[: at + 1]
        between = walk(reader, TABLE, key, size, lower=bounds[middle], upper=bounds[at])
        assert [row["n"] for row in between] == oracle[middle + 1 : at + 1]


#: columns and key, which columns are filled and with what of i
WALKED = {
    "one": ("id int PRIMARY KEY", "id", "i"),
    "text": ('id text COLLATE "de-x-icu" PRIMARY KEY', "id", "i"),
    "citext": ("id odd.citext PRIMARY KEY", "id", "i::text::odd.citext"),
    "three": (
        "a int, b varchar(9), c timestamp, PRIMARY KEY (a, b, c)",
        "a, b, c",
        "i % 7, i % 5, '2020-01-01'::timestamp + i * interval '1 minute'",
    ),
    "one_prefix": ("a int, b uuid, PRIMARY KEY (a, b)", "a, b", "5, md5(i::text)::uuid"),
    "domain": ("a feeling, id odd.price, PRIMARY KEY (a, id)", "a, id", "(ARRAY['z','M'])[1 + i % 2]::mood, i"),
    "enum": ("a mood, id int, PRIMARY KEY (a, id)", "a, id", "(ARRAY['z','M'])[1 + i % 2]::mood, i"),
}


@pytest.mark.parametrize("kind", WALKED)
def test_chunk_when_it_is_read_then_only_its_rows_are_looked_at_and_nothing_is_sorted(
    kinds: SourceServer, kind: str
) -> None:
    definition, names, values = WALKED[kind]
    count, size = 5_000, 50
    make(
        kinds,
        f"CREATE TABLE t ({definition}, n int, filler text DEFAULT 'x')",
        f"INSERT INTO t ({names}, n) SELECT {values}, i FROM generate_series(1, {count}) AS i",
        "ANALYZE t",
        "GRANT pg_read_all_stats TO menura",
    )
    key = tuple(names.split(", "))
    with reading(kinds) as reader:
        _, lower, _, _ = chunk(reader, TABLE, key, count // 3)
        _, upper, _, _ = chunk(reader, TABLE, key, count // 2, lower)
        with reader.chunk(TABLE):
            rows = reader.read_chunk(TABLE, key, lower, upper, size, lambda _: None)
            statement = rows.reading._statement
            shown = "\n".join(str(line) for (line,) in reader._session.rows(f"EXPLAIN (ANALYZE, BUFFERS) {statement}"))
    assert "Index" in shown
    assert "Sort" not in shown
    assert "Filter" not in shown
    assert re.search(rf"rows={size}(\.00)? loops=1", shown)


KEYS = {
    # columns and constraints, further statements; the key that is read by, of a table whose key in the lake is another
    "primary_first": ("id int, e int NOT NULL UNIQUE, PRIMARY KEY (id, e)", "", ("id", "e")),
    "identity": ("a int, b int NOT NULL CONSTRAINT u UNIQUE", "ALTER TABLE t REPLICA IDENTITY USING INDEX u", ("b",)),
    "without_any": ("a int", "", ()),
    "full_without_any": ("a int NOT NULL UNIQUE", "ALTER TABLE t REPLICA IDENTITY FULL", ()),
    "full": ("a int PRIMARY KEY", "ALTER TABLE t REPLICA IDENTITY FULL", ("a",)),
    "nothing": ("a int PRIMARY KEY", "ALTER TABLE t REPLICA IDENTITY NOTHING", ()),
    "deferrable": ("a int PRIMARY KEY DEFERRABLE, b int NOT NULL UNIQUE", "ALTER TABLE t REPLICA IDENTITY FULL", ()),
    "names_of_things": ("a regclass PRIMARY KEY", "", ()),
    "unusual_operators": ("a hstore PRIMARY KEY", "", ()),
    "names_beside_others": ("a regclass PRIMARY KEY, b int NOT NULL UNIQUE, c int NOT NULL, UNIQUE (c, b)", "", ("b",)),
    "descending": (
        "a int NOT NULL, b int NOT NULL",
        "CREATE UNIQUE INDEX u ON t (a DESC); ALTER TABLE t REPLICA IDENTITY USING INDEX u",
        (),
    ),
    "other_operators": (
        "a text NOT NULL",
        "CREATE UNIQUE INDEX u ON t (a text_pattern_ops); ALTER TABLE t REPLICA IDENTITY USING INDEX u",
        (),
    ),
    "other_collation": (
        "a text NOT NULL",
        'CREATE UNIQUE INDEX u ON t (a COLLATE "de-x-icu"); ALTER TABLE t REPLICA IDENTITY USING INDEX u',
        (),
    ),
    "nullable_beside": ("a regclass PRIMARY KEY, b int UNIQUE", "", ()),
    "partial_beside": ("a regclass PRIMARY KEY, b int NOT NULL", "CREATE UNIQUE INDEX ON t (b) WHERE b > 0", ()),
    "expression_beside": ("a regclass PRIMARY KEY, b int NOT NULL", "CREATE UNIQUE INDEX ON t ((b + 1))", ()),
    "included": ("a int, b int, PRIMARY KEY (a) INCLUDE (b)", "", ("a",)),
    "generated": ("a int, g int GENERATED ALWAYS AS (a) STORED PRIMARY KEY", "ALTER TABLE t REPLICA IDENTITY FULL", ()),
}


@pytest.mark.parametrize("case", KEYS)
def test_plan_when_a_table_has_several_keys_then_the_best_exact_one_is_taken(kinds: SourceServer, case: str) -> None:
    columns, more, expected = KEYS[case]
    make(kinds, f"CREATE TABLE t ({columns})", *filter(None, more.split("; ")))
    with reading(kinds) as reader:
        plan = plan_of(reader, TABLE)
    assert tuple(plan.key) == expected
    assert bool(plan.ranges) == bool(expected)


def test_plan_when_operators_of_a_key_may_not_be_used_then_the_statement_of_the_message_mends_it(
    kinds: SourceServer,
) -> None:
    make(kinds, "CREATE TABLE t (a odd.citext PRIMARY KEY, b int NOT NULL)")
    kinds.run("REVOKE USAGE ON SCHEMA odd FROM menura", database="shop")
    try:
        with reading(kinds) as reader:
            with pytest.raises(SourceGrantMissing) as caught:
                plan_of(reader, TABLE)
            kinds.run("CREATE UNIQUE INDEX ON t (b)", database="shop")
            assert tuple(plan_of(reader, TABLE).key) == ("b",)
            kinds.run(caught.value.remedy.removeprefix("Run on the server: "), database="shop")
            assert tuple(plan_of(reader, TABLE).key) == ("a",)
    finally:
        kinds.run("GRANT USAGE ON SCHEMA odd TO menura", database="shop")


def test_plan_when_a_column_of_a_key_is_ignored_then_another_is_taken(kinds: SourceServer) -> None:
    make(kinds, "CREATE TABLE t (a regclass PRIMARY KEY, b int NOT NULL UNIQUE, c int NOT NULL UNIQUE)")
    with reading(kinds, Filter(rules={"t": ("b",)}, identifiers=IDENTIFIERS)) as reader:
        assert tuple(plan_of(reader, TABLE).key) == ("c",)


def test_walk_when_names_are_odd_then_they_are_quoted(kinds: SourceServer) -> None:
    table = ("odd", "o\"dd %s 't :a")
    name = '"odd"."' + table[1].replace('"', '""') + '"'
    kinds.run(
        f"DROP TABLE IF EXISTS {name}",
        f'CREATE TABLE {name} ("k""e%s :b" int PRIMARY KEY, "Id" int, id int)',
        f"INSERT INTO {name} VALUES (3,3,1),(1,1,2),(2,2,3)",
        "GRANT USAGE ON SCHEMA odd TO menura",
        f"GRANT SELECT ON {name} TO menura",
        database="shop",
    )
    with reading(kinds) as reader:
        key = tuple(plan_of(reader, table).key)
        assert key == ('k"e%s :b',)
        assert [(row["Id"], row["id#2"]) for row in walk(reader, table, key, 1)] == [(1, 2), (2, 3), (3, 1)]


def test_chunk_when_the_key_is_another_one_then_says_so(kinds: SourceServer) -> None:
    make(kinds, "CREATE TABLE t (a int PRIMARY KEY, b text NOT NULL)", "INSERT INTO t VALUES (1, 'x'), (2, 'y')")
    with reading(kinds) as reader:
        rows, last, _, _ = chunk(reader, TABLE, ("a",), 1)
        assert len(rows) == 1
        with pytest.raises(KeyMissing):
            chunk(reader, TABLE, ("b",), 1)
        kinds.run("ALTER TABLE t ALTER a TYPE bigint", database="shop")
        with pytest.raises(OrderChanged):
            chunk(reader, TABLE, ("a",), 1, last)
        kinds.run("DROP TABLE t", database="shop")
        with pytest.raises(TableMissing):
            chunk(reader, TABLE, ("a",), 1)
        assert reader.high()


def test_chunk_when_the_table_has_as_good_as_no_rows_then_they_are_all_there(kinds: SourceServer) -> None:
    make(kinds, "CREATE TABLE t (a int PRIMARY KEY)")
    with reading(kinds) as reader:
        assert chunk(reader, TABLE, ("a",), 5)[:2] == ([], "")
        kinds.run("INSERT INTO t VALUES (-1)", database="shop")
        assert walk(reader, TABLE, ("a",), 1) == [{"a": -1, "_unrepresentable": None}]
        kinds.run("INSERT INTO t VALUES (-2)", database="shop")
        assert [row["a"] for row in walk(reader, TABLE, ("a",), 2)] == [-2, -1]
        assert [row["a"] for row in walk(reader, TABLE, ("a",), 1)] == [-2, -1]


@pytest.mark.parametrize("text", ["x", "{}", "[1]", "[]", '["1"]', '["1","2"]', "[" * 5000, '["1 OR 1=1"]'])
def test_bound_when_the_gateway_sends_another_form_then_it_never_becomes_sql(kinds: SourceServer, text: str) -> None:
    make(kinds, "CREATE TABLE t (id int PRIMARY KEY)")
    with reading(kinds) as reader, pytest.raises((BoundInvalid, OrderChanged)) as caught:
        chunk(reader, TABLE, ("id",), 1, text)
    assert "OR 1" not in str(caught.value)


@pytest.mark.parametrize("part", ["1 OR 1=1", "1'; DROP TABLE t; --", "", "\\", "é", "1\0", "\ud800", "99999999999"])
def test_bound_when_it_is_no_value_of_the_column_then_the_server_refuses_it(kinds: SourceServer, part: str) -> None:
    make(kinds, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with reading(kinds) as reader:
        _, last, _, _ = chunk(reader, TABLE, ("id",), 1)
        bound = last.replace('"1"', json.dumps(part))
        assert bound != last
        with pytest.raises(BoundInvalid) as caught:
            chunk(reader, TABLE, ("id",), 1, bound)
        assert not part or part not in str(caught.value)
        assert len(walk(reader, TABLE, ("id",), 5)) == 1
