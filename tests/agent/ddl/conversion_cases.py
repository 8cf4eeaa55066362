# ruff: noqa: E501  (tables: one type a line)
"""Types with the values at their edges, between which conversions are tried. Only SQL and names."""

from dataclasses import dataclass
from typing import Literal

from tests.servers import Flavor

MYSQL: Flavor = "mysql"
MARIADB: Flavor = "mariadb"


@dataclass(frozen=True)
class Type:
    definition: str
    #: SQL expressions; NULL is tried with every type
    values: tuple[str, ...]
    #: '': of both
    flavor: Flavor | Literal[""] = ""
    #: MariaDB: not in older releases
    least_version: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        return self.definition

    def is_on(self, flavor: Flavor, version: tuple[int, int]) -> bool:
        return self.flavor in ("", flavor) and (flavor == "mysql" or version >= self.least_version)


_WHOLE = (
    *("0", "1", "-1", "7", "42", "69", "70", "99", "100", "127", "128", "-128", "255", "256", "1901", "2155", "2156"),
    *("32767", "32768", "-32768", "65535", "8388607", "16777215", "16777216", "235959", "2147483647", "2147483648"),
    *("4294967295", "9007199254740993", "9223372036854775807", "-9223372036854775808", "18446744073709551615"),
)
_FRACTIONS = (
    *("0", "0.01", "-0.01", "0.005", "0.5", "1.5", "-1.5", "2.5", "1.999", "-0.4", "123.45", "12345.6789", "0.0000001"),
    *("0.0000123", "-0.00000001", "1e60", "-1e60", "99999999.99", "7", "-7", "9999999999999999999", "0.1"),
)
_REALS = (
    *("0e0", "-0e0", "0.1e0", "1.5e0", "-1.5e0", "2.5e0", "0.005e0", "123456.789e0", "16777217e0", "1e10", "3.4e38"),
    *("1.17549435e-38", "1e300", "-1e300", "5e-324", "9.999999e0", "1e0", "100e0", "0.0001e0"),
)
_INTEGERS = tuple(
    Type(name, _WHOLE)
    for name in (
        *("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT", "TINYINT UNSIGNED", "SMALLINT UNSIGNED"),
        *("MEDIUMINT UNSIGNED", "INT UNSIGNED", "BIGINT UNSIGNED", "INT(5) UNSIGNED ZEROFILL", "BIGINT ZEROFILL"),
    )
)
_DECIMALS = tuple(
    Type(f"DECIMAL{size}", _FRACTIONS + _WHOLE)
    for size in (
        *("(5,0)", "(10,0)", "(18,0)", "(19,0)", "(20,0)", "(20,0) UNSIGNED", "(38,0)", "(3,3)", "(10,2)", "(12,2)"),
        *("(12,4)", "(10,2) UNSIGNED", "(12,6)", "(12,7)", "(12,8)", "(30,2)", "(30,20)", "(38,10)", "(40,2)"),
        *("(42,2)", "(42,4)", "(65,30)", "(8,2) ZEROFILL"),
    )
)
_FLOATS = tuple(
    Type(name, _REALS)
    for name in (
        *("FLOAT", "FLOAT UNSIGNED", "FLOAT(7,4)", "FLOAT(10,2)", "FLOAT(12,2)", "DOUBLE", "DOUBLE UNSIGNED"),
        *("DOUBLE(10,2)", "DOUBLE(12,4)", "DOUBLE(30,10)"),
    )
)
_BITS = tuple(
    Type(
        f"BIT({size})",
        ("0", "1", "2", "127", "128", "255", "65535", "1048575", "9223372036854775807", "b'1'", "18446744073709551615"),
    )
    for size in (1, 8, 16, 20, 63, 64)
)
_YEAR = (Type("YEAR", ("0", "1901", "1999", "2024", "2155", "70")),)

