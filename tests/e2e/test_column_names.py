"""Columns with names that the lake needs itself or can't tell apart, from real statements to the lake."""

# ruff: noqa: RUF001  (letters that look alike are what this is about)

import pytest

from tests.e2e.lake import wait_until_equal
from tests.e2e.test_dump import wait_until_dumped
from tests.servers import Flavor, Server
from tests.stack import Stack

pytestmark = pytest.mark.spark

NAMES = ("_gsn", "_Change_Type", "_absent", "_unrepresentable", "_menura_row", "_commit_version", "ﬁ", "fi", "ß", "ss",
         "a~1", "%5Fgsn", "ſ", "s", "Größe", "Ԁ", "unit price")  # fmt: skip
VALUES = ", ".join(f"'{name}'" for name in NAMES)
AFTER = (
    "ALTER TABLE t DROP COLUMN `ﬁ`, CHANGE _gsn plain VARCHAR(20), CHANGE fi `ﬁ` VARCHAR(20) CHARACTER SET utf8mb4",
    "INSERT INTO t (_absent, plain, `ﬁ`, day) VALUES ('new', 'x', 'y', NULL)",
    "ALTER TABLE t ADD _gsn INT NOT NULL DEFAULT 7, ADD fi INT, CHANGE `ß` _position VARCHAR(20) CHARACTER SET utf8mb4",
    "UPDATE t SET _gsn = 8, fi = 9, `a~1` = 'z' WHERE _absent = 'two'",
    "DELETE FROM t WHERE _absent = 'three'",
)


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_columns_when_their_names_are_the_lakes_own_or_differ_by_case_folding_then_the_lake_equals_the_source(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    server, source, database = servers[flavor], f"names-{flavor}", f"names_{flavor}"
    columns = ", ".join(f"`{name}` VARCHAR(20) CHARACTER SET utf8mb4" for name in NAMES)
    server.run(f"CREATE DATABASE {database}")
    server.run(
        "SET sql_mode = ''",
        f"CREATE TABLE t ({columns}, day DATE, PRIMARY KEY (_absent))",
        *(f"INSERT INTO t VALUES ({VALUES}, '0000-00-00')".replace("'_absent'", f"'{key}'") for key in ("one", "two")),
        database=database,
    )
    with running.agent(source, {source: server}):
        running.start_sync(source, database, "t", "dump")
        wait_until_dumped(running, source, 1)
        server.run(f"INSERT INTO t VALUES ({VALUES}, NULL)".replace("'_absent'", "'three'"), database=database)
        server.run("UPDATE t SET `ss` = 'changed' WHERE _absent = 'one'", database=database)
        wait_until_equal(running.lake, running.tenant, source, server, database, ["t"])
        server.run(*AFTER, database=database)
        wait_until_equal(running.lake, running.tenant, source, server, database, ["t"])
        running.wait_until_streaming(source, database, "t")
        running.post(f"{running.table_path(source, database, 't')}/stop")
