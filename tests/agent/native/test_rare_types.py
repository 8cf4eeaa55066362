"""Types that only one server has, that need the table's definition, or that servers no longer create."""

# ruff: noqa: E501  (SQL)

import ipaddress
import random
import struct

import pytest

from agent.sources.mysql.native.decoder import BinlogDecoder, DecodeError
from agent.sources.mysql.schema.table_planner import definition_of
from tests.agent.native.capture import decode_all, definitions, logged
from tests.agent.native.mutation import without_checksums
from tests.agent.native.selection import assert_select_gives_the_same
from tests.compare import compare, read_source
from tests.servers import Server

GEOMETRIES = [
    "POINT(1 2)",
    "LINESTRING(0 0,1 1.5,-2 3)",
    "POLYGON((0 0,10 0,10 10,0 10,0 0),(1 1,2 1,2 2,1 1))",
    "MULTIPOINT(1 1,2 2)",
    "MULTILINESTRING((0 0,1 1),(2 2,3 3,4 4))",
    "MULTIPOLYGON(((0 0,1 0,1 1,0 0)),((5 5,6 5,6 6,5 5)))",
    "GEOMETRYCOLLECTION(POINT(1 2),LINESTRING(0 0,1 1),GEOMETRYCOLLECTION(POINT(3 4)))",
    "GEOMETRYCOLLECTION EMPTY",
]


def test_geometry_of_every_kind_is_the_servers_wkb_with_its_srid(source: Server) -> None:
    values = [f"({number}, ST_GeomFromText('{text}'))" for number, text in enumerate(GEOMETRIES)]
    values += [f"({number}, ST_GeomFromText('{text}', 4326))" for number, text in enumerate(GEOMETRIES, 100)]
    data = logged(
        source,
        "DROP TABLE IF EXISTS shapes",
        "CREATE TABLE shapes (id INT PRIMARY KEY, shape GEOMETRY, note VARCHAR(9) DEFAULT 'x')",
        f"INSERT INTO shapes (id, shape) VALUES {', '.join(values)}, (200, NULL)",
    )

    changes = decode_all(data, mariadb=source.flavor == "mariadb").table("shapes")
    rows = changes.to_pylist()

    assert [row["_unrepresentable"] for row in rows] == [None] * len(rows)
    stored = {
        number: bytes.fromhex(shape) for number, shape in source.run("SELECT id, HEX(shape) FROM t.shapes") if shape
    }
    assert [row["shape"] for row in rows] == [_ewkb(stored.get(row["id"])) for row in rows]
    assert len(stored) >= 2 * len(GEOMETRIES) - 2  # MariaDB makes NULL of a collection in a collection
    assert_select_gives_the_same(source, changes, "shapes")


def _ewkb(stored: bytes | None) -> bytes | None:
    """What the server returns, SRID and WKB, with the SRID where EWKB has it."""
    if stored is None:
        return None
    (kind,) = struct.unpack_from("<I", stored, 5)
    return b"\1" + struct.pack("<I", kind | 0x20000000) + stored[:4] + stored[9:]


def test_vector_is_what_the_server_returns(mysql: Server) -> None:
    data = logged(
        mysql,
        "DROP TABLE IF EXISTS vectors",
        "CREATE TABLE vectors (id INT PRIMARY KEY, v VECTOR(3), w VECTOR, note VARCHAR(9), raw VARBINARY(9))",
        "INSERT INTO vectors VALUES (1, STRING_TO_VECTOR('[1,-2.5,3e38]'), STRING_TO_VECTOR('[0]'), 'text', 'raw'),"
        " (2, NULL, NULL, NULL, NULL)",
    )

    changes = decode_all(data, mariadb=False).table("vectors")
    rows = changes.to_pylist()

    assert rows[0]["v"] == struct.pack("<3f", 1, -2.5, 3e38)
    assert rows[0]["w"] == struct.pack("<f", 0)
    assert rows[1]["v"] is None
    assert (rows[0]["note"], rows[0]["raw"]) == ("text", b"raw")  # a vector has a collation in the log, too
    assert_select_gives_the_same(mysql, changes, "vectors")


