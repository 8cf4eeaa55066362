"""A gateway process for tests that kill it: `python -m tests.gateway.killable LANDING DATABASE PORT [MOMENT]`.

With a moment of `Moment` it kills itself there, the first time that a chunk of a dump passes.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from menura.landing import LogEntry
from menura.stores.local import LocalStore

from controlplane_api.database import open_database
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway import memory, server
from gateway.config import GatewayConfig
from gateway.registry import SourceKey


class Moment(StrEnum):
    #: its files are durable, and not pending yet
    LANDED = "landed"
    #: a cut names it, and the entry is not written
    BEFORE_LOG = "before-log"
    #: the entry is written, and the registry does not know
    AFTER_LOG = "after-log"
    #: the registry knows, and the agent does not
    AFTER_REGISTRY = "after-registry"


class DeadlyStorage(LocalStore):
    def __init__(self, root: Path, moment: str) -> None:
        super().__init__(root)
        self._moment = moment

    def make_durable(self, paths: Iterable[str]) -> None:
        durable = list(paths)
        super().make_durable(durable)
        if any("/dump-" in path for path in durable):
            self._die_at(Moment.LANDED)

    def put_if_absent(self, path: str, document: bytes) -> bool:
        has_chunks = b'"chunks":[{' in document
        if has_chunks:
            self._die_at(Moment.BEFORE_LOG)
        written = super().put_if_absent(path, document)
        if has_chunks:
            self._die_at(Moment.AFTER_LOG)
        return written

    def _die_at(self, moment: Moment) -> None:
        if self._moment == moment:
            os.kill(os.getpid(), signal.SIGKILL)


class DeadlyRegistry(SqlRegistry):
    moment = ""

    def apply_entry(self, landing: str, entry: LogEntry) -> frozenset[SourceKey]:
        held = super().apply_entry(landing, entry)
        if self.moment == Moment.AFTER_REGISTRY and any(cut.chunks for cut in entry.cuts):
            os.kill(os.getpid(), signal.SIGKILL)
        return held


async def main(landing: str, database_file: str, port: str, moment: str = "") -> None:
    database = open_database(f"sqlite:///{database_file}")
    registry = DeadlyRegistry(database)
    registry.moment = moment
    server.open_store = lambda url: DeadlyStorage(Path(url), moment)
    config = GatewayConfig(landing, listen=f"127.0.0.1:{port}", commit_spacing_ms=5, poll_seconds=0.1)
    await server.serve(config, registry, asyncio.Event())
    database.close()


if __name__ == "__main__":
    memory.settle()
    asyncio.run(main(*sys.argv[1:]))
