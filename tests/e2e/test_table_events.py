"""Changes of a table's definition and partial rows, from real statements to the lake."""

import pytest

from tests.e2e.lake import wait_for_changelog, wait_until_equal
from tests.servers import Flavor, Server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

ROWS = "(1, 'a', 10), (2, 'b', 20), (3, 'c', 30)"
STATEMENTS = (
    f"INSERT INTO t VALUES {ROWS}",
    "ALTER TABLE t ADD added INT NOT NULL DEFAULT 7, ADD day DATE DEFAULT '2024-02-29', ADD nothing TEXT",
    "UPDATE t SET n = 21, added = 8 WHERE id = 2",
    "ALTER TABLE t CHANGE note words VARCHAR(40), DROP COLUMN n",
    "INSERT INTO t (id, words) VALUES (4, 'd')",
    f"INSERT INTO cut VALUES {ROWS}",
    "TRUNCATE TABLE cut",
    "INSERT INTO cut VALUES (4, 'd', 40)",
    f"INSERT INTO again VALUES {ROWS}",
    "DROP TABLE again",
    "CREATE TABLE again (id VARCHAR(9) PRIMARY KEY, note DATE, other INT)",
    "INSERT INTO again VALUES ('x', '2024-01-01', 1)",
)
PARTIAL = (
    "SET SESSION binlog_row_image = MINIMAL",
    "UPDATE t SET words = 'less' WHERE id = 1",
    "DELETE FROM t WHERE id = 3",
    "UPDATE cut SET n = NULL",
)
#: MariaDB logs a REPLACE like this and does not log all that it sets, so there it stops the table
PARTIAL_MOVE = "UPDATE t SET id = 9 WHERE id = 2"


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_definitions_that_change_when_rows_come_between_then_the_lake_equals_the_source(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    server, database = servers[flavor], "changing"
    tables = ["t", "cut", "again"]
    server.run(f"CREATE DATABASE {database}")
    server.run(
        *(f"CREATE TABLE {table} (id INT PRIMARY KEY, note VARCHAR(20), n INT)" for table in tables), database=database
    )
    with running.agent(f"changing-{flavor}", {f"{flavor}-changing": server}):
        source = f"{flavor}-changing"
        for table in tables:
            running.start_sync(source, database, table, "now")
        wait_for("the tables to stream", lambda: running.source(source)["tables"].get("streaming") == len(tables))
        server.run(*STATEMENTS, database=database)
        server.run(*PARTIAL, *([PARTIAL_MOVE] if flavor == "mysql" else []), database=database)
        wait_until_equal(running.lake, running.tenant, source, server, database, tables)
        for table in tables:
            running.post(f"{running.table_path(source, database, table)}/stop")
    counts = {"insert": 4, "truncate": 1, "update_preimage": 1, "update_postimage": 1}
    wait_for_changelog(running.lake, running.tenant, source, database, "cut", counts)
    events = running.get(f"{running.table_path(source, database, 'again')}/events")["events"]
    assert [event["kind"] for event in events] == ["CREATED", "DROPPED"]
    assert running.table(source, database, "t")["problem"] is None
