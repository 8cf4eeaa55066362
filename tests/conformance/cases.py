# ruff: noqa: E501  (SQL)
"""What a server is made to log: every type under every setting, and the statements behind every kind of event.

Only SQL and names; `run` does it on a server, and `tests.fuzz` takes the logs as its seeds.
"""

from dataclasses import dataclass

from tests.e2e import every_type
from tests.servers import Flavor


@dataclass(frozen=True)
class Platform:
    """A server under test; the name is what documents call it."""

    name: str
    flavor: Flavor
    version: str = ""


PLATFORMS = (
    Platform("MySQL 9.7", "mysql"),
    Platform("MariaDB 10.11", "mariadb"),
    Platform("MariaDB 11.8", "mariadb", "11.8"),
)
MYSQL, MARIADB, MARIADB_11 = (platform.name for platform in PLATFORMS)
BOTH_MARIADB = frozenset({MARIADB, MARIADB_11})
ALL = frozenset(platform.name for platform in PLATFORMS)


@dataclass(frozen=True)
class Type:
    """A column's definition and values, as SQL; the first is what most rows hold."""

    name: str
    definition: str
    values: tuple[str, ...]
    platforms: frozenset[str] = ALL


_SPATIAL = ("ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0,1 1,2 2)')")
_VECTOR = frozenset({MYSQL, MARIADB_11})
_MORE = (
    Type("geometry", "GEOMETRY", (*_SPATIAL, "ST_GeomFromText('POINT(3 4)', 4326)")),
    Type("point", "POINT", ("ST_GeomFromText('POINT(-1.5 1e300)')", _SPATIAL[0])),
    Type("polygon", "POLYGON", ("ST_GeomFromText('POLYGON((0 0,0 1,1 1,0 0))')",)),
    Type("collection", "GEOMETRYCOLLECTION", ("ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1))')",)),
    Type("vector (MySQL)", "VECTOR(3)", ("STRING_TO_VECTOR('[1,2.5,-3e10]')", "STRING_TO_VECTOR('[0]')"), frozenset({MYSQL})),
    Type("vector (MariaDB)", "VECTOR(3)", ("VEC_FromText('[1,2.5,-3e10]')", "VEC_FromText('[0,0,0]')"), frozenset({MARIADB_11})),
    Type("inet4", "INET4", ("'192.0.2.1'", "'0.0.0.0'", "'255.255.255.255'"), BOTH_MARIADB),
    Type("inet6", "INET6", ("'2001:db8::1'", "'::'", "'::ffff:192.0.2.1'"), BOTH_MARIADB),
    Type("uuid", "UUID", ("'123e4567-e89b-12d3-a456-426655440000'", "'00000000-0000-0000-0000-000000000000'"), BOTH_MARIADB),
    Type("varchar compressed", "VARCHAR(500) COMPRESSED CHARACTER SET utf8mb4", ("'short'", "REPEAT('long ü ', 60)", "''"), BOTH_MARIADB),
    Type("blob compressed", "BLOB COMPRESSED", ("X'00FF'", "REPEAT(X'0D0A', 400)", "X''"), BOTH_MARIADB),
    Type("text compressed", "TEXT COMPRESSED CHARACTER SET latin1", ("'é'", "REPEAT('long é ', 60)", "''"), BOTH_MARIADB),
    Type("generated, stored", "INT GENERATED ALWAYS AS (id * 2) STORED", ("DEFAULT",)),
    Type("generated, virtual", "INT GENERATED ALWAYS AS (id * 2) VIRTUAL", ("DEFAULT",)),
    Type("invisible", "INT INVISIBLE", ("5", "-1")),
)  # fmt: skip


def _short(definition: str) -> str:
    """How the matrix names a column of `every_type`."""
    name = definition.lower().removesuffix(" null")
    return name if len(name) < 40 else name.partition("(")[0] + " of 64" if "m63" in name else name


#: `every_type`'s columns one by one, and what only some servers have
TYPES = tuple(Type(_short(definition), definition, values) for _, definition, values in every_type.COLUMNS) + _MORE
assert len({type_.name for type_ in TYPES}) == len(TYPES)


def types_of(platform: Platform) -> list[Type]:
    return [type_ for type_ in TYPES if platform.name in type_.platforms]


