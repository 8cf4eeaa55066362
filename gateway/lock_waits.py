"""Calls of the database that all tenants need, and who holds what they wait for.

Comes in: a call under way in a thread. Goes out: its result; and, where it takes long, a line of the log for each
transaction of somebody else that holds a lock which is waited for. Nothing is ended here: whose transaction it is, an
operator knows.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.registry import RegistryUnavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: a call of the database that takes longer may wait for a lock
SLOW_SECONDS = 2.0
_LOCKED = (
    "%s wait for a lock that another transaction of the control plane's database holds: %s; nothing is lost, and it"
    " goes on when that ends: end it there where it stays open (docs/failures.md)"
)


async def told_when_locked(
    work: Awaitable[T], holders: Callable[[], list[str]], what: str, slow: Callable[[], None]
) -> T:
    """Await a call; each time that it is still under way after `SLOW_SECONDS`, `slow` is called."""
    job, told = asyncio.ensure_future(work), set[str]()
    try:
        while not (await asyncio.wait({job}, timeout=SLOW_SECONDS))[0]:
            slow()
            try:
                found = await asyncio.to_thread(holders)
            except RegistryUnavailable:
                continue  # which the call itself will say
            for holder in found:
                if holder not in told:
                    logger.error(_LOCKED, what, holder)
            told.update(found)
    finally:
        job.cancel()
    return job.result()
