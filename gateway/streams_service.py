"""The gateway's gRPC service: each open RPC from its admission to its end.

Comes in: an RPC with its certificate and its Hello. Goes out: a `Session` until the agent leaves, is refused, is
replaced or the gateway stops; then the reason, as the stream's last message and in its status. Nothing is durable here:
what a session commits is in the log, and what it has not committed its agent reads again.
"""

import asyncio
import logging
import time
from contextlib import suppress
from traceback import clear_frames

import grpc
from menura.errors import MenuraError
from menura.v1.config_pb2 import Hello
from menura.v1.stream_pb2 import StreamRequest

from gateway import loop_turns
from gateway.admission import Admission
from gateway.errors import (
    CertificateExpired,
    CertificateInvalid,
    CertificateMissing,
    GatewayFault,
    GatewayStopping,
    IdentityRefused,
)
from gateway.identity import NOTHING_READ, Identity, check_named, identity_of
from gateway.landing_parts import LandingParts
from gateway.presence import Presence
from gateway.quotas import STREAM_ROWS
from gateway.registry import AgentName
from gateway.session import Session
from gateway.shared_presence import SharedPresence
from gateway.stream import AgentStream
from gateway.tasks import run_until_first

logger = logging.getLogger(__name__)

#: how often the clock is looked at again, which somebody may set
CLOCK_SECONDS = 60.0


class StreamsService:
    """Every open RPC: the top of its task, where a failure is logged once and told to the agent."""

    def __init__(self, parts: LandingParts, presence: Presence, shared: SharedPresence, stop: asyncio.Event) -> None:
        self._parts = parts
        self._presence = presence
        self._shared = shared
        self._stop = stop
        self._admission = Admission(parts.config.max_streams, parts.config.hello_seconds)
        self._open: set[asyncio.Task[None]] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        stream = grpc.stream_stream_rpc_method_handler(
            self._serve,
            request_deserializer=None,  # a stream reads the bytes itself
            response_serializer=StreamRequest.SerializeToString,
        )
        return grpc.method_handlers_generic_handler("menura.v1.Gateway", {"Stream": stream})

    async def ended(self) -> None:
        while self._open:
            await asyncio.wait(self._open)

    async def _serve(self, _: object, context: grpc.aio.ServicerContext) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self._parts.metrics.menura_session_streams_total += 1
        self._parts.metrics.menura_session_open_streams += 1
        stream = AgentStream(context, self._parts.backlog)
        try:
            turn = loop_turns.begin(self._certified(context) or ("", _host(context)))
            await run_until_first(self._serve_stream(stream, context, turn), self._leave_when_stopping())
        except MenuraError as error:
            stream.close()
            name = self._named(stream, context)
            if isinstance(error, IdentityRefused) and error.terminal and name is not None:
                await self._parts.audit.refused(name, context.peer(), error)
            self._parts.metrics.menura_session_errors_total += 1
            self._parts.metrics.ended[error.code] += 1
            if not isinstance(error, GatewayStopping):  # said once, for all streams
                owner = "" if name is None else "/".join(name)
                lines = self._parts.log_lines
                lines.write(logger, logging.WARNING, owner, "stream ends: %s: %s", stream.key or owner, error)
            await stream.fail(error)
            clear_frames(error.__traceback__)  # tasks hold what they raised in a circle, and its frames large messages
        except Exception as fault:
            stream.close()
            self._parts.metrics.menura_session_errors_total += 1
            self._parts.metrics.ended[GatewayFault.code] += 1
            logger.exception("stream ends by a fault: %s", stream.key)
            await stream.fail(
                GatewayFault("serving a stream", "a fault of the gateway", remedy="See the gateway's log, report it")
            )
            clear_frames(fault.__traceback__)
        finally:
            stream.close()
            self._parts.metrics.certificates_us.pop(stream, None)
            self._parts.metrics.menura_session_open_streams -= 1
            self._open.discard(task)
        await stream.written()

    async def _serve_stream(
        self, stream: AgentStream, context: grpc.aio.ServicerContext, turn: loop_turns.Turn
    ) -> None:
        """With a certificate: its agent's place first, then the Hello, which must say the same. Without: the Hello."""
        try:
            identity = self._identity(context)
        except CertificateInvalid:
            await stream.open(self._admission, ("", stream.peer))  # by whose header the agent knows the answer
            raise
        if identity is None:
            hello = await stream.open(self._admission, ("", stream.peer))
            if hello is not None and stream.key is not None:
                turn.owner = stream.key.of_agent
                self._admission.place(stream.key.of_agent, context)
                await self._serve_agent(stream, hello, None)
            return
        self._admission.place(identity.name, context)
        self._parts.metrics.certificates_us[stream] = identity.expires_at_us
        hello = await stream.open(self._admission, identity.name)
        if hello is not None and stream.key is not None:
            check_named(identity, stream.key.of_agent)
            await self._serve_agent(stream, hello, identity)

    async def _serve_agent(self, stream: AgentStream, hello: Hello, identity: Identity | None) -> None:
        assert stream.key is not None
        name = stream.key.of_agent
        stream.quota = self._parts.quotas.of(name, stream.key.role)
        stream.quota.rows.owe(STREAM_ROWS)
        await stream.quota.paid()
        async with self._parts.standings.admitted(name, identity):
            session = Session(stream, self._parts, self._presence, self._shared, identity)
            await run_until_first(
                session.serve(hello), self._parts.standings.refused(name, identity), _leave_when_expired(identity)
            )

    def _identity(self, context: grpc.aio.ServicerContext) -> Identity | None:
        """Whose certificate the connection has shown; None without TLS."""
        if not self._parts.config.is_identified:
            return None
        shown = context.auth_context().get("x509_pem_cert")
        if not shown:  # gRPC lets nobody in without one
            raise CertificateMissing("admitting an agent", "its connection has no certificate", data=NOTHING_READ)
        return identity_of(shown[0])

    def _certified(self, context: grpc.aio.ServicerContext) -> AgentName | None:
        """Whose certificate it is; None where there is none, or one that says nothing of use."""
        with suppress(CertificateMissing, CertificateInvalid):
            if (identity := self._identity(context)) is not None:
                return identity.name
        return None

    def _named(self, stream: AgentStream, context: grpc.aio.ServicerContext) -> AgentName | None:
        """Whose stream it is: as its certificate says, which has been read, or as its header does."""
        return self._certified(context) or (None if stream.key is None else stream.key.of_agent)

    async def _leave_when_stopping(self) -> None:
        await self._stop.wait()
        raise GatewayStopping(
            "serving an agent", "the gateway is stopping", data="What is not acknowledged is read again"
        )


def _host(context: grpc.aio.ServicerContext) -> str:
    """Without the port: all connections of a host have one share of turns until their Hello."""
    return str(context.peer()).rpartition(":")[0]


async def _leave_when_expired(identity: Identity | None) -> None:
    """Connections outlive certificates: gRPC looks at them when one is made."""
    if identity is None:
        await asyncio.Event().wait()
        return
    while (left_seconds := identity.expires_at_us / 1e6 - time.time()) > 0:
        await asyncio.sleep(min(left_seconds, CLOCK_SECONDS))
    raise CertificateExpired(
        f"serving agent {identity.agent} of tenant {identity.tenant}",
        "the certificate that its connection began with has expired",
        data="What is not acknowledged is read again",
        remedy="It connects again with its new one; without one, enrol it anew: menura agent enrol",
    )
