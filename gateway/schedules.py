"""What has its turn by the clock: scheduled verifications, and rollouts of agents' versions.

The database says what is due and is asked every so often; several gateways may ask, and each turn is one transaction.
"""

import asyncio
import logging

from menura.instants import now_us

from gateway.metrics import GatewayMetrics
from gateway.registry import GatewayRun, Registry, RegistryRefused, RegistryUnavailable

logger = logging.getLogger(__name__)


async def order_verifications(registry: Registry, gateway: GatewayRun, seconds: float) -> None:
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


async def move_rollouts(registry: Registry, metrics: GatewayMetrics, seconds: float) -> None:
    """Look after rollouts of agents' versions whose turn it is, until cancelled."""
    while True:
        await asyncio.sleep(seconds)
        try:
            metrics.menura_upgrade_turns_total += await asyncio.to_thread(registry.move_rollouts, now_us())
        except (RegistryRefused, RegistryUnavailable) as unavailable:
            logger.warning("rollouts are not looked after, it is tried again: %s", unavailable)
