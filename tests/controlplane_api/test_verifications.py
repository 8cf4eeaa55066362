"""Verifications in the control plane: ordered like dumps, followed by the ledger, and no word on what a sync lacks."""

import json
from dataclasses import replace

import httpx
import pytest
from menura.lake_report import LakeSuspect
from menura.landed_digest import LandedDigest, LandedFocus, LandedLeaf, LandedRange
from sqlalchemy import update

from controlplane_api import dumps, rereads, verifications
from controlplane_api.database import Database
from controlplane_api.drill_downs import order_drill_downs
from controlplane_api.dump_lives import DEFAULT_OPTIONS
from controlplane_api.models import SourceTable, Sync
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.syncs import Outcome
from gateway.registry import DumpPlanned, Problem
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.dump_facts import PLAN, Log, command, dump, log, missing, row_of, streaming
from tests.controlplane_api.facts import KEY, T0, chunk, dump_event, stopped
from tests.controlplane_api.test_api import SHOP
from tests.controlplane_api.test_dump_api import stream_orders
from tests.stack import http_client

__all__ = ["log", "streaming"]

ORDERS = ("shop", "orders")


@pytest.fixture
def whole(streaming: Log, database: Database) -> Log:
    """shop.orders streams, and no row of it is missing."""
    with database.write() as connection:
        connection.execute(update(Sync).values(earlier_rows_missing=""))
    return streaming


def verify(database: Database, *tables: tuple[str, str]) -> list[Outcome]:
    return command(database, verifications.start_verifications, list(tables) or None, DEFAULT_OPTIONS)


def begun(whole: Log, database: Database) -> str:
    (outcome,) = verify(database, ORDERS)
    whole.registry.record_dump_plan(KEY, outcome.dump, PLAN, T0)
    whole.cut(dump_event("orders", 20, "VERIFICATION_STARTED", outcome.dump))
    return outcome.dump


def test_verification_when_the_log_has_all_of_it_then_it_is_done_and_its_sync_is_as_before(
    whole: Log, database: Database
) -> None:
    uuid = begun(whole, database)
    (order,) = whole.registry.dumps(KEY).dumps
    assert (order.verifies, order.started_gsn) == (True, 20)
    (desired,) = whole.registry.desired(KEY).tables
    assert desired.dump_gsn == 0, "no rows of before are on their way"
    digest = LandedDigest((("id", "l"),), ("id",), (LandedLeaf((), 10, 1, 2),))
    first = chunk("orders", uuid, 1, "", '["500"]', last=True)
    second = chunk("orders", uuid, 2, '["500"]', "", last=True, of_range=1)
    whole.cut(replace(first, digest=digest), replace(second, digest=digest))
    assert not whole.registry.dumps(KEY).dumps[0].remaining
    whole.cut(dump_event("orders", 40, "VERIFIED", uuid))
    assert (row_of(database, uuid)["state"], row_of(database, uuid)["rows"]) == ("done", 20)
    assert missing(database) == "" and not whole.registry.dumps(KEY).dumps


def test_verification_when_the_database_is_built_anew_from_the_log_then_it_is_no_dump_that_lacks_rows(
    whole: Log, database: Database
) -> None:
    unknown = "0f8e0000-0000-4000-8000-000000000001"
    whole.cut(dump_event("orders", 20, "VERIFICATION_STARTED", unknown))
    assert missing(database) == ""
    assert row_of(database, unknown)["cause"] == "verification"


@pytest.mark.parametrize("end", ["failed", "stopped", "cancelled"])
def test_verification_when_it_ends_early_then_no_row_of_its_table_is_missing(
    end: str, whole: Log, database: Database
) -> None:
    uuid = begun(whole, database)
    with database.write() as connection:  # of before: it stays what it is
        connection.execute(update(Sync).values(earlier_rows_missing="purged"))
    if end == "failed":
        whole.registry.record_dump_failed(KEY, uuid, Problem("VERIFICATION_IMPOSSIBLE", "no.", True, T0), T0)
    elif end == "stopped":
        whole.cut(stop=[stopped("orders", 3)])
    else:
        assert command(database, rereads.cancel, uuid)
    assert row_of(database, uuid)["state"] == ("failed" if end == "failed" else "cancelled")
    assert missing(database) == "purged"
    assert command(database, dumps.unfinished, None) == {}


