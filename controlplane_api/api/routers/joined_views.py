"""Joined views: tables of any sources, joined into one that lakes keep."""

from fastapi import APIRouter
from menura.instants import now_us
from sqlalchemy import Connection
from starlette.responses import Response

from controlplane_api import joined_views
from controlplane_api.api import joined_view_queries, versions
from controlplane_api.api.openapi import refusals
from controlplane_api.api.pages import Cursor, Limit
from controlplane_api.api.paths import ControlDatabase, JoinedViewName, TenantName
from controlplane_api.api.requests import JoinedViewChange, JoinedViewCreate, JoinedViewDrop, JoinedViewPlan
from controlplane_api.api.views import JoinedViewDetail, JoinedViews, ViewDropped, ViewPlan
from controlplane_api.api.writing import GUARDED, TAGGED, WriteIf
from controlplane_api.errors import ViewExists, ViewInUse, ViewRefused, ViewsTooMany, ViewUnknown
from controlplane_api.identity import audit
from controlplane_api.view_plans import planned

router = APIRouter(prefix="/api/v1/tenants/{tenant}", tags=["views"])

_OF_VIEW = refusals(ViewUnknown)


@router.get("/views")
def get_views(tenant: TenantName, database: ControlDatabase, cursor: Cursor = "", limit: Limit = 100) -> JoinedViews:
    """In order of name, with how each is in lakes beside its tables."""
    with database.read() as connection:
        return joined_view_queries.views(connection, tenant, now_us(), cursor=cursor, limit=limit)


@router.post("/views", responses=TAGGED | refusals(ViewExists, ViewRefused, ViewsTooMany, *GUARDED))
def create_view(tenant: TenantName, request: JoinedViewCreate, write: WriteIf) -> JoinedViewDetail:
    """Lakes have it from now on. With `dry_run`: how it would be kept, and what that costs."""

    def act(connection: Connection) -> JoinedViewDetail:
        joined_views.create(connection, tenant, request.name, request.text)
        audit.record(connection, tenant, write.actor, "create view", found=request.name)
        return joined_view_queries.view(connection, tenant, request.name, now_us())

    return write.run(JoinedViewDetail, act, versions.of_view(tenant, request.name))


@router.get("/views/{view}", responses=TAGGED | _OF_VIEW)
def get_view(
    tenant: TenantName, view: JoinedViewName, database: ControlDatabase, response: Response
) -> JoinedViewDetail:
    with database.read() as connection:
        response.headers["etag"] = versions.view_tag(connection, tenant, view)
        return joined_view_queries.view(connection, tenant, view, now_us())


@router.put("/views/{view}", responses=TAGGED | refusals(ViewUnknown, ViewInUse, ViewRefused, ViewsTooMany, *GUARDED))
def change_view(
    tenant: TenantName, view: JoinedViewName, request: JoinedViewChange, write: WriteIf
) -> JoinedViewDetail:
    """Another text is the view's next version, which lakes build anew."""

    def act(connection: Connection) -> JoinedViewDetail:
        if joined_views.change(connection, tenant, view, request.text):
            audit.record(connection, tenant, write.actor, "change view", found=view)
        return joined_view_queries.view(connection, tenant, view, now_us())

    return write.run(JoinedViewDetail, act, versions.of_view(tenant, view))


@router.delete("/views/{view}", responses=TAGGED | refusals(ViewUnknown, ViewInUse, *GUARDED))
def drop_view(tenant: TenantName, view: JoinedViewName, _request: JoinedViewDrop, write: WriteIf) -> ViewDropped:
    """Lakes follow it no more; what they have of it stays."""

    def act(connection: Connection) -> ViewDropped:
        joined_views.drop(connection, tenant, view)
        audit.record(connection, tenant, write.actor, "drop view", found=view)
        return ViewDropped(view=view)

    return write.run(ViewDropped, act, versions.of_view(tenant, view))


@router.get("/views/{view}/plan", responses=refusals(ViewUnknown, ViewRefused))
def explain_view(tenant: TenantName, view: JoinedViewName, database: ControlDatabase) -> ViewPlan:
    """How the view is kept over its tables as they are now, and what a change of each costs."""
    with database.read() as connection:
        row = joined_views.view_row(connection, tenant, view)
        return joined_view_queries.plan_view(view, planned(connection, tenant, view, row.sql))


@router.post("/view-plans", responses=refusals(ViewRefused))
def plan_view(tenant: TenantName, request: JoinedViewPlan, database: ControlDatabase) -> ViewPlan:
    """How a view with this text would be kept; nothing is changed."""
    with database.read() as connection:
        found = planned(connection, tenant, request.name, request.text)
        return joined_view_queries.plan_view(request.name, found)
