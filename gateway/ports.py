"""The gateway's ports: agents' streams, and enrolment. Each is open once `serve` has begun, or refuses to start it."""

import logging
from collections.abc import Coroutine
from typing import Any

import grpc
from menura.change_batch import MAX_BATCH_BYTES
from menura.message_parts import MAX_GRPC_BYTES

from gateway.admission import MAX_STREAMS_OF_AGENT
from gateway.config import GatewayConfig
from gateway.enrolment import EnrolmentPort, listening
from gateway.errors import ListenRefused
from gateway.identity import Authority
from gateway.shares import FairThreads
from gateway.tls import AuthorityTls, FilesTls, ServerTls

logger = logging.getLogger(__name__)

_OPTIONS = (
    # gRPC holds a message before anybody can look at it, and once for each stream.
    ("grpc.max_receive_message_length", MAX_GRPC_BYTES),
    ("grpc.max_send_message_length", MAX_BATCH_BYTES),
    # Rows are compressed already, and what a stranger compresses may become a thousand times as much: identity alone.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # Of a connection.
    ("grpc.max_concurrent_streams", MAX_STREAMS_OF_AGENT),
    # An agent whose host vanished frees its sources soon.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # As at the agent, whose answer to a ping stands behind its rows.
    ("grpc.http2.ping_timeout_ms", 30_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # An agent may ask as often whether the gateway is there.
    ("grpc.http2.max_ping_strikes", 0),
    # Two gateways must not share a port in silence.
    ("grpc.so_reuseport", 0),
)


def options(config: GatewayConfig) -> list[tuple[str, int]]:
    """Of the server. gRPC's own windows would grow to megabytes a stream, as it measures the connection."""
    return [*_OPTIONS, ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", config.stream_window_bytes)]


def tls_of(config: GatewayConfig, authority: Authority | None) -> AuthorityTls | FilesTls | None:
    if config.tls is not None:
        return FilesTls(config.tls)
    if not config.enrol_listen:
        return None
    if authority is None:
        raise ListenRefused("reading the gateway's settings", "a port for enrolment without a CA", remedy="Give --ca")
    return AuthorityTls(authority)


def open_port(server: grpc.aio.Server, config: GatewayConfig, tls: ServerTls | None) -> str:
    try:
        if tls is None:
            port = server.add_insecure_port(config.listen)
        else:
            port = server.add_secure_port(config.listen, tls.credentials())
    except RuntimeError as refused:
        raise ListenRefused(
            "opening the gateway's port",
            f"{config.listen} can't be bound{'' if config.tls is None else ' with these TLS files'}",
            remedy="Stop what listens there, set another listen address, or give a PEM certificate and its key",
        ) from refused
    return f"{config.listen.rpartition(':')[0]}:{port}"


def identity_tasks(
    config: GatewayConfig, tls: AuthorityTls | FilesTls | None, authority: Authority | None, enrolling: FairThreads
) -> list[Coroutine[Any, Any, None]]:
    """What follows certificates, and the port for enrolment, which is open from now on."""
    if tls is None:
        return []
    if not isinstance(tls, AuthorityTls) or authority is None:
        return [tls.run()]
    try:
        listener = listening(config.enrol_listen)
    except OSError as refused:
        raise ListenRefused(
            "opening the port for enrolment",
            f"{config.enrol_listen} can't be bound ({refused.strerror})",
            remedy="Stop what listens there, or set --enrol-listen to another HOST:PORT",
        ) from refused
    logger.info("agents enrol: port=%d", listener.getsockname()[1])
    return [tls.run(), EnrolmentPort(listener, tls.enrolment, authority, enrolling).run()]
