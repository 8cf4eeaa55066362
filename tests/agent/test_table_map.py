"""TABLE_MAP events: of both servers, with full and with minimal metadata, and damaged ones."""

# ruff: noqa: E501  (SQL)

from dataclasses import replace

import pytest

from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.log.table_map import (
    MappedColumn,
    TableMap,
    TableMapError,
    parse_table_map,
    table_of,
)
from agent.sources.mysql.schema.column_types import ColumnTypeUnknown, column_type, needs_definition
from agent.sources.mysql.types import ColumnType, Kind, invalid_label_bytes
from tests.agent.native.capture import logged
from tests.agent.native.mutation import payloads
from tests.servers import TESTED, Flavor, server

COLUMNS = """a INT UNSIGNED NOT NULL, b MEDIUMINT, c DECIMAL(10,3) UNSIGNED, d DOUBLE, e VARCHAR(300) CHARACTER SET latin1 NOT NULL,
    f CHAR(255) CHARACTER SET utf8mb4, g BINARY(17), h VARBINARY(20), i TEXT CHARACTER SET sjis, j LONGBLOB,
    k ENUM('x','ž') CHARACTER SET latin2, l SET('p','q') CHARACTER SET utf8mb4, m BIT(13), n DATETIME(3), o TIME(6), p TIMESTAMP NULL,
    q YEAR, r DATE, s BIGINT UNSIGNED"""

TYPES = [
    *(
        "int unsigned",
        "mediumint",
        "decimal(10,3) unsigned",
        "double",
        "varchar charset latin1",
        "char charset utf8mb4",
    ),
    *(
        "binary(17)",
        "varbinary",
        "text charset sjis",
        "blob",
        "enum('x','ž') charset latin2",
        "set('p','q') charset utf8mb4",
    ),
    *("bit(13)", "datetime(3)", "time(6)", "timestamp", "year", "date", "bigint unsigned"),
]


@pytest.fixture(scope="module", params=TESTED, ids="".join)
def flavor_and_maps(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Flavor, list[bytes]]:
    """Bodies of three table maps: full metadata, minimal metadata, and a key with a prefix."""
    flavor, version = request.param
    with server(flavor, tmp_path_factory.mktemp("map") / flavor, release=version) as running:
        running.run("CREATE DATABASE t CHARACTER SET utf8mb4")
        data = logged(
            running,
            f"CREATE TABLE full (PRIMARY KEY (e, a), {COLUMNS})",
            "INSERT INTO full (a, e) VALUES (1, 'x')",
            "SET GLOBAL binlog_row_metadata = 'MINIMAL'",
            "INSERT INTO full (a, e) VALUES (2, 'x')",
            "SET GLOBAL binlog_row_metadata = 'FULL'",
            "CREATE TABLE prefixed (a INT, b VARCHAR(100), PRIMARY KEY (b(10), a))",
            "INSERT INTO prefixed VALUES (1, 'x')",
        )
    return flavor, [payload[20:-4] for payload in payloads(data) if payload[5:6] == bytes([binlog.TABLE_MAP_EVENT])]


def test_full_metadata_tells_every_columns_type_name_and_key(flavor_and_maps: tuple[Flavor, list[bytes]]) -> None:
    flavor, bodies = flavor_and_maps
    parsed = parse_table_map(bodies[0], mariadb=flavor == "mariadb")

    assert (parsed.database, parsed.table) == ("t", "full")
    assert table_of(bodies[0]) == (parsed.table_id, "t", "full")
    assert [column.name for column in parsed.columns] == list("abcdefghijklmnopqrs")
    assert [str(column_type(column, mariadb=flavor == "mariadb")) for column in parsed.columns] == TYPES
    assert parsed.primary_key == ((4, 0), (0, 0))
    assert [column.nullable for column in parsed.columns[:6]] == [False, True, True, True, False, True]


