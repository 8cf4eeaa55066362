"""What a comparison in place of a dump is never to do: cover too much, read too much, ask too much."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from menura.landing import KeyNumbers, LandedRepair
from sqlalchemy import select

from controlplane_api import comparisons, dumps, rereads, verification_schedules
from controlplane_api.comparisons import LEAST_ROWS, VERDICT_SECONDS
from controlplane_api.database import Database
from controlplane_api.dump_lives import REPAIR, DumpOptions, create_focused
from controlplane_api.errors import DumpNotResumable
from controlplane_api.models import Dump, SourceTable, Sync
from controlplane_api.registry import horizons, leases
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import REREAD_LIMIT, Desired, DumpEnd
from controlplane_api.verification_schedules import Schedule
from controlplane_api.verifications import start_verifications
from tests.controlplane_api.comparison_facts import (
    DIFFERS,
    GATEWAY,
    PLANNED,
    UNPROVEN,
    causes,
    counted,
    gap,
    log,
    newest,
    put,
    registry,
    repaired,
    tell,
    verified,
)
from tests.controlplane_api.dump_facts import BROKEN, Log, begin, command, row_of
from tests.controlplane_api.dump_facts import dump as start_dump
from tests.controlplane_api.facts import KEY, LANDING, T0, chunk, dump_event, record_shop, started, unlogged
from tests.controlplane_api.lake_facts import Sink
from tests.controlplane_api.reread_facts import WHOLE_KEY, note, ordered, sync_of
from tests.controlplane_api.verdict_facts import verdict

__all__ = ["log", "registry"]


def test_gap_when_the_option_is_not_given_then_its_table_is_dumped(log: Log, database: Database) -> None:
    plain = SqlRegistry(database)
    log.registry = plain
    log.cut(gap(11))
    assert newest(plain, database)["cause"] == "reread"
    assert not set(comparisons.MARKS) & set(note(database))


@pytest.mark.parametrize("tells", [{"since_gsn": 0}, {"since_gsn": 11}], ids=["not known", "at the gap"])
def test_equal_table_when_since_when_is_not_told_or_too_early_then_the_gap_is_not_covered(
    tells: dict[str, Any], log: Log, registry: SqlRegistry, database: Database
) -> None:
    """The verification's own beginning, 20, does not count: an older sink, gateway or agent may have a part in it."""
    log.cut(gap(11))
    verified(log, database, 20, tells=tells)
    assert [cause["gsn"] for cause in note(database)["causes"]] == [11]
    assert newest(registry, database)["cause"] == "reread"


