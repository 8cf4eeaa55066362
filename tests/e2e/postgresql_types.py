"""A PostgreSQL table with every type, and rows at the edges of each."""

from tests.postgres import SourceServer

TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'it''s ok', 'glücklich')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN price AS numeric(8,2) CHECK (value >= 0)",
    "CREATE DOMAIN label AS text",
    "CREATE TYPE span AS RANGE (subtype = float8)",
    "CREATE EXTENSION hstore",
)
#: column, type, values: the first is what most rows hold, the others are edges
# ruff: noqa: E501  (a table: one column a line)
COLUMNS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("c_bool", "boolean", ("true", "false")),
    ("c_int2", "smallint", ("1", "-32768", "32767")),
    ("c_int4", "integer", ("1", "-2147483648", "2147483647")),
    ("c_int8", "bigint", ("1", "-9223372036854775808", "9223372036854775807")),
    ("c_oid", "oid", ("1", "0", "4294967295")),
    ("c_xid", "xid", ("'1'", "'4294967295'")),
    ("c_cid", "cid", ("'1'", "'4294967295'")),
    ("c_xid8", "xid8", ("'1'", "'18446744073709551615'")),
    ("c_num", "numeric(10,2)", ("10.05", "-99999999.99", "0.00", "'NaN'")),
    ("c_num_38", "numeric(38,10)", ("1.5", "-9999999999999999999999999999.9999999999", "0.0000000001")),
    ("c_num_0", "numeric(5,0)", ("7", "-99999")),
    ("c_num_all", "numeric(38,38)", ("0.5", "-0.99999999999999999999999999999999999999")),
    ("c_num_wide", "numeric(50,20)", ("1.5", "'NaN'", "123456789012345678901234567890.12345678901234567890")),
    ("c_num_neg", "numeric(5,-2)", ("12300", "-100")),
    ("c_num_any", "numeric", ("1.50", "'Infinity'", "'-Infinity'", "'NaN'", "1e-30", "1e100")),
    ("c_real", "real", ("0.1", "'NaN'", "'-Infinity'", "3.4028235e38", "1e-45", "'-0'")),
    ("c_double", "double precision", ("0.1", "'NaN'", "'Infinity'", "1.7976931348623157e308", "5e-324", "'-0'", "1e15", "1e16")),
    ("c_money", "money", ("12.34", "'-$92,233,720,368,547,758.08'")),
    ("c_text", "text", ("'grün'", "''", "'日本語🔔'", "'a\nb\tc\\d\"e'", "repeat('long ', 50000)", "'NULL'", "'\\N'")),
    ("c_varchar", "varchar(300)", ("'hello'", "' two blanks  '", "repeat('ü', 300)")),
    ("c_char", "char(10)", ("'pad'", "''", "'日本語'")),
    ("c_onechar", '"char"', ("'x'", "''")),
    ("c_name", "name", ("'a name'", "repeat('n', 63)::name")),
    ("c_bytea", "bytea", ("'\\x00ff'", "''", "decode(repeat('AB', 100000), 'hex')", "'\\\\x'")),
    ("c_date", "date", ("'2024-02-29'", "'0001-01-01'", "'9999-12-31'", "'infinity'", "'-infinity'", "'0044-03-15 BC'", "'12345-06-07'", "'1969-12-31'")),
    ("c_time", "time", ("'12:34:56.789'", "'00:00:00'", "'24:00:00'", "'23:59:59.999999'")),
    ("c_time_0", "time(0)", ("'12:34:56'", "'00:00:01'")),
    ("c_timetz", "timetz", ("'12:34:56+02'", "'00:00:00-15:59'")),
    ("c_ts", "timestamp", ("'2024-02-29 23:59:59.5'", "'0001-01-01'", "'9999-12-31 23:59:59.999999'", "'infinity'", "'-infinity'", "'0044-03-15 12:00 BC'", "'12345-06-07'", "'1969-12-31 23:59:59.000001'")),
    ("c_ts_3", "timestamp(3)", ("'2024-01-01 00:00:00.123'", "'2000-01-01'")),
    ("c_tstz", "timestamptz", ("'2024-03-31 02:30:00+02'", "'0001-01-01 00:00:00+00'", "'9999-12-31 23:59:59.999999+00'", "'infinity'", "'0044-03-15 12:00+00 BC'", "'1970-01-01 00:00:00.000001+00'")),
    ("c_interval", "interval", ("'1 year 2 mons -3 days 04:05:06.7'", "'0'", "'-178000000 years'")),
    ("c_uuid", "uuid", ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",)),
    ("c_json", "json", ("'{\"a\": [1, null, \"ü\"],  \"a\": 2}'", "'null'", "'-1.5e100'")),
    ("c_jsonb", "jsonb", ("'{\"b\": 1, \"a\": [true, {}]}'", "'\"text\"'", "'1e1000'")),
    ("c_xml", "xml", ("'<a b=\"c\">d</a>'", "''")),
    ("c_inet", "inet", ("'10.1.2.3/32'", "'10.1.2.3/8'", "'::ffff:1.2.3.4'")),
    ("c_cidr", "cidr", ("'10.1.0.0/16'", "'10.1.2.3/32'")),
    ("c_macaddr", "macaddr", ("'08:00:2b:01:02:03'",)),
    ("c_macaddr8", "macaddr8", ("'08:00:2b:01:02:03:04:05'",)),
    ("c_bit", "bit(5)", ("B'10101'", "B'00000'")),
    ("c_bit_1", "bit", ("B'1'", "B'0'")),
    ("c_varbit", "bit varying(9)", ("B'101'", "B''")),
    ("c_lsn", "pg_lsn", ("'16/B374D848'", "'0/0'")),
    ("c_tsvector", "tsvector", ("'''a'':1 b:2A'", "''")),
    ("c_tsquery", "tsquery", ("'a & !b'",)),
    ("c_point", "point", ("'(1.5,-2)'",)),
    ("c_box", "box", ("'(1,2),(0,0)'",)),
    ("c_polygon", "polygon", ("'((0,0),(1,1),(1,0))'",)),
    ("c_circle", "circle", ("'<(0,0),1>'",)),
    ("c_ints", "int[]", ("'{1,NULL,-3}'", "'{}'", "'[0:1]={1,2}'", "'{{1,2},{3,4}}'")),
    ("c_texts", "text[]", ("'{a,\"b,c\",\"q\\\"\",NULL,\"NULL\",\"\"}'",)),
    ("c_moods", "mood[]", ("'{sad,glücklich}'",)),
    ("c_int4range", "int4range", ("'[1,5)'", "'empty'", "'(,)'")),
    ("c_tstzrange", "tstzrange", ("'[2024-01-01 00:00+00,2024-01-02 00:00+00)'",)),
    ("c_multirange", "int4multirange", ("'{[1,3),[5,7)}'", "'{}'")),
    ("c_span", "span", ("'[1.5,2.5]'",)),
    ("c_mood", "mood", ("'sad'", "'it''s ok'", "'glücklich'")),
    ("c_pair", "pair", ("'(1,\"a b\")'", "'(,)'")),
    ("c_price", "price", ("1.50", "999999.99")),
    ("c_label", "label", ("'a'", "''")),
    ("c_hstore", "hstore", ("'a=>1, \"b c\"=>NULL'", "''")),
    ("c_regclass", "regclass", ("'pg_class'",)),
    ("c_jsonpath", "jsonpath", ("'$.a[*] ? (@ > 1)'",)),
)  # fmt: skip
#: from here on a scale may be negative
SCALE_VERSION = 150000
NAMES = ", ".join(name for name, _, _ in COLUMNS)
ROUNDS = max(len(values) for _, _, values in COLUMNS)


