"""The gateway process: one gRPC port, one cut log, the sessions of many agents.

`serve` is the entry: it heals what a kill left (`CutLog.recover`), opens the port, and serves until it is asked to
stop. Then streams end with GATEWAY_STOPPING, what is being committed is awaited, and sources are given back before
their agents hear of it: another gateway over the same database takes them at once, and behind a kill when the lease has
run out, or when the agent itself comes there.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from traceback import clear_frames
from typing import Any

import grpc
from menura.change_batch import MAX_BATCH_BYTES
from menura.errors import MenuraError
from menura.health import Readiness
from menura.instants import now_us
from menura.landing import landing_name
from menura.message_parts import MAX_GRPC_BYTES
from menura.stores.opening import open_store
from menura.stores.store import Store, StoreFailed, StoreUnusable
from menura.v1.config_pb2 import Hello
from menura.v1.stream_pb2 import StreamRequest

from gateway.admission import MAX_STREAMS_OF_AGENT, Admission
from gateway.audit import Audit
from gateway.changes import Changes
from gateway.config import GatewayConfig
from gateway.enrolment import EnrolmentPort, listening
from gateway.errors import (
    CertificateExpired,
    CertificateInvalid,
    CertificateMissing,
    GatewayFault,
    GatewayStopping,
    IdentityRefused,
    LandingUnusable,
    ListenRefused,
    LogUnreadable,
)
from gateway.grpc_health import health_handler
from gateway.heartbeats import Heartbeats
from gateway.identity import NOTHING_READ, Authority, Identity, check_named, identity_of
from gateway.landing.chunks import PendingChunks
from gateway.landing.committer import Committer
from gateway.landing.cut_log import CutLog
from gateway.landing.retention import Retention
from gateway.landing_parts import LandingParts
from gateway.lease import GatewayLease, new_run
from gateway.metrics import GatewayMetrics
from gateway.packages import Packages
from gateway.presence import SILENT_INTERVALS, Presence
from gateway.quotas import STREAM_ROWS
from gateway.reconciliation import Generations
from gateway.registry import AgentName, GatewayRun, Registry, RegistryRefused, RegistryUnavailable
from gateway.session import Session
from gateway.shared_presence import SharedPresence
from gateway.shares import FairThreads, Turns
from gateway.standings import Standings
from gateway.stream import AgentStream
from gateway.tasks import Reports, run_until_first
from gateway.tls import AuthorityTls, FilesTls, ServerTls

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0
#: one for the commit that runs, one for the gateway's lease, the others for runs that begin and end
COMMIT_THREADS, RUN_THREADS = 5, 3
#: of what agents report, which waits for the database; and of what streams ask and wait for, as who an agent is
REPORT_THREADS, ASK_THREADS = 4, 6
ENROL_THREADS = 2
#: of packages that agents download
PACKAGE_THREADS = 2
#: of the event loop: more than there are tasks of the gateway's own that do something there, one call at a time each.
#: What agents ask has no place in them.
BACKGROUND_THREADS = 16
#: beyond those that have a place: they are there to be told so
SPARE_STREAMS = 256
REGISTRY_RETRY_SECONDS = 1.0
#: how often it is asked whether somebody wants what is held back to be applied again
QUARANTINE_SECONDS = 1.0
#: how often what waits for a lock is tried again
BLOCKED_SECONDS = 0.25
LEAST_INTERVAL_SECONDS = 1.0
HOUR_US = 3_600_000_000
#: how often the clock is looked at again, which somebody may set
CLOCK_SECONDS = 60.0
#: parts of its readiness
_START, _STOP = "start", "stop"

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


def _fair(threads: Executor, count: int) -> FairThreads:
    return FairThreads(threads, Turns(count, most_of_tenant=of_tenant(count)))


def of_tenant(threads: int) -> int:
    """So many of them one tenant may have at a time: the others' calls wait for none of its slow ones."""
    return threads - max(1, threads // 3)


def _open(landing: str) -> Store:
    try:
        return open_store(landing)
    except StoreUnusable as unusable:
        raise LandingUnusable(
            "opening the landing",
            str(unusable),
            remedy="Check --landing and --storage-option, and install what the address needs",
        ) from unusable


async def serve(
    config: GatewayConfig,
    registry: Registry,
    stop: asyncio.Event,
    ready: Callable[[str], None] | None = None,
    metrics: GatewayMetrics | None = None,
    authority: Authority | None = None,
    readiness: Readiness | None = None,
) -> None:
    """Serve agents until `stop` is set; `ready` is told HOST:PORT once the port is open.

    `authority` certifies agents where `config.enrol_listen` is set; `readiness` is told what it waits for.
    Raises a `GatewayError` when a port, the landing or its log can't be used.
    """
    metrics, readiness = metrics or GatewayMetrics(), readiness or Readiness()
    background = ThreadPoolExecutor(BACKGROUND_THREADS, thread_name_prefix="background")
    asyncio.get_running_loop().set_default_executor(background)
    readiness.waits(_START, "the cut log is not read yet")
    storage = _open(config.landing)
    log = await _begin(config, storage, registry, gateway := new_run(config.name), stop, readiness)
    if log is None:
        return
    tls = _tls(config, authority)
    changes = Changes(registry, config.poll_seconds)
    generations = Generations(registry.generations, changes, metrics)
    dump_generations = Generations(registry.dump_generations, changes, metrics)
    configurations = Generations(registry.configuration_digests, changes, metrics)
    with (
        ThreadPoolExecutor(config.landing_threads, thread_name_prefix="landing") as threads,
        ThreadPoolExecutor(COMMIT_THREADS, thread_name_prefix="commit") as commits,
        ThreadPoolExecutor(REPORT_THREADS, thread_name_prefix="report") as reporting,
        ThreadPoolExecutor(ASK_THREADS, thread_name_prefix="ask") as answering,
        ThreadPoolExecutor(PACKAGE_THREADS, thread_name_prefix="package") as reading,
        ThreadPoolExecutor(ENROL_THREADS, thread_name_prefix="enrol") as enrolling,
    ):
        reports, asking = Reports(metrics, _fair(reporting, REPORT_THREADS)), _fair(answering, ASK_THREADS)
        standings = Standings(registry.standings, changes, metrics, asking)
        heartbeats = Heartbeats(reports, registry.record_heartbeats, config.heartbeat_interval_ms / 1000)
        spacing_seconds = config.commit_spacing_ms / 1000
        runs = _fair(commits, RUN_THREADS)
        committer = Committer(log, registry, log.landing, spacing_seconds, metrics, readiness, commits)
        parts = LandingParts(
            config=config,
            registry=registry,
            authority=authority,
            storage=storage,
            committer=committer,
            lease=GatewayLease(registry, gateway, config.lease_seconds, commits, runs, metrics, readiness),
            runs=runs,
            asking=asking,
            standings=standings,
            audit=Audit(registry, reports),
            generations=generations,
            dump_generations=dump_generations,
            configurations=configurations,
            orders=Generations(registry.version_orders, changes, metrics),
            packages=Packages(_fair(reading, PACKAGE_THREADS)),
            metrics=metrics,
            reports=reports,
            heartbeats=heartbeats,
            landing=FairThreads(threads, Turns(config.landing_threads)),
            pending_chunks=PendingChunks(),
        )
        interval_seconds = max(config.heartbeat_interval_ms / 1000, LEAST_INTERVAL_SECONDS)
        presence = Presence(SILENT_INTERVALS * interval_seconds)
        shared = SharedPresence(registry, gateway, presence, reports, asking, config.lease_seconds / 3)
        streams = _Streams(parts, presence, shared, stop)
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=config.max_streams + SPARE_STREAMS)
        server.add_generic_rpc_handlers((streams.handler(), health_handler(readiness)))
        address = _open_port(server, config, tls)
        identity = _identity_tasks(config, tls, authority, _fair(enrolling, ENROL_THREADS))
        await server.start()
        words = "by their certificates" if config.is_identified else "at their word, on this host alone"
        logger.info(
            "gateway serves: address=%s landing=%s next_entry=%d; it takes agents %s",
            address,
            log.landing,
            log.next_entry,
            words,
        )
        readiness.goes_on(_START)
        if ready is not None:
            ready(address)

        async def wait_for_stop() -> None:
            await stop.wait()
            # Streams see `stop` too; the committer still runs, so that what is being committed can end. Where the
            # registry is away it can't, and the next start heals that.
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await streams.ended()

        try:
            await run_until_first(
                committer.run(),
                parts.lease.run(),
                shared.run(),
                changes.run(),
                generations.run(),
                dump_generations.run(),
                configurations.run(),
                parts.orders.run(),
                standings.run(),
                heartbeats.run(),
                *identity,
                *_retention_tasks(config, storage, log, registry, metrics),
                _follow_quarantines(log, registry, max(config.poll_seconds, QUARANTINE_SECONDS)),
                _follow_blocked(log, registry, metrics),
                _order_verifications(registry, gateway, config.schedule_seconds),
                _move_rollouts(registry, metrics, config.rollout_seconds),
                wait_for_stop(),
            )
        finally:
            stop.set()
            readiness.waits(_STOP, "the gateway is stopping")
            await server.stop(0)
            await streams.ended()
            await _end(registry, gateway)
    logger.info("gateway has stopped: address=%s", address)