@pytest.mark.parametrize(
    ("place", "byte"),
    [
        pytest.param(4, 0, id="byte order"),
        pytest.param(5, 0, id="type 0"),
        pytest.param(5, 8, id="type 8"),
        pytest.param(5, 2, id="a line without its points"),
        pytest.param(5, 7, id="a collection of points without a type"),
        pytest.param(8, 1, id="type beyond a byte"),
    ],
)
def test_bytes_that_are_no_geometry_are_kept_and_the_table_goes_on(source: Server, place: int, byte: int) -> None:
    data = logged(
        source,
        "DROP TABLE IF EXISTS shapes",
        "CREATE TABLE shapes (id INT PRIMARY KEY, shape GEOMETRY)",
        "INSERT INTO shapes VALUES (1, POINT(1, 2)), (2, POINT(3, 4))",
    )
    point = struct.pack("<IBI2d", 0, 1, 1, 1, 2)
    damaged = bytearray(point)
    damaged[place] = byte
    decoder = BinlogDecoder(mariadb=source.flavor == "mariadb", checksum=False, next_gsn=1, next_transaction_id=1)

    rows = (
        decode_all(
            without_checksums(data).replace(point, bytes(damaged)), mariadb=source.flavor == "mariadb", decoder=decoder
        )
        .table("shapes")
        .to_pylist()
    )

    assert [row["shape"] is None for row in rows] == [True, False]
    assert [row["_unrepresentable"] for row in rows] == [f'{{"shape":"0x{damaged.hex().upper()}"}}', None]


def test_mariadbs_vector_is_what_the_server_returns(mariadb: Server) -> None:
    if not mariadb.run("SELECT @@version LIKE '11.8%'")[0][0]:
        pytest.skip("MariaDB has vectors from 11.7 on")
    data = logged(
        mariadb,
        "DROP TABLE IF EXISTS vectors",
        "CREATE TABLE vectors (id INT PRIMARY KEY, v VECTOR(3) NOT NULL, note VARCHAR(9))",
        "INSERT INTO vectors VALUES (1, VEC_FromText('[1,-2.5,0.5]'), 'text')",
    )

    for defined in ({}, definitions(mariadb, "vectors")):
        decoded = decode_all(data, mariadb=True, defined=defined)
        (row,) = decoded.table("vectors").to_pylist()
        assert (row["v"], row["note"]) == (struct.pack("<3f", 1, -2.5, 0.5), "text")
        described = definition_of(tuple(planned.column for planned in decoded.batches[0].plan.columns))
        assert_select_gives_the_same(mariadb, decoded.table("vectors"), "vectors", described)


def _addresses() -> list[str]:
    """INET6 addresses with zero words everywhere, and those that hold an IPv4 address."""
    chance = random.Random(3)
    addresses = ["::", "::1", "1::", "::ffff:1.2.3.4", "::1.2.3.4", "::ffff:0:0", "0:0:0:0:1:0:0:0", "::ffff:0.0.0.0"]
    addresses += [
        "2001:db8::1:0:0:1",
        "fe80::",
        "1:0:2:0:3:0:4:0",
        "::2:0",
        "0:1::",
        "1:2:3:4:5:6:7::",
        "::fffe:1.2.3.4",
    ]
    for _ in range(300):
        words = [chance.choice([0, 0, 0xFFFF, chance.randrange(65536), chance.randrange(16)]) for _ in range(8)]
        addresses.append(":".join(f"{word:x}" for word in words))
    return addresses


def test_addresses_and_uuids_are_as_the_server_prints_them(mariadb: Server) -> None:
    chance = random.Random(4)
    addresses = _addresses()
    uuids = [f"{chance.getrandbits(128):032x}" for _ in addresses]
    uuids = [f"{text[:12]}{number % 8}{text[13:]}" for number, text in enumerate(uuids)]
    uuids[:3] = ["0" * 32, "f" * 32, "00112233445566778899aabbccddee00"]
    rows = ", ".join(
        f"({number}, '{ipaddress.IPv4Address(chance.choice([0, 1 << 24, chance.getrandbits(32)]))}', '{address}', '{uuid}', X'01', X'02')"
        for number, (address, uuid) in enumerate(zip(addresses, uuids, strict=True))
    )
    data = logged(
        mariadb,
        "DROP TABLE IF EXISTS hosts",
        "CREATE TABLE hosts (id INT PRIMARY KEY, a INET4, b INET6, c UUID, d BINARY(16), e BINARY(4))",
        f"INSERT INTO hosts VALUES {rows}",
    )

    changes = decode_all(data, mariadb=True, defined=definitions(mariadb, "hosts")).table("hosts")
    decoded = changes.to_pylist()

    expected = mariadb.run("SELECT id, a, b, c FROM t.hosts ORDER BY id")
    assert [(row["id"], row["a"], row["b"], row["c"]) for row in decoded] == expected
    assert {(row["d"], row["e"]) for row in decoded} == {(b"\1" + bytes(15), b"\2" + bytes(3))}
    assert_select_gives_the_same(mariadb, changes, "hosts")


