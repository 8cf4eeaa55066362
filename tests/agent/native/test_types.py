"""Every type on both servers: what the decoder makes of the log equals what a SELECT prints."""

# ruff: noqa: E501  (SQL)

import json
import random
import struct

import pytest
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent

from agent.sources.mysql.log.charsets import CharsetUnknown, charset_of_collation
from agent.sources.mysql.native.decoder import BinlogDecoder
from tests.agent.native.capture import current_state, decode_all, dump, logged
from tests.agent.native.mutation import without_checksums
from tests.agent.native.selection import assert_select_gives_the_same
from tests.compare import compare, read_source
from tests.e2e import every_type
from tests.servers import Server


@pytest.fixture
def every_type_in_t(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every_type, "DATABASE", "t")


@pytest.mark.usefixtures("every_type_in_t")
def test_every_type_after_inserts_updates_and_deletes_equals_select(source: Server) -> None:
    source.run("FLUSH BINARY LOGS")
    file = str(source.run("SHOW BINARY LOGS")[-1][0])
    every_type.create(source, source.flavor)
    every_type.change(source, source.flavor, first_half=True)
    every_type.change(source, source.flavor, first_half=False)

    decoded = decode_all(dump(source, file), mariadb=source.flavor == "mariadb", chunk=100_003)

    columns, rows = read_source(source, "t", "every_type")
    state = current_state(decoded.table("every_type"))
    comparison = compare("every_type", columns, rows, state, {column.name: column.name for column in columns})
    assert comparison.equal, comparison
    assert comparison.source_rows >= 8
    assert_select_gives_the_same(source, decoded.table("every_type"), "every_type")


EDGES = """
    CREATE TABLE edges (id INT PRIMARY KEY, d DATE, t TIME(6), t0 TIME, t1 TIME(1), t3 TIME(3), t5 TIME(5), dt DATETIME(6),
    dt0 DATETIME, dt1 DATETIME(1), dt3 DATETIME(3), ts TIMESTAMP(6) NULL, ts0 TIMESTAMP NULL, ts3 TIMESTAMP(3) NULL, y YEAR,
    d1 DECIMAL(1,0), d2 DECIMAL(10,10), d3 DECIMAL(18,9), d4 DECIMAL(19,9), d5 DECIMAL(38,0), d6 DECIMAL(38,30),
    d7 DECIMAL(39,30), d8 DECIMAL(65,0), d9 DECIMAL(30,30), d10 DECIMAL(5,2) UNSIGNED,
    s1 SET('a'), s9 SET('a','b','c','d','e','f','g','h','i'), b5 BINARY(5), b0 VARBINARY(5), b9 BIT(9), b63 BIT(63))"""


def _edge_rows(count: int) -> list[str]:
    """Rows at and between the edges of temporal and exact types, the same in every run."""
    chance = random.Random(7)

    def time(digits: int) -> str:
        seconds = chance.choice([0, 1, 59, 3600, 838 * 3600 + 59 * 60 + 58, chance.randrange(839 * 3600 - 1)])
        fraction = f".{chance.choice([0, 1, 10**digits - 1, chance.randrange(10**digits)]):0{digits}}" if digits else ""
        sign = chance.choice(["", "-"])
        return f"'{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}'"

    def date() -> str:
        year, month, day = (
            chance.choice([0, 1, 1000, 1969, 1970, 2000, 2024, 9999]),
            chance.randrange(13),
            chance.randrange(32),
        )
        return f"{year:04}-{month:02}-{day:02}"

    def datetime(digits: int) -> str:
        return f"'{date()} {chance.randrange(24):02}:{chance.randrange(60):02}:{chance.randrange(60):02}.{chance.randrange(10**6):06}'"

    def stamp() -> str:
        moment = f"'{chance.randrange(1971, 2038)}-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02} 12:34:56.{chance.randrange(10**6):06}'"
        return chance.choice(["0", moment, moment])

    def decimal(precision: int, scale: int, signs: str = " -") -> str:
        digits = chance.choice(
            [
                "9" * precision,
                "0" * precision,
                "0" * (precision - 1) + "1",
                f"{chance.randrange(10**precision):0{precision}}",
            ]
        )
        return f"{chance.choice(signs)}{digits[: precision - scale] or '0'}.{digits[precision - scale :] or '0'}"

    rows = []
    for number in range(count):
        values = [str(number), f"'{date()}'", time(6), time(0), time(1), time(3), time(5)]
        values += [datetime(6), datetime(0), datetime(1), datetime(3), stamp(), stamp(), stamp()]
        values.append(str(chance.choice([0, 1901, 2155, 2024])))
        shapes = ((1, 0), (10, 10), (18, 9), (19, 9), (38, 0), (38, 30), (39, 30), (65, 0), (30, 30))
        values += [decimal(precision, scale) for precision, scale in shapes]
        values.append(decimal(5, 2, " "))
        values += [str(chance.randrange(2)), str(chance.randrange(512))]
        values.append(f"X'{chance.randbytes(chance.randrange(5)).hex()}{chance.choice(['', '00'])}'")
        values += [
            f"X'{chance.randbytes(chance.randrange(5)).hex()}'",
            str(chance.randrange(512)),
            str(chance.randrange(2**63)),
        ]
        rows.append(f"({', '.join(values)})")
    return rows


