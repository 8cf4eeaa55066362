"""Requests of one tenant that wait for the database take nothing from another tenant's."""

import asyncio

import httpx
import pytest
from sqlalchemy import text

from controlplane_api.api import gate
from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.test_locks_of_all import number
from tests.gateway.scripted_agent import eventually

#: more than there are threads by default, and than the database has connections
REQUESTS = 60
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.needs_setup)])
def kind(request: pytest.FixtureRequest) -> str:
    """SQLite has one writer."""
    return str(request.param)


def test_requests_when_another_tenants_wait_for_a_lock_then_they_are_answered_and_those_have_their_turns(
    database: Database, registry: SqlRegistry
) -> None:
    facts.record_shop(registry, *(f"table_{place}" for place in range(REQUESTS)))
    registry.record_agent(facts.agent_seen("globex"))

    async def scenario() -> list[int]:
        with serving(database) as url:
            async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits()) as client:
                with database.engine.connect() as holder:
                    holder.execute(text("SELECT 1 FROM source FOR UPDATE"))
                    commands = [asyncio.create_task(start(client, place)) for place in range(REQUESTS)]
                    await eventually("them to wait", lambda: number(database, WAITING) >= gate.MAX_OF_TENANT, 60)
                    for _ in range(3):
                        assert (await client.get("/api/v1/tenants/globex/sources")).status_code == 200
                    assert not any(command.done() for command in commands)
                    assert number(database, WAITING) == gate.MAX_OF_TENANT
                    holder.rollback()
                return [(await command).status_code for command in commands]

    assert asyncio.run(scenario()) == [200] * REQUESTS


async def start(client: httpx.AsyncClient, place: int) -> httpx.Response:
    path = f"/api/v1/tenants/acme/sources/shop/tables/shop/table_{place}/start"
    return await client.post(path, json={"start": "now"})
