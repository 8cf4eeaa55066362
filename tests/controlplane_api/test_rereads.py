"""Tables whose server changed rows unlogged: what the database notes and orders; on SQLite and PostgreSQL."""

from dataclasses import replace
from typing import Any

import pytest
from menura.instants import now_us
from sqlalchemy import select, update

from controlplane_api import rereads
from controlplane_api.database import Database, open_database
from controlplane_api.models import Dump, DumpRange
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.rereads import KEPT_CAUSES, KEPT_DUMPS, PROMPT_REREADS
from controlplane_api.states import StartKind
from controlplane_api.syncs import stop_tables
from gateway.registry import DumpPlanned, KeyRange, TableEffective, Withheld
from tests.controlplane_api import facts
from tests.controlplane_api.dump_facts import BROKEN, Log, begin, command, dump
from tests.controlplane_api.facts import KEY, LANDING, T0, dump_event, started, unlogged
from tests.controlplane_api.reread_facts import (
    WHOLE_KEY,
    done,
    dumped,
    note,
    ordered,
    running_dump,
    streaming,
    sync_of,
)

SHORT = DumpPlanned(("id",), (KeyRange(0, "", ""),), 10, 500, 60, 3_600, "")


@pytest.fixture
def log(registry: SqlRegistry, database: Database) -> Log:
    return streaming(registry, database)


