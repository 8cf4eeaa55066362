"""Lists of tenants: what is counted of each, by pages and by part of a name, in REST and by the command."""

import json
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import update

from controlplane_api.api import client as api_client
from controlplane_api.database import Database
from controlplane_api.identity.callers import Role
from controlplane_api.models import Tenant
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import SourceKey
from tests.controlplane_api import facts
from tests.controlplane_api.callers import made
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.stack import http_client

FLEET = "/api/v1/fleet"


@pytest.fixture
def here(database: Database, registry: SqlRegistry) -> Iterator[str]:
    """acme with two sources and three tables, globex with one of each; initech has a token and nothing else."""
    for tenant, source, *tables in (
        ("acme", "shop", "orders", "items"), ("acme", "crm", "people"), ("globex", "shop", "orders"),
    ):  # fmt: skip
        facts.record_shop(registry, *tables, key=SourceKey(tenant, source))
    made(database, Role.VIEWER, "initech")
    with database.write() as connection:
        connection.execute(update(Tenant).where(Tenant.name == "globex").values(created_at_us=1_700_000_000_000_000))
    with serving(database) as url:
        yield url


@pytest.fixture
def client(here: str) -> Iterator[httpx.Client]:
    with http_client(here) as client:
        yield client


def start(client: httpx.Client, tenant: str, source: str, *tables: str) -> None:
    for table in tables:
        path = f"/api/v1/tenants/{tenant}/sources/{source}/tables/shop/{table}/start"
        client.post(path, json={}).raise_for_status()


def counted(client: httpx.Client, **query: str | bool) -> dict[str, int | None]:
    answer = client.get(FLEET, params={"count_tables": True, **query}).raise_for_status()
    return {each["tenant"]: each["synced_tables"] for each in answer.json()["tenants"]}


def test_tenants_when_tables_are_counted_then_those_that_shall_be_synced_are_whatever_their_state(
    client: httpx.Client,
) -> None:
    assert counted(client) == {"acme": 0, "globex": 0, "initech": 0}
    start(client, "acme", "shop", "orders", "items")
    start(client, "acme", "crm", "people")
    start(client, "globex", "shop", "orders")
    assert counted(client) == {"acme": 3, "globex": 1, "initech": 0}
    client.post("/api/v1/tenants/acme/sources/shop/tables/shop/items/stop", json={}).raise_for_status()
    assert counted(client) == {"acme": 2, "globex": 1, "initech": 0}
    assert counted(client, count_tables=False) == {"acme": None, "globex": None, "initech": None}
    answer = client.get(FLEET).json()["tenants"]
    assert [(each["tenant"], each["agents"], each["sources"]) for each in answer] == [
        ("acme", 1, 2), ("globex", 1, 1), ("initech", 0, 0),
    ]  # fmt: skip
    assert answer[1]["created_at_us"] == 1_700_000_000_000_000


def test_tenants_when_they_are_looked_for_by_part_of_a_name_then_pages_have_these_alone(client: httpx.Client) -> None:
    assert list(counted(client, text="E")) == ["acme", "globex", "initech"]
    assert list(counted(client, text="%")) == []
    first = client.get(FLEET, params={"text": "e", "limit": 2}).json()
    assert [each["tenant"] for each in first["tenants"]] == ["acme", "globex"]
    last = client.get(FLEET, params={"text": "e", "limit": 2, "cursor": first["next_cursor"]}).json()
    assert ([each["tenant"] for each in last["tenants"]], last["next_cursor"]) == (["initech"], None)


def test_command_when_there_are_more_tenants_than_a_page_then_shows_all(
    client: httpx.Client, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(client, "acme", "crm", "people")
    monkeypatch.setattr(api_client, "PAGE_ROWS", 1)
    with api_client.ApiClient(here, "acme") as asking:
        assert [(each.tenant, each.synced_tables) for each in asking.tenants()] == [
            ("acme", 1), ("globex", 0), ("initech", 0),
        ]  # fmt: skip
    shown = menura("tenants", MENURA_API=here, COLUMNS="120")
    assert shown.returncode == 0, shown.stderr
    lines = {line.split()[0]: line.split()[1:] for line in shown.stdout.splitlines() if line.strip()}
    assert lines["acme"][:3] == ["1", "2", "1"]
    assert lines["globex"] == ["1", "1", "0", "2023-11-14", "22:13:20Z"]
    told = json.loads(menura("tenants", "--json", MENURA_API=here).stdout)
    assert [each["synced_tables"] for each in told["tenants"]] == [1, 0, 0]
