"""Tables of a source: what there is, how far each is, and the commands that start and stop them."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from menura import naming
from sqlalchemy import Connection

from controlplane_api import recovery, syncs
from controlplane_api.api import queries
from controlplane_api.api.openapi import refusals
from controlplane_api.api.pages import Cursor, Limit
from controlplane_api.api.paths import ControlDatabase, SourceName, TableName, TenantName
from controlplane_api.api.requests import (
    PositionStart,
    ResyncManyRequest,
    ResyncRequest,
    RetryManyRequest,
    RetryRequest,
    StartManyRequest,
    StartRequest,
    StopManyRequest,
    StopRequest,
)
from controlplane_api.api.routers.outcomes import dump_options, named_tables, outcomes_view
from controlplane_api.api.views import Outcomes, StartedTable, TableDetail, TableEvents, Tables, TableView
from controlplane_api.errors import SourceUnknown, SyncNotRunning, SyncRunning, TableDenied, TableUnknown
from controlplane_api.states import StartKind, State

router = APIRouter(
    prefix="/api/v1/tenants/{tenant}/sources/{source}", tags=["tables"], responses=refusals(SourceUnknown)
)

OF_TABLE = refusals(SourceUnknown, TableUnknown)


@router.get("/tables")
def get_tables(
    tenant: TenantName,
    source: SourceName,
    database: ControlDatabase,
    text: Annotated[str, Query(max_length=512, pattern="^[^\\x00]*$")] = "",
    state: Annotated[list[State] | None, Query()] = None,
    synced: bool = False,
    cursor: Cursor = "",
    limit: Limit = 100,
) -> Tables:
    """One page in order of name: `text` is part of DATABASE.TABLE, `state` may be given several times."""
    with database.read() as connection:
        row = queries.source_row(connection, tenant, source)
        page = queries.tables(
            connection,
            row.id,
            text=text,
            states=state or (),
            synced=synced,
            cursor=cursor,
            limit=limit,
        )
    return Tables(tables=page.tables, total=page.total, next_cursor=page.next_cursor)


@router.get("/tables/{database}/{table}", responses=OF_TABLE)
def get_table(tenant: TenantName, source: SourceName, table: TableName, control: ControlDatabase) -> TableDetail:
    with control.read() as connection:
        row = queries.source_row(connection, tenant, source)
        return queries.table(connection, row.id, *table)


@router.get("/tables/{database}/{table}/events", responses=OF_TABLE)
def get_table_events(tenant: TenantName, source: SourceName, table: TableName, control: ControlDatabase) -> TableEvents:
    """The last changes of the table's definition and its truncates; the lake has all of them."""
    with control.read() as connection:
        row = queries.source_row(connection, tenant, source)
        return TableEvents(events=queries.table_events(connection, queries.table_id(connection, row.id, *table)))


@router.post("/tables/{database}/{table}/start", responses=OF_TABLE | refusals(SyncRunning, TableDenied))
def start_table(
    tenant: TenantName, source: SourceName, table: TableName, request: StartRequest, control: ControlDatabase
) -> StartedTable:
    with control.write() as connection:
        row = queries.source_row(connection, tenant, source)
        outcome = _start(connection, row.id, [table], request)[0]
        return _single(connection, row.id, outcome)


@router.post("/tables/{database}/{table}/stop", responses=OF_TABLE)
def stop_table(
    tenant: TenantName, source: SourceName, table: TableName, request: StopRequest, control: ControlDatabase
) -> StartedTable:
    with control.write() as connection:
        row = queries.source_row(connection, tenant, source)
        outcome = syncs.stop_tables(connection, row.id, [table])[0]
        return _single(connection, row.id, outcome)


@router.post("/start")
def start_tables(
    tenant: TenantName, source: SourceName, request: StartManyRequest, control: ControlDatabase
) -> Outcomes:
    """Start several tables, or all that the agent's policy lets through; refusals are told table by table."""
    with control.write() as connection:
        row = queries.source_row(connection, tenant, source)
        is_lost = request.tables == "lost"
        tables = syncs.lost_tables(connection, row.id) if is_lost else named_tables(request.tables)
        outcomes = _start(connection, row.id, tables, request)
        return outcomes_view(connection, tenant, source, outcomes)


@router.post("/stop")
def stop_tables(tenant: TenantName, source: SourceName, request: StopManyRequest, control: ControlDatabase) -> Outcomes:
    with control.write() as connection:
        row = queries.source_row(connection, tenant, source)
        outcomes = syncs.stop_tables(connection, row.id, named_tables(request.tables))
        return outcomes_view(connection, tenant, source, outcomes)


@router.post("/tables/{database}/{table}/retry", responses=OF_TABLE | refusals(SyncNotRunning, TableDenied))
def retry_table(
    tenant: TenantName, source: SourceName, table: TableName, request: RetryRequest, control: ControlDatabase
) -> StartedTable:
    with control.write() as connection:
        row = queries.source_row(connection, tenant, source)
        return _single(connection, row.id, recovery.retry_tables(connection, row.id, [table])[0])


@router.post("/tables/{database}/{table}/resync", responses=OF_TABLE | refusals(TableDenied))
def resync_table(
    tenant: TenantName, source: SourceName, table: TableName, request: ResyncRequest, control: ControlDatabase
) -> StartedTable:
    with control.write() as connection:
        row = queries.source_row(connection, tenant, source)
        outcomes = recovery.resync_tables(connection, row.id, [table], dump_options(request.dump))
        return _single(connection, row.id, outcomes[0])


@router.post("/retry")
def retry_tables(
    tenant: TenantName, source: SourceName, request: RetryManyRequest, control: ControlDatabase
) -> Outcomes:
    """Try tables again that have stopped, or all that have: where they stopped, and in lakes at once."""
    with control.write() as connection:
        row = queries.source_row(connection, tenant, source)
        outcomes = recovery.retry_tables(connection, row.id, named_tables(request.tables))
        return outcomes_view(connection, tenant, source, outcomes)


@router.post("/resync")
def resync_tables(
    tenant: TenantName, source: SourceName, request: ResyncManyRequest, control: ControlDatabase
) -> Outcomes:
    """Begin tables anew, or all that are synced, each with a dump, whatever they do now."""
    with control.write() as connection:
        row = queries.source_row(connection, tenant, source)
        options = dump_options(request.dump)
        outcomes = recovery.resync_tables(connection, row.id, named_tables(request.tables), options)
        return outcomes_view(connection, tenant, source, outcomes)


def _start(
    connection: Connection,
    source_id: int,
    tables: Sequence[naming.TableName] | None,
    request: StartRequest,
) -> list[syncs.Outcome]:
    if isinstance(request.start, PositionStart):
        start = syncs.Start(StartKind.POSITION, request.start.position)
    else:
        start = syncs.Start(StartKind(request.start))
    syncs.check_start(start)
    return syncs.start_tables(connection, source_id, tables, start, dump_options(request.dump))


def _single(connection: Connection, source_id: int, outcome: syncs.Outcome) -> StartedTable:
    if outcome.refused is not None:
        raise outcome.refused
    detail = queries.table(connection, source_id, outcome.database, outcome.table)
    fields = {name: getattr(detail, name) for name in TableView.model_fields}
    return StartedTable(**fields, changed=outcome.changed, notice=outcome.notice)
