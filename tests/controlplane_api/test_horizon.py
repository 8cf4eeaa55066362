"""Landed files and log entries that every lake has go behind a horizon, from which a database can be rebuilt."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from menura.horizon import HORIZONS_FOLDER, HorizonName, HorizonTable, decode_horizon, newest_horizon
from menura.landing import FORMAT, LandedCut, LandedEvent, LandedForeignKey, LogEntry, entry_path
from menura.stores.local import LocalStore
from menura.stores.store import MOST_BYTES
from sqlalchemy import update

from controlplane_api.database import Database, open_database
from controlplane_api.lakes import forget_lake
from controlplane_api.models import Landing
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.errors import LogUnreadable
from gateway.landing import retention
from gateway.landing.cut_log import LOOK_AGAIN_SECONDS, CutLog, EntryTaken
from gateway.landing.retention import OVERDUE_US, SILENT_US, Retention
from gateway.metrics import GatewayMetrics
from tests.controlplane_api.facts import KEY, T0, cut, event, fence, file, fresh_us, record_shop, started, stopped
from tests.controlplane_api.lake_facts import Sink, stop

HOUR_US = 3_600_000_000
KEEP_US = 24 * HOUR_US
KEYS = LandedEvent(
    "shop", "items", "FOREIGN_KEYS", 15, 2, T0, "at", "", removes_rows=False, most_rereads_per_hour=3,
    foreign_keys=(LandedForeignKey("fk", ("order_id",), ("shop", "orders"), ("id",), "cascade", "", (None,)),),
)  # fmt: skip


ON_SQLITE = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)


class Counting(LocalStore):
    """Counts reads; `leaves` after so many removals, as if killed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads = 0
        self.leaves: int | None = None

    def read(self, path: str, most_bytes: int = MOST_BYTES) -> bytes | None:
        self.reads += 1
        return super().read(path, most_bytes)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            if self.leaves is not None:
                self.leaves -= 1
                if self.leaves < 0:
                    raise OSError("killed")
            super().delete([path])


@dataclass
class Stage:
    """A landing with its database, a lake, and the retention of one gateway, whose clock the test sets."""

    folder: Path
    database: Database
    now_us: int = T0
    lake: Sink = field(default_factory=Sink)

    def __post_init__(self) -> None:
        self.registry = SqlRegistry(self.database)
        self.storage = Counting(self.folder)
        self.metrics = GatewayMetrics()
        self.log = self.opened(self.registry)
        self.retention = Retention(self.storage, self.log, self.registry, KEEP_US, self.metrics, lambda: self.now_us)

    def opened(self, registry: SqlRegistry, clock: Callable[[], float] | None = None) -> CutLog:
        given = {} if clock is None else {"clock": clock}
        log = CutLog(self.storage, str(self.folder), "gw-1", **given)
        log.recover(registry)
        return log

    def land(self, *cuts: LandedCut) -> LogEntry:
        """An entry, an hour after the one before; its files are there."""
        self.now_us += HOUR_US
        for each in (each for landed in cuts for each in landed.files):
            path = self.folder / each.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("rows")
        entry = self.log.append(cuts, self.now_us, [fence(1)] if self.log.next_entry == 1 else ())
        self.registry.apply_entry(self.log.landing, entry)
        return entry

    def applied(self, entry: int, **more: object) -> None:
        """What the lake says."""
        self.lake.tell(self.database, base=0, entry=entry, durable_entry=entry, **more)

    def entries(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.folder / "log").rglob("*.json"))

    def files(self) -> list[str]:
        return sorted(path.stem for path in (self.folder / "data").rglob("*.parquet"))


def named(table: str, number: int) -> LandedCut:
    """A cut whose file has its number as name."""
    landed = file(table)
    path = landed.path.replace("1.parquet", f"{number:03d}.parquet")
    return cut(number, type(landed)(**{**{name: getattr(landed, name) for name in landed.__slots__}, "path": path}))


