"""Server-sent events: an answer that goes on for as long as its reader takes it.

Comes in: what is in the database behind a place, looked for again and again (`followed`). Goes out: the answer's body.
It ends when the reader closes it, when the reader has not taken a text within `SEND_SECONDS`, when the server stops,
and after `STREAM_SECONDS`; a reader comes back with `Last-Event-ID`. A process has `MAX_STREAMS` of them at once, and
`MAX_OF_TENANT` of one tenant. Looks have threads of their own, of which one tenant leaves some to others.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header
from menura.http_server import STOPPING
from sqlalchemy import Connection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from controlplane_api.api.authentication import Known, is_good_still
from controlplane_api.api.guard import HEAD
from controlplane_api.api.openapi import Responses, refusals
from controlplane_api.api.views import View
from controlplane_api.database import Database
from controlplane_api.errors import SourceUnknown, StreamsTooMany
from gateway.shares import FairThreads, Turns

MAX_STREAMS, MAX_OF_TENANT = 200, 50
#: that look, of all and of one tenant
THREADS, THREADS_OF_TENANT = 6, 3
SEND_SECONDS = 10
STREAM_SECONDS = 3_600
LOOK_SECONDS = 1.0
#: a comment, so that nobody between takes the connection for dead, and a reader that is gone is noticed
BEAT_LOOKS = 15

LastEventId = Annotated[
    str, Header(alias="Last-Event-ID", pattern="^[0-9]{0,18}$", description="The last one that was taken.")
]
#: of a route that follows a source
STREAMED: Responses = refusals(SourceUnknown, StreamsTooMany) | {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@dataclass(frozen=True, slots=True)
class Event:
    number: int
    kind: str
    data: View


@dataclass(frozen=True, slots=True)
class Following:
    """What is there behind a place."""

    events: list[Event]
    #: where to go on
    place: int


async def followed(
    looking: FairThreads,
    tenant: str,
    database: Database,
    known: Known,
    after: Callable[[Connection, int], Following],
    place: int,
    *first: str,
) -> AsyncGenerator[str, None]:
    """Texts of `first`, then of the events behind `place` as they come; until the caller is not known any more."""

    def look() -> Following | None:
        with database.read() as connection:
            return after(connection, place) if is_good_still(connection, known) else None

    yield "retry: 3000\n\n"
    for text in first:
        yield text
    looks = 0
    while (found := await (await looking.start((tenant, known.caller.actor), look))) is not None:
        place = found.place
        for event in found.events:
            yield f"id: {event.number}\nevent: {event.kind}\ndata: {event.data.model_dump_json()}\n\n"
        looks = 0 if found.events else looks + 1
        if looks == BEAT_LOOKS:
            looks = 0
            yield ": \n\n"
        if not found.events:
            await asyncio.sleep(LOOK_SECONDS)


class EventStreams:
    """How many are open."""

    def __init__(self) -> None:
        #: by tenant
        self.open: Counter[str] = Counter()
        self.looking = FairThreads(
            ThreadPoolExecutor(THREADS, thread_name_prefix="events"), Turns(THREADS, THREADS_OF_TENANT)
        )

    def check(self, tenant: str) -> None:
        """Raises `StreamsTooMany`."""
        if self.open[tenant] >= MAX_OF_TENANT or self.open.total() >= MAX_STREAMS:
            raise StreamsTooMany(
                "opening a stream of events",
                f"{self.open[tenant]} of this tenant are open; there may be {MAX_OF_TENANT}, and {MAX_STREAMS} in all",
                remedy="Close one, or open it later.",
            )

    @contextmanager
    def one_of(self, tenant: str) -> Iterator[None]:
        self.open[tenant] += 1
        try:
            yield
        finally:
            self.open[tenant] -= 1
            self.open += Counter()  # without those that have none


class EventStream(Response):
    media_type = "text/event-stream"

    def __init__(self, texts: AsyncGenerator[str, None], held: AbstractContextManager[None]) -> None:
        """`held`: what it takes while it is open."""
        super().__init__(headers={"x-accel-buffering": "no"})  # nginx hands its texts on as they come
        del self.headers["content-length"]
        self._texts = texts
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        end = {"type": "http.response.body", "body": b""}
        if scope.get(HEAD):
            await send(start)
            await send(end)
            return
        with self._held:
            await send(start)
            await self._follow(scope.get(STOPPING), receive, send)
            with suppress(TimeoutError):
                async with asyncio.timeout(SEND_SECONDS):
                    await send(end)

    async def _follow(self, stopping: asyncio.Event | None, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        ends: list[asyncio.Task[object]] = [asyncio.create_task(_left(receive))]
        if stopping is not None:
            ends.append(asyncio.create_task(stopping.wait()))
        try:
            await asyncio.wait((sending, *ends), timeout=STREAM_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*ends, sending):
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
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