def test_tables_when_they_can_not_be_verified_then_are_refused_with_the_reason(whole: Log, database: Database) -> None:
    dump(database, "orders")
    outcomes = {(each.database, each.table): each.refused for each in verify(database, ORDERS, ("shop", "items"))}
    assert [refused and refused.code for refused in outcomes.values()] == ["DUMP_RUNNING", "SYNC_NOT_RUNNING"]
    assert verify(database) == []
    command(database, rereads.cancel, whole.registry.dumps(KEY).dumps[0].dump)
    (lacking,) = verify(database, ORDERS)
    assert lacking.refused is None, "the dump was beside the stream, which lacks nothing"
    command(database, rereads.cancel, lacking.dump)
    with database.write() as connection:
        connection.execute(update(SourceTable).values(keys=[]))
    (keyless,) = verify(database, ORDERS)
    assert keyless.refused is None, "it is read in one snapshot"
    command(database, rereads.cancel, keyless.dump)
    with database.write() as connection:
        connection.execute(update(Sync).values(earlier_rows_missing="purged"))
    (outcome,) = verify(database, ORDERS)
    assert outcome.refused is not None
    assert outcome.refused.code == "VERIFICATION_IMPOSSIBLE"
    assert "the lake lacks rows of it: purged" in outcome.refused.found


def test_verification_when_its_plan_has_no_key_then_it_fails_and_its_sync_goes_on(
    whole: Log, database: Database
) -> None:
    (outcome,) = verify(database, ORDERS)
    whole.registry.record_dump_plan(KEY, outcome.dump, DumpPlanned((), (), None, None, None, None, ""), T0)
    row = row_of(database, outcome.dump)
    assert (row["state"], row["problem"]["code"]) == ("failed", "VERIFICATION_IMPOSSIBLE")
    (desired,) = whole.registry.desired(KEY).tables
    assert desired.start_dump == ""


FOCUS = LandedFocus((LandedRange('["1","#"]', "", (1,), (9,)),), 4, (3, -7), ("integer",))


def test_table_when_a_sink_says_that_leaves_of_it_differ_then_they_are_read_again_once(
    whole: Log, database: Database
) -> None:
    uuid = begun(whole, database)
    suspect = LakeSuspect("acme", "shop", *ORDERS, uuid, FOCUS)
    command_all = [suspect, replace(suspect, table="items"), replace(suspect, verification="0f8e")]

    def order() -> list[str]:
        with database.write() as connection:
            order_drill_downs(connection, command_all)
        return [each.dump for each in whole.registry.dumps(KEY).dumps]

    assert order() == [uuid], "it is not done"
    digest = LandedDigest((("id", "l"),), ("id",), (LandedLeaf((), 10, 1, 2),))
    first = chunk("orders", uuid, 1, "", '["500"]', last=True)
    second = chunk("orders", uuid, 2, '["500"]', "", last=True, of_range=1)
    whole.cut(replace(first, digest=digest), replace(second, digest=digest))
    whole.cut(dump_event("orders", 40, "VERIFIED", uuid))
    (again,) = order()
    assert again != uuid and order() == [again]
    (desired,) = whole.registry.dumps(KEY).dumps
    assert (desired.verifies, desired.focus, desired.plan) == (True, FOCUS, None)
    whole.registry.record_dump_plan(KEY, again, PLAN, T0)
    (desired,) = whole.registry.dumps(KEY).dumps
    assert desired.focus == FOCUS and desired.plan is not None and desired.plan.key == PLAN.key
    command(database, rereads.cancel, again)
    assert order() == [], "it was ordered already"


@pytest.mark.parametrize("kind", ["sqlite"])
def test_clients_when_they_verify_tables_then_an_operation_says_how_far_each_is(
    database: Database, registry: SqlRegistry
) -> None:
    with serving(database) as url, http_client(url) as client:
        stream_orders(client, registry)
        with database.write() as connection:
            connection.execute(update(Sync).values(earlier_rows_missing=""))
        answer: httpx.Response = client.post(f"{SHOP}/verifications", json={"tables": "all", "priority": 2})
        assert answer.status_code == 202
        operation = client.get(answer.headers["location"]).json()
        assert operation["kind"] == "verify"
        (desired,) = registry.dumps(KEY).dumps
        assert (desired.verifies, desired.priority) == (True, 2)
        done = menura("verify", "run", "shop", "shop.orders", MENURA_API=url, MENURA_TENANT="acme")
        assert "DUMP_RUNNING" in done.stderr
        shown = menura("dump", "show", desired.dump, "--json", MENURA_API=url, MENURA_TENANT="acme")
        assert json.loads(shown.stdout)["cause"] == "verification"
        assert menura("dump", "cancel", desired.dump, MENURA_API=url, MENURA_TENANT="acme").returncode == 0
        done = menura("verify", "run", "shop", "--all", MENURA_API=url, MENURA_TENANT="acme")
        assert "shop.orders: verification begun." in done.stdout, done.stderr
