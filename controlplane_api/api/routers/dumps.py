"""Dumps: begin them, see how far they are, pause, resume, cancel and limit them."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import Connection
from starlette.responses import Response

from controlplane_api import continuity_ledger, dumps, rereads
from controlplane_api.api import dump_queries, queries, versions
from controlplane_api.api.openapi import refusals
from controlplane_api.api.pages import Cursor, Limit
from controlplane_api.api.paths import ControlDatabase, DumpName, SourceName, TableName, TenantName
from controlplane_api.api.requests import DumpCommand, DumpManyRequest, DumpPriority, DumpRequest
from controlplane_api.api.routers.outcomes import ACCEPTED, command_tables, dump_options, named_tables
from controlplane_api.api.views import DumpChanged, DumpDetail, DumpLimits, Dumps, DumpView, Outcomes
from controlplane_api.api.writing import GUARDED, TAGGED, WriteIf, Writing
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
from controlplane_api.syncs import Outcome

router = APIRouter(prefix="/api/v1/tenants/{tenant}", tags=["dumps"])

OF_DUMP = refusals(SourceUnknown, DumpUnknown) | TAGGED
WRITES_DUMP = OF_DUMP | refusals(DumpOver, DumpNotResumable, DumpRunning, *GUARDED)

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
def get_dump(
    tenant: TenantName, source: SourceName, dump: DumpName, database: ControlDatabase, response: Response
) -> DumpDetail:
    with database.read() as connection:
        source_id = queries.source_row(connection, tenant, source).id
        response.headers["etag"] = versions.dump_tag(connection, source_id, dump)
        return dump_queries.dump(connection, source_id, dump)


@router.post(
    "/sources/{source}/dumps",
    status_code=202,
    responses=ACCEPTED | refusals(SourceUnknown, *GUARDED),
)
def start_dumps(tenant: TenantName, source: SourceName, request: DumpManyRequest, write: WriteIf) -> Outcomes:
    """Dump several tables that are synced, or all of them; refusals are told table by table."""

    def command(connection: Connection, source_id: int) -> list[Outcome]:
        names = named_tables(connection, source_id, request.tables)
        return dumps.start_dumps(connection, source_id, names, dump_options(request))

    return command_tables(write, tenant, source, "dump", command, _ordered(request))


@router.post(
    "/sources/{source}/tables/{database}/{table}/dump",
    responses=TAGGED | refusals(SourceUnknown, TableUnknown, DumpRunning, SyncNotRunning, TableDenied, *GUARDED),
)
def start_dump(
    tenant: TenantName, source: SourceName, table: TableName, request: DumpRequest, write: WriteIf
) -> DumpView:
    """Dump a table that is synced: beside its stream; or, where it has no unique key, its sync begins anew."""

    def act(connection: Connection) -> DumpView:
        source_id = queries.source_row(connection, tenant, source).id
        outcome = dumps.start_dumps(connection, source_id, [table], dump_options(request))[0]
        if outcome.refused is not None:
            raise outcome.refused
        continuity_ledger.record_command(connection, source_id, _ordered(request), write.actor, [table])
        return _shown(connection, source_id, outcome.dump)

    return write.run(DumpView, act, versions.of_table(tenant, source, table))


@router.post("/sources/{source}/dumps/{dump}/pause", responses=WRITES_DUMP)
def pause_dump(
    tenant: TenantName, source: SourceName, dump: DumpName, _request: DumpCommand, write: WriteIf
) -> DumpChanged:
    return _command(write, tenant, source, dump, dumps.pause)


@router.post("/sources/{source}/dumps/{dump}/resume", responses=WRITES_DUMP)
def resume_dump(
    tenant: TenantName, source: SourceName, dump: DumpName, _request: DumpCommand, write: WriteIf
) -> DumpChanged:
    """Also of one that failed: it goes on where its ranges are."""
    return _command(write, tenant, source, dump, dumps.resume)


@router.post("/sources/{source}/dumps/{dump}/cancel", responses=WRITES_DUMP)
def cancel_dump(
    tenant: TenantName, source: SourceName, dump: DumpName, _request: DumpCommand, write: WriteIf
) -> DumpChanged:
    """What it brought stays; its table goes on to be synced."""
    return _command(write, tenant, source, dump, rereads.cancel)


@router.post("/sources/{source}/dumps/{dump}/priority", responses=WRITES_DUMP)
def set_dump_priority(
    tenant: TenantName, source: SourceName, dump: DumpName, request: DumpPriority, write: WriteIf
) -> DumpChanged:
    def command(connection: Connection, source_id: int, uuid: str) -> bool:
        return dumps.set_priority(connection, source_id, uuid, request.priority)

    return _command(write, tenant, source, dump, command)


@router.post("/sources/{source}/dumps/{dump}/limits", responses=WRITES_DUMP)
def set_dump_limits(
    tenant: TenantName, source: SourceName, dump: DumpName, request: DumpLimits, write: WriteIf
) -> DumpChanged:
    """All three at once; they only narrow what the agent's own configuration allows."""

    def command(connection: Connection, source_id: int, uuid: str) -> bool:
        return dumps.set_limits(connection, source_id, uuid, **request.model_dump())

    return _command(write, tenant, source, dump, command)


def _ordered(request: DumpRequest) -> str:
    """As the table's ledger says it."""
    return "dump, although the log may not last as long" if request.force else "dump"


def _command(
    write: Writing, tenant: str, source: str, dump: str, command: Callable[[Connection, int, str], bool]
) -> DumpChanged:
    def act(connection: Connection) -> DumpChanged:
        source_id = queries.source_row(connection, tenant, source).id
        changed = command(connection, source_id, dump)
        return DumpChanged(**_shown(connection, source_id, dump).model_dump(), changed=changed)

    return write.run(DumpChanged, act, versions.of_dump(tenant, source, dump))


def _shown(connection: Connection, source_id: int, dump: str) -> DumpView:
    detail = dump_queries.dump(connection, source_id, dump)
    return DumpView(**{name: getattr(detail, name) for name in DumpView.model_fields})
