"""What the catalog says of tables, against what their rows hold; the server itself is the oracle."""

import json
from contextlib import closing
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from agent.sources.postgresql.server.connection import connect, rows
from agent.sources.postgresql.server.definitions import TableDefinition, one_moment, read_definitions, restated
from agent.sources.postgresql.server.missing_values import Missing, Unrepresentable
from agent.sources.postgresql.types import Form
from spark_sink.landed.default_values import read_literal
from tests.agent.postgresql.dump_reading import reader_of
from tests.agent.postgresql.logged import Log
from tests.agent.postgresql.sources import PASSWORD, USER, config_of, login
from tests.postgres import SourceServer


def definitions(server: SourceServer, *names: str, oids: list[int] | None = None) -> dict[str, TableDefinition]:
    """Of tables of `public`; none named: of all."""
    tables = [("public", name) for name in names] or None
    with closing(connect(login(server), "shop")) as connection:
        return {table[1]: found for table, found in read_definitions(connection, tables, oids).items()}


def definition(server: SourceServer, name: str = "t") -> TableDefinition:
    return definitions(server, name)[name]


def run(server: SourceServer, *statements: str) -> list[tuple[object, ...]]:
    return server.run(*statements, database="shop")


#: a type, a default, what rows hold that are older: as a literal, or as text that the column's form can't hold
MISSING: dict[str, tuple[str, str, object]] = {
    "bool": ("boolean", "true", "true"),
    "bool_false": ("boolean", "false", "false"),
    "smallint": ("smallint", "-32768", "-32768"),
    "bigint": ("bigint", "9223372036854775807", "9223372036854775807"),
    "oid": ("oid", "4294967295", "4294967295"),
    "real": ("real", "0.1", "0.1"),
    "real_large": ("real", "3.4028235e38", "3.4028235e+38"),
    "double": ("double precision", "0.1", "0.1"),
    "double_small": ("double precision", "5e-324", "5e-324"),
    "double_zero": ("double precision", "'-0'", "-0.0"),
    "double_nan": ("double precision", "'NaN'", "nan"),
    "double_infinity": ("double precision", "'-Infinity'", "-inf"),
    "numeric": ("numeric(10,2)", "5", "5.00"),
    "numeric_nan": ("numeric(10,2)", "'NaN'", Unrepresentable("NaN")),
    "numeric_any": ("numeric", "1.500", "1.500"),
    "numeric_large": ("numeric(50,3)", "5", "5.000"),
    "text": ("text", "'a'", "a"),
    "text_empty": ("text", "''", ""),
    "text_null": ("text", "'NULL'", "NULL"),
    "text_odd": ("text", """E'a "b", {c} \\\\ \\n é'""", 'a "b", {c} \\ \n é'),
    "char": ("char(3)", "'a'", "a  "),
    "bytea": ("bytea", "'\\x00ff'", "00ff"),
    "bytea_empty": ("bytea", "''", ""),
    "date": ("date", "'2020-02-29'", "2020-02-29"),
    "date_infinity": ("date", "'infinity'", Unrepresentable("infinity")),
    "date_bc": ("date", "'0044-03-15 BC'", Unrepresentable("0044-03-15 BC")),
    "date_late": ("date", "'10000-01-01'", Unrepresentable("10000-01-01")),
    "time": ("time", "'24:00'", "86400000000"),
    "time_fraction": ("time", "'00:00:01.5'", "1500000"),
    "timetz": ("timetz", "'01:02:03+02'", "01:02:03+02"),
    "timestamp": ("timestamp", "'2020-01-01 01:02:03.5'", "2020-01-01 01:02:03.5"),
    "timestamp_infinity": ("timestamp", "'-infinity'", Unrepresentable("-infinity")),
    "timestamptz": ("timestamptz", "'2020-01-01 00:00:00+02'", "2019-12-31 22:00:00"),
    "timestamptz_late": ("timestamptz", "'9999-12-31 23:59:59-01'", Unrepresentable("10000-01-01 00:59:59+00")),
    "interval": ("interval", "'1 day 02:00'", "1 day 02:00:00"),
    "uuid": ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "json": ("json", """'{"a" : [1]}'""", '{"a" : [1]}'),
    "jsonb": ("jsonb", """'{"a" : [1]}'""", '{"a": [1]}'),
    "ints": ("int[]", "'{1,NULL,3}'", "{1,NULL,3}"),
    "texts": ("text[]", """'{"a b","c,d"}'""", '{"a b","c,d"}'),
    "range": ("int4range", "'[1,3)'", "[1,3)"),
    "bits": ("bit(3)", "'101'", "101"),
    "enum": ("mood", "'so so'", "so so"),
    "domain": ("price", "5", "5.00"),
    "domain_of_domain": ("net_price", "5", "5.00"),
    "domain_of_enum": ("feeling", "'bad'", "bad"),
    "composite": ("pair", "'(1,\"a b\")'", '(1,"a b")'),
}


