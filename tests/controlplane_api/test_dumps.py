"""Dumps as the gateway, the cut log and commands move them; on SQLite and PostgreSQL."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from menura.errors import MenuraError
from menura.landing import LandedChunk, LandedEvent
from sqlalchemy import select

from controlplane_api import dumps
from controlplane_api.database import Database, open_database
from controlplane_api.dump_lives import DEFAULT_OPTIONS, DumpOptions
from controlplane_api.models import Dump, DumpRange, DumpStatus, Source, SourceTable, Sync
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import StartKind
from controlplane_api.syncs import Outcome, Start, start_tables, stop_tables
from gateway.registry import DumpDesired, DumpPlanned, DumpSeen, KeyRange, Problem, SourceKey, TableDesired
from tests.controlplane_api import facts
from tests.controlplane_api.facts import KEY, LANDING, T0, at, chunk, cut, dump_event, entry, file, started, stopped

RANGES = (KeyRange(0, "", '["500"]'), KeyRange(1, '["500"]', ""))
PLAN = DumpPlanned(("id",), RANGES, 1_000, 50_000, None, None, "")
WHOLE = DumpPlanned((), (), 1_000, 50_000, 3_600, 60, "")
BROKEN = Problem("DUMP_TABLE_RENAMED", "The table was renamed.", terminal=True, at_us=T0)


def command(database: Database, do: Callable, *arguments: object, **options: object):
    with database.write() as connection:
        source_id = connection.execute(select(Source.id).order_by(Source.id).limit(1)).scalar_one()
        return do(connection, source_id, *arguments, **options)


def begin(database: Database, *tables: str, kind: StartKind = StartKind.OLDEST) -> list[Outcome]:
    return command(database, start_tables, [("shop", table) for table in tables], Start(kind))


def dump(database: Database, table: str, options: DumpOptions = DEFAULT_OPTIONS) -> str:
    (outcome,) = command(database, dumps.start_dumps, [("shop", table)], options)
    if outcome.refused is not None:
        raise outcome.refused
    return outcome.dump


def row_of(database: Database, uuid: str) -> dict:
    with database.read() as connection:
        return dict(connection.execute(select(Dump).where(Dump.uuid == uuid)).mappings().one())


def missing(database: Database, table: str = "orders") -> str:
    with database.read() as connection:
        statement = select(Sync.earlier_rows_missing).join(SourceTable).where(SourceTable.name == table)
        return connection.execute(statement).scalar_one()


class Log:
    """Cuts of the source, each an entry of its own."""

    def __init__(self, registry: SqlRegistry) -> None:
        self.registry = registry
        self.entries = []

    def cut(self, *parts: LandedChunk | LandedEvent, table: str = "orders", **more: object) -> None:
        chunks = [part for part in parts if isinstance(part, LandedChunk)]
        files = [file(table, each.rows) for each in chunks if each.rows]
        events = [part for part in parts if isinstance(part, LandedEvent)]
        number = len(self.entries) + 1
        self.entries.append(entry(number, cut(number, *files, chunks=chunks, events=events, **more)))
        self.registry.apply_entry(LANDING, self.entries[-1])


@pytest.fixture
def log(registry: SqlRegistry) -> Log:
    facts.record_shop(registry)
    return Log(registry)


@pytest.fixture
def streaming(log: Log, database: Database) -> Log:
    """shop.orders streams; rows before its first position are missing."""
    begin(database, "orders")
    log.cut(start=[started("orders", 0, "purged")])
    return log


def planned(log: Log, database: Database, plan: DumpPlanned = PLAN) -> str:
    """A dump of shop.orders that has begun."""
    uuid = dump(database, "orders")
    log.registry.record_dump_plan(KEY, uuid, plan, T0)
    log.cut(dump_event("orders", 20, "DUMP_STARTED", uuid))
    return uuid


def test_dumps_when_asked_for_then_each_is_desired_with_its_options(streaming: Log, database: Database):
    registry = streaming.registry
    assert registry.dumps(KEY).dumps == ()
    before = registry.dump_generations([KEY])[KEY]
    uuid = dump(database, "orders", DumpOptions(7, 2, 1_000, 1 << 20))
    desired = registry.dumps(KEY)
    assert desired.generation == registry.dump_generations([KEY])[KEY] == before + 1
    assert desired.dumps == (DumpDesired(uuid, "shop", "orders", 7, False, 2, 1_000, 1 << 20, 0, None, (), 1),)
    assert registry.generations([KEY]) == {KEY: 1}  # its stream goes on undisturbed
    assert registry.dumps(SourceKey("acme", "unknown")).dumps == ()
    assert registry.dump_generations([]) == {}


def test_plan_when_recorded_then_the_first_one_counts(streaming: Log, database: Database):
    registry, uuid = streaming.registry, dump(database, "orders")
    generation = registry.dumps(KEY).generation
    for plan in (PLAN, DumpPlanned(("note",), RANGES[:1], None, None, None, None, "another")):
        registry.record_dump_plan(KEY, uuid, plan, T0)
    (desired,) = registry.dumps(KEY).dumps
    assert (desired.plan, desired.remaining) == (PLAN, RANGES)
    assert registry.dumps(KEY).generation == generation + 1
    registry.record_dump_plan(KEY, "unknown", PLAN, T0)
    registry.record_dump_plan(SourceKey("globex", "shop"), uuid, PLAN, T0)


def test_ledger_when_chunks_are_committed_then_what_is_left_shrinks(streaming: Log, database: Database):
    registry, uuid = streaming.registry, planned(streaming, database)
    generation = registry.dumps(KEY).generation
    streaming.cut(chunk("orders", uuid, 1, "", '["200"]', rows=200))
    streaming.cut(chunk("orders", uuid, 3, '["500"]', "", last=True, of_range=1, rows=7))
    (desired,) = registry.dumps(KEY).dumps
    assert desired.remaining == (KeyRange(0, '["200"]', '["500"]'),)
    assert (desired.started_gsn, desired.next_chunk) == (20, 4)
    streaming.cut(chunk("orders", uuid, 2, '["200"]', '["500"]', last=True, rows=0))
    assert registry.dumps(KEY).dumps[0].remaining == ()
    assert registry.dumps(KEY).generation == generation  # the agent knows what it has read
    found = row_of(database, uuid)
    assert (found["rows"], found["bytes"], found["chunks"]) == (207, 207 * 50, 3)
    assert missing(database) == "purged"
    streaming.cut(dump_event("orders", 90, "DUMPED", uuid, before=20))
    assert registry.dumps(KEY).dumps == ()
    assert registry.dumps(KEY).generation == generation + 1
    assert (row_of(database, uuid)["state"], missing(database)) == ("done", "")


def test_entry_when_applied_again_then_no_chunk_counts_twice(streaming: Log, database: Database):
    uuid = planned(streaming, database)
    streaming.cut(chunk("orders", uuid, 1, "", '["200"]'))
    for _ in range(3):
        streaming.registry.apply_entry(LANDING, streaming.entries[-1])
    assert (row_of(database, uuid)["rows"], row_of(database, uuid)["chunks"]) == (10, 1)


@pytest.mark.parametrize(
    "stray",
    [
        chunk("orders", "", 2, '["300"]', '["400"]'),  # a gap
        chunk("orders", "", 2, '["200"]', '["200"]'),  # of nothing
        chunk("orders", "", 2, '["500"]', "", last=True, of_range=9),
        chunk("items", "", 2, '["200"]', '["500"]', last=True),  # another table's
    ],
)
def test_chunk_when_it_begins_where_its_range_has_not_come_then_moves_nothing(
    streaming: Log, database: Database, stray: LandedChunk, caplog: pytest.LogCaptureFixture
):
    uuid = planned(streaming, database)
    streaming.cut(chunk("orders", uuid, 1, "", '["200"]'))
    left = streaming.registry.dumps(KEY).dumps[0].remaining
    streaming.cut(LandedChunk(**{**_fields(stray), "dump": uuid}), table=stray.table)
    (desired,) = streaming.registry.dumps(KEY).dumps
    assert (desired.remaining, desired.next_chunk) == (left, 3)
    assert row_of(database, uuid)["rows"] == 10
    assert "chunk not counted" in caplog.text
    assert "200" not in caplog.messages[-1].partition("because")[2]  # never a key's value


def test_chunk_when_read_again_after_a_break_then_its_range_goes_on_from_its_end_and_no_row_counts_twice(
    streaming: Log, database: Database
):
    uuid = planned(streaming, database)
    streaming.cut(chunk("orders", uuid, 1, "", '["200"]'))
    # The agent is told of the ledger here; then an entry whose outcome was not known turns out to be written.
    streaming.cut(chunk("orders", uuid, 2, '["200"]', '["300"]'), chunk("orders", uuid, 3, '["300"]', '["400"]'))
    assert row_of(database, uuid)["rows"] == 30
    streaming.cut(
        chunk("orders", uuid, 4, '["200"]', '["290"]', rows=9), chunk("orders", uuid, 5, '["290"]', '["390"]')
    )
    (desired,) = streaming.registry.dumps(KEY).dumps
    assert desired.remaining[0] == KeyRange(0, '["390"]', '["500"]')
    assert [row_of(database, uuid)[name] for name in ("rows", "bytes", "chunks")] == [29, 29 * 50, 3]
    streaming.cut(chunk("orders", uuid, 6, '["390"]', '["500"]', last=True))
    streaming.cut(chunk("orders", uuid, 7, '["200"]', '["290"]'))  # what is done stays done
    assert streaming.registry.dumps(KEY).dumps[0].remaining == RANGES[1:]
    assert row_of(database, uuid)["rows"] == 39


def test_chunk_when_a_range_is_read_from_its_beginning_again_then_all_of_it_counts_anew(
    streaming: Log, database: Database
):
    uuid = planned(streaming, database)
    for number in range(3):
        streaming.cut(chunk("orders", uuid, number + 1, f'["{number}"]' if number else "", f'["{number + 1}"]'))
    streaming.cut(chunk("orders", uuid, 4, '["1"]', '["2"]'))  # two entries ago: told of by nobody
    assert (streaming.registry.dumps(KEY).dumps[0].remaining[0].lower, row_of(database, uuid)["rows"]) == ('["3"]', 30)
    streaming.cut(chunk("orders", uuid, 5, "", '["1"]', rows=7))
    assert (streaming.registry.dumps(KEY).dumps[0].remaining[0].lower, row_of(database, uuid)["rows"]) == ('["1"]', 7)


def test_ledger_when_a_dump_has_many_chunks_then_it_does_not_grow(streaming: Log, database: Database):
    uuid = planned(streaming, database)
    places = ["", *(f'["{number}"]' for number in range(300))]
    for first in range(0, 300, 100):
        numbers = range(first, first + 100)
        streaming.cut(*(chunk("orders", uuid, n + 1, places[n], places[n + 1]) for n in numbers))
    with database.read() as connection:
        ranges = connection.execute(select(DumpRange).order_by(DumpRange.number)).all()
    assert [(each.reached, each.rows, each.bytes, each.chunks) for each in ranges] == [
        ('["299"]', 3_000, 150_000, 300), ('["500"]', 0, 0, 0),
    ]  # fmt: skip
    assert ranges[0].former == {"reached": '["199"]', "rows": 2_000, "bytes": 100_000, "chunks": 200}
    assert sum(map(len, (ranges[0].reached, *map(str, ranges[0].former.values())))) < 100


def _fields(of: LandedChunk) -> dict:
    return {name: getattr(of, name) for name in LandedChunk.__slots__}


def test_chunk_when_its_dump_is_cancelled_then_moves_nothing(streaming: Log, database: Database):
    uuid = planned(streaming, database)
    assert command(database, dumps.cancel, uuid)
    streaming.cut(chunk("orders", uuid, 1, "", '["200"]'))
    assert (row_of(database, uuid)["rows"], row_of(database, uuid)["state"]) == (0, "cancelled")
    assert missing(database) == "the dump that should have brought them was cancelled"
    # All of it was in the log already when the command came.
    streaming.cut(dump_event("orders", 90, "DUMPED", uuid, before=20))
    assert (row_of(database, uuid)["state"], missing(database)) == ("done", "")


def test_log_when_replayed_into_an_empty_database_then_gives_the_same_counts_and_ends(
    streaming: Log, database: Database, fresh_url: Callable[[], str]
):
    done = planned(streaming, database)
    streaming.cut(chunk("orders", done, 1, "", '["500"]', last=True))
    streaming.cut(chunk("orders", done, 2, "", '["500"]', last=True))  # twice
    streaming.cut(chunk("orders", done, 3, '["500"]', "", last=True, of_range=1))
    streaming.cut(dump_event("orders", 90, "DUMPED", done, before=20))
    begin(database, "items", kind=StartKind.NOW)
    streaming.cut(start=[started("items", 6, "rows before")], generation=2)
    (outcome,) = command(database, dumps.start_dumps, [("shop", "items")], DEFAULT_OPTIONS)
    streaming.cut(dump_event("items", 91, "DUMP_STARTED", outcome.dump))
    rebuilt = open_database(fresh_url())
    for each in streaming.entries:
        SqlRegistry(rebuilt).apply_entry(LANDING, each)
    same = ("state", "rows", "bytes", "chunks", "next_chunk", "started_gsn")
    ours, theirs = row_of(database, done), row_of(rebuilt, done)
    assert [theirs[name] for name in same] == [ours[name] for name in same] == ["done", 20, 1_000, 2, 4, 20]
    assert missing(rebuilt) == ""
    assert row_of(rebuilt, outcome.dump)["state"] == "lost"
    assert missing(rebuilt, "items").startswith("the dump that should have brought them was lost: The database")
    assert SqlRegistry(rebuilt).dumps(KEY).dumps == ()
    rebuilt.close()


def test_sync_when_it_starts_by_a_dump_then_lacks_earlier_rows_until_it_is_done(log: Log, database: Database):
    (outcome,) = begin(database, "orders", kind=StartKind.DUMP)
    uuid = outcome.dump
    assert log.registry.desired(KEY).tables == (TableDesired("shop", "orders", start_dump=uuid),)
    assert [each.dump for each in log.registry.dumps(KEY).dumps] == [uuid]
    assert begin(database, "orders", kind=StartKind.DUMP)[0].changed is False
    log.cut(start=[started("orders", 4)])
    assert log.registry.desired(KEY).tables == (TableDesired("shop", "orders"),)
    assert missing(database) == "the dump that brings them is not done"
    log.registry.record_dump_plan(KEY, uuid, DumpPlanned(("id",), RANGES[:1], None, None, None, None, ""), T0)
    log.cut(dump_event("orders", 20, "DUMP_STARTED", uuid))
    log.cut(chunk("orders", uuid, 1, "", '["500"]', last=True))
    log.cut(dump_event("orders", 30, "DUMPED", uuid, before=20))
    assert (missing(database), row_of(database, uuid)["state"]) == ("", "done")


def test_sync_when_its_dump_is_one_snapshot_then_begins_with_all_of_it(log: Log, database: Database):
    uuid = begin(database, "orders", kind=StartKind.DUMP)[0].dump
    log.registry.record_dump_plan(KEY, uuid, WHOLE, T0)
    (desired,) = log.registry.dumps(KEY).dumps
    assert (desired.plan, desired.remaining) == (None, ())
    whole = chunk("orders", uuid, 1, "", "", last=True, rows=300)
    log.cut(whole, dump_event("orders", 20, "DUMPED", uuid), start=[started("orders", 4)])
    assert (missing(database), row_of(database, uuid)["state"]) == ("", "done")
    assert row_of(database, uuid)["rows"] == 300
    assert log.registry.desired(KEY).tables == (TableDesired("shop", "orders"),)


def test_dump_when_it_fails_before_the_sync_began_then_it_begins_without_and_says_why(log: Log, database: Database):
    uuid = begin(database, "orders", kind=StartKind.DUMP)[0].dump
    log.registry.record_dump_failed(KEY, uuid, BROKEN, T0)
    assert log.registry.desired(KEY).tables == (TableDesired("shop", "orders", start_now=True),)
    assert log.registry.generations([KEY]) == {KEY: 2}
    log.cut(start=[started("orders", 4, "it begins at the log's end")], generation=2)
    assert missing(database) == "the dump that should have brought them failed: The table was renamed."
    assert row_of(database, uuid)["problem"]["code"] == "DUMP_TABLE_RENAMED"


def test_dump_when_it_fails_beside_a_stream_then_the_stream_goes_on_and_says_why(streaming: Log, database: Database):
    uuid = planned(streaming, database)
    streaming.registry.record_dump_failed(KEY, uuid, BROKEN, T0)
    streaming.registry.record_dump_failed(KEY, uuid, Problem("LATE", "Late.", True, T0), T0)
    assert missing(database).endswith("failed: The table was renamed.")
    assert streaming.registry.generations([KEY]) == {KEY: 1}
    assert streaming.registry.desired(KEY).tables == (TableDesired("shop", "orders"),)
    assert streaming.registry.dumps(KEY).dumps == ()


def test_dump_when_it_fails_on_a_table_that_lacks_nothing_then_it_still_lacks_nothing(log: Log, database: Database):
    begin(database, "orders")
    log.cut(start=[started("orders", 0)])
    log.registry.record_dump_failed(KEY, dump(database, "orders"), BROKEN, T0)
    assert missing(database) == ""


@pytest.mark.parametrize("forced", [False, True])
def test_plan_when_the_log_is_not_kept_long_enough_then_refused_unless_forced(
    streaming: Log, database: Database, forced: bool
):
    uuid = dump(database, "orders", DumpOptions(forced=forced))
    streaming.registry.record_dump_plan(KEY, uuid, DumpPlanned((), (), 10, 10, 60, 3_600, "slow"), T0)
    found = row_of(database, uuid)
    assert (found["state"], found["runway_seconds"], found["needed_seconds"]) == (
        "running" if forced else "refused", 60, 3_600,
    )  # fmt: skip
    assert (found["problem"] is None) is forced
    assert len(streaming.registry.dumps(KEY).dumps) == forced
    assert missing(database).startswith("purged" if forced else "the dump that should have brought them was refused")


@pytest.mark.parametrize(
    "plan",
    [
        DumpPlanned(("id",), (), None, None, None, None, ""),
        DumpPlanned((), RANGES, None, None, None, None, ""),
        DumpPlanned(("id",), (RANGES[0], RANGES[0]), None, None, None, None, ""),
        DumpPlanned(("id",), (KeyRange(0, "\x00", ""),), None, None, None, None, ""),
    ],
)
def test_plan_when_the_ledger_cannot_follow_it_then_the_dump_fails(
    streaming: Log, database: Database, plan: DumpPlanned
):
    uuid = dump(database, "orders")
    streaming.registry.record_dump_plan(KEY, uuid, plan, T0)
    assert row_of(database, uuid)["problem"]["code"] == "DUMP_PLAN_INVALID"
    assert command(database, dumps.resume, uuid)  # and is planned again
    streaming.registry.record_dump_plan(KEY, uuid, PLAN, T0)
    assert streaming.registry.dumps(KEY).dumps[0].plan == PLAN


def test_sync_when_stopped_or_failed_then_its_dump_is_cancelled(streaming: Log, database: Database):
    first = planned(streaming, database)
    command(database, stop_tables, [("shop", "orders")])
    assert (row_of(database, first)["state"], streaming.registry.dumps(KEY).dumps) == ("cancelled", ())
    assert missing(database).endswith("was cancelled: its table's sync was stopped")
    begin(database, "orders", kind=StartKind.RESUME)
    second = dump(database, "orders")
    generation = streaming.registry.dumps(KEY).generation
    streaming.cut(start=[started("orders", 2)], stop=[stopped("orders", 3)], generation=3)
    assert row_of(database, second)["problem"]["message"].startswith("its table's sync failed: An event")
    assert streaming.registry.dumps(KEY).generation == generation + 1
    assert "sync failed" in missing(database)
    # The next life is not theirs.
    with pytest.raises(MenuraError, match="DUMP_OVER"):
        command(database, dumps.resume, first)


def test_dump_when_the_table_has_no_unique_key_then_its_sync_begins_anew(registry: SqlRegistry, database: Database):
    registry.record_agent(facts.agent_seen())
    tables = [facts.table_seen("orders"), facts.table_seen("heap", keyed=False)]
    registry.record_cartography(KEY, "mysql", "9.7.0", facts.UUID, tables, T0)
    begin(database, "orders", "heap")
    log = Log(registry)
    log.cut(start=[started("orders", 0), started("heap", 0, "purged")])
    outcomes = command(database, dumps.start_dumps, None, DEFAULT_OPTIONS)
    assert [(each.table, each.changed) for each in outcomes] == [("heap", True), ("orders", True)]
    assert "begins anew" in outcomes[0].notice and not outcomes[1].notice
    assert registry.desired(KEY).tables == (
        TableDesired("shop", "heap", start_dump=outcomes[0].dump),
        TableDesired("shop", "orders"),
    )
    with pytest.raises(MenuraError, match="DUMP_NOT_RESUMABLE"):
        command(database, dumps.pause, outcomes[0].dump)
    registry.record_dump_failed(KEY, outcomes[0].dump, BROKEN, T0)
    with pytest.raises(MenuraError, match="DUMP_NOT_RESUMABLE"):
        command(database, dumps.resume, outcomes[0].dump)


def test_plan_when_a_table_that_streams_has_no_usable_key_then_its_sync_begins_anew(streaming: Log, database: Database):
    uuid = dump(database, "orders")
    registry = streaming.registry
    assert registry.desired(KEY).tables == (TableDesired("shop", "orders"),)
    registry.record_dump_plan(KEY, uuid, WHOLE, T0)
    assert registry.desired(KEY).tables == (TableDesired("shop", "orders", start_dump=uuid),)
    assert [each.dump for each in registry.dumps(KEY).dumps] == [uuid]
    generation = registry.generations([KEY])[KEY]
    whole = chunk("orders", uuid, 1, "", "", last=True)
    streaming.cut(whole, dump_event("orders", 20, "DUMPED", uuid), start=[started("orders", 4)], generation=generation)
    assert (missing(database), row_of(database, uuid)["state"]) == ("", "done")


def test_dump_when_refused_then_says_what_to_do(streaming: Log, database: Database):
    tables = [facts.table_seen("orders"), facts.table_seen("items"), facts.table_seen("secrets", denied=True)]
    streaming.registry.record_cartography(KEY, "mysql", "9.7.0", facts.UUID, tables, T0)
    uuid = dump(database, "orders")
    named = [("shop", name) for name in ("orders", "items", "secrets", "notes", "nowhere")]
    refused = [outcome.refused for outcome in command(database, dumps.start_dumps, named, DEFAULT_OPTIONS)]
    codes = ["DUMP_RUNNING", "SYNC_NOT_RUNNING", "TABLE_DENIED", "TABLE_UNKNOWN", "TABLE_UNKNOWN"]
    assert [each.code for each in refused] == codes
    assert all(each.remedy for each in refused)
    assert uuid in refused[0].found
    with pytest.raises(MenuraError, match="DUMP_UNKNOWN"):
        command(database, dumps.cancel, "no such dump")


def test_dump_when_it_failed_then_resume_goes_on_at_its_chunk(streaming: Log, database: Database):
    uuid = planned(streaming, database)
    streaming.cut(chunk("orders", uuid, 1, "", '["200"]'))
    streaming.registry.record_dump_failed(KEY, uuid, BROKEN, T0)
    other = dump(database, "orders")
    with pytest.raises(MenuraError, match="DUMP_RUNNING"):
        command(database, dumps.resume, uuid)
    command(database, dumps.cancel, other)
    assert command(database, dumps.resume, uuid)
    (desired,) = streaming.registry.dumps(KEY).dumps
    assert desired.remaining == (KeyRange(0, '["200"]', '["500"]'), RANGES[1])
    assert (desired.plan, desired.started_gsn, desired.next_chunk) == (PLAN, 20, 2)
    assert missing(database) == "the dump that brings them is not done"
    streaming.registry.record_dump_failed(KEY, uuid, BROKEN, T0)
    command(database, stop_tables, [("shop", "orders")])
    begin(database, "orders", kind=StartKind.NOW)
    with pytest.raises(MenuraError, match="stopped or started since"):
        command(database, dumps.resume, uuid)


def test_commands_when_given_then_the_agent_is_told_once(streaming: Log, database: Database):
    uuid = dump(database, "orders")
    registry = streaming.registry

    def told(do: Callable, *arguments: object, **options: object) -> tuple[bool, int, DumpDesired]:
        before = registry.dumps(KEY).generation
        changed = command(database, do, uuid, *arguments, **options)
        desired = registry.dumps(KEY)
        return changed, desired.generation - before, desired.dumps[0]

    limits = {"workers": 2, "rows_per_second": 5, "bytes_per_second": 0}
    for changed in (True, False):
        for do, options in ((dumps.pause, {}), (dumps.set_priority, {"priority": -3}), (dumps.set_limits, limits)):
            assert told(do, **options)[:2] == (changed, int(changed))
    desired = registry.dumps(KEY).dumps[0]
    assert (desired.paused, desired.priority, desired.workers, desired.rows_per_second) == (True, -3, 2, 5)
    assert told(dumps.resume)[2].paused is False
    assert command(database, dumps.cancel, uuid)
    assert not command(database, dumps.cancel, uuid)
    with pytest.raises(MenuraError, match="DUMP_OVER"):
        command(database, dumps.set_priority, uuid, 1)


def test_status_when_the_agent_says_it_then_kept_for_dumps_that_run(streaming: Log, database: Database):
    uuid = dump(database, "orders")
    seen = DumpSeen(uuid, "READING", "", 2**64 - 1, 5, 9)
    for key, number in ((KEY, 1), (SourceKey("globex", "shop"), 2)):
        streaming.registry.record_dump_status(key, [seen, DumpSeen("unknown", "READING", "", 1, 1, 1)], number)
    streaming.registry.record_dump_status(KEY, [DumpSeen(uuid, "WAITING", "12 threads\x00", 0, 0, 0)], 3)
    with database.read() as connection:
        (row,) = connection.execute(select(DumpStatus)).all()
    assert (row.at_us, row.state, row.reason) == (3, "WAITING", "12 threads\ufffd")
    command(database, dumps.cancel, uuid)
    streaming.registry.record_dump_status(KEY, [seen], 4)
    with database.read() as connection:
        assert connection.execute(select(DumpStatus.at_us)).scalar_one() == 3


def test_log_when_two_sources_have_a_dump_of_one_name_then_they_stay_apart(streaming: Log, database: Database):
    uuid = planned(streaming, database)
    theirs = SourceKey("globex", "shop")
    hostile = cut(
        1,
        chunks=[chunk("orders", uuid, 1, "", '["200"]')],
        events=[dump_event("orders", 9, "DUMPED", uuid, 1)],
        key=theirs,
    )
    streaming.registry.apply_entry("file:///theirs", entry(1, hostile))
    (desired,) = streaming.registry.dumps(KEY).dumps
    assert (desired.remaining, desired.next_chunk) == (RANGES, 1)


def test_commands_and_the_log_when_they_race_then_nothing_is_lost(streaming: Log, database: Database):
    uuid = planned(streaming, database)

    def steer() -> None:
        for number in range(20):
            command(database, dumps.set_priority, uuid, number + 1)

    def report() -> None:
        for number in range(20):
            streaming.registry.record_dump_status(KEY, [DumpSeen(uuid, "READING", "", number, 0, 0)], number)

    before = streaming.registry.dumps(KEY).generation
    with ThreadPoolExecutor() as threads:
        others = [threads.submit(steer), threads.submit(report)]
        for number in range(20):
            streaming.cut(chunk("orders", uuid, number + 1, f'["{number}"]' if number else "", f'["{number + 1}"]'))
        for other in others:
            other.result(60)
    assert streaming.registry.dumps(KEY).generation == before + 20
    found = row_of(database, uuid)
    assert (found["chunks"], found["rows"], found["priority"]) == (20, 200, 20)


def test_dumps_when_a_source_has_300_then_all_begin_and_end(registry: SqlRegistry, database: Database):
    registry.record_agent(facts.agent_seen())
    tables = [facts.table_seen(f"table_{number}") for number in range(300)]
    registry.record_cartography(KEY, "mysql", "9.7.0", facts.UUID, tables, T0)
    command(database, start_tables, None, Start(StartKind.DUMP))
    assert len(registry.dumps(KEY).dumps) == 300
    uuid = registry.dumps(KEY).dumps[0].dump
    registry.record_dump_plan(KEY, uuid, PLAN, T0)
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started(table.table, 0) for table in tables])))
    registry.apply_entry(LANDING, entry(2, cut(2, chunks=[chunk("table_0", uuid, 1, "", '["9"]')])))
    command(database, stop_tables, None)
    assert registry.dumps(KEY).dumps == ()


def test_position_when_a_chunk_lands_then_a_resume_is_behind_its_cut(streaming: Log, database: Database):
    uuid = planned(streaming, database)
    streaming.cut(chunk("orders", uuid, 1, "", '["200"]'))
    command(database, stop_tables, [("shop", "orders")])
    begin(database, "orders", kind=StartKind.RESUME)
    assert streaming.registry.desired(KEY).tables == (TableDesired("shop", "orders", start_position=at(3)),)
