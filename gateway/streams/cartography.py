"""Cartography on a catalog stream: asks what is on a server, records the answer when its last part has come.

Goes out: CartographyRequest when the stream opens and every so often, with the digest of what is recorded, so that an
agent that has said it tells differences alone. Comes in: Cartography in parts. Parts live in memory until the last has
come, and are forgotten with the stream. Differences from what is not recorded are dropped, and the whole is asked for.
"""

import asyncio

from menura.bounds import MAX_NAME_CHARS
from menura.v1.catalog_pb2 import Cartography, CartographyRequest
from menura.v1.stream_pb2 import StreamRequest

from gateway.errors import PayloadInvalid
from gateway.landing_parts import LandingParts
from gateway.presence import AgentSession
from gateway.registry import SourceKey, TableSeen
from gateway.stream import AgentStream
from gateway.wire.translation import table_name, tables_seen

MAX_TABLES = 500_000
MAX_DIGEST_BYTES = 64


class Cartographer:
    def __init__(self, stream: AgentStream, parts: LandingParts, agent: AgentSession, key: SourceKey) -> None:
        self._stream = stream
        self._parts = parts
        self._agent = agent
        self._key = key
        self._tables: list[TableSeen] = []
        self._gone: list[tuple[str, str]] = []
        #: the agent was told that nothing is recorded
        self._is_whole_asked = False

    async def ask(self) -> None:
        while True:
            known = await self._parts.reports.tell(lambda: self._parts.registry.cartography_digest(self._key))
            await self._ask(known or b"")
            await asyncio.sleep(self._parts.config.cartography_seconds)

    async def _ask(self, known: bytes) -> None:
        self._is_whole_asked = not known
        await self._stream.send(StreamRequest(cartography_request=CartographyRequest(known=known)))

    async def take(self, part: Cartography, at_us: int) -> None:
        """One part of an answer."""
        if part.source != self._key.source:
            raise PayloadInvalid("reading a cartography", "that of another source", source=str(self._key))
        if max(len(part.digest), len(part.base)) > MAX_DIGEST_BYTES or (part.base and self._is_whole_asked):
            raise PayloadInvalid("reading a cartography", "a digest that nobody knows", source=str(self._key))
        await self._agent.reports.take(1 + len(part.tables) + len(part.gone))
        self._tables += tables_seen(part)
        self._gone += [table_name(table) for table in part.gone]
        if len(self._tables) + len(self._gone) > MAX_TABLES:
            raise PayloadInvalid("reading a cartography", f"more than {MAX_TABLES} tables", source=str(self._key))
        if not part.last:
            return
        tables, gone, self._tables, self._gone = self._tables, self._gone, [], []
        if part.flavor:
            self._agent.flavors[self._key.source] = part.flavor
        async with self._parts.cartography_turn:
            is_recorded = await self._parts.reports.tell(
                lambda: self._parts.registry.record_cartography(
                    self._key,
                    part.flavor,
                    part.server_version[:MAX_NAME_CHARS],
                    part.server_identity[:MAX_NAME_CHARS],
                    tables,
                    at_us,
                    digest=part.digest,
                    base=part.base,
                    gone=gone,
                ),
            )
        if is_recorded is False and part.base:
            await self._ask(b"")
