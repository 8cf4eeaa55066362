"""Cartography on a catalog stream: asks what is on a server, records the answer when it is whole.

Goes out: CartographyRequest when the stream opens and every so often. Comes in: Cartography in parts. Parts live in
memory until the last has come, and are forgotten with the stream.
"""

import asyncio
import logging

from menura.bounds import MAX_NAME_CHARS
from menura.v1.catalog_pb2 import Cartography, CartographyRequest
from menura.v1.stream_pb2 import StreamRequest

from gateway.errors import PayloadInvalid
from gateway.landing_parts import LandingParts
from gateway.presence import AgentSession
from gateway.registry import SourceKey, TableSeen
from gateway.stream import AgentStream
from gateway.wire.translation import tables_seen

logger = logging.getLogger(__name__)

MAX_TABLES = 500_000


class Cartographer:
    def __init__(self, stream: AgentStream, parts: LandingParts, agent: AgentSession, key: SourceKey) -> None:
        self._stream = stream
        self._parts = parts
        self._agent = agent
        self._key = key
        self._tables: list[TableSeen] = []

    async def ask(self) -> None:
        while True:
            await self._stream.send(StreamRequest(cartography_request=CartographyRequest()))
            lines = self._parts.log_lines
            lines.write(logger, logging.INFO, self._key, "command sent: %s: cartography_request", self._stream.key)
            await asyncio.sleep(self._parts.config.cartography_seconds)

    async def take(self, part: Cartography, at_us: int) -> None:
        """One part of an answer."""
        if part.source != self._key.source:
            raise PayloadInvalid("reading a cartography", "that of another source", source=str(self._key))
        await self._agent.reports.take(1 + len(part.tables))
        self._tables += tables_seen(part)
        if len(self._tables) > MAX_TABLES:
            raise PayloadInvalid("reading a cartography", f"more than {MAX_TABLES} tables", source=str(self._key))
        if not part.last:
            return
        tables, self._tables = self._tables, []
        if part.flavor:
            self._agent.flavors[self._key.source] = part.flavor
        async with self._parts.cartography_turn:
            await self._parts.reports.tell(
                lambda: self._parts.registry.record_cartography(
                    self._key,
                    part.flavor,
                    part.server_version[:MAX_NAME_CHARS],
                    part.server_identity[:MAX_NAME_CHARS],
                    tables,
                    at_us,
                ),
            )
