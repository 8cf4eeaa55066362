"""Sessions: who may speak for a source, what is told to the agent, what is recorded of it."""

import asyncio
from pathlib import Path

from menura.v1.config_pb2 import EffectiveState, Heartbeat, SourceStatus, TableName, TableState
from menura.v1.error_pb2 import Error
from menura.v1.mysql_client_pb2 import Cartography, ColumnCard, KeyCard, TableCard

from gateway.config import GatewayConfig
from gateway.registry import SourceKey
from gateway.server import serve
from tests.gateway.harness import read_log, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import commit_cut, eventually, scripted_agent

SHOP = SourceKey("acme", "shop")


def test_a_source_when_another_agent_holds_it_is_refused_until_that_one_leaves(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as first:
            stream, run = await first.open_binlog("shop")
            async with scripted_agent(address, "shop", "crm", agent="agent-2") as second:
                control = await second.open("Control_Config")
                error = await control.expect("error")
                assert (error.code, error.source, error.terminal) == ("SOURCE_HELD", "shop", False)
                late = await second.open("MySQLBinlog", "shop")
                assert (await late.expect_error()).code == "SOURCE_HELD"
                await second.open_binlog("crm")
                await commit_cut(stream, run, 1, range(1, 11))
                await stream.close()
                await first.channel.close()
                await eventually("the first agent to leave", lambda: registry.gone)
                desired = await control.expect("desired_state")
                while desired.source != "shop":
                    desired = await control.expect("desired_state")
                _, run = await second.open_binlog("shop")
                assert run.next_gsn == 11

    asyncio.run(scenario())


def test_a_newer_process_of_an_agent_when_it_comes_replaces_the_older(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as older:
            stream, _ = await older.open_binlog("shop")
            async with scripted_agent(address, "shop") as newer:
                error = await stream.expect_error()
                assert (error.code, error.terminal) == ("SESSION_REPLACED", True)
                await newer.open_binlog("shop")
        assert [session for _, _, session in registry.gone] == [newer.session]

    asyncio.run(scenario())


def test_a_data_stream_when_it_is_ahead_of_its_agent_waits_for_it(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address) as agent:
            agent.session, agent.sources = "later", ("shop",)
            early = await agent.open("MySQLBinlog", "shop")
            await agent.open("Control_Config")
            await early.expect("replicate")

    asyncio.run(scenario())


def test_the_desired_state_when_it_moves_is_sent_whole(tmp_path: Path) -> None:
    registry = MemoryRegistry()

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop", "crm") as agent:
            control = await agent.open("Control_Config")
            first = [await control.expect("desired_state") for _ in range(2)]
            assert {state.source for state in first} == {"shop", "crm"}
            assert not any(state.tables for state in first)
            registry.want("acme", "shop", "orders", "items")
            moved = await control.expect("desired_state")
            assert (moved.source, moved.generation) == ("shop", 1)
            assert [table.table for table in moved.tables] == ["orders", "items"]
            state = TableState(
                table=TableName(database="shop", table="orders"),
                state=TableState.DENIED,
                error=Error(code="POLICY_DENIES", doing="starting", found="a drop policy", terminal=True),
                ignored_columns=["card"],
            )
            await control.send(effective_state=EffectiveState(source="shop", generation=1, tables=[state]))
            await eventually("the effective state", lambda: SHOP in registry.effective)
            await control.send(error=Error(code="SOURCE_ACCESS_DENIED", doing="connecting", source="shop"))
            await eventually("the problem", lambda: registry.problems.get(SHOP))

    asyncio.run(scenario())
    generation, tables = registry.effective[SHOP]
    assert (generation, tables[0].state, tables[0].ignored_columns) == (1, "DENIED", ("card",))
    assert tables[0].problem is not None
    assert tables[0].problem.code == "POLICY_DENIES"
    agent = registry.agents["acme", "agent-1"]
    assert sorted(source.source for source in agent.sources) == ["crm", "shop"]


def test_heartbeats_when_they_come_are_answered_and_recorded_now_and_then(tmp_path: Path) -> None:
    registry = MemoryRegistry()

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream = await agent.open("Control_Heartbeat")
            assert (await stream.expect("hello_ack")).heartbeat_interval_ms == 1000
            status = SourceStatus(source="shop", read_position="f:4", rows=2**64 - 1)
            other = SourceStatus(source="not-mine", read_position="f:4")
            for _ in range(20):
                await stream.send(heartbeat=Heartbeat(cpu_us=5, sources=[status, other]))
                assert (await stream.expect("heartbeat_ack")).received_at_us > 0

    asyncio.run(scenario())
    assert 1 <= len(registry.heartbeats) <= 3
    (health,) = registry.heartbeats[0][2]
    assert (health.source, health.rows, health.lag_us) == ("shop", 2**63 - 1, None)


def test_a_cartography_when_its_last_part_has_come_is_recorded_whole(tmp_path: Path) -> None:
    registry = MemoryRegistry()

    def card(name: str) -> TableCard:
        return TableCard(
            table=TableName(database="shop", table=name),
            engine="InnoDB",
            estimated_rows=0,
            columns=[ColumnCard(name="id", column_type="bigint")],
            keys=[KeyCard(name="PRIMARY", unique=True, columns=["id"])],
        )

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, cartography_seconds=0.3) as address,
            scripted_agent(address, "shop") as agent,
        ):
            stream = await agent.open("MySQLClient", "shop")
            await stream.expect("cartography_request")
            await stream.send(cartography=Cartography(source="shop", flavor="mysql", tables=[card("orders")]))
            assert registry.cartography == {}
            await stream.send(cartography=Cartography(source="shop", flavor="mysql", tables=[card("items")], last=True))
            await eventually("the cartography", lambda: SHOP in registry.cartography)
            await stream.expect("cartography_request")
            await stream.send(cartography=Cartography(source="crm", last=True))
            assert (await stream.expect_error()).code == "PAYLOAD_INVALID"

    asyncio.run(scenario())
    tables = registry.cartography[SHOP]
    assert [(table.table, table.estimated_rows, table.size_bytes) for table in tables] == [
        ("orders", 0, None),
        ("items", 0, None),
    ]


def test_a_gateway_when_it_is_asked_to_stop_commits_what_is_complete_and_frees_its_sources(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
        config = GatewayConfig(str(tmp_path), listen="127.0.0.1:0")
        serving = asyncio.create_task(serve(config, registry, stop, ready.set_result))
        async with scripted_agent(await ready, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, range(1, 11))
            stop.set()
            error = await stream.expect_error()
            assert (error.code, error.terminal) == ("GATEWAY_STOPPING", False)
            async with asyncio.timeout(6):
                await serving

    asyncio.run(scenario())
    assert registry.leases == {}
    assert registry.gone
    assert [cut.cut for entry in read_log(tmp_path) for cut in entry.cuts] == [1]
