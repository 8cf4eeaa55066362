"""The throttle, with clocks and loads of its own; the load and the log retention as real servers tell them."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from menura.v1 import snapshot_pb2
from menura.windows import Window, WindowInvalid
from pymysql.connections import Connection

from agent.config_entries import Secret
from agent.errors import SourceConnectionLost, SourceGrantMissing
from agent.settings import DumpConfig
from agent.snapshot.chunk_size import LEAST_ROWS, MOST_BYTES, MOST_ROWS, ChunkSize
from agent.snapshot.throttle import Limits, Load, ReadCancelled, Throttle, TokenBucket
from agent.sources.mysql.config import ServerConfig
from agent.sources.mysql.server.connection import connect, facts_of
from agent.sources.mysql.snapshot.load import LoadReader
from agent.sources.mysql.snapshot.log_retention import (
    LogRetention,
    lag_warning,
    needed_seconds,
    read_log_retention,
    unchunked_warning,
)
from tests.servers import Server, replica_of, server
from tests.stack import wait_for

NOON = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.seconds - 100)


class Waits(threading.Event):
    """An event whose waits pass on a clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited.append(timeout)
        self.clock.seconds += timeout
        return self.is_set()


def throttled(config: DumpConfig, loads: Iterator[Load], clock: Clock) -> Throttle:
    return Throttle("shop", config, lambda: next(loads), clock=clock, now=clock.now)


def threads(*counts: int) -> Iterator[Load]:
    return iter([Load(count) for count in counts])


def test_before_chunk_when_threads_run_then_waits_until_it_is_calm_and_says_why() -> None:
    clock = Clock()
    throttle = throttled(DumpConfig(max_threads_running=10), threads(10, 11, 10, 9, 8, 9), clock)
    reasons: list[str] = []

    class Watched(Waits):
        def wait(self, timeout: float | None = None) -> bool:
            assert share.hold is not None and share.hold.held == snapshot_pb2.DumpStatus.SERVER_BUSY
            reasons.append(share.hold.reason)
            return super().wait(timeout)

    cancelled = Watched(clock)
    share = throttle.of_dump(Limits()).of_worker(cancelled)
    share.before_chunk()
    assert reasons == []
    clock.seconds += 1
    share.before_chunk()
    assert [reason.split(",")[0] for reason in reasons] == [f"{n} threads run on the server" for n in (11, 10, 9)]
    assert all("sources.shop.dump.max_threads_running is 10, since 12:00:01 UTC" in reason for reason in reasons)
    assert share.slowed == "" and share.hold is None
    clock.seconds += 1
    share.before_chunk()  # 9 is no reason to stop, only one to stay stopped
    assert len(reasons) == 3


@pytest.mark.parametrize(
    ("load", "said"),
    [(Load(1, True, 61), "is 61 s behind"), (Load(1, True, None), "does not apply changes"), (Load(1, True, 60), "")],
)
def test_hold_when_the_replica_is_behind_then_says_so(load: Load, said: str) -> None:
    hold = throttled(DumpConfig(), iter([load]), Clock()).hold()
    assert (hold.reason if hold else "").count(said) >= bool(said)
    assert (hold is None) == (not said)
    assert throttled(DumpConfig(max_replica_lag_seconds=0), iter([load]), Clock()).hold() is None


def test_before_chunk_when_no_window_is_open_then_waits_for_one_in_its_time_zone() -> None:
    clock = Clock()
    windows = (Window.parse("22:00-02:00 Europe/Berlin"), Window.parse("12:05-12:10"))
    throttle = throttled(DumpConfig(windows=windows, max_threads_running=0), threads(*[1] * 99), clock)
    hold = throttle.hold()
    assert hold is not None
    assert "sources.shop.dump.windows: the next one opens at 2026-03-28 12:05 UTC" in hold.reason
    assert hold.held == snapshot_pb2.DumpStatus.WINDOW
    share = throttle.of_dump(Limits()).of_worker(Waits(clock))
    share.before_chunk()
    assert clock.now() == NOON + timedelta(minutes=5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 300_000), min_size=30, max_size=60), st.integers(100_000, 10_000_000))
