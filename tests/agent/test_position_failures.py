"""Positions that the server can't serve, and replicas that get in each other's way."""

import json
import signal
from pathlib import Path

import pytest
from menura.v1 import config_pb2

from agent.errors import SourceDiverged, SourceRebuilt
from agent.sources.mysql.errors import ServerIdDuplicate
from tests.agent.gateway_double import GatewayDouble
from tests.agent.log_changes import (
    accept,
    config,
    gaps,
    insert,
    position_now,
    purge,
    read_once,
    reset,
    seconds_of,
    wait_for_another_second,
    wait_for_row,
    wait_until_it_waits,
)
from tests.agent.running import running_agent
from tests.agent.test_replication import ITEMS, ORDERS, change, last_state, stops, wait_equal
from tests.servers import Server


def test_log_when_purged_while_the_agent_was_away_then_tables_go_on_behind_the_gap_and_are_read_again(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, ITEMS, oldest=True)
    path = config(tmp_path, gateway, database)
    cuts = read_once(path, gateway, database, tmp_path / "log")
    before = position_now(database)
    purge(database)
    if database.flavor == "mariadb":
        oldest = database.run("SHOW BINARY LOGS")[0][0]
        first = database.run(f"SELECT BINLOG_GTID_POS('{oldest}', 4)")[0][0]
    else:
        first = database.run("SELECT @@gtid_purged")[0][0]
    with running_agent(path, tmp_path / "log"):
        insert(database, 9000)
        wait_for_row(gateway, 9000)
        gateway.wait(lambda: (state := last_state(gateway, ORDERS)) and state.state == config_pb2.TableState.STREAMING)
        gateway.wait(lambda: gateway.source("shop").status.error.code == "")
    for table in (ORDERS, ITEMS):
        (gap,) = gaps(gateway, table)
        assert (gap.gap_from, gap.gap_to) == (before, str(first))
        assert gap.reread
        assert gap.most_rereads_per_hour
        assert "purged" in gap.unlogged_changes or "begins after" in gap.unlogged_changes
    start = gateway.source("shop").committed[cuts]
    assert len(start.events) == 2
    assert {started.table.table for started in start.started} == {"orders", "items"}


@pytest.mark.parametrize("policy", ["stop", "note"])
def test_log_when_purged_and_the_policy_is_not_to_read_again_then_tables_stop_or_say_so(
    database: Server, gateway: GatewayDouble, tmp_path: Path, policy: str
) -> None:
    gateway.sync("shop", ORDERS, ITEMS, oldest=True)
    path = config(tmp_path, gateway, database, unlogged_changes=policy)
    cuts = read_once(path, gateway, database, tmp_path / "log")
    purge(database)
    with running_agent(path, tmp_path / "log"):
        record = gateway.source("shop")
        gateway.wait(lambda: len(record.committed) > cuts)
        start = record.committed[cuts]
        if policy == "note":
            assert [(gap.reread, gap.most_rereads_per_hour) for gap in gaps(gateway)] == [(False, 0)]
            insert(database, 9000)
            wait_for_row(gateway, 9000)
            return
        assert not start.events
        assert {stop.table.table for stop in start.stopped} == {"orders", "items"}
        (stop,) = stops(gateway, ORDERS)
        assert stop.error.code == "POSITION_PURGED"
        assert "menura sync start shop shop.orders --from dump" in stop.error.remedy


