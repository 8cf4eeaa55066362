"""Calls of the database that all tenants need, and who holds what they wait for.

Comes in: a call under way in a thread. Goes out: its result; and, where it takes long, a line of the log for each
transaction of somebody else that holds a lock which is waited for. Nothing is ended here: whose transaction it is, an
operator knows.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Never, TypeVar

from gateway.registry import LockHolder, RegistryUnavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")
#: who is told once, and how he is named
Holders = Callable[[], Mapping[LockHolder, str]]

#: a call of the database that takes longer may wait for a lock
SLOW_SECONDS = 2.0
_LOCKED = (
    "%s wait for a lock that another transaction of the control plane's database holds: %s; nothing is lost, and it"
    " goes on when that ends: end it there where it stays open (docs/failures.md)"
)


async def told_when_locked(work: Awaitable[T], holders: Holders, what: str, slow: Callable[[], None]) -> T:
    """Await a call; each time that it is still under way after `SLOW_SECONDS`, `slow` is called.

    The call's end waits for no look at the holders. A look that goes on then ends in its thread, at the latest when the
    database can't be connected to in time.
    """
    job, looking = asyncio.ensure_future(work), asyncio.create_task(_tell(holders, what, slow))
    try:
        await asyncio.wait({job, looking}, return_when=asyncio.FIRST_COMPLETED)
        return job.result() if job.done() else looking.result()
    finally:
        job.cancel()
        looking.cancel()


async def _tell(holders: Holders, what: str, slow: Callable[[], None]) -> Never:
    told = set[LockHolder]()
    while True:
        await asyncio.sleep(SLOW_SECONDS)
        slow()
        try:
            found = await asyncio.to_thread(holders)
        except RegistryUnavailable:
            continue  # which the call itself will say
        for holder in found.keys() - told:
            logger.error(_LOCKED, what, found[holder])
        told.update(found)
