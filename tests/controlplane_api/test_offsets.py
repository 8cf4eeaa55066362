"""Offsets: read, and altered only while the table is stopped, with a reason, on what the caller has seen."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from controlplane_api.database import Database
from controlplane_api.models import AuditEntry
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import TableDesired
from tests.controlplane_api import facts
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, at, cut, entry, started, stopped
from tests.controlplane_api.test_api import path_of, post, problem
from tests.stack import http_client

OFFSET = path_of("shop", "orders", "/offset")
TO = f"{facts.UUID}:1-9"


@pytest.fixture
def url(database: Database) -> Iterator[str]:
    with serving(database) as url:
        yield url


@pytest.fixture
def client(url: str, registry: SqlRegistry) -> Iterator[httpx.Client]:
    """shop.orders has been read up to 3."""
    facts.record_shop(registry)
    with http_client(url) as client:
        post(client, path_of("shop", "orders", "/start"), {"start": "oldest"})
        registry.apply_entry(LANDING, entry(1, cut(1, start=[started("orders", 0)])))
        registry.apply_entry(LANDING, entry(2, cut(2, facts.file("orders"))))
        yield client


def alter(client: httpx.Client, position: str = TO, reason: str = "ticket 7", **query: Any) -> httpx.Response:
    tag = client.get(OFFSET).headers["etag"]
    body = {"position": position, "reason": reason}
    return client.put(OFFSET, json=body, params=query, headers={"if-match": tag})


def test_offset_when_altered_then_the_next_start_takes_it_once_and_the_audit_log_has_why(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    problem(alter(client), 409, "SYNC_RUNNING")
    post(client, path_of("shop", "orders", "/stop"))
    before = client.get(OFFSET).json()
    assert (before["position"], before["committed"], before["altered"]) == (at(2).text, at(2).text, None)
    plan = alter(client, dry_run=True).json()
    assert plan["altered"]["position"] == TO and "LOG_GAP" in plan["notice"]
    assert client.get(OFFSET).json() == before
    done = alter(client).json()
    assert (done["altered"]["position"], done["altered"]["reason"]) == (TO, "ticket 7")
    assert done["position"] == at(2).text
    post(client, path_of("shop", "orders", "/start"))
    wanted = TableDesired("shop", "orders", start_text=TO, altered_from=at(2), altered_why="ticket 7")
    assert registry.desired(KEY).tables == (wanted,)
    generation = registry.desired(KEY).generation
    registry.apply_entry(LANDING, entry(3, cut(3, generation=generation, start=[started("orders", 9)])))
    assert registry.desired(KEY).tables == (TableDesired("shop", "orders"),)
    assert client.get(OFFSET).json()["altered"] is None
    with database.read() as connection:
        found = connection.execute(select(AuditEntry).where(AuditEntry.action == "alter offset")).all()
    assert [row.found for row in found] == [f"shop shop.orders to {TO}: ticket 7"]


def test_offset_when_what_was_seen_is_not_said_or_has_changed_then_it_is_not_altered(client: httpx.Client) -> None:
    post(client, path_of("shop", "orders", "/stop"))
    old = client.get(OFFSET).headers["etag"]
    body = {"position": TO, "reason": "ticket 7"}
    problem(client.put(OFFSET, json=body), 428, "PRECONDITION_MISSING")
    assert client.put(OFFSET, json=body, headers={"if-match": old}).is_success
    problem(client.put(OFFSET, json=body, headers={"if-match": old}), 412, "PRECONDITION_FAILED")
    for wrong in ({"position": TO}, body | {"reason": " "}, body | {"position": ""}, body | {"reason": "x" * 1001}):
        problem(client.put(OFFSET, json=wrong, headers={"if-match": "*"}), 422, "REQUEST_INVALID")
    never = client.put(path_of("shop", "items", "/offset"), json=body, headers={"if-match": "*"})
    assert never.status_code in (404, 409)


def test_offset_when_taken_back_or_begun_otherwise_or_refused_then_the_table_is_where_it_was(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    post(client, path_of("shop", "orders", "/stop"))
    assert alter(client).json()["altered"]
    assert alter(client, f" {at(2).text} ").json()["altered"] is None
    assert alter(client).json()["altered"]
    post(client, path_of("shop", "orders", "/start"), {"start": "now"})
    assert registry.desired(KEY).tables == (TableDesired("shop", "orders", start_now=True, was_synced=True),)
    post(client, path_of("shop", "orders", "/stop"))
    assert alter(client).json()["altered"]
    post(client, path_of("shop", "orders", "/start"))
    generation = registry.desired(KEY).generation
    registry.apply_entry(LANDING, entry(3, cut(3, generation=generation, stop=[stopped("orders", 2)])))
    assert client.get(OFFSET).json()["altered"] is None
    post(client, path_of("shop", "orders", "/retry"))
    assert registry.desired(KEY).tables == (TableDesired("shop", "orders", start_position=at(2)),)


def test_offset_when_set_by_the_command_then_it_says_what_that_leads_to(client: httpx.Client, url: str) -> None:
    here = {"MENURA_API": url, "MENURA_TENANT": "acme", "COLUMNS": "1000"}
    to = ("offset", "set", "shop", "shop.orders", "--to", TO, "--reason", "ticket 7")
    refused = menura(*to, **here)
    assert refused.returncode and "menura sync stop shop shop.orders" in refused.stderr
    assert menura("sync", "stop", "shop", "shop.orders", **here).returncode == 0
    assert "LOG_GAP" in menura(*to, "--dry-run", **here).stdout
    assert "altered" not in menura("offset", "show", "shop", "shop.orders", **here).stdout
    assert menura(*to, **here).returncode == 0
    shown = menura("offset", "show", "shop", "shop.orders", **here).stdout
    assert TO in shown and "ticket 7" in shown


@pytest.mark.parametrize("kind", ["sqlite"])
def test_offset_when_the_table_has_no_key_then_it_is_not_altered(client: httpx.Client, registry: SqlRegistry) -> None:
    post(client, path_of("shop", "orders", "/stop"))
    keyless = facts.table_seen("orders", keyed=False)
    facts.record_cartography(registry, KEY, "mysql", "9.7.0", facts.UUID, [keyless], facts.T0)
    refused = alter(client)
    assert (refused.status_code, "no key" in refused.text, "sync resync shop" in refused.text) == (422, True, True)
    assert client.get(OFFSET).json()["altered"] is None
