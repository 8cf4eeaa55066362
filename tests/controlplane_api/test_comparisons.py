"""Gaps of the log whose tables are compared in place of a dump, in the control plane: steps, ends and fallbacks."""

from dataclasses import replace
from typing import Any

import pytest
from menura.landed_digest import LandedRange, decode_focus
from sqlalchemy import select

from controlplane_api import comparisons, rereads
from controlplane_api.comparisons import LAKE_SECONDS, LEAST_ROWS, MOST_ROWS, MOST_VERIFICATIONS, VERDICT_SECONDS
from controlplane_api.database import Database
from controlplane_api.models import SourceTable, Sync
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import DumpEnd
from tests.controlplane_api.comparison_facts import (
    DIFFERS,
    GATEWAY,
    UNPROVEN,
    causes,
    gap,
    log,
    newest,
    put,
    registry,
    repaired,
    tell,
    verified,
)
from tests.controlplane_api.dump_facts import BROKEN, Log, command, row_of
from tests.controlplane_api.facts import KEY, T0, chunk, dump_event, unlogged
from tests.controlplane_api.lake_facts import stop
from tests.controlplane_api.reread_facts import WHOLE_KEY, note, ordered
from tests.controlplane_api.verdict_facts import verdict

__all__ = ["log", "registry"]