@pytest.fixture
def stage(database: Database, tmp_path: Path) -> Stage:
    return Stage(tmp_path / "landing", database)


def fill(stage: Stage) -> None:
    """Six entries; the last of `orders` is a TRUNCATE behind its files, `notes` has stopped."""
    record_shop(stage.registry)
    stage.land(cut(1, start=[started("orders", 0), started("items", 0, "why"), started("notes", 0)]))
    stage.land(named("orders", 2))
    stage.land(cut(3, named("items", 3).files[0], events=[KEYS]))
    stage.land(cut(4, events=[event("orders", 40)], stop=[stopped("notes", 4)]))
    stage.land(named("items", 5))
    stage.land(named("items", 6))


def known(registry: SqlRegistry) -> object:
    return registry.committed(KEY), registry.last_cuts(KEY)


def test_landing_when_the_lakes_have_it_and_it_is_old_then_it_begins_behind_a_horizon(stage: Stage) -> None:
    fill(stage)
    stage.applied(5)
    stage.now_us = T0 + 4 * HOUR_US + KEEP_US + OVERDUE_US
    stage.retention.turn()
    assert stage.entries() == [5, 6]
    assert stage.files() == ["005", "006"]
    assert (stage.metrics.menura_retention_entries_total, stage.metrics.menura_retention_files_total) == (4, 2)
    (path,) = (stage.folder / HORIZONS_FOLDER).iterdir()
    horizon = decode_horizon(path.read_bytes())
    assert (horizon.entry, horizon.first_entry, horizon.landing) == (6, 5, stage.log.identity)
    tables = {table.table: table for table in horizon.sources[0].tables}
    assert [tables[name].last_cut for name in ("orders", "items", "notes")] == [2, 6, 0]
    assert (tables["notes"].stop_code, tables["items"].key_events) == ("EVENT_UNKNOWN", (KEYS,))
    reads = stage.storage.reads
    stage.retention.turn()
    assert stage.storage.reads - reads <= 2
    assert stage.opened(stage.registry).next_entry == 7


@ON_SQLITE
def test_horizon_when_a_dropped_table_was_made_again_before_its_sync_began_anew_then_it_has_the_table(
    stage: Stage,
) -> None:
    """The sync was stopped in between, so no event says that the table was created."""
    fill(stage)
    dropped = replace(event("orders", 70, "DROPPED"), commit_timestamp_us=T0 + 7_000_000)
    stage.land(cut(7, events=[dropped]))
    assert [table.is_dropped for table in horizon_tables(stage, "orders")] == [True]
    stage.land(cut(8, file("orders"), start=[started("orders", 8)]))
    assert [table.is_dropped for table in horizon_tables(stage, "orders")] == [False]


def horizon_tables(stage: Stage, name: str) -> list[HorizonTable]:
    found = stage.registry.horizon(stage.log.landing, stage.log.identity, 5, 1)
    return [table for table in found.sources[0].tables if table.table == name]


def test_database_when_it_is_lost_or_an_older_copy_then_it_is_rebuilt_from_the_horizon_and_the_log(
    stage: Stage, fresh_url: Callable[[], str]
) -> None:
    fill(stage)
    stage.applied(5)
    with closing(open_database(fresh_url())) as lost, closing(open_database(fresh_url())) as older:
        check_rebuilt(stage, SqlRegistry(lost), SqlRegistry(older))