def test_temporal_and_exact_values_at_their_edges_equal_select(source: Server) -> None:
    rows = _edge_rows(400)
    data = logged(
        source,
        "DROP TABLE IF EXISTS edges",
        EDGES,
        "SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'",
        f"INSERT IGNORE INTO edges VALUES {', '.join(rows)}",
    )

    decoded = decode_all(data, mariadb=source.flavor == "mariadb", chunk=977)

    columns, expected = read_source(source, "t", "edges")
    comparison = compare(
        "edges", columns, expected, decoded.table("edges").to_pylist(), {c.name: c.name for c in columns}
    )
    assert comparison.equal, comparison
    assert comparison.source_rows == 400
    assert_select_gives_the_same(source, decoded.table("edges"), "edges")


def test_unrepresentable_dates_when_invalid_keep_the_servers_text_under_the_escaped_name(source: Server) -> None:
    data = logged(
        source,
        "DROP TABLE IF EXISTS odd",
        'CREATE TABLE odd (id INT PRIMARY KEY, `a"b\\\\é` DATE NOT NULL, dt DATETIME(3), ts TIMESTAMP NULL)',
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "INSERT INTO odd VALUES (1, '2023-02-31', '0000-00-00', 0), (2, '2024-02-29', NULL, NULL)",
    )

    changes = decode_all(data, mariadb=source.flavor == "mariadb").table("odd")
    rows = changes.to_pylist()

    name = 'a"b\\é' if 'a"b\\é' in rows[0] else 'a"b\\\\é'
    assert [row[name] is None for row in rows] == [True, False]
    assert json.loads(rows[0]["_unrepresentable"]) == {
        name: "2023-02-31",
        "dt": "0000-00-00 00:00:00.000",
        "ts": "0000-00-00 00:00:00",
    }
    assert rows[1]["_unrepresentable"] is None
    assert_select_gives_the_same(source, changes, "odd")


JSON_DOCUMENTS = [
    *("'{}'", "'[]'", "'null'", "'true'", "'-0.0'", "'1e15'", "'1000000000000000.5'", "'1e-15'", "'1e-16'", "'5e-324'"),
    "'1.7976931348623157e308'",
    "CAST(X'" + "0102FE" * 60 + "' AS JSON)",
    "JSON_ARRAY(ST_GeomFromText('POINT(1 2)'), b'1010')",
    "JSON_ARRAY(CAST('2024-01-02' AS DATE), CAST('-10:11:12.5' AS TIME(1)), CAST('838:59:59' AS TIME),"
    " CAST(-1.50 AS DECIMAL(5,2)), CAST(0.00 AS DECIMAL(5,2)), CAST('2024-01-02 03:04:05' AS DATETIME),"
    " TIMESTAMP'2024-01-02 03:04:05.000006', CAST(2024 AS YEAR), 123456789012345678901234567890.123456789, -.00000001)",
    "JSON_OBJECT('a\\nb\\\"c\\\\', '\\0\\b\\t\\n\\r/é\\Z\x1f\x7f', '', 1, 'é🔔', '🔔')",
    "JSON_ARRAY(-128, 32767, 32768, 65535, 65536, -32769, 2147483647, 2147483648, -2147483648, 4294967295, 4294967296,"
    " 9223372036854775807, 18446744073709551615, -9223372036854775808)",
    "JSON_OBJECT('k', REPEAT('v', 70000), 'i', 70000, 'u', CAST(4000000000 AS UNSIGNED), 'n', JSON_ARRAY(JSON_OBJECT(), NULL, TRUE, FALSE))",
    "JSON_ARRAY(REPEAT('x', 127), REPEAT('x', 128), REPEAT('x', 20000))",
    "CAST(CONCAT(REPEAT('[', 100), REPEAT(']', 100)) AS JSON)",
]


def test_binary_json_of_every_kind_equals_select(mysql: Server) -> None:
    chance = random.Random(11)
    doubles = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(200)]
    doubles += [chance.uniform(-1, 1) * 10.0 ** chance.randint(-18, 20) for _ in range(200)]
    documents = JSON_DOCUMENTS + [f"'[{double!r}]'" for double in doubles if abs(double) < 1e309]
    rows = ", ".join(f"({number}, {document})" for number, document in enumerate(documents))
    data = logged(
        mysql, "DROP TABLE IF EXISTS j", "CREATE TABLE j (id INT PRIMARY KEY, j JSON)", f"INSERT INTO j VALUES {rows}"
    )

    changes = decode_all(data, mariadb=False).table("j")
    decoded = {row["id"]: row["j"] for row in changes.to_pylist()}

    assert decoded == dict(mysql.run("SELECT id, CAST(j AS CHAR) FROM t.j"))
    assert_select_gives_the_same(mysql, changes, "j")