@dataclass(frozen=True)
class Setting:
    """How a server logs: statements before and after, of each connection or of the whole server."""

    name: str
    platforms: frozenset[str] = ALL
    session: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    #: no update changes a key: MariaDB's partial images of those stop a table, which a flow shows once
    keeps_keys: bool = False


def _global(name: str, value: str, default: str, platforms: frozenset[str] = ALL) -> Setting:
    return Setting(
        f"{name}={value}", platforms, (), (f"SET GLOBAL {name} = {value}",), (f"SET GLOBAL {name} = {default}",)
    )


SETTINGS = (
    Setting("the default"),
    Setting("binlog_row_image=MINIMAL", frozenset({MYSQL}), ("SET SESSION binlog_row_image = 'MINIMAL'",)),
    Setting("binlog_row_image=MINIMAL", BOTH_MARIADB, ("SET SESSION binlog_row_image = 'MINIMAL'",), keeps_keys=True),
    Setting("binlog_row_image=NOBLOB", frozenset({MYSQL}), ("SET SESSION binlog_row_image = 'NOBLOB'",)),
    Setting("binlog_row_image=NOBLOB", BOTH_MARIADB, ("SET SESSION binlog_row_image = 'NOBLOB'",), keeps_keys=True),
    Setting("binlog_row_image=FULL_NODUP", frozenset({MARIADB_11}), ("SET SESSION binlog_row_image = 'FULL_NODUP'",), keeps_keys=True),
    _global("binlog_row_metadata", "MINIMAL", "FULL"),
    _global("binlog_row_metadata", "NO_LOG", "FULL", BOTH_MARIADB),
    Setting("binlog_row_value_options=PARTIAL_JSON", frozenset({MYSQL}), ("SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",)),
    Setting(
        "PARTIAL_JSON and MINIMAL",
        frozenset({MYSQL}),
        ("SET SESSION binlog_row_value_options = 'PARTIAL_JSON'", "SET SESSION binlog_row_image = 'MINIMAL'"),
    ),
    Setting("binlog_transaction_compression=ON", frozenset({MYSQL}), ("SET SESSION binlog_transaction_compression = ON",)),
    Setting(
        "log_bin_compress=ON",
        BOTH_MARIADB,
        on=("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10"),
        off=("SET GLOBAL log_bin_compress = OFF",),
    ),
    _global("binlog_checksum", "NONE", "CRC32"),
    _global("mysql56_temporal_format", "OFF", "ON", BOTH_MARIADB),
    Setting("binlog_rows_query_log_events=ON", frozenset({MYSQL}), ("SET SESSION binlog_rows_query_log_events = ON",)),
)  # fmt: skip


def settings_of(platform: Platform) -> list[Setting]:
    return [setting for setting in SETTINGS if platform.name in setting.platforms]


def rows_of(table: str, type_: Type, *, keeps_keys: bool = False) -> list[str]:
    """A table of its own: rows with every value and NULL, an update of the value, one beside it, one of the key, a delete."""
    first, last = type_.values[0], type_.values[-1]
    is_generated = first == "DEFAULT"
    values = [*type_.values, *(() if is_generated else ("NULL",))]
    if len(values) < 4:
        values += [first] * (4 - len(values))
    rows = ", ".join(f"({number}, {value}, 'n{number}')" for number, value in enumerate(values, 1))
    changed = _changed(type_, last)
    return [
        f"INSERT IGNORE INTO {table} (id, c, note) VALUES {rows}",
        f"UPDATE {table} SET note = 'changed' WHERE id = 1",
        *(() if is_generated else (f"UPDATE IGNORE {table} SET c = {changed} WHERE id = 1", f"UPDATE {table} SET c = NULL WHERE id = 2")),
        *(() if keeps_keys else (f"UPDATE {table} SET id = 100 WHERE id = 3",)),
        f"DELETE FROM {table} WHERE id = 4",
    ]  # fmt: skip


def _changed(type_: Type, last: str) -> str:
    """JSON changes in place, so that PARTIAL_JSON has a diff to log."""
    return "JSON_SET(c, '$.a', 2, '$.n', JSON_ARRAY(1, 'x'))" if type_.definition == "JSON" else last


