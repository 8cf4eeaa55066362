"""A table with every type of this version, and rows at the edges of each."""

from tests.servers import Flavor, Server

DATABASE = "kinds"

#: column, type, values: the first is what most rows hold, the others are edges (SQL literals)
# ruff: noqa: E501  (a table: one column a line)
COLUMNS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("c_tiny", "TINYINT", ("1", "-128", "127")),
    ("c_tiny_u", "TINYINT UNSIGNED", ("1", "0", "255")),
    ("c_small", "SMALLINT", ("2", "-32768", "32767")),
    ("c_small_u", "SMALLINT UNSIGNED", ("2", "0", "65535")),
    ("c_medium", "MEDIUMINT", ("-3", "-8388608", "8388607")),
    ("c_medium_u", "MEDIUMINT UNSIGNED", ("3", "0", "16777215")),
    ("c_int", "INT", ("4", "-2147483648", "2147483647")),
    ("c_int_u", "INT UNSIGNED", ("4", "0", "4294967295")),
    ("c_big", "BIGINT", ("5", "-9223372036854775808", "9223372036854775807")),
    ("c_big_u", "BIGINT UNSIGNED", ("5", "0", "18446744073709551615")),
    ("c_zerofill", "INT(7) UNSIGNED ZEROFILL", ("42", "0", "4294967295")),
    ("c_decimal", "DECIMAL(12,2)", ("10.05", "-9999999999.99", "0.00")),
    ("c_decimal_38", "DECIMAL(38,10)", ("1.5", "-9999999999999999999999999999.9999999999", "0.0000000001")),
    ("c_decimal_65", "DECIMAL(65,30)", ("-1.25", "99999999999999999999999999999999999.999999999999999999999999999999", "0")),
    ("c_decimal_0", "DECIMAL(9,0) UNSIGNED", ("7", "0", "999999999")),
    ("c_float", "FLOAT", ("0.1", "-3.4e38", "1.2e-38")),
    ("c_double", "DOUBLE", ("0.1", "-1.7976931348623157e308", "2.2250738585072014e-308")),
    ("c_char", "CHAR(10) CHARACTER SET utf8mb4", ("'grün'", "''", "'日本語🔔'")),
    ("c_char_latin1", "CHAR(255) CHARACTER SET latin1", ("'é€ÿ'", "''", "REPEAT('x', 255)")),
    ("c_varchar", "VARCHAR(300) CHARACTER SET utf8mb4", ("'hello'", "''", "REPEAT('ü', 300)")),
    ("c_varchar_3", "VARCHAR(100) CHARACTER SET utf8mb3", ("'Ж'", "' two blanks  '", "'a\\\\b\\\"c\\0d'")),
    ("c_varchar_ascii", "VARCHAR(40) CHARACTER SET ascii", ("'plain'", "''", "'~'")),
    ("c_varchar_cp1250", "VARCHAR(40) CHARACTER SET cp1250", ("'Žluťoučký'", "''", "'kůň'")),
    ("c_varchar_sjis", "VARCHAR(40) CHARACTER SET sjis", ("'日本'", "''", "'ｱ'")),
    ("c_varchar_utf16", "VARCHAR(40) CHARACTER SET utf16", ("'utf🔔'", "''", "'x'")),
    ("c_binary", "BINARY(8)", ("X'0102'", "X''", "X'FFFFFFFFFFFFFFFF'")),
    ("c_varbinary", "VARBINARY(300)", ("X'00FF00'", "X''", "REPEAT(X'AB', 300)")),
    ("c_tinytext", "TINYTEXT CHARACTER SET utf8mb4", ("'tiny'", "''", "REPEAT('z', 255)")),
    ("c_text", "TEXT CHARACTER SET latin1", ("'text ñ'", "''", "REPEAT('t', 65535)")),
    ("c_mediumtext", "MEDIUMTEXT CHARACTER SET utf8mb4", ("'medium'", "''", "REPEAT('m', 70000)")),
    ("c_longtext", "LONGTEXT CHARACTER SET utf8mb4", ("'long'", "''", "REPEAT('ß', 100000)")),
    ("c_tinyblob", "TINYBLOB", ("X'01'", "X''", "REPEAT(X'00', 255)")),
    ("c_blob", "BLOB", ("X'02'", "X''", "REPEAT(X'FE', 65535)")),
    ("c_mediumblob", "MEDIUMBLOB", ("X'03'", "X''", "REPEAT(X'0D0A', 50000)")),
    ("c_longblob", "LONGBLOB", ("X'04'", "X''", "REPEAT(X'80', 100000)")),
    ("c_date", "DATE", ("'2024-02-29'", "'1000-01-01'", "'9999-12-31'", "'0000-00-00'", "'2024-00-10'")),
    ("c_time", "TIME", ("'12:34:56'", "'-838:59:59'", "'838:59:59'")),
    ("c_time_3", "TIME(3)", ("'12:34:56.789'", "'-00:00:00.001'", "'100:00:00.5'")),
    ("c_time_6", "TIME(6)", ("'00:00:00.000001'", "'-838:59:58.999999'", "'-00:00:01.000000'")),
    ("c_datetime", "DATETIME", ("'2024-02-29 23:59:59'", "'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'0000-00-00'")),
    ("c_datetime_2", "DATETIME(2)", ("'2024-01-01 00:00:00.99'", "'1969-12-31 23:59:59.50'", "'2024-00-00 10:11:12.13'")),
    ("c_datetime_6", "DATETIME(6)", ("'2024-01-01 00:00:00.000001'", "'1000-01-01 00:00:00.999999'", "'2024-06-15'")),
    ("c_timestamp", "TIMESTAMP NULL", ("'2024-03-31 02:30:00'", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "0")),
    ("c_timestamp_6", "TIMESTAMP(6) NULL", ("'2024-03-31 02:30:00.123456'", "'2001-01-01'", "'2038-01-19 03:14:07.999999'")),
    ("c_year", "YEAR", ("2024", "0", "1901", "2155")),
    ("c_enum", "ENUM('a','b','it''s','ünï') CHARACTER SET utf8mb4", ("'a'", "'it''s'", "'ünï'", "0")),
    ("c_set", "SET('x','y','ž') CHARACTER SET utf8mb4", ("'x'", "'x,y,ž'", "''")),
    ("c_set_64", f"SET({','.join(repr(f'm{n}') for n in range(64))})", ("'m0'", "'m63'", "18446744073709551615")),
    ("c_bit_1", "BIT(1)", ("b'1'", "b'0'")),
    ("c_bit_20", "BIT(20)", ("b'10000000000000000001'", "0")),
    ("c_bit_64", "BIT(64)", ("5", "18446744073709551615", "0")),
    ("c_json", "JSON", ("'{\"a\": 1, \"b\": [true, null, \"ü\"]}'", "'[]'", "'\"text\\\\\"\\\\n\"'", "'-1.5e100'", "'18446744073709551615'")),
)  # fmt: skip

