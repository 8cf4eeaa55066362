"""Tables of a source: what there is, how far each is, and the commands that start and stop them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from menura import naming
from sqlalchemy import Connection
from starlette.responses import Response

from controlplane_api import continuity_ledger, recovery, rules, syncs
from controlplane_api.api import queries, versions
from controlplane_api.api.openapi import refusals
from controlplane_api.api.pages import Cursor, Limit, Text
from controlplane_api.api.paths import ControlDatabase, SourceName, TableName, TenantName
from controlplane_api.api.requests import (
    FuturePattern,
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
from controlplane_api.api.routers.outcomes import (
    ACCEPTED,
    changed_tables,
    command_tables,
    dump_options,
    named_tables,
    pattern_of,
)
from controlplane_api.api.views import (
    Definitions,
    Ledger,
    LedgerChecked,
    Outcomes,
    StartedTable,
    TableDetail,
    TableEvents,
    Tables,
    TableView,
)
from controlplane_api.api.writing import GUARDED, TAGGED, WriteIf, Writing
from controlplane_api.errors import (
    RequestInvalid,
    RulesTooMany,
    SourceUnknown,
    SyncNotRunning,
    SyncRunning,
    TableDenied,
    TablesTooMany,
    TableUnknown,
)
from controlplane_api.states import StartKind, State

router = APIRouter(
    prefix="/api/v1/tenants/{tenant}/sources/{source}", tags=["tables"], responses=refusals(SourceUnknown)
)

OF_TABLE = refusals(SourceUnknown, TableUnknown)
WRITES_TABLE = OF_TABLE | TAGGED | refusals(*GUARDED, SyncRunning, SyncNotRunning, TableDenied, TablesTooMany)
WRITES_TABLES = ACCEPTED | refusals(*GUARDED)

Command = Callable[[Connection, int], list[syncs.Outcome]]
LedgerHash = Annotated[
    str, Query(pattern="^([0-9a-f]{64})?$", description="The hash of the last entry, as somebody has noted it once.")
]


@router.get("/tables")
def get_tables(
    tenant: TenantName,
    source: SourceName,
    database: ControlDatabase,
    text: Text = "",
    state: Annotated[list[State] | None, Query()] = None,
    synced: bool = False,
    cursor: Cursor = "",
    limit: Limit = 100,
) -> Tables:
    """One page in order of name: `text` is part of DATABASE.TABLE, `state` may be given several times."""
    with database.read() as connection:
        row = queries.source_row(connection, tenant, source)
        page = queries.tables(
            connection, row.id, text=text, states=state or (), synced=synced, cursor=cursor, limit=limit
        )
    return Tables(tables=page.tables, total=page.total, next_cursor=page.next_cursor)


@router.get("/tables/{database}/{table}", responses=OF_TABLE | TAGGED)
def get_table(
    tenant: TenantName, source: SourceName, table: TableName, control: ControlDatabase, response: Response
) -> TableDetail:
    with control.read() as connection:
        row = queries.source_row(connection, tenant, source)
        response.headers["etag"] = versions.table_tag(connection, row.id, table)
        return queries.table(connection, row.id, *table)


@router.get("/tables/{database}/{table}/events", responses=OF_TABLE)
def get_table_events(tenant: TenantName, source: SourceName, table: TableName, control: ControlDatabase) -> TableEvents:
    """The last changes of the table's definition and its truncates; the lake has all of them."""
    with control.read() as connection:
        row = queries.source_row(connection, tenant, source)
        return TableEvents(events=queries.table_events(connection, queries.table_id(connection, row.id, *table)))


@router.get("/tables/{database}/{table}/definitions", responses=OF_TABLE)
def get_table_definitions(
    tenant: TenantName,
    source: SourceName,
    table: TableName,
    control: ControlDatabase,
    cursor: Cursor = "",
    limit: Limit = 100,
) -> Definitions:
    """How the table's columns and keys have changed, as its log and looks at its server tell; the newest first."""
    with control.read() as connection:
        row = queries.source_row(connection, tenant, source)
        return queries.definitions(connection, row.id, table, cursor, limit)


@router.get("/tables/{database}/{table}/ledger", responses=OF_TABLE)
def get_table_ledger(
    tenant: TenantName,
    source: SourceName,
    table: TableName,
    control: ControlDatabase,
    cursor: Cursor = "",
    limit: Limit = 100,
) -> Ledger:
    """What became of the table's continuity, who ordered what, and its gaps; nothing of it is ever removed."""
    with control.read() as connection:
        row = queries.source_row(connection, tenant, source)
        return queries.ledger(connection, queries.table_id(connection, row.id, *table), cursor, limit)


@router.get("/tables/{database}/{table}/ledger/check", responses=OF_TABLE)
def check_table_ledger(
    tenant: TenantName, source: SourceName, table: TableName, control: ControlDatabase, head: LedgerHash = ""
) -> LedgerChecked:
    """Whether each entry is as it was written and none is missing; and which entry has the head that was noted."""
    with control.read() as connection:
        row = queries.source_row(connection, tenant, source)
        checked = continuity_ledger.check(connection, queries.table_id(connection, row.id, *table), head)
        return LedgerChecked(**asdict(checked))