def table_of(table: str, type_: Type) -> str:
    null = "" if type_.definition.endswith(" NULL") or type_.values == ("DEFAULT",) else " NULL"
    return f"CREATE TABLE {table} (id INT NOT NULL PRIMARY KEY, c {type_.definition}{null}, note VARCHAR(20))"


#: every connection: dates with zero parts are allowed, and TIMESTAMP means UTC
SESSION = ("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'", "SET SESSION time_zone = '+00:00'")


@dataclass(frozen=True)
class Flow:
    """Statements that make a server log more than rows. `{t}` is a table (id INT PRIMARY KEY, note VARCHAR(40))."""

    name: str
    statements: tuple[str, ...]
    platforms: frozenset[str] = ALL


_THREE = "INSERT INTO {t} VALUES (1, 'one'), (2, 'two'), (3, 'three')"
FLOWS = (
    Flow("one statement", (_THREE, "UPDATE {t} SET note = 'x' WHERE id = 2", "DELETE FROM {t} WHERE id = 3")),
    Flow("transaction", ("BEGIN", _THREE, "UPDATE {t} SET note = 'x'", "DELETE FROM {t} WHERE id = 1", "COMMIT")),
    Flow("transaction that is rolled back", (_THREE, "BEGIN", "DELETE FROM {t}", "ROLLBACK", "UPDATE {t} SET note = 'x'")),
    Flow("rollback to a savepoint", ("BEGIN", _THREE, "SAVEPOINT s", "DELETE FROM {t}", "ROLLBACK TO s", "UPDATE {t} SET note = 'kept' WHERE id = 1", "COMMIT")),
    Flow("savepoint that is released", ("BEGIN", _THREE, "SAVEPOINT s", "UPDATE {t} SET note = 'x'", "RELEASE SAVEPOINT s", "COMMIT")),
    Flow("XA, two phases", ("XA START 'x2-{t}'", _THREE, "XA END 'x2-{t}'", "XA PREPARE 'x2-{t}'", "XA COMMIT 'x2-{t}'")),
    Flow("XA, one phase", ("XA START 'x1-{t}'", _THREE, "XA END 'x1-{t}'", "XA COMMIT 'x1-{t}' ONE PHASE")),
    Flow("XA, rolled back", (_THREE, "XA START 'xr-{t}'", "DELETE FROM {t}", "XA END 'xr-{t}'", "XA PREPARE 'xr-{t}'", "XA ROLLBACK 'xr-{t}'")),
    Flow("REPLACE and ON DUPLICATE KEY", (_THREE, "REPLACE INTO {t} VALUES (1, 'replaced')", "INSERT INTO {t} VALUES (2, 'x') ON DUPLICATE KEY UPDATE note = 'updated'")),
    Flow("INSERT ... SELECT", (_THREE, "INSERT INTO {t} SELECT id + 10, note FROM {t}")),
    Flow("row image flipped between statements", (_THREE, "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE {t} SET note = 'minimal' WHERE id = 1", "SET SESSION binlog_row_image = 'NOBLOB'", "UPDATE {t} SET note = 'noblob' WHERE id = 2", "SET SESSION binlog_row_image = 'FULL'", "UPDATE {t} SET note = 'full' WHERE id = 3")),
    Flow("key changed, binlog_row_image=MINIMAL", (_THREE, "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE {t} SET id = 100 WHERE id = 1")),
    Flow("key changed, binlog_row_image=NOBLOB", ("ALTER TABLE {t} ADD COLUMN b BLOB", "INSERT INTO {t} VALUES (1, 'a', 'b')", "SET SESSION binlog_row_image = 'NOBLOB'", "UPDATE {t} SET id = 100 WHERE id = 1")),
    Flow("virtual column that changes, binlog_row_image=MINIMAL", ("ALTER TABLE {t} ADD COLUMN v INT AS (CHAR_LENGTH(note)) VIRTUAL", "INSERT INTO {t} (id, note) VALUES (1, 'a'), (2, 'b')", "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE {t} SET note = 'longer' WHERE id = 1")),
    Flow("metadata and checksum flipped in the stream", (_THREE, "SET GLOBAL binlog_row_metadata = 'MINIMAL'", "UPDATE {t} SET note = 'x' WHERE id = 1", "SET GLOBAL binlog_checksum = 'NONE'", "UPDATE {t} SET note = 'y' WHERE id = 2", "SET GLOBAL binlog_row_metadata = 'FULL'", "UPDATE {t} SET note = 'z' WHERE id = 3", "SET GLOBAL binlog_checksum = 'CRC32'", "DELETE FROM {t} WHERE id = 1")),
    Flow("compression flipped in the stream", (_THREE, "SET SESSION binlog_transaction_compression = ON", "UPDATE {t} SET note = REPEAT('x', 40)", "SET SESSION binlog_transaction_compression = OFF", "DELETE FROM {t} WHERE id = 1"), frozenset({MYSQL})),
    Flow("compression flipped in the stream", (_THREE, "SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10", "UPDATE {t} SET note = REPEAT('x', 40)", "ALTER TABLE {t} COMMENT 'long enough'", "SET GLOBAL log_bin_compress = OFF", "DELETE FROM {t} WHERE id = 1"), BOTH_MARIADB),
    Flow("log rotated", (_THREE, "FLUSH BINARY LOGS", "DELETE FROM {t} WHERE id = 2")),
    Flow("column added at the end", (_THREE, "ALTER TABLE {t} ADD COLUMN extra INT", "INSERT INTO {t} VALUES (4, 'four', 4)")),
    Flow("column added in front, metadata MINIMAL", ("SET GLOBAL binlog_row_metadata = 'MINIMAL'", _THREE, "ALTER TABLE {t} ADD COLUMN extra INT FIRST", "INSERT INTO {t} VALUES (9, 4, 'four')", "SET GLOBAL binlog_row_metadata = 'FULL'")),
    Flow("table renamed and back", (_THREE, "RENAME TABLE {t} TO {t}_away", "RENAME TABLE {t}_away TO {t}", "DELETE FROM {t} WHERE id = 2")),
    Flow("TRUNCATE", (_THREE, "TRUNCATE TABLE {t}", "INSERT INTO {t} VALUES (7, 'after')")),
    Flow("non-transactional table", ("DROP TABLE {t}", "CREATE TABLE {t} (id INT PRIMARY KEY, note VARCHAR(40)) ENGINE=MyISAM", _THREE, "DELETE FROM {t} WHERE id = 2")),
    Flow("trigger", ("CREATE TABLE {t}_log (id INT AUTO_INCREMENT PRIMARY KEY, note VARCHAR(60))", "CREATE TRIGGER {t}_noted AFTER INSERT ON {t} FOR EACH ROW INSERT INTO {t}_log (note) VALUES (NEW.note)", _THREE, "DROP TRIGGER {t}_noted", "DELETE FROM {t} WHERE id = 2")),
    Flow("statement-based INSERT", (_THREE, "SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO {t} VALUES (4, 'lost')", "SET SESSION binlog_format = 'ROW'")),
    Flow("LOAD DATA, statement-based", (_THREE, "SET SESSION binlog_format = 'STATEMENT'", "LOAD DATA INFILE '{file}' INTO TABLE {t}", "SET SESSION binlog_format = 'ROW'")),
    Flow("tagged GTID", ("SET SESSION gtid_next = 'AUTOMATIC:shop'", _THREE, "SET SESSION gtid_next = 'AUTOMATIC'", "DELETE FROM {t} WHERE id = 1"), frozenset({MYSQL})),
    Flow("other GTID domain", ("SET SESSION gtid_domain_id = 7", _THREE, "SET SESSION gtid_domain_id = 0", "DELETE FROM {t} WHERE id = 1"), BOTH_MARIADB),
    Flow("two-phase ALTER", (_THREE, "SET SESSION binlog_alter_two_phase = ON", "ALTER TABLE {t} ADD COLUMN extra INT", "UPDATE {t} SET extra = 1 WHERE id = 1"), BOTH_MARIADB),
    Flow("row of 17 MiB", ("ALTER TABLE {t} ADD COLUMN big LONGBLOB", "INSERT INTO {t} VALUES (1, 'big', REPEAT('x', 17825792))", "INSERT INTO {t} VALUES (2, 'after', 'x')")),
)  # fmt: skip


def flows_of(platform: Platform) -> list[Flow]:
    return [flow for flow in FLOWS if platform.name in flow.platforms]
