"""Sessions: who may speak for a source, what is told to the agent, what is recorded of it."""

import asyncio
import subprocess
import threading
import time
from pathlib import Path

import grpc
import pytest
from menura.v1.catalog_pb2 import Cartography, ColumnCard, ForeignKeyCard, KeyCard, TableCard
from menura.v1.changes_pb2 import Position, TableStarted, TableStopped
from menura.v1.config_pb2 import EffectiveState, Heartbeat, SourceStatus, TableName, TableState
from menura.v1.error_pb2 import Error

from gateway.config import GatewayConfig, TlsFiles
from gateway.errors import ListenRefused
from gateway.registry import AgentSeen, SourceKey, Standing
from gateway.server import serve
from tests.gateway.harness import data_files, read_log, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import (
    OPTIONS,
    ScriptedAgent,
    change_batch,
    commit_cut,
    cut_end,
    eventually,
    rows_batch,
    scripted_agent,
)
from tests.gateway.sql_registry import open_registry, want

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


def test_a_newer_process_of_an_agent_when_it_comes_replaces_the_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.SILENT_INTERVALS", 1)
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


@pytest.mark.history
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


def test_streams_of_an_agent_when_the_database_is_slow_to_know_it_then_wait_and_are_not_taken_for_a_copys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of agents that come at once wait for the database longer than a stream waits for its agent."""
    monkeypatch.setattr("gateway.presence.ANNOUNCE_SECONDS", 0.2)
    registry, may_record = MemoryRegistry(), threading.Event()
    registry.want("acme", "shop", "orders")
    record_agent = registry.record_agent

    def recorded_late(agent: AgentSeen) -> None:
        if agent.sources:
            may_record.wait()
        record_agent(agent)

    monkeypatch.setattr(registry, "record_agent", recorded_late)

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream = await agent.open("MySQLBinlog", "shop")
            other = await agent.open("MySQLBinlog", "none")  # that nobody has: it is refused once streams are served
            agent.session = "another-process"
            copy = await agent.open("MySQLBinlog", "shop")
            assert (await copy.expect_error()).code == "DUPLICATE_AGENT"  # by then the first ones have waited as long
            may_record.set()
            await stream.expect("replicate")
            assert (await other.expect_error()).code == "SOURCE_HELD"

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


def test_tables_when_they_are_more_than_an_agent_takes_then_their_source_is_refused_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.wire.translation.MAX_SYNCED_TABLES", 1)
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders", "items")
    registry.want("acme", "crm", "people")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop", "crm") as agent:
            control = await agent.open("Control_Config")
            error = await control.expect("error")
            assert (error.code, error.source, error.terminal) == ("TABLES_TOO_MANY", "shop", True)
            assert (await control.expect("desired_state")).source == "crm"
            refused = await agent.open("MySQLBinlog", "shop")
            assert (await refused.expect_error()).code == "TABLES_TOO_MANY"
            await agent.open_binlog("crm")
            registry.want("acme", "shop", "orders")
            assert [table.table for table in (await control.expect("desired_state")).tables] == ["orders"]
            await agent.open_binlog("shop")

    asyncio.run(scenario())


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
            await eventually("a heartbeat", lambda: registry.heartbeats)

    began = time.monotonic()
    asyncio.run(scenario())
    assert 1 <= len(registry.heartbeats) <= 1 + (time.monotonic() - began) / 0.9
    (health,) = registry.heartbeats[0].sources
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
            foreign_keys=[
                ForeignKeyCard(name=f"k{number}", parent=TableName(database="d", table="t")) for number in range(300)
            ],
            more_foreign_keys=5,
        )

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, cartography_seconds=0.3) as address,
            scripted_agent(address, "shop") as agent,
        ):
            stream = await agent.open("MySQLClient", "shop")
            await stream.expect("cartography_request")
            await stream.send(cartography=Cartography(source="shop", flavor="mysql", tables=[card("orders")]))
            await eventually("the tables of the first part", lambda: SHOP in registry.cartography)
            assert not registry.cartography_digest(SHOP)
            whole = Cartography(source="shop", flavor="mysql", tables=[card("items")], last=True, digest=b"1")
            await stream.send(cartography=whole)
            await eventually("the cartography", lambda: registry.cartography_digest(SHOP))
            await stream.expect("cartography_request")
            await stream.send(cartography=Cartography(source="crm", last=True))
            assert (await stream.expect_error()).code == "PAYLOAD_INVALID"

    asyncio.run(scenario())
    tables = registry.cartography[SHOP]
    assert [(len(table.foreign_keys), table.more_foreign_keys) for table in tables] == [(256, 49)] * 2
    assert [(table.table, table.estimated_rows, table.size_bytes) for table in tables] == [
        ("orders", 0, None),
        ("items", 0, None),
    ]


def test_a_cartography_of_differences_is_recorded_where_its_base_is_and_asked_for_whole_elsewhere(
    tmp_path: Path,
) -> None:
    registry = MemoryRegistry()
    names = [TableName(database="shop", table=name) for name in ("orders", "items", "new")]
    orders, items, new = (TableCard(table=name) for name in names)

    def recorded() -> set[str]:
        return {table.table for table in registry.cartography.get(SHOP, ())}

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, cartography_seconds=0.3) as address,
            scripted_agent(address, "shop") as agent,
        ):
            stream = await agent.open("MySQLClient", "shop")
            assert (await stream.expect("cartography_request")).known == b""
            await stream.send(cartography=Cartography(source="shop", tables=[orders, items], last=True, digest=b"1"))
            while (await stream.expect("cartography_request")).known != b"1":
                pass
            told = Cartography(source="shop", base=b"1", tables=[new], gone=[names[1]], last=True, digest=b"2")
            await stream.send(cartography=told)
            await eventually("the differences", lambda: recorded() == {"orders", "new"})
            await eventually("their end", lambda: registry.cartography_digest(SHOP) == b"2")
            registry.cartography_digests[SHOP] = b"of a restored database"
            await stream.send(
                cartography=Cartography(source="shop", base=b"2", gone=[names[0]], last=True, digest=b"3")
            )
            while (await stream.expect("cartography_request")).known:
                pass
            assert recorded() == {"orders", "new"}
            crossing = Cartography(source="shop", base=b"2", tables=[items], last=True, digest=b"3")
            await stream.send(cartography=crossing)  # the agent had not heard yet that the whole is asked for
            await stream.send(cartography=Cartography(source="shop", tables=[orders, items], last=True, digest=b"4"))
            await eventually("the whole", lambda: registry.cartography_digest(SHOP) == b"4")
            assert recorded() == {"orders", "items"}
            told = Cartography(source="shop", base=b"4", tables=[new], last=True, digest=b"5")
            await stream.send(cartography=told)  # by itself, before it is asked again
            await eventually("what was told by itself", lambda: recorded() == {"orders", "items", "new"})

    asyncio.run(scenario())


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
            async with asyncio.timeout(300):
                await serving

    asyncio.run(scenario())
    assert registry.owners == {}
    assert registry.gone
    assert [cut.cut for entry in read_log(tmp_path) for cut in entry.cuts] == [1]


def test_an_agent_whose_connection_breaks_when_a_cut_is_open_leaves_nothing_behind(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address:
            async with scripted_agent(address, "shop") as agent:
                stream, run = await agent.open_binlog("shop")
                for first in (1, 100_001):
                    await stream.send_batch(change_batch(run, 1, "orders", rows_batch(range(first, first + 100_000))))
                await eventually("the open file", lambda: data_files(tmp_path))
            await eventually("its file to go", lambda: not data_files(tmp_path))
            await eventually("its lease to be free", lambda: not registry.owners)
            await eventually("it to be gone", lambda: registry.gone)

    asyncio.run(scenario())
    assert read_log(tmp_path) == []


def make_certificates(folder: Path, agent: str = "agent-1") -> None:
    """`ca.pem`, and a certificate with its key that it signed, for localhost and for an agent of the tenant acme."""
    (folder / "v3.cnf").write_text(f"subjectAltName=DNS:localhost,IP:127.0.0.1,URI:menura://acme/{agent}\n")
    for command in (
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -subj /CN=ca -days 2",
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout end.key -out end.csr -subj /CN=localhost",
        "x509 -req -in end.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out end.pem -days 2 -extfile v3.cnf",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)


def test_a_gateway_when_it_has_tls_files_takes_agents_with_a_certificate_alone(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")
    registry.known["acme", "agent-1"] = Standing(None, is_enrolled=True, is_revoked=False, sources=frozenset(["shop"]))
    ca, key, certificate = ((tmp_path / name).read_bytes() for name in ("ca.pem", "end.key", "end.pem"))
    tls = TlsFiles(tmp_path / "end.pem", tmp_path / "end.key", tmp_path / "ca.pem")

    async def scenario() -> None:
        async with running_gateway(tmp_path / "landing", registry, listen="0.0.0.0:0", tls=tls) as address:
            target = f"localhost:{address.rpartition(':')[2]}"
            known = grpc.ssl_channel_credentials(ca, key, certificate)
            async with grpc.aio.secure_channel(target, known, options=OPTIONS) as channel:
                agent = ScriptedAgent(channel, "acme", "agent-1", ("shop",))
                await agent.open("Control_Config")
                stream, run = await agent.open_binlog("shop")
                await commit_cut(stream, run, 1, range(1, 11))
            async with grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(ca)) as channel:
                with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
                    await ScriptedAgent(channel, "acme", "agent-2", ()).open("Control_Config")

    asyncio.run(scenario())


def test_tls_files_that_can_not_be_read_when_the_gateway_starts_are_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        tls = TlsFiles(tmp_path / "no.pem", tmp_path / "no.key", tmp_path / "no-ca.pem")
        async with running_gateway(tmp_path / "landing", MemoryRegistry(), tls=tls):
            pytest.fail("it serves")

    with pytest.raises(ListenRefused, match=r"no\.key: No such file"):
        asyncio.run(scenario())


def test_the_control_planes_own_registry_when_it_is_behind_the_gateway_follows_it(tmp_path: Path) -> None:
    database, registry = open_registry(tmp_path / "control.db")
    want(database, SHOP, "orders", "items")

    async def scenario() -> None:
        async with running_gateway(tmp_path / "landing", registry) as address, scripted_agent(address, "shop") as agent:
            stream, first = await agent.open_binlog("shop")
            assert [(sync.table.table, sync.oldest) for sync in first.tables] == [("items", True), ("orders", True)]
            start = TableStarted(
                table=TableName(database="shop", table="orders"),
                position=Position(kind="mysql", text="binlog.000001:4"),
            )
            stop = TableStopped(
                table=TableName(database="shop", table="items"),
                position=Position(kind="mysql", text="binlog.000001:5"),
                error=Error(code="EVENT_UNKNOWN", doing="reading", found="event 99", terminal=True),
            )
            await stream.send(cut_end=cut_end(first, 1, 0, started=[start], stopped=[stop]))
            second = await stream.expect("replicate")
            assert second.lease_epoch > first.lease_epoch
            assert [(sync.table.table, sync.WhichOneof("start")) for sync in second.tables] == [("orders", None)]
            await commit_cut(stream, second, 2, range(1, 11))
            await stream.close()
            again, third = await agent.open_binlog("shop")
            assert (third.next_cut, third.next_gsn, third.next_transaction_id) == (3, 11, 11)
            await commit_cut(again, third, 3, range(11, 21))

    asyncio.run(scenario())
    assert registry.committed(SHOP).cut == 3
    database.close()
