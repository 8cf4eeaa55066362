"""Server-sent events: an answer that goes on for as long as its reader takes it.

Comes in: texts, one after the other. Goes out: the answer's body. It ends when the reader closes it, when the reader
has not taken a text within `SEND_SECONDS`, and after `STREAM_SECONDS`; a reader comes back with `Last-Event-ID`. A
process has `MAX_STREAMS` of them at once, and `MAX_OF_TENANT` of one tenant.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from controlplane_api.api.guard import HEAD
from controlplane_api.errors import StreamsTooMany

MAX_STREAMS, MAX_OF_TENANT = 200, 50
SEND_SECONDS = 10
STREAM_SECONDS = 3_600


class EventStreams:
    """How many are open."""

    def __init__(self) -> None:
        #: by tenant
        self.open: Counter[str] = Counter()

    def check(self, tenant: str) -> None:
        """Raises `StreamsTooMany`."""
        if self.open[tenant] >= MAX_OF_TENANT or self.open.total() >= MAX_STREAMS:
            raise StreamsTooMany(
                "opening a stream of events",
                f"{self.open[tenant]} of this tenant are open; there may be {MAX_OF_TENANT}, and {MAX_STREAMS} in all",
                remedy="Close one, or open it later.",
            )


class EventStream(Response):
    media_type = "text/event-stream"

    def __init__(self, streams: EventStreams, tenant: str, texts: AsyncGenerator[str, None]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._streams = streams
        self._tenant = tenant
        self._texts = texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        end = {"type": "http.response.body", "body": b""}
        if scope.get(HEAD):
            await send(start)
            await send(end)
            return
        self._streams.open[self._tenant] += 1
        try:
            await send(start)
            await self._follow(receive, send)
            with suppress(TimeoutError):
                async with asyncio.timeout(SEND_SECONDS):
                    await send(end)
        finally:
            self._streams.open[self._tenant] -= 1
            self._streams.open += Counter()  # without those that have none

    async def _follow(self, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait((sending, leaving), timeout=STREAM_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
        with suppress(asyncio.CancelledError, TimeoutError):
            await sending

    async def _send(self, send: Send) -> None:
        async with aclosing(self._texts) as texts:
            async for text in texts:
                async with asyncio.timeout(SEND_SECONDS):
                    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _left(receive: Receive) -> None:
    """Until the reader has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