def _make_types(server: SourceServer) -> None:
    run(
        server,
        "CREATE TYPE mood AS ENUM ('bad', 'so so')",
        "CREATE DOMAIN price AS numeric(8,2)",
        "CREATE DOMAIN net_price AS price",
        "CREATE DOMAIN feeling AS mood",
        "CREATE TYPE pair AS (x int, y text)",
    )


def test_missing_when_a_column_is_added_with_a_default_then_it_is_the_literal_of_its_form(
    postgres: SourceServer,
) -> None:
    _make_types(postgres)
    run(postgres, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    added = [f"ADD {name}_ {type_} DEFAULT {default}" for name, (type_, default, _) in MISSING.items()]
    run(postgres, *(f"ALTER TABLE t {one}" for one in added))
    run(postgres, "ALTER TABLE t ADD nothing text", "ALTER TABLE t ADD null_itself int DEFAULT NULL")
    found = {attribute.name.removesuffix("_"): attribute for attribute in definition(postgres).attributes}
    for name, (_, _, expected) in MISSING.items():
        assert found[name].missing == expected, name
    assert found["nothing"].missing is None
    assert found["null_itself"].missing is None
    # a text is what the server prints; what has no literal is text too
    texts = {name: f"{name}_::text" for name in MISSING if found[name].type.form is Form.TEXT and name != "char"}
    ((*shown,),) = run(postgres, f"SELECT {', '.join(texts.values())} FROM t")
    assert dict(zip(texts, shown, strict=True)) == {name: found[name].missing for name in texts}
    reals = [name for name in MISSING if name.startswith(("real", "double")) and "nan" not in name]
    ((*numbers,),) = run(postgres, f"SELECT {', '.join(f'{name}_' for name in reals)} FROM t")
    for name, number in zip(reals, numbers, strict=True):
        assert str(float(str(found[name].missing))) == str(number), name
    ((price,),) = run(postgres, "SELECT domain_ FROM t")
    assert price == Decimal(str(found["domain"].missing))


def test_missing_when_a_dump_reads_rows_from_before_then_both_are_the_same_value(postgres: SourceServer) -> None:
    _make_types(postgres)
    run(postgres, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    run(
        postgres, *(f"ALTER TABLE t ADD {name}_ {type_} DEFAULT {value}" for name, (type_, value, _) in MISSING.items())
    )
    log = Log(postgres)
    with closing(log), reader_of(config_of(postgres), log.seen) as reader, reader.chunk(("public", "t")):
        (batch,) = reader.read_chunk(("public", "t"), ("id",), "", "", 10, lambda _: None)
        rows = pa.record_batch(batch.columns)
    unrepresentable = json.loads(rows["_unrepresentable"][0].as_py())
    told = [attribute for attribute in definition(postgres).attributes if attribute.name != "id"]
    assert len(told) == len(MISSING)
    for attribute in told:
        if isinstance(attribute.missing, Unrepresentable):
            assert rows[attribute.name][0].as_py() is None
            assert unrepresentable[attribute.name] == attribute.missing.text
        else:
            shown = rows[attribute.name][0]
            assert str(read_literal(str(attribute.missing), shown.type).value) == str(shown), attribute.name


def test_missing_when_the_default_changes_each_row_then_the_rows_are_written_anew_and_hold_it(
    postgres: SourceServer,
) -> None:
    run(postgres, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    before = definition(postgres)
    run(postgres, "ALTER TABLE t ADD added timestamptz DEFAULT clock_timestamp()")
    after = definition(postgres)
    assert after.storage != before.storage
    assert after.attributes[1].missing is None
    run(postgres, "ALTER TABLE t ADD other int DEFAULT 5", "VACUUM FULL t")
    rewritten = definition(postgres)
    assert rewritten.file_node != after.file_node
    assert rewritten.attributes[2].missing is None


def test_types_when_they_are_of_the_database_then_they_have_the_form_of_what_they_are_made_of(
    postgres: SourceServer,
) -> None:
    _make_types(postgres)
    run(
        postgres,
        "CREATE SCHEMA odd",
        "CREATE EXTENSION citext SCHEMA odd",
        "CREATE EXTENSION hstore",
        'CREATE DOMAIN odd."A b" AS timestamptz(3)',
        "CREATE TYPE span AS RANGE (subtype = float8, multirange_type_name = spans)",
        'CREATE TABLE t (a price, b net_price, c feeling, d mood[], e odd."A b", f odd.citext, g hstore, h pair[],'
        " i span, j spans, k numeric(50,3), l varchar(7)[], m price[])",
    )
    found = [(str(attribute.type), attribute.type.form) for attribute in definition(postgres).attributes]
    assert found == [
        ("public.price", Form.DECIMAL),
        ("public.net_price", Form.DECIMAL),
        ("public.feeling", Form.TEXT),
        ("public.mood[]", Form.TEXT),
        ('odd."A b"', Form.TIMESTAMPTZ),
        ("odd.citext", Form.TEXT),
        ("public.hstore", Form.TEXT),
        ("public.pair[]", Form.TEXT),
        ("public.span", Form.TEXT),
        ("public.spans", Form.TEXT),
        ("numeric(50,3)", Form.TEXT),
        ("character varying(7)[]", Form.TEXT),
        ("public.price[]", Form.TEXT),
    ]
    prices = [attribute.type for attribute in definition(postgres).attributes[:2]]
    assert [(price.precision, price.scale) for price in prices] == [(8, 2), (8, 2)]


def test_attributes_when_columns_came_and_went_then_numbers_tell_them_apart(postgres: SourceServer) -> None:
    run(postgres, 'CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL, "Odd name" text COLLATE "C", gone int)')
    before = definition(postgres).attributes
    run(
        postgres,
        "ALTER TABLE t RENAME a TO b",
        "ALTER TABLE t DROP gone",
        "ALTER TABLE t ADD gone int",
        "ALTER TABLE t ADD twice int GENERATED ALWAYS AS (b * 2) STORED",
    )
    found = definition(postgres)
    assert [(one.number, one.name) for one in before] == [(1, "id"), (2, "a"), (3, "Odd name"), (4, "gone")]
    assert [(one.number, one.name) for one in found.attributes] == [
        (1, "id"),
        (2, "b"),
        (3, "Odd name"),
        (5, "gone"),
        (6, "twice"),
    ]
    assert [one.not_null for one in found.attributes] == [True, True, False, False, False]
    assert [one.name for one in found.attributes if one.generated] == ["twice"]
    assert [one.name for one in found.sent] == ["id", "b", "Odd name", "gone"]
    assert [one.collation for one in found.attributes] == ["", "", '"C"', "", ""]


IDENTITIES = {
    # columns, what follows; primary key, identity, the lake's key
    "default": ("a int, b int, PRIMARY KEY (b, a)", "", ("b", "a"), ("b", "a"), ("b", "a")),
    "default_without_key": ("a int, b int", "", (), (), ()),
    "full": ("a int PRIMARY KEY, b int", "REPLICA IDENTITY FULL", ("a",), ("a", "b"), ("a",)),
    "full_without_key": ("a int, b int", "REPLICA IDENTITY FULL", (), ("a", "b"), ()),
    "index": (
        "a int PRIMARY KEY, b int NOT NULL CONSTRAINT u UNIQUE, c int",
        "REPLICA IDENTITY USING INDEX u",
        ("a",),
        ("b",),
        ("b",),
    ),
    "nothing": ("a int PRIMARY KEY, b int", "REPLICA IDENTITY NOTHING", ("a",), (), ()),
    "deferrable": ("a int PRIMARY KEY DEFERRABLE, b int", "", (), (), ()),
    "included": ("a int, b int, PRIMARY KEY (a) INCLUDE (b)", "", ("a",), ("a",), ("a",)),
    "generated": ("a int, b int GENERATED ALWAYS AS (a) STORED PRIMARY KEY", "", ("b",), ("b",), ()),
}


@pytest.mark.parametrize("case", IDENTITIES)
def test_keys_when_a_table_has_an_identity_then_they_are_those_that_tell_rows_apart(
    postgres: SourceServer, case: str
) -> None:
    columns, alter, primary_key, identity, key = IDENTITIES[case]
    run(postgres, f"CREATE TABLE t ({columns})", *([f"ALTER TABLE t {alter}"] if alter else []))
    found = definition(postgres)
    assert (found.primary_key, found.identity, found.key) == (primary_key, identity, key)


def test_partitions_when_a_table_has_some_then_it_stands_for_them(postgres: SourceServer) -> None:
    run(
        postgres,
        "CREATE TABLE t (id int, k text, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
        "CREATE TABLE t_x PARTITION OF t FOR VALUES IN ('x')",
        "CREATE TABLE t_y PARTITION OF t FOR VALUES IN ('y') PARTITION BY RANGE (id)",
        "CREATE TABLE t_y_all PARTITION OF t_y DEFAULT",
        "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 9) AS i",
        "ALTER TABLE t ADD v int DEFAULT 7",
        "CREATE TABLE t_later PARTITION OF t DEFAULT",
    )
    assert set(definitions(postgres)) == {"t"}
    found = definition(postgres)
    assert (found.kind, found.file_node, found.key) == ("p", 0, ("id", "k"))
    assert found.attributes[2].missing == "7"
    of_class = dict(run(postgres, "SELECT relname, (oid, relfilenode)::text FROM pg_class WHERE relkind = 'r'"))
    expected = sorted(of_class[name] for name in ("t_x", "t_y_all", "t_later"))
    assert sorted(f"({oid},{node})" for oid, node in found.storage) == expected
    asked = definitions(postgres, "t_x", "t_y")
    assert [asked[name].is_partition for name in ("t_x", "t_y")] == [True, True]
    assert not found.is_partition
    assert not found.weak_partitions
    run(
        postgres,
        "CREATE TABLE other (id int NOT NULL, k text NOT NULL)",
        "ALTER TABLE other ADD v int DEFAULT 8",
        "ALTER TABLE t DETACH PARTITION t_later",
        "ALTER TABLE t ATTACH PARTITION other DEFAULT",
    )
    assert definition(postgres).attributes[2].missing is Missing.UNKNOWN
    assert definition(postgres).storage != found.storage


def test_partitions_when_some_log_less_than_their_table_then_they_are_named(postgres: SourceServer) -> None:
    run(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (9)",
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (9) TO (99)",
        "CREATE UNLOGGED TABLE t_3 PARTITION OF t DEFAULT",
        "ALTER TABLE t_1 REPLICA IDENTITY FULL",
    )
    found = definition(postgres)
    assert (found.identity, found.weak_partitions) == (("id",), ())
    assert found.unlogged == (("public", "t_3"),)
    run(postgres, "ALTER TABLE t_2 REPLICA IDENTITY NOTHING")
    found = definition(postgres)
    assert (found.identity, found.weak_partitions) == ((), (("public", "t_2"),))
    # FULL of the table alone is no FULL of its partitions
    run(postgres, "ALTER TABLE t_2 REPLICA IDENTITY DEFAULT", "ALTER TABLE t REPLICA IDENTITY FULL")
    found = definition(postgres)
    assert (found.identity, found.weak_partitions) == (("id",), (("public", "t_2"), ("public", "t_3")))


def test_tables_when_they_are_of_other_kinds_then_only_those_with_rows_of_their_own_are_listed(
    postgres: SourceServer,
) -> None:
    run(
        postgres,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE heir (more int) INHERITS (t)",
        "CREATE UNLOGGED TABLE fleeting (a int)",
        "CREATE VIEW seen AS SELECT 1 AS a",
        "CREATE MATERIALIZED VIEW kept AS SELECT 1 AS a",
        "CREATE EXTENSION file_fdw",
        "CREATE SERVER files FOREIGN DATA WRAPPER file_fdw",
        "CREATE FOREIGN TABLE outside (a int) SERVER files OPTIONS (filename '/dev/null')",
        "CREATE SEQUENCE numbers",
    )
    with postgres.connect("shop") as connection:
        connection.execute("CREATE TEMPORARY TABLE passing (a int)")
        found = definitions(postgres)
        assert set(found) == {"t", "heir", "fleeting"}
    assert found["fleeting"].unlogged == (("public", "fleeting"),)
    assert not found["t"].unlogged
    assert definitions(postgres, "seen", "outside", "nobody") == {}
    assert set(definitions(postgres, oids=[found["t"].oid])) == {"t"}
    assert definitions(postgres, oids=[]) == {}
    assert definitions(postgres, oids=[1]) == {}


def test_restated_when_a_label_or_a_composite_changes_then_rows_are_printed_otherwise(postgres: SourceServer) -> None:
    _make_types(postgres)
    run(
        postgres,
        "CREATE TYPE inner_pair AS (m mood[])",
        "CREATE TABLE t (id int, p inner_pair, f feeling[], c pair, r int4range)",
        "INSERT INTO t VALUES (1, '({bad})', '{bad}', '(1,a)', NULL)",
    )
    first = definition(postgres)
    run(postgres, "ALTER TYPE mood ADD VALUE 'fine' BEFORE 'bad'", "ALTER TABLE t ADD other mood")
    assert restated(first, definition(postgres)) == ""
    run(postgres, "ALTER TYPE pair RENAME ATTRIBUTE y TO z")
    assert restated(first, definition(postgres)) == ""
    run(postgres, "ALTER TYPE mood RENAME VALUE 'bad' TO 'worse'")
    second = definition(postgres)
    assert run(postgres, "SELECT p::text, f::text FROM t") == [("({worse})", "{worse}")]
    assert "'bad'" in restated(first, second)
    run(postgres, "ALTER TYPE pair ADD ATTRIBUTE more int")
    assert run(postgres, "SELECT c::text FROM t") == [("(1,a,)",)]
    assert "attributes" in restated(second, definition(postgres))


def test_restated_when_what_changes_is_changed_back_then_rows_of_meanwhile_were_printed_otherwise(
    postgres: SourceServer,
) -> None:
    run(
        postgres,
        "CREATE TYPE mood AS ENUM ('bad', 'so so')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE TABLE t (m mood)",
        "CREATE TABLE u (p pair)",
    )
    moods, pairs = definition(postgres), definition(postgres, "u")
    run(postgres, "ALTER TYPE mood RENAME VALUE 'bad' TO 'worse'", "ALTER TYPE mood RENAME VALUE 'worse' TO 'bad'")
    run(postgres, "ALTER TYPE pair ADD ATTRIBUTE c int", "ALTER TYPE pair DROP ATTRIBUTE c")
    assert "'bad'" in restated(moods, definition(postgres))
    assert "attributes" in restated(pairs, definition(postgres, "u"))


def test_definitions_when_there_are_many_tables_then_a_few_statements_read_them(postgres: SourceServer) -> None:
    with postgres.connect("shop") as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('a', 'b')")
        connection.execute(
            "DO $$ BEGIN FOR i IN 1..300 LOOP"
            " EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, m mood, v text)', i); END LOOP; END $$"
        )
    statements = 0
    with closing(connect(login(postgres), "shop")) as connection:
        run_ = connection.run

        def counted(*words: object, **parameters: object) -> object:
            nonlocal statements
            statements += 1
            return run_(*words, **parameters)

        connection.run = counted  # type: ignore[method-assign]
        assert len(read_definitions(connection)) == 300
    assert statements < 10


def test_definitions_when_a_statement_changes_them_meanwhile_then_all_are_of_one_moment(postgres: SourceServer) -> None:
    run(postgres, "CREATE TABLE t (id int PRIMARY KEY, a int)", "CREATE TABLE u (id int PRIMARY KEY)")
    with closing(connect(login(postgres), "shop")) as connection, one_moment(connection):
        before = read_definitions(connection, [("public", "t"), ("public", "u")], in_transaction=True)
        run(postgres, "ALTER TABLE t DROP a, ADD b int DEFAULT 3", "DROP TABLE u")
        assert read_definitions(connection, [("public", "t"), ("public", "u")], in_transaction=True) == before
    assert set(definitions(postgres)) == {"t"}


def test_definitions_when_the_user_may_select_alone_then_they_are_read(postgres: SourceServer) -> None:
    run(postgres, "CREATE TABLE t (id int PRIMARY KEY)", f"REVOKE ALL ON t FROM {USER}", "CREATE SCHEMA hidden",
        "CREATE TABLE hidden.u (id int PRIMARY KEY DEFAULT 5)", "ALTER TABLE hidden.u ADD a int DEFAULT 5")  # fmt: skip
    with closing(connect(login(postgres), "shop")) as connection:
        assert rows(connection, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") == [(False,)]
        found = read_definitions(connection)
    assert set(found) == {("public", "t"), ("hidden", "u")}
    assert found["hidden", "u"].attributes[1].missing == "5"
    with (
        pytest.raises(psycopg.errors.InsufficientPrivilege),
        postgres.connect("shop", user=USER, password=PASSWORD) as other,
    ):
        other.execute("SELECT * FROM t")


def test_definitions_when_the_release_knows_more_kinds_of_columns_and_keys_then_they_are_what_they_are(
    newest: SourceServer,
) -> None:
    run(
        newest,
        "CREATE EXTENSION btree_gist",
        "CREATE TABLE t (id int, at daterange, v int, twice int GENERATED ALWAYS AS (id * 2), n int,"
        " PRIMARY KEY (id, at WITHOUT OVERLAPS))",
        "INSERT INTO t (id, at) VALUES (1, '[2020-01-01,2020-02-01)')",
        "ALTER TABLE t ADD CONSTRAINT later NOT NULL v NOT VALID",
        "ALTER TABLE t ADD w int NOT NULL DEFAULT 5",
    )
    found = definition(newest)
    assert found.key == found.identity == ("id", "at")
    assert [one.name for one in found.sent] == ["id", "at", "v", "n", "w"]
    assert [one.not_null for one in found.attributes] == [True, True, False, False, False, True]
    assert found.attributes[-1].missing == "5"
    run(newest, "UPDATE t SET v = 1", "ALTER TABLE t VALIDATE CONSTRAINT later")
    assert definition(newest).attributes[2].not_null
