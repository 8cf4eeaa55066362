"""A control database that is lost: what the cut log lacks is said, with what to do, until somebody does it."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from controlplane_api.database import open_database
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, cut, entry, file, record_shop, started
from tests.stack import http_client

PATH = "/api/v1/tenants/acme/sources/shop"


@pytest.fixture
def rebuilt(fresh_url: Callable[[], str]) -> Iterator[tuple[SqlRegistry, httpx.Client]]:
    """An empty database that has followed the cut log of two tables, before any agent has called."""
    database = open_database(fresh_url())
    registry = SqlRegistry(database)
    begun = [started("orders", 0), started("items", 0)]
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders"), file("items"), start=begun)))
    with serving(database) as url, http_client(url) as client:
        yield registry, client
    database.close()


def problem_of(client: httpx.Client, path: str = PATH) -> dict[str, str] | None:
    answer = client.get(path)
    answer.raise_for_status()
    found: dict[str, str] | None = answer.json()["problem"]
    return found


def test_source_when_the_database_was_lost_then_it_and_its_tables_say_that_the_desired_state_is_gone(
    rebuilt: tuple[SqlRegistry, httpx.Client],
) -> None:
    registry, client = rebuilt
    problem = problem_of(client)
    assert problem is not None
    assert problem["code"] == "DESIRED_STATE_LOST"
    assert "2 tables" in problem["message"]
    assert "menura sync start shop --lost" in problem["message"]
    for table in ("orders", "items"):
        told = problem_of(client, f"{PATH}/tables/shop/{table}")
        assert told is not None
        assert f"menura sync start shop shop.{table};" in told["message"]
    assert registry.desired(KEY).notice == problem["message"]


def test_tables_when_started_again_after_the_database_was_lost_then_go_on_and_nothing_more_is_said(
    rebuilt: tuple[SqlRegistry, httpx.Client],
) -> None:
    registry, client = rebuilt
    record_shop(registry, "orders", "items", "notes")
    answer = client.post(f"{PATH}/start", json={"tables": "lost", "start": "resume"}).json()
    assert [(table["table"], table["changed"]) for table in answer["tables"]] == [("items", True), ("orders", True)]
    assert [table.table for table in registry.desired(KEY).tables] == ["items", "orders"]
    assert all(table.start_position is not None for table in registry.desired(KEY).tables)
    assert problem_of(client) is None
    assert registry.desired(KEY).notice == ""


def test_table_when_it_is_left_stopped_after_the_database_was_lost_then_nothing_more_is_said_of_it(
    rebuilt: tuple[SqlRegistry, httpx.Client],
) -> None:
    _, client = rebuilt
    position = client.get(f"{PATH}/tables/shop/orders").json()["position"]
    assert client.post(f"{PATH}/tables/shop/orders/stop", json={}).json()["changed"]
    told = client.get(f"{PATH}/tables/shop/orders").json()
    assert (told["state"], told["problem"], told["position"]) == ("stopped", None, position)
    problem = problem_of(client)
    assert problem is not None
    assert "1 tables" in problem["message"]
