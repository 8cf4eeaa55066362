"""What is left of a dump, as plans and the chunks of the cut log move it; on SQLite and PostgreSQL."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from menura.landing import LandedChunk
from sqlalchemy import select

from controlplane_api import dumps
from controlplane_api.database import Database, open_database
from controlplane_api.dump_lives import DEFAULT_OPTIONS
from controlplane_api.models import DumpRange
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import StartKind
from controlplane_api.syncs import stop_tables
from gateway.registry import DumpPlanned, DumpSeen, KeyRange, SourceKey, TableDesired
from tests.controlplane_api.dump_facts import (
    PLAN,
    RANGES,
    Log,
    begin,
    command,
    dump,
    log,
    missing,
    planned,
    row_of,
    streaming,
)
from tests.controlplane_api.facts import KEY, LANDING, T0, at, chunk, cut, dump_event, entry, started

__all__ = ["log", "streaming"]


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
            other.result(300)
    assert streaming.registry.dumps(KEY).generation == before + 20
    found = row_of(database, uuid)
    assert (found["chunks"], found["rows"], found["priority"]) == (20, 200, 20)


def test_position_when_a_chunk_lands_then_a_resume_is_behind_its_cut(streaming: Log, database: Database):
    uuid = planned(streaming, database)
    streaming.cut(chunk("orders", uuid, 1, "", '["200"]'))
    command(database, stop_tables, [("shop", "orders")])
    begin(database, "orders", kind=StartKind.RESUME)
    assert streaming.registry.desired(KEY).tables == (
        TableDesired("shop", "orders", start_position=at(3), earlier_rows_missing=True),
    )
