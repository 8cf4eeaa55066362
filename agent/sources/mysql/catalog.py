"""What tables a MySQL or MariaDB server has, and readers for their dumps, as `agent.snapshot.plugin` asks for them."""

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
from agent.sources.mysql.config import MysqlConfig
from agent.sources.mysql.server.cartography import cards, head, names_digest
from agent.sources.mysql.server.checks import check_client
from agent.sources.mysql.server.connection import connect, server_errors


@dataclass(frozen=True, slots=True)
class MysqlCatalog:
    """Of one source."""

    config: MysqlConfig
    state: SourceState

    def preflight(self) -> tuple[str, Collection[MenuraError]]:
        facts, findings = check_client(self.config)
        self.state.seen(facts.flavor, facts.version)
        return f"client {self.config.client.address} {facts.flavor} {facts.version}", findings

    def look(self, known: object, send: SendTables) -> Look:
        server, source = self.config.client, self.config.name
        with (
            closing(connect(server, source)) as connection,
            server_errors("reading what tables exist", server, source, "SELECT"),
        ):
            began = time.monotonic()
            digest = names_digest(connection)
            seconds = time.monotonic() - began
            if digest == known:
                return Look(digest, seconds, None)
            facts, findings = check_client(self.config)
            self.state.seen(facts.flavor, facts.version)
            send(head(self.config, facts), cards(connection, self.config, facts))
        return Look(digest, seconds, findings)

    def open_reader(self, position_kind: PositionKind) -> TableReader[Any]:
        from agent.sources.mysql.snapshot.reading import MysqlTableReader  # noqa: PLC0415  (what reads dumps is large, and an idle agent reads none)

        return MysqlTableReader.open(self.config, self.state, position_kind)
