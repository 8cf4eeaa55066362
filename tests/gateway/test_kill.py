"""kill -9 of a gateway under load, again and again: the log stays whole, no row is lost or doubled."""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import grpc
import pyarrow.parquet as pq
import pytest
from menura.v1.changes_pb2 import Replicate

from gateway.registry import SourceKey
from tests.gateway.harness import data_files, read_log
from tests.gateway.killable import Moment
from tests.gateway.random_dump import RandomDump
from tests.gateway.scripted_agent import (
    OPTIONS,
    AgentStream,
    ScriptedAgent,
    change_batch,
    cut_end,
    eventually,
    rows_batch,
)
from tests.gateway.sql_registry import open_registry, want, want_dump
from tests.servers import free_port

#: in CI; more, e.g. MENURA_GATEWAY_KILLS=50, in a long run
KILLS = int(os.environ.get("MENURA_GATEWAY_KILLS", "5"))
SOURCES = ("shop", "crm")
TABLES = ("orders", "items", "notes")
#: of the table that is dumped
ROWS = 4_000
#: and whether chunks are committed until then; the registry is told by the log's recovery when the gateway starts
MOMENTS = {Moment.BEFORE_LOG: False, Moment.AFTER_LOG: True, Moment.AFTER_REGISTRY: False, Moment.LANDED: False}


class Load:
    """Agents that write without end and begin again from wherever the gateway says."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.committed = dict.fromkeys(SOURCES, 0)
        self.committed_epoch = dict.fromkeys(SOURCES, 0)

    async def run(self) -> None:
        while True:
            async with grpc.aio.insecure_channel(self.address, options=OPTIONS) as channel:
                agent = ScriptedAgent(channel, "acme", "agent-1", SOURCES)
                with suppress(grpc.RpcError, EOFError, asyncio.InvalidStateError, AssertionError):
                    await agent.open("Control_Config")
                    await asyncio.gather(*(self._write(agent, source) for source in SOURCES))
            await asyncio.sleep(0.05)

    async def _write(self, agent: ScriptedAgent, source: str) -> None:
        chance = random.Random(source)
        stream, run = await agent.open_binlog(source)
        acknowledged = asyncio.create_task(self._count(stream, source, run.lease_epoch))
        try:
            cut, gsn = run.next_cut, run.next_gsn
            while not acknowledged.done():
                cut, gsn = await _write_cut(stream, run, cut, gsn, chance)
                while cut - self.committed[source] > 8 and not acknowledged.done():
                    await asyncio.sleep(0.002)
            acknowledged.result()
        finally:
            acknowledged.cancel()

    async def _count(self, stream: AgentStream, source: str, epoch: int) -> None:
        while True:
            self.committed[source] = (await stream.expect("cut_committed")).cut
            self.committed_epoch[source] = epoch


async def _write_cut(stream: AgentStream, run: Replicate, cut: int, gsn: int, chance: random.Random) -> tuple[int, int]:
    for _ in range(chance.randrange(4)):
        rows = chance.choice((1, 10, 3000))
        batch = change_batch(run, cut, chance.choice(TABLES), rows_batch(range(gsn, gsn + rows)))
        await stream.send(change_batch=batch)
        gsn += rows
    await stream.send(cut_end=cut_end(run, cut, gsn - 1))
    return cut + 1, gsn


@pytest.mark.kill
def test_a_gateway_killed_under_load_when_it_starts_again_has_lost_and_doubled_nothing(tmp_path: Path) -> None:
    landing, file, port = tmp_path / "landing", tmp_path / "control.db", free_port()
    database, registry = open_registry(file)
    for source in SOURCES:
        want(database, SourceKey("acme", source), *TABLES)
    command = [sys.executable, "-m", "tests.gateway.killable", str(landing), str(file), str(port)]
    chance = random.Random(7)

    async def scenario() -> None:
        load = Load(f"127.0.0.1:{port}")
        agents = asyncio.create_task(load.run())
        for kill in range(KILLS + 1):
            before = dict(load.committed_epoch)
            process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
            try:
                await eventually(
                    f"progress after kill {kill}",
                    lambda before=before: all(load.committed_epoch[source] > before[source] for source in SOURCES),
                )
                await asyncio.sleep(chance.random() * 0.5)  # the moment of the kill
            finally:
                process.kill()
                process.wait()
        agents.cancel()
        with suppress(asyncio.CancelledError):
            await agents

    asyncio.run(scenario())
    entries = read_log(landing)
    assert len(entries) == len(list((landing / "log").rglob("[0-9]*.json")))
    gsns, cuts, epochs = defaultdict(list), defaultdict(list), defaultdict(list)
    for entry in entries:
        for cut in entry.cuts:
            cuts[cut.source].append(cut.cut)
            epochs[cut.source].append(cut.epoch)
            for landed in cut.files:
                numbers = pq.read_table(landing / landed.path).column("_gsn").to_pylist()
                assert (len(numbers), numbers[0], numbers[-1]) == (landed.rows, landed.first_gsn, landed.last_gsn)
                gsns[cut.source] += numbers
    for source in SOURCES:
        last = max(cut.last_gsn for entry in entries for cut in entry.cuts if cut.source == source)
        assert sorted(gsns[source]) == list(range(1, last + 1))
        assert cuts[source] == list(range(1, len(cuts[source]) + 1))
        assert epochs[source] == sorted(epochs[source])
        assert len(set(epochs[source])) > KILLS
        committed = registry.committed(SourceKey("acme", source))
        assert len(cuts[source]) - committed.cut <= sum(cut.source == source for cut in entries[-1].cuts)
    named = sum(len(cut.files) for entry in entries for cut in entry.cuts)
    assert named <= len(data_files(landing))
    database.close()


@pytest.mark.kill
def test_a_gateway_killed_at_each_moment_of_a_chunk_when_it_starts_again_goes_on_at_the_chunk(tmp_path: Path) -> None:
    landing, file, port = tmp_path / "landing", tmp_path / "control.db", free_port()
    database, registry = open_registry(file)
    shop = SourceKey("acme", "shop")
    want(database, shop, "orders")
    dump = want_dump(database, shop, "orders")
    command = [sys.executable, "-m", "tests.gateway.killable", str(landing), str(file), str(port)]

    async def scenario() -> None:
        agent = RandomDump(f"127.0.0.1:{port}", dump, 3, rows=ROWS, breaks=False)
        running = asyncio.create_task(agent.run())
        before = 0
        for moment, is_committed in MOMENTS.items():
            process = subprocess.Popen([*command, moment], cwd=Path(__file__).parents[2])
            await eventually(f"the kill at {moment}", lambda process=process: process.poll() is not None)
            chunks = landed_chunks(landing)
            assert process.returncode == -signal.SIGKILL
            assert (len(chunks) > before) is is_committed
            before = len(chunks)
        process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        try:
            async with asyncio.timeout(300):
                await running
        finally:
            process.kill()
            process.wait()

    asyncio.run(scenario())
    entries = read_log(landing)
    files = [file for entry in entries for cut in entry.cuts for file in cut.files]
    ids = [id_ for file in files for id_ in pq.read_table(landing / file.path).column("id").to_pylist()]
    assert sorted(ids) == list(range(1, ROWS + 1))
    assert registry.dumps(shop).dumps == ()
    kinds = [event.kind for entry in entries for cut in entry.cuts for event in cut.events]
    assert kinds == ["DUMP_STARTED", "DUMPED"]
    database.close()


def landed_chunks(landing: Path) -> list[int]:
    return [chunk.chunk for entry in read_log(landing) for cut in entry.cuts for chunk in cut.chunks]