async def _begin(
    config: GatewayConfig,
    storage: Store,
    registry: Registry,
    gateway: GatewayRun,
    stop: asyncio.Event,
    readiness: Readiness,
) -> CutLog | None:
    """The log, when the registry has come to its end; waits where the registry is away. None when asked to stop."""
    while True:
        try:
            log = CutLog(storage, landing_name(config.landing), config.name)
            applied = await asyncio.to_thread(log.recover, registry)
            # This may be a newer version than the one that could not apply them.
            await _reapply(log, registry, asked=False, told=set())
            await asyncio.to_thread(registry.begin_gateway, gateway, config.lease_seconds)
        except RegistryUnavailable as unavailable:
            readiness.waits(_START, "the cut log is not read yet: the database is away")
            logger.warning("registry is away, the gateway waits: %s", unavailable)
        except StoreFailed as away:
            readiness.waits(_START, "the cut log is not read yet: the landing's store is away")
            logger.warning(
                "the landing's store is away, the gateway waits: %s; check that it is reached from here, that the"
                " bucket is there, and that --storage-option and the environment have an account that may read and"
                " write there",
                away.strerror,
            )
        else:
            logger.info("cut log read: entries_applied=%d next_entry=%d", applied, log.next_entry)
            return log
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), REGISTRY_RETRY_SECONDS)
            return None


