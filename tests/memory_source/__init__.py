"""A kind of source whose database and log are in this process: what a kind has to bring, and no more than that.

::

    database    tables and a log of transactions; writers commit to it
    positions   a place in such a log
    changes     the log, read from a place on: rows as Arrow columns, events
    tables      what tables there are, and their rows in chunks or in one snapshot

It runs what is not a source's own (`agent.capture`, `agent.snapshot`, the gateway, the sink) without a server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from menura.v1 import stream_pb2

from agent.capture.plugin import ChangesPlugin
from agent.config_entries import Entry
from agent.filter import Identifiers
from agent.runtime.credit import Credit
from agent.settings import SourceConfig
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.snapshot.plugin import CatalogPlugin
from agent.source_kind import Context, SourcePlugin
from tests.memory_source.changes import MemoryChanges
from tests.memory_source.database import DATABASES
from tests.memory_source.tables import MemoryCatalog

config_keys = ("database", "snapshots")
#: names are what they are
identifiers = Identifiers(frozenset({"system"}), fold=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig(SourceConfig):
    database: str

    @property
    def address(self) -> str:
        return f"memory:{self.database}"


def configure(common: SourceConfig, entry: Entry, entries: Mapping[str, Entry]) -> MemoryConfig:
    return MemoryConfig(
        name=common.name,
        kind=common.kind,
        filter=common.filter,
        dump=common.dump,
        unlogged=common.unlogged,
        database=entry.required(entries, "database").text(),
        has_snapshots="snapshots" not in entries or entries["snapshots"].text() != "none",
    )


def make_plugins(context: Context) -> Sequence[SourcePlugin]:
    config = context.source
    assert isinstance(config, MemoryConfig)
    database, coordinator, credit = DATABASES[config.database], SnapshotCoordinator(), Credit()
    catalog = MemoryCatalog(database, config)
    changes = MemoryChanges(database, config, context.state, coordinator, credit)
    open_reader = catalog.open_reader if config.has_snapshots else None
    return (
        CatalogPlugin(stream_pb2.PgSQLClient, config, context.state, coordinator, catalog, open_reader),
        ChangesPlugin(stream_pb2.PgSQLWal, context.state, coordinator, credit, changes),
    )
