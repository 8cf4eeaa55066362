"""Requests of one tenant that wait for the database take nothing from another tenant's, nor all of its own."""

import asyncio

import httpx
import pytest
from sqlalchemy import text

from controlplane_api import database as databases
from controlplane_api.api import gate
from controlplane_api.api.app import Access
from controlplane_api.database import Database
from controlplane_api.identity.callers import Role
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.callers import Shown, made
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.test_locks_of_all import number
from tests.gateway.scripted_agent import eventually

#: more than there are threads by default, and than the database has connections
REQUESTS = 60
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.needs_setup)])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """SQLite has one writer. No statement waits too long for its lock while a test runs."""
    monkeypatch.setattr(databases, "BUSY_SECONDS", 300)
    return str(request.param)


def test_requests_when_others_wait_for_a_lock_then_those_of_another_caller_and_of_another_tenant_are_answered(
    database: Database, registry: SqlRegistry
) -> None:
    facts.record_shop(registry, *(f"table_{place}" for place in range(REQUESTS)))
    registry.record_agent(facts.agent_seen("globex"))
    first, second = (made(database, Role.OPERATOR) for _ in range(2))
    viewer, stranger = made(database, Role.VIEWER), made(database, Role.VIEWER, "globex")

    async def scenario() -> list[int]:
        with serving(database, access=Access()) as url:
            async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits()) as client:
                with database.engine.connect() as holder:
                    holder.execute(text("SELECT 1 FROM source FOR UPDATE"))
                    commands = [asyncio.create_task(start(client, first, place)) for place in range(REQUESTS // 2)]
                    await waiting(database, gate.MAX_OF_CALLER)
                    await answered(client, "acme", viewer)
                    assert number(database, WAITING) == gate.MAX_OF_CALLER
                    commands += [
                        asyncio.create_task(start(client, second, each)) for each in range(REQUESTS // 2, REQUESTS)
                    ]
                    await waiting(database, gate.MAX_OF_TENANT)
                    await answered(client, "globex", stranger)
                    assert not any(command.done() for command in commands)
                    assert number(database, WAITING) == gate.MAX_OF_TENANT
                    holder.rollback()
                return [(await command).status_code for command in commands]

    assert asyncio.run(scenario()) == [200] * REQUESTS


async def waiting(database: Database, most: int) -> None:
    await eventually("them to wait", lambda: number(database, WAITING) >= most, 60)


async def answered(client: httpx.AsyncClient, tenant: str, shown: Shown) -> None:
    for _ in range(3):
        assert (await client.get(f"/api/v1/tenants/{tenant}/sources", headers=shown.headers)).status_code == 200


async def start(client: httpx.AsyncClient, shown: Shown, place: int) -> httpx.Response:
    path = f"/api/v1/tenants/acme/sources/shop/tables/shop/table_{place}/start"
    return await client.post(path, json={"start": "now"}, headers=shown.headers)
