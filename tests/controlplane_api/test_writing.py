"""Commands as plans, once for each key, and only onto what the caller has seen."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, update

from controlplane_api.api import writing
from controlplane_api.database import Database
from controlplane_api.models import Dump, KeptAnswer, Operation, Sync, SyncRule
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import SourceKey
from tests.controlplane_api import facts
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY
from tests.controlplane_api.test_api import SHOP, path_of, post, problem
from tests.stack import http_client

ALL = {"tables": "all", "start": "dump"}


@pytest.fixture
def client(database: Database) -> Iterator[httpx.Client]:
    with serving(database) as url, http_client(url) as client:
        yield client


def keyed(client: httpx.Client, path: str, body: Any, key: str = "k-1") -> httpx.Response:
    return client.post(path, json=body, headers={"idempotency-key": key})


def count(database: Database, *models: type) -> int:
    with database.read() as connection:
        return sum(connection.execute(select(func.count()).select_from(model)).scalar_one() for model in models)


def test_command_when_it_is_a_dry_run_then_its_plan_is_told_and_nothing_changes(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    facts.record_shop(registry)
    before = client.get(SHOP).headers["etag"]
    plan = client.post(f"{SHOP}/start", params={"dry_run": True}, json=ALL)
    assert plan.headers["etag"] == before
    assert [(each["table"], each["changed"]) for each in plan.json()["tables"]] == [
        ("items", True), ("notes", True), ("orders", True),
    ]  # fmt: skip
    assert (plan.json()["generation"], "location" in plan.headers) == (1, False)
    assert count(database, Sync, Dump, Operation) == 0
    single = client.post(path_of("shop", "orders", "/start"), params={"dry_run": True}, json={"start": "now"}).json()
    assert (single["state"], single["start"]) == ("pending", "now")
    unknown = client.post(path_of("shop", "none", "/start"), params={"dry_run": True}, json={})
    problem(unknown, 404, "TABLE_UNKNOWN")
    rule = {"tables": {"database": "*", "future": True}}
    assert client.post(f"{SHOP}/start", params={"dry_run": True}, json=rule).is_success
    assert count(database, Sync, Dump, Operation, SyncRule) == 0
    assert registry.generations([KEY]) == {KEY: 0}


def test_command_when_it_comes_again_with_its_key_then_it_is_carried_out_once(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    facts.record_shop(registry)
    first, again = keyed(client, f"{SHOP}/start", ALL), keyed(client, f"{SHOP}/start", ALL)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json() and all(each["changed"] for each in again.json()["tables"])
    assert first.headers["location"] == again.headers["location"]
    assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
    assert count(database, Operation) == 1
    problem(keyed(client, f"{SHOP}/start", {"tables": "all"}), 422, "IDEMPOTENCY_KEY_REUSED")
    problem(keyed(client, f"{SHOP}/stop", ALL | {"start": "dump"}), 422, "REQUEST_INVALID")
    problem(keyed(client, f"{SHOP}/stop", {"tables": "all"}), 422, "IDEMPOTENCY_KEY_REUSED")
    other = SourceKey("globex", "shop")
    facts.record_shop(registry, "plans", key=other)
    theirs = keyed(client, "/api/v1/tenants/globex/sources/shop/start", ALL)
    assert [each["table"] for each in theirs.json()["tables"]] == ["plans"]


def test_command_when_it_was_refused_then_its_key_is_free_for_the_next_try(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    facts.record_shop(registry)
    path = path_of("shop", "late", "/start")
    problem(keyed(client, path, {}), 404, "TABLE_UNKNOWN")
    assert count(database, KeptAnswer) == 0
    facts.record_shop(registry, "late")
    assert keyed(client, path, {}).json()["changed"] and keyed(client, path, {}).json()["changed"]


def test_commands_when_they_come_at_once_with_one_key_then_one_is_carried_out(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    facts.record_shop(registry)
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(keyed(client, path_of("shop", "orders", "/start"), {"start": "dump"}))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer.json()["dump"]["dump"] for answer in answers}) == 1
    assert (count(database, Dump), count(database, KeptAnswer)) == (1, 1)


def test_keys_when_they_are_many_old_or_of_large_answers_then_they_are_bounded(
    client: httpx.Client, registry: SqlRegistry, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts.record_shop(registry)
    monkeypatch.setattr(writing, "MAX_KEYS", 3)
    for number in range(6):
        assert keyed(client, f"{SHOP}/retry", {"tables": "all"}, f"k-{number}").is_success
    assert count(database, KeptAnswer) <= 4
    with database.write() as connection:
        connection.execute(update(KeptAnswer).values(at_us=facts.T0))
    assert keyed(client, f"{SHOP}/retry", {"tables": "all"}, "new").is_success
    assert count(database, KeptAnswer) == 1
    monkeypatch.setattr(writing, "MAX_ANSWER_BYTES", 10)
    assert keyed(client, f"{SHOP}/start", ALL, "large").is_success
    problem(keyed(client, f"{SHOP}/start", ALL, "large"), 409, "ANSWER_NOT_KEPT")
    assert count(database, Dump) == 3


def test_token_when_it_is_asked_for_with_a_key_then_refused_and_as_a_plan_without_its_secret(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    facts.record_shop(registry)
    problem(keyed(client, "/api/v1/tenants/acme/tokens", {}), 422, "REQUEST_INVALID")
    assert count(database, KeptAnswer) == 0


def test_command_when_what_was_seen_has_changed_then_if_match_refuses_it(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    table = path_of("shop", "orders")
    seen = client.get(table).headers["etag"]
    assert client.get(table).headers["etag"] == seen
    started = client.post(f"{table}/start", json={"start": "now"}, headers={"if-match": seen})
    assert started.is_success and started.headers["etag"] == client.get(table).headers["etag"] != seen
    late = client.post(f"{table}/stop", json={}, headers={"if-match": seen})
    assert seen not in problem(late, 412, "PRECONDITION_FAILED")["found"]
    assert client.get(table).json()["desired"] == "syncing"
    of_source = client.get(SHOP).headers["etag"]
    assert client.post(f"{SHOP}/stop", json={"tables": "all"}, headers={"if-match": f'"x", {of_source}'}).is_success
    problem(client.post(f"{SHOP}/start", json=ALL, headers={"if-match": of_source}), 412, "PRECONDITION_FAILED")
    assert client.post(f"{SHOP}/start", json=ALL, headers={"if-match": "*"}).is_success


def test_dump_when_another_command_came_between_then_if_match_refuses_the_later_one(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    uuid = post(client, f"{SHOP}/start", ALL)["tables"][0]["dump"]
    path = f"{SHOP}/dumps/{uuid}"
    seen = client.get(path).headers["etag"]
    assert client.post(f"{path}/priority", json={"priority": 3}, headers={"if-match": seen}).is_success
    problem(client.post(f"{path}/pause", json={}, headers={"if-match": seen}), 412, "PRECONDITION_FAILED")
    assert client.get(path).json()["state"] != "paused"


def test_audit_when_a_command_is_refused_for_its_tables_then_it_stands_there_as_refused_with_the_reason(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    registry.record_agent(facts.agent_seen())
    seen = [facts.table_seen("orders"), facts.table_seen("secrets", denied=True)]
    facts.record_cartography(registry, KEY, "mysql", "9.7.0", facts.UUID, seen, facts.T0)
    secrets, orders = ({"database": "shop", "table": name} for name in ("secrets", "orders"))
    for tables in ([secrets], [orders], [secrets, orders]):
        client.post(f"{SHOP}/start", json={"tables": tables, "start": "now"}).raise_for_status()
    some, done, refused = client.get("/api/v1/tenants/acme/audit").json()["entries"]
    assert (refused["action"], refused["refused"]) == ("start tables", "TABLE_DENIED")
    assert refused["found"].startswith("sources/shop/start: shop.secrets: ")
    assert (done["refused"], done["found"]) == ("", "sources/shop/start")
    assert (
        some["refused"] == "" and ": 1 of 2 tables were refused, first TABLE_DENIED of shop.secrets: " in some["found"]
    )
