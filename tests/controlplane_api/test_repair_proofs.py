"""Verifications behind a repair in the control plane: another one where none could tell, but not for ever."""

from dataclasses import replace
from typing import Any

import pytest
from menura.instants import now_us
from menura.landed_digest import LandedFocus
from sqlalchemy import func, select

from controlplane_api import repairs, rereads, verification_schedules
from controlplane_api.database import Database
from controlplane_api.dump_lives import MOST_PROOFS, VERIFICATION
from controlplane_api.models import Dump, ProofOfTable, Verdict
from controlplane_api.states import Proof
from controlplane_api.verification_schedules import Schedule
from gateway.registry import KeyRange
from tests.controlplane_api.dump_facts import PLAN, Log, command, dump, log, streaming
from tests.controlplane_api.facts import KEY, T0, chunk, dump_event
from tests.controlplane_api.test_repairs import FOCUS, differing, is_read, repaired, told
from tests.controlplane_api.test_verifications import ORDERS, verify, whole
from tests.controlplane_api.verdict_facts import LEAF, verdict

__all__ = ["log", "streaming", "whole"]

#: of a verdict: others' writes concern some leaves
UNSURE: dict[str, Any] = {"leaves_equal": 1, "leaves_unknown": 2}
DAY_US = 86_400_000_000


def repair(log: Log, database: Database, focus: LandedFocus = FOCUS) -> str:
    """Of a table that differs, to its end."""
    differing(log, database, focus)
    uuid, _ = command(database, repairs.order, ORDERS)
    is_read(log, uuid, 30)
    log.cut(repaired(40, uuid, 30))
    return uuid


def ordered(log: Log) -> list[tuple[str, LandedFocus | None]]:
    """Verifications that run."""
    dumps = log.registry.dumps(KEY).dumps
    assert all(each.verifies for each in dumps)
    return [(each.dump, each.focus) for each in dumps]


def begin(log: Log, uuid: str, gsn: int) -> None:
    log.registry.record_dump_plan(KEY, uuid, replace(PLAN, ranges=(KeyRange(0, "", ""),)), T0)
    log.cut(dump_event("orders", gsn, "VERIFICATION_STARTED", uuid))
    log.cut(chunk("orders", uuid, 1, "", "", last=True, rows=0))


def end(log: Log, uuid: str, gsn: int) -> None:
    begin(log, uuid, gsn)
    log.cut(dump_event("orders", gsn + 1, "VERIFIED", uuid))


def can_not_tell(log: Log, database: Database, times: int, gsn: int = 50) -> None:
    """The one that runs, and those that follow it."""
    for number in range(gsn, gsn + 10 * times, 10):
        [(verification, _)] = ordered(log)
        end(log, verification, number)
        told(database, verdict(number, "unknown", verification=verification, **UNSURE))


def state(database: Database) -> str:
    with database.read() as connection:
        return str(connection.execute(select(ProofOfTable.state)).scalar_one())


@pytest.mark.parametrize("is_told_first", [True, False])
def test_repair_when_its_verification_can_not_tell_then_another_one_of_its_ranges_does(
    is_told_first: bool, whole: Log, database: Database
) -> None:
    uuid = repair(whole, database)
    [(first, focus)] = ordered(whole)
    assert focus is not None and focus.repaired_by == uuid
    begin(whole, first, 50)
    if is_told_first:
        told(database, verdict(50, "unknown", verification=first, **UNSURE))
        assert ordered(whole) == [(first, focus)], "it has not ended yet"
    whole.cut(dump_event("orders", 51, "VERIFIED", first))
    if not is_told_first:
        assert ordered(whole) == []
        told(database, verdict(50, "unknown", verification=first, **UNSURE))
    [(second, again)] = ordered(whole)
    assert second != first and again == focus and state(database) == Proof.DIFFERS
    end(whole, second, 60)
    told(database, verdict(60, verification=second))
    assert ordered(whole) == [] and state(database) == Proof.EQUAL


