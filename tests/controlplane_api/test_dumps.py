"""Dumps and syncs as commands and agents move them; on SQLite and PostgreSQL."""

from collections.abc import Callable

import pytest
from menura.errors import MenuraError
from sqlalchemy import select

from controlplane_api import dumps
from controlplane_api.database import Database
from controlplane_api.dump_lives import DEFAULT_OPTIONS, DumpOptions
from controlplane_api.models import DumpStatus
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import StartKind
from controlplane_api.syncs import Start, start_tables, stop_tables
from gateway.registry import DumpDesired, DumpPlanned, DumpSeen, KeyRange, Problem, SourceKey, TableDesired
from tests.controlplane_api import facts
from tests.controlplane_api.dump_facts import (
    BROKEN,
    PLAN,
    RANGES,
    WHOLE,
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
from tests.controlplane_api.facts import KEY, LANDING, T0, chunk, cut, dump_event, entry, started, stopped

__all__ = ["log", "streaming"]


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


def test_sync_when_it_starts_by_a_dump_then_lacks_earlier_rows_until_it_is_done(log: Log, database: Database):
    (outcome,) = begin(database, "orders", kind=StartKind.DUMP)
    uuid = outcome.dump
    assert log.registry.desired(KEY).tables == (TableDesired("shop", "orders", start_dump=uuid),)
    assert [each.dump for each in log.registry.dumps(KEY).dumps] == [uuid]
    assert begin(database, "orders", kind=StartKind.DUMP)[0].changed is False
    log.cut(start=[started("orders", 4)])
    assert log.registry.desired(KEY).tables == (TableDesired("shop", "orders", earlier_rows_missing=True),)
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
    assert streaming.registry.desired(KEY).tables == (TableDesired("shop", "orders", earlier_rows_missing=True),)
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
    facts.record_cartography(registry, KEY, "mysql", "9.7.0", facts.UUID, tables, T0)
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
    assert registry.desired(KEY).tables == (TableDesired("shop", "orders", earlier_rows_missing=True),)
    registry.record_dump_plan(KEY, uuid, WHOLE, T0)
    assert registry.desired(KEY).tables == (TableDesired("shop", "orders", start_dump=uuid),)
    assert [each.dump for each in registry.dumps(KEY).dumps] == [uuid]
    generation = registry.generations([KEY])[KEY]
    whole = chunk("orders", uuid, 1, "", "", last=True)
    streaming.cut(whole, dump_event("orders", 20, "DUMPED", uuid), start=[started("orders", 4)], generation=generation)
    assert (missing(database), row_of(database, uuid)["state"]) == ("", "done")


def test_dump_when_refused_then_says_what_to_do(streaming: Log, database: Database):
    tables = [facts.table_seen("orders"), facts.table_seen("items"), facts.table_seen("secrets", denied=True)]
    facts.record_cartography(streaming.registry, KEY, "mysql", "9.7.0", facts.UUID, tables, T0)
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


def test_dumps_when_a_source_has_300_then_all_begin_and_end(registry: SqlRegistry, database: Database):
    registry.record_agent(facts.agent_seen())
    tables = [facts.table_seen(f"table_{number}") for number in range(300)]
    facts.record_cartography(registry, KEY, "mysql", "9.7.0", facts.UUID, tables, T0)
    command(database, start_tables, None, Start(StartKind.DUMP))
    assert len(registry.dumps(KEY).dumps) == 300
    uuid = registry.dumps(KEY).dumps[0].dump
    registry.record_dump_plan(KEY, uuid, PLAN, T0)
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started(table.table, 0) for table in tables])))
    registry.apply_entry(LANDING, entry(2, cut(2, chunks=[chunk("table_0", uuid, 1, "", '["9"]')])))
    command(database, stop_tables, None)
    assert registry.dumps(KEY).dumps == ()
