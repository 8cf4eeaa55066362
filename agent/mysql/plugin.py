"""What MySQL and MariaDB sources register."""

from menura.v1 import stream_pb2

from agent.mysql.client import ClientPlugin
from agent.mysql.replicator import BinlogPlugin
from agent.plugins import Registry


def register(registry: Registry) -> None:
    """The two streams of a MySQL or MariaDB source."""
    registry.register(stream_pb2.MySQLClient, ClientPlugin)
    registry.register(stream_pb2.MySQLBinlog, BinlogPlugin)