def test_received_when_a_rate_is_set_then_it_holds_over_time(counts: list[int], rate: int) -> None:
    clock = Clock()
    cancelled = Waits(clock)
    throttle = throttled(DumpConfig(max_bytes_per_second=rate), threads(1), clock)
    share = throttle.of_dump(Limits()).of_worker(cancelled)
    for count in counts:
        share.received(count)
    seconds = clock.seconds - 100
    assert sum(counts) <= rate * (seconds + 0.5) + 1
    assert seconds <= sum(counts) / rate + 0.01
    assert share.held_seconds == pytest.approx(seconds)


def test_rows_when_the_order_has_a_limit_then_it_only_narrows() -> None:
    clock = Clock()
    throttle = throttled(DumpConfig(workers=3, max_rows_per_second=1_000), threads(1), clock)
    narrow, wide = throttle.of_dump(Limits(2, 100)), throttle.of_dump(Limits(9, 10_000))
    assert (narrow.workers, wide.workers) == (2, 3)
    shares = [narrow.of_worker(Waits(clock)), narrow.of_worker(Waits(clock))]
    for _ in range(10):
        for share in shares:
            share.rows(50)
    assert clock.seconds - 100 == pytest.approx(1000 / 100 - 0.5, abs=0.1)
    assert shares[0].slowed == "the dump's own limit is 100 rows per second"
    begun = clock.seconds
    share = wide.of_worker(Waits(clock))
    for _ in range(100):
        share.rows(100)
    assert clock.seconds - begun == pytest.approx(10, abs=1)
    assert share.slowed == "sources.shop.dump.max_rows_per_second is 1000"
    clock.seconds += 10
    assert share.slowed == ""


def test_most_rows_when_rates_are_set_then_a_chunk_takes_its_time_under_the_lowest() -> None:
    config = DumpConfig(max_rows_per_second=4_000, max_bytes_per_second=1_000_000)
    throttle = throttled(config, threads(1), Clock())
    wide, narrow = (throttle.of_dump(limits).of_worker(threading.Event()) for limits in (Limits(), Limits(0, 500)))
    assert [wide.most_rows(2, row_bytes) for row_bytes in (10, 1_000)] == [8_000, 2_000]
    assert narrow.most_rows(2, 10) == 1_000
    free = throttled(DumpConfig(), threads(1), Clock()).of_dump(Limits()).of_worker(threading.Event())
    assert free.most_rows(1, 100) == float("inf")


def test_share_when_cancelled_then_ends_at_once_wherever_it_waits() -> None:
    cancelled = threading.Event()
    throttle = Throttle("shop", DumpConfig(max_bytes_per_second=1), lambda: Load(99))
    share = throttle.of_dump(Limits()).of_worker(cancelled)
    cancelled.set()
    for wait in (share.before_chunk, lambda: share.received(1000), lambda: share.rows(1)):
        with pytest.raises(ReadCancelled):
            wait()


def test_bucket_when_it_has_no_limit_then_never_waits() -> None:
    assert TokenBucket(0, Clock()).take(10**12) == 0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(1e-5, 1e-2), st.integers(1, 10**6)), min_size=10, max_size=20))
def test_chunk_size_when_rows_take_their_time_then_it_changes_by_steps_within_its_bounds(
    rows: list[tuple[float, int]],
) -> None:
    size = ChunkSize(1.0, MOST_ROWS, 200)
    for row_seconds, row_bytes in rows:
        before = size.rows
        size.took(before, before * row_bytes, before * row_seconds)
        assert before // 2 <= size.rows <= max(before * 2, LEAST_ROWS)
        assert 1 <= size.rows <= MOST_ROWS
    for _ in range(30):
        size.took(size.rows, size.rows * 1_000_000, size.rows * 1e-2)
    assert size.rows * 1_000_000 <= MOST_BYTES * 2


def test_chunk_size_when_rows_are_steady_then_a_chunk_takes_its_second() -> None:
    size = ChunkSize(1.0, MOST_ROWS)
    for _ in range(20):
        size.took(size.rows, size.rows * 100, size.rows / 300_000)
    assert size.rows == 300_000
    size.took(10, 1000, 0.001)  # the end of a range
    assert size.rows == 300_000


