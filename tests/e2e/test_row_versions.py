"""MariaDB's tables with system versioning, from real statements to the lake: what SELECT * shows, before and after."""

from pathlib import Path

import pytest

from tests.e2e.lake import changelog_counts, wait_until_equal
from tests.servers import server
from tests.stack import Stack

pytestmark = pytest.mark.spark

PERIOD = "{0} {1} GENERATED ALWAYS AS ROW START, {2} {1} GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME ({0}, {2})"
TABLES = {
    "hidden": "(id INT PRIMARY KEY, v VARCHAR(20)) WITH SYSTEM VERSIONING",
    "keyless": "(id INT, v VARCHAR(20)) WITH SYSTEM VERSIONING",
    "named": f"(id INT PRIMARY KEY, v VARCHAR(20), {PERIOD.format('since', 'TIMESTAMP(6)', '`until`')})"
    " WITH SYSTEM VERSIONING",
    "unseen": "(id INT PRIMARY KEY, v VARCHAR(20), x TIMESTAMP(6) GENERATED ALWAYS AS ROW START INVISIBLE,"
    " y TIMESTAMP(6) GENERATED ALWAYS AS ROW END INVISIBLE, PERIOD FOR SYSTEM_TIME (x, y)) WITH SYSTEM VERSIONING",
    "parted": "(id INT PRIMARY KEY, v VARCHAR(20)) WITH SYSTEM VERSIONING"
    " PARTITION BY SYSTEM_TIME LIMIT 2 (PARTITION h1 HISTORY, PARTITION h2 HISTORY, PARTITION now CURRENT)",
    "later": "(id INT PRIMARY KEY, v VARCHAR(20))",
    "later_keyless": "(id INT, v VARCHAR(20))",
}
CHANGES = (
    "UPDATE {t} SET v = 'one' WHERE id = 1",
    "UPDATE {t} SET v = 'two', id = 20 WHERE id = 2",
    "DELETE FROM {t} WHERE id = 3",
    "INSERT INTO {t} (id, v) VALUES (3, 'again'), (30, 'new')",
    "REPLACE INTO {t} (id, v) VALUES (4, 'replaced')",
    "DELETE FROM {t} WHERE id = 30",
)


@pytest.mark.parametrize("version", ["", "11.8"])
@pytest.mark.parametrize("metadata", ["FULL", "NO_LOG"])
def test_tables_with_versions_when_they_change_then_the_lake_shows_what_select_shows(
    version: str, metadata: str, running: Stack, tmp_path: Path
) -> None:
    source, database = f"versions-{version.replace('.', '')}-{metadata.lower().replace('_', '')}", "versions"
    with server("mariadb", tmp_path, release=version, binlog_row_metadata=metadata) as origin:
        origin.create_replication_user()
        origin.run(f"CREATE DATABASE {database}")
        origin.run(*(f"CREATE TABLE {name} {words}" for name, words in TABLES.items()), database=database)
        for name in TABLES:
            origin.run(
                f"INSERT INTO {name} (id, v) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e')",
                f"UPDATE {name} SET v = 'before' WHERE id = 5",
                database=database,
            )
        with running.agent(source, {source: origin}):
            for name in TABLES:
                running.start_sync(source, database, name, "oldest" if name == "named" else "dump")
            wait_until_equal(running.lake, running.tenant, source, origin, database, TABLES)
            for name in TABLES:
                origin.run(*(statement.format(t=name) for statement in CHANGES), database=database)
            wait_until_equal(running.lake, running.tenant, source, origin, database, TABLES)
            origin.run("DELETE HISTORY FROM hidden", "DELETE HISTORY FROM keyless", database=database)
            for name in ("later", "later_keyless"):
                origin.run(f"ALTER TABLE {name} ADD SYSTEM VERSIONING", database=database)
                origin.run(*(statement.format(t=name) for statement in CHANGES[:3]), database=database)
                origin.run(f"UPDATE {name} SET v = 'z'", f"DELETE FROM {name} WHERE id = 4", database=database)
            origin.run("UPDATE hidden SET v = 'ended'", "ALTER TABLE hidden DROP SYSTEM VERSIONING", database=database)
            origin.run("UPDATE hidden SET v = 'on' WHERE id = 1", "DELETE FROM hidden WHERE id = 5", database=database)
            wait_until_equal(running.lake, running.tenant, source, origin, database, TABLES)
            origin.run("ALTER TABLE later DROP SYSTEM VERSIONING", "UPDATE later SET v = 'y'", database=database)
            wait_until_equal(running.lake, running.tenant, source, origin, database, TABLES)
            counts = changelog_counts(running.lake, running.tenant, source, database, "keyless")
            assert counts["insert"] > 3, "former versions"
            running.wait_until_streaming(source, database, *TABLES)
            for name in TABLES:
                running.post(f"{running.table_path(source, database, name)}/stop")
