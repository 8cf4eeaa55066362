"""Events of a source's tables, as they are committed."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from controlplane_api.api import event_queries, queries
from controlplane_api.api.authentication import Known, is_good_still
from controlplane_api.api.event_queries import Following
from controlplane_api.api.event_stream import EventStream, EventStreams
from controlplane_api.api.openapi import refusals
from controlplane_api.api.paths import ControlDatabase, SourceName, TenantName
from controlplane_api.api.routers.login import CurrentKnown
from controlplane_api.database import Database
from controlplane_api.errors import SourceUnknown, StreamsTooMany

router = APIRouter(prefix="/api/v1/tenants/{tenant}/sources/{source}", tags=["tables"])

LOOK_SECONDS = 1.0
#: a comment, so that nobody between takes the connection for dead, and a reader that is gone is noticed
BEAT_LOOKS = 15

LastEventId = Annotated[
    str, Header(alias="Last-Event-ID", pattern="^[0-9]{0,18}$", description="The last one that was taken.")
]


@router.get(
    "/events",
    status_code=200,
    response_class=EventStream,
    responses=refusals(SourceUnknown, StreamsTooMany)
    | {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
def follow_events(
    tenant: TenantName,
    source: SourceName,
    database: ControlDatabase,
    request: Request,
    known: CurrentKnown,
    last_event_id: LastEventId = "",
) -> Response:
    """Server-sent events: those after `Last-Event-ID`, or all from now on.

    An event has its number as `id`, its kind as `event`, and a `SourceEventView` as data. "forgotten" says first of how
    many tables some after that number are not kept any more. It ends with the token or session that it was asked with.
    """
    streams: EventStreams = request.app.state.streams
    streams.check(tenant)
    with database.read() as connection:
        source_id = queries.source_row(connection, tenant, source).id
        gsn = int(last_event_id) if last_event_id else event_queries.newest(connection, source_id)
        lost = event_queries.forgotten(connection, source_id, gsn) if last_event_id else 0
    return EventStream(streams, tenant, _texts(database, known, source_id, gsn, lost))


async def _texts(database: Database, known: Known, source_id: int, gsn: int, lost: int) -> AsyncGenerator[str, None]:
    yield "retry: 3000\n\n"
    if lost:
        yield f'event: forgotten\ndata: {{"tables":{lost}}}\n\n'
    looks = 0
    while True:
        found = await asyncio.to_thread(_look, database, known, source_id, gsn)
        if found is None:
            return
        for event in found.events:
            yield f"id: {event.gsn}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n"
        looks = 0 if found.events else looks + 1
        if looks == BEAT_LOOKS:
            looks = 0
            yield ": \n\n"
        if found.gsn == gsn or not found.events:
            await asyncio.sleep(LOOK_SECONDS)
        gsn = found.gsn


def _look(database: Database, known: Known, source_id: int, gsn: int) -> Following | None:
    """None: its caller is not known any more."""
    with database.read() as connection:
        if not is_good_still(connection, known):
            return None
        return event_queries.after(connection, source_id, gsn)