@pytest.mark.parametrize(
    ("text", "said"),
    [("22-06", "HH:MM"), ("24:00-06:00", "HH:MM"), ("08:00-08:00", "no part"), ("08:00-24:01", "no part"),
     ("00:00-24:00", "no part"), ("08:00-09:00 Mars/Base", "does not know")],
)  # fmt: skip
def test_window_when_its_text_is_none_then_says_why(text: str, said: str) -> None:
    with pytest.raises(WindowInvalid, match=said):
        Window.parse(text)


@settings(max_examples=50)
@given(
    st.integers(0, 366 * 24 * 60),
    st.sampled_from(["02:30-04:00 Europe/Berlin", "23:00-24:00", "21:00-01:30 America/New_York"]),
)
def test_window_when_it_is_closed_then_its_opening_is_within_a_day(minutes: int, text: str) -> None:
    window, now = Window.parse(text), NOON + timedelta(minutes=minutes)
    opens = window.opens_at(now)
    assert timedelta(0) < opens - now <= timedelta(hours=25)
    assert opens.hour * 60 + opens.minute == window.begin_minute


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def primary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(request.param, tmp_path_factory.mktemp(request.param)) as running:
        running.run("CREATE USER 'plain'@'%' IDENTIFIED BY 'x'")
        yield running


def _reader(running: Server, *, user: str = "root", asked_for: bool = False) -> LoadReader:
    config = ServerConfig(running.host, user, running.port, Secret("x" if user != "root" else running.password))
    with closing(connect(config, "shop")) as connection:
        facts = facts_of(connection, "shop")
    return LoadReader(lambda: connect(config, "shop"), config, "shop", facts, lag=True, lag_is_asked_for=asked_for)


def test_load_when_a_server_is_idle_and_then_works_then_counts_its_threads(primary: Server) -> None:
    with closing(_reader(primary)) as read, closing(primary.connect()) as other:
        assert (read().is_replica, read().lag_seconds) == (False, None)
        idle = min(read().threads_running for _ in range(20))  # one that comes or goes counts for a moment
        working = threading.Thread(target=other.query, args=("DO SLEEP(600)",), daemon=True)
        working.start()
        wait_for("the thread to be counted", lambda: read().threads_running > idle)
        primary.run(f"KILL QUERY {other.thread_id()}")  # SLEEP then ends as if its time were over
        working.join(300)


def test_load_when_the_user_may_not_see_the_lag_then_it_is_an_error_only_where_it_was_asked_for(
    primary: Server,
) -> None:
    with closing(_reader(primary, user="plain")) as read:
        assert not read().is_replica
    named = pytest.raises(SourceGrantMissing, match=r"GRANT (REPLICATION CLIENT|REPLICA MONITOR)")
    with closing(_reader(primary, user="plain", asked_for=True)) as read, named:
        read()


def test_load_when_the_connection_is_killed_then_the_next_question_makes_a_new_one(primary: Server) -> None:
    with closing(_reader(primary)) as read:
        read()
        assert read._connection is not None
        primary.run(f"KILL {read._connection.thread_id()}")
        with pytest.raises(SourceConnectionLost):
            read()
        assert not read().is_replica


def test_load_when_the_server_is_a_replica_then_tells_its_lag(primary: Server, tmp_path: Path) -> None:
    with replica_of(primary, tmp_path) as replica, closing(_reader(replica)) as read:
        wait_for("the replica to catch up", lambda: read().lag_seconds == 0)
        replica.run("STOP REPLICA" if primary.flavor == "mysql" else "STOP SLAVE")
        stopped = read()
        assert (stopped.is_replica, stopped.lag_seconds) == (True, None)


def test_log_retention_when_the_server_expires_its_log_then_is_that_long(primary: Server) -> None:
    with closing(primary.connect()) as connection:
        primary.run("SET GLOBAL binlog_expire_logs_seconds = 7200")
        assert read_log_retention(connection) == LogRetention(7200, "binlog_expire_logs_seconds is 7200")
        assert not read_log_retention(connection).is_unlimited
        primary.run("SET GLOBAL binlog_expire_logs_seconds = 0")
        assert read_log_retention(connection).is_unlimited
        primary.run(
            "CREATE TABLE mysql.rds_configuration (name VARCHAR(99), value VARCHAR(99))",
            "INSERT INTO mysql.rds_configuration VALUES ('binlog retention hours', NULL)",
        )
        try:
            assert read_log_retention(connection).seconds == 0
            primary.run("UPDATE mysql.rds_configuration SET value = '24'")
            assert read_log_retention(connection) == LogRetention(86_400, "binlog retention hours is 24")
        finally:
            primary.run("DROP TABLE mysql.rds_configuration")


