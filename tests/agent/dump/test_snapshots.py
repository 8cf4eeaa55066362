"""Watermarks against commits that are held between the log and the engine, and against many writers at once."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext

import pymysql
import pytest

from agent.errors import DumpServerUnrelated, DumpSnapshotFailed, DumpSnapshotImpossible, SourceGrantMissing
from agent.sources.mysql.positions import BinlogPosition, MysqlGtids
from agent.sources.mysql.snapshot import mariadb_snapshots, snapshots
from tests.agent.dump.logged import inserts
from tests.agent.dump.marks import DEADLINE_SECONDS, TABLE, ask, make_tables, marks_on, seen, wait_until
from tests.servers import Server, server

USER = "dumper"


@contextmanager
def held_commit(running: Server, statement: str) -> Iterator[Callable[[], None]]:
    """A commit that is in the log and not in the engine, since semi-synchronous replication waits for a replica.

    Gives what lets it go on.
    """
    side = "source" if running.flavor == "mysql" else "master"
    end = "SHOW BINARY LOG STATUS" if running.flavor == "mysql" else "SHOW MASTER STATUS"
    before = running.run(end)
    running.run(
        f"SET GLOBAL rpl_semi_sync_{side}_wait_point = AFTER_SYNC",
        f"SET GLOBAL rpl_semi_sync_{side}_timeout = 3600000",
        f"SET GLOBAL rpl_semi_sync_{side}_enabled = ON",
    )
    committing = threading.Thread(target=running.run, args=(statement,), daemon=True)

    def release() -> None:
        running.run(f"SET GLOBAL rpl_semi_sync_{side}_enabled = OFF")
        committing.join(DEADLINE_SECONDS)
        assert not committing.is_alive()

    committing.start()
    try:
        wait_until(lambda: running.run(end)[0][1] != before[0][1])
        yield release
    finally:
        release()


@contextmanager
def released_when_waited_for(running: Server, release: Callable[[], None]) -> Iterator[None]:
    """Lets a held commit go on as soon as a session waits for the lock that its transaction has on the table."""
    waits = "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock%'"

    def watch() -> None:
        wait_until(lambda: bool(running.run(waits)))
        release()

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        watching.join(DEADLINE_SECONDS)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        found = {
            "mysql": stack.enter_context(server("mysql", tmp_path_factory.mktemp("mysql"))),
            "mysql_file": stack.enter_context(
                server("mysql", tmp_path_factory.mktemp("file"), gtid_mode="OFF", enforce_gtid_consistency="OFF")
            ),
            "mariadb": stack.enter_context(server("mariadb", tmp_path_factory.mktemp("mariadb"))),
        }
        for running in found.values():
            if running.flavor == "mysql":
                running.run("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
            running.run(f"CREATE USER '{USER}'@'%' IDENTIFIED BY 'x'")
        yield found


@pytest.fixture(params=["mysql", "mysql_file", "mariadb"])
def source(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    running = servers[request.param]
    make_tables(running)
    return running


def test_chunk_when_a_commit_is_logged_and_not_visible_then_it_is_not_in_the_low_watermark(
    source: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mariadb_snapshots, "SETTLE_SECONDS", 0.05)
    with marks_on(source) as (connection, marks):
        with marks.chunk(("d", "other")) as low:
            assert seen(connection, "d.other") == set()
        with held_commit(source, "INSERT INTO d.other VALUES (2)") as release:
            with marks.chunk(TABLE) as during:
                assert seen(connection) == {1}
            high = marks.high()
            assert high.covers(during)
            release()
            with marks.chunk(("d", "other")) as after:
                assert seen(connection, "d.other") == {2}
            if source.settings.get("gtid_mode") != "OFF":  # there the table's own commits alone count
                assert during.same_place(low)
            assert after.covers(low)
            assert not low.covers(after)
            assert marks.high().covers(after)


def test_chunk_when_the_commit_is_of_its_own_table_then_what_the_low_watermark_has_is_seen(
    source: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mariadb_snapshots, "SETTLE_SECONDS", 0.05)
    with marks_on(source) as (connection, marks), held_commit(source, "INSERT INTO d.t VALUES (2)") as release:
        # without GTIDs the chunk waits for the table's lock, so the commit has to go on by itself
        by_lock = source.settings.get("gtid_mode") == "OFF"
        with released_when_waited_for(source, release) if by_lock else nullcontext(), marks.chunk(TABLE) as low:
            found = seen(connection)
        release()
        high = marks.high()
        with marks.chunk(TABLE) as end:
            assert seen(connection) == {1, 2}
        assert found == ({1, 2} if by_lock else {1})
        assert low.covers(end) == (found == {1, 2})
        assert high.covers(end)


def test_high_when_a_commit_is_visible_and_not_in_gtid_executed_then_it_has_it(servers: dict[str, Server]) -> None:
    mysql = servers["mysql"]
    make_tables(mysql)
    with marks_on(mysql) as (connection, marks), held_commit(mysql, "INSERT INTO d.t VALUES (2)") as release:
        executed = MysqlGtids.parse(str(ask(connection, "SELECT @@GLOBAL.gtid_executed")[0][0]))
        high = marks.high()
        assert isinstance(high.gtids, MysqlGtids)
        assert high.gtids.covers(executed)
        assert not executed.covers(high.gtids)
        release()
        assert str(ask(connection, "SELECT @@GLOBAL.gtid_executed")[0][0]).replace("\n", "") == str(high)


def test_whole_when_a_commit_of_the_table_is_under_way_then_its_position_is_exact(source: Server) -> None:
    with marks_on(source) as (connection, marks), held_commit(source, "INSERT INTO d.t VALUES (2)") as release:
        # MariaDB's snapshot is of before the commit; a lock waits until it is over
        by_lock = source.flavor == "mysql"
        with released_when_waited_for(source, release) if by_lock else nullcontext(), marks.whole(TABLE) as position:
            source_rows = seen(connection)
            release()
            source.run("INSERT INTO d.t VALUES (3)")
            assert seen(connection) == source_rows
        with marks.whole(TABLE) as later:
            assert seen(connection) == {1, 2, 3}
        assert later.covers(position)
        assert not position.covers(later)
        assert source_rows == ({1, 2} if by_lock else {1})


def _writers(running: Server, stop: threading.Event, failed: list[Exception]) -> list[threading.Thread]:
    """Each commits 1000 * its number + 1, 2, ... one by one, in two tables, so that order shows what is missing."""

    def write(number: int) -> None:
        try:
            with closing(running.connect()) as connection:
                for n in range(1, 400):
                    if stop.is_set():
                        return
                    ask(connection, f"INSERT INTO d.{'t' if n % 3 else 'other'} VALUES ({number * 1000 + n})")
        except pymysql.err.MySQLError as broken:
            failed.append(broken)

    return [threading.Thread(target=write, args=(number,), daemon=True) for number in range(1, 9)]


def test_watermarks_when_many_write_then_low_is_visible_and_high_has_all_that_was(source: Server) -> None:
    """After each read, everything in the low watermark must have been visible, by the log's own order of GTIDs."""
    stop, failed = threading.Event(), []
    writers = _writers(source, stop, failed)
    found: list[tuple[BinlogPosition, BinlogPosition, set[int], bool]] = []
    with marks_on(source) as (connection, marks):
        for writer in writers:
            writer.start()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(seen(connection)) < 100 and time.monotonic() < deadline:
            time.sleep(0.01)
        while len(found) < 30 and time.monotonic() < deadline:
            exact = len(found) % 10 == 9
            if exact:
                with marks.whole(TABLE) as low:
                    rows = seen(connection)
            else:
                with marks.chunk(TABLE) as low:
                    rows = seen(connection)
            found.append((low, marks.high(), rows, exact))
        stop.set()
        for writer in writers:
            writer.join(DEADLINE_SECONDS)
    assert not failed
    assert len(found) == 30
    # the other tests' tables had the same name
    committed = {n: at for n, at in inserts(source, "d", "t", "n").items() if n >= 1000}
    assert len(committed) > 100
    for low, high, rows, exact in found:
        in_low = {n for n, at in committed.items() if low.covers(at)}
        in_high = {n for n, at in committed.items() if high.covers(at)}
        assert in_low <= rows, "a transaction in the low watermark was not visible"
        assert rows - {1} <= in_high, "a transaction that was visible is not in the high watermark"
        if exact:
            assert rows - {1} == in_low
    assert any(rows - {1} for _, _, rows, _ in found)


