"""Events of a source's tables, as they are committed."""

from fastapi import APIRouter, Request
from sqlalchemy import Connection
from starlette.responses import Response

from controlplane_api.api import event_queries, queries
from controlplane_api.api.event_stream import STREAMED, EventStream, EventStreams, Following, LastEventId, followed
from controlplane_api.api.paths import ControlDatabase, SourceName, TenantName
from controlplane_api.api.routers.login import CurrentKnown

router = APIRouter(prefix="/api/v1/tenants/{tenant}/sources/{source}", tags=["tables"])


@router.get("/events", status_code=200, response_class=EventStream, responses=STREAMED)
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
    streams: EventStreams = request.state.streams
    streams.check(tenant)
    with database.read() as connection:
        source_id = queries.source_row(connection, tenant, source).id
        gsn = int(last_event_id) if last_event_id else event_queries.newest(connection, source_id)
        lost = event_queries.forgotten(connection, source_id, gsn) if last_event_id else 0

    def after(connection: Connection, gsn: int) -> Following:
        return event_queries.after(connection, source_id, gsn)

    first = [f'event: forgotten\ndata: {{"tables":{lost}}}\n\n'] if lost else []
    texts = followed(streams.looking, tenant, database, known, after, gsn, *first)
    return EventStream(texts, streams.one_of(tenant))
