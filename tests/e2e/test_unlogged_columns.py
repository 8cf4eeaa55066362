"""A MariaDB that leaves generated columns out of its log: the lake has the tables without them, and says since when."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.e2e.lake import table_path, wait_until_equal
from tests.servers import server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

TABLE = (
    "(id INT PRIMARY KEY, note VARCHAR(20), size INT AS (CHAR_LENGTH(note)) VIRTUAL,"
    " shown VARCHAR(30) AS (CONCAT(note, '!')) STORED)"
)
SAID = "(generated columns whose new values the server's log lacks are not sent from here on)"
TABLES, GENERATED = ("dumped", "oldest"), ("size", "shown")


def dumped(running: Stack, source: str) -> list[str]:
    """Names of the tables whose dumps are done, in order."""
    found = running.get(f"/api/v1/tenants/{running.tenant}/sources/{source}/dumps")["dumps"]
    return sorted(dump["table"] for dump in found if dump["state"] == "done")


def test_tables_when_updates_lack_generated_columns_then_the_lake_is_equal_without_them(
    running: Stack, tmp_path: Path
) -> None:
    source, database = "unlogged-columns", "made"
    with server("mariadb", tmp_path, release="11.8") as origin:
        origin.create_replication_user()
        origin.run(f"CREATE DATABASE {database}")
        for name in TABLES:
            origin.run(
                f"CREATE TABLE {name} {TABLE}",
                f"INSERT INTO {name} (id, note) VALUES (1, 'one'), (2, 'two'), (5, 'five')",
                database=database,
            )
        with running.agent(source, {source: origin}):
            for name in TABLES:
                running.start_sync(source, database, name, "oldest" if name == "oldest" else "dump")
            wait_until_equal(running.lake, running.tenant, source, origin, database, TABLES)
            for name in TABLES:
                origin.run(
                    f"INSERT INTO {name} (id, note) VALUES (3, 'three')",
                    f"UPDATE {name} SET note = 'changed' WHERE id = 1",
                    f"DELETE FROM {name} WHERE id = 2",
                    f"INSERT INTO {name} (id, note) VALUES (4, 'four')",
                    database=database,
                )
            wait_until_equal(running.lake, running.tenant, source, origin, database, TABLES, ignored=GENERATED)
            running.wait_until_streaming(source, database, *TABLES)
            assert dumped(running, source) == ["dumped"]
            for name in TABLES:
                path = table_path(running.lake, running.tenant, source, database, name, "current")
                current = DeltaTable(str(path)).to_pyarrow_table(columns=list(GENERATED)).to_pylist()
                assert current == [dict.fromkeys(GENERATED)] * 4, "a value of before stands in no row"
                events = running.get(f"{running.table_path(source, database, name)}/events")["events"]
                assert [event["statement"] for event in events].count(SAID) == 1
                plain = f"ALTER TABLE {name} DROP COLUMN shown, ADD COLUMN shown VARCHAR(30) DEFAULT 'new'"
                origin.run(plain, f"INSERT INTO {name} (id, note, shown) VALUES (6, 'six', 'own')", database=database)
            wait_until_equal(running.lake, running.tenant, source, origin, database, TABLES, ignored=("size",))
            wait_for("the column that comes again to be read", lambda: len(dumped(running, source)) > len(TABLES))
            assert dumped(running, source) == ["dumped", "dumped", "oldest"]
            wait_until_equal(running.lake, running.tenant, source, origin, database, TABLES, ignored=("size",))
            for name in TABLES:
                running.post(f"{running.table_path(source, database, name)}/stop")