def check_rebuilt(stage: Stage, *copies: SqlRegistry) -> None:
    for number in (1, 2):
        entry = stage.log.read(number)
        assert entry is not None
        copies[1].claim_landing(stage.log.landing, stage.log.identity)
        copies[1].apply_entry(stage.log.landing, entry)
    stage.now_us = T0 + 4 * HOUR_US + KEEP_US + OVERDUE_US
    stage.retention.turn()
    stage.land(named("items", 7))
    for copy in copies:
        log = stage.opened(copy)
        assert (log.next_entry, copy.applied_entry(log.landing)) == (8, 7)
        assert known(copy) == known(stage.registry)
        again = copy.horizon(log.landing, log.identity, 5, 1)
        before = stage.registry.horizon(log.landing, log.identity, 5, 1)
        facts = [(source.rows, source.bytes, source.logged_epoch, source.last_gsn) for source in again.sources]
        assert facts == [(source.rows, source.bytes, source.logged_epoch, source.last_gsn) for source in before.sources]
        pairs = [sorted(each.sources[0].tables, key=lambda table: table.table) for each in (again, before)]
        for table, former in zip(*pairs, strict=True):
            assert (table.table, table.rows, table.last_cut, table.key_events, table.stop_code) == (
                former.table, former.rows, former.last_cut, former.key_events, former.stop_code
            )  # fmt: skip
            assert table.earlier_rows_missing == former.earlier_rows_missing


@ON_SQLITE
def test_horizon_when_it_can_not_be_read_then_the_gateway_refuses_a_database_that_needs_it(
    stage: Stage, fresh_url: Callable[[], str]
) -> None:
    fill(stage)
    stage.applied(5)
    stage.now_us = T0 + 4 * HOUR_US + KEEP_US + OVERDUE_US
    stage.retention.turn()
    (path,) = (stage.folder / HORIZONS_FOLDER).iterdir()
    path.write_text(f'{{"format": {FORMAT + 1}}}')
    with closing(open_database(fresh_url())) as lost, pytest.raises(LogUnreadable, match="begins at entry 5"):
        stage.opened(SqlRegistry(lost))
    assert stage.opened(stage.registry).next_entry == 7


@ON_SQLITE
def test_retention_when_it_is_killed_again_and_again_behind_its_horizon_then_a_later_turn_removes_the_rest(
    stage: Stage,
) -> None:
    fill(stage)
    stage.applied(5)
    stage.now_us = T0 + 4 * HOUR_US + KEEP_US + OVERDUE_US
    for removals in (0, 1, 2, 2):
        stage.storage.leaves = removals
        with pytest.raises(OSError, match="killed"):
            stage.retention.turn()
        assert newest_horizon(path.name for path in (stage.folder / HORIZONS_FOLDER).iterdir()).first_entry == 5
    assert 1 < len(stage.entries()) < 6
    stage.storage.leaves = None
    stage.retention.turn()
    assert (stage.entries(), stage.files()) == ([5, 6], ["005", "006"])


@ON_SQLITE
def test_retention_when_little_can_go_then_it_waits_until_much_can_or_it_is_an_hour_late(stage: Stage) -> None:
    fill(stage)
    stage.applied(6)
    stage.now_us = T0 + 2 * HOUR_US + KEEP_US - 1  # the first one is less than an hour over its time
    reads = stage.storage.reads
    stage.retention.turn()
    assert (stage.entries(), stage.storage.reads - reads) == ([1, 2, 3, 4, 5, 6], 1)
    stage.now_us += 1
    stage.retention.turn()
    assert stage.entries() == [3, 4, 5, 6]


