"""Dumps: begin them, see how far they are, pause, resume, cancel and limit them."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import Connection

from controlplane_api import dumps, rereads
from controlplane_api.api import dump_queries, queries
from controlplane_api.api.openapi import refusals
from controlplane_api.api.pages import Cursor, Limit
from controlplane_api.api.paths import ControlDatabase, DumpName, SourceName, TableName, TenantName
from controlplane_api.api.requests import DumpCommand, DumpManyRequest, DumpPriority, DumpRequest
from controlplane_api.api.routers.outcomes import dump_options, named_tables, outcomes_view
from controlplane_api.api.views import DumpChanged, DumpDetail, DumpLimits, Dumps, DumpView, Outcomes
from controlplane_api.database import Database
from controlplane_api.errors import (
    DumpNotResumable,
    DumpOver,
    DumpRunning,
    DumpUnknown,
    SourceUnknown,
    SyncNotRunning,
    TableDenied,
    TableUnknown,
)

router = APIRouter(prefix="/api/v1/tenants/{tenant}", tags=["dumps"])

OF_DUMP = refusals(SourceUnknown, DumpUnknown)

Running = Annotated[bool, Query(description="Only those that are not over.")]


@router.get("/dumps")
def get_dumps(
    tenant: TenantName, database: ControlDatabase, running: Running = False, cursor: Cursor = "", limit: Limit = 100
) -> Dumps:
    """Of all sources of the tenant, the newest first."""
    with database.read() as connection:
        return dump_queries.dumps(connection, tenant, running=running, cursor=cursor, limit=limit)


@router.get("/sources/{source}/dumps", responses=refusals(SourceUnknown))
def get_source_dumps(
    tenant: TenantName,
    source: SourceName,
    database: ControlDatabase,
    running: Running = False,
    cursor: Cursor = "",
    limit: Limit = 100,
) -> Dumps:
    with database.read() as connection:
        queries.source_row(connection, tenant, source)
        return dump_queries.dumps(connection, tenant, source, running=running, cursor=cursor, limit=limit)


@router.get("/sources/{source}/dumps/{dump}", responses=OF_DUMP)
def get_dump(tenant: TenantName, source: SourceName, dump: DumpName, database: ControlDatabase) -> DumpDetail:
    with database.read() as connection:
        return dump_queries.dump(connection, queries.source_row(connection, tenant, source).id, dump)


@router.post("/sources/{source}/dumps", responses=refusals(SourceUnknown))
def start_dumps(
    tenant: TenantName, source: SourceName, request: DumpManyRequest, database: ControlDatabase
) -> Outcomes:
    """Dump several tables that are synced, or all of them; refusals are told table by table."""
    with database.write() as connection:
        row = queries.source_row(connection, tenant, source)
        outcomes = dumps.start_dumps(connection, row.id, named_tables(request.tables), dump_options(request))
        return outcomes_view(connection, tenant, source, outcomes)


@router.post(
    "/sources/{source}/tables/{database}/{table}/dump",
    responses=refusals(SourceUnknown, TableUnknown, DumpRunning, SyncNotRunning, TableDenied),
)
def start_dump(
    tenant: TenantName, source: SourceName, table: TableName, request: DumpRequest, control: ControlDatabase
) -> DumpView:
    """Dump a table that is synced: beside its stream; or, where it has no unique key, its sync begins anew."""
    with control.write() as connection:
        row = queries.source_row(connection, tenant, source)
        outcome = dumps.start_dumps(connection, row.id, [table], dump_options(request))[0]
        if outcome.refused is not None:
            raise outcome.refused
        return dump_queries.dump(connection, row.id, outcome.dump)


@router.post("/sources/{source}/dumps/{dump}/pause", responses=OF_DUMP | refusals(DumpOver, DumpNotResumable))
def pause_dump(
    tenant: TenantName, source: SourceName, dump: DumpName, _request: DumpCommand, database: ControlDatabase
) -> DumpChanged:
    return _command(database, tenant, source, dump, dumps.pause)


@router.post(
    "/sources/{source}/dumps/{dump}/resume", responses=OF_DUMP | refusals(DumpOver, DumpNotResumable, DumpRunning)
)
def resume_dump(
    tenant: TenantName, source: SourceName, dump: DumpName, _request: DumpCommand, database: ControlDatabase
) -> DumpChanged:
    """Also of one that failed: it goes on where its ranges are."""
    return _command(database, tenant, source, dump, dumps.resume)


@router.post("/sources/{source}/dumps/{dump}/cancel", responses=OF_DUMP | refusals(DumpOver))
def cancel_dump(
    tenant: TenantName, source: SourceName, dump: DumpName, _request: DumpCommand, database: ControlDatabase
) -> DumpChanged:
    """What it brought stays; its table goes on to be synced."""
    return _command(database, tenant, source, dump, rereads.cancel)


@router.post("/sources/{source}/dumps/{dump}/priority", responses=OF_DUMP | refusals(DumpOver))
def set_dump_priority(
    tenant: TenantName, source: SourceName, dump: DumpName, request: DumpPriority, database: ControlDatabase
) -> DumpChanged:
    def command(connection: Connection, source_id: int, uuid: str) -> bool:
        return dumps.set_priority(connection, source_id, uuid, request.priority)

    return _command(database, tenant, source, dump, command)


@router.post("/sources/{source}/dumps/{dump}/limits", responses=OF_DUMP | refusals(DumpOver))
def set_dump_limits(
    tenant: TenantName, source: SourceName, dump: DumpName, request: DumpLimits, database: ControlDatabase
) -> DumpChanged:
    """All three at once; they only narrow what the agent's own configuration allows."""

    def command(connection: Connection, source_id: int, uuid: str) -> bool:
        return dumps.set_limits(connection, source_id, uuid, **request.model_dump())

    return _command(database, tenant, source, dump, command)


def _command(
    database: Database, tenant: str, source: str, dump: str, command: Callable[[Connection, int, str], bool]
) -> DumpChanged:
    with database.write() as connection:
        row = queries.source_row(connection, tenant, source)
        changed = command(connection, row.id, dump)
        detail = dump_queries.dump(connection, row.id, dump)
    fields = {name: getattr(detail, name) for name in DumpView.model_fields}
    return DumpChanged(**fields, changed=changed)
