"""Lakes: what their sinks report, how they are, and those that are no more."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from menura.instants import now_us
from menura.lake_report import LakeReportError, decode_report, encode_reply
from starlette.responses import Response

from controlplane_api import lakes
from controlplane_api.api import lake_queries
from controlplane_api.api.paths import ControlDatabase, LakeName
from controlplane_api.api.requests import LakeForget
from controlplane_api.api.views import LakeForgotten, Lakes
from controlplane_api.errors import RequestInvalid

router = APIRouter(prefix="/v1/lakes")


async def _document(request: Request) -> bytes:
    """As it came; the guard has bounded it."""
    return await request.body()


@router.get("")
def get_lakes(database: ControlDatabase) -> Lakes:
    with database.read() as connection:
        return Lakes(lakes=lake_queries.sinks(connection, now_us()))


@router.put("/{lake}")
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
    return Response(encode_reply(reply), media_type="application/json")


@router.post("/{lake}/forget")
def forget_lake(lake: LakeName, _request: LakeForget, database: ControlDatabase) -> LakeForgotten:
    """Of a lake whose sink is no more: its tables don't wait for it any longer."""
    with database.write() as connection:
        lakes.forget_lake(connection, lake)
    return LakeForgotten(lake=lake)
