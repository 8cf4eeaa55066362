"""Several gateways over one database and one landing: the log is the fence, whatever a put or a clock does."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from menura.landing import IDENTITY_PATH, LandedCut, LandedPosition, LogEntry, encode_entry, entry_path
from menura.stores.local import LocalStore
from menura.stores.store import Store
from menura.v1.changes_pb2 import Replicate
from pyspark.sql.streaming.datasource import ReadAllAvailable
from sqlalchemy import select, update

from controlplane_api.database import Database, open_database
from controlplane_api.models import Gateway, Source, Tenant
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway import server
from gateway.config import GatewayConfig
from gateway.errors import GatewayNameTaken, OtherLanding
from gateway.metrics import GatewayMetrics
from gateway.registry import AgentName, GatewayRun, PresentElsewhere, RegistryUnavailable, SourceKey
from spark_sink.ingest.cut_log_source import CutLogReader, Limits, RowsPartition
from spark_sink.landed.landing_log import LandingLog
from tests.databases import POSTGRESQL
from tests.gateway.harness import landed_gsns, read_log, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import (
    OPTIONS,
    AgentStream,
    ScriptedAgent,
    change_batch,
    commit_cut,
    cut_end,
    eventually,
    rows_batch,
    scripted_agent,
)
from tests.gateway.sql_registry import want

SHOP, CRM = SourceKey("acme", "shop"), SourceKey("acme", "crm")
#: of other gateways, of which the database has followed all but the last
OTHERS, UNFOLLOWED = 2_000, 20


class SteeredStorage(LocalStore):
    """Counts what it reads; while it is stalled, a put of an entry stays on its way."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads = 0
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.waiting = 0

    def read(self, path: str) -> bytes | None:
        self.reads += 1
        return super().read(path)

    def put_if_absent(self, path: str, document: bytes) -> bool:
        if path != IDENTITY_PATH and not self.goes_on.is_set():
            self.waiting += 1
            self.goes_on.wait()
        return super().put_if_absent(path, document)


class Unrenewed(SqlRegistry):
    """As a gateway sees it that is cut off while its lease runs out."""

    _is_cut_off = False
    #: held by a renewal in progress: once the gateway is cut off none of before ends
    _renewing = threading.Lock()
    #: how often an agent was at another gateway
    met_elsewhere = 0

    @property
    def is_cut_off(self) -> bool:
        return self._is_cut_off

    @is_cut_off.setter
    def is_cut_off(self, value: bool) -> None:
        with self._renewing:
            self._is_cut_off = value

    def take_presence(self, name: AgentName, gateway: GatewayRun, session: str) -> int | PresentElsewhere:
        found = super().take_presence(name, gateway, session)
        self.met_elsewhere += isinstance(found, PresentElsewhere)
        return found

    def renew_gateway(self, gateway: GatewayRun, ttl_seconds: float) -> dict[SourceKey, int]:
        with self._renewing:
            if self.is_cut_off:
                raise RegistryUnavailable("the test cuts it off")
            return super().renew_gateway(gateway, ttl_seconds)

    def presences(self, gateway: GatewayRun) -> dict[AgentName, int]:
        if self.is_cut_off:
            raise RegistryUnavailable("the test cuts it off")
        return super().presences(gateway)