@router.post("/tables/{database}/{table}/start", responses=WRITES_TABLE)
def start_table(
    tenant: TenantName, source: SourceName, table: TableName, request: StartRequest, write: WriteIf
) -> StartedTable:
    return _command(
        write, tenant, source, table, "start", lambda connection, id_: _start(connection, id_, [table], request)
    )


@router.post("/tables/{database}/{table}/stop", responses=WRITES_TABLE)
def stop_table(
    tenant: TenantName, source: SourceName, table: TableName, _request: StopRequest, write: WriteIf
) -> StartedTable:
    return _command(
        write, tenant, source, table, "stop", lambda connection, id_: syncs.stop_tables(connection, id_, [table])
    )


@router.post("/tables/{database}/{table}/retry", responses=WRITES_TABLE)
def retry_table(
    tenant: TenantName, source: SourceName, table: TableName, _request: RetryRequest, write: WriteIf
) -> StartedTable:
    return _command(
        write, tenant, source, table, "retry", lambda connection, id_: recovery.retry_tables(connection, id_, [table])
    )


@router.post("/tables/{database}/{table}/resync", responses=WRITES_TABLE)
def resync_table(
    tenant: TenantName, source: SourceName, table: TableName, request: ResyncRequest, write: WriteIf
) -> StartedTable:
    options = dump_options(request.dump)
    return _command(
        write,
        tenant,
        source,
        table,
        "resync",
        lambda connection, id_: recovery.resync_tables(connection, id_, [table], options),
    )


@router.post("/start", status_code=202, responses=ACCEPTED | refusals(*GUARDED, RulesTooMany))
def start_tables(tenant: TenantName, source: SourceName, request: StartManyRequest, write: WriteIf) -> Outcomes:
    """Start several tables, or all that the agent's policy lets through; refusals are told table by table.

    A pattern with `future` is a standing rule too: tables that come later are started so when they are seen.
    """

    def command(connection: Connection, source_id: int) -> list[syncs.Outcome]:
        if isinstance(request.tables, FuturePattern) and request.tables.future:
            kind = _rule_start(request)
            options = dump_options(request.dump)
            rules.make(connection, source_id, pattern_of(request.tables), kind, options)
        is_lost = request.tables == "lost"
        names = named_tables(connection, source_id, request.tables, synced=False)
        tables = syncs.lost_tables(connection, source_id) if is_lost else names
        return _start(connection, source_id, tables, request)

    return command_tables(write, tenant, source, "start", command)


@router.post("/stop", status_code=202, responses=WRITES_TABLES)
def stop_tables(tenant: TenantName, source: SourceName, request: StopManyRequest, write: WriteIf) -> Outcomes:
    """A standing rule that has a table does not start it again; see the rules for one that shall end."""

    def command(connection: Connection, source_id: int) -> list[syncs.Outcome]:
        return syncs.stop_tables(connection, source_id, named_tables(connection, source_id, request.tables))

    return command_tables(write, tenant, source, "stop", command)


@router.post("/retry", status_code=202, responses=WRITES_TABLES)
def retry_tables(tenant: TenantName, source: SourceName, request: RetryManyRequest, write: WriteIf) -> Outcomes:
    """Try tables again that have stopped, or all that have: where they stopped, and in lakes at once."""

    def command(connection: Connection, source_id: int) -> list[syncs.Outcome]:
        return recovery.retry_tables(connection, source_id, named_tables(connection, source_id, request.tables))

    return command_tables(write, tenant, source, "retry", command)


@router.post("/resync", status_code=202, responses=WRITES_TABLES)
def resync_tables(tenant: TenantName, source: SourceName, request: ResyncManyRequest, write: WriteIf) -> Outcomes:
    """Begin tables anew, or all that are synced, each with a dump, whatever they do now."""

    def command(connection: Connection, source_id: int) -> list[syncs.Outcome]:
        names = named_tables(connection, source_id, request.tables)
        return recovery.resync_tables(connection, source_id, names, dump_options(request.dump))

    return command_tables(write, tenant, source, "resync", command)


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


def _rule_start(request: StartRequest) -> StartKind:
    """What "resume" means for a table that never began: a dump brings what it has when it is seen."""
    kind = StartKind.DUMP if request.start == "resume" else request.start
    if kind in rules.STARTS:
        return StartKind(kind)
    raise RequestInvalid(
        "making a rule",
        "a position is one table's, and future tables have none yet",
        data="Nothing was changed.",
        remedy="Start them with dump, oldest or now.",
    )


def _command(
    write: Writing, tenant: str, source: str, table: naming.TableName, kind: str, command: Command
) -> StartedTable:
    def act(connection: Connection) -> StartedTable:
        source_id = queries.source_row(connection, tenant, source).id
        outcome = command(connection, source_id)[0]
        if outcome.refused is not None:
            raise outcome.refused
        continuity_ledger.record_command(connection, source_id, kind, write.actor, changed_tables([outcome]))
        detail = queries.table(connection, source_id, outcome.database, outcome.table)
        fields = {name: getattr(detail, name) for name in TableView.model_fields}
        return StartedTable(**fields, changed=outcome.changed, notice=outcome.notice)

    return write.run(StartedTable, act, versions.of_table(tenant, source, table))