def create(server: SourceServer, database: str, table: str = "every_type") -> None:
    """The table, with its first rows: every edge, and NULL everywhere."""
    ((version,),) = server.run("SHOW server_version_num")
    is_without_scale = int(str(version)) < SCALE_VERSION
    columns = ", ".join(
        f"{name} {'numeric' if name == 'c_num_neg' and is_without_scale else kind}" for name, kind, _ in COLUMNS
    )
    server.run(*TYPES, f"CREATE TABLE {table} (id int PRIMARY KEY, {columns})", database=database)
    server.run(*first_rows(table), database=database)


def first_rows(table: str) -> list[str]:
    return [*_inserts(table, 0), f"INSERT INTO {table} (id) VALUES (100), (101), (102)"]


def change(server: SourceServer, database: str, table: str = "every_type") -> None:
    """The same rows again, then updates of every column, a key change, a delete."""
    statements = _inserts(table, 1000)
    statements.append(f"INSERT INTO {table} (id, {NAMES}) SELECT 103, {NAMES} FROM {table} WHERE id = 0")
    for name, _, values in COLUMNS:
        statements.append(f"UPDATE {table} SET {name} = {values[-1]} WHERE id = 100")
        statements.append(f"UPDATE {table} SET {name} = NULL WHERE id = 103")
    statements += [f"UPDATE {table} SET id = 300 WHERE id = 2", f"DELETE FROM {table} WHERE id = 101"]
    server.run(*statements, database=database)


def _inserts(table: str, first: int) -> list[str]:
    return [
        f"INSERT INTO {table} (id, {NAMES}) VALUES ({first + row},"
        f" {', '.join(values[row % len(values)] for _, _, values in COLUMNS)})"
        for row in range(ROUNDS)
    ]
