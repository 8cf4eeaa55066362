"""The source's log is gone, or its server is another one: what is said, and what leads back to an equal lake."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import load
from tests.e2e.lake import recorded_events, wait_until_equal
from tests.servers import FLAVORS, Server, replica_of, server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

DATABASE = "shop"
#: with a key, with one that a dump does not read by, and one that had no row
TABLES = ("keyed", "keyless", "few")


@pytest.fixture(params=FLAVORS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """One that the test may purge, stop and restore."""
    with server(request.param, tmp_path / "server") as running:
        prepare(running)
        yield running


def prepare(database: Server) -> None:
    database.create_replication_user()
    load.create_tables(database, DATABASE, "keyed")
    database.run(
        f"CREATE TABLE {DATABASE}.keyless (a INT, b VARCHAR(20))",
        f"INSERT INTO {DATABASE}.keyless VALUES (1, 'one'), (1, 'one'), (2, 'two')",
        f"CREATE TABLE {DATABASE}.few (id INT PRIMARY KEY)",
    )


def change(database: Server) -> None:
    """Rows come, go and change in each table."""
    load.insert_rows(database, DATABASE, "keyed", 10)
    database.run(
        "DELETE FROM keyed WHERE id % 3 = 1",
        "UPDATE keyed SET note = 'changed' WHERE id % 4 = 0",
        "DELETE FROM keyless LIMIT 1",
        "INSERT INTO keyless VALUES (3, 'three')",
        "INSERT INTO few SELECT COALESCE(MAX(id), 0) + 1 FROM few",
        database=DATABASE,
    )


def begin(running: Stack, source: str, database: Server) -> None:
    for table in TABLES:
        running.start_sync(source, DATABASE, table, "dump")
    change(database)
    equal(running, source, database)
    healed(running, source)  # the dumps too have ended


def equal(running: Stack, source: str, database: Server) -> None:
    wait_until_equal(running.lake, running.tenant, source, database, DATABASE, TABLES)


def healed(running: Stack, source: str) -> None:
    """Every table streams, and nothing is said of it any more."""
    running.wait_until_streaming(source, DATABASE, *TABLES)
    wait_for("no problem of the source", lambda: running.source(source)["problem"] is None)


def gap_events(running: Stack, source: str, table: str) -> list[dict[str, Any]]:
    """As the lake has them, which records them a moment after their tables."""

    def look() -> list[dict[str, Any]]:
        events = recorded_events(running.lake)
        return [e for e in events if (e["source"], e["table"], e["kind"]) == (source, table, "LOG_GAP")]

    return wait_for(f"the gap of {table}", look)


def purge(database: Server) -> None:
    """All but the last log, while nobody reads it."""
    database.run("FLUSH BINARY LOGS")
    last = database.run("SHOW BINARY LOGS")[-1][0]

    def is_purged() -> bool:
        database.run(f"PURGE BINARY LOGS TO '{last}'")
        return len(database.run("SHOW BINARY LOGS")) == 1

    wait_for("the logs to be purged", is_purged)


def waiting_source(running: Stack, source: str) -> str:
    """What the source says while it waits for its operator; each table says it too, and no lag is shown."""

    def look() -> dict[str, Any] | None:
        view = running.source(source)
        says_so = view["problem"] and view["problem"]["code"] in ("SOURCE_DIVERGED", "SOURCE_REBUILT")
        return view if says_so and view["tables"].get("waiting") == len(TABLES) else None

    view = wait_for("the source to wait", look)
    message: str = view["problem"]["message"]

    def says_so(table: str) -> bool:
        said = running.table(source, DATABASE, table)
        return (said["state"], said["problem"] and said["problem"]["message"]) == ("waiting", message)

    for table in TABLES:
        wait_for(f"{table} to say so", lambda table=table: says_so(table))
    # the stream says why at once; which server is there comes with the agent's effective state
    offered = f"/api/v1/tenants/{running.tenant}/sources/{source}/other-server"
    wait_for("the server that waits for acceptance", lambda: running.client.get(offered).is_success)
    wait_for("an unknown lag", lambda: running.source(source)["lag_us"] is None)
    assert message in running.command("sources")
    assert "waiting" in running.command("tables", source)
    return message


def accept(running: Stack, source: str, message: str) -> str:
    """The remedy's command, word for word, and then the one that it prints; what the first one has shown."""
    (command,) = re.findall(r"menura (sources accept [a-z0-9-]+)", message)
    shown = running.command(*command.split())
    assert "Nothing was changed" in shown
    (command,) = re.findall(r"menura (sources accept [a-z0-9-]+ --yes)", shown)
    assert "Accepted" in running.command(*command.split())
    return shown


