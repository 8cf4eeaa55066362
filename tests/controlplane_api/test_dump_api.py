"""Dumps over REST."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import DumpPlanned, DumpSeen, KeyRange, Problem, SourceKey
from tests.controlplane_api import facts
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, T0, chunk, cut, dump_event, entry, file, started
from tests.controlplane_api.test_api import SHOP, path_of, post, problem
from tests.stack import http_client

ACME = "/api/v1/tenants/acme"
RANGES = tuple(KeyRange(number, f'["{number}"]' if number else "", f'["{number + 1}"]') for number in range(4))


@pytest.fixture
def client(database: Database) -> Iterator[httpx.Client]:
    with serving(database) as url, http_client(url) as client:
        yield client


@pytest.fixture
def shop(client: httpx.Client, registry: SqlRegistry) -> SqlRegistry:
    stream_orders(client, registry)
    return registry


def stream_orders(client: httpx.Client, registry: SqlRegistry) -> None:
    """shop.orders streams, its agent is connected."""
    facts.record_shop(registry)
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [], facts.fresh_us())
    post(client, path_of("shop", "orders", "/start"), {"start": "oldest"})
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started("orders", 0, "purged")])))


def now() -> int:
    return time.time_ns() // 1000


def read_some(registry: SqlRegistry, uuid: str) -> None:
    """A quarter of the table is in the lake, read within the last second."""
    registry.record_dump_plan(KEY, uuid, DumpPlanned(("id",), RANGES, 1_000, 64_000, 7_200, None, "mind the gap"), T0)
    registry.record_dump_status(KEY, [DumpSeen(uuid, "READING", "", 500, 25_000, 20)], facts.fresh_us())
    done = chunk("orders", uuid, 1, "", '["1"]', last=True, rows=300)
    second = cut(2, file("orders", 300), chunks=[done], events=[dump_event("orders", 20, "DUMP_STARTED", uuid)])
    registry.apply_entry(LANDING, entry(2, second))


def test_dump_when_it_reads_then_shows_progress_speed_and_plan(client: httpx.Client, shop: SqlRegistry):
    begun = post(client, path_of("shop", "orders", "/dump"), {"priority": 3, "limits": {"workers": 2}})
    assert (begun["state"], begun["reason"], begun["percent"]) == ("pending", "", None)
    read_some(shop, begun["dump"])
    shown = client.get(f"{SHOP}/dumps/{begun['dump']}").json()
    assert {name: shown[name] for name in ("state", "rows", "bytes", "chunks", "uncommitted_rows", "percent")} == {
        "state": "reading", "rows": 300, "bytes": 15_000, "chunks": 1, "uncommitted_rows": 20,
        "percent": 25.0,
    }  # fmt: skip
    assert (shown["rows_per_second"], shown["priority"], shown["limits"]["workers"]) == (500, 3, 2)
    assert (shown["ranges_done"], shown["ranges"], shown["key"]) == (1, 4, ["id"])
    assert (shown["warning"], shown["runway_seconds"], shown["needed_seconds"]) == ("mind the gap", 7_200, None)
    assert shown["of_ranges"][0] == {"number": 0, "done": True, "rows": 300, "bytes": 15_000, "chunks": 1}
    assert shown["expected_rows"] == 1_200
    # what is not committed does not count: 900 rows at 500 a second
    assert abs(shown["estimated_end_us"] - now() - 1_800_000) < 60_000_000
    table = client.get(path_of("shop", "orders")).json()
    assert (table["dump"]["dump"], table["dump"]["percent"]) == (begun["dump"], shown["percent"])
    assert client.get(SHOP).json()["dumps"] == 1


def test_dump_when_nothing_tells_its_end_then_it_is_unknown(client: httpx.Client, shop: SqlRegistry):
    uuid = post(client, path_of("shop", "orders", "/dump"))["dump"]
    shop.record_dump_plan(KEY, uuid, DumpPlanned((), (), None, None, 60, 10, ""), T0)
    shop.record_dump_status(KEY, [DumpSeen(uuid, "READING", "", 500, 25_000, 7_000)], facts.fresh_us())
    shown = client.get(f"{SHOP}/dumps/{uuid}").json()
    assert (shown["percent"], shown["estimated_end_us"], shown["uncommitted_rows"]) == (None, None, 7_000)
    assert (shown["expected_rows"], shown["rows"]) == (None, 0)
    shop.record_dump_status(KEY, [DumpSeen(uuid, "WAITING", "80 threads run", 0, 0, 7_000)], facts.fresh_us())
    shown = client.get(f"{SHOP}/dumps/{uuid}").json()
    assert (shown["state"], shown["reason"], shown["estimated_end_us"]) == ("waiting", "80 threads run", None)
    full = "LANDING_FAILED: writing a dump's files: OSError No space left on device."
    shop.record_source_problem(KEY, Problem("LANDING_FAILED", full, terminal=False, at_us=T0), T0)
    shown = client.get(f"{SHOP}/dumps/{uuid}").json()
    assert (shown["state"], shown["reason"]) == ("waiting", full)
    shop.record_agent_gone("acme", "agent-1", "run-1", now())
    shown = client.get(f"{SHOP}/dumps/{uuid}").json()
    assert (shown["state"], shown["reason"]) == ("pending", "its agent is not connected")
    assert (shown["rows_per_second"], shown["uncommitted_rows"]) == (None, 0)


@pytest.mark.parametrize(
    ("ends", "statistics", "expected"),
    [
        ((1.0, 2_001.0), 0, 1_200),  # of 2,000 keys 500 are read, with 300 rows
        ((1.0, 2_001.0), 999_999_999, 1_200),
        ((None, None), 0, None),
        ((None, None), 200, None),  # more came than they know of
        ((None, None), 2_400, 2_400),
        ((1.0, 1e9), 2_400, 2_400),  # too little of the keys to tell
    ],
)
def test_progress_when_statistics_are_stale_then_goes_by_the_part_of_the_key_that_is_read(
    client: httpx.Client,
    shop: SqlRegistry,
    ends: tuple[float | None, float | None],
    statistics: int,
    expected: int | None,
):
    uuid = post(client, path_of("shop", "orders", "/dump"))["dump"]
    plan = DumpPlanned(("id",), (KeyRange(0, "", ""),), statistics, 0, None, None, "", *ends)
    shop.record_dump_plan(KEY, uuid, plan, T0)
    begun = dump_event("orders", 20, "DUMP_STARTED", uuid)
    read = chunk("orders", uuid, 1, "", '["501","#00"]', rows=300)
    shop.apply_entry(LANDING, entry(2, cut(2, file("orders", 300), chunks=[read], events=[begun])))
    shop.record_dump_status(KEY, [DumpSeen(uuid, "READING", "", 100, 1, 50)], now())
    shown = client.get(f"{SHOP}/dumps/{uuid}").json()
    assert (shown["rows"], shown["expected_rows"]) == (300, expected)
    assert shown["percent"] == (None if expected is None else 30_000 / expected)
    assert (shown["estimated_end_us"] is None) is (expected is None)


def test_dump_when_its_source_is_in_error_then_says_so_while_the_agent_says_nothing_of_it(
    client: httpx.Client, shop: SqlRegistry
):
    uuid = post(client, path_of("shop", "orders", "/dump"))["dump"]
    missing = "SOURCE_GRANT_MISSING: reading what tables exist. Run on the server: GRANT SELECT ON *.* TO 'menura'@'%'."
    shop.record_source_problem(KEY, Problem("SOURCE_GRANT_MISSING", missing, terminal=True, at_us=T0), T0)
    shown = client.get(f"{SHOP}/dumps/{uuid}").json()
    assert (shown["state"], shown["reason"]) == ("pending", missing)


def test_commands_when_posted_then_the_agent_is_asked_and_the_answer_shows_it(client: httpx.Client, shop: SqlRegistry):
    uuid = post(client, path_of("shop", "orders", "/dump"))["dump"]
    path = f"{SHOP}/dumps/{uuid}"
    paused = post(client, f"{path}/pause")
    assert (paused["state"], paused["reason"], paused["changed"]) == ("paused", "by command", True)
    assert post(client, f"{path}/pause")["changed"] is False
    assert post(client, f"{path}/resume")["state"] == "pending"
    assert post(client, f"{path}/priority", {"priority": -5})["priority"] == -5
    limits = {"workers": 1, "rows_per_second": 10, "bytes_per_second": 1 << 20}
    assert post(client, f"{path}/limits", limits)["limits"] == limits
    (desired,) = shop.dumps(KEY).dumps
    assert (desired.priority, desired.workers, desired.rows_per_second) == (-5, 1, 10)
    assert post(client, f"{path}/cancel")["state"] == "cancelled"
    problem(client.post(f"{path}/pause", json={}), 409, "DUMP_OVER")
    assert "cancelled" in client.get(path_of("shop", "orders")).json()["earlier_rows_missing"]


def test_commands_when_refused_then_problems_say_what_to_do(client: httpx.Client, shop: SqlRegistry):
    uuid = post(client, path_of("shop", "orders", "/dump"))["dump"]
    found = problem(client.post(path_of("shop", "orders", "/dump"), json={}), 409, "DUMP_RUNNING")
    assert uuid in found["remedy"]
    found = problem(client.post(path_of("shop", "items", "/dump"), json={}), 409, "SYNC_NOT_RUNNING")
    assert "menura sync start shop shop.items --from dump" in found["remedy"]
    problem(client.post(path_of("shop", "nowhere", "/dump"), json={}), 404, "TABLE_UNKNOWN")
    problem(client.get(f"{SHOP}/dumps/nowhere"), 404, "DUMP_UNKNOWN")
    problem(client.post(f"{SHOP}/dumps/nowhere/cancel", json={}), 404, "DUMP_UNKNOWN")
    bad: list[tuple[str, Any]] = [
        ("priority", {"priority": 10**6}), ("priority", {}), ("limits", {"workers": -1}), ("limits", {"speed": 1}),
        ("pause", {"now": True}),
    ]  # fmt: skip
    for word, body in bad:
        problem(client.post(f"{SHOP}/dumps/{uuid}/{word}", json=body), 422, "REQUEST_INVALID")
    problem(client.post(path_of("shop", "orders", "/start"), json={"start": "dump"}), 409, "SYNC_RUNNING")
    outcomes = post(client, f"{SHOP}/dumps", {"tables": [{"database": "shop", "table": "items"}]})
    assert outcomes["tables"][0]["refused"]["code"] == "SYNC_NOT_RUNNING"


def test_start_when_from_a_dump_then_the_dump_is_made_with_its_options(client: httpx.Client, shop: SqlRegistry):
    begun = post(client, path_of("shop", "items", "/start"), {"start": "dump", "dump": {"priority": 9, "force": True}})
    assert (begun["start"], begun["dump"]["priority"], begun["dump"]["forced"]) == ("dump", 9, True)
    assert shop.dumps(KEY).dumps[0].table == "items"
    outcomes = post(client, f"{SHOP}/start", {"tables": [{"database": "shop", "table": "notes"}], "start": "dump"})
    assert outcomes["tables"][0]["dump"] == shop.dumps(KEY).dumps[1].dump


def test_dumps_when_listed_then_paged_newest_first_and_only_the_tenants(client: httpx.Client, shop: SqlRegistry):
    other = SourceKey("globex", "shop")
    facts.record_shop(shop, "plans", key=other)
    theirs = "/api/v1/tenants/globex/sources/shop"
    post(client, f"{theirs}/tables/shop/plans/start", {"start": "dump"})
    ours = [post(client, path_of("shop", "orders", "/dump"))["dump"]]
    for _ in range(2):
        post(client, f"{SHOP}/dumps/{ours[0]}/cancel")
        ours.insert(0, post(client, path_of("shop", "orders", "/dump"))["dump"])
    pages, cursor = [], None
    while True:
        page = client.get(f"{ACME}/dumps", params={"limit": 2} | ({} if cursor is None else {"cursor": cursor})).json()
        pages.append([each["dump"] for each in page["dumps"]])
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert pages == [ours[:2], ours[2:]]
    running = client.get(f"{SHOP}/dumps", params={"running": True}).json()["dumps"]
    assert [each["dump"] for each in running] == ours[:1]
    (plans,) = client.get("/api/v1/tenants/globex/dumps").json()["dumps"]
    assert (plans["table"], plans["source"]) == ("plans", "shop")
    problem(client.get(f"{SHOP}/dumps/{plans['dump']}"), 404, "DUMP_UNKNOWN")
    for word, body in (("cancel", {}), ("pause", {}), ("limits", {}), ("priority", {"priority": 1})):
        problem(client.post(f"{SHOP}/dumps/{plans['dump']}/{word}", json=body), 404, "DUMP_UNKNOWN")
    problem(client.get("/api/v1/tenants/initech/sources/shop/dumps"), 404, "SOURCE_UNKNOWN")
    assert client.get("/api/v1/tenants/initech/dumps").json()["dumps"] == []
    assert len(shop.dumps(other).dumps) == 1


def test_retry_when_a_dump_failed_then_it_goes_on_at_its_chunk_or_another_one_begins(
    client: httpx.Client, shop: SqlRegistry
):
    first = post(client, path_of("shop", "orders", "/dump"), {"priority": 3})["dump"]
    read_some(shop, first)
    shop.record_dump_failed(KEY, first, Problem("DUMP_RESULT_INVALID", "No such row.", True, T0), T0)
    retried = post(client, path_of("shop", "orders", "/retry"))
    assert (retried["changed"], retried["notice"]) == (True, "Its dump goes on where it failed.")
    shown = client.get(f"{SHOP}/dumps/{first}").json()
    assert (shown["problem"], shown["chunks"]) == (None, 1)
    assert [each.dump for each in shop.dumps(KEY).dumps] == [first]
    assert post(client, path_of("shop", "orders", "/retry"))["notice"] == "Nothing of it has stopped."
    shop.record_dump_failed(KEY, first, Problem("DUMP_RESULT_INVALID", "No such row.", True, T0), T0)
    post(client, path_of("shop", "orders", "/stop"))
    post(client, path_of("shop", "orders", "/start"))
    (outcome,) = post(client, f"{SHOP}/retry", {"tables": "all"})["tables"]
    assert outcome["changed"]
    assert outcome["dump"] not in (None, "", first)
    assert [(each.dump, each.priority) for each in shop.dumps(KEY).dumps] == [(outcome["dump"], 3)]
    post(client, f"{SHOP}/dumps/{outcome['dump']}/cancel")
    assert post(client, path_of("shop", "orders", "/retry"))["notice"] == "Nothing of it has stopped."