def test_log_retention_when_the_size_of_the_log_is_limited_then_counts_its_growth(tmp_path: Path) -> None:
    with (
        server("mariadb", tmp_path, release="11.8", max_binlog_total_size="100M") as running,
        closing(running.connect()) as connection,
    ):
        running.run(
            "CREATE DATABASE d", "CREATE TABLE d.t (a LONGTEXT)", "INSERT INTO d.t VALUES (REPEAT('x', 1000000))"
        )
        found = read_log_retention(connection)
        assert found.by == f"max_binlog_total_size is {100 << 20}"
        assert found.seconds is not None
        assert 0 < found.seconds < 100 * 600


@pytest.mark.parametrize("ago", [0, 1])
def test_log_retention_when_the_server_has_just_started_then_counts_its_first_second(tmp_path: Path, ago: int) -> None:
    with (
        server("mariadb", tmp_path, release="11.8", max_binlog_total_size="100M") as running,
        closing(running.connect()) as connection,
    ):
        running.run("CREATE DATABASE d", "CREATE TABLE d.t (a TEXT)", "INSERT INTO d.t VALUES (REPEAT('x', 50000))")
        set_uptime(connection, ago)
        found = read_log_retention(connection)
        assert found.seconds is not None
        assert 1000 < found.seconds < 2100


def set_uptime(connection: Connection, seconds: int) -> None:
    """As this session sees it: the server counts up to the session's clock."""
    clock = int(time.time())
    with connection.cursor() as cursor:
        cursor.execute(f"SET timestamp = {clock}")
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Uptime'")
        cursor.execute(f"SET timestamp = {clock - int(cursor.fetchall()[0][1]) + seconds}")
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Uptime'")
        assert cursor.fetchall() == (("Uptime", str(seconds)),)


def test_log_retention_when_the_log_is_older_than_the_servers_start_then_only_what_it_wrote_since_counts(
    tmp_path: Path,
) -> None:
    with server("mariadb", tmp_path, release="11.8", max_binlog_total_size="100M") as running:
        running.run("CREATE DATABASE d", "CREATE TABLE d.t (a LONGTEXT)")
        running.run(*["INSERT INTO d.t VALUES (REPEAT('x', 8000000))"] * 5)
        running.stop()
        running.start()
        running.run("INSERT INTO d.t VALUES (REPEAT('x', 10000))")
        with closing(running.connect()) as connection:
            set_uptime(connection, 1)
            found = read_log_retention(connection)
            assert found.seconds is not None
            assert 5000 < found.seconds < 10_500


def test_warning_when_a_whole_dump_nears_or_outlasts_the_log_then_says_both_and_why() -> None:
    day = LogRetention(86_400, "binlog_expire_logs_seconds is 86400", lambda needed: f"SET LOG = {needed}")
    needed = needed_seconds(10**9, 10**12, DumpConfig(), Limits())
    assert needed == 50_000
    assert "14 h" in unchunked_warning(day, needed) or "13.9 h" in unchunked_warning(day, needed)
    slow = needed_seconds(
        10**9, 10**12, DumpConfig(max_bytes_per_second=50_000_000), Limits(bytes_per_second=5_000_000)
    )
    assert slow == 200_000
    assert unchunked_warning(day, slow).endswith(
        "(binlog_expire_logs_seconds is 86400), and for longer with: SET LOG = 200000"
    )
    assert unchunked_warning(day, 60) == ""
    assert "not known" in unchunked_warning(day, None)
    assert unchunked_warning(LogRetention(None), slow) == ""
    assert needed_seconds(None, 5, DumpConfig(), Limits()) is None
    assert lag_warning(day, 10_000) == lag_warning(LogRetention(None), 10**9) == ""
    assert "binlog_expire_logs_seconds is 86400" in lag_warning(day, 50_000)
