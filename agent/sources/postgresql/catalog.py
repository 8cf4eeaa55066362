"""What tables a PostgreSQL database has, and readers for their dumps, as `agent.snapshot.plugin` asks for them."""

import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from menura.errors import MenuraError

from agent.positions import PositionKind
from agent.runtime.state import SourceState
from agent.snapshot.cartography import SendTables
from agent.snapshot.plugin import Look
from agent.snapshot.reader import TableReader
from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.known_definitions import KnownDefinitions
from agent.sources.postgresql.seen_transactions import SeenTransactions
from agent.sources.postgresql.server.cartography import cards, head, names_digest
from agent.sources.postgresql.server.checks import advice, check_client, check_filter
from agent.sources.postgresql.server.connection import connect, facts_of, server_errors
from agent.sources.postgresql.server.partitions import tell_partitions

FLAVOR = "postgresql"


@dataclass(frozen=True, slots=True)
class PostgresqlCatalog:
    """Of one source."""

    config: PostgresqlConfig
    #: the replication slot's name
    slot: str
    state: SourceState
    seen: SeenTransactions
    known: KnownDefinitions

    def preflight(self) -> tuple[str, Collection[MenuraError]]:
        facts, findings = check_client(self.config)
        self.state.seen(FLAVOR, facts.version_text)
        role = " (standby)" if facts.is_standby else ""
        return f"client {self.config.client.address} {FLAVOR} {facts.version_text}{role}", [
            *findings,
            *advice(self.config),
        ]

    def look(self, known: object, send: SendTables) -> Look:
        server, source = self.config.client, self.config.name
        with closing(connect(server, source)) as connection, server_errors("reading what tables exist", server, source):
            began = time.monotonic()
            digest = names_digest(connection), tell_partitions(connection, self.config.filter)
            seconds = time.monotonic() - began
            if digest == known:
                return Look(digest, seconds, None)
            facts = facts_of(connection, source)
            findings = check_filter(connection, self.config)
            self.state.seen(FLAVOR, facts.version_text)
            send(head(self.config, facts), cards(connection, self.config))
        return Look(digest, seconds, findings)

    def open_reader(self, position_kind: PositionKind) -> TableReader[Any]:
        from agent.sources.postgresql.snapshot.reading import PostgresqlTableReader  # noqa: PLC0415  (what reads dumps is large, and an idle agent reads none)

        return PostgresqlTableReader.open(self.config, self.slot, self.seen, self.known, self.state, position_kind)