async def _end(registry: Registry, gateway: GatewayRun) -> None:
    """What the gateway owns is free at once; else when its lease has run out."""
    try:
        await asyncio.to_thread(registry.end_gateway, gateway)
    except (RegistryRefused, RegistryUnavailable) as unavailable:
        logger.warning("the gateway's lease is not given back: %s", unavailable)


async def _follow_quarantines(log: CutLog, registry: Registry, seconds: float) -> None:
    """Apply what is held back of sources, whenever somebody asks for it, until cancelled."""
    told: set[str] = set()
    while True:
        await asyncio.sleep(seconds)
        with suppress(RegistryUnavailable):
            await _reapply(log, registry, asked=True, told=told)


async def _follow_blocked(log: CutLog, registry: Registry, metrics: GatewayMetrics) -> None:
    """Apply what waits for locks of other transactions, as soon as they are free, until cancelled."""
    told: set[str] = set()
    while True:
        await asyncio.sleep(BLOCKED_SECONDS)
        with suppress(RegistryUnavailable):
            waiting = await asyncio.to_thread(registry.blocked, log.landing)
            metrics.menura_log_blocked_sources = len(waiting)
            for held in waiting:
                try:
                    is_over = await asyncio.to_thread(log.unblock, registry, held)
                except (LogUnreadable, OSError) as unreadable:
                    if str(unreadable) not in told:
                        logger.warning("source stays blocked: source=%s: %s", held.key, unreadable)
                    told.add(str(unreadable))
                else:
                    if is_over:
                        logger.info("source goes on, its lock was free: source=%s", held.key)