#: JSON values whose text only MySQL's binary form decides
MYSQL_JSON = (
    "JSON_OBJECT('d', CAST('2024-01-02' AS DATE), 't', CAST('10:11:12.5' AS TIME(1)), 'n', CAST(1.50 AS DECIMAL(5,2)))",
    "JSON_ARRAY(CAST('2024-01-02 03:04:05.000006' AS DATETIME(6)), 1e0, 1e20, 1e-7, 0.1e0, -0.0e0, CAST(X'0102' AS BINARY))",
    "JSON_OBJECT('k', REPEAT('v', 70000), 'nested', JSON_ARRAY(JSON_OBJECT(), JSON_ARRAY(), NULL, TRUE, FALSE))",
)


def create(server: Server, flavor: Flavor, table: str = "every_type") -> None:
    """The table, and no row yet."""
    columns = ", ".join(f"`{name}` {kind}{'' if ' NULL' in kind else ' NULL'}" for name, kind, _ in COLUMNS)
    server.run(f"CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4")
    server.run(f"CREATE TABLE {DATABASE}.{table} (id INT NOT NULL PRIMARY KEY, {columns})")


def change(server: Server, flavor: Flavor, table: str = "every_type", *, first_half: bool) -> None:
    """First rows with every edge and with NULL everywhere; then updates of every column, a key change, a delete."""
    target = f"{DATABASE}.{table}"
    names = ", ".join(f"`{name}`" for name, _, _ in COLUMNS)
    rounds = max(len(values) for _, _, values in COLUMNS)
    statements = ["SET sql_mode = 'ALLOW_INVALID_DATES'", "SET time_zone = '+00:00'"]
    for row in range(rounds):
        values = ", ".join(values[row % len(values)] for _, _, values in COLUMNS)
        statements.append(f"INSERT IGNORE INTO {target} (id, {names}) VALUES ({row}, {values})")
    statements.append(f"INSERT INTO {target} (id) VALUES (100), (101), (102)")
    if flavor == "mysql":
        statements += [
            f"INSERT INTO {target} (id, c_json) VALUES ({200 + n}, {json})" for n, json in enumerate(MYSQL_JSON)
        ]
    if first_half:
        server.run(*statements)
        return
    statements = statements[:2]
    statements.append(f"INSERT INTO {target} (id, {names}) SELECT 103, {names} FROM {target} WHERE id = 0")
    for name, _, values in COLUMNS:
        statements.append(f"UPDATE IGNORE {target} SET `{name}` = {values[-1]} WHERE id = 100")
        statements.append(f"UPDATE {target} SET `{name}` = NULL WHERE id = 103")
    statements += [f"UPDATE {target} SET id = 300 WHERE id = 2", f"DELETE FROM {target} WHERE id = 101"]
    server.run(*statements)