_WORDS = (
    *(
        "''",
        "'a'",
        "'A'",
        "'b'",
        "'abc'",
        "'abcde'",
        "'abcdef'",
        "'abcdefghij'",
        "' a'",
        "'a '",
        "'abc     '",
        "'abcde   '",
        "'abcdefghijkl'",
    ),
    *(
        "'12'",
        "' 12'",
        "'007'",
        "'1.6'",
        "'12abc'",
        "'-1'",
        "'a,b'",
        "'2024-01-02'",
        "'::1'",
        "'1.2.3.4'",
        "'x\\ty'",
        "'a\\0'",
        "'\\0'",
    ),
    *(
        "'ä'",
        "'é€'",
        "'Ж'",
        "'Żółw'",
        "'日本'",
        "'ﾊﾝ'",
        "'🔔'",
        "'ﬁ'",
        "'?'",
        "'\\\\'",
        "'~'",
        "'00000000-0000-0000-0000-00000000000a'",
    ),
    *(
        "REPEAT('x', 200)",
        "REPEAT('é', 200)",
        "REPEAT('日', 80)",
        "REPEAT('日', 90)",
        "CONCAT(REPEAT('y', 250), '     ')",
    ),
    *(
        "CONCAT('s', REPEAT(' ', 30))",
        "CONCAT(REPEAT('s', 3), REPEAT(' ', 280))",
        "CONCAT('s', REPEAT(' ', 253), '日')",
    ),
    *("REPEAT('z', 256)", "'[1, 2]'", "'{\"a\": 1}'", "'\"x\"'"),
)
_LARGE = (
    "CONCAT('s', REPEAT(' ', 66000))",
    "REPEAT('é', 40000)",
    "CONCAT(REPEAT('w', 65530), '        ')",
    "REPEAT('v', 70000)",
)
CHARACTERS = (
    "CHAR(1)",
    "CHAR(5)",
    "CHAR(10)",
    "CHAR(255)",
    "VARCHAR(5)",
    "VARCHAR(10)",
    "VARCHAR(20)",
    "VARCHAR(255)",
    "VARCHAR(300)",
)
TEXTS = ("TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT")
_HIGH_BYTES = tuple(f"{byte:02X}" for byte in range(0x80, 0x100))
#: charsets, and bytes that are tried in them beside the words
CHARSETS: dict[str, tuple[str, ...]] = {
    "utf8mb4": ("C3A4", "F09F9494", "EDA080", "C3", "F4908080"),
    "utf8mb3": ("C3A4", "EDA080", "EFBFBF"),
    "latin1": _HIGH_BYTES,
    "ascii": ("7E", "7F", "80", "FF"),
    "cp1250": _HIGH_BYTES,
    "cp1251": _HIGH_BYTES,
    "latin2": _HIGH_BYTES,
    "koi8r": _HIGH_BYTES,
    "tis620": _HIGH_BYTES,
    "ucs2": ("0041", "D800", "DC00D800", "20AC", "FFFF"),
    "utf16": ("0041", "D83DDD14", "20AC"),
    "utf32": ("00000041", "0001F514", "0000D800"),
    "sjis": ("8540", "B1", "93FA", "5C", "7E"),
    "gbk": ("A1A4", "8140", "FE9F"),
    "big5": ("A1C3", "A440", "C6A1"),
    "ujis": ("A4A2", "8EB1", "8FA2AF"),
    "euckr": ("A1A1", "C9FE"),
}


def _of_charset(name: str, charset: str) -> Type:
    values = _WORDS + (_LARGE if name in ("TEXT", "MEDIUMTEXT", "LONGTEXT") else ())
    return Type(f"{name} CHARACTER SET {charset}", values + tuple(f"_{charset} X'{raw}'" for raw in CHARSETS[charset]))


