"""Repairs in the control plane: of what differs, once, with who ordered it, and a verification after each."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from uuid import uuid4

import httpx
import pytest
from menura.lake_report import LakeLeaf, LakeVerdict
from menura.landed_digest import LandedFocus, LandedRange
from menura.landing import KeyNumbers, LandedEvent, LandedRepair
from sqlalchemy import select, update

from controlplane_api import dumps, repairs, rereads, verification_schedules, verifications
from controlplane_api.continuity_ledger import newest
from controlplane_api.database import Database
from controlplane_api.dump_lives import DEFAULT_OPTIONS, DumpOptions
from controlplane_api.errors import RepairImpossible
from controlplane_api.models import AnyRow, Dump, Sync
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.verification_schedules import Schedule
from gateway.registry import DumpPlanned, KeyRange
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.dump_facts import PLAN, Log, command, dump, log, missing, row_of, streaming
from tests.controlplane_api.facts import KEY, T0, chunk, dump_event
from tests.controlplane_api.lake_facts import Sink
from tests.controlplane_api.test_api import SHOP
from tests.controlplane_api.test_dump_api import stream_orders
from tests.controlplane_api.test_verifications import ORDERS, whole
from tests.controlplane_api.verdict_facts import verdict
from tests.stack import http_client

__all__ = ["log", "streaming", "whole"]

#: leaves of one chunk, the second one of them twice
FOCUS = LandedFocus(
    (
        LandedRange("", '["900","#"]', (300,), (400,), 100),
        LandedRange("", '["900","#"]', (400,), (500,), 100),
        LandedRange('["900","#"]', "", (950,), (), 30),
    ),
    12,
    (3,),
    ("integer",),
    rest_equal_at_us=T0 - 5,
    rest_equal_in="of-this-lake",
    since_gsn=11,
)
RANGES = (KeyNumbers((300,), (500,)), KeyNumbers((950,), ()))
PLANNED = DumpPlanned(("id",), (KeyRange(0, '["300"]', '["500"]'), KeyRange(1, '["950"]', "")), 0, 0, None, None, "")
ROW = LakeLeaf("", "", 1, 1, '["77"]', "name")


def differing(log: Log, database: Database, focus: LandedFocus | None = FOCUS, gsn: int = 20) -> str:
    """A verification whose rows differ."""
    (outcome,) = command(database, verifications.start_verifications, [ORDERS], DEFAULT_OPTIONS)
    if focus is not None:
        with database.write() as connection:
            connection.execute(update(Dump).where(Dump.uuid == outcome.dump).values(focus=asdict(focus)))
    log.registry.record_dump_plan(KEY, outcome.dump, replace(PLAN, ranges=(KeyRange(0, "", ""),)), T0)
    log.cut(dump_event("orders", gsn, "VERIFICATION_STARTED", outcome.dump))
    log.cut(chunk("orders", outcome.dump, 1, "", "", last=True, rows=0))
    log.cut(dump_event("orders", gsn + 1, "VERIFIED", outcome.dump))
    differs = verdict(gsn, "differs", verification=outcome.dump, leaves=(ROW,))
    told(database, differs)
    return outcome.dump


def told(database: Database, *verdicts: LakeVerdict) -> None:
    Sink(run=uuid4().hex).tell(database, base=0, verdicts=verdicts)


def repaired(gsn: int, uuid: str, before: int) -> LandedEvent:
    return replace(dump_event("orders", gsn, "REPAIRED", uuid), repaired=LandedRepair(before, ("id",), RANGES))


def is_read(log: Log, uuid: str, gsn: int) -> None:
    """From its plan to the chunks."""
    log.registry.record_dump_plan(KEY, uuid, PLANNED, T0)
    log.cut(dump_event("orders", gsn, "REPAIR_STARTED", uuid))
    first = chunk("orders", uuid, 1, '["300"]', '["500"]', last=True)
    log.cut(replace(first, repairs=True), chunk("orders", uuid, 2, '["950"]', "", last=True, of_range=1))


@pytest.mark.parametrize("is_rest_equal", [True, False])
def test_table_that_differs_when_it_is_repaired_then_its_ranges_are_ordered_once_and_verified_at_the_end(
    is_rest_equal: bool, whole: Log, database: Database
) -> None:
    command(database, verification_schedules.put, Schedule(86_400, rows_per_second=5_000), T0)
    verification = differing(whole, database, FOCUS if is_rest_equal else replace(FOCUS, rest_equal_at_us=0))
    planned = command(database, repairs.plan, ORDERS)
    slow = DumpOptions(priority=3, workers=1, rows_per_second=100, bytes_per_second=1_000)
    uuid, found = command(database, repairs.order, ORDERS, slow)
    assert found == planned and found.verdict.verification == verification
    ranges = (LandedRange("", "", (300,), (500,), 200), LandedRange("", "", (950,), (), 30))
    assert (found.focus.ranges, found.focus.buckets, found.estimated_rows) == (ranges, (), 230)
    assert found.focus.since_gsn == 11
    (desired,) = whole.registry.dumps(KEY).dumps
    assert (desired.dump, desired.repairs, desired.focus) == (uuid, True, found.focus)
    with pytest.raises(Exception, match=f"dump {uuid} of this table runs already"):
        command(database, repairs.order, ORDERS)
    is_read(whole, uuid, 30)
    (desired,) = whole.registry.dumps(KEY).dumps
    assert (desired.started_gsn, desired.remaining) == (30, ())
    assert whole.registry.desired(KEY).tables[0].dump_gsn == 0, "no row of the rest is on its way"
    whole.cut(repaired(40, uuid, 30))
    assert (row_of(database, uuid)["state"], row_of(database, uuid)["rows"]) == ("done", 20)
    (after,) = whole.registry.dumps(KEY).dumps
    assert (after.priority, after.workers, after.rows_per_second, after.bytes_per_second) == (3, 0, 5_000, 0)
    assert after.verifies and after.focus == (replace(found.focus, repaired_by=uuid) if is_rest_equal else None)
    entries = [(each.kind, each.dump, each.detail) for each in _ledger(database)]
    assert ("REPAIRED", uuid, "rows with (id) above 300 up to 500, above 950 read again") in entries
    assert any(kind == "REPAIR_STARTED" and of == uuid for kind, of, _ in entries)
    command(database, rereads.cancel, after.dump)
    with pytest.raises(RepairImpossible, match=f"older than repair {uuid}"):
        command(database, repairs.plan, ORDERS)
    differing(whole, database, gsn=50)
    assert command(database, repairs.plan, ORDERS).estimated_rows == 230


def _ledger(database: Database) -> Sequence[AnyRow]:
    with database.read() as connection:
        table_id = connection.execute(select(Sync.table_id)).scalars().first()
        assert table_id is not None
        return newest(connection, table_id, 100)


def test_repair_when_it_is_applied_again_in_a_database_that_was_lost_then_nothing_is_ordered(
    whole: Log, database: Database
) -> None:
    unknown = "0f8e0000-0000-4000-8000-000000000001"
    whole.cut(dump_event("orders", 20, "REPAIR_STARTED", unknown))
    whole.cut(repaired(30, unknown, 20))
    row = row_of(database, unknown)
    assert (row["cause"], row["state"], missing(database)) == ("repair", "done", "")
    assert whole.registry.dumps(KEY).dumps == ()


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_repair_when_it_ends_early_then_no_row_is_missing_and_it_can_be_ordered_again(
    end: str, whole: Log, database: Database
) -> None:
    differing(whole, database)
    uuid, _ = command(database, repairs.order, ORDERS)
    if end == "failed":
        whole.registry.record_dump_plan(KEY, uuid, DumpPlanned((), (), None, None, None, None, ""), T0)
        assert row_of(database, uuid)["problem"]["code"] == "REPAIR_IMPOSSIBLE"
        assert whole.registry.desired(KEY).tables[0].start_dump == "", "its sync does not begin with it"
    else:
        assert command(database, rereads.cancel, uuid)
    assert row_of(database, uuid)["state"] == end
    assert missing(database) == "" and command(database, dumps.unfinished, None) == {}
    again, _ = command(database, repairs.order, ORDERS)
    assert again != uuid


def test_tables_when_they_can_not_be_repaired_then_are_refused_with_the_reason_and_the_way_out(
    whole: Log, database: Database
) -> None:
    def refusal() -> RepairImpossible:
        with pytest.raises(RepairImpossible) as refused:
            command(database, repairs.plan, ORDERS)
        return refused.value

    assert "no verification says that it differs: never" in refusal().found
    assert refusal().remedy == "Run: menura verify run shop shop.orders"
    differing(whole, database, None)
    assert "in one snapshot" in refusal().found and "menura sync resync shop shop.orders" in refusal().remedy
    differing(whole, database, gsn=30)
    with database.write() as connection:
        connection.execute(update(Sync).values(foreign_keys={"foreign_keys": [{}]}))
    assert "foreign keys" in refusal().found and "menura sync resync shop shop.orders" in refusal().remedy
    with database.write() as connection:
        connection.execute(update(Sync).values(foreign_keys=None))
    uuid = dump(database, "orders")
    whole.registry.record_dump_plan(KEY, uuid, replace(PLAN, ranges=(KeyRange(0, "", ""),)), T0)
    whole.cut(dump_event("orders", 50, "DUMP_STARTED", uuid))
    whole.cut(chunk("orders", uuid, 1, "", "", last=True))
    whole.cut(dump_event("orders", 60, "DUMPED", uuid, before=50))
    assert f"older than dump {uuid}" in refusal().found
    told(database, verdict(90))
    assert "no verification says that it differs: equal" in refusal().found


@pytest.mark.parametrize("kind", ["sqlite"])
def test_clients_when_they_repair_a_table_then_they_see_what_first_and_the_ledger_says_who(
    database: Database, registry: SqlRegistry
) -> None:
    with serving(database) as url, http_client(url) as client:
        stream_orders(client, registry)
        with database.write() as connection:
            connection.execute(update(Sync).values(earlier_rows_missing=""))
        path, asked = f"{SHOP}/tables/shop/orders/repair", {"MENURA_API": url, "MENURA_TENANT": "acme"}
        refused: httpx.Response = client.post(path, json={})
        assert (refused.status_code, refused.json()["code"]) == (409, "REPAIR_IMPOSSIBLE")
        (outcome,) = command(database, verifications.start_verifications, [ORDERS], DEFAULT_OPTIONS)
        with database.write() as connection:
            done = {"focus": asdict(FOCUS), "key": ["id"], "state": "done"}
            connection.execute(update(Dump).where(Dump.uuid == outcome.dump).values(done))
        told(database, verdict(1, "differs", verification=outcome.dump, leaves=(ROW,)))
        shown = menura("verify", "repair", "shop", "shop.orders", "--dry-run", **asked)
        assert "above 300 up to 500" in shown.stdout and '["77"] in name' in shown.stdout, shown.stderr
        assert registry.dumps(KEY).dumps == ()
        answer = client.post(path, json={"priority": 3})
        assert (answer.status_code, answer.json()["verifies"], answer.json()["estimated_rows"]) == (202, "ranges", 230)
        operation = client.get(answer.headers["location"]).json()
        assert operation["kind"] == "repair"
        (desired,) = registry.dumps(KEY).dumps
        assert (desired.dump, desired.repairs, desired.priority) == (answer.json()["repair"], True, 3)
        again = menura("verify", "repair", "shop", "shop.orders", **asked)
        assert "DUMP_RUNNING" in again.stderr
        ledger = json.loads(menura("ledger", "shop", "shop.orders", "--json", **asked).stdout)
        (commanded,) = [each for each in ledger["entries"] if each["detail"].startswith("repair of rows with (id)")]
        assert commanded["actor"] and "above 300 up to 500, above 950" in commanded["detail"]
