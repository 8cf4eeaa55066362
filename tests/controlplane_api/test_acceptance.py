"""Another server in place of the one that was read: it is shown, and followed when it is accepted; no other one is."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import httpx
import pytest

from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import OtherServerSeen, Problem, TableEffective
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, T0, cut, entry, record_shop, started
from tests.stack import http_client

OTHER = OtherServerSeen(
    identity="0f1e",
    server="uuid-2 db2 3306 2",
    former_server="uuid-1 db1 3306 1",
    lake_position="0-1-100",
    oldest_position="the log's beginning",
    end_position="0-2-120",
    goes_on_at="0-1-95",
    lacking="those after 0-1-95 up to 0-1-100",
    lacking_transactions=5,
)
DIVERGED = Problem("SOURCE_DIVERGED", "the lake has more", terminal=True, at_us=T0)
PATH = "/api/v1/tenants/acme/sources/shop"


def report(registry: SqlRegistry, other: OtherServerSeen | None) -> None:
    """The agent says what it does about its two tables."""
    generation = registry.desired(KEY).generation
    state, problem = ("WAITING", DIVERGED) if other else ("STREAMING", None)
    tables = [TableEffective("shop", table, state, problem) for table in ("orders", "items")]
    registry.record_effective(KEY, generation, tables, problem, T0, other)


@pytest.fixture
def waiting(registry: SqlRegistry, database: Database) -> Iterator[httpx.Client]:
    """Two tables are read, a third one is to begin, and then another server is there."""
    record_shop(registry, "orders", "items", "notes")
    with serving(database) as url, http_client(url) as client:
        tables = [{"database": "shop", "table": table} for table in ("orders", "items", "notes")]
        client.post(f"{PATH}/start", json={"tables": tables, "start": "now"}).raise_for_status()
        registry.apply_entry(LANDING, entry(1, cut(1, start=[started("orders", 1), started("items", 1)])))
        report(registry, OTHER)
        yield client


def accept(client: httpx.Client, identity: str) -> tuple[int, Any]:
    answer = client.post(f"{PATH}/other-server/accept", json={"identity": identity})
    return answer.status_code, answer.json()


def test_other_server_when_a_source_waits_for_its_acceptance_then_shows_it_and_each_table_says_why(
    waiting: httpx.Client,
) -> None:
    shown = waiting.get(f"{PATH}/other-server").json()
    assert shown == {**asdict(OTHER), "tables_to_read_again": 2}
    for table in ("orders", "items"):
        view = waiting.get(f"{PATH}/tables/shop/{table}").json()
        assert (view["state"], view["problem"]["code"]) == ("waiting", "SOURCE_DIVERGED")
    assert waiting.get(PATH).json()["problem"]["code"] == "SOURCE_DIVERGED"


def test_acceptance_when_it_names_the_server_that_is_there_then_the_agent_hears_of_it_once(
    waiting: httpx.Client, registry: SqlRegistry
) -> None:
    before = registry.desired(KEY)
    assert accept(waiting, "0f1e") == (200, {"changed": True})
    after = registry.desired(KEY)
    assert (before.accepted_server, after.accepted_server) == ("", "0f1e")
    assert after.generation == before.generation + 1
    assert after.tables == before.tables
    assert accept(waiting, "0f1e") == (200, {"changed": False})
    assert registry.desired(KEY).generation == after.generation


def test_acceptance_when_yet_another_server_is_there_then_is_refused(
    waiting: httpx.Client, registry: SqlRegistry
) -> None:
    report(registry, replace(OTHER, identity="2d3c"))
    status, problem = accept(waiting, "0f1e")
    assert (status, problem["code"]) == (409, "OTHER_SERVER_CHANGED")
    assert problem["remedy"] == "Look again: menura sources accept shop"
    assert registry.desired(KEY).accepted_server == ""


def test_acceptance_when_the_source_waits_for_none_then_is_refused(
    waiting: httpx.Client, registry: SqlRegistry
) -> None:
    report(registry, None)
    assert accept(waiting, "0f1e")[0] == 404
    answer = waiting.get(f"{PATH}/other-server")
    assert (answer.status_code, answer.json()["code"]) == (404, "OTHER_SERVER_MISSING")
    assert waiting.get(f"{PATH}/tables/shop/orders").json()["state"] == "streaming"


def test_other_server_when_it_is_another_tenants_then_is_not_shown(waiting: httpx.Client) -> None:
    answer = waiting.get("/api/v1/tenants/other/sources/shop/other-server")
    assert (answer.status_code, answer.json()["code"]) == (404, "SOURCE_UNKNOWN")
