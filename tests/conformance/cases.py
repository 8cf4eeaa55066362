# ruff: noqa: E501  (SQL)
"""What a server is made to log: every type under every setting; `flows` has the statements behind every kind of event.

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
    #: tables that are made under it are others
    changes_tables: bool = False


def _global(
    name: str, value: str, default: str, platforms: frozenset[str] = ALL, *, changes_tables: bool = False
) -> Setting:
    on, off = (f"SET GLOBAL {name} = {value}",), (f"SET GLOBAL {name} = {default}",)
    return Setting(f"{name}={value}", platforms, (), on, off, changes_tables=changes_tables)


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
    _global("mysql56_temporal_format", "OFF", "ON", BOTH_MARIADB, changes_tables=True),
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