def test_repair_when_no_verification_can_tell_then_they_wait_longer_and_end_and_the_verdict_says_so(
    whole: Log, database: Database
) -> None:
    uuid = repair(whole, database)
    can_not_tell(whole, database, MOST_PROOFS)
    assert ordered(whole) == []
    with database.read() as connection:
        reason = connection.execute(select(Verdict.reason).order_by(Verdict.id.desc())).scalars().first()
        delays = connection.execute(select(Dump.delay_seconds).order_by(Dump.id)).scalars().all()
    assert reason is not None and f"the {MOST_PROOFS} verifications that may follow repair {uuid} could" in reason
    assert "menura verify run shop shop.orders" in reason and state(database) == Proof.DIFFERS
    assert list(delays) == sorted(delays) and delays[-1] > 60


@pytest.mark.parametrize("before", [MOST_PROOFS, MOST_PROOFS - 3])
def test_repair_when_a_schedule_goes_on_after_its_verifications_then_no_more_than_its_number_follow_it(
    before: int, whole: Log, database: Database
) -> None:
    repair(whole, database)
    can_not_tell(whole, database, before)
    at_us = now_us()
    command(database, verification_schedules.put, Schedule(86_400), at_us)
    for turn in range(1, 5):
        for verification, _ in ordered(whole):
            command(database, rereads.cancel, verification)
        assert command(database, verification_schedules.order_next, at_us + turn * DAY_US)
        can_not_tell(whole, database, 1, 100 + 100 * turn)
        assert len(ordered(whole)) == (before + 2 * turn < MOST_PROOFS)
    with database.read() as connection:
        kept = connection.execute(select(func.count()).where(Dump.cause == VERIFICATION)).scalar_one()
    assert kept <= MOST_PROOFS + 1, "older ones are forgotten"


def test_repair_when_ranges_are_equal_in_a_lake_that_knows_nothing_of_the_rest_then_the_whole_table_is_verified(
    whole: Log, database: Database
) -> None:
    repair(whole, database)
    [(first, _)] = ordered(whole)
    end(whole, first, 50)
    told(database, verdict(50, "unknown", verification=first, leaves_equal=3, leaves_unknown=0))
    [(second, focus)] = ordered(whole)
    assert focus is None
    end(whole, second, 60)
    told(database, verdict(60, "unknown", verification=second, **UNSURE))
    [(_, focus)] = ordered(whole)
    assert focus is None


@pytest.mark.parametrize("what", ["void", "differs", "suspected", "differs since"])
def test_repair_when_its_verification_says_something_else_then_no_other_one_is_ordered(
    what: str, whole: Log, database: Database
) -> None:
    repair(whole, database)
    [(first, _)] = ordered(whole)
    end(whole, first, 50)
    if what == "differs since":
        told(database, verdict(50, "differs", verification=first))
        [outcome] = verify(database, ORDERS)
        first = outcome.dump
        end(whole, first, 60)
    leaves = {"leaves_differ": 1, "leaves": (LEAF,), **UNSURE} if what == "suspected" else UNSURE
    said = what if what in ("void", "differs") else "unknown"
    told(database, verdict(80, said, verification=first, **({} if what == "differs" else leaves)))
    assert ordered(whole) == []


def test_table_when_no_repair_was_done_then_an_unknown_verdict_orders_nothing(whole: Log, database: Database) -> None:
    differing(whole, database)
    for gsn in (50, 80):
        [outcome] = verify(database, ORDERS)
        end(whole, outcome.dump, gsn)
        told(database, verdict(gsn, "unknown", verification=outcome.dump, **UNSURE))
        assert ordered(whole) == []
        uuid = dump(database, "orders")
        whole.registry.record_dump_plan(KEY, uuid, replace(PLAN, ranges=(KeyRange(0, "", ""),)), T0)
        whole.cut(dump_event("orders", gsn + 5, "DUMP_STARTED", uuid))
        whole.cut(chunk("orders", uuid, 1, "", "", last=True))
        whole.cut(dump_event("orders", gsn + 6, "DUMPED", uuid, before=gsn + 5))
