"""Looks at all sources again and again while the application serves, for their histories.

Comes in: the database. Goes out: points in `Histories`. The first look is `STEP_SECONDS` after the beginning. Nothing
is durable. A look that the database does not answer leaves its points out, and is told once.
"""

import asyncio
import logging
import time
from contextlib import suppress

from menura.instants import now_us
from starlette.types import ASGIApp, Receive, Scope, Send

from controlplane_api.api import histories
from controlplane_api.api.histories import Histories
from controlplane_api.api.history_queries import look
from controlplane_api.database import Database
from controlplane_api.errors import DatabaseError

logger = logging.getLogger(__name__)

#: of the time that it may take: where looks take longer, they are less frequent
MOST_BUSY = 0.1


class Keeping:
    """ASGI middleware that does so between startup and shutdown."""

    def __init__(self, app: ASGIApp, database: Database, kept: Histories) -> None:
        self._app = app
        self._database = database
        self._kept = kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        looking = asyncio.create_task(self._look_again_and_again())
        try:
            await self._app(scope, receive, send)
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking

    async def _look_again_and_again(self) -> None:
        is_away, seconds = False, 0.0
        while True:
            await asyncio.sleep(max(histories.STEP_SECONDS - seconds, seconds / MOST_BUSY))
            began_at = time.monotonic()
            try:
                await asyncio.to_thread(self._look)
                is_away = False
            except DatabaseError as away:
                if not is_away:
                    logger.warning("the histories of sources have a gap: %s", away)
                is_away = True
            except Exception:
                logger.exception("the histories of sources end here: report it; all else goes on")
                return
            seconds = time.monotonic() - began_at

    def _look(self) -> None:
        with self._database.read() as connection:
            seen = look(connection)
        self._kept.take(now_us(), seen)