def test_compressed_columns_are_inflated(mariadb: Server) -> None:
    values = ["''", "'short'", "REPEAT('ab', 50)", "REPEAT('ü🔔', 2000)", "NULL", "REPEAT('x', 65000)"]
    rows = ", ".join(
        f"({number}, LEFT({v}, 4000), {v}, LEFT({v}, 200), {v}, LEFT({v}, 90), {v})" for number, v in enumerate(values)
    )
    data = logged(
        mariadb,
        "DROP TABLE IF EXISTS squeezed",
        "CREATE TABLE squeezed (id INT PRIMARY KEY, a VARCHAR(4000) COMPRESSED CHARACTER SET utf8mb4, b TEXT COMPRESSED CHARACTER SET utf8mb4,"
        " c VARBINARY(900) COMPRESSED, d LONGBLOB COMPRESSED, e VARCHAR(90) COMPRESSED CHARACTER SET utf16, f MEDIUMTEXT COMPRESSED CHARACTER SET latin1)",
        "SET sql_mode = ''",
        f"INSERT IGNORE INTO squeezed VALUES {rows}",
        "SET column_compression_zlib_wrap = 1",
        "INSERT INTO squeezed (id, b, d) VALUES (100, REPEAT('wrapped', 100), REPEAT(X'00FF', 4000))",
    )

    changes = decode_all(data, mariadb=True).table("squeezed")
    decoded = changes.to_pylist()

    expected = mariadb.run("SELECT id, a, b, CAST(c AS BINARY), d, e, f FROM t.squeezed ORDER BY id")
    assert [tuple(row[name] for name in ("id", *"abcdef")) for row in decoded] == expected
    assert_select_gives_the_same(mariadb, changes, "squeezed")


@pytest.mark.parametrize(
    ("found", "put"),
    [
        pytest.param(b"\x89\x64", b"\x89\x63", id="longer than it says"),
        pytest.param(b"\x89\x64", b"\x89\x65", id="shorter than it says"),
        pytest.param(b"\x89\x64", b"\x79\x64", id="a method that is not known"),
        pytest.param(b"\x89\x64\x4b", b"\x89\x64\xff", id="damaged"),
        pytest.param(b"\x89\x64\x4b", b"\x8f\x64\x4b", id="a length of seven bytes"),
    ],
)
def test_compressed_value_that_is_damaged_is_an_error_that_names_the_column(
    mariadb: Server, found: bytes, put: bytes
) -> None:
    data = logged(
        mariadb,
        "DROP TABLE IF EXISTS squeezed",
        "CREATE TABLE squeezed (id INT PRIMARY KEY, a VARCHAR(100) COMPRESSED)",
        "INSERT INTO squeezed VALUES (1, REPEAT('ab', 50))",
    )
    assert found in data
    decoder = BinlogDecoder(mariadb=True, checksum=False, next_gsn=1, next_transaction_id=1)

    with pytest.raises(DecodeError, match=r"t\.squeezed, column a: a compressed value"):
        decode_all(without_checksums(data).replace(found, put), mariadb=True, decoder=decoder)


OLD_TIMES = "'00:00:00'", "'-00:00:01'", "'12:34:56'", "'-12:34:56'", "'838:59:59'", "'-838:59:59'"
OLD_DATES = "'0000-00-00'", "'2024-00-10'", "'1000-01-01'", "'9999-12-31 23:59:59'", "'2024-02-29 12:34:56'"


