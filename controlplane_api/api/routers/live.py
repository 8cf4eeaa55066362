"""Answers of other routes, told as they change."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from controlplane_api.api.event_stream import EventStream
from controlplane_api.api.live import MAX_ADDRESS_CHARS, MAX_ADDRESSES, Live
from controlplane_api.api.openapi import refusals
from controlplane_api.api.paths import TenantName
from controlplane_api.api.routers.login import CurrentKnown
from controlplane_api.errors import RoleMissing, StreamsTooMany

router = APIRouter(prefix="/api/v1/tenants/{tenant}", tags=["fleet"])

Address = Annotated[str, Query(max_length=MAX_ADDRESS_CHARS, pattern="^/api/v1/[!-~]*$")]


@router.get(
    "/live",
    status_code=200,
    response_class=EventStream,
    responses=refusals(RoleMissing, StreamsTooMany)
    | {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def follow_answers(
    tenant: TenantName,
    request: Request,
    known: CurrentKnown,
    address: Annotated[
        list[Address],
        Query(min_length=1, max_length=MAX_ADDRESSES, description="Of routes of this tenant, with their queries."),
    ],
) -> Response:
    """Server-sent events: what GET answers at each address, first and each time that more of it than ages has changed.

    An event's data is {"number": N, "answer": ...}, where N says which address it is, from 0 on. Without an answer the
    address refuses, or its answer is too large: ask for it. An event "beat" says that the stream is there. It ends with
    the token or session that it was asked with.
    """
    live: Live = request.state.live
    keys = live.keys(tenant, known, address)
    return EventStream(live.texts(known, keys), live.one_of((tenant, known.caller.actor)))
