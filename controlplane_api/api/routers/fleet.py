"""Tenants, agents and sources: who is there and how far each source is."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from menura.instants import now_us
from sqlalchemy import Connection
from starlette.responses import Response

from controlplane_api import acceptance, continuity_ledger, quarantines
from controlplane_api.api import history_queries, queries, source_queries, versions
from controlplane_api.api.histories import Histories
from controlplane_api.api.openapi import refusals
from controlplane_api.api.pages import Cursor, Limit, Text
from controlplane_api.api.paths import ControlDatabase, CurrentCaller, SourceName, TenantName
from controlplane_api.api.requests import AcceptRequest, QuarantineCommand
from controlplane_api.api.routers.outcomes import ACCEPTED, command_tables
from controlplane_api.api.views import (
    Accepted,
    Agents,
    Fleet,
    HistoryView,
    OtherServerView,
    Outcomes,
    ProblemView,
    QuarantineView,
    Sources,
    SourceView,
    Tenants,
)
from controlplane_api.api.writing import GUARDED, TAGGED, WriteIf
from controlplane_api.errors import (
    OtherServerChanged,
    OtherServerMissing,
    SourceNotQuarantined,
    SourceUnknown,
)
from controlplane_api.states import Presence

router = APIRouter(prefix="/api/v1", tags=["fleet"])

OF_SOURCE = refusals(SourceUnknown)


def current_histories(request: Request) -> Histories:
    histories = request.state.histories
    if not isinstance(histories, Histories):
        raise TypeError("create_app sets state.histories")
    return histories


@router.get("/fleet")
def get_tenants(
    database: ControlDatabase,
    caller: CurrentCaller,
    text: Text = "",
    count_tables: Annotated[
        bool, Query(description="Whether synced tables are counted too, which takes longer.")
    ] = False,
    cursor: Cursor = "",
    limit: Limit = 100,
) -> Tenants:
    """The tenants that the caller may see."""
    among = caller.tenants()
    with database.read() as connection:
        return queries.tenants(
            connection, among=among, text=text, counts_tables=count_tables, cursor=cursor, limit=limit
        )


@router.get("/tenants/{tenant}/fleet")
def get_fleet(tenant: TenantName, database: ControlDatabase) -> Fleet:
    """All that the dashboard's first screen shows."""
    with database.read() as connection:
        return Fleet(
            tenant=tenant,
            at_us=now_us(),
            agents=queries.agents(connection, tenant).agents,
            sources=source_queries.sources(connection, tenant).sources,
        )


@router.get("/tenants/{tenant}/agents")
def get_agents(
    tenant: TenantName,
    database: ControlDatabase,
    text: Text = "",
    state: Annotated[list[Presence] | None, Query()] = None,
    cursor: Cursor = "",
    limit: Limit = 100,
) -> Agents:
    """One page in order of name. `text` is part of an agent's name or its host's; there may be several `state`."""
    with database.read() as connection:
        return queries.agents(connection, tenant, text=text, states=state or (), cursor=cursor, limit=limit)


@router.get("/tenants/{tenant}/sources")
def get_sources(tenant: TenantName, database: ControlDatabase, cursor: Cursor = "", limit: Limit = 100) -> Sources:
    with database.read() as connection:
        return source_queries.sources(connection, tenant, cursor=cursor, limit=limit)


@router.get("/tenants/{tenant}/sources/{source}", responses=OF_SOURCE | TAGGED)
def get_source(tenant: TenantName, source: SourceName, database: ControlDatabase, response: Response) -> SourceView:
    """A source's status: lag, positions, rows, freshness, problem."""
    with database.read() as connection:
        source_id = queries.source_row(connection, tenant, source).id
        response.headers["etag"] = versions.source_tag(connection, source_id)
        return source_queries.sources(connection, tenant, source).sources[0]