_TEXTS = (
    *(_of_charset(name, "utf8mb4") for name in (*CHARACTERS, *TEXTS)),
    *(_of_charset(name, "latin1") for name in ("CHAR(10)", "VARCHAR(255)", "TINYTEXT", "TEXT")),
    *(_of_charset("VARCHAR(300)", charset) for charset in CHARSETS if charset != "utf8mb4"),
    _of_charset("TEXT", "utf8mb3"),
    _of_charset("CHAR(10)", "ucs2"),
    _of_charset("CHAR(10)", "ascii"),
)
_COMPRESSED = (
    Type("VARCHAR(300) COMPRESSED CHARACTER SET utf8mb4", _WORDS, MARIADB),
    Type("TEXT COMPRESSED CHARACTER SET utf8mb4", _WORDS, MARIADB),
    Type("BLOB COMPRESSED", ("X''", "X'00FF'", "REPEAT(X'0D0A', 400)"), MARIADB),
)
_DOCUMENTS = (
    "'{\"a\": 1, \"b\": [true, null, \"ü\"]}'", "'[]'", "'  [1 ,2]  '", "'\"text\\\\\"\\\\n\"'", "'-1.5e100'", "'1.50'", "'18446744073709551615'",
    "CONCAT('\"', REPEAT('j', 300), '\"')", "CONCAT('\"', REPEAT('j', 70000), '\"')", "'\"🔔\"'",
)  # fmt: skip
_MYSQL_DOCUMENTS = (
    "JSON_OBJECT('d', CAST('2024-01-02' AS DATE), 't', CAST('10:11:12.5' AS TIME(1)), 'n', CAST(1.50 AS DECIMAL(5,2)))",
    "JSON_ARRAY(CAST('2024-01-02 03:04:05.000006' AS DATETIME(6)), 1e0, 1e20, 1e-7, 0.1e0, -0.0e0, CAST(X'0102' AS BINARY))",
)
_JSON = (Type("JSON", _DOCUMENTS + _MYSQL_DOCUMENTS, MYSQL), Type("JSON", _DOCUMENTS, MARIADB))
_ADDRESSES = (
    Type("INET4", ("'1.2.3.4'", "'0.0.0.0'", "'255.255.255.255'"), MARIADB),
    Type(
        "INET6",
        ("'::1'", "'::'", "'::ffff:1.2.3.4'", "'2001:db8:85a3:1111:2222:8a2e:370:7334'", "'::1.2.3.4'"),
        MARIADB,
    ),
    Type("UUID", ("'00000000-0000-0000-0000-00000000000a'", "'123e4567-e89b-12d3-a456-426655440000'"), MARIADB),
)
_LISTED = ("'a'", "'b'", "'c'", "'A'", "'ä'", "'z'", "''", "0", "1", "2", "'€'")
_ENUMS = (
    *(
        Type(f"ENUM({labels})", _LISTED)
        for labels in (
            *("'a'", "'a','b'", "'a','b','c'", "'b','a'", "'a','c','b'", "'z','a','b'", "'A','b'", "'a','','b'"),
            *("'a','b','ä','€'", "'1','0','2'"),
        )
    ),
    Type("ENUM('a','b') CHARACTER SET latin1", _LISTED),
    Type("ENUM('ä','b','a') CHARACTER SET latin1", _LISTED),
    Type("ENUM('ä','b','a') CHARACTER SET utf8mb4", _LISTED),
    Type("ENUM('A','a','b') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", _LISTED),
    Type("ENUM('a','b','c','d') CHARACTER SET ucs2", _LISTED),
    Type("ENUM(" + ",".join(f"'{'ab'[n % 2]}{n or ''}'" for n in range(300)) + ")", (*_LISTED, "'b299'", "300")),
)
_CHOSEN = ("''", "'a'", "'b'", "'a,b'", "'a,b,c'", "'c'", "'A'", "'ä'", "0", "1", "2", "3", "7", "255")
_SETS = (
    *(
        Type(f"SET({labels})", _CHOSEN)
        for labels in (
            *("'a'", "'a','b'", "'a','b','c'", "'b','a'", "'a','c','b'", "'z','a','b'", "'A','b'", "'a','b','ä'"),
        )
    ),
    Type("SET('a','b') CHARACTER SET latin1", _CHOSEN),
    Type("SET('A','a','b') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", _CHOSEN),
    Type("SET('a','b'," + ",".join(f"'m{n}'" for n in range(62)) + ")", (*_CHOSEN, "18446744073709551615", "'m61'")),
)