class Pair:
    """Gateways `a` and `b`, each with its own address for the landing, its storage and its registry."""

    def __init__(self, root: Path, databases: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root / "landing"
        self.storages = {"a": SteeredStorage(self.root), "b": SteeredStorage(self.root)}
        self.registries = dict(zip("ab", map(Unrenewed, databases), strict=True))
        self.metrics = {"a": GatewayMetrics(), "b": GatewayMetrics()}
        monkeypatch.setattr(server, "open_store", self._storage)

    def _storage(self, url: str) -> Store:
        return self.storages["b" if url.startswith("file:") else "a"]

    @asynccontextmanager
    async def running(self, name: str, **settings: Any) -> AsyncIterator[str]:
        url = str(self.root) if name == "a" else f"file://{self.root}"
        registry, metrics = self.registries[name], self.metrics[name]
        async with running_gateway(url, registry, metrics, name=f"gateway-{name}", **settings) as address:
            try:
                yield address
            finally:  # also of a test that fails: a gateway ends with its puts
                self.storages[name].goes_on.set()

    def in_the_lake(self) -> list[tuple[int, int, int]]:
        """Cut, first and last number of each file, as the sink reads the log; it refuses what does not follow."""
        reader = CutLogReader(LandingLog(str(self.root)), lambda: 1, Limits())
        end = reader.latestOffset({"entry": 0}, ReadAllAvailable())
        assert end["entry"] == len(read_log(self.root))
        rows = [
            row
            for part in reader.partitions({"entry": 0}, end)
            for row in (part.rows if isinstance(part, RowsPartition) else [])
        ]
        assert not [row["problem"] for row in rows if row.get("problem")]
        return [(row["cut"], row["first_gsn"], row["last_gsn"]) for row in rows if row.get("path")]


@pytest.fixture
def pair(database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    other = open_database(database_url)
    for key in (SHOP, CRM):
        want(database, key, "orders")
    yield Pair(tmp_path, (database, other), monkeypatch)
    other.close()


async def open_when_free(agent: ScriptedAgent) -> tuple[AgentStream, Replicate]:
    """Its source's stream, as soon as no other gateway owns the source."""
    while True:
        try:
            return await agent.open_binlog("shop")
        except grpc.RpcError as refused:
            assert refused.details() == "LEASE_LOST"
            await asyncio.sleep(0.05)


def in_the_log(landing: Path) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """Of each entry: the epochs of its fences, then cut and epoch of its cuts."""
    return [
        ([fence.epoch for fence in entry.fences], [(cut.cut, cut.epoch) for cut in entry.cuts])
        for entry in read_log(landing)
    ]


@pytest.mark.parametrize("lease_runs_out", [False, True])
def test_put_of_a_former_owner_when_it_comes_after_the_new_ones_fence_then_it_counts_nowhere(
    pair: Pair, lease_runs_out: bool
) -> None:
    """Either the agent comes to the other gateway itself, or it was started anew and the lease has to run out."""

    async def scenario() -> None:
        ttl = {"lease_seconds": 0.3 if lease_runs_out else 3600}
        async with pair.running("a", **ttl) as a, pair.running("b") as b, scripted_agent(a, "shop") as agent:
            old, run = await agent.open_binlog("shop")
            await commit_cut(old, run, 1, range(1, 11))
            pair.storages["a"].goes_on.clear()
            await old.send_batch(change_batch(run, 2, "orders", rows_batch(range(11, 16))))
            await old.send(cut_end=cut_end(run, 2, 15))
            await eventually("the put to stall", lambda: pair.storages["a"].waiting)
            pair.registries["a"].is_cut_off = lease_runs_out
            async with scripted_agent(b, "shop", session="" if lease_runs_out else agent.session) as moved:
                new, taken = await open_when_free(moved)
                assert (taken.next_cut, taken.next_gsn) == (2, 11)
                await commit_cut(new, taken, 2, range(11, 31))
                pair.storages["a"].goes_on.set()
                assert (await old.expect_error()).code == "LEASE_LOST"
                await commit_cut(new, taken, 3, range(31, 41))

    asyncio.run(scenario())
    first, fence, *later = in_the_log(pair.root)
    assert first == ([], [(1, 1)])
    epoch = fence[0][0]
    assert (fence, later) == (([epoch], []), [([], [(2, epoch)]), ([], [(3, epoch)])])
    assert landed_gsns(pair.root) == list(range(1, 41))
    assert pair.in_the_lake() == [(1, 1, 10), (2, 11, 30), (3, 31, 40)]
    committed = pair.registries["b"].committed(SHOP)
    assert (committed.cut, committed.last_gsn, committed.epoch) == (3, 40, epoch)
    assert pair.metrics["a"].menura_log_conflicts_total == 1


def test_put_of_a_former_owner_when_it_comes_before_the_new_ones_fence_then_the_new_one_begins_behind_it(
    pair: Pair,
) -> None:
    async def scenario() -> None:
        async with (
            pair.running("a", lease_seconds=3600) as a,
            pair.running("b") as b,
            scripted_agent(a, "shop") as agent,
        ):
            old, run = await agent.open_binlog("shop")
            await commit_cut(old, run, 1, range(1, 11))
            for storage in pair.storages.values():
                storage.goes_on.clear()
            await old.send_batch(change_batch(run, 2, "orders", rows_batch(range(11, 16))))
            await old.send(cut_end=cut_end(run, 2, 15))
            await eventually("the put to stall", lambda: pair.storages["a"].waiting)
            async with scripted_agent(b, "shop", session=agent.session) as moved:
                new = await moved.open("MySQLBinlog", "shop")
                await eventually("the fence to stall", lambda: pair.storages["b"].waiting)
                pair.storages["a"].goes_on.set()
                assert (await old.expect("cut_committed")).cut == 2
                pair.storages["b"].goes_on.set()
                taken = await new.expect("replicate")
                assert (taken.next_cut, taken.next_gsn) == (3, 16)
                await commit_cut(new, taken, 3, range(16, 31))
                await old.send(cut_end=cut_end(run, 3, 15))
                assert (await old.expect_error()).code == "LEASE_LOST"

    asyncio.run(scenario())
    epochs = [1, 1, pair.registries["b"].committed(SHOP).epoch]
    assert in_the_log(pair.root) == [
        ([], [(1, epochs[0])]), ([], [(2, epochs[1])]), ([epochs[2]], []), ([], [(3, epochs[2])]),
    ]  # fmt: skip
    assert landed_gsns(pair.root) == list(range(1, 31))
    assert pair.in_the_lake() == [(1, 1, 10), (2, 11, 15), (3, 16, 30)]


def test_commit_when_others_have_written_thousands_of_entries_then_it_catches_up_and_its_streams_see_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, metrics, storage = MemoryRegistry(), GatewayMetrics(), SteeredStorage(tmp_path)
    registry.want("acme", "shop", "orders")
    monkeypatch.setattr(server, "open_store", lambda _url: storage)

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry, metrics) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, range(1, 11))
            before = storage.reads
            for number in range(OTHERS):
                cut = LandedCut("acme", "crm", 1, number + 1, 1, "mysql", LandedPosition(), number, number)
                entry = LogEntry(number + 2, "another", 7, (cut,))
                path = tmp_path / entry_path(entry.entry)
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(encode_entry(entry))
                if number < OTHERS - UNFOLLOWED:
                    registry.apply_entry(str(tmp_path), entry)
            await commit_cut(stream, run, 2, range(11, 21))
            assert UNFOLLOWED <= storage.reads - before < 2 * UNFOLLOWED
            await commit_cut(stream, run, 3, range(21, 31))

    asyncio.run(scenario())
    assert in_the_log(tmp_path)[-2:] == [([], [(2, 1)]), ([], [(3, 1)])]
    assert landed_gsns(tmp_path) == list(range(1, 31))
    assert metrics.menura_log_conflicts_total == 1
    assert registry.committed(CRM).cut == OTHERS