def test_temporal_types_of_before_5_6_equal_select(mariadb: Server) -> None:
    chance = random.Random(5)
    columns = ", ".join(
        f"t{digits} TIME({digits}), d{digits} DATETIME({digits}), s{digits} TIMESTAMP({digits}) NULL"
        for digits in range(7)
    )

    def fraction(text: str) -> str:
        micros = chance.choice([0, 1, 10, 999999, chance.randrange(10**6)])
        return f"{text[:-1]}.{micros:06}'" if ":" in text and "838" not in text else text

    rows = []
    for number in range(200):
        stamp = chance.choice(
            ["0", fraction("'2024-03-31 02:30:00'"), fraction("'1970-01-01 00:00:01'"), "'2038-01-19 03:14:07'"]
        )
        cells = [
            cell
            for _ in range(7)
            for cell in (fraction(chance.choice(OLD_TIMES)), fraction(chance.choice(OLD_DATES)), stamp)
        ]
        rows.append(f"({number}, {', '.join(cells)})")
    try:
        data = logged(
            mariadb,
            "SET GLOBAL mysql56_temporal_format = OFF",
            "DROP TABLE IF EXISTS old_times",
            f"CREATE TABLE old_times (id INT PRIMARY KEY, {columns})",
            "SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'",
            f"INSERT INTO old_times VALUES {', '.join(rows)}",
        )
    finally:
        mariadb.run("SET GLOBAL mysql56_temporal_format = ON")

    changes = decode_all(data, mariadb=True, defined=definitions(mariadb, "old_times")).table("old_times")
    state = changes.to_pylist()

    described, expected = read_source(mariadb, "t", "old_times")
    comparison = compare("old_times", described, expected, state, {column.name: column.name for column in described})
    assert comparison.equal, comparison
    assert comparison.source_rows == 200
    assert_select_gives_the_same(mariadb, changes, "old_times")


def test_years_of_two_digits_and_the_first_second_of_1970_are_told_whole(mariadb: Server) -> None:
    data = logged(
        mariadb,
        "DROP TABLE IF EXISTS ages",
        "CREATE TABLE ages (id INT PRIMARY KEY, y YEAR(2), z YEAR, ts TIMESTAMP(3) NULL)",
        "SET sql_mode = '', time_zone = '+00:00'",
        "INSERT INTO ages VALUES (1, 0, 0, '1970-01-01 00:00:00.5'), (2, 69, 1901, 0), (3, 70, 2155, NULL),"
        " (4, 'none', 'none', '1970-01-01 00:00:01'), (5, NULL, NULL, '1970-01-01 00:00:00.001')",
    )

    changes = decode_all(data, mariadb=True).table("ages")

    rows = changes.to_pylist()
    assert [(row["y"], row["z"]) for row in rows] == [(2000, 0), (2069, 1901), (1970, 2155), (0, 0), (None, None)]
    assert [row["ts"] and row["ts"].timestamp() for row in rows] == [0.5, None, None, 1.0, 0.001]
    assert [row["_unrepresentable"] for row in rows] == [None, '{"ts":"0000-00-00 00:00:00.000"}', None, None, None]
    assert_select_gives_the_same(mariadb, changes, "ages")


#: real types that no statement makes any more (include/field_types.h)
OLD_DECIMAL, OLD_VARCHAR, CHAR = 0, 253, 254
#: of a column in a .frm (sql/field.h)
MAYBE_NULL, SIGNED = 0x8000, 1


def _age(server: Server, table: str, columns: dict[int, tuple[int, int]]) -> None:
    """Make a MyISAM table look as if MySQL before 5.0.3 had created it.

    Its .frm says of each column, in 17 bytes: 3 and 4 length, 8 and 9 flags (bits 8 to 12: digits after the point), 13
    type; and in its head 2 version, 30 bit 0 rows of their own length, 33 whether MySQL 5.0 wrote it.
    `columns`: what the CHAR columns of a length, which holds as many bytes, become.
    """
    assert server.folder is not None
    file = server.folder / "data" / "t" / f"{table}.frm"
    form = bytearray(file.read_bytes())
    if any(type_ == OLD_VARCHAR for type_, _ in columns.values()):
        form[2], form[30], form[33] = 9, form[30] | 1, 0
    for at in range(len(form) - 17):
        length = int.from_bytes(form[at + 3 : at + 5], "little")
        if form[at + 13] == CHAR and length in columns and form[at + 8 : at + 10] == b"\0\x80":
            form[at + 13], flags = columns[length]
            form[at + 8 : at + 10] = (flags | MAYBE_NULL).to_bytes(2, "little")
    file.write_bytes(form)


