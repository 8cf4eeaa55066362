"""What MySQL and MariaDB sources register."""

from menura.v1 import stream_pb2

from agent.mysql.client import ClientPlugin
from agent.mysql.dump.desk import Desk
from agent.mysql.replicator import BinlogPlugin
from agent.plugins import Context, Registry


def register(registry: Registry) -> None:
    """The two streams of a MySQL or MariaDB source, which share a desk."""
    desks: dict[str, Desk] = {}

    def desk_of(context: Context) -> Desk:
        return desks.setdefault(context.source.name, Desk())

    registry.register(stream_pb2.MySQLClient, lambda context: ClientPlugin(context, desk_of(context)))
    registry.register(stream_pb2.MySQLBinlog, lambda context: BinlogPlugin(context, desk_of(context)))
