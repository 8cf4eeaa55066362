"""From a gRPC message's bytes to a StreamRequest of the gateway: each byte is hostile, on the database's host.

Comes in: the bytes of one message. Goes out: the message, or `GatewayRefused`, which ends the stream: bytes are
bounded before protobuf makes objects of them, numbers of tables and dumps and the length of names after that. Intervals
are brought into their bounds by `interval_seconds`. Knows no request's meaning, and nothing is durable.
"""

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError
from menura.bounds import MAX_NAME_CHARS, MAX_SYNCED_TABLES
from menura.v1 import config_pb2, stream_pb2
from menura.weight import TooManyFields, check_weight

from agent.errors import GatewayRefused

#: a table's two names at the servers' 64 characters of four bytes, and what Replicate has beside them but for positions
_TABLE_BYTES: Final = 2 * 64 * 4 + 128
#: of a message without positions, which are those of control streams
MAX_CONTROL_BYTES: Final = MAX_SYNCED_TABLES * _TABLE_BYTES
#: with positions, and with what dumps have left: gRPC drops a longer one before it is here
MAX_REQUEST_BYTES: Final = 2 * MAX_CONTROL_BYTES
#: a table of Replicate with its position has twelve
MAX_FIELDS: Final = 16 * MAX_SYNCED_TABLES
#: below, a message can't become much
_WEIGHED_FROM_BYTES: Final = 256 << 10
_CONTROL = (stream_pb2.Control_Config, stream_pb2.Control_Heartbeat)


def read_request(data: bytes, request_type: stream_pb2.RequestType, address: str) -> stream_pb2.StreamRequest:
    """Raises `GatewayRefused`.

    >>> ack = stream_pb2.StreamRequest(hello_ack=config_pb2.HelloAck(gateway="gw"))
    >>> read_request(ack.SerializeToString(), stream_pb2.Control_Config, "gw:7070") == ack
    True
    """
    if request_type in _CONTROL and len(data) > MAX_CONTROL_BYTES:
        raise _refused(address, f"more than {MAX_CONTROL_BYTES} bytes")
    try:
        if len(data) > _WEIGHED_FROM_BYTES:
            check_weight(memoryview(data), stream_pb2.StreamRequest, MAX_FIELDS)
        request = stream_pb2.StreamRequest.FromString(data)
        _check_tables(request)
    except TooManyFields as large:
        raise _refused(address, str(large)) from large
    except (DecodeError, ValueError) as broken:
        raise _refused(address, "bytes that are no message of menura.v1") from broken
    return request


def interval_seconds(milliseconds: int, least_seconds: float, most_seconds: float) -> float:
    """
    >>> interval_seconds(1, 0.1, 60), interval_seconds(1_000, 0.1, 60), interval_seconds(2**32 - 1, 0.1, 60)
    (0.1, 1.0, 60)
    """
    return max(least_seconds, min(milliseconds / 1000, most_seconds))


def _check_tables(request: stream_pb2.StreamRequest) -> None:
    named = _tables(request)
    for count, table in enumerate(named, start=1):
        if count > MAX_SYNCED_TABLES:
            raise TooManyFields(f"more than {MAX_SYNCED_TABLES} tables")
        if max(len(table.database), len(table.table)) > MAX_NAME_CHARS:
            raise TooManyFields(f"a name of more than {MAX_NAME_CHARS} characters")


def _tables(request: stream_pb2.StreamRequest) -> Iterator[config_pb2.TableName]:
    match request.WhichOneof("payload"):
        case "desired_state":
            yield from request.desired_state.tables
        case "replicate":
            yield from (sync.table for sync in request.replicate.tables)
        case "desired_dumps":
            yield from (order.table for order in request.desired_dumps.dumps)


def _refused(address: str, found: str) -> GatewayRefused:
    return GatewayRefused(
        f"reading a request of the gateway {address}",
        found,
        data="Nothing of it was done, and nothing is lost: the stream opens anew",
        remedy=f"Give a source at most {MAX_SYNCED_TABLES} tables; if it has less, upgrade the gateway and the agent to"
        " one version",
    )