def _old_table(server: Server, table: str, columns: str, old: dict[int, tuple[int, int]]) -> None:
    server.run(
        f"DROP TABLE IF EXISTS {table}",
        f"CREATE TABLE {table} (id INT, {columns}, last INT UNSIGNED) ENGINE=MyISAM CHARACTER SET latin1"
        f" ROW_FORMAT={'DYNAMIC' if (OLD_VARCHAR, 0) in old.values() else 'FIXED'}",
        f"FLUSH TABLES {table}",
        database="t",
    )
    _age(server, table, old)


def test_decimal_of_before_5_0_equals_select_and_keeps_what_its_type_can_not_hold(mariadb: Server) -> None:
    old = {11: (OLD_DECIMAL, 2 << 8), 13: (OLD_DECIMAL, SIGNED | 3 << 8), 50: (OLD_DECIMAL, SIGNED | 10 << 8)}
    old |= {6: (OLD_DECIMAL, SIGNED)}
    _old_table(mariadb, "sums", "a CHAR(11), b CHAR(13), c CHAR(50), d CHAR(6)", old)
    data = logged(
        mariadb,
        "SET sql_mode = ''",
        "INSERT INTO sums VALUES (1, 0, -1.5, -12345678901234567890.5, -7, 4294967295), (2, NULL, NULL, NULL, NULL, 2),"
        " (3, 99999999.99, 99999999.999, 1e37, 99999, 3), (4, 0.01, 123456789012, 0, 123456, 4), (5, 7, -0.001, -0.5, -99999, 5)",
    )

    decoded = decode_all(data, mariadb=True, defined=definitions(mariadb, "sums"))

    assert b"\x20" * 7 + b"0.00" in data
    described, expected = read_source(mariadb, "t", "sums")
    rows = decoded.table("sums").to_pylist()
    comparison = compare("sums", described, expected, rows, {column.name: column.name for column in described})
    assert comparison.equal, comparison
    assert rows[0]["_unrepresentable"] is None
    assert rows[3]["_unrepresentable"] == '{"b":"999999999.999","d":"123456"}'  # decimal(11,3), decimal(5,0)
    assert_select_gives_the_same(mariadb, decoded.table("sums"), "sums")


def test_decimal_of_before_5_0_when_ignored_is_stepped_over(mariadb: Server) -> None:
    _old_table(mariadb, "secret", "a CHAR(11)", {11: (OLD_DECIMAL, 2 << 8)})
    data = logged(mariadb, "INSERT INTO secret VALUES (1, 7.25, 8)")

    decoded = decode_all(data, mariadb=True, defined=definitions(mariadb, "secret"), ignored={"a"})

    (row,) = decoded.table("secret").to_pylist()
    assert (row["id"], row["last"], "a" in row) == (1, 8, False)


def test_varchar_of_before_5_0_3_is_read_like_the_char_it_is_stored_as(mariadb: Server) -> None:
    columns = "a CHAR(20), b CHAR(30) CHARACTER SET utf8mb3, c CHAR(250) CHARACTER SET utf8mb3, d CHAR(16) CHARACTER SET binary"
    _old_table(mariadb, "words", columns, dict.fromkeys((20, 90, 750), (OLD_VARCHAR, 0)))
    data = logged(
        mariadb,
        "INSERT INTO words VALUES (1, 'ab ', '  cd  ', REPEAT('ü', 250), 'x', 7), (2, '', NULL, 'short', 'y', 8),"
        " (3, REPEAT('x', 20), REPEAT('é', 30), '', 'z', 9)",
    )

    changes = decode_all(data, mariadb=True, defined=definitions(mariadb, "words")).table("words")
    rows = changes.to_pylist()

    assert "varchar(20)/*old*/" in str(mariadb.run("SHOW CREATE TABLE t.words"))
    expected = mariadb.run("SELECT id, a, b, c, last FROM t.words ORDER BY id")
    assert [tuple(row[name] for name in ("id", "a", "b", "c", "last")) for row in rows] == expected
    assert [row["d"].hex().upper() for row in rows] == [
        text for (text,) in mariadb.run("SELECT HEX(d) FROM t.words ORDER BY id")
    ]
    assert rows[0]["d"] == b"x" + bytes(15)
    assert_select_gives_the_same(mariadb, changes, "words")