def test_log_when_it_is_reset_while_it_is_read_then_tables_go_on_in_the_new_log_and_are_read_again(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    record = gateway.source("shop")
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        database.run("FLUSH BINARY LOGS")
        change(database, rounds=1)
        wait_equal(gateway, database, ORDERS)
        gateway.wait(lambda: record.status.HasField("lag_us"))
        before = position_now(database)
        reset(database)
        insert(database, 9000)
        wait_for_row(gateway, 9000)
        (gap,) = gaps(gateway)
        assert (gap.gap_from, gap.gap_to, gap.reread) == (before, "the log's beginning", True)
        assert "reset" in gap.unlogged_changes


@pytest.mark.parametrize("rounds", [1, 9])
def test_log_when_it_was_reset_while_nobody_read_it_then_its_numbers_are_not_taken_for_those_of_before(
    database: Server, gateway: GatewayDouble, tmp_path: Path, rounds: int
) -> None:
    """Also when it is longer than before, and has all GTIDs of the committed position again."""
    gateway.sync("shop", ORDERS, oldest=True)
    path = config(tmp_path, gateway, database)
    begun = seconds_of(database)
    read_once(path, gateway, database, tmp_path / "log")
    wait_for_another_second(database, begun)
    reset(database)
    change(database, rounds=rounds, table="items")
    with running_agent(path, tmp_path / "log"):
        insert(database, 9000)
        wait_for_row(gateway, 9000)
        (gap,) = gaps(gateway)
        assert (gap.gap_to, gap.reread) == ("the log's beginning", True)
        assert "reset" in gap.unlogged_changes


def test_log_when_reset_before_a_restart_of_the_server_then_waits_for_its_operator(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """A server whose data folder was put back looks the same."""
    gateway.sync("shop", ORDERS, oldest=True)
    path = config(tmp_path, gateway, database)
    begun = seconds_of(database)
    cuts = read_once(path, gateway, database, tmp_path / "log")
    wait_for_another_second(database, begun + 3)
    reset(database)
    database.stop()
    database.start()
    record = gateway.source("shop")
    ends = (0, SourceRebuilt.exit_code, SourceDiverged.exit_code)
    with running_agent(path, tmp_path / "log", *ends):
        gateway.wait(lambda: record.effective and record.effective[-1].HasField("other_server"))
        other = wait_until_it_waits(gateway, record.effective[-1].error.code)
        assert len(record.committed) == cuts
        accept(gateway, database, other.identity)


def test_lag_when_the_server_does_not_answer_then_is_unknown_until_it_does(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    record = gateway.source("shop")
    assert database.process is not None
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        change(database, rounds=1)
        wait_equal(gateway, database, ORDERS)
        is_at_end = lambda: record.status.HasField("lag_us") and not record.status.lag_us  # noqa: E731
        gateway.wait(is_at_end)
        database.process.send_signal(signal.SIGSTOP)
        try:
            gateway.wait(lambda: not record.status.HasField("lag_us"))
        finally:
            database.process.send_signal(signal.SIGCONT)
        gateway.wait(is_at_end)
        gateway.wait(lambda: (state := last_state(gateway, ORDERS)) and state.state == config_pb2.TableState.STREAMING)


def test_start_from_oldest_when_the_log_was_purged_then_says_what_is_missing(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    change(database, rounds=1)
    purge(database)
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        record = gateway.source("shop")
        gateway.wait(lambda: record.committed)
        assert "has purged its log" in record.committed[0].started[0].earlier_rows_missing
        database.run("INSERT INTO shop.orders (id, note) VALUES (9000, 'new')")
        gateway.wait(lambda: any(row["id"] == 9000 for row in gateway.rows("shop", ORDERS)))


def test_start_at_a_position_when_given_as_text_then_begins_there(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    change(database, rounds=1)
    status = "SHOW MASTER STATUS" if database.flavor == "mariadb" else "SHOW BINARY LOG STATUS"
    row = database.run(status)[0]
    database.run("INSERT INTO shop.orders (id, note) VALUES (9000, 'new')")
    database.run("INSERT INTO shop.items (id, note) VALUES (9001, 'new')")
    gtids = database.run("SELECT @@gtid_binlog_pos")[0][0] if database.flavor == "mariadb" else row[4]
    by_gtid = gtids if database.flavor == "mysql" else None
    gateway.sync("shop", ORDERS, position_text=f"{row[0]}:{row[1]}")
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        gateway.wait(lambda: gateway.rows("shop", ORDERS))
        assert [r["id"] for r in gateway.rows("shop", ORDERS)] == [9000]
        if by_gtid:
            gateway.sync("shop", ITEMS, position_text=f"{row[0]}:{row[1]}")
            gateway.wait(lambda: gateway.rows("shop", ITEMS))
            assert [r["id"] for r in gateway.rows("shop", ITEMS)] == [9001]


@pytest.mark.parametrize(
    "text", ["nonsense", "binlog.000001:99999999", "binlog.000077:4", "9-9-999999", "binlog.1:²", ","]
)
def test_start_at_a_position_when_the_server_does_not_know_it_then_that_table_stops(
    database: Server, gateway: GatewayDouble, tmp_path: Path, text: str
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
        change(database, rounds=1)
        wait_equal(gateway, database, ORDERS)
        gateway.sync("shop", ITEMS, position_text=text)
        gateway.wait(lambda: any(cut.stopped for cut in gateway.source("shop").committed))
        (stop,) = [stop for cut in gateway.source("shop").committed for stop in cut.stopped]
        assert stop.table.table == "items"
        assert stop.error.code in ("POSITION_INVALID", "SOURCE_REBUILT", "POSITION_PURGED", "LOG_RESET")
        change(database, rounds=1)
        wait_equal(gateway, database, ORDERS)
        if stop.position.text != "the log's beginning":
            return  # it never began, and by files there is no place before the first one
        # as the control plane has it resumed: from where it stopped
        gateway.sync("shop", ITEMS, position=stop.position)
        change(database, rounds=1)
        change(database, rounds=1, table="items")
        wait_equal(gateway, database, ORDERS, ITEMS)
        assert not gateway.source("shop").errors
        assert json.loads(gateway.source("shop").committed[-1].position.token)["gtids"]


def test_server_id_when_another_replica_has_it_then_both_say_so(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    other = GatewayDouble()
    try:
        (tmp_path / "other").mkdir()
        for double in (gateway, other):
            double.sync("shop", ORDERS, oldest=True)
        ours = config(tmp_path, gateway, database, server_id=77)
        theirs = config(tmp_path / "other", other, database, server_id=77)
        codes_at_end = (0, ServerIdDuplicate.exit_code)  # which of the two reads when they are stopped is chance
        with (
            running_agent(ours, tmp_path / "log", *codes_at_end),
            running_agent(theirs, tmp_path / "other" / "log", *codes_at_end),
        ):

            def codes() -> set[str]:
                found = [double.source("shop").status for double in (gateway, other)]
                return {status.error.code for status in found}

            gateway.wait(lambda: "SERVER_ID_DUPLICATE" in codes())
    finally:
        other.stop()
