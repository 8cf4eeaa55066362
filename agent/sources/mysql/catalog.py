"""What tables a MySQL or MariaDB server has, and readers for their dumps, as `agent.snapshot.plugin` asks for them."""

import time
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass

from menura.errors import MenuraError
from menura.v1 import catalog_pb2

from agent.positions import PositionKind
from agent.runtime.credit import Credit
from agent.runtime.state import SourceState
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.snapshot.plugin import Look
from agent.snapshot.reader import OpenReader
from agent.snapshot.scheduler import SnapshotScheduler
from agent.snapshot.throttles import Throttles
from agent.sources.mysql.config import MysqlConfig
from agent.sources.mysql.server.cartography import names_digest, read_cartography
from agent.sources.mysql.server.checks import check_client
from agent.sources.mysql.server.connection import connect, server_errors
from agent.sources.mysql.snapshot.access import Access
from agent.sources.mysql.snapshot.reading import Reader


@dataclass(frozen=True, slots=True)
class MysqlCatalog:
    """Of one source."""

    config: MysqlConfig
    state: SourceState

    def preflight(self) -> tuple[str, Collection[MenuraError]]:
        facts, findings = check_client(self.config)
        self.state.seen(facts.flavor, facts.version)
        return f"client {self.config.client.address} {facts.flavor} {facts.version}", findings

    def look(self, known: object, send: Callable[[catalog_pb2.Cartography], None]) -> Look:
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
            for part in read_cartography(connection, self.config, facts):
                send(part)
        return Look(digest, seconds, findings)

    def readers(self, coordinator: SnapshotCoordinator, scheduler: SnapshotScheduler, credit: Credit) -> OpenReader:
        def open_reader(position_kind: PositionKind, throttles: Throttles) -> Reader:
            access = Access.open(self.config, position_kind)
            return Reader(access, coordinator, scheduler, credit, throttles, self.state)

        return open_reader