def test_minimal_metadata_needs_a_fallback_for_labels_alone(flavor_and_maps: tuple[Flavor, list[bytes]]) -> None:
    flavor, bodies = flavor_and_maps
    parsed = parse_table_map(bodies[1], mariadb=flavor == "mariadb")
    labels = ColumnType(Kind.ENUM, charset="latin2", labels=("x", "ž"))

    assert parsed.primary_key is None
    assert parsed.columns[0].name is None
    assert str(column_type(parsed.columns[4], mariadb=flavor == "mariadb")) == "varchar charset latin1"
    assert column_type(parsed.columns[10], mariadb=flavor == "mariadb", fallback=labels) == labels
    with pytest.raises(ColumnTypeUnknown):
        column_type(parsed.columns[10], mariadb=flavor == "mariadb")


def test_key_with_a_prefix_keeps_its_length(flavor_and_maps: tuple[Flavor, list[bytes]]) -> None:
    parsed: TableMap = parse_table_map(flavor_and_maps[1][2], mariadb=flavor_and_maps[0] == "mariadb")

    assert parsed.primary_key == ((1, 10), (0, 0))


def test_every_cut_of_a_table_map_is_an_error_or_says_less(flavor_and_maps: tuple[Flavor, list[bytes]]) -> None:
    flavor, (body, *_) = flavor_and_maps
    whole = parse_table_map(body, mariadb=flavor == "mariadb")
    told = 0
    for size in range(len(body)):
        try:
            parsed = parse_table_map(body[:size], mariadb=flavor == "mariadb")
        except TableMapError:
            continue
        told += 1
        assert [column.type for column in parsed.columns] == [column.type for column in whole.columns]
    assert 0 < told < 20  # only between two optional fields


def test_mariadbs_json_is_told_by_the_fallback_alone() -> None:
    column = MappedColumn(binlog.MYSQL_TYPE_BLOB, 4, nullable=True, collation_id=46)
    json = ColumnType(Kind.JSON)

    assert column_type(column, mariadb=True) == ColumnType(Kind.TEXT, charset="utf8mb4")
    assert column_type(column, mariadb=True, fallback=json) == json


def test_definition_is_needed_for_what_the_log_leaves_open_alone() -> None:
    binary = MappedColumn(binlog.MYSQL_TYPE_STRING, 16, nullable=True, name="a", collation_id=63)
    old_time = MappedColumn(binlog.MYSQL_TYPE_TIME, 0, nullable=True, name="a")
    old_decimal = MappedColumn(binlog.MYSQL_TYPE_DECIMAL, 0, nullable=True, name="a")

    assert needs_definition(binary, mariadb=True)
    assert needs_definition(replace(binary, metadata=4), mariadb=True)
    assert needs_definition(replace(binary, name=None), mariadb=False)
    assert not needs_definition(binary, mariadb=False)
    assert not needs_definition(replace(binary, metadata=5), mariadb=True)
    assert not needs_definition(replace(binary, collation_id=45), mariadb=True)
    assert needs_definition(old_time, mariadb=True)
    assert not needs_definition(old_time, mariadb=False)
    assert needs_definition(old_decimal, mariadb=False)
    assert column_type(binary, mariadb=True, fallback=ColumnType(Kind.UUID)) == ColumnType(Kind.UUID)
    with pytest.raises(ColumnTypeUnknown):
        column_type(binary, mariadb=True)


def test_column_of_an_unknown_type_is_named_by_its_number_and_type() -> None:
    body = bytes(8) + b"\1t\0\1a\0" + bytes([3, binlog.MYSQL_TYPE_LONG, 199, binlog.MYSQL_TYPE_LONG])

    with pytest.raises(TableMapError, match="column number 2 is of type 199"):
        parse_table_map(body + b"\0\0", mariadb=False)


def test_invalid_label_is_kept_as_its_bytes_and_never_looks_like_a_real_one() -> None:
    column = MappedColumn(
        binlog.MYSQL_TYPE_ENUM, 1, nullable=True, collation_id=13, labels=(b"0x8540", b"\x85\x40", b"it's")
    )

    told = column_type(column, mariadb=False)

    assert str(told) == "enum('0x8540',0x8540,'it''s') charset sjis"
    assert invalid_label_bytes(told.labels[1]) == b"\x85\x40"
    assert [invalid_label_bytes(told.labels[place]) for place in (0, 2)] == [None, None]
