"""The kind of source of PostgreSQL databases."""

from collections.abc import Sequence

from menura.v1 import stream_pb2

from agent.capture.plugin import ChangesPlugin
from agent.runtime.credit import Credit
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.snapshot.plugin import CatalogPlugin
from agent.source_kind import Context, SourcePlugin
from agent.sources.postgresql.catalog import PostgresqlCatalog
from agent.sources.postgresql.changes import WalChanges
from agent.sources.postgresql.config import KEYS, PostgresqlConfig, configure
from agent.sources.postgresql.identifiers import IDENTIFIERS
from agent.sources.postgresql.known_definitions import KnownDefinitions
from agent.sources.postgresql.seen_transactions import SeenTransactions

__all__ = ["config_keys", "configure", "identifiers", "make_plugins"]

config_keys = KEYS
identifiers = IDENTIFIERS


def make_plugins(context: Context) -> Sequence[SourcePlugin]:
    """Its two streams, which share a coordinator, and what dumps have to know of the stream of changes."""
    config = context.source
    assert isinstance(config, PostgresqlConfig)  # of `configure`
    coordinator, credit = SnapshotCoordinator(), Credit()
    seen, known = SeenTransactions(), KnownDefinitions()
    slot = config.slot_of(context.tenant, context.agent)
    changes = WalChanges(context, config, coordinator, credit, seen, known)
    catalog = PostgresqlCatalog(config, slot, context.state, seen, known)
    return (
        CatalogPlugin(stream_pb2.PgSQLClient, config, context.state, coordinator, catalog, catalog.open_reader),
        ChangesPlugin(stream_pb2.PgSQLLogDec, context.state, coordinator, credit, changes),
    )
