"""The kind of source of MySQL and MariaDB servers."""

from collections.abc import Sequence

from menura.v1 import stream_pb2

from agent.capture.plugin import ChangesPlugin
from agent.runtime.credit import Credit
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.snapshot.plugin import CatalogPlugin
from agent.source_kind import Context, SourcePlugin
from agent.sources.mysql.catalog import MysqlCatalog
from agent.sources.mysql.config import KEYS, MysqlConfig, configure
from agent.sources.mysql.ddl.identifiers import IDENTIFIERS
from agent.sources.mysql.replicator import BinlogChanges

__all__ = ["config_keys", "configure", "identifiers", "make_plugins"]

config_keys = KEYS
identifiers = IDENTIFIERS


def make_plugins(context: Context) -> Sequence[SourcePlugin]:
    """Its two streams, which share a coordinator."""
    config = context.source
    assert isinstance(config, MysqlConfig)  # of `configure`
    coordinator, credit = SnapshotCoordinator(), Credit()
    changes = BinlogChanges(context, config, coordinator, credit)
    catalog = MysqlCatalog(config, context.state)
    return (
        CatalogPlugin(stream_pb2.MySQLClient, config, context.state, coordinator, catalog, catalog.open_reader),
        ChangesPlugin(stream_pb2.MySQLBinlog, context.state, coordinator, credit, changes),
    )
