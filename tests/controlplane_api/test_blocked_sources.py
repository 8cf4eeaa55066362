"""A transaction that holds a source's rows delays that source alone, and its cuts come in order when it ends."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from menura.landing import LandedCut, LogEntry
from menura.stores.local import LocalStore
from sqlalchemy import text

from controlplane_api.database import Database
from controlplane_api.registry import cut_log
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.landing.cut_log import CutLog
from gateway.registry import Held, HeldBack, RegistryUnavailable, SourceKey
from tests.controlplane_api.facts import KEY, LANDING, cut, fence, file, started
from tests.gateway.harness import landed_gsns, running_gateway
from tests.gateway.scripted_agent import change_batch, commit_cut, cut_end, eventually, rows_batch, scripted_agent
from tests.gateway.sql_registry import want
from tests.stack import wait_for

OTHER = SourceKey("globex", "shop")
WAITING = text("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
#: rows of the source, as somebody may hold them
HELD_ROWS = ("source", "sync", "lease")


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.needs_setup)])
def kind(request: pytest.FixtureRequest) -> str:
    """SQLite has one writer."""
    return str(request.param)


@contextmanager
def held(database: Database, table: str) -> Iterator[None]:
    """Somebody holds the rows of KEY's tenant in this table."""
    own = {
        "source": "id = 1",
        "sync": "source_id = 1",
        "lease": "tenant = 'acme'",
    }[table]
    with database.engine.connect() as connection:
        assert connection.execute(text(f"SELECT 1 FROM {table} WHERE {own} FOR UPDATE")).all()
        yield
        connection.rollback()


class Log(CutLog):
    """Entries go in and are applied, as the committer does it."""

    def __init__(self, folder: Path, registry: SqlRegistry) -> None:
        super().__init__(LocalStore(folder), LANDING, "gw-1")
        self.folder = folder
        self.registry = registry

    def commit(self, *cuts: LandedCut) -> HeldBack:
        return self.apply(self.append(cuts, self.next_entry))

    def apply(self, entry: LogEntry) -> HeldBack:
        return self.registry.apply_entry(LANDING, entry)


@pytest.fixture
def log(registry: SqlRegistry, database: Database, tmp_path: Path) -> Log:
    for key in (KEY, OTHER):
        want(database, key, "orders")
    made = Log(tmp_path, registry)
    made.commit(*(cut(1, file("orders"), key=key, start=[started("orders", 0)]) for key in (KEY, OTHER)))
    return made


def cuts(registry: SqlRegistry) -> tuple[int, int]:
    return registry.committed(KEY).cut, registry.committed(OTHER).cut


@pytest.mark.parametrize("table", HELD_ROWS)
def test_entry_when_somebody_holds_a_row_of_a_source_then_the_others_move_and_it_follows_in_order(
    table: str, log: Log, registry: SqlRegistry, database: Database
) -> None:
    with held(database, table):
        first = log.commit(cut(2, file("orders")), cut(2, file("orders"), key=OTHER))
        assert first == HeldBack(blocked=frozenset({KEY}))
        assert log.commit(cut(3, file("orders")), cut(3, key=OTHER)).blocked == {KEY}
        assert log.apply(log.append([cut(4, key=OTHER)], 4, [fence(9)])).blocked == {KEY}
        assert cuts(registry) == (1, 4)
        assert registry.blocked(LANDING) == [Held(KEY, 2, 4)]
        assert (registry.committed(KEY).is_blocked, registry.committed(OTHER).is_blocked) == (True, False)
        assert registry.followed(LANDING, [KEY]).sources[KEY].is_held_back
        assert "waits for a lock" in registry.removable(LANDING).held_by
        with pytest.raises(RegistryUnavailable, match="waits for a lock"):
            registry.horizon(LANDING, "", 1, 1)
        assert not log.unblock(registry, Held(KEY, 2, 4))
        # as a gateway that was killed and starts: what waits is in the database
        assert CutLog(LocalStore(log.folder), LANDING, "gw-1").recover(registry) == 0
        assert cuts(registry) == (1, 4)
    (waiting,) = registry.blocked(LANDING)
    assert log.unblock(registry, waiting)
    assert log.unblock(registry, waiting)  # as another gateway
    assert cuts(registry) == (3, 4)
    assert registry.blocked(LANDING) == []
    assert log.commit(cut(4, epoch=9)) == HeldBack()
    assert cuts(registry) == (4, 4)
    with database.read() as connection:
        rows = connection.execute(text("SELECT rows FROM sync ORDER BY source_id")).scalars().all()
    assert rows == [3 * file("orders").rows, 2 * file("orders").rows]


def test_entry_when_a_gateway_is_killed_before_it_is_applied_then_the_next_one_lets_the_source_wait(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.append([cut(2, file("orders")), cut(2, file("orders"), key=OTHER)], 2)
    with held(database, "source"):
        again = CutLog(LocalStore(log.folder), LANDING, "gw-1")
        assert again.recover(registry) == 1
        assert cuts(registry) == (1, 2)
    (waiting,) = registry.blocked(LANDING)
    assert again.unblock(registry, waiting)
    assert cuts(registry) == (2, 2)


def test_entry_when_it_comes_while_what_waits_is_applied_then_it_is_applied_behind_that(
    log: Log, registry: SqlRegistry, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(database, "source"):
        log.commit(cut(2, file("orders")))
    entry = log.read(2)
    assert entry is not None
    monkeypatch.setattr(cut_log, "LOCK_SECONDS", 60.0)

    def is_waiting() -> bool:
        with database.read() as connection:
            return connection.execute(WAITING).first() is not None

    with ThreadPoolExecutor(1) as pool:
        with database.write() as connection:
            cut_log.apply_blocked(connection, LANDING, KEY, entry)
            later = pool.submit(log.commit, cut(3, file("orders")), cut(2, key=OTHER))
            wait_for("the entry to wait for what is applied", is_waiting)
        assert later.result() == HeldBack()
    assert cuts(registry) == (3, 2)
    assert registry.blocked(LANDING) == []


def test_stream_when_somebody_holds_its_source_then_it_ends_and_goes_on_later_and_others_are_acknowledged(
    database: Database, registry: SqlRegistry, tmp_path: Path
) -> None:
    for key in (KEY, OTHER):
        want(database, key, "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry) as address,
            scripted_agent(address, "shop") as agent,
            scripted_agent(address, "shop", tenant="globex") as neighbour,
        ):
            stream, run = await agent.open_binlog("shop")
            others, others_run = await neighbour.open_binlog("shop")
            await commit_cut(stream, run, 1, range(1, 11))
            await commit_cut(others, others_run, 1, range(1, 11))
            with held(database, "source"):
                await stream.send_batch(change_batch(run, 2, "orders", rows_batch(range(11, 21))))
                await stream.send(cut_end=cut_end(run, 2, 20))
                assert (await stream.expect_error()).code == "SOURCE_BLOCKED"
                await commit_cut(others, others_run, 2, range(11, 21))
                refused = await agent.open("MySQLBinlog", "shop")
                assert (await refused.expect_error()).code == "SOURCE_BLOCKED"
                await commit_cut(others, others_run, 3, range(21, 31))
            await eventually("the source to go on", lambda: not registry.committed(KEY).is_blocked)
            stream, run = await agent.open_binlog("shop")
            assert (run.next_cut, run.next_gsn) == (3, 21)
            await commit_cut(stream, run, 3, range(21, 31))

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == sorted([*range(1, 31)] * 2)
