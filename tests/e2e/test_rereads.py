"""Tables whose server changes rows without logging them heal by themselves, from real statements to the lake."""

import pytest

from tests.e2e.lake import wait_until_equal
from tests.servers import Flavor, Server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

MAKE = "(id INT {key}, w VARCHAR(20)) PARTITION BY HASH (id) PARTITIONS 3"
ROWS = "SELECT seq, CONCAT('row ', seq) FROM numbers"
#: by table
UNLOGGED = {
    "truncated": "ALTER TABLE truncated TRUNCATE PARTITION p1",
    "exchanged": "ALTER TABLE exchanged EXCHANGE PARTITION p2 WITH TABLE spare",
    "swapped": "RENAME TABLE swapped TO aside, replacement TO swapped",
    "back": "RENAME TABLE back TO away; UPDATE away SET w = 'meanwhile' WHERE id = 2; RENAME TABLE away TO back",
    "keyless": "ALTER TABLE keyless TRUNCATE PARTITION p0",
    "left": "UPDATE {database}.left SET w = 'as ever' WHERE id = 3",
}


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_tables_when_their_rows_change_unlogged_are_re_read_beside_their_streams(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    server, database = servers[flavor], f"unlogged_{flavor}"
    server.run(f"CREATE DATABASE {database}")
    numbers = ",".join(f"({number})" for number in range(1, 100))
    server.run(
        "CREATE TABLE numbers (seq INT)",
        f"INSERT INTO numbers VALUES {numbers}",
        *(
            f"CREATE TABLE `{table}` {MAKE.format(key='' if table == 'keyless' else 'PRIMARY KEY')}"
            for table in UNLOGGED
        ),
        *(f"INSERT INTO `{table}` {ROWS}" for table in UNLOGGED),
        "CREATE TABLE spare (id INT PRIMARY KEY, w VARCHAR(20))",
        "INSERT INTO spare VALUES (2, 'spare'), (5, 'spare')",
        "CREATE TABLE replacement (w VARCHAR(20), id INT PRIMARY KEY, more INT DEFAULT 7)",
        "INSERT INTO replacement (id, w) VALUES (1, 'another'), (1000, 'one')",
        database=database,
    )
    with running.agent(f"unlogged-{flavor}", {f"unlogged-{flavor}": server}):
        source = f"unlogged-{flavor}"
        for table in UNLOGGED:
            running.start_sync(source, database, table, "dump")
        wait_until_equal(running.lake, running.tenant, source, server, database, UNLOGGED)
        running.wait_until_streaming(source, database, *UNLOGGED)
        for statements in UNLOGGED.values():
            server.run(*statements.format(database=database).split("; "), database=database)
        for table in UNLOGGED:
            server.run(f"INSERT INTO `{table}` (id, w) VALUES (2000, 'later')", database=database)
        wait_until_equal(running.lake, running.tenant, source, server, database, UNLOGGED)
        running.wait_until_streaming(source, database, *UNLOGGED)
        events = running.get(f"{running.table_path(source, database, 'truncated')}/events")["events"]
        assert [event["kind"] for event in events][:3] == ["DUMPED", "DUMP_STARTED", "ALTERED"]
        assert "took rows away" in events[2]["unlogged_changes"]
        dumps = running.get(f"/api/v1/tenants/{running.tenant}/sources/{source}/dumps")["dumps"]
        assert {dump["table"] for dump in dumps if dump["state"] == "done"} == set(UNLOGGED)
        assert sum(dump["table"] == "left" for dump in dumps) == 1, "nothing happened to it"
        for table in UNLOGGED:
            running.post(f"{running.table_path(source, database, table)}/stop")


@pytest.mark.long
def test_children_when_a_parent_begins_anew_begin_anew_by_themselves_level_by_level(
    servers: dict[Flavor, Server], running: Stack
) -> None:
    """MariaDB logs no row of what a foreign key does."""
    server, database, source = servers["mariadb"], "families", "families"
    server.run(f"CREATE DATABASE {database}")
    server.run(
        "CREATE TABLE a (id INT PRIMARY KEY)",
        *(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES {above} (id)"
            " ON DELETE CASCADE)"
            for table, above in (("b", "a"), ("c", "b"))
        ),
        "INSERT INTO a VALUES (1), (2), (3)",
        *(f"INSERT INTO {table} VALUES (1, 1), (2, 2), (3, 3)" for table in "bc"),
        database=database,
    )
    with running.agent("families", {source: server}):
        for table in "abc":
            running.start_sync(source, database, table, "dump")
        server.run("DELETE FROM a WHERE id = 1", "UPDATE c SET id = 30 WHERE id = 3", database=database)
        wait_until_equal(running.lake, running.tenant, source, server, database, "abc")
        running.wait_until_streaming(source, database, *"abc")
        running.sink.stop()
        rows, folder = running.table(source, database, "a")["rows"], running.landing / "data" / running.tenant / source
        landed = set(folder.rglob("*.parquet"))
        server.run("DELETE FROM a WHERE id = 2", database=database)
        wait_for("it to land", lambda: running.table(source, database, "a")["rows"] > rows)
        (lost,) = set(folder.rglob("*.parquet")) - landed
        lost.unlink()
        running.sink.start()
        wait_for("the stop", lambda: running.table(source, database, "a")["state"] == "failed")
        running.command("sync", "resync", source, f"{database}.a")
        wait_until_equal(running.lake, running.tenant, source, server, database, "abc")
        running.wait_until_streaming(source, database, *"abc")
        for table in "abc":
            running.post(f"{running.table_path(source, database, table)}/stop")
