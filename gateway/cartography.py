"""A MySQLClient stream: asks what is on a server, records the answer when it is whole.

Goes out: CartographyRequest when the stream opens and every so often. Comes in: Cartography in parts. Parts live in
memory until the last has come, and are forgotten with the stream. Dumps will be commands of this stream.
"""

import asyncio
import time

from menura.v1.mysql_client_pb2 import Cartography, CartographyRequest
from menura.v1.stream_pb2 import StreamRequest

from gateway.errors import PayloadInvalid
from gateway.presence import AgentSession
from gateway.registry import Problem, SourceKey, TableSeen
from gateway.replication import LandingParts
from gateway.stream import AgentStream
from gateway.tasks import report, run_until_first
from gateway.translation import MAX_NAME_CHARS, problem_from, tables_seen

MAX_TABLES = 500_000


class Cartographer:
    def __init__(self, stream: AgentStream, parts: LandingParts, agent: AgentSession, key: SourceKey) -> None:
        self._stream = stream
        self._parts = parts
        self._agent = agent
        self._key = key
        self._tables: list[TableSeen] = []

    async def serve(self) -> None:
        await run_until_first(self._receive(), self._ask())

    async def _ask(self) -> None:
        while True:
            await self._stream.send(StreamRequest(cartography_request=CartographyRequest()))
            await asyncio.sleep(self._parts.config.cartography_seconds)

    async def _receive(self) -> None:
        while (message := await self._stream.read()) is not None:
            at_us = time.time_ns() // 1000
            if message.WhichOneof("payload") == "cartography":
                await self._take(message.cartography, at_us)
                continue
            await self._record_problem(problem_from(message.error, at_us))

    async def _record_problem(self, problem: Problem) -> None:
        await report(
            self._parts.metrics,
            lambda: self._parts.registry.record_source_problem(self._key, problem, problem.at_us),
        )

    async def _take(self, part: Cartography, at_us: int) -> None:
        if part.source != self._key.source:
            raise PayloadInvalid("reading a cartography", "that of another source", source=str(self._key))
        self._tables += tables_seen(part)
        if len(self._tables) > MAX_TABLES:
            raise PayloadInvalid("reading a cartography", f"more than {MAX_TABLES} tables", source=str(self._key))
        if not part.last:
            return
        tables, self._tables = self._tables, []
        if part.flavor:
            self._agent.flavors[self._key.source] = part.flavor
        await report(
            self._parts.metrics,
            lambda: self._parts.registry.record_cartography(
                self._key,
                part.flavor,
                part.server_version[:MAX_NAME_CHARS],
                part.server_uuid[:MAX_NAME_CHARS],
                tables,
                at_us,
            ),
        )
