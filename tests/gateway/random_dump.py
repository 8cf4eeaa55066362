"""An honest agent that dumps a table by random steps and goes on after whatever breaks."""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field

import grpc
from menura.v1.snapshot_pb2 import ChunkDropped

from tests.gateway.dump_script import DumpScript, open_dump
from tests.gateway.scripted_agent import OPTIONS, ScriptedAgent, chunk_end, snapshot_batch, snapshot_rows

BOUNDARIES = (900, 1700, 3200)


def bound(id_: int) -> str:
    return f'["{id_}"]'


@dataclass
class _Walk:
    """One range: ids up to `read` have been sent, those chunks wait to be named."""

    number: int
    read: int
    limit: int
    is_last_sent: bool
    landed: list[tuple[int, int]] = field(default_factory=list)  # chunk, id before its first


class RandomDump:
    def __init__(self, address: str, dump: str, seed: int, *, rows: int, breaks: bool) -> None:
        """Ids of the table are 1 to `rows`. With `breaks` it closes its own streams now and then."""
        self.address = address
        self.dump = dump
        self.is_done = False
        self.committed: set[int] = set()
        self._rows = rows
        self._chance = random.Random(seed)
        self._breaks = breaks
        self._next_chunk = 1
        self._walks: list[_Walk] = []
        self._named: set[int] = set()

    async def run(self) -> None:
        while not self.is_done:
            async with grpc.aio.insecure_channel(self.address, options=OPTIONS) as channel:
                agent = ScriptedAgent(channel, "acme", "agent-1", ("shop",))
                with suppress(grpc.RpcError, EOFError, asyncio.InvalidStateError, ConnectionError):
                    await agent.open("Control_Config")
                    await self._dump(agent)
            await asyncio.sleep(0.02)

    async def _dump(self, agent: ScriptedAgent) -> None:
        script = await open_dump(agent, self.dump)
        if not any(order.dump == self.dump for order in script.desired.dumps):
            self.is_done = True
            return
        if not script.order.HasField("plan"):
            await script.plan(*map(bound, BOUNDARIES))
        if not script.order.started_gsn:
            await script.start()
            while not script.order.started_gsn:
                script.desired = await script.client.expect("desired_dumps")
        self._follow_ledger(script)
        while any(not walk.is_last_sent or walk.landed for walk in self._walks) or self._named:
            await self._step(script)
        await script.reopen_client()
        if script.order.remaining:
            return
        await script.finish(script.order.started_gsn)
        await script.until_over()
        self.is_done = True

    def _follow_ledger(self, script: DumpScript) -> None:
        """Forget what no cut has committed."""
        self._next_chunk = max(self._next_chunk, script.order.next_chunk)
        self._named.clear()
        self._walks = []
        for part in script.order.remaining:
            lower = int(part.lower[2:-2]) if part.lower else 0
            upper = int(part.upper[2:-2]) if part.upper else self._rows
            self._walks.append(_Walk(part.number, lower, upper, is_last_sent=False))

    async def _step(self, script: DumpScript) -> None:
        unread = [walk for walk in self._walks if not walk.is_last_sent]
        landed = [walk for walk in self._walks if walk.landed]
        step = self._chance.random()
        if step < 0.5 and unread:
            await self._send(script, self._chance.choice(unread))
        elif step < 0.8 and landed:
            await self._name(script, landed)
        elif step < 0.86 and landed:
            await self._give_up(script, self._chance.choice(landed))
        elif step < 0.9:
            await script.client.send_batch(snapshot_batch(self.dump, self._use_number(), snapshot_rows([1])))
            await script.client.send(chunk_dropped=ChunkDropped(dump=self.dump, chunk=self._next_chunk - 1))
        elif step < 0.93 and self._breaks:
            await script.client.close()
            await script.reopen_client()
            self._follow_ledger(script)
        elif step < 0.95 and self._breaks:
            await script.binlog.close()
            await script.reopen_binlog()
            await script.client.close()
            await script.reopen_client()
            self._follow_ledger(script)
        elif self._named:
            await self._hear(script)

    async def _send(self, script: DumpScript, walk: _Walk) -> None:
        before, upper = walk.read, min(walk.limit, walk.read + self._chance.choice((1, 50, 400)))
        chunk, is_last = self._use_number(), upper == walk.limit
        for first in range(before + 1, upper + 1, 100):
            ids = range(first, min(first + 100, upper + 1))
            await script.client.send_batch(snapshot_batch(self.dump, chunk, snapshot_rows(ids)))
        end = chunk_end(
            self.dump, chunk, bound(before) if before else "", bound(upper), upper - before,
            range=walk.number, last_of_range=is_last,
        )  # fmt: skip
        await script.client.send(chunk_end=end)
        assert (await script.client.expect("chunk_landed")).chunk == chunk
        walk.landed.append((chunk, before))
        walk.read, walk.is_last_sent = upper, is_last

    async def _name(self, script: DumpScript, landed: list[_Walk]) -> None:
        refs = []
        for walk in landed:
            count = self._chance.randrange(len(walk.landed) + 1)
            refs += [(chunk, script.gsn) for chunk, _ in walk.landed[:count]]
            del walk.landed[:count]
        await script.end_cut(*refs, rows=self._chance.randrange(5), settle=self._chance.random() < 0.5)
        self._named |= {chunk for chunk, _ in refs}

    async def _give_up(self, script: DumpScript, walk: _Walk) -> None:
        """Read anew from there, with or without saying so."""
        place = self._chance.randrange(len(walk.landed))
        chunk, before = walk.landed[place]
        if self._chance.random() < 0.5:
            await script.client.send(chunk_dropped=ChunkDropped(dump=self.dump, chunk=chunk))
        del walk.landed[place:]
        walk.read, walk.is_last_sent = before, False

    async def _hear(self, script: DumpScript) -> None:
        said = await script.client.expect("chunks_committed")
        chunks = {chunk.chunk for chunk in said.chunks}
        assert chunks <= self._named
        self._named -= chunks
        self.committed |= chunks

    def _use_number(self) -> int:
        self._next_chunk += self._chance.choice((1, 1, 3))
        return self._next_chunk - 1