def test_gateways_when_they_commit_at_the_same_time_then_all_cuts_are_in_one_order_and_no_stream_ends(
    pair: Pair,
) -> None:
    async def write(address: str, source: str) -> None:
        async with scripted_agent(address, source, agent=f"agent-of-{source}") as agent:
            stream, run = await agent.open_binlog(source)
            for cut in range(1, 31):
                await commit_cut(stream, run, cut, range(cut * 10 - 9, cut * 10 + 1))

    async def scenario() -> None:
        async with pair.running("a") as a, pair.running("b") as b:
            await asyncio.gather(write(a, "shop"), write(b, "crm"))

    asyncio.run(scenario())
    cuts = [(cut.source, cut.cut) for entry in read_log(pair.root) for cut in entry.cuts]
    for source in ("shop", "crm"):
        assert [number for of, number in cuts if of == source] == list(range(1, 31))
        assert pair.registries["a"].committed(SourceKey("acme", source)).cut == 30
    assert len(pair.in_the_lake()) == 60


def test_copy_of_an_agent_when_the_agent_lives_at_another_gateway_then_it_is_refused_until_that_is_gone(
    pair: Pair, database: Database
) -> None:
    """They took each other's sources before: LEASE_LOST for ever."""

    async def scenario() -> None:
        async with pair.running("a", lease_seconds=3600) as a, pair.running("b", lease_seconds=3600) as b:
            async with scripted_agent(a, "shop") as agent, grpc.aio.insecure_channel(b, options=OPTIONS) as channel:
                stream, run = await agent.open_binlog("shop")
                copied = await ScriptedAgent(channel, "acme", "agent-1", ("shop",)).open("Control_Config")
                await eventually("it to meet the agent", lambda: pair.registries["b"].met_elsewhere)
                pair.registries["a"].renew_gateway(run_of(database, "gateway-a"), 3600)
                error = await copied.expect_error()
                assert (error.code, error.found) == (
                    "DUPLICATE_AGENT", "another process is agent agent-1 at gateway gateway-a, and lives",
                )  # fmt: skip
                await commit_cut(stream, run, 1, range(1, 11))
            async with scripted_agent(b, "shop") as other:
                new, taken = await open_when_free(other)
                await commit_cut(new, taken, 2, range(11, 21))

    asyncio.run(scenario())
    assert landed_gsns(pair.root) == list(range(1, 21))


