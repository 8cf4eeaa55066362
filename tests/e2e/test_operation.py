"""A day of operation: tables stopped, added and failing, servers and gateways that go away and come back."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane_api.browser import browser
from tests.e2e import load
from tests.e2e.lake import row_count, wait_for_changelog, wait_until_equal
from tests.oracle import count_changes
from tests.servers import Flavor, Server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

AWAY_SECONDS = 5
GIANT_ROWS = 300_000


def assert_each_change_once(running: Stack, source: str, server: Server, database: str, *tables: str) -> None:
    oracle = count_changes(server, database)
    for table in tables:
        wait_for_changelog(running.lake, running.tenant, source, database, table, oracle[table])


def wait_for_state(running: Stack, source: str, database: str, table: str, state: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        view = running.table(source, database, table)
        return view if view["state"] == state else None

    return wait_for(f"{database}.{table} to be {state}", look)


def test_sync_when_stopped_by_command_and_started_again_then_resumes_where_it_stopped(
    servers: dict[Flavor, Server], running: Stack
) -> None:
    server, source, database = servers["mariadb"], "pausing", "pausing"
    load.create_tables(server, database, "paused", "other")
    with running.agent(source, {source: server}):
        for table in ("paused", "other"):
            running.start_sync(source, database, table, "oldest")
        with load.writing(server, database, "paused", "other"):
            wait_for("rows in the lake", lambda: row_count(running.lake, running.tenant, source, database, "paused"))
            assert f"{database}.paused: stopped" in running.command("sync", "stop", source, f"{database}.paused")
            stopped_at = wait_until_left_behind(running, source, database, "paused")
            load.insert_rows(server, database, "paused", 50)
            wait_until_rows_follow(running, source, database, "other")
            assert running.table(source, database, "paused")["position"] == stopped_at
            assert f"{database}.paused: started" in running.command("sync", "start", source, f"{database}.paused")
            wait_for_state(running, source, database, "paused", "streaming")
        wait_until_equal(running.lake, running.tenant, source, server, database, ["paused", "other"])
        assert_each_change_once(running, source, server, database, "paused", "other")
        assert running.table(source, database, "paused")["earlier_rows_missing"] == ""


def wait_until_left_behind(running: Stack, source: str, database: str, table: str) -> str:
    """Until the source goes on without the stopped table; the position where the table stands."""

    def look() -> str | None:
        committed = running.source(source)["committed_position"]  # read first: what streams is there or beyond
        position: str = wait_for_state(running, source, database, table, "stopped")["position"]
        return position if _transactions(position) < _transactions(committed) else None

    return wait_for(f"{source} to leave {table} behind", look)


def _transactions(position: str) -> int:
    """How many transactions a MariaDB position of one domain has behind it; '' has none, before the first commit."""
    return int(position.rpartition("-")[2] or 0)


def wait_until_rows_follow(running: Stack, source: str, database: str, table: str) -> None:
    """Until the table has landed more rows than it has now."""
    before = running.table(source, database, table)["rows"]
    wait_for(f"more rows of {table}", lambda: running.table(source, database, table)["rows"] > before or None)


def test_table_when_added_from_oldest_while_others_stream_then_all_are_equal_and_nothing_doubled(
    servers: dict[Flavor, Server], running: Stack
) -> None:
    server, source, database = servers["mysql"], "growing", "growing"
    load.create_tables(server, database, "first", "second", "late")
    with running.agent(source, {source: server}):
        for table in ("first", "second"):
            running.start_sync(source, database, table, "oldest")
        with load.writing(server, database, "first", "second", "late"):
            wait_until_rows_follow(running, source, database, "first")
            running.start_sync(source, database, "late", "oldest")
            wait_for_state(running, source, database, "late", "streaming")
            wait_until_rows_follow(running, source, database, "late")
        tables = ["first", "second", "late"]
        wait_until_equal(running.lake, running.tenant, source, server, database, tables)
        assert_each_change_once(running, source, server, database, *tables)


def test_table_when_a_row_of_it_can_not_be_read_then_it_alone_fails_and_everybody_is_told(
    servers: dict[Flavor, Server], running: Stack, tmp_path: Path
) -> None:
    server, source, database = servers["mariadb"], "shapes", "shapes"
    load.create_tables(server, database, "good")
    server.run(
        f"CREATE TABLE {database}.bad (id INT NOT NULL DEFAULT 0 PRIMARY KEY, n INT)",
        "SET SESSION binlog_row_image = 'MINIMAL'",
        f"INSERT INTO {database}.bad () VALUES ()",
    )
    with running.agent(source, {source: server}):
        for table in ("good", "bad"):
            running.start_sync(source, database, table, "oldest")
        problem = wait_for_state(running, source, database, "bad", "failed")["problem"]
        assert problem["code"] == "TABLE_ROW_UNREADABLE"
        load.insert_rows(server, database, "good", 10)
        server.run(f"INSERT INTO {database}.bad VALUES (2, NULL)")
        wait_until_equal(running.lake, running.tenant, source, server, database, ["good"])
        wait_for_state(running, source, database, "good", "streaming")
        assert running.source(source)["problem"] is None
        printed = running.command("status")
        assert problem["message"] in printed
        assert "failed" in printed
        with browser(tmp_path) as page:
            page.open(running.login_url())
            page.wait_for_text("#actor", "token")
            of_source = f"?tenant={running.tenant}&source={source}"
            page.open(f"http://127.0.0.1:{running.api_port}/tables{of_source}")
            page.wait_for_text("#tables", problem["message"])
            page.open(f"http://127.0.0.1:{running.api_port}/{of_source}")
            page.wait_for_text("#sources", "1 failed")
            assert page.complaints() == []


def test_agent_when_one_source_has_a_wrong_password_then_the_other_syncs_and_the_error_is_told(
    servers: dict[Flavor, Server], running: Stack
) -> None:
    database = "half"
    load.create_tables(servers["mysql"], database, "t")
    sources = {"half-good": servers["mysql"], "half-bad": servers["mariadb"]}
    with running.agent("half", sources, passwords={"half-bad": "not-the-secret"}):
        running.start_sync("half-good", database, "t", "oldest")
        wait_until_equal(running.lake, running.tenant, "half-good", servers["mysql"], database, ["t"])
        problem = wait_for("the other's error", lambda: running.source("half-bad")["problem"])
        assert problem["code"] == "SOURCE_ACCESS_DENIED"
        assert "half-bad" in problem["message"]
        assert "not-the-secret" not in problem["message"]
        assert running.source("half-good")["problem"] is None


def test_sync_when_started_now_on_a_table_with_rows_then_says_that_earlier_rows_are_missing(
    servers: dict[Flavor, Server], running: Stack
) -> None:
    server, source, database = servers["mariadb"], "from-now", "from_now"
    load.create_tables(server, database, "t", rows=5)
    with running.agent(source, {source: server}):
        running.wait_for_table(source, database, "t")
        answer = running.command("sync", "start", source, f"{database}.t", "--from", "now")
        assert "Rows written before the sync begins will be missing in the lake." in answer
        wait_for_state(running, source, database, "t", "streaming")
        load.insert_rows(server, database, "t", 7)
        where = (running.lake, running.tenant, source, database, "t")
        wait_for("the new rows", lambda: row_count(*where) == 7 or None)
        assert "need a dump" in running.table(source, database, "t")["earlier_rows_missing"]
        assert "earlier rows missing" in running.command("tables", source)


def missing_of(running: Stack, source: str, database: str, table: str) -> str:
    return str(running.table(source, database, table)["earlier_rows_missing"])


@pytest.mark.long
@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_table_without_a_key_when_its_sync_begins_again_then_each_row_is_there_once(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    """And one with a key; from the log's beginning, from its end and by a dump."""
    server, source, database = servers[flavor], f"again-{flavor}", f"again_{flavor}"
    load.create_tables(server, database, "t", rows=5)
    server.run(f"CREATE TABLE {database}.heap (n INT)", f"INSERT INTO {database}.heap VALUES (1), (1), (2)")

    def stop() -> None:
        for table in ("t", "heap"):
            running.command("sync", "stop", source, f"{database}.{table}")
            wait_for_state(running, source, database, table, "stopped")

    def change() -> None:
        server.run(f"DELETE FROM {database}.heap WHERE n = 2", f"DELETE FROM {database}.t ORDER BY id LIMIT 1")
        server.run(f"INSERT INTO {database}.heap VALUES (3), (3)")
        load.insert_rows(server, database, "t", 2)

    def start(from_where: str) -> None:
        for table in ("t", "heap"):
            running.command("sync", "start", source, f"{database}.{table}", "--from", from_where)
            wait_for_state(running, source, database, table, "streaming")
        server.run(f"INSERT INTO {database}.heap VALUES (2)")
        load.insert_rows(server, database, "t", 1)

    with running.agent(source, {source: server}):
        for table in ("t", "heap"):
            running.start_sync(source, database, table, "oldest")
        for from_where in ("oldest", "dump", "oldest"):
            stop()
            change()
            start(from_where)
            wait_until_equal(running.lake, running.tenant, source, server, database, ["t", "heap"])
        stop()
    change()  # while no agent is there that may still read it
    with running.agent(source, {source: server}):
        start("now")
        for table in ("t", "heap"):
            wait_for(
                "what is missing",
                lambda of=table: (
                    "also those that the source has deleted since" in missing_of(running, source, database, of)
                ),
            )