_BYTES = (
    *("X''", "X'00'", "X'0000'", "X'20'", "X'2020'", "X'61'", "X'6100'", "X'6120'", "X'FF'", "X'61626364'"),
    *("X'6162636400'", "X'6162636420'", "X'6162636400000000'", "X'6162636420202020'", "X'6162636465666768'"),
    *("X'616263646566676800000000'", "X'616263646566676820202020'", "REPEAT(X'FE', 16)", "REPEAT(X'AB', 255)"),
    *("CONCAT(REPEAT(X'AB', 255), X'00')", "CONCAT(REPEAT(X'AB', 255), X'20')", "X'0000803F000000C0'"),
    "X'000000000101000000000000000000F03F0000000000000040'",
)
_LARGE_BYTES = ("REPEAT(X'AC', 65535)", "CONCAT(REPEAT(X'AC', 65535), X'00')", "CONCAT(REPEAT(X'AC', 65535), X'20')")
_BINARY = (
    *(Type(name, _BYTES) for name in ("BINARY(1)", "BINARY(4)", "BINARY(8)", "BINARY(12)", "BINARY(16)")),
    *(Type(name, _BYTES) for name in ("VARBINARY(4)", "VARBINARY(8)", "VARBINARY(20)", "VARBINARY(300)", "TINYBLOB")),
    *(Type(name, _BYTES + _LARGE_BYTES) for name in ("BLOB", "MEDIUMBLOB", "LONGBLOB")),
)
_POINTS = (
    "ST_GeomFromText('POINT(1 2)')",
    "ST_GeomFromText('POINT(-1.5 1e300)')",
    "ST_GeomFromText('POINT(3 4)', 4326)",
)
_LINES = ("ST_GeomFromText('LINESTRING(0 0,1 1,2 2)')",)
_SHAPES = (
    Type(
        "GEOMETRY",
        _POINTS
        + _LINES
        + ("ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1))')", "ST_GeomFromText('MULTIPOINT(1 1,2 2)')"),
    ),
    Type("POINT", _POINTS),
    Type("LINESTRING", _LINES),
    Type("MULTIPOINT", ("ST_GeomFromText('MULTIPOINT(1 1,2 2)')",)),
    Type(
        "GEOMETRYCOLLECTION",
        ("ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1))')", "ST_GeomFromText('MULTIPOINT(1 1,2 2)')"),
    ),
)
#: MySQL: a vector that is longer than its column, and comes with IGNORE, can't be copied afterwards
_NUMBERS = ("STRING_TO_VECTOR('[1,-2]')", "STRING_TO_VECTOR('[1,2,3]')", "STRING_TO_VECTOR('[0.5,0,0,7]')")
_VECTORS = (
    *(Type(f"VECTOR({size})", _NUMBERS[: size - 1], MYSQL) for size in (2, 3, 4)),
    *(
        Type(f"VECTOR({size})", ("VEC_FromText('[1,-2]')", "VEC_FromText('[1,2,3]')"), MARIADB, (11, 8))
        for size in (2, 3)
    ),
)

_CLOCKS = ("00:00:00", "23:59:59.5", "01:30:00.499999", "12:00:00.999999", "05:00:00.05", "01:30:00.4995", "06:00:00.1")
_DAYS = ("2024-02-29", "1969-12-31", "2038-01-18", "2024-11-03", "2024-03-10", "1000-01-01")
_ODD_DAYS = (
    "0000-00-00 00:00:00",
    "2024-00-10 00:00:00",
    "2024-02-00 01:02:03.5",
    "2024-02-30 00:00:00.123456",
    "9999-12-31 23:59:59.999999",
    "0001-01-01 00:00:00",
)
_MOMENTS = tuple(f"'{day} {clock}'" for day in _DAYS for clock in _CLOCKS) + tuple(
    f"'{moment}'" for moment in _ODD_DAYS
)
#: in America/New_York the hour from 5 to 6 (UTC) of 2024-11-03 comes again, that from 7 to 8 of 2024-03-10 is left out
_INSTANTS = (
    *(
        "'1970-01-01 00:00:01'",
        "'1970-01-01 00:00:00.000001'",
        "'2038-01-19 03:14:07.999999'",
        "'2024-11-03 05:30:00.25'",
        "'2024-11-03 06:30:00.25'",
    ),
    *(
        "'2024-03-10 06:59:59.9'",
        "'2024-03-10 07:00:00'",
        "'2024-06-01 12:00:00.5'",
        "'2024-06-01 12:00:00.499999'",
        "'0000-00-00 00:00:00'",
        "'2100-01-01 00:00:00.5'",
    ),
)
_TIMES = (
    *(
        "'00:00:00'",
        "'-00:00:00.000001'",
        "'00:00:00.5'",
        "'-00:00:00.5'",
        "'23:59:59.999999'",
        "'838:59:59'",
        "'-838:59:59'",
    ),
    *("'838:59:58.999999'", "'12:34:56.789012'", "'00:00:01.499999'", "'-01:00:00.05'", "'00:00:00.01'"),
)
_TEMPORALS = (
    Type("DATE", tuple(f"'{day}'" for day in (*_DAYS, "9999-12-31", "0000-00-00", "2024-00-10", "2024-02-30"))),
    *(Type(f"DATETIME({digits})", _MOMENTS) for digits in (0, 1, 3, 6)),
    *(Type(f"TIMESTAMP({digits})", _INSTANTS) for digits in (0, 1, 3, 6)),
    *(Type(f"TIME({digits})", _TIMES) for digits in (0, 1, 3, 6)),
)

TYPES = (
    *(_INTEGERS + _DECIMALS + _FLOATS + _BITS + _YEAR + _TEXTS + _COMPRESSED + _JSON + _ADDRESSES + _ENUMS + _SETS),
    *(_BINARY + _SHAPES + _VECTORS + _TEMPORALS),
)
