"""What is watched beside the stream: the log's end, how long WAL is kept, and whether the server is still the same."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import pytest

from agent.runtime.state import LogKept
from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.errors import SlotRetentionShort
from agent.sources.postgresql.positions import WalPosition
from agent.sources.postgresql.seen_transactions import Snapshot
from agent.sources.postgresql.server import watch as watches
from agent.sources.postgresql.server.connection import Connection, Facts, connect, facts_of, rows
from agent.sources.postgresql.server.slot import create_slot
from agent.sources.postgresql.server.watch import ServerWatch, Sights
from agent.sources.postgresql.server.wire import open_wal_stream
from tests.agent.postgresql.sources import SOURCE, config_of, login
from tests.postgres import SourceServer, source_server, standby_of
from tests.stack import wait_for

SLOT = "menura_test"


@dataclass
class Seen:
    ends: list[WalPosition | None] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    retentions: list[SlotRetentionShort | None] = field(default_factory=list)
    kept: list[LogKept | None] = field(default_factory=list)
    looks: list[tuple[str, WalPosition]] = field(default_factory=list)
    other_logs: list[bool] = field(default_factory=list)
    going_down: list[bool] = field(default_factory=list)

    def look(self, connection: Connection, end: WalPosition) -> None:
        self.looks.append((str(rows(connection, "SELECT current_user::text")[0][0]), end))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(watches, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(watches, "RECONNECT_SECONDS", 0.1)


def facts(config: PostgresqlConfig) -> Facts:
    with closing(connect(config.replication, SOURCE)) as connection:
        return facts_of(connection, SOURCE)


@contextmanager
def watched(config: PostgresqlConfig, on_going_down: Callable[[], None] = lambda: None) -> Iterator[Seen]:
    seen = Seen()

    def going_down() -> None:
        seen.going_down.append(True)
        on_going_down()

    sights = Sights(
        end=seen.ends.append,
        snapshot=seen.snapshots.append,
        retention=seen.retentions.append,
        kept=seen.kept.append,
        look=seen.look,
        other_log=lambda: seen.other_logs.append(True),
        going_down=going_down,
    )
    watch = ServerWatch(config, SLOT, sights)
    watch.start()
    watch.follow(facts(config))
    yield seen
    watch.stop()


def test_watch_when_the_server_writes_then_tells_its_end_and_has_looks(postgres: SourceServer) -> None:
    with watched(config_of(postgres)) as seen:
        wait_for("an end", lambda: seen.ends)
        before = seen.ends[0]
        assert before is not None
        postgres.run("CREATE TABLE t (id int)", database="shop")
        wait_for("a later end", lambda: (end := seen.ends[-1]) and end.lsn > before.lsn)
        wait_for("a look behind it", lambda: seen.looks[-1][1].lsn > before.lsn)
        assert seen.looks[0][0] == "menura"
        wait_for("snapshots", lambda: len(seen.snapshots) > 1)
        assert all(Snapshot.parse(text).xmin > 0 for text in seen.snapshots)
    assert not seen.other_logs


def test_watch_when_another_server_is_there_then_says_so_once() -> None:
    with source_server() as running:
        running.create_replication_user()
        config = config_of(running)
        with watched(config) as seen, source_server(is_other=True) as other:
            wait_for("an end", lambda: seen.ends)
            other.create_replication_user()
            other.stop()
            running.stop()
            other.settings["port"] = str(running.port)
            other.start()
            wait_for("word of it", lambda: seen.other_logs)
            assert None in seen.ends
            count = len(seen.ends)
            wait_for("ends of the other one", lambda: len(seen.ends) > count + 3)
            assert len(seen.other_logs) == 1


def test_watch_when_the_dumps_server_is_a_standby_then_its_snapshots_are_not_told() -> None:
    """They name no transaction that runs on the primary."""
    with source_server() as primary:
        primary.create_replication_user()
        with standby_of(primary) as standby:
            primary.wait_for_replay(standby)
            with watched(config_of(primary, client=login(standby))) as seen:
                wait_for("ends", lambda: len(seen.ends) > 3)
                assert not seen.snapshots
                assert None not in seen.ends
                standby.promote()
                wait_for("snapshots of a primary", lambda: seen.snapshots)


def test_watch_when_little_wal_is_left_then_warns_before_the_slot_is_lost() -> None:
    with source_server(max_slot_wal_keep_size="64MB", max_wal_size="64MB", min_wal_size="32MB") as running:
        running.create_replication_user()
        config = config_of(running)
        create_slot(config.replication, SOURCE, SLOT)
        with watched(config) as seen:
            wait_for("a look at the slot", lambda: seen.retentions)
            assert seen.retentions[-1] is None
            kept = seen.kept[-1]
            assert (
                kept is not None and kept.room_bytes is not None and 0 < kept.room_bytes < 128 << 20
            )  # of whole files
            assert not kept.is_unlimited
            for _ in range(100):
                running.run("SELECT pg_logical_emit_message(false, 'x', repeat('x', 2000000))")
                if seen.retentions[-1] is not None:
                    break
                count = len(seen.retentions)
                wait_for("another look", lambda before=count: len(seen.retentions) > before)
            warning = seen.retentions[-1]
            assert warning is not None
            assert "max_slot_wal_keep_size is 64 MiB" in warning.found
            status = running.run("SELECT wal_status FROM pg_replication_slots")
            assert status in ([("extended",)], [("reserved",)])
            statement = warning.remedy.partition("run on the server: ")[2]
            running.run(*statement.split("; "))
            wait_for("room for more", lambda: seen.retentions[-1] is None)


def test_watch_when_wal_is_kept_without_a_limit_then_says_so_until_there_is_one(postgres: SourceServer) -> None:
    config = config_of(postgres)
    with watched(config) as seen:
        wait_for("a look without a slot", lambda: seen.kept)
        assert seen.kept[-1] is None, "not known"
        create_slot(config.replication, SOURCE, SLOT)
        wait_for("no limit", lambda: seen.kept[-1] == LogKept(is_unlimited=True))
        postgres.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1GB'", "SELECT pg_reload_conf()")
        try:
            wait_for("a limit", lambda: (kept := seen.kept[-1]) and kept.room_bytes and not kept.is_unlimited)
        finally:
            postgres.run("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
        if postgres.version >= 18_00_00:
            postgres.run("ALTER SYSTEM SET idle_replication_slot_timeout = '2h'", "SELECT pg_reload_conf()")
            try:
                wait_for("a time", lambda: seen.kept[-1] == LogKept(7_200))
            finally:
                postgres.run("ALTER SYSTEM RESET idle_replication_slot_timeout", "SELECT pg_reload_conf()")


def test_watch_when_its_server_goes_down_then_says_so_since_it_waits_for_the_stream() -> None:
    """A stream that can't acknowledge would keep its server from going down for as long as it lives."""
    with source_server() as running:
        running.create_replication_user()
        running.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION menura FOR TABLE t", database="shop")
        config = config_of(running)
        lsn = create_slot(config.replication, SOURCE, SLOT)
        with (
            closing(open_wal_stream(config.replication, SOURCE, SLOT, "menura", lsn)) as stream,
            watched(config, stream.close) as seen,
        ):
            running.run("INSERT INTO t VALUES (1)", database="shop")
            stream.receive_into(memoryview(bytearray(1000)), 300)
            stopping = threading.Thread(target=running.stop)
            stopping.start()
            stopping.join()
            assert seen.going_down
        running.start()