def test_verdict_when_it_is_of_another_lake_then_it_does_not_count(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    """Of one that does not follow the source any more, so that the same lake as ever is the only one."""
    log.cut(gap(11))
    uuid = verified(log, database, 20)
    equal = verdict(20, verification=uuid, since_gsn=20)
    Sink(lake="other", run=uuid4().hex).tell(database, base=0, at_us=T0, verdicts=(equal,))
    said = note(database)
    assert said is not None and said["comparison"] == uuid and ordered(registry) == []
    tell(database, equal)
    assert note(database) is None


def test_cause_that_is_no_gap_when_the_verdict_is_equal_then_it_is_weighed_first(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    uuid = newest(registry, database)["uuid"]
    log.registry.record_dump_plan(KEY, uuid, WHOLE_KEY, T0)
    log.cut(unlogged("orders", 15))
    log.cut(dump_event("orders", 20, "VERIFICATION_STARTED", uuid))
    log.cut(chunk("orders", uuid, 1, "", "", last=True, rows=0))
    tell(database, verdict(20, verification=uuid, since_gsn=20))
    log.cut(dump_event("orders", 21, "VERIFIED", uuid))
    assert newest(registry, database)["cause"] == "reread"
    assert [cause["gsn"] for cause in note(database)["causes"]] == [11, 15]


@pytest.mark.parametrize("step", ["repair", "proof"])
def test_key_when_it_is_another_one_than_the_ranges_are_of_then_the_step_is_cancelled_and_a_dump_follows(
    step: str, log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    verified(log, database, 20, tells=DIFFERS)
    if step == "proof":
        repaired(log, database, 30)
    uuid = newest(registry, database)["uuid"]
    registry.record_dump_plan(KEY, uuid, replace(PLANNED, key=("customer",)), T0)
    assert row_of(database, uuid)["state"] == DumpEnd.CANCELLED
    assert newest(registry, database)["cause"] == "reread"


def test_table_when_its_sync_is_stopped_then_nothing_is_ordered_until_it_goes_on(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    uuid = verified(log, database, 20)
    put(database, Sync, desired=Desired.STOPPED)
    tell(database, verdict(20, verification=uuid, **DIFFERS))
    assert causes(database) == ["verification"]
    put(database, Sync, desired=Desired.SYNCING)
    log.cut(table="orders")
    with database.write() as connection:
        rereads.order_due(connection, [row_of(database, uuid)["table_id"]], T0)
    assert causes(database) == ["verification", "repair"]


def test_dump_when_it_runs_then_nothing_is_ordered_beside_it_and_it_heals_the_gap(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    uuid = verified(log, database, 20)
    dump = start_dump(database, "orders")
    tell(database, verdict(20, verification=uuid, **DIFFERS))
    assert ordered(registry) == [dump]
    log.registry.record_dump_plan(KEY, dump, WHOLE_KEY, T0)
    log.cut(dump_event("orders", 30, "DUMP_STARTED", dump))
    log.cut(chunk("orders", dump, 1, "", "", last=True), dump_event("orders", 40, "DUMPED", dump, 30))
    assert note(database) is None and ordered(registry) == []


def test_table_when_a_dump_has_read_a_part_of_it_meanwhile_then_a_dump_follows(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    uuid = verified(log, database, 20)
    dump = start_dump(database, "orders")
    tell(database, verdict(20, verification=uuid, **DIFFERS))
    registry.record_dump_failed(KEY, dump, BROKEN, T0)
    assert newest(registry, database)["cause"] == "reread"


def test_agents_stream_when_it_begins_behind_a_verification_then_it_is_told_that_what_changed_since_counts(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    assert said_of(registry) == (11, 0, 0) and registry.dumps(KEY).dumps[0].tells_anew
    uuid = verified(log, database, 20)
    assert said_of(registry) == (11, 0, 20)
    tell(database, verdict(20, verification=uuid, since_gsn=20))
    assert said_of(registry) == (0, 0, 0)


def test_agents_stream_when_a_cause_came_behind_the_verification_then_it_hears_of_the_cause_alone(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    verified(log, database, 20)
    log.cut(gap(25))
    assert said_of(registry) == (25, 0, 0)


def test_agents_stream_when_the_table_was_truncated_behind_the_verification_then_it_hears_of_nothing(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    verified(log, database, 20)
    log.cut(replace(dump_event("orders", 25, "TRUNCATED", ""), removes_rows=True))
    assert said_of(registry) == (0, 0, 0)


def test_dump_of_before_the_gap_when_the_table_was_compared_since_then_it_is_not_resumed_and_a_new_one_begins(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    """What it had read would take away rows that the verdict has counted."""
    dump = start_dump(database, "orders")
    log.registry.record_dump_plan(KEY, dump, WHOLE_KEY, T0)
    log.cut(dump_event("orders", 5, "DUMP_STARTED", dump))
    registry.record_dump_failed(KEY, dump, BROKEN, T0)
    log.cut(gap(11))
    verified(log, database, 20, tells={})
    assert note(database) is None
    with pytest.raises(DumpNotResumable, match="compared with its source since"):
        command(database, dumps.resume, dump)
    (outcome,) = command(database, dumps.retry, command(database, dumps.unfinished, None)).values()
    assert outcome.changed and ordered(registry) == [outcome.dump] != [dump]


def test_agents_stream_when_a_verification_takes_no_dumps_place_then_it_hears_nothing_of_it(
    log: Log, database: Database
) -> None:
    log.registry = plain = SqlRegistry(database)
    log.cut(gap(11))
    command(database, rereads.cancel, newest(plain, database)["uuid"])
    command(database, start_verifications, [("shop", "orders")], DumpOptions(forced=True))
    assert not plain.dumps(KEY).dumps[0].tells_anew
    verified(log, database, 20)
    assert said_of(plain) == (11, 0, 0)


def said_of(registry: SqlRegistry) -> tuple[int, int, int]:
    """To the agent, of the table: the newest cause, where its dump began, and where what may take its place did."""
    (table,) = [each for each in registry.desired(KEY).tables if each.table == "orders"]
    return table.unlogged_gsn, table.dump_gsn, table.compared_gsn


def test_comparison_when_the_source_has_a_schedule_then_it_is_read_at_its_rate_and_when_its_window_opens(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    closed = datetime.fromtimestamp(T0 / 1e6, UTC) + timedelta(hours=3)
    window = f"{closed:%H:%M}-{closed + timedelta(hours=1):%H:%M} UTC"
    command(database, verification_schedules.put, Schedule(86_400, rows_per_second=700, window=window), T0)
    log.cut(gap(11))
    row = newest(registry, database)
    assert (row["rows_per_second"], row["priority"]) == (700, verification_schedules.PRIORITY)
    assert 2 * 3_600 < row["delay_seconds"] <= 3 * 3_600
    (order,) = registry.dumps(KEY).dumps
    assert order.rows_per_second == 700
    verified(log, database, 20, tells=DIFFERS)
    assert newest(registry, database)["delay_seconds"] == 0, "a repair is no verification"
    repaired(log, database, 30)
    proof = newest(registry, database)
    assert proof["rows_per_second"] == 700 and proof["delay_seconds"] > 3_600


def test_gaps_that_come_again_and_again_when_each_is_compared_then_the_tables_bound_of_an_hour_stops_it(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    for number in range(3):  # as many as its agent allows
        log.cut(gap(100 * number + 11))
        verified(log, database, 100 * number + 20, tells={})
        assert note(database) is None
    log.cut(gap(311))
    assert ordered(registry) == [] and causes(database) == ["verification"] * 3
    assert sync_of(database)["problem"]["code"] == REREAD_LIMIT


def test_comparison_that_a_dump_follows_when_one_reread_an_hour_is_allowed_then_both_are_that_one(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(replace(gap(11), most_rereads_per_hour=1))
    verified(log, database, 20, tells={"kind": "unknown"})
    assert newest(registry, database)["cause"] == "reread"
    registry.record_dump_failed(KEY, newest(registry, database)["uuid"], BROKEN, T0)
    assert ordered(registry) == [] and sync_of(database)["problem"]["code"] == REREAD_LIMIT


def test_repair_of_before_the_gap_when_the_table_was_compared_since_then_it_is_not_resumed(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    with database.write() as connection:
        source_id, table_id = connection.execute(select(Sync.source_id, Sync.table_id)).one()
        repair = create_focused(connection, source_id, table_id, DumpOptions(), REPAIR, UNPROVEN, T0)
    log.registry.record_dump_plan(KEY, repair, PLANNED, T0)
    log.cut(dump_event("orders", 5, "REPAIR_STARTED", repair))
    registry.record_dump_failed(KEY, repair, BROKEN, T0)
    log.cut(gap(11))
    with pytest.raises(DumpNotResumable, match="compared with its source since"):
        command(database, dumps.resume, repair)


def test_repair_when_it_is_ordered_behind_the_verification_then_a_dump_follows(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    uuid = verified(log, database, 20)
    with database.write() as connection:
        source_id, table_id = connection.execute(select(Sync.source_id, Sync.table_id)).one()
        repair = create_focused(connection, source_id, table_id, DumpOptions(), REPAIR, UNPROVEN, T0)
    log.registry.record_dump_plan(KEY, repair, PLANNED, T0)
    log.cut(dump_event("orders", 25, "REPAIR_STARTED", repair))
    tell(database, verdict(20, verification=uuid, since_gsn=20))
    assert note(database)["comparison"] == uuid, "it is weighed once nothing reads the table"
    assert ordered(registry) == [repair]
    log.cut(chunk("orders", repair, 1, '["300"]', '["500"]', last=True))
    gone = LandedRepair(25, ("id",), (KeyNumbers((300,), (500,)),))
    log.cut(replace(dump_event("orders", 30, "REPAIRED", repair), repaired=gone))
    assert newest(registry, database)["cause"] == "reread"
    assert "has read rows of it" in note(database)["instead"]


def test_comparisons_that_dumps_follow_when_gaps_come_again_then_each_counts_once(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    for number in range(2):
        log.cut(replace(gap(100 * number + 11), most_rereads_per_hour=2))
        verified(log, database, 100 * number + 20, tells={"kind": "unknown"})
        dump = newest(registry, database)
        assert dump["cause"] == "reread"
        log.registry.record_dump_plan(KEY, dump["uuid"], WHOLE_KEY, T0)
        log.cut(dump_event("orders", 100 * number + 30, "DUMP_STARTED", dump["uuid"]))
        log.cut(chunk("orders", dump["uuid"], 1, "", "", last=True))
        log.cut(dump_event("orders", 100 * number + 31, "DUMPED", dump["uuid"]))
        assert note(database) is None
    log.cut(replace(gap(211), most_rereads_per_hour=2))
    assert ordered(registry) == [] and sync_of(database)["problem"]["code"] == REREAD_LIMIT


@pytest.mark.parametrize("behind", [None, "TRUNCATED"])
def test_step_when_a_dump_is_needed_before_it_has_begun_then_it_is_cancelled_and_the_dump_ordered_at_once(
    log: Log, registry: SqlRegistry, database: Database, behind: str | None
) -> None:
    log.cut(gap(11))
    step = newest(registry, database)
    if behind is not None:
        log.cut(replace(dump_event("orders", 15, behind, ""), removes_rows=True))
    log.cut(unlogged("orders", 30))
    assert newest(registry, database)["cause"] == "reread"
    assert row_of(database, step["uuid"])["state"] == DumpEnd.CANCELLED


def test_table_when_it_has_got_foreign_keys_meanwhile_then_it_is_not_equal_and_a_dump_follows(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    uuid = verified(log, database, 20)
    put(database, Sync, foreign_keys={"foreign_keys": []})
    tell(database, verdict(20, verification=uuid, since_gsn=20))
    assert newest(registry, database)["cause"] == "reread" and "foreign keys" in note(database)["instead"]


def test_horizon_when_it_is_taken_back_then_its_notes_know_of_no_comparison(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    assert "comparison" in note(database)
    with database.write() as connection:
        taken = horizons.horizon(connection, LANDING, "1f" * 16, 1, T0)
        horizons.restore(connection, taken)
    said = note(database)
    assert said is not None and not set(comparisons.MARKS) & set(said)
    assert said["reread"] and [cause["gsn"] for cause in said["causes"]] == [11]


def test_gaps_of_very_many_tables_when_they_are_told_then_few_statements_order_all(
    registry: SqlRegistry, database: Database
) -> None:
    names = [f"t{number:03}" for number in range(200)]
    record_shop(registry, *names)
    begin(database, *names)
    Log(registry).cut(start=[started(name, 1) for name in names])
    put(database, SourceTable, estimated_rows=LEAST_ROWS)
    tell(database)
    cause = {"gsn": 11, "position": "p", "why": "purged", "at_us": T0, "gap": True}
    put(database, Sync, unlogged={"reread": True, "most_per_hour": 12, "more": 0, "causes": [cause]})
    with database.read() as connection:
        ids = list(connection.execute(select(Sync.table_id)).scalars())
    with database.write() as connection, counted(database) as statements:
        rereads.order_due(connection, ids, T0, compares=True)
    assert causes(database) == ["verification"] * len(names) and len(statements) < 20
    with database.write() as connection, counted(database) as statements:
        rereads.order_due(connection, ids, T0, compares=True)
    assert causes(database) == ["verification"] * len(names) and len(statements) < 20


def test_comparisons_when_they_run_or_have_just_ended_then_the_gateways_clock_takes_none_of_them(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    registry.begin_gateway(GATEWAY, 3_600)
    registry.assign_source(KEY, GATEWAY, "run-1")
    log.cut(gap(11))
    far = T0 + 10 * VERDICT_SECONDS * 1_000_000
    with database.read() as connection:
        assert comparisons.overdue(connection, leases.is_owned_by(GATEWAY), far) == {}, "it runs"
    uuid = verified(log, database, 20)
    ended_at_us = row_of(database, uuid)["ended_at_us"]
    with counted(database) as statements, database.read() as connection:
        assert comparisons.overdue(connection, leases.is_owned_by(GATEWAY), ended_at_us + 1) == {}
        assert len(comparisons.overdue(connection, leases.is_owned_by(GATEWAY), far)) == 1
    assert len([each for each in statements if "SELECT" in each]) == 2


def test_history_when_verifications_pile_up_then_old_ones_are_forgotten(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    more = comparisons.KEPT_STEPS + 2
    for number in range(more):
        log.cut(gap(100 * number + 11))
        verified(log, database, 100 * number + 20, tells={})
        assert note(database) is None
        put(database, Dump, created_at_us=T0 - 2 * comparisons.HOUR_US)
    log.cut(gap(100 * more + 11))
    verified(log, database, 100 * more + 20, tells={})
    assert len(causes(database)) == comparisons.KEPT_STEPS + 1, "that of the last hour stays too"
