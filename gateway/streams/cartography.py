"""Cartography on a catalog stream: asks what is on a server, and records the answer as its parts come.

Goes out: CartographyRequest when the stream opens and every so often, with the digest of what is recorded, so that an
agent that has told it tells differences alone. Comes in: Cartography in parts. One part at a time is being recorded, of
all agents together and in turns of tenants; of each table that was told 8 bytes are kept until the last part, which
says what is gone. A stream that ends before leaves tables that are true and no digest: the next answer has all tables.
Differences from what is not recorded are dropped, and the whole is asked for.
"""

import asyncio
import logging
from array import array

from menura.bounds import MAX_NAME_CHARS
from menura.v1.catalog_pb2 import Cartography, CartographyRequest
from menura.v1.stream_pb2 import StreamRequest

from gateway.errors import PayloadInvalid
from gateway.landing_parts import LandingParts
from gateway.presence import AgentSession
from gateway.registry import CartographyEnd, SourceKey, table_hash
from gateway.stream import AgentStream
from gateway.wire.translation import check_cards, table_name, tables_seen

logger = logging.getLogger(__name__)

MAX_TABLES = 500_000
MAX_DIGEST_BYTES = 64


class Cartographer:
    def __init__(self, stream: AgentStream, parts: LandingParts, agent: AgentSession, key: SourceKey) -> None:
        self._stream = stream
        self._parts = parts
        self._agent = agent
        self._key = key
        #: the agent was told that nothing is recorded, and has not told the whole since
        self._is_whole_asked = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        #: whether the registry takes the one that comes; None before its first part
        self._is_taken: bool | None = None
        self._names = array("Q")
        self._count = 0

    async def ask(self) -> None:
        while True:
            known = await self._parts.reports.tell(
                self._agent.name, lambda: self._parts.registry.cartography_digest(self._key)
            )
            self._ask(known or b"")
            await asyncio.sleep(self._parts.config.cartography_seconds)

    def _ask(self, known: bytes) -> None:
        self._is_whole_asked = not known
        self._stream.post(StreamRequest(cartography_request=CartographyRequest(known=known)))
        lines = self._parts.log_lines
        lines.write(logger, logging.INFO, self._stream.owner, "command sent: %s: cartography_request", self._stream.key)

    async def take(self, part: Cartography, at_us: int) -> None:
        """One part of an answer."""
        if part.source != self._key.source:
            raise PayloadInvalid("reading a cartography", "that of another source", source=str(self._key))
        if max(len(part.digest), len(part.base)) > MAX_DIGEST_BYTES:
            raise PayloadInvalid("reading a cartography", "a digest that is too long", source=str(self._key))
        check_cards(part)
        self._stream.quota.rows.owe(1 + len(part.tables) + len(part.gone))
        self._count += len(part.tables) + len(part.gone)
        if self._count > MAX_TABLES:
            raise PayloadInvalid("reading a cartography", f"more than {MAX_TABLES} tables", source=str(self._key))
        if part.base and self._is_whole_asked:
            self._is_taken = False  # the agent told it before it heard that the whole is asked for, which comes next
        async with self._parts.cartographies.of(self._agent.name):
            await self._record(part)
            if part.last and self._is_taken:
                await self._record_end(part, at_us)
        if not part.last:
            return
        was_taken = self._is_taken
        self._begin_anew()
        if part.flavor:
            self._agent.flavors[self._key.source] = part.flavor
        if part.base and not was_taken and not self._is_whole_asked:
            self._ask(b"")
        if not part.base:
            self._is_whole_asked = False

    async def _record(self, part: Cartography) -> None:
        registry, reports = self._parts.registry, self._parts.reports
        if self._is_taken is None:
            self._is_taken = (
                await reports.tell(self._agent.name, lambda: registry.begin_cartography(self._key, part.base)) or False
            )
        if self._is_taken and (part.tables or part.gone):

            def record() -> bool:
                tables = tables_seen(part)
                registry.record_tables(self._key, tables, [table_name(table) for table in part.gone])
                self._names.extend(table_hash(table.database, table.table) for table in tables)
                return True

            # What is dropped now leaves no whole cartography.
            self._is_taken = await reports.tell(self._agent.name, record) or False

    async def _record_end(self, part: Cartography, at_us: int) -> None:
        told = CartographyEnd(
            part.flavor,
            part.server_version[:MAX_NAME_CHARS],
            part.server_identity[:MAX_NAME_CHARS],
            part.digest,
            None if part.base else frozenset(self._names),
        )
        await self._parts.reports.tell(
            self._agent.name, lambda: self._parts.registry.end_cartography(self._key, told, at_us)
        )
