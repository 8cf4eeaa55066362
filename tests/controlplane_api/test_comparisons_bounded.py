"""What a comparison in place of a dump is never to do: cover too much, read too much, ask too much."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select

from controlplane_api import comparisons, rereads
from controlplane_api.comparisons import LEAST_ROWS, VERDICT_SECONDS
from controlplane_api.database import Database
from controlplane_api.models import Lake, SourceTable, Sync
from controlplane_api.registry import leases
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import Desired, DumpEnd
from tests.controlplane_api.comparison_facts import (
    DIFFERS,
    GATEWAY,
    PLANNED,
    causes,
    counted,
    gap,
    large_table,
    newest,
    put,
    repaired,
    tell,
    verified,
)
from tests.controlplane_api.dump_facts import BROKEN, Log, begin, row_of
from tests.controlplane_api.dump_facts import dump as start_dump
from tests.controlplane_api.facts import KEY, T0, chunk, dump_event, record_shop, started, unlogged
from tests.controlplane_api.reread_facts import WHOLE_KEY, note, ordered
from tests.controlplane_api.verdict_facts import verdict


@pytest.fixture
def registry(database: Database) -> SqlRegistry:
    return SqlRegistry(database, compares_behind_gaps=True)


@pytest.fixture
def log(registry: SqlRegistry, database: Database) -> Log:
    return large_table(registry, database)


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
    log.cut(gap(11))
    uuid = verified(log, database, 20)
    with database.write() as connection:
        other = connection.execute(
            insert(Lake).values(name="other", url="u", landing="l").returning(Lake.id)
        ).scalar_one()
    tell(database, verdict(20, verification=uuid, since_gsn=20))
    assert note(database) is None
    log.cut(gap(25))
    uuid = verified(log, database, 30)
    put(database, Sync, unlogged={**note(database), "compared_in": other})
    tell(database, verdict(30, verification=uuid, since_gsn=30))
    assert newest(registry, database)["cause"] == "reread" and "other lakes" in note(database)["instead"]


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
    (table,) = [each for each in registry.desired(KEY).tables if each.table == "orders"]
    assert (table.unlogged_gsn, table.dump_gsn) == (11, 0)
    uuid = verified(log, database, 20)
    (table,) = [each for each in registry.desired(KEY).tables if each.table == "orders"]
    assert (table.unlogged_gsn, table.dump_gsn) == (11, 20)
    tell(database, verdict(20, verification=uuid, since_gsn=20))
    (table,) = [each for each in registry.desired(KEY).tables if each.table == "orders"]
    assert (table.unlogged_gsn, table.dump_gsn) == (0, 0)


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
    for number in range(8):
        log.cut(gap(100 * number + 11))
        verified(log, database, 100 * number + 20, tells={})
        assert note(database) is None
    assert len(causes(database)) == 5
