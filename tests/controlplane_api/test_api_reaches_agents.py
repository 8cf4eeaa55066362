"""A command that somebody gives the API reaches a connected agent, at whichever gateway, as soon as it is committed."""

import asyncio
from typing import Any

import httpx
import pytest

from controlplane_api.database import Database
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.test_several_gateways import Pair, pair
from tests.databases import POSTGRESQL
from tests.gateway.scripted_agent import AgentStream, scripted_agent
from tests.stack import http_client

__all__ = ["pair"]

SOURCES = ("shop", "crm")
#: a gateway that listens looks by the clock ten times as rarely
NEVER = 3_600


def command(client: httpx.Client, source: str, word: str, body: dict[str, Any] | None = None) -> None:
    answer = client.post(f"/api/v1/tenants/acme/sources/{source}/tables/shop/orders/{word}", json=body or {})
    assert answer.is_success, answer.text


async def desired(stream: AgentStream) -> tuple[int, list[str]]:
    state = await stream.expect("desired_state")
    return state.generation, [table.table for table in state.tables]


@pytest.mark.parametrize("kind", [POSTGRESQL])
def test_command_when_it_is_given_to_the_api_then_agents_of_both_gateways_hear_it_without_a_look_by_the_clock(
    pair: Pair, database: Database
) -> None:
    async def scenario(client: httpx.Client) -> None:
        async with (
            pair.running("a", poll_seconds=NEVER) as a,
            pair.running("b", poll_seconds=NEVER) as b,
            scripted_agent(a, "shop") as first,
            scripted_agent(b, "crm", agent="agent-2") as second,
        ):
            streams = [await agent.open("Control_Config") for agent in (first, second)]
            for stream in streams:
                assert await desired(stream) == (1, ["orders"])
            for source, stream in zip(SOURCES, streams, strict=True):
                await asyncio.to_thread(command, client, source, "stop")
                assert await desired(stream) == (2, [])
                await asyncio.to_thread(command, client, source, "start", {"start": "now"})
                assert await desired(stream) == (3, ["orders"])
            dumps = await asyncio.gather(first.open_client("shop"), second.open_client("crm"))
            assert [list(told.dumps) for _, told in dumps] == [[], []]
            for source, (stream, _) in zip(SOURCES, dumps, strict=True):
                await asyncio.to_thread(command, client, source, "dump")
                told = await stream.expect("desired_dumps")
                assert [dump.table.table for dump in told.dumps] == ["orders"]

    with serving(database) as url, http_client(url) as client:
        asyncio.run(scenario(client))
