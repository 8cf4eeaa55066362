"""Another server in place of the one that was read: restored, replaced, a copy, of the other flavour, failed over."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from menura.v1 import config_pb2

from agent.errors import SourceDiverged, SourceRebuilt
from tests.agent.gateway_double import GatewayDouble
from tests.agent.log_changes import (
    accept,
    change_over_seconds,
    config,
    gaps,
    insert,
    position_now,
    purge,
    read_once,
    seconds_of,
    wait_for_another_second,
    wait_for_row,
    wait_until_it_waits,
)
from tests.agent.running import running_agent
from tests.agent.test_replication import ORDERS, change, last_state, prepare, wait_equal
from tests.servers import Server, replica_of, server
from tests.stack import wait_for

#: more than two servers share: the middle one of those that are compared is of one server alone
OWN_TRANSACTIONS = 10


def test_server_when_restored_from_an_older_copy_then_says_what_it_lacks_and_waits_until_it_is_accepted(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    assert database.folder is not None
    data, copy = database.folder / "data", tmp_path / "copy"
    gateway.sync("shop", ORDERS, oldest=True)
    path = config(tmp_path, gateway, database)
    read_once(path, gateway, database, tmp_path / "log")
    database.stop()
    shutil.copytree(data, copy)
    database.start()
    common = position_now(database)
    with running_agent(path, tmp_path / "log"):
        insert(database, 8000)
        insert(database, 8001)
        wait_equal(gateway, database, ORDERS)
    gateway.wait_gone("shop")
    cuts = len(gateway.source("shop").committed)
    database.stop()
    shutil.rmtree(data)
    copy.rename(data)
    database.start()
    record = gateway.source("shop")
    with running_agent(path, tmp_path / "log", 0, SourceDiverged.exit_code):
        other = wait_until_it_waits(gateway, "SOURCE_DIVERGED")
        assert other.lacking_transactions == 2
        assert other.server == other.former_server
        assert other.goes_on_at == common
        gateway.accept("shop", "another one")
        heard = record.replicates
        gateway.wait(lambda: record.replicates >= heard and record.effective[-1].generation == record.generation)
        assert len(record.committed) == cuts
        insert(database, 8000)  # under the same GTID as the transaction that is lost
        other = wait_until_it_waits(gateway, "SOURCE_DIVERGED")
        gap = accept(gateway, database, other.identity)
        assert "transactions" in gap.unlogged_changes or "log ends at" in gap.unlogged_changes
        gateway.wait(lambda: (state := last_state(gateway, ORDERS)) and state.state == config_pb2.TableState.STREAMING)
        gateway.wait(lambda: not record.effective[-1].HasField("other_server"))


def test_domain_when_its_operator_has_removed_it_from_the_log_then_the_error_says_so_and_it_can_be_accepted(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    with server("mariadb", tmp_path / "server") as database:
        prepare(database)
        gateway.sync("shop", ORDERS, oldest=True)
        path = config(tmp_path, gateway, database)
        with running_agent(path, tmp_path / "log"):
            database.run("SET SESSION gtid_domain_id = 9", "INSERT INTO shop.orders (id) VALUES (8000)")
            insert(database, 8001)
            wait_equal(gateway, database, ORDERS)
        gateway.wait_gone("shop")
        purge(database)
        database.run("FLUSH BINARY LOGS DELETE_DOMAIN_ID = (9)")
        database.stop()
        database.start()
        with running_agent(path, tmp_path / "log", 0, SourceDiverged.exit_code):
            other = wait_until_it_waits(gateway, "SOURCE_DIVERGED")
            found = gateway.source("shop").effective[-1].error.found
            assert "has nothing of domain 9, as after DELETE_DOMAIN_ID" in found
            accept(gateway, database, other.identity)


def test_server_when_another_one_is_at_its_address_then_waits_until_it_is_accepted_and_goes_on_at_its_end(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    cuts = read_once(config(tmp_path, gateway, database), gateway, database, tmp_path / "log")
    record = gateway.source("shop")
    with server(database.flavor, tmp_path / "other", server_id="7") as other:
        prepare(other)
        change(other, rounds=9)
        path = config(tmp_path, gateway, other)
        with running_agent(path, tmp_path / "log", 0, SourceRebuilt.exit_code):
            offered = wait_until_it_waits(gateway, "SOURCE_REBUILT")
            assert len(record.committed) == cuts
            assert offered.former_server != offered.server
            assert offered.goes_on_at == offered.end_position
            accept(gateway, other, offered.identity)


def test_server_when_another_one_has_its_server_id_and_more_transactions_then_is_not_taken_for_it(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    """A MariaDB's GTIDs say no more than what people have chosen."""
    gateway.sync("shop", ORDERS, oldest=True)
    record = gateway.source("shop")
    with server("mariadb", tmp_path / "server") as database, server("mariadb", tmp_path / "other") as other:
        prepare(database)
        cuts = read_once(config(tmp_path, gateway, database), gateway, database, tmp_path / "log")
        wait_for_another_second(other, seconds_of(database) + 1)
        prepare(other)
        change(other, rounds=9)
        with running_agent(config(tmp_path, gateway, other), tmp_path / "log", 0, SourceRebuilt.exit_code):
            offered = wait_until_it_waits(gateway, "SOURCE_REBUILT")
            assert "was read as of" in record.effective[-1].error.found
            assert len(record.committed) == cuts
            accept(gateway, other, offered.identity)