def test_a_table_when_its_server_changed_rows_unlogged_says_it_and_a_dump_is_ordered(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    generation = registry.dump_generations([KEY])[KEY]
    log.cut(unlogged("orders", 11, "decimal(12,4) to decimal(12,2) rounds values"))
    said = note(database)
    assert said is not None
    assert said["causes"] == [
        {
            "gsn": 11,
            "position": f"{facts.UUID}:11",
            "why": "decimal(12,4) to decimal(12,2) rounds values",
            "at_us": T0 + 11,
        }
    ]
    assert said["reread"]
    assert len(ordered(registry)) == 1
    assert registry.dump_generations([KEY])[KEY] > generation
    assert sync_of(database)["start"] is None, "the stream goes on"


def test_a_note_when_a_dump_begun_after_its_cause_is_done_is_gone(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(unlogged("orders", 11))
    dumped(log, ordered(registry)[0], 20)
    assert note(database) is None
    assert ordered(registry) == []


def test_causes_when_a_dump_has_not_begun_share_it(log: Log, registry: SqlRegistry, database: Database) -> None:
    log.cut(unlogged("orders", 11, "first"), unlogged("orders", 12, "second"))
    log.cut(unlogged("orders", 13, "third"))
    (uuid,) = ordered(registry)
    dumped(log, uuid, 20)
    assert (note(database), ordered(registry)) == (None, [])


def test_a_cause_when_it_came_after_the_dumps_start_gets_one_more(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(unlogged("orders", 11, "first"))
    (first,) = ordered(registry)
    registry.record_dump_plan(KEY, first, WHOLE_KEY, T0)
    log.cut(dump_event("orders", 20, "DUMP_STARTED", first))
    log.cut(unlogged("orders", 25, "second"))
    assert ordered(registry) == [first], "one at a time"
    log.cut(facts.chunk("orders", first, 1, "", "", last=True), dump_event("orders", 30, "DUMPED", first, 20))
    left = note(database)
    assert left is not None
    assert [cause["why"] for cause in left["causes"]] == ["second"]
    (second,) = ordered(registry)
    assert second != first
    dumped(log, second, 40)
    assert (note(database), ordered(registry)) == (None, [])


def test_re_reads_when_they_follow_each_other_wait_longer_and_longer(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    waits = []
    for number in range(PROMPT_REREADS + 2):
        log.cut(unlogged("orders", 100 * number + 10, most=12))
        (order,) = registry.dumps(KEY).dumps
        with database.write() as connection:  # as if it had been ordered just now
            connection.execute(update(Dump).where(Dump.uuid == order.dump).values(created_at_us=now_us()))
        (order,) = registry.dumps(KEY).dumps
        waits.append(order.begins_in_seconds)
        dumped(log, order.dump, 100 * number + 20)
    assert waits[:PROMPT_REREADS] == [0] * PROMPT_REREADS
    assert 0 < waits[PROMPT_REREADS] <= 5 < waits[PROMPT_REREADS + 1] <= 10


def test_a_re_read_that_waits_when_the_clock_went_back_waits_no_longer_than_its_delay(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(unlogged("orders", 10))
    with database.write() as connection:
        connection.execute(update(Dump).values(delay_seconds=40, created_at_us=now_us() + 3_600_000_000))
    (order,) = registry.dumps(KEY).dumps
    assert order.begins_in_seconds == 40


def test_a_users_dump_when_it_runs_already_heals_too(log: Log, registry: SqlRegistry, database: Database) -> None:
    mine = dump(database, "orders")
    log.cut(unlogged("orders", 11))
    assert ordered(registry) == [mine]
    dumped(log, mine, 20)
    assert (note(database), ordered(registry)) == (None, [])


def test_a_cause_when_the_policy_only_notes_orders_nothing(log: Log, registry: SqlRegistry, database: Database) -> None:
    log.cut(unlogged("orders", 11, reread=False))
    log.cut(table="orders")
    said = note(database)
    assert said is not None
    assert not said["reread"]
    assert ordered(registry) == []
    dumped(log, dump(database, "orders"), 20)
    assert note(database) is None


def test_a_note_when_all_rows_are_removed_is_gone(log: Log, database: Database) -> None:
    log.cut(unlogged("orders", 11, reread=False))
    log.cut(facts.event("orders", 12, "TRUNCATED"))
    assert note(database) is None


def test_a_re_read_when_its_causes_never_end_stops_the_table_at_the_bound(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    for number in range(3):
        log.cut(unlogged("orders", 100 * number + 11, "cascade"))
        (uuid,) = ordered(registry)
        dumped(log, uuid, 100 * number + 20)
    generation = registry.desired(KEY).generation
    log.cut(unlogged("orders", 999, "cascade"))
    sync = sync_of(database)
    assert (sync["failed"], sync["state"], sync["problem"]["code"]) == (True, "failed", "REREAD_LIMIT")
    assert "cascade" in sync["problem"]["message"]
    assert ordered(registry) == []
    assert registry.desired(KEY).generation > generation
    assert registry.desired(KEY).tables == ()


def test_the_bound_when_an_hour_has_passed_lets_re_reads_through(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(unlogged("orders", 11, most=1))
    dumped(log, ordered(registry)[0], 20)
    later = facts.entry(len(log.entries) + 1, facts.cut(len(log.entries) + 1, events=[unlogged("orders", 31, most=1)]))
    log.entries.append(replace(later, committed_at_us=later.committed_at_us + 3_600_000_000))
    registry.apply_entry(LANDING, log.entries[-1])
    assert len(ordered(registry)) == 1
    assert not sync_of(database)["failed"]


def test_re_reads_when_they_are_of_long_ago_are_forgotten_but_the_newest(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    for number in range(KEPT_DUMPS + 5):
        hours_later = 2 * number
        made = facts.cut(len(log.entries) + 1, events=[unlogged("orders", 100 * number + 11)])
        landed = facts.entry(len(log.entries) + 1, made)
        log.entries.append(replace(landed, committed_at_us=landed.committed_at_us + hours_later * 3_600_000_000))
        registry.apply_entry(LANDING, log.entries[-1])
        dumped(log, ordered(registry)[0], 100 * number + 20)
    with database.read() as connection:
        kept = connection.execute(select(Dump.created_at_us).order_by(Dump.id)).scalars().all()
        ranges = connection.execute(select(DumpRange.dump_id)).scalars().all()
    assert KEPT_DUMPS < len(kept) <= KEPT_DUMPS + 2
    assert len(ranges) == len(kept)


def test_a_re_read_when_it_fails_is_ordered_again_up_to_the_bound(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(unlogged("orders", 11, most=2))
    (first,) = ordered(registry)
    registry.record_dump_failed(KEY, first, BROKEN, T0 + 3_000_000)
    (second,) = ordered(registry)
    assert second != first
    registry.record_dump_plan(KEY, second, SHORT, T0 + 3_000_000)  # refused
    assert ordered(registry) == []
    assert sync_of(database)["problem"]["code"] == "REREAD_LIMIT"


def test_a_re_read_when_a_user_cancels_it_is_not_ordered_again(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(unlogged("orders", 11))
    command(database, rereads.cancel, ordered(registry)[0])
    log.cut(facts.event("orders", 12, "ALTERED"))
    assert ordered(registry) == []
    said = note(database)
    assert said is not None
    assert not said["reread"]


def test_a_table_without_a_key_when_it_is_re_read_begins_anew(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    facts_of = facts.table_seen("orders")
    keyless = type(facts_of)(
        **{name: getattr(facts_of, name) for name in type(facts_of).__slots__ if name != "keys"}, keys=()
    )
    facts.record_cartography(registry, KEY, "mysql", "9.7.0", facts.UUID, [keyless], T0)
    log.cut(unlogged("orders", 11))
    (uuid,) = ordered(registry)
    sync = sync_of(database)
    assert (sync["start"], sync["start_text"]) == (StartKind.DUMP, uuid)
    log.cut(unlogged("orders", 12))
    assert ordered(registry) == [uuid]
    log.cut(
        facts.chunk("orders", uuid, 1, "", "", last=True),
        dump_event("orders", 21, "DUMPED", uuid),
        start=[started("orders", 3)],
        generation=registry.desired(KEY).generation,
    )
    assert (note(database), ordered(registry)) == (None, [])


def test_a_note_when_causes_never_end_keeps_the_first_and_the_newest(log: Log, database: Database) -> None:
    for number in range(50):
        log.cut(unlogged("orders", 100 + number, f"cause {number}"))
    said = note(database)
    assert said is not None
    told = [cause["why"] for cause in said["causes"]]
    assert (len(told), told[0], told[-1], said["more"]) == (KEPT_CAUSES, "cause 0", "cause 49", 50 - KEPT_CAUSES)


def test_a_table_when_it_is_started_with_a_note_is_re_read_once_it_has_begun(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(unlogged("orders", 11))
    command(database, stop_tables, [("shop", "orders")])
    assert ordered(registry) == []
    begin(database, "orders", kind=StartKind.RESUME)
    assert ordered(registry) == []
    log.cut(start=[started("orders", 4)], generation=registry.desired(KEY).generation)
    assert len(ordered(registry)) == 1


def test_a_log_when_it_is_replayed_into_an_empty_database_gives_the_note_and_orders_nothing(
    log: Log, registry: SqlRegistry, database: Database, fresh_url: Any
) -> None:
    log.cut(unlogged("orders", 11))
    fresh = open_database(fresh_url())
    try:
        other = SqlRegistry(fresh)
        for entry in log.entries:
            other.apply_entry(LANDING, entry)
        assert note(fresh) == note(database)
        assert other.dumps(KEY).dumps == ()
    finally:
        fresh.close()


def test_a_stream_when_a_table_has_a_note_or_a_dump_is_told_from_where(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    def told() -> tuple[int, int]:
        (table,) = registry.desired(KEY).tables
        return table.unlogged_gsn, table.dump_gsn

    assert told() == (0, 0)
    log.cut(unlogged("orders", 11))
    assert told() == (11, 0)
    (uuid,) = ordered(registry)
    registry.record_dump_plan(KEY, uuid, WHOLE_KEY, T0)
    log.cut(dump_event("orders", 21, "DUMP_STARTED", uuid))
    assert told() == (11, 21)
    log.cut(facts.chunk("orders", uuid, 1, "", "", last=True), dump_event("orders", 22, "DUMPED", uuid, 21))
    assert told() == (0, 0)


def effective(
    registry: SqlRegistry,
    *ignored: str,
    state: str = "STREAMING",
    most: int = 12,
    withheld: Withheld | None = None,
) -> None:
    table = TableEffective("shop", "orders", state, None, ignored, most, withheld)
    registry.record_effective(KEY, registry.desired(KEY).generation, [table], None, T0)


def test_a_column_when_the_filter_leaves_it_out_no_more_then_the_table_is_read_again_once(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(unlogged("orders", 10, "", reread=False))
    effective(registry, "NOTE", "gone long ago")
    effective(registry, "NOTE")
    assert note(database) is None, "no column of the table comes that did not"
    effective(registry)
    effective(registry)
    held = note(database)
    assert held is not None
    (cause,) = held["causes"]
    assert (cause["gsn"], held["most_per_hour"]) == (20, 12) and "note did not come until here" in cause["why"]
    (uuid,) = ordered(registry)
    dumped(log, uuid, 30)
    assert (note(database), ordered(registry)) == (None, [])


def test_a_column_when_it_comes_while_a_dump_runs_that_began_without_it_then_another_dump_brings_it(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    effective(registry, "note")
    mine = running_dump(log, database)
    effective(registry)
    assert ordered(registry) == [mine]
    done(log, mine, 30)
    (again,) = ordered(registry)
    assert again != mine


def test_a_column_when_its_table_is_denied_or_its_policy_is_to_note_then_none_is_read_again_without_need(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(unlogged("orders", 10, "", reread=False))
    effective(registry, "note")
    for state in (
        "DENIED",
        "A_NEWER_WORD",
        "PENDING",
        "WAITING",
        "DUMPING",
        "FAILED",
    ):  # not all is known of its columns
        effective(registry, state=state)
        effective(registry, "other", state=state)
    assert note(database) is None and sync_of(database)["ignored_columns"] == ["note"]
    effective(registry, most=0)
    held = note(database)
    assert held is not None and not held["reread"], "told, and none is ordered"
    assert ordered(registry) == []


def test_a_column_when_its_table_begins_anew_with_a_dump_then_it_is_not_read_a_second_time(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    effective(registry, "note")
    with database.write() as connection:
        stop_tables(connection, sync_of(database)["source_id"], [("shop", "orders")])
    begin(database, "orders", kind=StartKind.DUMP)
    effective(registry, state="PENDING")
    assert sync_of(database)["ignored_columns"] == []
    (uuid,) = ordered(registry)
    registry.record_dump_plan(KEY, uuid, WHOLE_KEY, T0)
    log.cut(dump_event("orders", 20, "DUMP_STARTED", uuid), start=[started("orders", 20)])
    effective(registry)
    assert (note(database), ordered(registry)) == (None, [uuid])


def test_a_column_when_the_filter_was_widened_while_the_table_was_stopped_then_its_resume_has_it_read_again(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    effective(registry, "note")
    with database.write() as connection:
        stop_tables(connection, sync_of(database)["source_id"], [("shop", "orders")])
    begin(database, "orders", kind=StartKind.RESUME)
    effective(registry)
    held = note(database)
    assert held is not None and "note did not come until here" in held["causes"][0]["why"]
    assert ordered(registry) == [], "it has not begun"
    log.cut(
        unlogged("orders", 30, "", reread=False),
        start=[started("orders", 30)],
        generation=registry.desired(KEY).generation,
    )
    assert len(ordered(registry)) == 1


STAYS = Withheld("memory-1", columns=True)


@pytest.mark.parametrize(
    ("before", "after", "is_noted"),
    [
        (STAYS, Withheld("memory-1", columns=False, freed=1), True),
        (STAYS, Withheld("memory-1", columns=True, freed=1), True),
        (STAYS, Withheld("memory-2", columns=True), True),
        (STAYS, Withheld(), True),
        (STAYS, STAYS, False),
        (STAYS, Withheld("memory-1", columns=False), False),
        (STAYS, None, False),
        (Withheld(), STAYS, False),
        (Withheld(), Withheld("memory-1", columns=False, freed=1), True),
        (Withheld("memory-1"), Withheld("memory-2"), False),
        (None, Withheld("memory-1", columns=True, freed=5), False),
    ],
    ids=[
        "all free", "one free", "memory lost", "memory lost, no policy", "same", "none there", "older agent",
        "narrower", "came and went", "nothing stayed", "first word",
    ],
)  # fmt: skip
def test_columns_when_the_hosts_policy_kept_them_back_and_no_more_then_the_table_is_read_again_once(
    log: Log,
    registry: SqlRegistry,
    database: Database,
    before: Withheld | None,
    after: Withheld | None,
    is_noted: bool,
) -> None:
    log.cut(unlogged("orders", 10, "", reread=False))
    effective(registry, withheld=before)
    assert note(database) is None
    effective(registry, withheld=after)
    effective(registry, withheld=after)
    held = note(database)
    assert (held is not None, len(ordered(registry))) == (is_noted, int(is_noted))
    if held is not None:
        (cause,) = held["causes"]
        assert "the policy of the database's host kept columns back until here" in cause["why"]


def test_columns_that_become_free_while_the_first_dump_runs_then_another_dump_brings_them(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    with database.write() as connection:
        stop_tables(connection, sync_of(database)["source_id"], [("shop", "orders")])
    begin(database, "orders", kind=StartKind.DUMP)
    assert sync_of(database)["withheld"] is None
    effective(registry, state="PENDING", withheld=Withheld())
    (mine,) = ordered(registry)
    registry.record_dump_plan(KEY, mine, WHOLE_KEY, T0)
    begun = {"start": [started("orders", 20)], "generation": registry.desired(KEY).generation}
    log.cut(dump_event("orders", 20, "DUMP_STARTED", mine), **begun)
    effective(registry, state="DUMPING", withheld=STAYS)
    effective(registry, state="DUMPING", withheld=Withheld("memory-1", columns=False, freed=1))
    assert (note(database), ordered(registry)) == (None, [mine]), "its state does not tell all of its columns yet"
    dumped_chunk = facts.chunk("orders", mine, 1, "", "", last=True)
    log.cut(dumped_chunk, dump_event("orders", 22, "DUMPED", mine, 20))
    effective(registry, withheld=Withheld("memory-1", columns=False, freed=1))
    assert note(database) is not None
    assert len(ordered(registry)) == 1