@router.get("/tenants/{tenant}/sources/{source}/history", responses=OF_SOURCE)
def get_history(
    tenant: TenantName,
    source: SourceName,
    database: ControlDatabase,
    histories: Annotated[Histories, Depends(current_histories)],
    span: Annotated[Literal["hour", "day"], Query(description="day: a point for each five minutes.")] = "hour",
) -> HistoryView:
    """Lag and speed of late, by stage, as this process has seen them."""
    with database.read() as connection:
        queries.source_row(connection, tenant, source)
    return history_queries.history(histories, tenant, source, coarse=span == "day")


@router.get(
    "/tenants/{tenant}/sources/{source}/other-server",
    responses=refusals(SourceUnknown, OtherServerMissing),
)
def get_other_server(tenant: TenantName, source: SourceName, database: ControlDatabase) -> OtherServerView:
    """The server that is there in place of the one that was read, and what following it would change."""
    with database.read() as connection:
        row = queries.source_row(connection, tenant, source)
        offered = acceptance.offered(connection, row.id, source)
        tables = acceptance.tables_to_read_again(connection, row.id)
        return OtherServerView(**offered, tables_to_read_again=tables)


@router.post(
    "/tenants/{tenant}/sources/{source}/other-server/accept",
    responses=refusals(SourceUnknown, OtherServerMissing, OtherServerChanged, *GUARDED) | TAGGED,
)
def accept_other_server(tenant: TenantName, source: SourceName, request: AcceptRequest, write: WriteIf) -> Accepted:
    """Follow the server with the identity that was shown; no other one."""

    def act(connection: Connection) -> Accepted:
        source_id = queries.source_row(connection, tenant, source).id
        changed = acceptance.accept(connection, source_id, source, request.identity)
        if changed:
            continuity_ledger.record_command(connection, source_id, "accept another server", write.actor)
        return Accepted(changed=changed)

    return write.run(Accepted, act, versions.of_source(tenant, source))


@router.get(
    "/tenants/{tenant}/sources/{source}/quarantine",
    responses=refusals(SourceUnknown, SourceNotQuarantined),
)
def get_quarantine(tenant: TenantName, source: SourceName, database: ControlDatabase) -> QuarantineView:
    """What of the source is committed and can't be applied."""
    with database.read() as connection:
        return _quarantine(connection, queries.source_row(connection, tenant, source).id, source)


@router.post(
    "/tenants/{tenant}/sources/{source}/quarantine/retry",
    responses=refusals(SourceUnknown, SourceNotQuarantined, *GUARDED) | TAGGED,
)
def retry_quarantine(
    tenant: TenantName, source: SourceName, _request: QuarantineCommand, write: WriteIf
) -> QuarantineView:
    """Let the gateway apply it again."""

    def act(connection: Connection) -> QuarantineView:
        source_id = queries.source_row(connection, tenant, source).id
        quarantines.retry(connection, source_id, source)
        return _quarantine(connection, source_id, source)

    return write.run(QuarantineView, act, versions.of_source(tenant, source))


@router.post(
    "/tenants/{tenant}/sources/{source}/quarantine/skip",
    status_code=202,
    responses=refusals(SourceUnknown, SourceNotQuarantined, *GUARDED) | ACCEPTED,
)
def skip_quarantine(tenant: TenantName, source: SourceName, _request: QuarantineCommand, write: WriteIf) -> Outcomes:
    """Go on behind it; the tables that it names begin anew, each with a dump."""
    return command_tables(
        write,
        tenant,
        source,
        "resync",
        lambda connection, id_: quarantines.skip(connection, id_, source),
        "skip what is in quarantine",
    )


def _quarantine(connection: Connection, source_id: int, source: str) -> QuarantineView:
    row = quarantines.held_row(connection, source_id, source)
    names = ("landing", "entry", "last_entry", "cut", "last_cut")
    return QuarantineView(
        **{name: getattr(row, name) for name in names},
        problem=ProblemView(**row.problem),
        tables=quarantines.held_tables(row),
        retries=row.retry,
    )
