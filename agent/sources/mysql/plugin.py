"""What MySQL and MariaDB sources register."""

from menura.v1 import stream_pb2

from agent.plugins import Context, Registry
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.sources.mysql.client import ClientPlugin
from agent.sources.mysql.replicator import BinlogPlugin


def register(registry: Registry) -> None:
    """The two streams of a MySQL or MariaDB source, which share a coordinator."""
    coordinators: dict[str, SnapshotCoordinator] = {}

    def coordinator_of(context: Context) -> SnapshotCoordinator:
        return coordinators.setdefault(context.source.name, SnapshotCoordinator())

    registry.register(stream_pb2.MySQLClient, lambda context: ClientPlugin(context, coordinator_of(context)))
    registry.register(stream_pb2.MySQLBinlog, lambda context: BinlogPlugin(context, coordinator_of(context)))
