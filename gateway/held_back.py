"""Sources that are held back, in quarantine or by locks of other transactions: they are tried again.

Comes in: what the database says of them. Goes out: entries of the cut log, which it applies (`CutLog`). Durable is the
database; a kill leaves a source held back, and the next gateway tries it again.
"""

import asyncio
import logging
from contextlib import suppress
from functools import partial

from gateway.errors import LogUnreadable
from gateway.landing.cut_log import CutLog
from gateway.metrics import GatewayMetrics
from gateway.registry import Registry, RegistryUnavailable

logger = logging.getLogger(__name__)

#: how often what waits for a lock is tried again
BLOCKED_SECONDS = 0.25


async def reapply(log: CutLog, registry: Registry, *, asked: bool, told: set[str]) -> None:
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


async def follow_quarantines(log: CutLog, registry: Registry, seconds: float) -> None:
    """Apply what is held back of sources, whenever somebody asks for it, until cancelled."""
    told: set[str] = set()
    while True:
        await asyncio.sleep(seconds)
        with suppress(RegistryUnavailable):
            await reapply(log, registry, asked=True, told=told)


async def follow_blocked(log: CutLog, registry: Registry, metrics: GatewayMetrics) -> None:
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