def test_agent_when_its_gateway_is_cut_off_then_it_is_free_with_the_lease_and_the_older_session_ends(
    pair: Pair, database: Database
) -> None:
    async def scenario() -> None:
        async with (
            pair.running("a", lease_seconds=0.3) as a,
            pair.running("b", lease_seconds=3600) as b,
            scripted_agent(a, "shop") as agent,
        ):
            control = await agent.open("Control_Config")
            await control.expect("hello_ack")
            pair.registries["a"].is_cut_off = True
            async with scripted_agent(b, "shop"):
                pair.registries["a"].is_cut_off = False
                assert (await control.expect_error()).code == "SESSION_REPLACED"
                at_b = run_of(database, "gateway-b")
                assert pair.registries["b"].presences(at_b) == {("acme", "agent-1"): 2}

    asyncio.run(scenario())


def run_of(database: Database, gateway: str) -> GatewayRun:
    with database.read() as connection:
        return GatewayRun(gateway, connection.execute(select(Gateway.run).where(Gateway.name == gateway)).scalar_one())


@pytest.mark.parametrize("kind", ["sqlite"])
def test_gateway_when_its_landing_is_another_one_then_it_is_refused_by_name(
    pair: Pair, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with pair.running("a"):
            monkeypatch.setattr(server, "open_store", lambda url: LocalStore(Path(url)))
            async with running_gateway(tmp_path / "other", SqlRegistry(database)):
                pytest.fail("it serves")

    with pytest.raises(OtherLanding, match=f"the database follows the log of {pair.root}"):
        asyncio.run(scenario())


def test_gateway_when_another_process_takes_its_name_then_it_ends_and_says_so(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    config = GatewayConfig(str(tmp_path), name="gateway-a", listen="127.0.0.1:0", lease_seconds=0.3)

    def taken(_address: str) -> None:
        registry.begin_gateway(GatewayRun("gateway-a", "another"), 3600)

    with pytest.raises(GatewayNameTaken, match="another process is gateway gateway-a"):
        asyncio.run(server.serve(config, registry, asyncio.Event(), taken))


@pytest.mark.parametrize("kind", [POSTGRESQL])
def test_change_when_it_is_made_in_the_database_then_the_agent_of_any_gateway_hears_it_without_a_look_by_the_clock(
    pair: Pair, database: Database
) -> None:
    async def scenario() -> None:
        async with (
            pair.running("a", poll_seconds=3600) as a,
            pair.running("b", poll_seconds=3600) as b,
            scripted_agent(a, "shop") as first,
            scripted_agent(b, "crm", agent="agent-2") as second,
        ):
            streams = [await agent.open("Control_Config") for agent in (first, second)]
            for stream in streams:
                assert (await stream.expect("desired_state")).generation == 1
            for turn in (2, 3, 4):
                if turn == 4:  # what nobody could hear is found by whoever listens again
                    cut_listeners_off(database)
                for stream, key in zip(streams, (SHOP, CRM), strict=True):
                    start_again(database, key)
                    assert (await stream.expect("desired_state")).generation == turn

    asyncio.run(scenario())


def cut_listeners_off(database: Database) -> None:
    with database.read() as connection:
        ended = connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE 'LISTEN %%'"
        )
        assert len(ended.all()) == 2


def start_again(database: Database, key: SourceKey) -> None:
    """As a command does that changes what is desired."""
    with database.write() as connection:
        tenant = select(Tenant.id).where(Tenant.name == key.tenant).scalar_subquery()
        this = (Source.tenant_id == tenant, Source.name == key.source)
        connection.execute(update(Source).where(*this).values(generation=Source.generation + 1))