async def _move_rollouts(registry: Registry, metrics: GatewayMetrics, seconds: float) -> None:
    """Look after rollouts of agents' versions whose turn it is, until cancelled."""
    while True:
        await asyncio.sleep(seconds)
        try:
            metrics.menura_upgrade_turns_total += await asyncio.to_thread(registry.move_rollouts, now_us())
        except (RegistryRefused, RegistryUnavailable) as unavailable:
            logger.warning("rollouts are not looked after, it is tried again: %s", unavailable)


async def _order_verifications(registry: Registry, gateway: GatewayRun, seconds: float) -> None:
    """Have those ordered whose turn it is, of the sources that are owned, until cancelled."""
    while True:
        await asyncio.sleep(seconds)
        try:
            ordered = await asyncio.to_thread(registry.order_verifications, gateway, now_us())
        except (RegistryRefused, RegistryUnavailable) as unavailable:
            logger.warning("scheduled verifications are not ordered, it is tried again: %s", unavailable)
        else:
            if ordered:
                logger.info("scheduled verifications ordered: sources=%d", ordered)


async def _reapply(log: CutLog, registry: Registry, *, asked: bool, told: set[str]) -> None:
    """`told`: what the log has said already of entries that can't be read."""
    for held in await asyncio.to_thread(partial(registry.held, log.landing, asked=asked)):
        try:
            is_over = await asyncio.to_thread(log.reapply, registry, held)
        except (LogUnreadable, OSError) as unreadable:
            if str(unreadable) not in told:
                logger.warning("source stays in quarantine: source=%s: %s", held.key, unreadable)
            told.add(str(unreadable))
        else:
            logger.info("source tried again: source=%s in_quarantine=%s", held.key, not is_over)


def _retention_tasks(
    config: GatewayConfig, storage: Store, log: CutLog, registry: Registry, metrics: GatewayMetrics
) -> list[Coroutine[Any, Any, None]]:
    if not config.keep_landing_hours:
        return []
    return [Retention(storage, log, registry, config.keep_landing_hours * HOUR_US, metrics).run()]


def _tls(config: GatewayConfig, authority: Authority | None) -> AuthorityTls | FilesTls | None:
    if config.tls is not None:
        return FilesTls(config.tls)
    if not config.enrol_listen:
        return None
    if authority is None:
        raise ListenRefused("reading the gateway's settings", "a port for enrolment without a CA", remedy="Give --ca")
    return AuthorityTls(authority)


def _open_port(server: grpc.aio.Server, config: GatewayConfig, tls: ServerTls | None) -> str:
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


def _identity_tasks(
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


class _Streams:
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
            await run_until_first(self._serve_stream(stream, context), self._leave_when_stopping())
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

    async def _serve_stream(self, stream: AgentStream, context: grpc.aio.ServicerContext) -> None:
        """With a certificate: its agent's place first, then the Hello, which must say the same. Without: the Hello."""
        try:
            identity = self._identity(context)
        except CertificateInvalid:
            await stream.open(self._admission, ("", stream.peer))  # by whose header the agent knows the answer
            raise
        if identity is None:
            hello = await stream.open(self._admission, ("", stream.peer))
            if hello is not None and stream.key is not None:
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

    def _named(self, stream: AgentStream, context: grpc.aio.ServicerContext) -> AgentName | None:
        """Whose stream it is: as its certificate says, which has been read, or as its header does."""
        with suppress(CertificateMissing, CertificateInvalid):
            if (identity := self._identity(context)) is not None:
                return identity.name
        return None if stream.key is None else stream.key.of_agent

    async def _leave_when_stopping(self) -> None:
        await self._stop.wait()
        raise GatewayStopping(
            "serving an agent", "the gateway is stopping", data="What is not acknowledged is read again"
        )


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
