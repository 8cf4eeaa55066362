"""ALTERs to types that the lake's column can't hold: no table stops, and a dump brings what nobody logged."""

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.e2e.lake import table_path, wait_until_equal
from tests.e2e.test_dump import dumps
from tests.servers import Flavor, Server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

#: column, type before and after, value before and after
COLUMNS = (
    ("int_double", "INT", "DOUBLE", "7", "0.5"),
    ("double_int", "DOUBLE", "INT", "1.5", "3"),
    ("float_decimal", "FLOAT", "DECIMAL(10,2)", "0.25", "-1.75"),
    ("decimal_double", "DECIMAL(10,2)", "DOUBLE", "1.25", "1e100"),
    ("date_datetime", "DATE", "DATETIME(6)", "'2024-02-29'", "'2024-02-29 01:02:03.000004'"),
    ("datetime_date", "DATETIME", "DATE", "'2024-02-29 23:59:59'", "'1000-01-01'"),
    ("timestamp_datetime", "TIMESTAMP NULL", "DATETIME", "'2024-02-28 01:02:03'", "'9999-12-31 23:59:59'"),
    ("text_date", "TEXT", "DATE", "'2024-02-29'", "'2024-03-01'"),
    ("char_binary", "CHAR(9) CHARACTER SET latin1", "BINARY(9)", "'a'", "X'00FF'"),
    ("blob_varchar", "BLOB", "VARCHAR(9) CHARACTER SET utf8mb4", "'a'", "'ü'"),
    ("time_varbinary", "TIME", "VARBINARY(20)", "'12:34:56'", "X'FF'"),
)
KEYS = {
    "by_number": ("INT", "DOUBLE", "1", "0.5"),
    "by_day": ("DATE", "DATETIME(3)", "'2024-02-29'", "'2024-01-01 10:00'"),
}


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_columns_when_they_change_to_any_type_then_no_table_stops_and_a_dump_makes_the_lake_equal(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    server, source, database = servers[flavor], f"retyped-{flavor}", f"retyped_{flavor}"
    tables = ["keyed", "keyless", *KEYS]
    before = ", ".join(f"{name} {old}" for name, old, *_ in COLUMNS)
    changes = ", ".join(f"MODIFY {name} {new}" for name, _, new, *_ in COLUMNS)
    old, new = (", ".join(column[place] for column in COLUMNS) for place in (3, 4))
    server.run(f"CREATE DATABASE {database}")
    server.run(
        f"CREATE TABLE keyed (id INT PRIMARY KEY, {before})",
        f"CREATE TABLE keyless (id INT, {before})",
        *(f"CREATE TABLE {table} (k {key[0]} PRIMARY KEY, n INT)" for table, key in KEYS.items()),
        database=database,
    )
    with running.agent(source, {source: server}):
        for table in tables:
            running.start_sync(source, database, table, "now")
        wait_for("the tables to stream", lambda: running.source(source)["tables"].get("streaming") == len(tables))
        for table in tables[:2]:
            server.run(
                f"INSERT INTO {table} VALUES (1, {old}), (2, {old}), (3, {old})",
                f"ALTER TABLE {table} {changes}",
                f"INSERT INTO {table} VALUES (4, {new})",
                f"UPDATE {table} SET {COLUMNS[0][0]} = 0.25 WHERE id = 1",
                f"DELETE FROM {table} WHERE id = 2",
                database=database,
            )
        for table, (_, type_, one, other) in KEYS.items():
            server.run(
                f"INSERT INTO {table} VALUES ({one}, 1)",
                f"ALTER TABLE {table} MODIFY k {type_}",
                f"INSERT INTO {table} VALUES ({other}, 2)",
                f"UPDATE {table} SET n = 3",
                database=database,
            )
        both = {(7, None), (None, 0.5), (None, 0.25)}
        wait_for("both kinds of values", lambda: _changelog(running, source, database) >= both)
        for table in tables:
            if table not in dumps(running, source):  # unless the ALTER has ordered one
                answer = running.client.post(f"{running.table_path(source, database, table)}/dump", json={})
                assert answer.is_success or answer.json()["code"] == "DUMP_RUNNING"
        wait_until_equal(running.lake, running.tenant, source, server, database, tables)
        running.wait_until_streaming(source, database, *tables)
        for table in tables:
            running.post(f"{running.table_path(source, database, table)}/stop")


def _changelog(running: Stack, source: str, database: str) -> set[tuple[object, object]]:
    """Values of the column of before and of the one of now."""
    path = table_path(running.lake, running.tenant, source, database, "keyed", "changelog")
    try:
        rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return set()
    return {(row.get("int_double~1"), row.get("int_double")) for row in rows}
