"""Watermarks against commits that are logged and not visible, on standbys, and against many writers at once."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from agent.errors import DumpServerUnrelated, DumpSnapshotFailed, SourceConnectionLost
from agent.snapshot.reading import NotYet
from agent.sources.postgresql.positions import WalPosition
from agent.sources.postgresql.seen_transactions import SeenTransactions
from agent.sources.postgresql.snapshot import positions
from agent.sources.postgresql.snapshot.reading import PostgresqlTableReader
from tests.agent.postgresql.dump_reading import chunk, reader_of, whole
from tests.agent.postgresql.logged import DEADLINE_SECONDS, PUBLICATION, SLOT, Log, held_commits, wait_held
from tests.agent.postgresql.sources import config_of, login
from tests.postgres import SourceServer, source_server, standby_of
from tests.stack import wait_for

TABLE, KEY, MOST = ("public", "t"), ("id",), 1_000_000


@contextmanager
def reading(
    server: SourceServer, seen: SeenTransactions | None = None, **more: object
) -> Iterator[tuple[Log, PostgresqlTableReader]]:
    log = Log(server, seen, is_new=not server.run("SELECT 1 FROM pg_replication_slots"))
    try:
        with reader_of(config_of(server, **more), log.seen) as reader:
            yield log, reader
    finally:
        log.close()


def make(server: SourceServer, rows: int = 1) -> None:
    server.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        f"INSERT INTO t SELECT i, 'first' FROM generate_series(1, {rows}) AS i",
        database="shop",
    )


def ids(rows: list[dict[str, object]]) -> set[object]:
    return {row["id"] for row in rows}


def test_chunk_when_a_commit_is_logged_and_not_visible_then_it_is_not_in_the_low_watermark(
    postgres: SourceServer,
) -> None:
    make(postgres)
    with reading(postgres) as (log, reader):
        log.read()
        with held_commits(postgres, "INSERT INTO t VALUES (2)"):
            ((inserted,), end) = log.read(), log.position
            assert [change.after for change in inserted.changes] == [{"id": "2", "v": None}]
            rows, _, low, high = chunk(reader, TABLE, KEY, MOST)
            assert ids(rows) == {1}
            # what is known by LSNs alone: the stream has read it, and the log has it
            assert end.lsn >= inserted.end_lsn
            assert low == end.at(inserted.commit_lsn)
            assert not low.covers(end.at(inserted.end_lsn))
            assert high.covers(low)
            # a later commit that is visible makes no difference
            with postgres.connect("shop") as other:
                other.execute("SET synchronous_commit = local")
                other.execute("INSERT INTO t VALUES (3)")
            log.read()
            rows, _, low, high = chunk(reader, TABLE, KEY, MOST)
            assert ids(rows) == {1, 3}
            assert low == end.at(inserted.commit_lsn)
            assert high.covers(log.position)
        log.read()
        rows, _, low, high = chunk(reader, TABLE, KEY, MOST)
        assert ids(rows) == {1, 2, 3}
        assert low == log.position
        assert high.covers(low)


def test_chunk_when_the_stream_begins_anew_while_a_commit_is_held_then_nothing_is_known_of_it(
    postgres: SourceServer,
) -> None:
    """The commit was read, and acknowledged, by a process that is gone."""
    make(postgres)
    with reading(postgres) as (log, _):
        with held_commits(postgres, "INSERT INTO t VALUES (2)"):
            assert len(log.read()) == 1
            with reading(postgres, SeenTransactions()) as (again, reader):
                assert again.position.lsn >= log.transactions[-1].end_lsn
                assert again.read() == []
                with pytest.raises(NotYet):
                    chunk(reader, TABLE, KEY, MOST)
        with reading(postgres, again.seen) as (again, reader):
            rows, _, low, _ = chunk(reader, TABLE, KEY, MOST)
            assert ids(rows) == {1, 2}
            assert low == again.position


def test_chunk_when_a_prepared_transaction_commits_and_is_not_visible_then_it_is_not_in_the_low_watermark() -> None:
    with source_server(max_prepared_transactions="5") as server:
        server.create_replication_user()
        make(server)
        with reading(server) as (log, reader):
            with server.connect("shop", autocommit=False) as other:
                other.execute("INSERT INTO t VALUES (2)")
                other.execute("PREPARE TRANSACTION 'two'")
            server.run("INSERT INTO t VALUES (3)", database="shop")
            assert len(log.read()) == 1
            rows, _, low, _ = chunk(reader, TABLE, KEY, MOST)
            assert (ids(rows), low) == ({1, 3}, log.position)
            with held_commits(server, "COMMIT PREPARED 'two'"):
                (committed,) = log.read()
                rows, _, low, _ = chunk(reader, TABLE, KEY, MOST)
                assert (ids(rows), low.lsn) == ({1, 3}, committed.commit_lsn)
            rows, _, low, _ = chunk(reader, TABLE, KEY, MOST)
            assert (ids(rows), low) == ({1, 2, 3}, log.position)


def test_chunk_when_the_log_is_read_in_the_middle_of_it_then_the_watermark_is_that_of_before(
    postgres: SourceServer,
) -> None:
    make(postgres)
    with reading(postgres) as (log, reader):
        log.read()
        before = log.position

        def meanwhile() -> None:
            postgres.run("INSERT INTO t VALUES (2)", database="shop")
            log.read()

        rows, _, low, high = chunk(reader, TABLE, KEY, MOST, before=meanwhile)
        assert ids(rows) == {1}
        assert low == before
        assert high.covers(log.position.at(log.transactions[-1].end_lsn))


def test_chunk_when_the_stream_does_not_run_then_waits(postgres: SourceServer) -> None:
    make(postgres)
    with reading(postgres) as (log, reader):
        log.seen.end()
        for _ in range(2):
            with pytest.raises(NotYet):
                chunk(reader, TABLE, KEY, MOST)
            with pytest.raises(NotYet):
                whole(reader, TABLE)
        log.seen.begin(log.position, log.snapshot())
        assert ids(chunk(reader, TABLE, KEY, MOST)[0]) == {1}


def test_high_when_the_log_ends_at_a_page_then_a_stream_gets_there(postgres: SourceServer) -> None:
    """The next record will begin behind the head of a page that is not written yet."""
    make(postgres)
    with reading(postgres) as (log, reader), postgres.connect("shop") as connection:
        for _ in range(100):
            end = _insert_end(connection)
            if end % 8192 == 24:
                break
            overhead = _emit(connection, 304) - 304
            left = 8192 - _insert_end(connection) % 8192
            if left - overhead >= 304:
                _emit(connection, left - overhead)
        else:
            pytest.fail("no record ends at a page's end")
        high = reader.high()
        assert high.lsn % 8192 == 0
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not log.position.covers(high) and time.monotonic() < deadline:
            log.read()
        assert log.position.covers(high)


def _insert_end(connection: psycopg.Connection) -> int:
    return int(connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchall()[0][0])


def _emit(connection: psycopg.Connection, size: int) -> int:
    """A record with so much in it; its size, unless others write too or it goes over the end of a page."""
    before = _insert_end(connection)
    connection.execute("SELECT pg_logical_emit_message(false, 'm', repeat('x', %s))", (size,))
    return _insert_end(connection) - before


class Writers:
    """Each commits 100_000 * its number + 1, 2, ... one by one; some wait for the disk, some do not, some take long."""

    def __init__(self, server: SourceServer, count: int = 6) -> None:
        self._server = server
        self._stop = threading.Event()
        self.failed: list[Exception] = []
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(1, count + 1)]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_SECONDS)
        assert not self.failed, self.failed

    def _write(self, number: int) -> None:
        chance = random.Random(number)
        try:
            with self._server.connect("shop", autocommit=False) as connection:
                for n in range(1, 100_000):
                    if self._stop.is_set():
                        return
                    connection.execute(f"SET LOCAL synchronous_commit = {'on' if chance.random() < 0.5 else 'off'}")
                    for part in range(chance.choice([1, 1, 3])):
                        connection.execute("SAVEPOINT s")
                        connection.execute("INSERT INTO t VALUES (%s)", (number * 1_000_000 + n * 10 + part,))
                    if chance.random() < 0.1:
                        connection.rollback()
                    else:
                        connection.commit()
        except psycopg.Error as broken:
            self.failed.append(broken)


def _check_watermarks(log: Log, found: list[tuple[WalPosition, WalPosition, set[object], bool]], enough: int) -> None:
    committed = [(one, {int(str(change.after["id"])) for change in one.changes}) for one in log.transactions]
    for low, high, rows, is_exact in found:
        in_low = set().union(*(ids_ for one, ids_ in committed if one.commit_lsn < low.lsn))
        in_high = set().union(*(ids_ for one, ids_ in committed if one.end_lsn <= high.lsn))
        later = rows - {1}
        assert in_low <= rows, "a transaction in the low watermark was not visible"
        assert later <= in_high, "a transaction that was visible is not in the high watermark"
        if is_exact:
            assert later == in_low
    assert len(found[-1][2]) > enough


def test_watermarks_when_many_write_then_low_is_visible_and_high_has_all_that_was(postgres: SourceServer) -> None:
    make(postgres)
    found: list[tuple[WalPosition, WalPosition, set[object], bool]] = []
    with reading(postgres) as (log, reader):
        with Writers(postgres):
            deadline = time.monotonic() + DEADLINE_SECONDS
            while (len(found) < 60 or len(found[-1][2]) < 500) and time.monotonic() < deadline:
                if len(found) % 3 != 1:
                    log.read()
                if len(found) % 10 == 9:
                    rows, shown = whole(reader, TABLE)
                    found.append((shown, reader.high(), ids(rows), True))
                else:
                    rows, _, low, high = chunk(reader, TABLE, KEY, MOST)
                    found.append((low, high, ids(rows), False))
        log.read()
    _check_watermarks(log, found, 400)
    assert any(low.lsn < high.lsn for low, high, _, _ in found)


def test_watermarks_when_commits_are_held_and_released_at_random_then_nothing_below_low_is_hidden(
    postgres: SourceServer,
) -> None:
    make(postgres)
    found: list[tuple[WalPosition, WalPosition, set[object], bool]] = []
    hidden = 0
    with reading(postgres) as (log, reader):
        with Writers(postgres):
            for _ in range(12):
                with held_commits(postgres):
                    wait_held(postgres, 6)
                    for _ in range(2):
                        log.read()
                        rows, _, low, high = chunk(reader, TABLE, KEY, MOST)
                        found.append((low, high, ids(rows), False))
                        hidden += low != log.position
                rows, _, low, high = chunk(reader, TABLE, KEY, MOST)
                found.append((low, high, ids(rows), False))
        log.read()
    _check_watermarks(log, found, 20)
    assert hidden, "no commit was ever hidden"


# --- whole tables


def test_whole_when_others_write_then_it_is_exact_and_the_slot_is_held_there(postgres: SourceServer) -> None:
    make(postgres)
    with reading(postgres) as (log, reader):
        log.read()

        def meanwhile() -> None:
            postgres.run("INSERT INTO t VALUES (3)", database="shop")
            held = log.seen.held()
            assert held is not None
            log.read()

        postgres.run("INSERT INTO t VALUES (2)", database="shop")
        rows, shown = whole(reader, TABLE, meanwhile)
        assert ids(rows) == {1, 2}
        by_id = {change.after["id"]: one for one in log.transactions for change in one.changes}
        assert by_id["2"].commit_lsn < shown.lsn <= by_id["3"].commit_lsn
        assert log.seen.held() == shown
        assert reader.in_the_log(shown) == shown
        assert log.seen.held() == shown
        chunk(reader, TABLE, KEY, 1)
        assert log.seen.held() is None
        whole(reader, TABLE)
        assert log.seen.held() is not None
    assert log.seen.held() is None
    wait_for("no other slot to stay", lambda: postgres.run("SELECT slot_name FROM pg_replication_slots") == [(SLOT,)])


def test_whole_when_a_commit_is_held_then_it_waits_for_it_or_shows_it(
    postgres: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(postgres)
    postgres.run("GRANT pg_read_all_stats TO menura")
    with reading(postgres) as (log, reader):
        log.read()
        with held_commits(postgres, "INSERT INTO t VALUES (2)"), monkeypatch.context() as hurried:
            hurried.setattr(positions, "EXPORT_SECONDS", 0.5)
            log.read()
            try:
                rows, shown = whole(reader, TABLE)
                assert (ids(rows) == {1, 2}) == (shown.lsn > log.transactions[-1].commit_lsn)
            except DumpSnapshotFailed as failed:
                assert "server process" in failed.found
        rows, shown = whole(reader, TABLE)
        assert ids(rows) == {1, 2}


def test_whole_when_a_transaction_takes_too_long_then_says_which(
    postgres: SourceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(postgres)
    postgres.run("GRANT pg_read_all_stats TO menura")
    with reading(postgres) as (log, reader):
        with postgres.connect("shop", autocommit=False) as other, monkeypatch.context() as hurried:
            hurried.setattr(positions, "EXPORT_SECONDS", 0.5)
            other.execute("INSERT INTO t VALUES (2)")
            with pytest.raises(DumpSnapshotFailed, match=f"server process {other.info.backend_pid}") as caught:
                whole(reader, TABLE)
            assert not caught.value.terminal
            assert log.seen.held() is None
            other.commit()
        assert ids(whole(reader, TABLE)[0]) == {1, 2}
    wait_for("no other slot to stay", lambda: postgres.run("SELECT slot_name FROM pg_replication_slots") == [(SLOT,)])


def test_whole_when_the_slot_or_the_publication_is_not_there_then_waits(postgres: SourceServer) -> None:
    make(postgres)
    with reading(postgres) as (log, reader):
        postgres.run(f"DROP PUBLICATION {PUBLICATION}", f"CREATE PUBLICATION {PUBLICATION}", database="shop")
        with pytest.raises(NotYet, match="publication"):
            whole(reader, TABLE)
        postgres.run(f"ALTER PUBLICATION {PUBLICATION} ADD TABLE t", database="shop")
        postgres.run(f"SELECT pg_drop_replication_slot('{SLOT}')")
        with pytest.raises(NotYet, match="slot"):
            whole(reader, TABLE)
        assert log.seen.held() is None
        postgres.run(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')", database="shop")
        assert ids(whole(reader, TABLE)[0]) == {1}


# --- standbys


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[SourceServer, SourceServer]]:
    with ExitStack() as stack:
        primary = stack.enter_context(source_server())
        primary.create_replication_user()
        yield primary, stack.enter_context(standby_of(primary))


def test_watermarks_on_a_standby_when_many_write_then_low_is_visible_and_high_has_all_that_was(
    pair: tuple[SourceServer, SourceServer],
) -> None:
    primary, standby = pair
    primary.renew_database()
    make(primary)
    primary.wait_for_replay(standby)
    found: list[tuple[WalPosition, WalPosition, set[object], bool]] = []
    with reading(primary, client=login(standby)) as (log, reader):
        with Writers(primary), primary.connect("shop", autocommit=False) as idle:
            idle.execute("INSERT INTO t VALUES (2)")  # runs all the time
            deadline = time.monotonic() + DEADLINE_SECONDS
            while (len(found) < 60 or len(found[-1][2]) < 500) and time.monotonic() < deadline:
                log.read()
                rows, _, low, high = chunk(reader, TABLE, KEY, MOST)
                found.append((low, high, ids(rows), False))
        rows, shown = whole(reader, TABLE)
        found.append((shown, reader.high(), ids(rows), True))
        log.read()
    _check_watermarks(log, found, 400)
    assert len({low.lsn for low, _, _, _ in found}) > 10, "low does not go on"


def test_chunk_on_a_standby_when_it_does_not_replay_then_low_stays_and_high_is_the_primarys(
    pair: tuple[SourceServer, SourceServer],
) -> None:
    primary, standby = pair
    primary.renew_database()
    make(primary)
    primary.wait_for_replay(standby)
    with reading(primary, client=login(standby)) as (log, reader):
        primary.wait_for_replay(standby)
        standby.run("SELECT pg_wal_replay_pause()")
        try:
            _, _, before, _ = chunk(reader, TABLE, KEY, MOST)
            primary.run("INSERT INTO t VALUES (2)", database="shop")
            log.read()
            rows, _, low, high = chunk(reader, TABLE, KEY, MOST)
            assert ids(rows) == {1}
            assert low == before
            assert high.covers(log.position.at(log.transactions[-1].end_lsn))
            load = reader.read_load()
            assert (load().is_replica, load().lag_seconds) == (True, None)
        finally:
            standby.run("SELECT pg_wal_replay_resume()")
        primary.wait_for_replay(standby)
        rows, _, low, _ = chunk(reader, TABLE, KEY, MOST)
        assert ids(rows) == {1, 2}
        assert low.covers(log.position.at(log.transactions[-1].end_lsn))
        load.close()


def test_chunk_on_a_standby_when_it_is_promoted_then_the_reader_ends_and_no_other_begins(
    postgres: SourceServer,
) -> None:
    make(postgres)
    with standby_of(postgres) as standby, reading(postgres, client=login(standby)) as (log, reader):
        log.read()
        postgres.wait_for_replay(standby)
        assert ids(chunk(reader, TABLE, KEY, MOST)[0]) == {1}
        standby.promote()
        standby.run("INSERT INTO t VALUES (66)", database="shop")
        with pytest.raises(SourceConnectionLost, match="promoted"):
            chunk(reader, TABLE, KEY, MOST)
        with pytest.raises(DumpServerUnrelated), reader_of(config_of(postgres, client=login(standby)), log.seen):
            pass


def test_reader_when_the_server_is_another_one_then_it_is_refused(postgres: SourceServer) -> None:
    make(postgres)
    with source_server(is_other=True) as other:
        other.create_replication_user()
        with (
            pytest.raises(DumpServerUnrelated, match=r"sources\.shop\.replication"),
            reading(postgres, client=login(other)),
        ):
            pass
