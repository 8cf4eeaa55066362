"""Lakes: what their sinks report, how they are, and those that are no more."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from menura.instants import now_us
from menura.lake_report import LakeReportError, decode_report, encode_reply
from menura.views.definition import encode_views
from sqlalchemy import Connection
from starlette.responses import Response

from controlplane_api import joined_views, lakes
from controlplane_api.api import lake_queries
from controlplane_api.api.openapi import refusals
from controlplane_api.api.pages import Cursor, Limit
from controlplane_api.api.paths import ControlDatabase, LakeName
from controlplane_api.api.requests import LakeForget
from controlplane_api.api.views import LakeForgotten, Lakes
from controlplane_api.api.writing import KEYED, Write
from controlplane_api.drill_downs import order_drill_downs
from controlplane_api.errors import LakeUnknown, RequestInvalid

router = APIRouter(prefix="/api/v1/lakes", tags=["lakes"])

REPORT = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}


async def _document(request: Request) -> bytes:
    """As it came; the guard has bounded it."""
    return await request.body()


@router.get("")
def get_lakes(database: ControlDatabase, cursor: Cursor = "", limit: Limit = 100) -> Lakes:
    with database.read() as connection:
        return lake_queries.sinks(connection, now_us(), cursor=cursor, limit=limit)


@router.put("/{lake}", openapi_extra={"requestBody": REPORT})
def put_report(lake: LakeName, document: Annotated[bytes, Depends(_document)], database: ControlDatabase) -> Response:
    """A sink's `menura.lake_report.LakeReport`; the answer is a `LakeReply`."""
    doing = "taking a lake's report"
    try:
        report = decode_report(document)
    except LakeReportError as unreadable:
        raise RequestInvalid(doing, str(unreadable), data="The report was not stored.") from unreadable
    if report.lake != lake:
        raise RequestInvalid(doing, "it is of another lake than the path's", data="The report was not stored.")
    with database.write() as connection:
        reply = lakes.take_report(connection, report, now_us())
    if report.suspected:
        with database.write() as connection:
            order_drill_downs(connection, report.suspected)
    return Response(encode_reply(reply), media_type="application/json")


@router.get("/{lake}/views")
def get_desired_views(lake: LakeName, database: ControlDatabase) -> Response:
    """All views that lakes shall have, for a sink: see `menura.views.definition.decode_views`."""
    with database.read() as connection:
        found = joined_views.desired(connection)
    return Response(encode_views(found), media_type="application/json")


@router.post("/{lake}/forget", responses=refusals(LakeUnknown, *KEYED))
def forget_lake(lake: LakeName, _request: LakeForget, write: Write) -> LakeForgotten:
    """Of a lake whose sink is no more: its tables don't wait for it any longer."""

    def act(connection: Connection) -> LakeForgotten:
        lakes.forget_lake(connection, lake)
        return LakeForgotten(lake=lake)

    return write.run(LakeForgotten, act)