def test_watermarks_when_the_user_may_only_select_then_they_work_or_name_the_grant(source: Server) -> None:
    source.run(f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM '{USER}'@'%'", f"GRANT SELECT ON d.* TO '{USER}'@'%'")
    needed = ("LOCK TABLES", "REPLICATION CLIENT") if source.settings.get("gtid_mode") == "OFF" else ()
    for grant in needed:
        with (
            marks_on(source, user=USER) as (_, marks),
            pytest.raises(SourceGrantMissing, match=f"GRANT {grant} ON"),
            marks.chunk(TABLE),
        ):
            pass
        source.run(f"GRANT {grant} ON {'d' if grant == 'LOCK TABLES' else '*'}.* TO '{USER}'@'%'")
    with marks_on(source, user=USER) as (connection, marks):
        with marks.chunk(TABLE) as low:
            assert seen(connection) == {1}
        with marks.whole(TABLE) as position:
            assert seen(connection) == {1}
        assert position.covers(low)
        if not needed:
            assert marks.high().covers(low)


def test_whole_when_the_engine_has_no_snapshots_then_says_so(source: Server) -> None:
    source.run("ALTER TABLE d.other ENGINE = MyISAM")
    with (
        marks_on(source) as (_, marks),
        pytest.raises(DumpSnapshotImpossible, match="MyISAM"),
        marks.whole(("d", "other")),
    ):
        pass


def test_lock_when_a_transaction_keeps_the_table_then_gives_up_and_lets_writers_go_on(
    servers: dict[str, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "LOCK_TRIES", 1)
    running = servers["mysql_file"]
    make_tables(running)
    with marks_on(running) as (connection, marks), closing(running.connect(autocommit=False)) as other:
        ask(other, "INSERT INTO d.t VALUES (2)")
        with pytest.raises(DumpSnapshotFailed, match="busy"), marks.chunk(TABLE):
            pass
        running.run("INSERT INTO d.t VALUES (3)")
        other.commit()
        with marks.chunk(TABLE):
            assert seen(connection) == {1, 2, 3}


def test_chunk_when_a_snapshot_cost_a_lock_then_it_serves_more_chunks_and_lets_an_alter_in(
    servers: dict[str, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "KEPT_SECONDS", 3600.0)
    running = servers["mysql_file"]
    make_tables(running)
    with marks_on(running) as (connection, marks):
        with marks.chunk(TABLE) as first:
            assert seen(connection) == {1}
        running.run("INSERT INTO d.t VALUES (2)")
        with marks.chunk(TABLE) as second:
            assert seen(connection) == {1}
        assert second.same_place(first)
        assert not second.covers(marks.high())
        running.run("SET lock_wait_timeout = 60", "ALTER TABLE d.t ADD COLUMN c INT")
        with pytest.raises(pymysql.err.MySQLError), marks.chunk(TABLE):
            seen(connection)
        with marks.chunk(TABLE) as third:
            assert seen(connection) == {1, 2}
        assert third.covers(second)


def test_watermarks_when_the_server_is_not_that_of_the_log_then_files_are_refused(servers: dict[str, Server]) -> None:
    with pytest.raises(DumpServerUnrelated), marks_on(servers["mysql_file"], log=servers["mysql"]):
        pass
