"""What a stream is for. Kinds of sources have request types of their own; all that a gateway goes by is their role."""

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from menura.v1.stream_pb2 import RequestType


class Role(Enum):
    #: of an agent: desired and effective state of its sources
    CONFIG = auto()
    #: of an agent: that it is alive, and how its sources are
    HEARTBEAT = auto()
    #: of a source: what tables are there, and their snapshots
    CATALOG = auto()
    #: of a source: the changes of its tables, in cuts
    CHANGES = auto()


#: of every request type that there is; who meets another one refuses it
ROLES: Final[Mapping[int, Role]] = MappingProxyType(
    {
        RequestType.Control_Config: Role.CONFIG,
        RequestType.Control_Heartbeat: Role.HEARTBEAT,
        RequestType.MySQLClient: Role.CATALOG,
        RequestType.PgSQLClient: Role.CATALOG,
        RequestType.MSSQLClient: Role.CATALOG,
        RequestType.MySQLBinlog: Role.CHANGES,
        RequestType.PgSQLWal: Role.CHANGES,
        RequestType.PgSQLLogDec: Role.CHANGES,
        RequestType.Kafka: Role.CHANGES,
        RequestType.Syslog: Role.CHANGES,
    }
)