def test_server_when_a_copy_of_it_that_went_its_own_way_is_there_then_is_not_taken_for_it(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """With the same UUID and server id, and with more transactions than were read."""
    gateway.sync("shop", ORDERS, oldest=True)
    record = gateway.source("shop")
    path = config(tmp_path, gateway, database)
    read_once(path, gateway, database, tmp_path / "log")
    with copy_of(database, tmp_path / "copy") as copy:
        with running_agent(path, tmp_path / "log"):
            insert(database, 8000)
            insert(database, 8001)
            wait_for_row(gateway, 8001)
        gateway.wait_gone("shop")
        wait_for_another_second(copy, seconds_of(database))
        change(copy, rounds=9, table="items")
        with running_agent(config(tmp_path, gateway, copy), tmp_path / "log", 0, SourceRebuilt.exit_code):
            offered = wait_until_it_waits(gateway, "SOURCE_REBUILT")
            assert "was read as of" in record.effective[-1].error.found
            accept(gateway, copy, offered.identity)


def test_server_when_two_of_one_base_end_alike_then_one_is_not_taken_for_the_other(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """Their newest transactions have one number and one second, and their files began in one second."""
    gateway.sync("shop", ORDERS, oldest=True)
    record = gateway.source("shop")
    with copy_of(database, tmp_path / "copy") as copy:
        second = seconds_of(database)
        for one in (database, copy):
            one.run(f"SET timestamp = {second}", "FLUSH BINARY LOGS")
        with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
            for number in range(OWN_TRANSACTIONS):
                insert_at(database, 8000 + number, second + number)
                wait_for_row(gateway, 8000 + number)
        gateway.wait_gone("shop")
        cuts = len(record.committed)
        for number in range(OWN_TRANSACTIONS - 1):
            insert_at(copy, 7000 + number, second + 100 + number)
        insert_at(copy, 7999, second + OWN_TRANSACTIONS - 1)
        insert(copy, 9001)
        assert_equal_files(database, copy)
        with running_agent(config(tmp_path, gateway, copy), tmp_path / "log", 0, SourceRebuilt.exit_code):
            wait_until_it_waits(gateway, "SOURCE_REBUILT")
            assert "was read as of" in record.effective[-1].error.found
            assert len(record.committed) == cuts
        gateway.wait_gone("shop")
        database.stop()
        database.start()  # another process, of which all is compared
        with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
            insert(database, 9002)
            wait_for_row(gateway, 9002)
        assert not gaps(gateway)


@contextmanager
def copy_of(database: Server, folder: Path) -> Iterator[Server]:
    """A server with its data, its UUID and its log; both run."""
    assert database.folder is not None
    database.stop()
    with server(database.flavor, folder) as copy:
        copy.stop()
        assert copy.folder is not None
        shutil.rmtree(copy.folder / "data")
        shutil.copytree(database.folder / "data", copy.folder / "data")
        index = copy.folder / "data" / "binlog.index"  # with paths
        index.write_text(index.read_text().replace(str(database.folder), str(copy.folder)))
        copy.start()
        database.start()
        yield copy


def insert_at(database: Server, number: int, second: int) -> None:
    """A transaction whose statement began in this second, as the log says."""
    database.run(f"SET timestamp = {second}", f"INSERT INTO shop.orders (id, note) VALUES ({number}, 'then')")


def assert_equal_files(database: Server, copy: Server) -> None:
    names = [[row[0] for row in one.run("SHOW BINARY LOGS")] for one in (database, copy)]
    assert names[0] == names[1]


def test_server_when_nothing_is_known_of_the_one_before_then_its_log_must_have_the_position_at_its_place(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    with server("mariadb", tmp_path / "server") as database, replica_of(database, tmp_path / "replica") as replica:
        replica.run("FLUSH BINARY LOGS")  # its log is not the source's, file for file
        prepare(database)
        path = config(tmp_path, gateway, database)
        read_once(path, gateway, database, tmp_path / "log")
        shutil.rmtree(tmp_path / "state")
        with running_agent(path, tmp_path / "log"):
            insert(database, 8000)
            wait_for_row(gateway, 8000)
        gateway.wait_gone("shop")
        assert not gaps(gateway)
        wait_for("the replica", lambda: position_now(replica) == position_now(database))
        replica.run("STOP SLAVE")
        shutil.rmtree(tmp_path / "state")
        with running_agent(config(tmp_path, gateway, replica), tmp_path / "log", 0, SourceRebuilt.exit_code):
            other = wait_until_it_waits(gateway, "SOURCE_REBUILT")
            accept(gateway, replica, other.identity)


def test_server_when_it_is_of_the_other_flavour_then_waits_until_it_is_accepted_and_goes_on_at_its_end(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", ORDERS, oldest=True)
    cuts = read_once(config(tmp_path, gateway, database), gateway, database, tmp_path / "log")
    record = gateway.source("shop")
    with server("mysql" if database.flavor == "mariadb" else "mariadb", tmp_path / "other") as other:
        prepare(other)
        change(other, rounds=9)
        with running_agent(config(tmp_path, gateway, other), tmp_path / "log", 0, SourceRebuilt.exit_code):
            offered = wait_until_it_waits(gateway, "SOURCE_REBUILT")
            assert "this is a M" in record.effective[-1].error.found
            assert len(record.committed) == cuts
            assert offered.goes_on_at == offered.end_position
            accept(gateway, other, offered.identity)
        gateway.wait_gone("shop")
        with running_agent(config(tmp_path, gateway, other), tmp_path / "log"):
            insert(other, 9001)
            wait_for_row(gateway, 9001)
        assert len(gaps(gateway)) == 1


@pytest.mark.parametrize("writes", [False, True])
def test_failover_when_it_lost_transactions_then_says_which_and_waits_until_it_is_accepted(
    database: Server, gateway: GatewayDouble, tmp_path: Path, writes: bool
) -> None:
    """Whether the new primary has written since, so that its numbers are higher, or not."""
    gateway.sync("shop", ORDERS, oldest=True)
    record = gateway.source("shop")
    with replica_of(database, tmp_path / "replica") as replica:
        read_once(config(tmp_path, gateway, database), gateway, database, tmp_path / "log")
        wait_for("the replica", lambda: position_now(replica) == position_now(database))
        common = position_now(database)
        replica.run(*(("STOP SLAVE",) if database.flavor == "mariadb" else ("STOP REPLICA",)))
        with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
            insert(database, 8000)
            insert(database, 8001)
            wait_for_row(gateway, 8001)
        gateway.wait_gone("shop")
        if writes:
            change(replica, rounds=9)
        path = config(tmp_path, gateway, replica)
        with running_agent(path, tmp_path / "log", 0, SourceDiverged.exit_code):
            other = wait_until_it_waits(gateway, "SOURCE_DIVERGED")
            assert other.lacking_transactions == 2
            assert other.goes_on_at == common
            assert accept(gateway, replica, other.identity).gap_to == common
            gateway.wait(lambda: record.status.error.code == "")


def test_failover_when_it_lost_nothing_then_is_followed_without_a_gap(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """Also by an agent that starts again before anything was written: its position names files of the old server."""
    gateway.sync("shop", ORDERS, oldest=True)
    word = "SLAVE" if database.flavor == "mariadb" else "REPLICA"
    with replica_of(database, tmp_path / "replica") as replica:
        database.run("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        wait_for("the replica", lambda: position_now(replica) == position_now(database))
        replica.run(f"STOP {word} SQL_THREAD")
        with running_agent(config(tmp_path, gateway, database), tmp_path / "log"):
            change_over_seconds(database)
            wait_equal(gateway, database, ORDERS)
        gateway.wait_gone("shop")
        wait_for_another_second(database, seconds_of(database))
        replica.run(f"START {word} SQL_THREAD")
        wait_for("the replica", lambda: position_now(replica) == position_now(database))
        replica.run(f"STOP {word}")
        path = config(tmp_path, gateway, replica)
        record = gateway.source("shop")
        for number in (9000, 9001):
            begun = record.replicates
            with running_agent(path, tmp_path / "log"):
                gateway.wait(lambda begun=begun: record.replicates > begun)
                seen = record.status
                gateway.wait(lambda seen=seen: record.status is not seen and record.status.HasField("lag_us"))
            gateway.wait_gone("shop")
            with running_agent(path, tmp_path / "log"):
                insert(replica, number)
                wait_for_row(gateway, number)
            gateway.wait_gone("shop")
        assert not gaps(gateway)
