"""The gateway process: one gRPC port, one cut log, the sessions of many agents.

`serve` is the entry: it heals what a kill left (`CutLog.recover`), opens the port, and serves until it is asked to
stop. Then streams end with GATEWAY_STOPPING, what is being committed is awaited, and sources are given back before
their agents hear of it: another gateway over the same database takes them at once, and behind a kill when the lease has
run out, or when the agent itself comes there.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import grpc
from menura.health import Readiness
from menura.landing import landing_name
from menura.stores.opening import open_store
from menura.stores.store import Store, StoreFailed, StoreUnusable

from gateway import grpc_wakeups, loop_turns
from gateway.audit import Audit
from gateway.changes import Changes
from gateway.config import GatewayConfig
from gateway.errors import (
    LandingUnusable,
)
from gateway.grpc_health import health_handler
from gateway.heartbeats import Heartbeats
from gateway.held_back import follow_blocked, follow_quarantines, reapply
from gateway.identity import Authority
from gateway.landing.chunks import PendingChunks
from gateway.landing.committer import Committer
from gateway.landing.cut_log import CutLog
from gateway.landing.retention import Retention
from gateway.landing_parts import LandingParts
from gateway.lease import GatewayLease, new_run
from gateway.metrics import GatewayMetrics
from gateway.packages import Packages
from gateway.ports import identity_tasks, open_port, options, tls_of
from gateway.presence import SILENT_INTERVALS, Presence
from gateway.reconciliation import Generations
from gateway.registry import GatewayRun, Registry, RegistryRefused, RegistryUnavailable
from gateway.schedules import move_rollouts, order_verifications
from gateway.shared_presence import SharedPresence
from gateway.standings import Standings
from gateway.streams_service import StreamsService
from gateway.tasks import Reports, run_until_first
from gateway.threads import Threads, threads

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0
#: beyond those that have a place: they are there to be told so
SPARE_STREAMS = 256
REGISTRY_RETRY_SECONDS = 1.0
#: how often it is asked whether somebody wants what is held back to be applied again
QUARANTINE_SECONDS = 1.0
LEAST_INTERVAL_SECONDS = 1.0
HOUR_US = 3_600_000_000
#: parts of its readiness
_START, _STOP = "start", "stop"


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
    with threads(config.landing_threads) as pools, loop_turns.taken(asyncio.get_running_loop()):
        readiness.waits(_START, "the cut log is not read yet")
        storage = _open(config.landing)
        log = await _begin(config, storage, registry, gateway := new_run(config.name), stop, readiness)
        if log is None:
            return
        tls = tls_of(config, authority)
        changes = Changes(registry, config.poll_seconds)
        parts = _parts(config, registry, authority, storage, log, gateway, pools, changes, metrics, readiness)
        interval_seconds = max(config.heartbeat_interval_ms / 1000, LEAST_INTERVAL_SECONDS)
        presence = Presence(SILENT_INTERVALS * interval_seconds)
        shared = SharedPresence(registry, gateway, presence, parts.reports, pools.asking, config.lease_seconds / 3)
        streams = StreamsService(parts, presence, shared, stop)
        with grpc_wakeups.taken_at_once(asyncio.get_running_loop()):
            most_streams = config.max_streams + SPARE_STREAMS
            server = grpc.aio.server(options=options(config), maximum_concurrent_rpcs=most_streams)
        server.add_generic_rpc_handlers((streams.handler(), health_handler(readiness)))
        address = open_port(server, config, tls)
        identity = identity_tasks(config, tls, authority, pools.enrolling)
        await server.start()
        _say_serving(config, log, address)
        readiness.goes_on(_START)
        if ready is not None:
            ready(address)
        try:
            await run_until_first(
                *parts.tasks(),
                shared.run(),
                changes.run(),
                *identity,
                *_retention_tasks(config, storage, log, registry, metrics),
                follow_quarantines(log, registry, max(config.poll_seconds, QUARANTINE_SECONDS)),
                follow_blocked(log, registry, metrics),
                order_verifications(registry, gateway, config.schedule_seconds),
                move_rollouts(registry, metrics, config.rollout_seconds),
                _wait_for_stop(stop, streams),
            )
        finally:
            stop.set()
            readiness.waits(_STOP, "the gateway is stopping")
            await server.stop(0)
            await streams.ended()
            await _end(registry, gateway)
    logger.info("gateway has stopped: address=%s", address)


def _parts(
    config: GatewayConfig,
    registry: Registry,
    authority: Authority | None,
    storage: Store,
    log: CutLog,
    gateway: GatewayRun,
    pools: Threads,
    changes: Changes,
    metrics: GatewayMetrics,
    readiness: Readiness,
) -> LandingParts:
    reports = Reports(metrics, pools.reporting)
    spacing_seconds = config.commit_spacing_ms / 1000
    return LandingParts(
        config=config,
        registry=registry,
        authority=authority,
        storage=storage,
        committer=Committer(log, registry, log.landing, spacing_seconds, metrics, readiness, pools.commits),
        lease=GatewayLease(registry, gateway, config.lease_seconds, pools.commits, pools.runs, metrics, readiness),
        runs=pools.runs,
        asking=pools.asking,
        standings=Standings(registry.standings, changes, metrics, pools.asking),
        audit=Audit(registry, reports),
        changes=changes,
        generations=Generations(registry.generations, changes, metrics),
        dump_generations=Generations(registry.dump_generations, changes, metrics),
        configurations=Generations(registry.configuration_digests, changes, metrics),
        orders=Generations(registry.version_orders, changes, metrics),
        packages=Packages(pools.packages),
        metrics=metrics,
        reports=reports,
        heartbeats=Heartbeats(reports, registry.record_heartbeats, config.heartbeat_interval_ms / 1000),
        landing=pools.landing,
        pending_chunks=PendingChunks(),
    )


def _say_serving(config: GatewayConfig, log: CutLog, address: str) -> None:
    words = "by their certificates" if config.is_identified else "at their word, on this host alone"
    logger.info(
        "gateway serves: address=%s landing=%s next_entry=%d; it takes agents %s",
        address,
        log.landing,
        log.next_entry,
        words,
    )


async def _wait_for_stop(stop: asyncio.Event, streams: StreamsService) -> None:
    await stop.wait()
    # Streams see `stop` too; the committer still runs, so that what is being committed can end. Where the
    # registry is away it can't, and the next start heals that.
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_SECONDS):
            await streams.ended()


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
            await reapply(log, registry, asked=False, told=set())
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


def _retention_tasks(
    config: GatewayConfig, storage: Store, log: CutLog, registry: Registry, metrics: GatewayMetrics
) -> list[Coroutine[Any, Any, None]]:
    if not config.keep_landing_hours:
        return []
    return [Retention(storage, log, registry, config.keep_landing_hours * HOUR_US, metrics).run()]
