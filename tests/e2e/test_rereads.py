"""Tables whose server changes rows without logging them heal by themselves, from real statements to the lake."""

import shutil
from pathlib import Path

import pytest

from tests.e2e.lake import wait_until_equal
from tests.servers import Flavor, Server
from tests.servers import server as database_server
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


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_tables_when_statements_are_logged_in_place_of_rows_are_re_read_and_harmless_ones_change_nothing(
    flavor: Flavor, running: Stack, tmp_path: Path
) -> None:
    """A trigger changes one table, a temporary one has a session of format MIXED log its rows as statements.

    On a server of its own: other tests read the log of theirs from its beginning.
    """
    with database_server(flavor, tmp_path / "server") as server:
        server.create_replication_user()
        logged_as_statements(server, f"stated_{flavor}", f"stated-{flavor}", running)


def logged_as_statements(server: Server, database: str, source: str, running: Stack) -> None:
    tables = ["orders", "audit", "beside"]
    server.run(f"CREATE DATABASE {database}", f"CREATE DATABASE {database}_tools")
    server.run(
        *(f"CREATE TABLE {table} (id INT PRIMARY KEY, w VARCHAR(40))" for table in [*tables, "loaded"]),
        "INSERT INTO loaded VALUES (1, 'one'), (2, 'two')",
        "CREATE TRIGGER told AFTER UPDATE ON orders FOR EACH ROW REPLACE INTO audit VALUES (NEW.id, NEW.w)",
        "INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "CREATE TABLE seen (id INT PRIMARY KEY, at DATETIME)",
        f"CREATE TABLE {database}_tools.heartbeat (id INT PRIMARY KEY, at DATETIME)",
        database=database,
    )
    harmless = [f"{database}_tools.heartbeat", f"{database}.seen"]
    with running.agent(source, {source: server}, harmless_statements=harmless):
        for table in tables:
            running.start_sync(source, database, table, "dump")
        wait_until_equal(running.lake, running.tenant, source, server, database, tables)
        running.wait_until_streaming(source, database, *tables)
        beat = "REPLACE INTO {}.{} VALUES (1, NOW())"
        beats = [beat.format(f"{database}_tools", "heartbeat"), beat.format(database, "seen")]
        server.run("SET SESSION binlog_format = 'STATEMENT'", *beats * 20, database=database)
        server.run("INSERT INTO orders VALUES (9, 'as a row')", database=database)
        wait_until_equal(running.lake, running.tenant, source, server, database, tables)
        dumps = lambda: running.get(f"/api/v1/tenants/{running.tenant}/sources/{source}/dumps")["dumps"]  # noqa: E731
        assert len(dumps()) == len(tables), "harmless statements have ordered none"
        server.run(
            "SET SESSION binlog_format = 'MIXED'",
            "CREATE TEMPORARY TABLE waiting LIKE loaded",
            "INSERT INTO waiting SELECT * FROM loaded",
            database=database,
        )
        server.run(
            "SET SESSION binlog_format = 'STATEMENT'",
            "UPDATE orders SET w = CONCAT(w, ' later') WHERE id < 3",
            "UPDATE orders SET w = CONCAT(w, ' again')",
            database=database,
        )
        wait_until_equal(running.lake, running.tenant, source, server, database, tables)
        running.wait_until_streaming(source, database, *tables)
        events = running.get(f"{running.table_path(source, database, 'audit')}/events")["events"]
        assert any("was logged as a statement" in event["unlogged_changes"] for event in events)


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_table_when_it_gets_another_tables_files_is_re_read_beside_its_stream(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    server, database, source = servers[flavor], f"imported_{flavor}", f"imported-{flavor}"
    if server.folder is None:
        pytest.skip("needs a server whose folder this machine has: that of `make test`")
    files = server.folder / "data" / database
    server.run(f"CREATE DATABASE {database}")
    server.run(
        *(f"CREATE TABLE {table} (id INT PRIMARY KEY, w VARCHAR(20))" for table in ("imported", "donor", "beside")),
        "INSERT INTO imported VALUES (1, 'of before'), (2, 'of before')",
        "INSERT INTO donor VALUES (2, 'of the donor'), (3, 'of the donor')",
        database=database,
    )
    with running.agent(source, {source: server}):
        for table in ("imported", "beside"):
            running.start_sync(source, database, table, "dump")
        wait_until_equal(running.lake, running.tenant, source, server, database, ["imported"])
        running.wait_until_streaming(source, database, "imported", "beside")
        server.run(
            "ALTER TABLE imported DISCARD TABLESPACE", "INSERT INTO beside VALUES (1, 'between')", database=database
        )
        wait_until_equal(running.lake, running.tenant, source, server, database, ["beside"])
        with server.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("FLUSH TABLES donor FOR EXPORT")
            for ending in ("ibd", "cfg"):
                shutil.copy(files / f"donor.{ending}", files / f"imported.{ending}")
            cursor.execute("UNLOCK TABLES")
        server.run(
            "ALTER TABLE imported IMPORT TABLESPACE", "INSERT INTO imported VALUES (4, 'later')", database=database
        )
        assert server.run("SELECT id, w FROM imported WHERE id < 4 ORDER BY id", database=database) == [
            (2, "of the donor"),
            (3, "of the donor"),
        ]
        wait_until_equal(running.lake, running.tenant, source, server, database, ["imported"])
        running.wait_until_streaming(source, database, "imported")
        events = running.get(f"{running.table_path(source, database, 'imported')}/events")["events"]
        (told,) = [event for event in events if event["kind"] == "ALTERED" and event["unlogged_changes"]]
        assert "put rows into it that the log does not hold" in told["unlogged_changes"]
        dumps = running.get(f"/api/v1/tenants/{running.tenant}/sources/{source}/dumps")["dumps"]
        assert sum(dump["table"] == "imported" and dump["state"] == "done" for dump in dumps) == 2
        for table in ("imported", "beside"):
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
        rows = running.table(source, database, "a")["rows"]
        folder = running.landing / "data" / running.tenant / source / database / "a"
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
