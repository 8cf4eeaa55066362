"""Control_Config: what is configured for an agent is sent by level, and its reports outlive an older database."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from menura.source_configuration import digest_of
from menura.v1.config_pb2 import EffectiveSource, EffectiveSources, SourceHello

from gateway.registry import SourceConfigured
from tests.gateway.harness import running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import eventually, scripted_agent

AGENT = ("acme", "agent-1")
SHOP = SourceConfigured("shop", 1, "aa", "{}")


def test_configurations_when_they_change_or_fall_back_then_the_whole_list_is_sent_and_reports_are_recorded_again(
    tmp_path: Path,
) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address) as agent:
            control = await agent.open("Control_Config")
            assert (await control.expect("desired_sources")).digest == digest_of([])
            registry.configured[AGENT] = (SHOP, replace(SHOP, source="crm"))
            desired = await control.expect("desired_sources")
            assert [(one.source, one.document) for one in desired.sources] == [("shop", "{}"), ("crm", "{}")]
            report = EffectiveSources(
                digest=desired.digest,
                sources=[EffectiveSource(source="shop", generation=1, sha256="aa"), EffectiveSource(source="../x")],
                running=[SourceHello(source="shop", started=1)],
            )
            await control.send(effective_sources=report)
            assert (await control.expect("desired_state")).source == "shop"
            await eventually("the report", lambda: AGENT in registry.reported)  # what is recorded last of it
            assert [one.source for one in registry.configurations_seen[AGENT]] == ["shop"]
            assert {seen.source for seen in registry.agents[AGENT].sources} == {"shop"}
            # the database becomes an older copy: it lacks the report, and a source
            registry.configured[AGENT] = (SHOP,)
            registry.configurations_seen.clear()
            registry.reported.clear()
            assert (await control.expect("desired_sources")).digest == digest_of([("shop", "aa")])
            await eventually("the report to be there again", lambda: AGENT in registry.configurations_seen)
            # a source that has begun again knows no desired state; one that has ended is given up
            report.running[0].started = 2
            await control.send(effective_sources=report)
            assert (await control.expect("desired_state")).source == "shop"
            del report.running[:]
            await control.send(effective_sources=report)
            await eventually("it to be given up", lambda: registry.agents[AGENT].sources == ())
            async with scripted_agent(address, "shop", agent="agent-2") as other:
                assert (await (await other.open("Control_Config")).expect("desired_state")).source == "shop"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "report",
    [
        EffectiveSources(running=[SourceHello(source="../x")]),
        EffectiveSources(running=[SourceHello(source=f"s{n}") for n in range(1_001)]),
        EffectiveSources(sources=[EffectiveSource(source=f"s{n}") for n in range(1_001)]),
    ],
    ids=["name", "running", "sources"],
)
def test_report_when_it_is_no_report_then_the_stream_ends_and_nothing_is_recorded(
    tmp_path: Path, report: EffectiveSources
) -> None:
    registry = MemoryRegistry()

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address) as agent:
            control = await agent.open("Control_Config")
            await control.expect("desired_sources")
            await control.send(effective_sources=report)
            assert (await control.expect_error()).code == "PAYLOAD_INVALID"
            assert registry.configurations_seen == {}

    asyncio.run(scenario())