@ON_SQLITE
def test_retention_when_many_entries_can_go_then_it_does_not_wait_and_their_folder_goes_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LEAST_ENTRIES", 20)
    first = HorizonName(985, 985)  # what was there before; it is not read again
    stage.storage.put_if_absent(first.path, b"")
    stage.log.skip_to(first.first_entry)
    with stage.database.write() as connection:
        connection.execute(update(Landing).values(applied_entry=first.entry - 1))
    for _ in range(21):
        entry = stage.log.append([], T0, [fence(1)])
        stage.registry.apply_entry(stage.log.landing, entry)
    stage.applied(1005)
    stage.now_us = T0 + KEEP_US
    stage.retention.turn()
    assert stage.entries() == [1005]
    assert [path.name.lstrip("0") for path in (stage.folder / "log").iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("way", "first", "why"),
    [
        ("no lake", 1, ""),
        ("not all told", 1, "has not said yet"),
        ("of a former version", 1, "has not said yet"),
        ("behind", 3, "lake other needs them"),
        ("stopped", 3, "shop/shop.orders has stopped"),
        ("goes on with a dump", 5, "lake main needs them"),
        ("in quarantine", 1, "menura sources quarantine shop"),
    ],
)
def test_landing_when_something_needs_it_then_it_stays_and_the_gateway_says_why(
    stage: Stage, caplog: pytest.LogCaptureFixture, way: str, first: int, why: str
) -> None:
    fill(stage)
    if way == "not all told":
        stage.applied(5, more=True)
    elif way == "of a former version":
        stage.lake.tell(stage.database, base=0, entry=5)
    elif way == "behind":
        stage.applied(5)
        Sink("other").tell(stage.database, base=0, entry=4, durable_entry=3)
    elif way == "stopped":
        stage.applied(5, stopped=(stop("orders", 4), stop("items", 5)))
    elif way == "goes on with a dump":
        stage.applied(5, stopped=(stop("orders", 2, "ENTRIES_GONE"),))
    elif way == "in quarantine":
        stage.applied(5)
        poison = cut(7, events=[event("orders", 2**63)])
        stage.registry.apply_entry(stage.log.landing, LogEntry(7, "gw-1", T0, (poison,)))
    stage.now_us = T0 + 6 * HOUR_US + KEEP_US + OVERDUE_US
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            stage.retention.turn()
    assert stage.entries() == list(range(first, 7))
    said = [record.message for record in caplog.records if record.name == "gateway.landing.retention"]
    assert [why in message for message in said] == ([True] if why else [])
    if way == "stopped":
        assert stage.metrics.menura_retention_held_turns_total > 0


@ON_SQLITE
def test_landing_when_a_lake_is_silent_for_a_week_then_it_waits_until_somebody_forgets_the_lake(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    fill(stage)
    stage.applied(5)
    Sink("other").tell(stage.database, base=0, entry=1, durable_entry=1)
    stage.now_us = fresh_us() + SILENT_US + HOUR_US
    with caplog.at_level(logging.WARNING):
        stage.retention.turn()
    assert stage.metrics.menura_retention_silent_lake_turns_total == 1
    assert "menura lakes --forget other" in caplog.text
    assert stage.entries() == [1, 2, 3, 4, 5, 6]
    with stage.database.write() as connection:
        forget_lake(connection, "other")
    stage.retention.turn()
    assert stage.entries() == [5, 6]


@ON_SQLITE
def test_gateway_when_it_slept_while_its_next_entry_came_and_was_removed_then_its_put_does_not_count(
    stage: Stage,
) -> None:
    record_shop(stage.registry)
    stage.land(cut(1, start=[started("orders", 0)]))
    clock = [0.0]
    asleep = stage.opened(stage.registry, lambda: clock[0])
    for number in (2, 3, 4):
        stage.land(named("orders", number))
    stage.applied(4)
    stage.now_us = T0 + 4 * HOUR_US + KEEP_US + OVERDUE_US
    stage.retention.turn()
    assert stage.entries() == [4]
    clock[0] = LOOK_AGAIN_SECONDS
    with pytest.raises(EntryTaken, match="removed"):
        asleep.append([named("orders", 2)], stage.now_us)
    assert stage.entries() == [4]
    asleep.skip_to(5)
    assert asleep.append([named("orders", 5)], stage.now_us).entry == 5
    assert (stage.folder / entry_path(5)).exists()


@ON_SQLITE
def test_retention_when_it_runs_beside_a_gateway_then_it_ends_with_it(stage: Stage) -> None:
    fill(stage)
    stage.applied(5)
    stage.now_us = T0 + 4 * HOUR_US + KEEP_US + OVERDUE_US

    async def scenario() -> None:
        task = asyncio.create_task(stage.retention.run(0.01))
        async with asyncio.timeout(300):
            while stage.entries() != [5, 6]:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