def test_text_of_every_charset_equals_select(source: Server) -> None:
    charsets = [str(name) for (name,) in source.run("SELECT character_set_name FROM information_schema.character_sets")]
    charsets = [name for name in charsets if name != "binary"]
    columns = ", ".join(f"`{name}` TEXT CHARACTER SET {name}" for name in charsets)
    sample = "'Aé~\\\\ žЖΩא日本語ｱ가Ğ|[]{}@` €½ə♥'"
    data = logged(
        source,
        "DROP TABLE IF EXISTS texts",
        f"CREATE TABLE texts (id INT PRIMARY KEY, {columns})",
        "SET sql_mode = ''",
        f"INSERT IGNORE INTO texts VALUES (1, {', '.join([sample] * len(charsets))})",
    )

    changes = decode_all(data, mariadb=source.flavor == "mariadb").table("texts")
    (row,) = changes.to_pylist()

    (expected,) = source.run(f"SELECT {', '.join(f'`{name}`' for name in charsets)} FROM t.texts")
    assert {name: row[name] for name in charsets} == dict(zip(charsets, expected, strict=True))
    assert len(charsets) >= 39
    assert_select_gives_the_same(source, changes, "texts")


def test_collation_ids_of_the_server_are_all_known_by_their_charset(source: Server) -> None:
    where = "collations" if source.flavor == "mysql" else "COLLATION_CHARACTER_SET_APPLICABILITY"
    listed = source.run(f"SELECT id, character_set_name FROM information_schema.{where}")
    for collation_id, charset in listed:
        assert charset_of_collation(int(str(collation_id)), mariadb=source.flavor == "mariadb") == charset
    assert len(listed) > 250


def test_collation_ids_when_they_are_free_for_the_servers_owner_then_no_charset_is_guessed(source: Server) -> None:
    where = "collations" if source.flavor == "mysql" else "COLLATION_CHARACTER_SET_APPLICABILITY"
    listed = {int(str(row[0])) for row in source.run(f"SELECT id FROM information_schema.{where} WHERE id IS NOT NULL")}
    for collation_id in set(range(1024, 2048)) - listed:
        with pytest.raises(CharsetUnknown):
            charset_of_collation(collation_id, mariadb=source.flavor == "mariadb")


@pytest.mark.parametrize("charset", ["utf8mb4", "utf8mb3", "ascii", "sjis", "tis620"])
def test_bytes_that_are_no_text_of_their_charset_make_a_null_and_are_kept(source: Server, charset: str) -> None:
    data = logged(
        source,
        "DROP TABLE IF EXISTS broken",
        f"CREATE TABLE broken (id INT PRIMARY KEY, note VARCHAR(20) CHARACTER SET {charset})",
        "INSERT INTO broken VALUES (1, 'canary'), (2, 'sound')",
    )
    damaged = without_checksums(data).replace(b"\x06canary", b"\x06can\xff\xff\xff")
    decoder = BinlogDecoder(mariadb=source.flavor == "mariadb", checksum=False, next_gsn=1, next_transaction_id=1)

    rows = decode_all(damaged, mariadb=source.flavor == "mariadb", decoder=decoder).table("broken").to_pylist()

    assert [row["note"] for row in rows] == [None, "sound"]
    assert [row["_unrepresentable"] for row in rows] == ['{"note":"0x63616EFFFFFF"}', None]


@pytest.mark.filterwarnings("ignore:'db' is deprecated:DeprecationWarning")
def test_rows_when_read_by_mysql_replication_are_the_same(source: Server) -> None:
    source.run("FLUSH BINARY LOGS")
    file = str(source.run("SHOW BINARY LOGS")[-1][0])
    source.run(
        "DROP TABLE IF EXISTS agreed",
        "CREATE TABLE agreed (id BIGINT PRIMARY KEY, i INT, u INT UNSIGNED, b BIGINT UNSIGNED, d DECIMAL(20,6), f DOUBLE,"
        " v VARCHAR(300), x BLOB, da DATE, dt DATETIME(6), e ENUM('one','two'))",
        "INSERT INTO agreed VALUES (1, -5, 4000000000, 18446744073709551615, -12345.678901, 0.1, 'grün 🔔', X'00FF',"
        " '2024-02-29', '2024-02-29 23:59:59.000001', 'two'), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        database="t",
    )
    stream = BinLogStreamReader(
        {"host": source.host, "port": source.port, "user": "menura", "password": "menura-secret"},
        server_id=77001,
        only_events=[WriteRowsEvent],
        only_tables=["agreed"],
        log_file=file,
        log_pos=4,
        resume_stream=True,
    )
    try:
        theirs = [row["values"] for event in stream for row in event.rows]
    finally:
        stream.close()

    ours = decode_all(dump(source, file), mariadb=source.flavor == "mariadb").table("agreed").to_pylist()

    names = [name for name in ours[0] if not name.startswith("_")]
    assert [{name: row[name] for name in names} for row in ours] == [
        {name: row[name] for name in names} for row in theirs
    ]