@pytest.mark.long
@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_source_when_its_server_restarts_under_load_then_goes_on_by_itself(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    server, source, database = servers[flavor], f"restart-{flavor}", f"restart_{flavor}"
    if server.process is None:
        pytest.skip("the server is another's: it can't be restarted")
    load.create_tables(server, database, "t")
    with running.agent(source, {source: server}):
        running.start_sync(source, database, "t", "oldest")
        with load.writing(server, database, "t") as writer:
            wait_until_rows_follow(running, source, database, "t")
            server.stop()
            problem = wait_for("the error", lambda: running.source(source)["problem"])
            assert problem["code"] in ("SOURCE_CONNECTION_LOST", "SOURCE_UNREACHABLE", "SOURCE_FAILED")
            assert not problem["terminal"]
            wait_for("a lag that is not zero", lambda: running.source(source)["lag_us"] != 0)
            wait_for("the writer to notice it", lambda: writer.lost_connections)
            server.start()
            wait_until_rows_follow(running, source, database, "t")
        wait_until_equal(running.lake, running.tenant, source, server, database, ["t"])
        assert_each_change_once(running, source, server, database, "t")
        wait_for("the error to be taken back", lambda: running.source(source)["problem"] is None or None)


def test_gateway_when_away_under_load_then_lag_is_never_zero_until_the_end_is_reached(
    servers: dict[Flavor, Server], running: Stack
) -> None:
    server, source, database = servers["mysql"], "waiting", "waiting"
    load.create_tables(server, database, "t")
    with running.agent(source, {source: server}):
        running.start_sync(source, database, "t", "oldest")
        with load.writing(server, database, "t"):
            wait_until_rows_follow(running, source, database, "t")
            running.gateway.stop()
            before = running.source(source)["committed_cut"]
            seen = lags_for(running, source, AWAY_SECONDS)
            assert 0 not in seen
            assert seen == sorted(seen)
            running.gateway.start()

            def goes_on() -> bool:
                return bool(checked(running.source(source))["committed_cut"] != before)

            wait_for("the first cut", goes_on, every=0)
        wait_until_equal(running.lake, running.tenant, source, server, database, ["t"])

        wait_for("no lag", lambda: checked(running.source(source))["lag_us"] == 0)
        assert_each_change_once(running, source, server, database, "t")


def checked(view: dict[str, Any]) -> dict[str, Any]:
    """A source whose lag is 0 only where its agent has read to the end, which it may before the first cut lands."""
    assert view["lag_us"] != 0 or view["read_position"] == view["source_position"] != ""
    return view


def lags_for(running: Stack, source: str, seconds: float) -> list[int]:
    """Every lag that the API shows meanwhile; where it is unknown it is left out."""
    deadline, seen = time.monotonic() + seconds, []
    while time.monotonic() < deadline:
        lag_us = running.source(source)["lag_us"]
        if lag_us is not None:
            seen.append(lag_us)
        time.sleep(0.1)
    return seen


def test_transaction_when_larger_than_the_credit_window_then_lake_shows_none_or_all_of_it(
    servers: dict[Flavor, Server], running: Stack
) -> None:
    server, source, database = servers["mysql"], "giant", "giant"
    assert running.credit_window_bytes is not None
    server.run(
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.t (id BIGINT PRIMARY KEY, noise BINARY(32) NOT NULL)",
    )
    with running.agent(source, {source: server}):
        running.start_sync(source, database, "t", "now")
        wait_for_state(running, source, database, "t", "streaming")
        server.run(
            "SET SESSION cte_max_recursion_depth = 1000000",
            f"INSERT INTO {database}.t WITH RECURSIVE n AS (SELECT 1 AS id UNION ALL SELECT id + 1 FROM n "
            f"WHERE id < {GIANT_ROWS}) SELECT id, RANDOM_BYTES(32) FROM n",
        )
        where, seen = (running.lake, running.tenant, source, database, "t"), set()

        def look() -> bool:
            seen.update((row_count(*where, part="changelog"), row_count(*where)))
            return row_count(*where) == GIANT_ROWS

        wait_for("the whole transaction", look, 600, every=0.02)
        assert seen <= {0, GIANT_ROWS}
        wait_until_equal(running.lake, running.tenant, source, server, database, ["t"])
        wait_for_changelog(*where, {"insert": GIANT_ROWS})
        files = list((running.landing / "data" / running.tenant / source).rglob("*.parquet"))
        assert sum(file.stat().st_size for file in files) > 4 * running.credit_window_bytes