@pytest.mark.long
def test_log_when_purged_while_the_agent_was_away_then_the_lake_heals_by_itself(
    database: Server, running: Stack
) -> None:
    source = f"purged-{database.flavor}"
    agent = running.agent(source, {source: database})
    with agent:
        begin(running, source, database)
    change(database)
    purge(database)
    change(database)
    with agent:
        equal(running, source, database)
        healed(running, source)
        for table in TABLES:
            (gap,) = gap_events(running, source, table)
            assert gap["gap_from"] != gap["gap_to"] != ""
            assert gap["gap_from"] in gap["unlogged_changes"]
        events = running.get(f"{running.table_path(source, DATABASE, 'keyed')}/events")["events"]
        assert [event["kind"] for event in events][:3] == ["DUMPED", "DUMP_STARTED", "LOG_GAP"]
        assert "log gap" in running.command("events", source, f"{DATABASE}.keyed")
        change(database)
        equal(running, source, database)


def test_log_when_reset_while_it_is_read_then_the_lake_heals_by_itself(database: Server, running: Stack) -> None:
    source = f"reset-{database.flavor}"
    with running.agent(source, {source: database}):
        begin(running, source, database)
        database.run("RESET MASTER" if database.flavor == "mariadb" else "RESET BINARY LOGS AND GTIDS")
        change(database)
        equal(running, source, database)
        for table in TABLES:
            gap_events(running, source, table)
        healed(running, source)
        change(database)
        equal(running, source, database)


@pytest.mark.long
def test_server_when_restored_from_an_older_copy_then_its_operator_decides_and_the_lake_follows(
    database: Server, running: Stack, tmp_path: Path
) -> None:
    assert database.folder is not None
    source, data, copy = f"restored-{database.flavor}", database.folder / "data", tmp_path / "copy"
    agent = running.agent(source, {source: database})
    with agent:
        begin(running, source, database)
    database.stop()
    shutil.copytree(data, copy)
    database.start()
    with agent:
        change(database)
        equal(running, source, database)
    database.stop()
    shutil.rmtree(data)
    copy.rename(data)
    database.start()
    with agent:
        message = waiting_source(running, source)
        before = running.source(source)["committed_cut"]
        shown = accept(running, source, message)
        assert "3 tables would be read again" in shown
        equal(running, source, database)
        healed(running, source)
        assert running.source(source)["committed_cut"] > before
        change(database)
        equal(running, source, database)


@pytest.mark.long
def test_server_when_another_one_is_at_its_address_then_nothing_is_read_before_it_is_accepted(
    database: Server, running: Stack, tmp_path: Path
) -> None:
    source = f"replaced-{database.flavor}"
    with running.agent(source, {source: database}):
        begin(running, source, database)
    with server(database.flavor, tmp_path / "other", server_id="7") as other:
        prepare(other)
        change(other)
        other.run(f"DELETE FROM {DATABASE}.keyed WHERE id > 5")
        with running.agent(source, {source: other}):
            message = waiting_source(running, source)
            committed = running.source(source)["committed_cut"]
            deadline = time.monotonic() + 10
            wait_for("ten seconds in which nothing is read", lambda: time.monotonic() > deadline)
            assert running.source(source)["committed_cut"] == committed
            accept(running, source, message)
            equal(running, source, other)
            healed(running, source)


@pytest.mark.parametrize("writes", [False, True])
def test_failover_when_it_lost_transactions_then_its_operator_decides_and_the_lake_follows(
    database: Server, running: Stack, tmp_path: Path, writes: bool
) -> None:
    source = f"failover-{database.flavor}-{int(writes)}"
    executed = "SELECT @@gtid_binlog_pos" if database.flavor == "mariadb" else "SELECT @@gtid_executed"
    with replica_of(database, tmp_path / "replica") as replica:
        with running.agent(source, {source: database}):
            begin(running, source, database)
            wait_for("the replica", lambda: replica.run(executed) == database.run(executed))
            word = "SLAVE" if database.flavor == "mariadb" else "REPLICA"
            replica.run(f"STOP {word}", f"RESET {word} ALL")  # else a dump waits for what it does not apply
            change(database)
            equal(running, source, database)
        if writes:
            for _ in range(3):
                change(replica)
        with running.agent(source, {source: replica}):
            message = waiting_source(running, source)
            shown = accept(running, source, message)
            assert re.search(r"The lake has [1-9]\d* transactions", shown), shown
            equal(running, source, replica)
            healed(running, source)
            change(replica)
            equal(running, source, replica)