def test_gap_of_a_large_table_when_it_is_told_then_the_table_is_compared_and_stays_stale_until_it_is_proven(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    verification = newest(registry, database)
    assert (verification["cause"], verification["focus"]) == ("verification", None)
    said = note(database)
    assert said is not None and said["comparison"] == verification["uuid"] and said["reread"]
    verified(log, database, 20, tells=DIFFERS)
    repair = newest(registry, database)
    assert (repair["cause"], decode_focus(repair["focus"])) == ("repair", UNPROVEN)
    repaired(log, database, 30)
    proof = newest(registry, database)
    assert decode_focus(proof["focus"]) == replace(UNPROVEN, repaired_by=repair["uuid"])
    assert note(database)["causes"] and note(database)["comparison"] == proof["uuid"]
    verified(log, database, 40)
    assert note(database) is not None, "its end is no verdict"
    assert ordered(registry) == []
    tell(database, verdict(40, verification=proof["uuid"], since_gsn=20))
    assert note(database) is None
    assert ordered(registry) == []
    assert causes(database) == ["verification", "repair", "verification"]


def test_table_when_it_is_equal_then_the_note_is_gone_and_a_cause_of_since_then_has_a_way_of_its_own(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    uuid = verified(log, database, 20)
    log.cut(gap(25))
    assert ordered(registry) == [], "the verdict on the first one is waited for"
    tell(database, verdict(20, verification=uuid, since_gsn=20))
    said = note(database)
    assert said is not None and [cause["gsn"] for cause in said["causes"]] == [25]
    assert newest(registry, database)["cause"] == "reread" and not set(comparisons.MARKS) & set(said)


def test_verdict_when_it_is_told_before_the_end_is_applied_then_the_end_orders_what_follows(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    uuid = newest(registry, database)["uuid"]
    log.registry.record_dump_plan(KEY, uuid, WHOLE_KEY, T0)
    log.cut(dump_event("orders", 20, "VERIFICATION_STARTED", uuid))
    log.cut(chunk("orders", uuid, 1, "", "", last=True, rows=0))
    tell(database, verdict(20, verification=uuid, **DIFFERS))
    assert ordered(registry) == [uuid]
    log.cut(dump_event("orders", 21, "VERIFIED", uuid))
    assert newest(registry, database)["cause"] == "repair"
    tell(database, verdict(20, verification=uuid, **DIFFERS))
    assert causes(database) == ["verification", "repair"], "once"


@pytest.mark.parametrize(
    "tells",
    [
        {"kind": "unknown"},
        {"kind": "void", "unproven": None},
        {**DIFFERS, "source_rows": 1_000},
        {
            **DIFFERS,
            "unproven": replace(UNPROVEN, ranges=(LandedRange("", "", (300,), (500,), MOST_ROWS + 1),)),
            "source_rows": 9_000_000,
        },
        {**DIFFERS, "unproven": replace(UNPROVEN, since_gsn=0)},
    ],
    ids=["ranges unknown", "void", "most rows", "too many rows", "since when not known"],
)
def test_table_when_its_ranges_are_not_known_or_most_of_it_then_a_dump_follows_and_heals_it(
    tells: dict[str, Any], log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    verified(log, database, 20, tells=tells)
    row = newest(registry, database)
    assert row["cause"] == "reread"
    said = note(database)
    assert said is not None and "comparison" not in said and said["instead"]
    log.registry.record_dump_plan(KEY, row["uuid"], WHOLE_KEY, T0)
    log.cut(dump_event("orders", 30, "DUMP_STARTED", row["uuid"]))
    log.cut(gap(31))
    log.cut(chunk("orders", row["uuid"], 1, "", "", last=True), dump_event("orders", 40, "DUMPED", row["uuid"], 30))
    again = newest(registry, database)["uuid"]
    assert row_of(database, again)["cause"] == "verification", "the gap of since then is compared again"


def test_proof_when_it_can_never_tell_then_it_is_repeated_up_to_a_bound_and_a_dump_follows(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    verified(log, database, 20, tells=DIFFERS)
    repaired(log, database, 30)
    delays = []
    for gsn in range(40, 40 + 10 * MOST_VERIFICATIONS, 10):
        row = newest(registry, database)
        if row["cause"] == "reread":
            break
        delays.append(row["delay_seconds"])
        assert decode_focus(row["focus"]).repaired_by
        hours_later = T0 + gsn * 3_600_000_000  # it is no rate: each verification may take hours
        verified(log, database, gsn, tells={"kind": "unknown"}, at_us=hours_later)
    assert newest(registry, database)["cause"] == "reread"
    assert len(delays) == MOST_VERIFICATIONS - 1 and delays == sorted(delays) and delays[0] == 0 < delays[-1]


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_comparison_when_it_fails_or_is_cancelled_then_a_dump_follows(
    end: str, log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    uuid = newest(registry, database)["uuid"]
    if end == "failed":
        registry.record_dump_failed(KEY, uuid, BROKEN, T0)
    else:
        command(database, rereads.cancel, uuid)
    assert row_of(database, uuid)["state"] == end
    dump = newest(registry, database)
    assert dump["cause"] == "reread"
    command(database, rereads.cancel, dump["uuid"])
    assert ordered(registry) == [] and note(database)["reread"] is False


def test_comparison_when_the_table_would_be_read_in_one_snapshot_then_a_dump_follows(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    uuid = newest(registry, database)["uuid"]
    registry.record_dump_plan(KEY, uuid, replace(WHOLE_KEY, key=("*", "id")), T0)
    assert row_of(database, uuid)["state"] == DumpEnd.CANCELLED
    assert newest(registry, database)["cause"] == "reread"


def test_verdict_when_none_comes_then_the_gateways_clock_orders_a_dump(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    registry.begin_gateway(GATEWAY, 3_600)
    registry.assign_source(KEY, GATEWAY, "run-1")
    log.cut(gap(11))
    uuid = verified(log, database, 20)
    ended_at_us = row_of(database, uuid)["ended_at_us"]
    registry.order_verifications(GATEWAY, ended_at_us + VERDICT_SECONDS * 1_000_000 - 1)
    assert ordered(registry) == [] and note(database)["comparison"] == uuid
    registry.order_verifications(GATEWAY, ended_at_us + VERDICT_SECONDS * 1_000_000)
    assert newest(registry, database)["cause"] == "reread"
    assert "the lake has not said" in note(database)["instead"]


def test_cause_that_is_no_gap_when_it_comes_meanwhile_then_a_dump_follows_at_once(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    verified(log, database, 20)
    log.cut(unlogged("orders", 30))
    assert newest(registry, database)["cause"] == "reread"
    assert "comparison" not in note(database)


def test_note_when_the_policy_only_notes_then_nothing_is_compared(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(replace(gap(11), reread=False, most_rereads_per_hour=0))
    assert ordered(registry) == [] and "comparison" not in note(database)


def _small(database: Database) -> None:
    put(database, SourceTable, estimated_rows=LEAST_ROWS - 1)


def _unknown_size(database: Database) -> None:
    put(database, SourceTable, estimated_rows=None)


def _lacking(database: Database) -> None:
    put(database, Sync, earlier_rows_missing="never dumped")


def _child(database: Database) -> None:
    put(database, Sync, foreign_keys={"foreign_keys": []})


def _with_keys_that_nobody_follows(database: Database) -> None:
    put(database, SourceTable, foreign_keys=[{"parent": ["shop", "elsewhere"]}])


def _with_keys_that_nobody_has_listed(database: Database) -> None:
    put(database, SourceTable, more_foreign_keys=1)


def _second_lake(database: Database) -> None:
    tell(database, lake="other")


def _silent(database: Database) -> None:
    tell(database, at_us=T0 - (LAKE_SECONDS + 60) * 1_000_000)


def _stopped(database: Database) -> None:
    tell(database, stopped=[stop("orders")])


@pytest.mark.parametrize(
    "prepare",
    [
        _small,
        _unknown_size,
        _lacking,
        _child,
        _with_keys_that_nobody_follows,
        _with_keys_that_nobody_has_listed,
        _second_lake,
        _silent,
        _stopped,
    ],
    ids=lambda each: each.__name__,
)
def test_gap_when_a_comparison_is_impossible_or_not_worth_it_then_a_dump_is_ordered_as_ever(
    prepare: Any, log: Log, registry: SqlRegistry, database: Database
) -> None:
    prepare(database)
    log.cut(gap(11))
    assert newest(registry, database)["cause"] == "reread"
    assert ("instead" in note(database)) == (prepare not in (_small, _unknown_size))


def test_parent_when_a_child_follows_it_then_a_dump_is_ordered(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    with database.write() as connection:
        source_id, other = connection.execute(
            select(SourceTable.source_id, SourceTable.id).where(SourceTable.name != "orders").limit(1)
        ).one()
        keys = {"foreign_keys": [{"parent": ["shop", "orders"]}]}
        values = {"source_id": source_id, "table_id": other, "desired": "stopped", "state": "stopped"}
        connection.execute(
            Sync.__table__.insert().values(**values, changed_generation=0, foreign_keys=keys, ignored_columns=[])
        )
    log.cut(gap(11))
    assert newest(registry, database)["cause"] == "reread"
    assert "foreign keys" in note(database)["instead"]


def test_rows_when_all_are_removed_then_a_comparison_that_runs_says_nothing_more(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    log.cut(replace(dump_event("orders", 15, "TRUNCATED", ""), removes_rows=True))
    assert note(database) is None
    verified(log, database, 20, tells=DIFFERS)
    assert ordered(registry) == [] and note(database) is None


def test_a_second_lake_when_it_appears_meanwhile_then_a_dump_follows(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    tell(database, lake="other")
    verified(log, database, 20, tells={})
    assert newest(registry, database)["cause"] == "reread"
    assert "other lakes" in note(database)["instead"]
