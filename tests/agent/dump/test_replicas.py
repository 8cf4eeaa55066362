"""Watermarks where rows come from another server than the one whose log is streamed.

Transactions that were written on that server, or that it has from elsewhere, must not pass for those of the log.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pymysql
import pytest

from agent.errors import DumpServerUnrelated, DumpSnapshotFailed
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.snapshot import mariadb_other_server
from agent.sources.mysql.snapshot.snapshots import SelectPositions
from tests.agent.dump.marks import TABLE, make_tables, marks_on, seen, wait_until
from tests.servers import Flavor, Server, replica_of, server

REPLICAS: list[tuple[Flavor, str]] = [("mysql", "1"), ("mariadb", "0"), ("mariadb", "1")]
OWN = ("own", "t")


@pytest.fixture(scope="module")
def primaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        flavors: tuple[Flavor, ...] = ("mysql", "mariadb")
        yield {each: stack.enter_context(server(each, tmp_path_factory.mktemp(each))) for each in flavors}


@contextmanager
def mariadb(folder: Path, server_id: int, **settings: str) -> Iterator[Server]:
    with server("mariadb", folder, server_id=str(server_id), log_slave_updates="1", **settings) as running:
        yield running


def sql_thread(what: str, replica: Server) -> str:
    return f"{what} {'REPLICA' if replica.flavor == 'mysql' else 'SLAVE'} SQL_THREAD"


def write_own(running: Server, transactions: int = 8) -> None:
    """On this server alone."""
    running.run("CREATE DATABASE IF NOT EXISTS own", "DROP TABLE IF EXISTS own.t", "CREATE TABLE own.t (n INT)")
    running.run(*["INSERT INTO own.t VALUES (1)"] * transactions)


def position_of(running: Server) -> BinlogPosition:
    with marks_on(running) as (_, marks):
        return marks.high()


def low_of(marks: SelectPositions) -> BinlogPosition:
    with marks.chunk(TABLE) as low:
        return low


def whole_of(marks: SelectPositions) -> BinlogPosition:
    with marks.whole(OWN) as position:
        return position


@pytest.mark.parametrize(("flavor", "keeps_log"), REPLICAS)
def test_watermarks_when_rows_come_from_a_replica_then_only_what_it_applied_counts(
    primaries: dict[str, Server], flavor: Flavor, keeps_log: str, tmp_path: Path
) -> None:
    primary = primaries[flavor]
    make_tables(primary)
    with replica_of(primary, tmp_path, log_slave_updates=keeps_log) as replica:
        end = position_of(primary)
        with marks_on(replica, log=primary) as (connection, marks):
            wait_until(lambda: low_of(marks).covers(end))
            replica.run(sql_thread("STOP", replica))
            primary.run("INSERT INTO d.t VALUES (2)")
            # what the replica writes itself must not look as if it had applied the primary's next transactions
            write_own(replica)
            ahead = position_of(primary)
            with marks.chunk(TABLE) as low:
                assert seen(connection) == {1}
            with marks.whole(TABLE) as whole:
                assert seen(connection) == {1}
            for position in (low, whole):
                assert position.covers(end)
                assert not position.covers(ahead)
            replica.run(sql_thread("START", replica))
            wait_until(lambda: low_of(marks).covers(ahead))
            assert marks.high().covers(ahead)
            with marks.chunk(TABLE):
                assert seen(connection) == {1, 2}


@pytest.mark.parametrize(("flavor", "keeps_log"), REPLICAS)
def test_watermarks_when_a_replica_has_applied_nothing_yet_then_what_it_wrote_itself_does_not_count(
    primaries: dict[str, Server], flavor: Flavor, keeps_log: str, tmp_path: Path
) -> None:
    primary = primaries[flavor]
    make_tables(primary)
    with replica_of(primary, tmp_path, applies=False, log_slave_updates=keeps_log) as replica:
        end = position_of(primary)
        with marks_on(replica, log=primary) as (connection, marks):
            write_own(replica, transactions=60)  # more than the primary has
            for position in (low_of(marks), whole_of(marks), marks.high()):
                assert not position.covers(end)
            replica.run(sql_thread("START", replica))
            wait_until(lambda: low_of(marks).covers(end))
            assert marks.high().covers(end)
            assert seen(connection) == {1}


def test_watermarks_when_a_replica_is_promoted_in_the_middle_then_what_it_writes_counts_once_it_is_in_the_log(
    tmp_path: Path,
) -> None:
    with mariadb(tmp_path / "1", 1) as primary, replica_of(primary, tmp_path / "2") as replica:
        make_tables(primary)
        with marks_on(replica, log=primary) as (connection, marks):
            applied = position_of(primary)
            wait_until(lambda: low_of(marks).covers(applied))
            replica.run("STOP SLAVE", "RESET SLAVE ALL")
            write_own(replica)
            primary.run("INSERT INTO d.t VALUES (2)")
            ahead = position_of(primary)
            for position in (low_of(marks), whole_of(marks), marks.high()):
                assert position.same_place(applied)
                assert not position.covers(ahead)
            # its source becomes its replica; what that had alone is lost to the new primary
            follow(primary, replica)
            promoted = BinlogPosition(position_of(replica).gtids)
            wait_until(lambda: position_of(primary).covers(promoted))
            for position in (low_of(marks), whole_of(marks), marks.high()):
                assert position.same_place(promoted)
            assert seen(connection, "own.t") == {1}


def follow(replica: Server, primary: Server) -> None:
    """From where `primary` was promoted on, although the replica has written since."""
    primary.run(
        "CREATE USER IF NOT EXISTS 'follower'@'%' IDENTIFIED BY 'follower-secret'",
        "GRANT REPLICATION SLAVE ON *.* TO 'follower'@'%'",
    )
    ((since,),) = primary.run("SELECT @@gtid_slave_pos")
    replica.run(
        f"SET GLOBAL gtid_slave_pos = '{since}'",
        f"CHANGE MASTER TO MASTER_HOST = '{primary.host}', MASTER_PORT = {primary.port}, MASTER_USER = 'follower', "
        "MASTER_PASSWORD = 'follower-secret', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1",
        "START SLAVE",
    )


def test_watermarks_when_a_replica_forgets_what_it_applied_then_they_fall_back(tmp_path: Path) -> None:
    with mariadb(tmp_path / "1", 1) as primary, replica_of(primary, tmp_path / "2") as replica:
        make_tables(primary)
        end = position_of(primary)
        with marks_on(replica, log=primary) as (_, marks):
            wait_until(lambda: low_of(marks).covers(end))
            replica.run("STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL gtid_slave_pos = ''")
            write_own(replica)
            for position in (low_of(marks), whole_of(marks), marks.high()):
                assert str(position) == "the log's beginning"


def test_watermarks_when_a_replica_has_another_source_in_the_domain_then_that_one_does_not_count(
    tmp_path: Path,
) -> None:
    with (
        mariadb(tmp_path / "1", 1) as primary,
        mariadb(tmp_path / "3", 3) as other,
        replica_of(primary, tmp_path / "2", gtid_ignore_duplicates="0") as replica,
    ):
        make_tables(primary)
        end = position_of(primary)
        with marks_on(replica, log=primary) as (_, marks):
            wait_until(lambda: low_of(marks).covers(end))
            replica.run("STOP SLAVE SQL_THREAD")
            write_own(other, transactions=60)
            primary.run("INSERT INTO d.t VALUES (2)")
            ahead = position_of(primary)
            other.run("GRANT REPLICATION SLAVE ON *.* TO 'follower'@'%' IDENTIFIED BY 'follower-secret'")
            replica.run(
                f"CHANGE MASTER 'other' TO MASTER_HOST = '{other.host}', MASTER_PORT = {other.port}, "
                "MASTER_USER = 'follower', MASTER_PASSWORD = 'follower-secret', MASTER_USE_GTID = no, "
                f"MASTER_LOG_FILE = '{first_log(other)}', MASTER_LOG_POS = 4",
                "START SLAVE 'other'",
            )
            wait_until(lambda: replica.run("SELECT server_id FROM mysql.gtid_slave_pos WHERE server_id = 3") != [])
            for position in (low_of(marks), marks.high()):
                assert not position.covers(ahead)


def first_log(running: Server) -> object:
    return running.run("SHOW BINARY LOGS")[0][0]


def test_watermarks_when_the_streamed_log_is_a_replicas_then_the_primary_of_it_counts_as_far_as_it_follows(
    tmp_path: Path,
) -> None:
    with mariadb(tmp_path / "1", 1) as primary, replica_of(primary, tmp_path / "2") as replica:
        make_tables(primary)
        write_own(primary)
        before = position_of(primary)
        with marks_on(primary, log=replica) as (connection, marks):
            wait_until(lambda: low_of(marks).covers(before))
            assert whole_of(marks).same_place(before)
            replica.run("STOP SLAVE SQL_THREAD")
            primary.run("INSERT INTO d.t VALUES (2)")
            shown = position_of(primary)
            with marks.chunk(TABLE) as low:
                assert seen(connection) == {1, 2}
                assert low.same_place(before)
                assert marks.high().same_place(shown)


def test_whole_when_what_it_shows_does_not_reach_the_log_then_fails_and_is_exact_once_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mariadb_other_server, "ARRIVAL_SECONDS", 0.1)
    with mariadb(tmp_path / "1", 1) as primary, replica_of(primary, tmp_path / "2") as replica:
        write_own(primary)
        with marks_on(primary, log=replica) as (_, marks):
            before = position_of(primary)
            wait_until(lambda: low_of(marks).covers(before))
            replica.run("STOP SLAVE SQL_THREAD")
            primary.run("INSERT INTO own.t VALUES (2)")
            with pytest.raises(DumpSnapshotFailed, match=r"written on .* and is not in the streamed log"):
                whole_of(marks)
            replica.run("START SLAVE SQL_THREAD")
            shown = position_of(primary)
            wait_until(lambda: low_of(marks).covers(shown))
            assert whole_of(marks).same_place(shown)


def test_watermarks_when_two_servers_have_one_server_id_then_they_are_unrelated(tmp_path: Path) -> None:
    with mariadb(tmp_path / "1", 7) as streamed, mariadb(tmp_path / "2", 7) as other:
        write_own(streamed)
        write_own(other, transactions=60)
        with (
            marks_on(other, log=streamed) as (_, marks),
            pytest.raises(DumpServerUnrelated, match="both have server_id 7"),
            marks.chunk(OWN),
        ):
            pass


def test_watermarks_when_the_streamed_logs_server_ends_connections_then_it_is_asked_over_a_new_one(
    tmp_path: Path,
) -> None:
    with mariadb(tmp_path / "1", 1) as primary, replica_of(primary, tmp_path / "2") as replica:
        make_tables(primary)
        end = position_of(primary)
        with marks_on(replica, log=primary) as (_, marks):
            wait_until(lambda: low_of(marks).covers(end))
            idle = "SELECT id FROM information_schema.processlist WHERE command = 'Sleep'"
            for (connection,) in primary.run(idle):
                with suppress(pymysql.err.OperationalError):  # it has ended by itself
                    primary.run(f"KILL {connection}")
            wait_until(lambda: not primary.run(idle))
            assert low_of(marks).covers(end)
